//! Errors of a connection. Each names the address or the peer, and the action to take.

use std::io;
use std::time::Duration;

use rustix::io::Errno;

use crate::address::AddressError;

/// Why a connection cannot be opened or no longer carries frames.
///
/// After an error other than [`Error::Deadline`] drop the connection. That frees its memory and descriptors, whatever
/// the peer does.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not an address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// `embedded:` has no server.
    #[error("address {address:?}: there is no server to reach; open the store in this process instead")]
    NoServer {
        /// The address.
        address: String,
    },
    /// The address lists several servers where one is needed.
    #[error("{address}: lists several servers; connect to, or listen on, each of them (Address::each)")]
    SeveralServers {
        /// The address.
        address: String,
    },
    /// The address is in use.
    #[error("{address}: already in use; stop who listens there or choose another address")]
    InUse {
        /// The address.
        address: String,
    },
    /// The system refuses permission.
    #[error(
        "{address}: permission denied; check the owner and mode of the path, or take a port from 1024 on"
    )]
    Permission {
        /// The address.
        address: String,
    },
    /// No server listens at the address.
    #[error("{address}: connection refused; is the server running?")]
    Refused {
        /// The address.
        address: String,
    },
    /// The connection was not established in time.
    #[error("{address}: not connected within {timeout:?}")]
    ConnectTimeout {
        /// The address.
        address: String,
        /// The timeout.
        timeout: Duration,
    },
    /// The host name has no address.
    #[error("{address}: cannot resolve the host: {source}")]
    Resolve {
        /// The address.
        address: String,
        /// The error of the resolver.
        source: io::Error,
    },
    /// The name servers did not answer in time.
    #[error(
        "{address}: the name servers did not say in time what the address of {host:?} is; check them, or give \
         the address as a number"
    )]
    ResolveTimeout {
        /// The address.
        address: String,
        /// The host name.
        host: String,
    },
    /// The listener would be reachable from other machines, and `expose` is not set.
    #[error("{address}: not a loopback address; set `expose` to let other machines connect")]
    NotLoopback {
        /// The address.
        address: String,
    },
    /// The listener would be reachable from other machines without TLS and token.
    #[error(
        "{address}: exposed without TLS and a token; configure both, or set `insecure` if the network is trusted"
    )]
    Insecure {
        /// The address.
        address: String,
    },
    /// Options contradict each other or a limit.
    #[error("{address}: {reason}")]
    Options {
        /// The address.
        address: String,
        /// Which option, and possible values.
        reason: String,
    },
    /// There is no RDMA on this machine or in this program, or one side cannot make its queue pair.
    #[error("{address}: {reason}")]
    NoRdma {
        /// The address.
        address: String,
        /// Name of the library, folder or driver that was looked for, or the failed step.
        reason: String,
    },
    /// The queue pair of a connection has failed, or the peer breaks the rules.
    #[error("{peer}: RDMA: {reason}")]
    Rdma {
        /// The peer.
        peer: String,
        /// The problem.
        reason: String,
    },
    /// The process at the other end of the shared memory belongs to another user.
    #[error("{peer}: belongs to user {uid}; shared memory is only for processes of the same user")]
    OtherUser {
        /// The peer.
        peer: String,
        /// Its user id.
        uid: u32,
    },
    /// A system call failed.
    #[error("{peer}: cannot {action}: {source}")]
    Io {
        /// The peer or the address.
        peer: String,
        /// The attempted action.
        action: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// Certificates, keys or the peer's TLS are invalid.
    #[error("{peer}: TLS: {reason}")]
    Tls {
        /// The peer, the address or the file.
        peer: String,
        /// The problem.
        reason: String,
    },
    /// The peer answered with TLS, and this connection does not use it.
    #[error("{peer}: it talks TLS, and this connection does not: name a certificate authority")]
    TalksTls {
        /// The peer.
        peer: String,
    },
    /// The peer answered without TLS, and this connection uses it.
    #[error(
        "{peer}: it does not talk TLS, and this connection does: name no certificate authority, or let the peer talk TLS"
    )]
    TalksNoTls {
        /// The peer.
        peer: String,
    },
    /// The connection ended in the middle of a frame.
    #[error("{peer}: the connection was cut after {bytes} bytes of a frame")]
    Cut {
        /// The peer.
        peer: String,
        /// Bytes of the frame that arrived.
        bytes: usize,
    },
    /// The peer is gone, so sent frames are lost.
    #[error("{peer}: the peer closed the connection")]
    Closed {
        /// The peer.
        peer: String,
    },
    /// A frame exceeds the limit of either side.
    #[error("{peer}: a frame of {bytes} bytes is longer than the limit of {bytes_max}")]
    FrameTooLong {
        /// The peer.
        peer: String,
        /// Its length.
        bytes: usize,
        /// The limit, `Framing::frame_bytes_max`.
        bytes_max: usize,
    },
    /// The header is invalid.
    #[error("{peer}: not a frame: {reason}")]
    NotAFrame {
        /// The peer.
        peer: String,
        /// The message of `Framing::body_bytes`.
        reason: String,
    },
    /// The shared memory has values that no correct peer writes.
    #[error("{peer}: the shared memory is corrupt: {reason}")]
    Corrupt {
        /// The peer.
        peer: String,
        /// The invalid value.
        reason: String,
    },
    /// This process has no memory left for the connection.
    #[error(
        "{peer}: no memory for a buffer of {bytes} bytes; give the process more, or tables smaller budgets"
    )]
    NoMemory {
        /// The peer.
        peer: String,
        /// Number of bytes needed.
        bytes: usize,
    },
    /// The receive buffers of all connections have reached their common limit.
    #[error(
        "{peer}: no room for a frame of {bytes} bytes: long frames fill the {bytes_max} bytes for them; send shorter ones"
    )]
    BuffersFull {
        /// The peer.
        peer: String,
        /// Length of the frame.
        bytes: usize,
        /// Bytes for the long frames of all connections.
        bytes_max: usize,
    },
    /// No frame arrived before the deadline. The connection remains usable.
    #[error("{peer}: no frame before the deadline")]
    Deadline {
        /// The peer.
        peer: String,
    },
    /// The peer read nothing for the write timeout.
    #[error("{peer}: took nothing for {timeout:?}; it is dead or far too slow")]
    SendTimeout {
        /// The peer.
        peer: String,
        /// The write timeout.
        timeout: Duration,
    },
    /// The kernel gave the peer up: it reads nothing, or answers no keepalive probe.
    #[error("{peer}: takes nothing, or answers no sign of life; the system gave it up")]
    GivenUp {
        /// The peer.
        peer: String,
    },
}

impl Error {
    /// Of a listener: whether the options are wrong, whatever the state of the system.
    #[must_use]
    pub fn is_of_options(&self) -> bool {
        matches!(
            self,
            Error::Address(_)
                | Error::NoServer { .. }
                | Error::SeveralServers { .. }
                | Error::NotLoopback { .. }
                | Error::Insecure { .. }
                | Error::Options { .. }
                // No peer is connected yet, so it concerns the files.
                | Error::Tls { .. }
        )
    }

    /// Whether the system lacks descriptors or memory, so that a retry needs a pause.
    pub(crate) fn is_shortage(&self) -> bool {
        if matches!(self, Error::NoMemory { .. }) {
            return true;
        }
        let Error::Io { source, .. } = self else { return false };
        let code = Errno::from_io_error(source);
        matches!(code, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
    }

    /// Maps a failed system call on the way to `address` to the most helpful variant.
    pub(crate) fn opening(address: &str, action: &'static str, source: io::Error) -> Error {
        let address = address.to_owned();
        match source.kind() {
            io::ErrorKind::AddrInUse => Error::InUse { address },
            io::ErrorKind::PermissionDenied => Error::Permission { address },
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Error::Refused { address },
            _ => Error::Io { peer: address, action, source },
        }
    }

    /// Maps a failed system call on an open connection to a variant.
    pub(crate) fn io(peer: &str, action: &'static str, source: impl Into<io::Error>) -> Error {
        let source = source.into();
        match source.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => {
                Error::Closed { peer: peer.to_owned() }
            }
            io::ErrorKind::TimedOut => Error::GivenUp { peer: peer.to_owned() },
            _ => Error::Io { peer: peer.to_owned(), action, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_system_is_short_of_something() {
        let io = |code: Errno| Error::io("peer", "accept", code);
        for (error, expected) in [
            (io(Errno::MFILE), true),
            (io(Errno::NFILE), true),
            (io(Errno::NOBUFS), true),
            (io(Errno::NOMEM), true),
            (io(Errno::PIPE), false),
            (io(Errno::PERM), false),
            (Error::NoMemory { peer: "peer".to_owned(), bytes: 1 }, true),
            (Error::OtherUser { peer: "peer".to_owned(), uid: 1 }, false),
        ] {
            assert_eq!(error.is_shortage(), expected, "{error}");
        }
    }
}
