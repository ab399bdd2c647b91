//! `get` of many keys and `set` of memcached.

use std::io::Write;

use super::stream::Stream;
use super::{Connection, LookupOptions, row_bytes};
use crate::result::BenchError;

pub(super) struct Client {
    stream: Stream,
    table: String,
    dim: usize,
    request: Vec<u8>,
}

impl Client {
    pub(super) fn connect(options: &LookupOptions) -> Result<Client, BenchError> {
        let stream = Stream::connect(&options.target)?;
        Ok(Client { stream, table: options.table.clone(), dim: options.dim, request: Vec::new() })
    }
}

impl Connection for Client {
    fn read(&mut self, numbers: &[u32]) -> Result<usize, BenchError> {
        let Client { stream, table, dim, request } = self;
        request.clear();
        request.extend_from_slice(b"get");
        for number in numbers {
            // A vector takes everything.
            let _ = write!(request, " {table}:{number}");
        }
        request.extend_from_slice(b"\r\n");
        stream.write(request)?;
        let mut found = 0;
        loop {
            let line = stream.line()?;
            if line == b"END" {
                return Ok(numbers.len() - found);
            }
            if !line.starts_with(b"VALUE ") {
                let line = line.to_vec();
                return Err(stream.unexpected(&line));
            }
            stream.skip(*dim * 4)?;
            found += 1;
        }
    }

    fn store(&mut self, first: u32, count: u32) -> Result<(), BenchError> {
        let Client { stream, table, dim, request } = self;
        request.clear();
        for number in first..first + count {
            let row = row_bytes(number, *dim);
            // The last one is answered when all before it are stored.
            let silent = if number + 1 == first + count { "" } else { " noreply" };
            let _ = write!(request, "set {table}:{number} 0 0 {}{silent}\r\n", row.len());
            request.extend_from_slice(&row);
            request.extend_from_slice(b"\r\n");
        }
        stream.write(request)?;
        match stream.line()? {
            b"STORED" => Ok(()),
            other => {
                let found = other.to_vec();
                Err(stream.unexpected(&found))
            }
        }
    }
}
