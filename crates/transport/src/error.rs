//! What can go wrong on a channel, each naming the address or the peer and what to do. It knows no message.

use std::io;
use std::time::Duration;

use rustix::io::Errno;

use crate::address::AddressError;

/// Why a channel could not be opened or no longer carries frames.
///
/// After an error of a `Sender` or `Receiver` other than [`Error::Deadline`] the connection is of no further use: drop
/// it. Memory and descriptors are given back then, whatever the peer does.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is no address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// `embedded:` has no server.
    #[error("address {address:?}: there is no server to reach; open the store in this process instead")]
    NoServer {
        /// The address.
        address: String,
    },
    /// An address of several servers where one is needed.
    #[error("{address}: lists several servers; connect to, or listen on, each of them (Address::each)")]
    SeveralServers {
        /// The address.
        address: String,
    },
    /// Somebody else listens there.
    #[error("{address}: already in use; stop who listens there or choose another address")]
    InUse {
        /// The address.
        address: String,
    },
    /// The system does not allow it.
    #[error(
        "{address}: permission denied; check the owner and mode of the path, or take a port from 1024 on"
    )]
    Permission {
        /// The address.
        address: String,
    },
    /// Nobody listens there.
    #[error("{address}: nobody listens there; is the server running?")]
    Refused {
        /// The address.
        address: String,
    },
    /// The connection was not ready in time.
    #[error("{address}: not connected within {timeout:?}")]
    ConnectTimeout {
        /// The address.
        address: String,
        /// The time that was given.
        timeout: Duration,
    },
    /// The host name has no address.
    #[error("{address}: cannot resolve the host: {source}")]
    Resolve {
        /// The address.
        address: String,
        /// What the resolver said.
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
    /// Binding off the loopback was not asked for.
    #[error("{address}: not a loopback address; set `expose` to let other machines connect")]
    NotLoopback {
        /// The address.
        address: String,
    },
    /// Binding off the loopback without protection.
    #[error(
        "{address}: exposed without TLS and a token; configure both, or set `insecure` if the network is trusted"
    )]
    Insecure {
        /// The address.
        address: String,
    },
    /// Options that contradict each other or a limit.
    #[error("{address}: {reason}")]
    Options {
        /// The address.
        address: String,
        /// Which, and what would do.
        reason: String,
    },
    /// Another user's process at the other end of shared memory.
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
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Certificates, keys or the peer's TLS are wrong.
    #[error("{peer}: TLS: {reason}")]
    Tls {
        /// The peer, the address or the file.
        peer: String,
        /// What is wrong.
        reason: String,
    },
    /// The peer answered as TLS does, and this connection is none.
    #[error("{peer}: it talks TLS, and this connection does not: name a certificate authority")]
    TalksTls {
        /// The peer.
        peer: String,
    },
    /// The peer answered as TLS does not, and this connection is one.
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
        /// How much of the frame had come.
        bytes: usize,
    },
    /// The peer is gone, and what is sent reaches nobody.
    #[error("{peer}: the peer closed the connection")]
    Closed {
        /// The peer.
        peer: String,
    },
    /// A frame longer than the limit, ours or the peer's.
    #[error("{peer}: a frame of {bytes} bytes is longer than the limit of {bytes_max}")]
    FrameTooLong {
        /// The peer.
        peer: String,
        /// Its length.
        bytes: usize,
        /// The limit, `Framing::frame_bytes_max`.
        bytes_max: usize,
    },
    /// A header that is none.
    #[error("{peer}: not a frame: {reason}")]
    NotAFrame {
        /// The peer.
        peer: String,
        /// What `Framing::body_bytes` said.
        reason: String,
    },
    /// Shared memory that no correct peer would leave so.
    #[error("{peer}: the shared memory is corrupt: {reason}")]
    Corrupt {
        /// The peer.
        peer: String,
        /// What was found.
        reason: String,
    },
    /// This process has no memory left for the connection.
    #[error(
        "{peer}: no memory for a buffer of {bytes} bytes; give the process more, or tables smaller budgets"
    )]
    NoMemory {
        /// The peer.
        peer: String,
        /// How many were needed.
        bytes: usize,
    },
    /// The receive buffers of all connections hold as much as they may.
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
    /// No frame came before the deadline. The connection is good and may be asked again.
    #[error("{peer}: no frame before the deadline")]
    Deadline {
        /// The peer.
        peer: String,
    },
    /// The peer takes nothing.
    #[error("{peer}: took nothing for {timeout:?}; it is dead or far too slow")]
    SendTimeout {
        /// The peer.
        peer: String,
        /// The write timeout.
        timeout: Duration,
    },
    /// The system noticed before we did that the peer takes nothing, or that it answers no probe.
    #[error("{peer}: takes nothing, or answers no sign of life; the system gave it up")]
    GivenUp {
        /// The peer.
        peer: String,
    },
}

impl Error {
    /// Of a listener: does it ask for what cannot be, whatever else the system is doing?
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
                // Nobody is connected yet: it is about the files.
                | Error::Tls { .. }
        )
    }

    /// Does the system lack descriptors or memory? Another attempt is worth while only after a pause.
    pub(crate) fn is_shortage(&self) -> bool {
        if matches!(self, Error::NoMemory { .. }) {
            return true;
        }
        let Error::Io { source, .. } = self else { return false };
        let code = Errno::from_io_error(source);
        matches!(code, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
    }

    /// A failed system call on the way to `address`, as the case that a person can act on where there is one.
    pub(crate) fn opening(address: &str, action: &'static str, source: io::Error) -> Error {
        let address = address.to_owned();
        match source.kind() {
            io::ErrorKind::AddrInUse => Error::InUse { address },
            io::ErrorKind::PermissionDenied => Error::Permission { address },
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Error::Refused { address },
            _ => Error::Io { peer: address, action, source },
        }
    }

    /// A failed system call on an open connection.
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
