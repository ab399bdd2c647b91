//! A client that sends single requests over one connection. It never retries and knows one server only.

use std::path::Path;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use sanderling_server::{Event, framing};
use sanderling_transport::{Address, ConnectOptions, Connection, Error, connect};
use sanderling_wire::*;

use crate::TestServer;

/// A table configuration (JSON): [`DIM`] weights, Adagrad, initial weights from the key.
pub const TABLE: &str = r#"{"blocks":[{"dims":4,"init":{"type":"uniform","bound":0.5},
    "optimizer":{"type":"adagrad","lr":0.1}}],"seed":7}"#;
/// Weights per row of [`TABLE`].
pub const DIM: u32 = 4;
const FRAME_BYTES_MAX: u32 = 16 << 20;
/// Longer than any operation of a passing test takes.
pub const LONG: Duration = Duration::from_secs(60);
/// Attempts for a request that the server refuses because it waited too long.
const ATTEMPTS_MAX: usize = 10;

/// One connection to a server, with what it agreed on.
#[derive(Debug)]
pub struct RawClient {
    /// The transport.
    pub connection: Connection,
    /// What the hello agreed on.
    pub agreed: Agreed,
    /// The fastest local address that the server offers.
    pub local_url: String,
    id: u64,
}

/// A fault and its reason.
pub type Failed = (Fault, String);
/// The id of a reply, and what the test made of it.
pub type Received<T> = (u64, Result<T, Failed>);

impl RawClient {
    /// Connects without a hello.
    ///
    /// # Errors
    /// The transport cannot connect.
    pub fn silent(address: &Address) -> Result<RawClient, Error> {
        let connection = connect(address, &ConnectOptions::new(framing(FRAME_BYTES_MAX)))?;
        Ok(RawClient { connection, agreed: Agreed::BEFORE_HELLO, local_url: String::new(), id: 0 })
    }

    /// Connects and sends a hello without a token.
    pub fn new(address: &Address) -> RawClient {
        let mut peer = RawClient::silent(address).unwrap();
        peer.hello("", "").unwrap();
        peer
    }

    /// Sends a hello with this token and client name.
    ///
    /// # Errors
    /// The server refuses it.
    pub fn hello(&mut self, token: &str, name: &str) -> Result<(), Failed> {
        let offer = Offer::of(Features(u32::MAX));
        let hello = Request::Hello(Hello { offer, token, name });
        let (agreed, url) = self.ask(&hello, |reply| match reply {
            Reply::Hello(identity) => (identity.agreed, identity.local_url.to_owned()),
            other => panic!("{other:?}"),
        })?;
        (self.agreed, self.local_url) = (offer.accept(agreed).unwrap(), url);
        Ok(())
    }

    /// Sends a request and returns its id.
    ///
    /// # Errors
    /// The transport fails.
    pub fn send(&mut self, request: &Request<'_>) -> Result<u64, Error> {
        self.send_within(request, 0)
    }

    /// Sends a request with a deadline in microseconds, 0 for none, and returns its id.
    ///
    /// # Errors
    /// The transport fails.
    pub fn send_within(&mut self, request: &Request<'_>, deadline_us: u32) -> Result<u64, Error> {
        self.id += 1;
        let bytes = request.frame_bytes().unwrap();
        let mut slot = self.connection.sender.frame(bytes)?;
        let bytes = request.encode(&self.agreed, self.id, deadline_us, &mut slot).unwrap();
        slot.commit(bytes);
        self.connection.sender.flush()?;
        Ok(self.id)
    }

    /// Receives one frame: its id, and what `read` returns for it or the failure. `None`: the connection has ended.
    ///
    /// # Errors
    /// The transport fails.
    pub fn receive<T>(&mut self, read: impl FnOnce(Reply<'_>) -> T) -> Result<Option<Received<T>>, Error> {
        let Some(bytes) = self.connection.receiver.receive(Some(Instant::now() + LONG))? else {
            return Ok(None);
        };
        let Parsed::Frame(frame) = Frame::parse(bytes, &self.agreed).unwrap() else { panic!("not whole") };
        let mut codec = Codec::new();
        let frame = codec.unpack(frame, &self.agreed).unwrap();
        let result = match Reply::decode(&frame).unwrap() {
            Reply::Failed(failure) => Err((failure.fault, failure.reason.to_owned())),
            reply => Ok(read(reply)),
        };
        Ok(Some((frame.header.id, result)))
    }

    /// Sends a request and returns what `read` makes of its reply.
    ///
    /// # Errors
    /// The server refuses the request.
    pub fn ask<T>(&mut self, request: &Request<'_>, read: impl FnMut(Reply<'_>) -> T) -> Result<T, Failed> {
        let id = self.send(request).unwrap();
        self.answer(request, id, read)
    }

    /// Waits for the reply to a request that was sent with this id.
    ///
    /// Repeats the request, as clients do, where the server refuses it because it waited too long: a slow machine is no
    /// failure.
    ///
    /// # Errors
    /// The server refuses the request.
    pub fn answer<T>(
        &mut self,
        request: &Request<'_>,
        mut id: u64,
        mut read: impl FnMut(Reply<'_>) -> T,
    ) -> Result<T, Failed> {
        let mut sent = 1;
        loop {
            let (found, result) = self.receive(&mut read).unwrap().expect("an answer");
            assert_eq!(found, id);
            match result {
                Err((Fault::Busy { .. }, reason))
                    if reason.starts_with("waited for") && sent < ATTEMPTS_MAX =>
                {
                    id = self.send(request).unwrap();
                    sent += 1;
                }
                result => return result,
            }
        }
    }

    /// Requests more bytes than the sockets hold and reads none of them.
    pub fn ask_without_listening(&mut self) {
        for _ in 0..64 {
            self.send(&Request::Ping(Ping { reply_bytes: 1 << 20, bytes: &[] })).unwrap();
        }
    }

    /// Creates or opens a table and returns its number.
    ///
    /// # Errors
    /// The server refuses the request.
    pub fn create(&mut self, name: &str, config: &str) -> Result<u32, Failed> {
        self.ask(&Request::Create(Create { home: Home::Sharded, name, config }), |reply| match reply {
            Reply::Create(info) => info.table,
            other => panic!("{other:?}"),
        })
    }

    /// Pulls rows: the values, and the positions of keys that have no row.
    ///
    /// # Errors
    /// The server refuses the request.
    pub fn pull(&mut self, table: u32, keys: &[u64]) -> Result<(Vec<f32>, Vec<usize>), Failed> {
        let (format, absent) = (RowFormat::F32, Absent::Init);
        self.ask(&Request::Pull(Pull { table, dim: DIM, absent, format, keys }), rows)
    }

    /// Pushes one gradient value for every coordinate of `keys`. `true`: the server had applied this sequence before.
    ///
    /// # Errors
    /// The server refuses the request.
    pub fn push(&mut self, table: u32, sequence: u64, keys: &[u64], grad: f32) -> Result<bool, Failed> {
        let (counts, grads) = (vec![1; keys.len()], vec![grad; keys.len() * DIM as usize]);
        let (counts, grads) = (&counts[..], &grads[..]);
        let push = Push { table, client: 77, sequence, dim: DIM, lr_scale: 1.0, keys, counts, grads };
        self.ask(&Request::Push(push), |reply| match reply {
            Reply::Push(pushed) => pushed.repeated,
            other => panic!("{other:?}"),
        })
    }

    /// Starts a save of this name that blocks until the returned guard is dropped. Returns the id of the request, too.
    ///
    /// The save finds a folder where it expects its note, reports that, and the test server's event handler blocks.
    pub fn save_stuck<'a>(
        &mut self,
        place: &'a TestServer,
        data: &Path,
        name: &str,
    ) -> (u64, MutexGuard<'a, ()>) {
        std::fs::create_dir_all(data.join(name).join("origin.json")).unwrap();
        let stuck = place.notes_wait.lock().unwrap();
        let id = self.send(&Request::Save(Save { name })).unwrap();
        let start = Instant::now();
        let is_left = |event: &Event| matches!(event, Event::NoteLeft { .. });
        while !place.events.lock().unwrap().iter().any(is_left) {
            assert!(start.elapsed() < LONG, "the save of {name} tells of no note");
            std::thread::sleep(Duration::from_millis(1));
        }
        (id, stuck)
    }

    /// Reads one counter of the server.
    pub fn counter(&mut self, name: &str) -> u64 {
        let read = |reply: Reply<'_>| match reply {
            Reply::Stats(found) => found.counters.iter().find(|counter| counter.name == name).unwrap().value,
            other => panic!("{other:?}"),
        };
        self.ask(&Request::Stats(StatsScope::Commands), read).unwrap()
    }
}

/// The values of a pull reply, and the positions of keys that have no row.
pub fn rows(reply: Reply<'_>) -> (Vec<f32>, Vec<usize>) {
    match reply {
        Reply::Pull(reply) | Reply::PullPooled(reply) | Reply::PullFed(reply) => {
            let mut rows = vec![0.0; reply.values.len()];
            reply.values.copy_to(&mut rows);
            (rows, reply.absent.positions().collect())
        }
        other => panic!("{other:?}"),
    }
}
