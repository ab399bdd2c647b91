//! A real process at the other end that is killed while it sends: whole frames before, then the end or a cut, at once.
#![allow(clippy::unwrap_used)] // a panic is a failed test with a line number

mod endpoints;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use endpoints::{FRAME_BYTES_MAX, Place, frame};
use sanderling_transport::{Address, Error, connect};

const ADDRESS: &str = "SANDERLING_TEST_ADDRESS";

/// The other process: this program again, with an address to connect to. It sends two whole frames and part of a third,
/// says so, and waits to be killed.
#[test]
fn the_other_process() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let address: Address = address.parse().unwrap();
    let _keep: Box<dyn std::any::Any> = match &address {
        Address::Shm(_) => {
            let mut client = connect(&address, &Place::new("shm").connect).unwrap();
            for n in 0..2 {
                client.sender.frame(100).unwrap().write(&frame(n, 50));
            }
            client.sender.flush().unwrap();
            // Written but not given away: the reader must not see it.
            client.sender.frame(FRAME_BYTES_MAX).unwrap()[..40].fill(9);
            Box::new(client)
        }
        Address::Unix(path) => raw(std::os::unix::net::UnixStream::connect(path).unwrap()),
        Address::Tcp(endpoints) => raw(std::net::TcpStream::connect(endpoints[0].to_string()).unwrap()),
        Address::Embedded | Address::Grpc(_) => panic!("no process"),
    };
    std::io::stdout().write_all(b"\nsent\n").unwrap();
    std::thread::sleep(Duration::from_secs(600));
}

fn raw(mut stream: impl Write + std::any::Any) -> Box<dyn std::any::Any> {
    let bytes: Vec<u8> = [frame(0, 50), frame(1, 50), frame(2, 50)[..13].to_vec()].concat();
    stream.write_all(&bytes).unwrap();
    Box::new(stream)
}

fn check(kind: &str) {
    let mut place = Place::new(kind);
    let listener = place.listener();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process", "--nocapture"])
        .env(ADDRESS, place.address.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut server = listener.accept().unwrap().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "sent"), "{kind}: the other process failed");
    for n in 0..2 {
        assert_eq!(server.receiver.receive(None).unwrap(), Some(&frame(n, 50)[..]), "{kind}");
    }
    // The rest of the third does not come, and while the peer lives, that is no error.
    let deadline = Instant::now() + Duration::from_millis(10);
    assert!(matches!(server.receiver.receive(Some(deadline)), Err(Error::Deadline { .. })), "{kind}");
    let waiting = std::thread::spawn(move || server.receiver.receive(None).map(|frame| frame.is_some()));
    child.kill().unwrap();
    child.wait().unwrap();
    match (waiting.join().unwrap(), kind) {
        // What was not given away was never sent.
        (Ok(false), "shm") => {}
        (Err(Error::Cut { bytes: 13, .. }), "unix" | "tcp") => {}
        (other, _) => panic!("{kind}: {other:?}"),
    }
}

#[test]
fn a_process_that_is_killed_in_the_middle_of_a_frame() {
    for kind in ["shm", "unix", "tcp"] {
        check(kind);
    }
}
