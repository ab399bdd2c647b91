//! A real process at the other end that is killed while it sends: whole frames before, then the end or a cut, at once.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::endpoints::{FRAME_BYTES_MAX, ROUNDS_OVER_TCP, TestEndpoint, frame, kinds, within_a_minute};
use sanderling_transport::{Address, Connection, Error, Listener, connect};

const ADDRESS: &str = "SANDERLING_TEST_ADDRESS";

/// The other process: this program again, with an address to connect to. It sends two whole frames and part of a third,
/// says so, and waits to be killed.
#[test]
fn the_other_process() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let address: Address = address.parse().unwrap();
    let _keep: Box<dyn std::any::Any> = match &address {
        Address::Shm(_) => {
            let mut client = connect(&address, &TestEndpoint::new("shm").connect).unwrap();
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
        Address::Rdma(_) => {
            let mut client = connect(&address, &TestEndpoint::new("rdma").connect).unwrap();
            for n in 0..ROUNDS_OVER_TCP {
                client.sender.frame(100).unwrap().write(&frame(n, 9));
                client.sender.flush().unwrap();
                assert_eq!(client.receiver.receive(within_a_minute()).unwrap(), Some(&frame(n, 9)[..]));
            }
            for n in 0..2 {
                client.sender.frame(100).unwrap().write(&frame(n, 50));
            }
            client.sender.flush().unwrap();
            client.sender.frame(FRAME_BYTES_MAX / 4).unwrap()[..40].fill(9);
            Box::new(client)
        }
        Address::Embedded => panic!("no process"),
    };
    std::io::stdout().write_all(b"\nsent\n").unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

fn raw(mut stream: impl Write + std::any::Any) -> Box<dyn std::any::Any> {
    let bytes: Vec<u8> = [frame(0, 50), frame(1, 50), frame(2, 50)[..13].to_vec()].concat();
    stream.write_all(&bytes).unwrap();
    Box::new(stream)
}

/// The other process, which ends with the test, also when that fails.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A connection of the other process, which may have failed before it could make one.
fn accept(listener: &Listener) -> Connection {
    let (accepted, is_accepted) = mpsc::channel::<()>();
    let stopper = listener.stopper();
    std::thread::spawn(move || {
        if is_accepted.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
            stopper.stop();
        }
    });
    let connection = listener.accept().unwrap();
    drop(accepted);
    connection.expect("the other process connects within a minute")
}

fn check(kind: &str) {
    let mut place = TestEndpoint::new(kind);
    let listener = place.listener();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed_peer::the_other_process", "--nocapture"])
        .env(ADDRESS, place.address.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = Other(child.unwrap());
    let mut server = accept(&listener);
    for _ in 0..if kind == "rdma" { ROUNDS_OVER_TCP } else { 0 } {
        let got = server.receiver.receive(within_a_minute()).unwrap().unwrap().to_vec();
        server.sender.frame(got.len()).unwrap().write(&got);
        server.sender.flush().unwrap();
    }
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "sent"), "{kind}: the other process failed");
    for n in 0..2 {
        assert_eq!(server.receiver.receive(within_a_minute()).unwrap(), Some(&frame(n, 50)[..]), "{kind}");
    }
    // The rest of the third does not come, and while the peer lives, that is no error.
    let deadline = Instant::now() + Duration::from_millis(10);
    assert!(matches!(server.receiver.receive(Some(deadline)), Err(Error::Deadline { .. })), "{kind}");
    let waiting =
        std::thread::spawn(move || server.receiver.receive(within_a_minute()).map(|frame| frame.is_some()));
    drop(child);
    match (waiting.join().unwrap(), kind) {
        // An unpublished frame was never sent.
        (Ok(false), "shm" | "rdma") => {}
        (Err(Error::Cut { bytes: 13, .. }), "unix" | "tcp") => {}
        (other, _) => panic!("{kind}: {other:?}"),
    }
}

#[test]
fn a_process_that_is_killed_in_the_middle_of_a_frame() {
    for kind in kinds().iter().filter(|kind| !["tls", "rdma-cold"].contains(kind)) {
        check(kind);
    }
}
