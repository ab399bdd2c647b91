//! The RESP front: rows of tables for clients of Redis, over TCP connections of its own.

mod commands;
mod parse;

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use self::commands::{Action, Reply, Version, action, rows};
use self::parse::{Bounds, parse};
use crate::error::{Kind, ServeError};
use crate::limit::{RESP_COMMAND_BYTES_MAX, RESP_CONNECTIONS_MAX, RESP_WORDS, RESP_WRITE_TIMEOUT};
use crate::service::Service;
use crate::traced::RequestTrace;
use crate::work::{Answered, Asked};

/// Room for one read.
const READ_BYTES: usize = 64 << 10;
/// Pause after a failed `accept`, such as one for want of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
const PROTOCOL: &str = "resp";

/// Answers connections until the server drains; then those under way finish their command.
pub(crate) async fn serve(listener: TcpListener, service: Arc<Service>, mut ended: watch::Receiver<bool>) {
    let slots = Arc::new(Semaphore::new(RESP_CONNECTIONS_MAX));
    loop {
        let Some(accepted) = unless(&mut ended, listener.accept()).await else { break };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            // As Redis says it. A client that does not read it is closed all the same.
            let _ = stream.try_write(b"-ERR max number of clients reached\r\n");
            continue;
        };
        // Without it, replies are late at worst.
        let _ = stream.set_nodelay(true);
        let (service, version) = (Arc::clone(&service), Version::Resp2);
        let connection = Connection { stream, service, is_admitted: false, version, _slot: slot };
        tokio::spawn(connection.run(ended.clone()));
    }
    // All slots are free when the last connection has ended.
    let _ = slots.acquire_many(RESP_CONNECTIONS_MAX as u32).await;
}

/// Parses the command at the beginning of the bytes; returns the bytes that it takes. For a fuzzer.
#[cfg(fuzzing)]
pub fn resp_command_bytes(bytes: &[u8]) -> Option<usize> {
    let bounds = Bounds { words_max: RESP_WORDS, bytes_max: RESP_COMMAND_BYTES_MAX };
    parse(bytes, bounds).ok().flatten().map(|(_, used)| used)
}

/// The result of work, or `None` if the server drains first.
async fn unless<T>(ended: &mut watch::Receiver<bool>, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut end) = (pin!(work), pin!(ended.wait_for(|ended| *ended)));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => end.as_mut().poll(cx).map(|_| None),
    })
    .await
}

/// The name of a command for the access log.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(16)]).into_owned()
}

/// One connection. It returns its slot on drop.
struct Connection {
    stream: TcpStream,
    service: Arc<Service>,
    is_admitted: bool,
    version: Version,
    _slot: OwnedSemaphorePermit,
}

impl Connection {
    async fn run(mut self, mut ended: watch::Receiver<bool>) {
        let words_max = RESP_WORDS.max(self.service.batch_max + 1);
        let bounds = Bounds { words_max, bytes_max: RESP_COMMAND_BYTES_MAX };
        let (mut read, mut replies) = (Vec::new(), Vec::new());
        loop {
            let mut used = 0;
            // Commands that came together are answered together.
            let goes_on = loop {
                match parse(&read[used..], bounds) {
                    Ok(None) => break true,
                    Ok(Some((words, length))) => {
                        let done =
                            if words.is_empty() { true } else { self.answer(&words, &mut replies).await };
                        used += length;
                        if !done || replies.len() > READ_BYTES && self.write(&mut replies).await.is_err() {
                            break false;
                        }
                    }
                    Err(reason) => {
                        Reply::Error(format!("ERR Protocol error: {reason}"))
                            .write(&mut replies, self.version);
                        break false;
                    }
                }
            };
            read.drain(..used);
            if self.write(&mut replies).await.is_err() || !goes_on {
                return;
            }
            match unless(&mut ended, self.read(&mut read)).await {
                Some(Ok(true)) => {}
                Some(Ok(false) | Err(_)) | None => return,
            }
        }
    }

    /// Reads what there is; false at the end.
    async fn read(&self, to: &mut Vec<u8>) -> io::Result<bool> {
        loop {
            self.stream.readable().await?;
            let before = to.len();
            to.resize(before + READ_BYTES, 0);
            let read = self.stream.try_read(&mut to[before..]);
            to.truncate(before + *read.as_ref().unwrap_or(&0));
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Ok(read? > 0),
            }
        }
    }

    /// Writes all replies and forgets them.
    async fn write(&self, replies: &mut Vec<u8>) -> io::Result<()> {
        let write = async {
            let mut rest = &replies[..];
            while !rest.is_empty() {
                self.stream.writable().await?;
                match self.stream.try_write(rest) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    written => rest = &rest[written?..],
                }
            }
            Ok(())
        };
        let written = timeout(RESP_WRITE_TIMEOUT, write).await;
        replies.clear();
        written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Answers a command; false: the connection ends.
    async fn answer(&mut self, words: &[&[u8]], replies: &mut Vec<u8>) -> bool {
        let start = Instant::now();
        let asked = Asked::new(self.service.batch_max, 0);
        let (reply, goes_on) = match action(words) {
            Action::Reply(reply) => (reply, true),
            Action::Close(reply) => (reply, false),
            Action::Login(token) => (self.login(&token), true),
            Action::Hello(version, token) => (self.hello(version, token.as_deref()), true),
            Action::Rows(_) if !self.is_admitted && self.service.has_token() => {
                (Reply::Error("NOAUTH Authentication required.".to_owned()), true)
            }
            Action::Rows(wanted) => {
                let (models, asked) = (self.service.models.current(), asked.clone());
                let work = self.service.threads.run(move || rows(&models, &wanted, &asked));
                let late = || Err(ServeError::new(Kind::DeadlineExceeded, "not answered in time"));
                let found = timeout(self.service.timeout, work).await.unwrap_or_else(|_| late());
                (found.unwrap_or_else(|error| Reply::of_error(&error)), true)
            }
        };
        let code = if matches!(reply, Reply::Error(_)) { "Error" } else { "Ok" };
        let endpoint = if asked.model().is_some() { "rows" } else { "other" };
        let answered = Answered {
            protocol: PROTOCOL,
            endpoint,
            peer: self.stream.peer_addr().ok().filter(|_| self.service.access_log.is_some()),
            method: words.first().map(|name| shown(name)).unwrap_or_default(),
            path: String::new(),
            code: code.to_owned(),
            // Clients of Redis name no trace.
            trace: RequestTrace::IfSlow,
        };
        self.service.note(&answered, &asked, start.elapsed());
        reply.write(replies, self.version);
        goes_on
    }

    fn hello(&mut self, version: Option<Version>, token: Option<&[u8]>) -> Reply {
        match token.map(|token| self.login(token)) {
            None | Some(Reply::Simple(_)) => {}
            Some(refused) => return refused,
        }
        if !self.is_admitted && self.service.has_token() {
            let text = "NOAUTH HELLO must be called with the client already authenticated, or with AUTH";
            return Reply::Error(text.to_owned());
        }
        self.version = version.unwrap_or(self.version);
        Reply::Hello
    }

    fn login(&mut self, token: &[u8]) -> Reply {
        let token = std::str::from_utf8(token).unwrap_or_default();
        if !self.service.has_token() {
            return Reply::Error("ERR AUTH called without any password configured".to_owned());
        }
        self.is_admitted = self.service.admits(Some(token));
        match self.is_admitted {
            true => Reply::Simple("OK"),
            false => Reply::Error("WRONGPASS invalid username-password pair".to_owned()),
        }
    }
}
