//! `MGET` and `MSET` of Redis.

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

    fn begin(&mut self, command: &str, words: usize) {
        self.request.clear();
        self.word(format_args!("*{}\r\n$4\r\n{command}\r\n", words + 1));
    }

    fn word(&mut self, text: std::fmt::Arguments<'_>) {
        // A vector takes everything.
        let _ = self.request.write_fmt(text);
    }

    fn key(&mut self, number: u32) {
        let bytes = self.table.len() + 1 + number.checked_ilog10().unwrap_or(0) as usize + 1;
        let table = std::mem::take(&mut self.table);
        self.word(format_args!("${bytes}\r\n{table}:{number}\r\n"));
        self.table = table;
    }
}

impl Connection for Client {
    fn read(&mut self, numbers: &[u32]) -> Result<usize, BenchError> {
        self.begin("MGET", numbers.len());
        numbers.iter().for_each(|number| self.key(*number));
        self.stream.write(&self.request)?;
        let count = self.stream.line()?;
        if count != format!("*{}", numbers.len()).as_bytes() {
            let found = count.to_vec();
            return Err(self.stream.unexpected(&found));
        }
        let (mut absent, expected) = (0, format!("${}", self.dim * 4));
        for _ in numbers {
            let length = self.stream.line()?;
            if length == b"$-1" {
                absent += 1;
            } else if length == expected.as_bytes() {
                self.stream.skip(self.dim * 4)?;
            } else {
                let found = length.to_vec();
                return Err(self.stream.unexpected(&found));
            }
        }
        Ok(absent)
    }

    fn store(&mut self, first: u32, count: u32) -> Result<(), BenchError> {
        self.begin("MSET", 2 * count as usize);
        for number in first..first + count {
            self.key(number);
            let row = row_bytes(number, self.dim);
            self.word(format_args!("${}\r\n", row.len()));
            self.request.extend_from_slice(&row);
            self.request.extend_from_slice(b"\r\n");
        }
        self.stream.write(&self.request)?;
        match self.stream.line()? {
            b"+OK" => Ok(()),
            other => {
                let found = other.to_vec();
                Err(self.stream.unexpected(&found))
            }
        }
    }
}
