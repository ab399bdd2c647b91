//! A peer of shared memory that writes what it likes into it, between calls of a server that reads and writes: frames or
//! errors, nothing outside the ring, and no call that does not come back. The peer writes through the memory's file, by the
//! layout of `shm/control.rs` and `shm/memory.rs`.
#![no_main]

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix};
use sanderling_transport::{Connection, Framing, ListenOptions, Listener, Received};

const TAIL_AT: u64 = 0;
const REPLY_CONTROL_AT: u64 = 1024;
const DATA_AT: u64 = 4096;
const RING_BYTES: u64 = 1 << 16;
/// The body's length as 8 bytes, then the body.
const FRAMING: Framing = Framing {
    header_bytes: 8,
    body_bytes: |header| {
        let length = u64::from_le_bytes(header.try_into().map_err(|_| "short header".to_owned())?);
        usize::try_from(length).map_err(|error| error.to_string())
    },
    frame_bytes_max: 20_000,
};

#[derive(Arbitrary, Debug)]
enum Act {
    /// A word of the control areas.
    Control {
        at: u16,
        word: Word,
    },
    /// A word of the request ring.
    Data {
        at: u16,
        word: Word,
    },
    /// A slot as a peer that keeps to the rules writes it, but for what the words say, where the last one ended.
    Slot {
        length: Word,
        header: Word,
        tail: Option<Word>,
    },
    Receive,
    Send {
        bytes: u16,
    },
    Flush,
}

/// Numbers that are often sizes or places.
#[derive(Arbitrary, Debug, Clone, Copy)]
enum Word {
    Small(u16),
    Slots(u16),
    Below(u8),
    Any(u64),
}

impl Word {
    fn value(self) -> u64 {
        match self {
            Word::Small(word) => word.into(),
            Word::Slots(slots) => u64::from(slots) * 64,
            Word::Below(word) => u64::MAX - u64::from(word),
            Word::Any(word) => word,
        }
    }
}

/// A client that does as it likes.
struct Hostile {
    memory: OwnedFd,
    _socket: OwnedFd,
}

impl Hostile {
    fn put(&self, at: u64, word: u64) {
        assert_eq!(rustix::io::pwrite(&self.memory, &word.to_le_bytes(), at).unwrap(), 8);
    }
}

fn pair() -> (Connection, Hostile) {
    let name = format!("fuzz-{}", std::process::id());
    let mut options = ListenOptions::new(FRAMING);
    options.ring_bytes = RING_BYTES as usize;
    let listener = Listener::bind(&format!("shm:{name}").parse().unwrap(), &options).unwrap();
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
    assert_eq!(greeting[8..], RING_BYTES.to_le_bytes());
    let Some(RecvAncillaryMessage::ScmRights(mut fds)) = control.drain().next() else { panic!("no memory") };
    (server, Hostile { memory: fds.next().unwrap(), _socket: socket })
}

fuzz_target!(|acts: Vec<Act>| {
    let (mut server, hostile) = pair();
    let mut end = 0;
    for act in acts.iter().take(100) {
        match *act {
            Act::Control { at, word } => {
                let places = [0, 64, 128, 192, 256, 320, 384, 448];
                let at = places[usize::from(at) % 8] + if at & 8 == 0 { 0 } else { REPLY_CONTROL_AT };
                hostile.put(at, word.value());
            }
            Act::Data { at, word } => hostile.put(DATA_AT + u64::from(at) / 8 * 8 % RING_BYTES, word.value()),
            Act::Slot { length, header, tail } => {
                let at = DATA_AT + end % RING_BYTES;
                hostile.put(at, length.value());
                hostile.put(at + 32, header.value());
                let rows = 32_u64.saturating_add(length.value());
                end = tail
                    .map_or(end.wrapping_add(rows.checked_next_multiple_of(64).unwrap_or(64)), Word::value);
                hostile.put(TAIL_AT, end);
            }
            Act::Receive => match server.receiver.try_receive() {
                Ok(Received::Frame(frame)) => assert!((8..=FRAMING.frame_bytes_max).contains(&frame.len())),
                Ok(_) => {}
                Err(_) => return,
            },
            Act::Send { bytes } => {
                let bytes = 8 + usize::from(bytes) % (FRAMING.frame_bytes_max - 8);
                match server.sender.try_frame(bytes) {
                    Ok(Some(slot)) => {
                        let mut frame = vec![7; bytes];
                        frame[..8].copy_from_slice(&(bytes as u64 - 8).to_le_bytes());
                        slot.write(&frame);
                    }
                    Ok(None) => {}
                    Err(_) => return,
                }
            }
            Act::Flush => {
                if server.sender.try_flush().is_err() {
                    return;
                }
            }
        }
    }
});
