//! Frames through shared memory: two rings of bytes, one per direction, between two processes of one host. A unix
//! socket beside them carries wake-ups and the end of the connection.
//!
//! The peer may be hostile or die at any moment. So values in shared memory are read once and checked before use,
//! above all indexes and lengths; the memory is sealed, so that it cannot shrink; and every wait for the peer ends by
//! a deadline or by the end of the socket.

mod atomics;
mod control;
mod handshake;
mod memory;
#[cfg(test)]
mod model;
mod receiver;
mod sender;

#[cfg(feature = "rdma")]
pub(crate) use memory::{FRAME_AT_BYTES, RingMemory, SLOT_ALIGN_BYTES, map, mapping_bytes};
#[cfg(feature = "rdma")]
pub(crate) use sender::slot_bytes;

pub(crate) use handshake::{abstract_name, receive_memory, ring_bytes, send_memory};
pub(crate) use receiver::RingReceiver;
pub(crate) use sender::{RingCommit, RingSender};

use std::sync::Arc;

use crate::socket::Socket;
use control::Sleep;

/// Wakes a sleeping peer.
fn wake(how: Option<Sleep>, word: &std::sync::atomic::AtomicU32, socket: &Arc<Socket>) {
    match how {
        None => {}
        Some(Sleep::Futex) => {
            let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), 1);
        }
        // A full socket holds other wake-ups already. The receiver notices a closed one.
        Some(Sleep::Socket) => {
            let _ = socket.try_write(&[1]);
        }
    }
}
