//! A TCP or unix connection with a read buffer, for protocols of lines.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::{Target, unexpected};
use crate::result::BenchError;

/// An answer that has not come by then never will.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Bytes per read.
const READ_BYTES: usize = 128 << 10;

trait Bidirectional: Read + Write + Send {}

impl<T: Read + Write + Send> Bidirectional for T {}

/// A connection.
pub(super) struct Stream {
    target: Target,
    stream: Box<dyn Bidirectional>,
    buffer: Vec<u8>,
    /// The part of the buffer that was read and not taken.
    from: usize,
    to: usize,
}

impl Stream {
    /// Connects to host:port, or to the path of a unix socket.
    pub(super) fn connect(target: &Target) -> Result<Stream, BenchError> {
        let failed = |error: std::io::Error| BenchError::Server(format!("{target}: {error}"));
        let stream: Box<dyn Bidirectional> = if target.address.contains('/') {
            let stream = UnixStream::connect(&target.address).map_err(failed)?;
            stream.set_read_timeout(Some(ANSWER_WITHIN)).map_err(failed)?;
            Box::new(stream)
        } else {
            let stream = TcpStream::connect(&target.address).map_err(failed)?;
            stream.set_nodelay(true).and(stream.set_read_timeout(Some(ANSWER_WITHIN))).map_err(failed)?;
            Box::new(stream)
        };
        Ok(Stream { target: target.clone(), stream, buffer: vec![0; READ_BYTES], from: 0, to: 0 })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), BenchError> {
        self.stream.write_all(bytes).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &std::io::Error) -> BenchError {
        BenchError::Server(format!("{}: {error}", self.target))
    }

    pub(super) fn unexpected(&self, found: &[u8]) -> BenchError {
        unexpected(&self.target, found)
    }

    /// The bytes up to a line feed, which is taken and left out, as is a carriage return before it.
    pub(super) fn line(&mut self) -> Result<&[u8], BenchError> {
        let mut seen = 0;
        loop {
            let have = &self.buffer[self.from..self.to];
            if let Some(at) = have[seen..].iter().position(|byte| *byte == b'\n') {
                let (start, end) = (self.from, self.from + seen + at);
                self.from = end + 1;
                let line = &self.buffer[start..end];
                return Ok(line.strip_suffix(b"\r").unwrap_or(line));
            }
            seen = have.len();
            self.more()?;
        }
    }

    /// Takes so many bytes, and the line end behind them.
    pub(super) fn skip(&mut self, bytes: usize) -> Result<(), BenchError> {
        let mut rest = bytes + 2;
        loop {
            let have = self.to - self.from;
            if have >= rest {
                self.from += rest;
                return Ok(());
            }
            rest -= have;
            self.from = self.to;
            self.more()?;
        }
    }

    /// Reads more, behind what was read and not taken.
    fn more(&mut self) -> Result<(), BenchError> {
        self.buffer.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        if self.to == self.buffer.len() {
            return Err(self.unexpected(&self.buffer[..self.to]));
        }
        match self.stream.read(&mut self.buffer[self.to..]) {
            Ok(0) => Err(BenchError::Server(format!("{}: the connection was closed", self.target))),
            Ok(read) => {
                self.to += read;
                Ok(())
            }
            Err(error) => Err(self.failed(&error)),
        }
    }
}
