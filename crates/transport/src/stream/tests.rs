//! Where frames are lent while a peer has taken only a part of those before, and that the bytes stay in order.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::socket::Socket;

const FRAMING: Framing =
    Framing { header_bytes: 1, body_bytes: |_| Ok(0), frame_bytes_max: BUFFER_BYTES_BATCH * 2 };

fn pair() -> (StreamSender, Socket) {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let socket = |end: UnixStream| Socket::new(OwnedFd::from(end), "test".to_owned()).expect("a socket");
    let pipe = Pipe::Plain(Arc::new(socket(ours)));
    (StreamSender::new(pipe, FRAMING, Duration::from_secs(60)), socket(theirs))
}

/// Reads all that is there.
fn drain(socket: &Socket, into: &mut Vec<u8>) {
    let mut buffer = [0; 1 << 16];
    while let Read::Bytes(bytes) = socket.try_read(&mut buffer).expect("it is open") {
        into.extend_from_slice(&buffer[..bytes]);
    }
}

proptest! {
    /// Frames of any length, of each of which so many bytes are taken before the next one is asked for.
    #[test]
    fn frames_are_lent_at_multiples_of_eight(
        frames in prop::collection::vec((1_usize..40_000, 0_usize..60_000), 1..20),
    ) {
        let (mut sender, peer) = pair();
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        for (at, &(bytes, taken)) in frames.iter().enumerate() {
            while sender.try_frame(bytes).expect("it is open").is_none() {
                drain(&peer, &mut received);
            }
            let (slot, filled) = sender.frame(bytes).expect("there is room");
            prop_assert!(slot.as_ptr().addr().is_multiple_of(FRAME_ALIGN_BYTES));
            prop_assert_eq!(slot.len(), bytes);
            slot.iter_mut().enumerate().for_each(|(byte, out)| *out = (byte * 7 + at) as u8);
            sent.extend_from_slice(slot);
            *filled += bytes;
            // As the kernel would, that takes as much as there is room for.
            let waiting = sender.filled - sender.sent;
            let end = sender.sent + taken.min(waiting);
            let part = &bytemuck::cast_slice(&sender.buffer)[sender.sent..end];
            if !part.is_empty() {
                sender.sent += sender.pipe.try_write(&[IoSlice::new(part)]).expect("open").unwrap_or(0);
            }
            drain(&peer, &mut received);
        }
        while !sender.try_flush().expect("open") {
            drain(&peer, &mut received);
        }
        drain(&peer, &mut received);
        prop_assert!(sent == received);
        prop_assert!(sender.buffer.len() * FRAME_ALIGN_BYTES <= BUFFER_BYTES_BATCH);
    }
}
