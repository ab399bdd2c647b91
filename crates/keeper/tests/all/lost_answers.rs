//! A client whose answers are lost, and a registry that is another one: what the client says, and what was done.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use sanderling_keeper::Keeper;
use sanderling_registry::{Edit, Options, Outcome, RegistryError, RegistryUrl};

use crate::backends::{WITHIN, config, url};

/// What becomes of a connection.
#[derive(Clone, Copy)]
enum Fate {
    /// The request arrives, and the answer is lost.
    AnswerLost,
    /// The request is lost.
    RequestLost,
    /// Something else answers.
    NoKeeper,
}

/// Takes one connection, and treats it so.
fn relay(to: &str, fate: Fate) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, to) = (listener.local_addr().unwrap().to_string(), to.to_owned());
    let thread = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut request = [0; 64 << 10];
        let bytes = client.read(&mut request).unwrap();
        match fate {
            Fate::RequestLost => {}
            Fate::NoKeeper => client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap(),
            Fate::AnswerLost => {
                let mut server = TcpStream::connect(to).unwrap();
                server.write_all(&request[..bytes]).unwrap();
                let mut answer = [0; 64 << 10];
                assert!(server.read(&mut answer).unwrap() > 0);
            }
        }
    });
    (address, thread)
}

fn host(keeper: &Keeper) -> &str {
    keeper.url().rsplit('/').next().unwrap()
}

#[test]
fn a_lost_answer_is_unknown_and_nothing_is_sent_again() {
    let data = tempfile::tempdir().unwrap();
    let keeper = Keeper::start(&config(data.path()), |line| panic!("{line}")).unwrap();
    let direct = url(&keeper, "ads").open(&Options::default()).unwrap();
    for (fate, is_made) in [(Fate::AnswerLost, true), (Fate::RequestLost, false), (Fate::NoKeeper, false)] {
        let (address, thread) = relay(host(&keeper), fate);
        let url: RegistryUrl = format!("keeper://{address}/ads").parse().unwrap();
        let registry = url.open(&Options::default()).unwrap();
        let before = direct.get("config", WITHIN).unwrap().map_or(0, |record| record.revision);
        let error = registry.compare_and_set("config", before, Edit::put(1.into()), WITHIN).unwrap_err();
        assert!(matches!(&error, RegistryError::Unknown { name, .. } if name == "config"), "{error:?}");
        thread.join().unwrap();
        let after = direct.get("config", WITHIN).unwrap().map_or(0, |record| record.revision);
        assert_eq!(after, before + u64::from(is_made));
        // A read, whose answer is lost, too, has changed nothing; now nobody listens.
        let error = registry.get("config", Duration::from_secs(5)).unwrap_err();
        assert!(matches!(error, RegistryError::Unreachable { .. }), "{error:?}");
        let error = registry.compare_and_set("config", after, Edit::put(2.into()), WITHIN).unwrap_err();
        assert!(matches!(error, RegistryError::Unreachable { .. }), "{error:?}");
    }
}

#[test]
fn a_keeper_with_other_records_is_refused() {
    let [data, other] = [0; 2].map(|_| tempfile::tempdir().unwrap());
    let keeper = Keeper::start(&config(data.path()), |line| panic!("{line}")).unwrap();
    let registry = url(&keeper, "ads").open(&Options::default()).unwrap();
    let Outcome::Done(revision) = registry.compare_and_set("config", 0, Edit::put(1.into()), WITHIN).unwrap()
    else {
        panic!("it is new");
    };
    let address = host(&keeper).to_owned();
    let expected_number = keeper.number().to_owned();
    keeper.stop();
    let mut again = config(other.path());
    again.listen = address.parse().unwrap();
    let second = Keeper::start(&again, |line| panic!("{line}")).unwrap();
    let edits = [Edit::put(2.into()), Edit::Delete];
    for (edit, expected) in edits.into_iter().zip([0, revision]) {
        let ask = |_| registry.compare_and_set("config", expected, edit.clone(), WITHIN).unwrap_err();
        // The end of a connection to the first keeper may be seen only now.
        let is_answer = |error: &RegistryError| !matches!(error, RegistryError::Unknown { .. });
        match (0..3).map(ask).find(is_answer) {
            Some(RegistryError::Another { expected, found, .. }) => {
                assert_eq!((&*expected, &*found), (&*expected_number, second.number()));
            }
            other => panic!("{other:?}"),
        }
    }
    let direct = url(&second, "ads").open(&Options::default()).unwrap();
    assert_eq!(direct.list("", WITHIN).unwrap().records, [], "the other keeper changes nothing");
    second.stop();
    // The first folder is the right one, at the same address.
    let mut again = config(data.path());
    again.listen = address.parse().unwrap();
    let _third = Keeper::start(&again, |line| panic!("{line}")).unwrap();
    assert_eq!(registry.get("config", WITHIN).unwrap().map(|record| record.revision), Some(revision));
}
