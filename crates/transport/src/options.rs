//! The options of listeners and connections, and their bounds. It opens nothing.

use std::time::Duration;

use crate::error::Error;
use crate::spin::SPIN_US_DEFAULT;
use crate::tls::{TlsClient, TlsServer};

/// Maximum header length of a framing. A header is parsed from a copy of this size.
const HEADER_BYTES_MAX: usize = 256;
/// Maximum frame length of any transport.
const FRAME_BYTES_MAX: usize = 256 << 20;
/// Default time to give up a peer that reads nothing.
const WRITE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Default time to connect to a server.
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
/// Default size of each ring of a shared-memory connection. The longest frame may need more.
const RING_BYTES_DEFAULT: usize = 4 << 20;
/// Default kernel buffers of a socket, large enough to keep a pipeline full. The system may grant less.
const SOCKET_BUFFER_BYTES_DEFAULT: usize = 1 << 20;

/// The length of a frame, as a function of its header.
///
/// A frame is a header of fixed length and a body whose length the header tells.
#[derive(Clone, Copy, Debug)]
pub struct Framing {
    /// Length of the header, from 1 to 256.
    pub header_bytes: usize,
    /// Computes the body length from exactly `header_bytes` bytes. An error says why the header is invalid.
    pub body_bytes: fn(&[u8]) -> Result<usize, String>,
    /// Maximum length of a frame (header and body) in either direction.
    pub frame_bytes_max: usize,
}

impl Framing {
    /// Checks the values against the transport's bounds.
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

    /// Length of the frame that starts with `start`. `None`: the header is incomplete.
    pub(crate) fn frame_bytes(&self, start: &[u8], peer: &str) -> Result<Option<usize>, Error> {
        let Some(header) = start.get(..self.header_bytes) else { return Ok(None) };
        let body =
            (self.body_bytes)(header).map_err(|reason| Error::NotAFrame { peer: peer.to_owned(), reason })?;
        let bytes = body.saturating_add(self.header_bytes);
        self.check_length(bytes, peer)?;
        Ok(Some(bytes))
    }

    /// Refuses frames beyond the limit.
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

/// The options of a listener.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// The framing of the protocol.
    pub framing: Framing,
    /// Whether other machines may reach a TCP address.
    pub expose: bool,
    /// Whether they may reach it without TLS and token.
    pub insecure: bool,
    /// Whether the layer above requires a token. The transport itself knows no token.
    pub token: bool,
    /// Certificate and key, for TLS on TCP.
    pub tls: Option<TlsServer>,
    /// Time to give up a peer that reads nothing.
    pub write_timeout: Duration,
    /// Busy-poll time before a wait blocks, in microseconds. 0: blocks at once.
    pub spin_us: u32,
    /// Size of each of the two rings of a shared-memory connection. The longest frame may raise it. Only memory that
    /// frames have reached is used.
    pub ring_bytes: usize,
    /// Kernel send and receive buffer of a socket, in bytes.
    pub socket_buffer_bytes: usize,
    /// Cards that gather frames of connections by RDMA, whose connections share a protection domain per card.
    #[cfg(feature = "rdma")]
    pub gather: Option<crate::rdma::GatherDomain>,
}

impl ListenOptions {
    /// The defaults for a port of another protocol, whose bytes the caller reads by [`Listener::port`].
    ///
    /// [`Listener::port`]: crate::Listener::port
    pub fn for_http() -> ListenOptions {
        ListenOptions::new(Framing {
            header_bytes: 1,
            body_bytes: |_| Err("the port is for HTTP".to_owned()),
            frame_bytes_max: 1,
        })
    }

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
            #[cfg(feature = "rdma")]
            gather: None,
        }
    }
}

/// The options of a client's connection.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The framing of the protocol.
    pub framing: Framing,
    /// Time to connect, including name resolution and TLS.
    pub timeout: Duration,
    /// Trusted certificates, for TLS over TCP.
    pub tls: Option<TlsClient>,
    /// Time to give up a peer that reads nothing.
    pub write_timeout: Duration,
    /// Busy-poll time before a wait blocks, in microseconds. 0: blocks at once.
    pub spin_us: u32,
    /// Kernel send and receive buffer of a socket, in bytes.
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
