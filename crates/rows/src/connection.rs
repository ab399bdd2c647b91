//! One kept HTTP/1.1 connection to a server, with one request under way at most.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longest answer. A longer one is an error.
const ANSWER_BYTES_MAX: usize = 1 << 30;
/// Longest head of an answer.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Room for one read.
const READ_BYTES: usize = 64 << 10;

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
}

fn wrong(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl Connection {
    /// Connects to `host:port` before `deadline`.
    pub(crate) fn open(address: &str, deadline: Instant) -> io::Result<Connection> {
        let mut failed = wrong("no such host");
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, left(deadline)?) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Connection { stream });
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Sends a request, head and body in one piece.
    pub(crate) fn send(&mut self, request: &[u8], deadline: Instant) -> io::Result<()> {
        self.stream.set_write_timeout(Some(left(deadline)?))?;
        self.stream.write_all(request)
    }

    /// Reads the answer to the request under way. After an error the connection is of no use.
    pub(crate) fn receive(&mut self, deadline: Instant) -> io::Result<Reply> {
        let mut bytes = Vec::new();
        let head_bytes = loop {
            let at = bytes.windows(4).position(|end| end == b"\r\n\r\n");
            if let Some(at) = at {
                break at + 4;
            }
            if bytes.len() > HEAD_BYTES_MAX {
                return Err(wrong("the head of the answer is too long"));
            }
            self.read(&mut bytes, deadline)?;
        };
        let head = std::str::from_utf8(&bytes[..head_bytes]).map_err(|_| wrong("the answer is no HTTP"))?;
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        });
        let (Some(status), Some(length)) = (status, length) else {
            return Err(wrong("the answer is no HTTP with a length"));
        };
        if length > ANSWER_BYTES_MAX {
            return Err(wrong("the answer is too long"));
        }
        let mut body = bytes.split_off(head_bytes);
        while body.len() < length {
            self.read(&mut body, deadline)?;
        }
        match body.len() == length {
            true => Ok(Reply { status, body }),
            false => Err(wrong("more bytes than the answer has")),
        }
    }

    fn read(&mut self, to: &mut Vec<u8>, deadline: Instant) -> io::Result<()> {
        self.stream.set_read_timeout(Some(left(deadline)?))?;
        let before = to.len();
        to.resize(before + READ_BYTES, 0);
        let read = self.stream.read(&mut to[before..]);
        to.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::ErrorKind::TimedOut.into()),
            Err(error) => Err(error),
        }
    }
}

/// The first of the connections that has an answer, or an end, before `deadline`.
pub(crate) fn first_readable(connections: &[&Connection], deadline: Instant) -> io::Result<Option<usize>> {
    loop {
        let mut sockets: Vec<PollFd<'_>> =
            connections.iter().map(|connection| PollFd::new(&connection.stream, PollFlags::IN)).collect();
        let wait = deadline.saturating_duration_since(Instant::now());
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        match poll(&mut sockets, Some(&wait)) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(sockets.iter().position(|socket| !socket.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}
