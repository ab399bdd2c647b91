//! A peer of shared memory that writes what it should not into it: indexes, lengths, skips, headers. Each is an error of
//! that connection, and nothing is touched outside the ring. The peer here writes through the memory's file.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::endpoints::{FRAME_BYTES_MAX, TestEndpoint, frame, within_a_minute};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix};
use sanderling_transport::{Address, Connection, Error, Received};

// The layout that `shm/control.rs` and `shm/memory.rs` describe.
const TAIL_AT: u64 = 0;
const HEAD_AT: u64 = 128;
const REPLY_CONTROL_AT: u64 = 1024;
const DATA_AT: u64 = 4096;
const FRAME_AT: u64 = 32;
const RING_BYTES: u64 = 1 << 20;

/// A client that does as it likes.
struct Hostile {
    memory: OwnedFd,
    socket: OwnedFd,
}

impl Hostile {
    fn put(&self, at: u64, bytes: &[u8]) {
        assert_eq!(rustix::io::pwrite(&self.memory, bytes, at).unwrap(), bytes.len());
    }

    fn put_word(&self, at: u64, word: u64) {
        self.put(at, &word.to_le_bytes());
    }

    /// A slot at the start of the request ring.
    fn put_slot(&self, length: u64, frame: &[u8], tail: u64) {
        self.put_word(DATA_AT, length);
        self.put(DATA_AT + FRAME_AT, frame);
        self.put_word(TAIL_AT, tail);
    }
}

fn pair() -> (Connection, Hostile) {
    let mut place = TestEndpoint::new("shm");
    place.listen.ring_bytes = RING_BYTES as usize;
    place.listen.write_timeout = Duration::from_secs(20);
    let listener = place.listener();
    let Address::Shm(name) = &place.address else { panic!("shm") };
    let name = format!("sanderling-shm-{}-{name}", rustix::process::geteuid().as_raw());
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    let server = listener.accept().unwrap().unwrap();
    let mut greeting = [0; 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let pieces = &mut [IoSliceMut::new(&mut greeting)];
    rustix::net::recvmsg(&socket, pieces, &mut control, RecvFlags::empty()).unwrap();
    let Some(RecvAncillaryMessage::ScmRights(mut fds)) = control.drain().next() else { panic!("no memory") };
    let memory = fds.next().unwrap();
    assert_eq!(greeting[8..], RING_BYTES.to_le_bytes());
    (server, Hostile { memory, socket })
}

fn check(context: &str, attack: impl Fn(&Hostile), expected: &str) {
    for waiting in [false, true] {
        let (mut server, hostile) = pair();
        attack(&hostile);
        let found = if waiting {
            server.receiver.receive(Some(Instant::now() + Duration::from_secs(20))).map(|_| ())
        } else {
            server.receiver.try_receive().map(|_| ())
        };
        let error = found.expect_err(context).to_string();
        assert!(error.contains(expected) && error.contains("shm:test"), "{context}: {error}");
    }
}

#[test]
fn the_writers_words_are_checked() {
    let good = frame(1, 20);
    check(
        "a tail beyond the ring",
        |peer| peer.put_word(TAIL_AT, RING_BYTES + 64),
        "the writer is at 1048640",
    );
    check("a tail far away", |peer| peer.put_word(TAIL_AT, u64::MAX - 63), "the writer is at");
    check("a tail between slots", |peer| peer.put_word(TAIL_AT, 32), "the writer is at 32");
    check("a length of 4 GiB", |peer| peer.put_slot(4 << 30, &good, 64), "longer than the limit of 300000");
    check("a length of everything", |peer| peer.put_slot(u64::MAX - 1, &good, 64), "longer than the limit");
    check(
        "a length beyond the tail",
        |peer| peer.put_slot(1000, &good, 64),
        "a frame of 1000 bytes at 0 of 64",
    );
    check("a length below the header", |peer| peer.put_slot(7, &good, 64), "a frame of 7 bytes at 0");
    check("a length of nothing", |peer| peer.put_slot(0, &good, 64), "a frame of 0 bytes at 0");
    check("a skip beyond the tail", |peer| peer.put_slot(u64::MAX, &good, 64), "a skip at 0 leads beyond");
    check(
        "a header that says more",
        |peer| peer.put_slot(27, &good, 64),
        "a frame of 27 bytes whose header says",
    );
    check("no header", |peer| peer.put_slot(28, &0x5050_5450u64.to_le_bytes(), 64), "not our protocol");
}

#[test]
fn a_tail_that_goes_back_is_an_error() {
    let (mut server, hostile) = pair();
    hostile.put_slot(28, &frame(1, 20), 64);
    assert_eq!(server.receiver.try_receive().unwrap(), Received::Frame(&frame(1, 20)));
    hostile.put_word(TAIL_AT, 0);
    let error = server.receiver.try_receive().unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

#[test]
fn a_skip_of_the_whole_ring_again_and_again_gets_nowhere() {
    let (mut server, hostile) = pair();
    hostile.put_slot(u64::MAX, &[], RING_BYTES);
    assert_eq!(server.receiver.try_receive().unwrap(), Received::Nothing);
    hostile.put_word(TAIL_AT, 2 * RING_BYTES);
    assert_eq!(server.receiver.try_receive().unwrap(), Received::Nothing);
}

#[test]
fn the_readers_index_is_checked() {
    for head in [64, 32, RING_BYTES, u64::MAX - 63] {
        let (mut server, hostile) = pair();
        hostile.put_word(REPLY_CONTROL_AT + HEAD_AT, head);
        let body = FRAME_BYTES_MAX - 8;
        let error = loop {
            match server.sender.try_frame(FRAME_BYTES_MAX) {
                Ok(Some(slot)) => slot.write(&frame(1, body)),
                Ok(None) => panic!("{head}: the ring is full, and the index was believed"),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("the reader is at"), "{head}: {error}");
    }
}

#[test]
fn the_memory_cannot_be_taken_away() {
    let (mut server, hostile) = pair();
    for bytes in [0, 4096, 1 << 30] {
        assert_eq!(rustix::fs::ftruncate(&hostile.memory, bytes), Err(rustix::io::Errno::PERM), "{bytes}");
    }
    hostile.put_slot(28, &frame(1, 20), 64);
    assert_eq!(server.receiver.try_receive().unwrap(), Received::Frame(&frame(1, 20)));
}

/// What is lent is a copy: a peer that changes a request after it was checked changes nothing.
#[test]
fn requests_do_not_change_after_they_were_checked() {
    let (mut server, hostile) = pair();
    hostile.put_slot(28, &frame(1, 20), 64);
    let Received::Frame(lent) = server.receiver.try_receive().unwrap() else { panic!("no frame") };
    hostile.put(DATA_AT + FRAME_AT, &[0xff; 28]);
    assert_eq!(lent, frame(1, 20));
}

#[test]
fn a_peer_that_goes_is_noticed_asleep_and_awake() {
    // By the reader: at once, with nothing after what was published.
    let (mut server, hostile) = pair();
    hostile.put_slot(28, &frame(1, 20), 64);
    let waits = std::thread::spawn(move || {
        assert_eq!(server.receiver.receive(within_a_minute()).unwrap(), Some(&frame(1, 20)[..]));
        assert_eq!(server.receiver.receive(within_a_minute()).unwrap(), None);
    });
    drop(hostile);
    waits.join().unwrap();
    // By the writer, which waits for room.
    let (mut server, hostile) = pair();
    let waits = std::thread::spawn(move || {
        loop {
            match server.sender.frame(FRAME_BYTES_MAX) {
                Ok(slot) => slot.write(&frame(0, 8)),
                Err(error) => return error,
            }
        }
    });
    drop(hostile);
    let error = waits.join().unwrap();
    assert!(matches!(error, Error::Closed { .. }), "{error}");
}

/// A peer that rings without end, or fills the socket, costs a look each and nothing more.
#[test]
fn idle_wake_ups_are_harmless() {
    let (mut server, hostile) = pair();
    let socket = UnixStream::from(hostile.socket.try_clone().unwrap());
    socket.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut &socket, &[7; 1000]).is_ok() {}
    let error = server.receiver.receive(Some(Instant::now() + Duration::from_millis(20))).unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    hostile.put_slot(28, &frame(1, 20), 64);
    assert_eq!(server.receiver.receive(within_a_minute()).unwrap(), Some(&frame(1, 20)[..]));
}
