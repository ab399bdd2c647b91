//! The byte stream below a connection, in one type: a socket, or TLS over one. It knows no frame.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use crate::error::Error;
use crate::socket::{Read, Socket};
use crate::tls::TlsChannel;

/// The bytes' way, shared by the two halves of a connection.
#[derive(Clone, Debug)]
pub(crate) enum Pipe {
    Plain(Arc<Socket>),
    Tls(Arc<TlsChannel>),
}

impl Pipe {
    pub(crate) fn peer(&self) -> &str {
        match self {
            Pipe::Plain(socket) => &socket.peer,
            Pipe::Tls(channel) => &channel.socket.peer,
        }
    }

    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> Result<Read, Error> {
        match self {
            Pipe::Plain(socket) => socket.try_read(buffer),
            Pipe::Tls(channel) => channel.try_read(buffer),
        }
    }

    pub(crate) fn try_write(&self, pieces: &[IoSlice<'_>]) -> Result<Option<usize>, Error> {
        match (self, pieces) {
            (Pipe::Plain(socket), [piece]) => socket.try_write(piece),
            (Pipe::Plain(socket), _) => socket.try_write_vectored(pieces),
            (Pipe::Tls(channel), _) => channel.try_write(pieces),
        }
    }

    /// Sleeps until an attempt to read is worth while, or the deadline.
    pub(crate) fn wait_readable(&self, deadline: Option<Instant>) -> Result<bool, Error> {
        match self {
            Pipe::Plain(socket) => socket.wait_readable(deadline),
            Pipe::Tls(channel) => channel.socket.wait_readable(deadline),
        }
    }

    /// Sleeps until an attempt to write is worth while, or the deadline.
    pub(crate) fn wait_writable(&self, deadline: Option<Instant>) -> Result<bool, Error> {
        match self {
            Pipe::Plain(socket) => socket.wait_writable(deadline),
            Pipe::Tls(channel) => channel.wait_writable(deadline),
        }
    }

    /// Is it the kernel's readiness for writing that says when an attempt is worth while?
    pub(crate) fn sends_by_writing(&self) -> bool {
        match self {
            Pipe::Plain(_) => true,
            Pipe::Tls(channel) => !channel.sends_after_reading(),
        }
    }

    pub(crate) fn try_flush(&self) -> Result<bool, Error> {
        match self {
            Pipe::Tls(channel) => channel.try_flush(),
            Pipe::Plain(_) => Ok(true),
        }
    }

    /// A number that grows when the peer takes of what was written before, without an attempt to write being told.
    pub(crate) fn taken(&self) -> u64 {
        match self {
            Pipe::Tls(channel) => channel.taken(),
            Pipe::Plain(_) => 0,
        }
    }

    pub(crate) fn shut_write(&self) {
        match self {
            Pipe::Plain(socket) => socket.shut_write(),
            Pipe::Tls(channel) => channel.shut_write(),
        }
    }
}

impl AsFd for Pipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Pipe::Plain(socket) => socket.as_fd(),
            Pipe::Tls(channel) => channel.socket.as_fd(),
        }
    }
}
