//! A small HTTP client for tests: one request per connection, the answer whole.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Longer than any operation of a passing test takes.
const LONG: Duration = Duration::from_secs(60);

/// An answer.
#[derive(Debug)]
pub struct HttpReply {
    /// The status, such as 200.
    pub status: u16,
    /// The headers in lower case, line by line.
    pub head: String,
    /// The body.
    pub body: Vec<u8>,
}

impl HttpReply {
    /// The body as a text.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a text")
    }

    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// Sends a request to an address, such as `127.0.0.1:8500`, with header lines such as `origin: null`.
///
/// # Panics
/// Nothing answers there, or the answer is not HTTP.
#[must_use]
pub fn http(address: &str, method: &str, path: &str, headers: &[&str], body: &[u8]) -> HttpReply {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(LONG)).expect("set");
    let host = match headers.iter().any(|line| line.starts_with("host:")) {
        true => String::new(),
        false => format!("host: {address}\r\n"),
    };
    let more: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\n{host}connection: close\r\ncontent-length: {length}\r\n{more}\r\n"
    );
    stream.write_all(head.as_bytes()).expect("sent");
    // A server may refuse a request before it has read the body.
    let _ = stream.write_all(body);
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let cut = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let cut = cut.unwrap_or_else(|| panic!("no answer to {method} {path}: {read:?}"));
    let head = String::from_utf8_lossy(&answer[..cut]).to_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    HttpReply { status, head, body: answer.split_off(cut + 4) }
}
