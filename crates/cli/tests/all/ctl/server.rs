//! A `sanderling ps` with its control plane, and `sanderling ctl`, as processes of their own. Knows not what is asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use sanderling_transport::{Address, own_token};
use serde_json::Value;

use sanderling_testkit::{LONG, RawClient};

/// A running server with a control plane; it is killed if a test forgets it.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: Address,
    /// Of its control plane, as a URL.
    pub(crate) control: String,
    _lines: BufReader<ChildStdout>,
}

pub(crate) fn sanderling(folder: &Path, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sanderling"));
    command.args(words.split_whitespace()).current_dir(folder).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Server {
    /// Starts it below a folder and waits until it listens.
    pub(crate) fn start(folder: &Path, options: &str) -> Server {
        let words = format!("ps --listen 127.0.0.1:0 --runtime-dir run --threads 1 {options}");
        let mut child = sanderling(folder, &words).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut said = Vec::new();
        // One for each of TCP, shared memory and unix socket, and the control plane's.
        for _ in 0..4 {
            let mut line = String::new();
            if lines.read_line(&mut line).unwrap() == 0 {
                let mut errors = String::new();
                child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
                child.wait().unwrap();
                panic!("after {said:?}: {errors}");
            }
            said.push(line.trim().to_owned());
        }
        let address = said[0].strip_prefix("listening at ").unwrap().parse().unwrap();
        let control = said[3].strip_prefix("control at ").unwrap().to_owned();
        Server { child, address, control, _lines: lines }
    }

    pub(crate) fn peer(&self) -> RawClient {
        RawClient::new(&self.address)
    }

    pub(crate) fn ctl(&self, folder: &Path, words: &str) -> Said {
        Said::of(sanderling(folder, &format!("ctl --server {} {words}", self.control)))
    }

    /// The token that it has made for itself.
    pub(crate) fn own_token(&self) -> Option<String> {
        let (host, port) = self.control.split_once("://").unwrap().1.rsplit_once(':').unwrap();
        own_token(host, port.parse().unwrap())
    }

    /// The header that has it.
    pub(crate) fn authorization(&self) -> String {
        format!("Authorization: Bearer {}\r\n", self.own_token().unwrap())
    }

    /// What plain HTTP 1.1 gives: the code and the body.
    pub(crate) fn get(&self, path: &str, headers: &str) -> (u16, String) {
        self.send("GET", path, &format!("Host: x\r\n{headers}"), b"")
    }

    /// The same for any request.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(self.control.strip_prefix("http://").unwrap()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
        )
        .unwrap();
        stream.write_all(body).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (self.child.wait().unwrap(), errors)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a command ended, and what it said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) errors: String,
}

impl Said {
    pub(crate) fn of(mut command: Command) -> Said {
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Said { code: output.status.code().unwrap(), out: text(output.stdout), errors: text(output.stderr) }
    }

    /// The JSON objects, one per line.
    pub(crate) fn json(&self) -> Vec<Value> {
        assert_eq!(self.code, 0, "{self:?}");
        self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[track_caller]
    pub(crate) fn fails(&self, code: i32, expected: &str) {
        assert!(self.code == code && self.errors.contains(expected), "{expected}: {self:?}");
    }
}
