//! What one can choose when a channel is opened, and the bounds on it. It opens nothing.

use std::time::Duration;

use crate::error::Error;
use crate::spin::SPIN_US_DEFAULT;
use crate::tls::{TlsClient, TlsServer};

/// Longest header that a framing may have: a header is looked at in a copy of this size.
const HEADER_BYTES_MAX: usize = 256;
/// Longest frame that any transport carries.
const FRAME_BYTES_MAX: usize = 256 << 20;
/// A peer that takes nothing for so long is given up.
const WRITE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Time to reach a server.
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
/// Size of each ring of a shared-memory connection, unless the longest frame needs more.
const RING_BYTES_DEFAULT: usize = 4 << 20;
/// Send and receive buffers of a socket that hold this much keep a pipeline full; the system may grant less.
const SOCKET_BUFFER_BYTES_DEFAULT: usize = 1 << 20;

/// How long a frame is: told to the transport, since it knows no message.
///
/// A frame is a header of fixed length and a body whose length the header says.
#[derive(Clone, Copy, Debug)]
pub struct Framing {
    /// Length of the header, from 1 to 256.
    pub header_bytes: usize,
    /// Length of the body, from exactly `header_bytes` bytes; an error says why this is no header. Bodies that would
    /// make the frame longer than `frame_bytes_max` are refused by the transport.
    pub body_bytes: fn(&[u8]) -> Result<usize, String>,
    /// Longest frame, header and body, in either direction.
    pub frame_bytes_max: usize,
}

impl Framing {
    /// Are the numbers within the transport's own bounds?
    pub(crate) fn check(&self, address: &str) -> Result<(), Error> {
        let reason = if !(1..=HEADER_BYTES_MAX).contains(&self.header_bytes) {
            format!("a header of {} bytes; 1 to {HEADER_BYTES_MAX} are possible", self.header_bytes)
        } else if !(self.header_bytes..=FRAME_BYTES_MAX).contains(&self.frame_bytes_max) {
            format!(
                "frames of at most {} bytes; {} to {FRAME_BYTES_MAX} are possible",
                self.frame_bytes_max, self.header_bytes
            )
        } else {
            return Ok(());
        };
        Err(Error::Options { address: address.to_owned(), reason })
    }

    /// Length of the whole frame that starts with `start`; `None` while not even its header is there.
    pub(crate) fn frame_bytes(&self, start: &[u8], peer: &str) -> Result<Option<usize>, Error> {
        let Some(header) = start.get(..self.header_bytes) else { return Ok(None) };
        let body =
            (self.body_bytes)(header).map_err(|reason| Error::NotAFrame { peer: peer.to_owned(), reason })?;
        let bytes = body.saturating_add(self.header_bytes);
        self.check_length(bytes, peer)?;
        Ok(Some(bytes))
    }

    /// Is a frame of so many bytes allowed?
    pub(crate) fn check_length(&self, bytes: usize, peer: &str) -> Result<(), Error> {
        if bytes > self.frame_bytes_max {
            return Err(Error::FrameTooLong {
                peer: peer.to_owned(),
                bytes,
                bytes_max: self.frame_bytes_max,
            });
        }
        Ok(())
    }
}

/// How a server listens.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// How long frames are.
    pub framing: Framing,
    /// May a TCP address be one that other machines can reach?
    pub expose: bool,
    /// May it be so without TLS and token?
    pub insecure: bool,
    /// Will the layer above refuse peers without the token? Only says so here; the token is not the transport's.
    pub token: bool,
    /// Certificate and key, for TLS on TCP.
    pub tls: Option<TlsServer>,
    /// A peer that takes nothing for so long is given up.
    pub write_timeout: Duration,
    /// How long waits stay awake at most, in microseconds; 0 sleeps at once.
    pub spin_us: u32,
    /// Size of each of the two rings of a shared-memory connection. Raised to what the longest frame needs; memory is
    /// only used as far as frames in flight reach.
    pub ring_bytes: usize,
    /// Send and receive buffer of a socket in the kernel.
    pub socket_buffer_bytes: usize,
}

impl ListenOptions {
    /// The defaults: loopback only, no TLS.
    pub fn new(framing: Framing) -> ListenOptions {
        ListenOptions {
            framing,
            expose: false,
            insecure: false,
            token: false,
            tls: None,
            write_timeout: WRITE_TIMEOUT_DEFAULT,
            spin_us: SPIN_US_DEFAULT,
            ring_bytes: RING_BYTES_DEFAULT,
            socket_buffer_bytes: SOCKET_BUFFER_BYTES_DEFAULT,
        }
    }
}

/// How a client connects.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// How long frames are.
    pub framing: Framing,
    /// Time to reach the server, resolving its name and TLS included.
    pub timeout: Duration,
    /// Whom to trust, for TLS on TCP.
    pub tls: Option<TlsClient>,
    /// A peer that takes nothing for so long is given up.
    pub write_timeout: Duration,
    /// How long waits stay awake at most, in microseconds; 0 sleeps at once.
    pub spin_us: u32,
    /// Send and receive buffer of a socket in the kernel.
    pub socket_buffer_bytes: usize,
}

impl ConnectOptions {
    /// The defaults: five seconds to connect, no TLS.
    pub fn new(framing: Framing) -> ConnectOptions {
        ConnectOptions {
            framing,
            timeout: CONNECT_TIMEOUT_DEFAULT,
            tls: None,
            write_timeout: WRITE_TIMEOUT_DEFAULT,
            spin_us: SPIN_US_DEFAULT,
            socket_buffer_bytes: SOCKET_BUFFER_BYTES_DEFAULT,
        }
    }
}
