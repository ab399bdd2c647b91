//! Compares a ring with a plain queue under random operations. It uses one thread and ordinary memory, so that Miri
//! can check every access.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::memory::RingMemory;
use super::receiver::RingReceiver;
use super::sender::{RingSender, frame_bytes_max};
use crate::options::Framing;
use crate::received::Received;
use crate::socket::Socket;
use crate::spin::Spin;

const RING_BYTES: usize = 4096;
const FRAMING: Framing = Framing {
    header_bytes: 2,
    body_bytes: |header| Ok(usize::from(u16::from_le_bytes([header[0], header[1]]))),
    frame_bytes_max: 1 << 20,
};

#[derive(Clone, Debug)]
enum Step {
    /// Asks for `asked` bytes and commits a body of `body` bytes.
    Write {
        asked: usize,
        body: usize,
    },
    /// Asks for `asked` bytes and commits nothing.
    Abandon {
        asked: usize,
    },
    Flush,
    Take,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let longest = frame_bytes_max(RING_BYTES);
    let bytes = prop_oneof![2..200usize, 2..=longest, Just(longest)];
    let step = prop_oneof![
        4 => (bytes.clone(), any::<prop::sample::Index>())
            .prop_map(|(asked, part)| Step::Write { asked, body: part.index(asked - 1) }),
        1 => bytes.prop_map(|asked| Step::Abandon { asked }),
        2 => Just(Step::Flush),
        4 => Just(Step::Take),
    ];
    prop::collection::vec(step, 1..if cfg!(miri) { 30 } else { 300 })
}

fn check(steps: &[Step], copies: bool) {
    let [memory, other] = RingMemory::in_process(RING_BYTES);
    let (socket, _peer) = UnixStream::pair().expect("a pair of sockets");
    let socket = Arc::new(Socket { fd: socket.into(), peer: "model".to_owned() });
    let spin = Spin::new(0);
    let mut sender = RingSender::new(memory, socket.clone(), FRAMING, Duration::from_secs(100), spin.clone());
    let mut receiver = RingReceiver::new(other, socket, FRAMING, spin, copies);
    let (mut committed, mut flushed) = (VecDeque::new(), VecDeque::new());
    let mut lent = false;
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Write { asked, body } => match sender.try_frame(asked).expect("no fault") {
                Some((commit, slot)) => {
                    slot[..2].copy_from_slice(&(body as u16).to_le_bytes());
                    slot[2..2 + body].fill(number as u8);
                    commit.commit(2 + body);
                    committed.push_back((body, number as u8));
                }
                None => {
                    // The sender publishes before it reports a full ring, and an empty ring takes any frame.
                    flushed.append(&mut committed);
                    assert!(lent || !flushed.is_empty(), "no room for {asked} bytes in an empty ring");
                }
            },
            Step::Abandon { asked } => {
                if sender.try_frame(asked).expect("no fault").is_none() {
                    flushed.append(&mut committed);
                }
            }
            Step::Flush => {
                sender.flush();
                flushed.append(&mut committed);
            }
            Step::Take => match (receiver.try_receive().expect("no fault"), flushed.pop_front()) {
                (Received::Frame(frame), Some((body, value))) => {
                    assert_eq!(frame.as_ptr().align_offset(8), 0);
                    assert_eq!(frame.len(), 2 + body);
                    assert!(frame[2..].iter().all(|&byte| byte == value));
                    lent = !copies;
                }
                (Received::Nothing, None) => lent = false,
                (got, expected) => panic!("{got:?} instead of {expected:?}"),
            },
        }
    }
    drop(sender);
    while let Received::Frame(frame) = receiver.try_receive().expect("no fault") {
        assert_eq!(flushed.pop_front().map(|(body, _)| body + 2), Some(frame.len()));
    }
    assert!(flushed.is_empty() && receiver.has_ended(), "what was flushed is received, and then the end");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_ring_is_a_queue(steps in steps(), copies: bool) {
        check(&steps, copies);
    }
}
