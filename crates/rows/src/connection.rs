//! One kept HTTP/1.1 connection to a server, with one request under way at most.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::ClientConnection;
use sanderling_transport::{TlsClient, tls_reason};

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
    /// Its encryption.
    tls: Option<Box<ClientConnection>>,
}

fn wrong(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl Connection {
    /// Connects to `host:port` before `deadline`, with TLS or without.
    pub(crate) fn open(address: &str, tls: Option<&TlsClient>, deadline: Instant) -> io::Result<Connection> {
        let mut failed = wrong("no such host");
        for resolved in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&resolved, left(deadline)?) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    let mut connection = Connection { stream, tls: None };
                    if let Some(tls) = tls {
                        connection.shake_hands(tls, address, deadline)?;
                    }
                    return Ok(connection);
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn shake_hands(&mut self, tls: &TlsClient, address: &str, deadline: Instant) -> io::Result<()> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let mut state = tls.state(host).map_err(io::Error::other)?;
        // A request is encrypted as a whole.
        state.set_buffer_limit(None);
        self.tls = Some(Box::new(state));
        while self.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
            self.flush(deadline)?;
            if self.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
                self.stream.set_read_timeout(Some(left(deadline)?))?;
                if !self.take_in()? {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
        self.flush(deadline)
    }

    /// Sends a request, head and body in one piece.
    pub(crate) fn send(&mut self, request: &[u8], deadline: Instant) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.writer().write_all(request)?;
            return self.flush(deadline);
        }
        self.stream.set_write_timeout(Some(left(deadline)?))?;
        self.stream.write_all(request)
    }

    /// Sends what is encrypted.
    fn flush(&mut self, deadline: Instant) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            self.stream.set_write_timeout(Some(left(deadline)?))?;
            tls.write_tls(&mut self.stream)?;
        }
        Ok(())
    }

    /// Reads encrypted bytes once; `false` at their end.
    fn take_in(&mut self) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else { return Ok(true) };
        match tls.read_tls(&mut self.stream) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
        match tls.process_new_packets() {
            Ok(_) => Ok(true),
            Err(error) => {
                // Tells the server the reason, if it still reads.
                let _ = tls.write_tls(&mut self.stream);
                let plain = matches!(error, rustls::Error::InvalidMessage(_));
                let text = tls_reason(&error.to_string());
                Err(wrong(if plain { "the server talks no TLS" } else { &text }))
            }
        }
    }

    /// Whether an answer, or the end, is there, now that the socket is readable. TLS has messages of its own.
    fn has_answer(&mut self) -> bool {
        if self.tls.is_none() {
            return true;
        }
        // The error is found again by the reader.
        let is_over = !self.take_in().unwrap_or(false);
        is_over || self.has_plaintext()
    }

    fn has_plaintext(&mut self) -> bool {
        let state = self.tls.as_mut().map(|tls| tls.process_new_packets());
        state.is_some_and(|state| {
            state.map_or(true, |state| state.plaintext_bytes_to_read() > 0 || state.peer_has_closed())
        })
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
        let before = to.len();
        to.resize(before + READ_BYTES, 0);
        let read = loop {
            self.stream.set_read_timeout(Some(left(deadline)?))?;
            let Some(tls) = &mut self.tls else { break self.stream.read(&mut to[before..]) };
            match tls.reader().read(&mut to[before..]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => break read,
            }
            match self.take_in() {
                // The reader tells whether the end came with a close notification.
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
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
pub(crate) fn first_readable(
    connections: &mut [&mut Connection],
    deadline: Instant,
) -> io::Result<Option<usize>> {
    if let Some(first) = connections.iter_mut().position(|connection| connection.has_plaintext()) {
        return Ok(Some(first));
    }
    loop {
        let mut sockets: Vec<PollFd<'_>> =
            connections.iter().map(|connection| PollFd::new(&connection.stream, PollFlags::IN)).collect();
        let wait = deadline.saturating_duration_since(Instant::now());
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        match poll(&mut sockets, Some(&wait)) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = sockets.iter().map(|socket| !socket.revents().is_empty()).collect();
        let mut ready = connections
            .iter_mut()
            .zip(ready)
            .map(|(connection, is_ready)| is_ready && connection.has_answer());
        if let Some(first) = ready.position(|is_ready| is_ready) {
            return Ok(Some(first));
        }
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}
