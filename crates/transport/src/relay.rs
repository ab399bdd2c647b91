//! A connection whose bytes somebody else carries, in a protocol that is not known here: two bounded queues in memory
//! between the thread that has the [`Connection`] and whoever has the [`Relay`], which may be an asynchronous task. It
//! knows neither frames nor an async runtime.
//!
//! ```text
//! Connection --try_write--> [pieces] --Outgoing::poll_next--> the carrier, and over it the peer
//!            <--try_read--- [pieces] <---Incoming::put------- the carrier, and over it the peer
//! ```

mod near;
mod shared;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use rustix::event::{EventfdFlags, eventfd};

use crate::connection::{Connection, Receiver, Sender};
use crate::error::Error;
use crate::options::Framing;
use crate::pipe::Pipe;
use crate::spin::Spin;
use crate::stream::{StreamReceiver, StreamSender};

pub(crate) use near::NearEnd;
use shared::Shared;

/// Longest piece that is handed to a carrier. A longer frame goes in several, and several frames may go in one.
pub const PIECE_BYTES_MAX: usize = 256 << 10;
/// Empty pieces that are kept to be filled again.
const SPARE_PIECES_MAX: usize = 4;

/// How a relayed connection is made.
#[derive(Clone, Copy, Debug)]
pub struct RelayOptions {
    /// How long frames are.
    pub framing: Framing,
    /// A carrier that takes nothing for so long is given up.
    pub write_timeout: Duration,
    /// How long waits stay awake at most, in microseconds.
    pub spin_us: u32,
    /// Bytes that may wait in each direction; from the carrier, one piece more.
    pub queue_bytes: usize,
}

/// The carrier's end of a connection. What it makes of the bytes is its own business, but for their order.
#[derive(Debug)]
pub struct Relay {
    /// What the connection sends.
    pub outgoing: Outgoing,
    /// What the connection is to receive.
    pub incoming: Incoming,
}

/// What the connection sends, in pieces. Dropping it tells the connection that nobody takes anything any more.
#[derive(Debug)]
pub struct Outgoing(Arc<Shared>);

/// What the connection is to receive. Dropping it without a word is a failure.
#[derive(Debug)]
pub struct Incoming(Arc<Shared>);

/// A connection and the end of its carrier.
///
/// # Errors
/// [`Error::Options`] and [`Error::Io`], when the system has no descriptors left.
pub fn relayed(peer: String, options: &RelayOptions) -> Result<(Connection, Relay), Error> {
    options.framing.check(&peer)?;
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| Error::io(&peer, "create an event", error))?;
    let shared = Arc::new(Shared::new(event, peer, options.queue_bytes));
    let pipe = Pipe::Relay(Arc::new(NearEnd::new(&shared)));
    let framing = options.framing;
    let connection = Connection {
        sender: Sender::stream(StreamSender::new(pipe.clone(), framing, options.write_timeout)?, framing),
        receiver: Receiver::stream(StreamReceiver::new(pipe, framing, Spin::new(options.spin_us))?),
    };
    let outgoing = Outgoing(Arc::clone(&shared));
    Ok((connection, Relay { outgoing, incoming: Incoming(shared) }))
}

/// A piece on its way; its memory is used again.
struct Lent {
    bytes: Vec<u8>,
    from: Arc<Shared>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut state = self.from.state();
        if state.spare.len() < SPARE_PIECES_MAX {
            self.bytes.clear();
            state.spare.push(std::mem::take(&mut self.bytes));
        }
    }
}

impl Outgoing {
    /// The next piece, of at most [`PIECE_BYTES_MAX`] bytes. `None`: the connection has sent its last one.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.0.state();
        if let Some(bytes) = state.outgoing.pieces.pop_front() {
            state.outgoing.bytes -= bytes.len();
            let was_blocked = state.blocked;
            if was_blocked {
                self.0.tell(state);
            } else {
                drop(state);
            }
            return Poll::Ready(Some(Bytes::from_owner(Lent { bytes, from: Arc::clone(&self.0) })));
        }
        if state.outgoing.closed {
            return Poll::Ready(None);
        }
        state.outgoing.task = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.outgoing.abandoned = true;
        (state.outgoing.pieces, state.outgoing.bytes) = (std::collections::VecDeque::new(), 0);
        self.0.tell(state);
    }
}

impl Incoming {
    /// Ready with `true` when a piece may be put, and with `false` when the connection is no more.
    pub fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut state = self.0.state();
        if state.incoming.abandoned {
            return Poll::Ready(false);
        }
        if state.incoming.bytes < self.0.queue_bytes {
            return Poll::Ready(true);
        }
        state.incoming.task = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ready when the connection is no more.
    pub fn poll_abandoned(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.state();
        if state.incoming.abandoned {
            return Poll::Ready(());
        }
        state.incoming.task = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Bytes for the connection. It takes them whether there is room or not: ask [`Incoming::poll_room`] first.
    pub fn put(&mut self, piece: Bytes) {
        let mut state = self.0.state();
        if piece.is_empty() || state.incoming.abandoned {
            return;
        }
        state.incoming.bytes += piece.len();
        state.incoming.pieces.push_back(piece);
        self.0.tell(state);
    }

    /// The peer has sent its last byte.
    pub fn end(self) {
        self.close(Ok(()));
    }

    /// Nothing more can come, for this reason.
    pub fn fail(self, reason: String) {
        self.close(Err(reason));
    }

    fn close(&self, end: Result<(), String>) {
        let mut state = self.0.state();
        state.end.get_or_insert(end);
        self.0.tell(state);
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.close(Err("what carried it has ended".to_owned()));
    }
}
