//! A connected, nonblocking stream socket that two halves share: one system call per attempt, and waits in between.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, sockopt};

use crate::error::Error;

/// TCP keepalive: idle time, interval and number of probes before the kernel gives a silent peer up.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES_MAX: u32 = 3;
/// Maximum of the kernel's user timeout. A larger one would override the keepalive probes, and the kernel itself gives
/// up unacknowledged data after about this time (`tcp_retries2`).
const USER_TIMEOUT_MAX: Duration = Duration::from_secs(15 * 60);
/// Maximum number of pieces per system call (`UIO_MAXIOV`).
pub(crate) const IOV_MAX: usize = 1024;

/// A connected socket and the name of its peer.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) fd: OwnedFd,
    pub(crate) peer: String,
}

/// The result of an attempt to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// Number of bytes read, at least one.
    Bytes(usize),
    /// Nothing is available now.
    Nothing,
    /// The peer has sent its last byte.
    End,
}

impl Socket {
    /// Wraps a connected, nonblocking socket.
    pub(crate) fn new(fd: OwnedFd, peer: String) -> Result<Socket, Error> {
        rustix::io::ioctl_fionbio(&fd, true)
            .map_err(|error| Error::io(&peer, "make the socket non-blocking", error))?;
        Ok(Socket { fd, peer })
    }

    /// Sets the kernel buffers. The system may grant less, which costs speed only.
    pub(crate) fn set_buffers(&self, bytes: usize) {
        let _ = sockopt::set_socket_send_buffer_size(&self.fd, bytes);
        let _ = sockopt::set_socket_recv_buffer_size(&self.fd, bytes);
    }

    /// Disables Nagle's algorithm and lets the kernel notice a vanished peer.
    pub(crate) fn tune_tcp(&self, write_timeout: Duration) -> Result<(), Error> {
        let tune = || {
            sockopt::set_tcp_nodelay(&self.fd, true)?;
            sockopt::set_socket_keepalive(&self.fd, true)?;
            sockopt::set_tcp_keepidle(&self.fd, KEEPALIVE_IDLE)?;
            sockopt::set_tcp_keepintvl(&self.fd, KEEPALIVE_INTERVAL)?;
            sockopt::set_tcp_keepcnt(&self.fd, KEEPALIVE_PROBES_MAX)?;
            if write_timeout > USER_TIMEOUT_MAX {
                return Ok(());
            }
            sockopt::set_tcp_user_timeout(&self.fd, write_timeout.as_millis() as u32)
        };
        tune().map_err(|error: Errno| Error::io(&self.peer, "set the options of the TCP socket", error))
    }

    /// Tries to read into `buffer`, which must not be empty.
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> Result<Read, Error> {
        debug_assert!(!buffer.is_empty());
        loop {
            return match rustix::net::recv(&self.fd, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => Ok(Read::End),
                Ok((_, bytes)) => Ok(Read::Bytes(bytes)),
                Err(Errno::AGAIN) => Ok(Read::Nothing),
                Err(Errno::INTR) => continue,
                // A reset is an end, too. The framing tells whether it cut a frame.
                Err(Errno::CONNRESET) => Ok(Read::End),
                Err(error) => Err(Error::io(&self.peer, "receive", error)),
            };
        }
    }

    /// Tries to write. `None`: there is no room now.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> Result<Option<usize>, Error> {
        self.written(|| rustix::net::send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))
    }

    /// Tries to write several pieces, at most 1,024.
    pub(crate) fn try_write_vectored(&self, pieces: &[IoSlice<'_>]) -> Result<Option<usize>, Error> {
        self.written(|| {
            let mut control = rustix::net::SendAncillaryBuffer::default();
            rustix::net::sendmsg(&self.fd, pieces, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
        })
    }

    fn written(&self, attempt: impl Fn() -> Result<usize, Errno>) -> Result<Option<usize>, Error> {
        loop {
            return match attempt() {
                Ok(bytes) => Ok(Some(bytes)),
                Err(Errno::AGAIN) => Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => Err(Error::io(&self.peer, "send", error)),
            };
        }
    }

    /// Waits until the socket is readable. `false`: the deadline passed.
    pub(crate) fn wait_readable(&self, deadline: Option<Instant>) -> Result<bool, Error> {
        self.wait(PollFlags::IN, deadline)
    }

    /// Waits until the socket is writable. `false`: the deadline passed.
    pub(crate) fn wait_writable(&self, deadline: Option<Instant>) -> Result<bool, Error> {
        self.wait(PollFlags::OUT, deadline)
    }

    fn wait(&self, events: PollFlags, deadline: Option<Instant>) -> Result<bool, Error> {
        wait(&mut [PollFd::new(&self.fd, events)], deadline)
            .map_err(|error| Error::io(&self.peer, "wait", error))
    }

    /// Ends this direction of the connection.
    pub(crate) fn shut_write(&self) {
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Waits until one of `fds` has its event or an error. `false`: the deadline passed.
pub(crate) fn wait(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> Result<bool, Errno> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match poll(fds, left.map(timespec).as_ref()) {
            Ok(0) if left.is_some_and(|left| !left.is_zero()) => {}
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Converts a duration for the kernel. Durations out of range become the longest possible one.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// TLS reads and writes through these, one attempt at a time.
impl std::io::Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        Ok(rustix::net::recv(&self.fd, buffer, RecvFlags::DONTWAIT)?.1)
    }
}

impl std::io::Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(rustix::net::send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> std::io::Result<usize> {
        let mut control = rustix::net::SendAncillaryBuffer::default();
        let pieces = &pieces[..pieces.len().min(IOV_MAX)];
        Ok(rustix::net::sendmsg(&self.fd, pieces, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_gives_silent_peers_up_however_long_a_busy_one_may_take() {
        let door = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for (write_timeout, kernel_ms) in [
            (Duration::from_secs(10), 10_000),
            (USER_TIMEOUT_MAX, 900_000),
            (Duration::from_secs(24 * 3600), 0),
        ] {
            let stream = std::net::TcpStream::connect(door.local_addr().unwrap()).unwrap();
            let socket = Socket::new(stream.into(), "a peer".to_owned()).unwrap();
            socket.tune_tcp(write_timeout).unwrap();
            assert_eq!(sockopt::tcp_user_timeout(&socket.fd).unwrap(), kernel_ms, "{write_timeout:?}");
            assert!(sockopt::socket_keepalive(&socket.fd).unwrap());
        }
    }
}
