//! A keeper that ends and starts again: records, leases, watches, damage, a full disk.

use std::fs;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use sanderling_keeper::{Keeper, KeeperError};
use sanderling_registry::{Edit, Options, Outcome, Registry, Watched};

use crate::backends::{WITHIN, config, url};

fn put(registry: &dyn Registry, name: &str, expected: u64, lease: Option<u64>) -> u64 {
    let edit = Edit::Put { value: name.into(), lease };
    match registry.compare_and_set(name, expected, edit, WITHIN).unwrap() {
        Outcome::Done(revision) => revision,
        other => panic!("{other:?}"),
    }
}

#[test]
fn records_and_leases_outlive_the_keeper() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().join("new");
    let keeper = Keeper::start(&config(&folder), |line| panic!("{line}")).unwrap();
    let number = keeper.number().to_owned();
    let registry = url(&keeper, "ads").open(&Options::default()).unwrap();
    let lease = registry.grant(Duration::from_secs(3600), WITHIN).unwrap();
    let first = put(&*registry, "config", 0, None);
    put(&*registry, "members/1", 0, Some(lease));
    put(&*registry, "config", first, None);
    let before = registry.list("", WITHIN).unwrap();
    let refused = Keeper::start(&config(&folder), |_| {}).unwrap_err();
    assert!(refused.to_string().contains("another keeper uses this folder"), "{refused}");
    keeper.stop();
    // A change that was never answered.
    let journal = folder.join("journal");
    let mut content = fs::read(&journal).unwrap();
    content.extend_from_slice(b"\xffsk\x01 torn");
    fs::write(&journal, &content).unwrap();
    let (notes, noted) = sync_channel(8);
    let note = move |line: &str| notes.send(line.to_owned()).unwrap();
    let keeper = Keeper::start(&config(&folder), note).unwrap();
    let line = noted.recv_timeout(WITHIN).unwrap();
    assert!(line.contains("cut 9 bytes of a change that was never answered"), "{line}");
    assert_eq!((keeper.number(), keeper.records_at_start()), (&*number, 2));
    let registry = url(&keeper, "ads").open(&Options::default()).unwrap();
    assert_eq!(registry.list("", WITHIN).unwrap(), before);
    assert!(registry.keep_alive(lease, WITHIN).unwrap());
    // The changes since the journal was written are still there for watches.
    match registry.watch("", 0, WITHIN).unwrap() {
        Watched::Changes { changes, after } => assert_eq!((changes.len(), after), (3, before.revision)),
        Watched::BeginAgain => panic!("the journal has them"),
    }
    registry.revoke(lease, WITHIN).unwrap();
    assert_eq!(registry.list("members/", WITHIN).unwrap().records, []);
}

#[test]
fn a_watch_does_not_hold_up_the_end() {
    let data = tempfile::tempdir().unwrap();
    let keeper = Keeper::start(&config(data.path()), |line| panic!("{line}")).unwrap();
    let registry = url(&keeper, "ads").open(&Options::default()).unwrap();
    let waiting = std::thread::spawn(move || {
        let start = Instant::now();
        // The client goes on with the watch, and finds nobody.
        (registry.watch("", 0, WITHIN), start.elapsed())
    });
    let metrics = || {
        let mut answer = String::new();
        use std::io::{Read as _, Write as _};
        let host = keeper.url().rsplit('/').next().unwrap().to_owned();
        let mut stream = std::net::TcpStream::connect(host).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    while !metrics().contains("sanderling_keeper_watches 1") {
        std::thread::sleep(Duration::from_millis(5));
    }
    keeper.stop();
    let (watched, waited) = waiting.join().unwrap();
    assert!(watched.is_err() && waited < WITHIN, "{watched:?}");
}

#[test]
fn a_damaged_folder_is_refused_by_name() {
    let data = tempfile::tempdir().unwrap();
    let keeper = Keeper::start(&config(data.path()), |line| panic!("{line}")).unwrap();
    let registry = url(&keeper, "ads").open(&Options::default()).unwrap();
    for name in ["a", "b", "c"] {
        put(&*registry, name, 0, None);
    }
    keeper.stop();
    let journal = data.path().join("journal");
    let content = fs::read(&journal).unwrap();
    let at = content.windows(4).position(|window| window == b"ads/").unwrap();
    for (content, expected) in [
        ([&content[..at], b"X", &content[at + 1..]].concat(), "after which there are others"),
        (Vec::new(), "does not begin as a journal does"),
        (b"text".to_vec(), "does not begin as a journal does"),
    ] {
        fs::write(&journal, content).unwrap();
        let error = Keeper::start(&config(data.path()), |_| {}).unwrap_err();
        assert!(matches!(error, KeeperError::Damaged { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(expected) && text.contains("/journal: "), "{text}");
    }
    let file = data.path().join("file");
    fs::write(&file, "").unwrap();
    for (folder, expected) in
        [(file.join("below"), "it cannot be created"), (data.path().join("a/b"), "cannot be created")]
    {
        let error = Keeper::start(&config(&folder), |_| {}).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
