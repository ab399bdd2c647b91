//! Frames through shared memory: two rings of bytes, one for each direction, between two processes of one host. A unix
//! socket beside them carries what memory cannot: that the peer sleeps and should wake, and that it is gone.
//!
//! The peer may be hostile or die at any moment. So whatever is read from shared memory is read once and checked
//! before it is used, indexes and lengths above all; the memory is sealed, so that it cannot shrink beneath us; and
//! nothing waits for the peer without a deadline or the socket's end.

mod atomics;
mod control;
mod greeting;
mod memory;
#[cfg(test)]
mod model;
mod receiver;
mod sender;

pub(crate) use greeting::{abstract_name, greet, meet, ring_bytes};
pub(crate) use receiver::RingReceiver;
pub(crate) use sender::{RingCommit, RingSender};

use std::sync::Arc;

use crate::socket::Socket;
use control::Sleep;

/// Wakes a peer that went to sleep as `how`; nobody waits for it.
fn wake(how: Option<Sleep>, word: &std::sync::atomic::AtomicU32, socket: &Arc<Socket>) {
    match how {
        None => {}
        Some(Sleep::Futex) => {
            let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), 1);
        }
        // A full socket holds other wake-ups; a closed one is noticed by who receives.
        Some(Sleep::Socket) => {
            let _ = socket.try_write(&[1]);
        }
    }
}
