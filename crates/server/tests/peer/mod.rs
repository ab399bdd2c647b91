//! A client as small as can be, and a server in this process to talk to. Knows nothing of retries or several servers.
#![allow(dead_code, clippy::unwrap_used)] // each test program uses some of it; a panic is a failed test

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use sanderling_server::{Config, Event, Server, framing};
use sanderling_transport::{Address, ConnectOptions, Connection, Connector, Error, connect};
use sanderling_wire::*;

/// Adagrad, 4 weights, first weights from the key.
pub(crate) const TABLE: &str = r#"{"blocks":[{"dims":4,"init":{"type":"uniform","bound":0.5},
    "optimizer":{"type":"adagrad","lr":0.1}}],"seed":7}"#;
pub(crate) const DIM: u32 = 4;
const FRAME_BYTES_MAX: u32 = 16 << 20;
/// Far longer than anything takes that goes well.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// How often a request is sent that had to wait for too long.
const SENT_MAX: usize = 10;

/// A connection.
pub(crate) struct Peer {
    pub(crate) connection: Connection,
    pub(crate) agreed: Agreed,
    pub(crate) local_url: String,
    id: u64,
}

/// A fault and its reason.
pub(crate) type Failed = (Fault, String);
/// The id of a reply, and what was made of it.
pub(crate) type Received<T> = (u64, Result<T, Failed>);

impl Peer {
    pub(crate) fn silent(address: &Address) -> Result<Peer, Error> {
        Peer::silent_by(address, None)
    }

    /// With what connects to gRPC addresses.
    pub(crate) fn silent_by(address: &Address, grpc: Option<Connector>) -> Result<Peer, Error> {
        let options = ConnectOptions { grpc, ..ConnectOptions::new(framing(FRAME_BYTES_MAX)) };
        let connection = connect(address, &options)?;
        Ok(Peer { connection, agreed: Agreed::BEFORE_HELLO, local_url: String::new(), id: 0 })
    }

    /// Connects and says hello.
    pub(crate) fn new(address: &Address) -> Peer {
        let mut peer = Peer::silent(address).unwrap();
        peer.hello("", "").unwrap();
        peer
    }

    pub(crate) fn hello(&mut self, token: &str, name: &str) -> Result<(), Failed> {
        let offer = Offer::of(Features(u32::MAX));
        let hello = Request::Hello(Hello { offer, token, name });
        let (agreed, url) = self.ask(&hello, |reply| match reply {
            Reply::Hello(identity) => (identity.agreed, identity.local_url.to_owned()),
            other => panic!("{other:?}"),
        })?;
        (self.agreed, self.local_url) = (offer.accept(agreed).unwrap(), url);
        Ok(())
    }

    /// Sends a request; its id.
    pub(crate) fn send(&mut self, request: &Request<'_>) -> Result<u64, Error> {
        self.send_within(request, 0)
    }

    pub(crate) fn send_within(&mut self, request: &Request<'_>, deadline_us: u32) -> Result<u64, Error> {
        self.id += 1;
        let bytes = request.frame_bytes().unwrap();
        let mut slot = self.connection.sender.frame(bytes)?;
        let bytes = request.encode(&self.agreed, self.id, deadline_us, &mut slot).unwrap();
        slot.commit(bytes);
        self.connection.sender.flush()?;
        Ok(self.id)
    }

    /// Receives a frame; its id, and what `read` makes of it or the failure. `None`: the connection has ended.
    pub(crate) fn receive<T>(
        &mut self,
        read: impl FnOnce(Reply<'_>) -> T,
    ) -> Result<Option<Received<T>>, Error> {
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

    pub(crate) fn ask<T>(
        &mut self,
        request: &Request<'_>,
        read: impl FnMut(Reply<'_>) -> T,
    ) -> Result<T, Failed> {
        let id = self.send(request).unwrap();
        self.answer(request, id, read)
    }

    /// The answer to a request that was sent with this id. It is sent again where it has waited for too long, as by a
    /// client: a slow machine is no failure.
    pub(crate) fn answer<T>(
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
                Err((Fault::Busy { .. }, reason)) if reason.starts_with("waited for") && sent < SENT_MAX => {
                    id = self.send(request).unwrap();
                    sent += 1;
                }
                result => return result,
            }
        }
    }

    /// Asks for more than sockets take, and takes nothing of it.
    pub(crate) fn ask_without_listening(&mut self) {
        for _ in 0..64 {
            self.send(&Request::Ping(Ping { reply_bytes: 1 << 20, bytes: &[] })).unwrap();
        }
    }

    /// Makes or opens a table; its number.
    pub(crate) fn create(&mut self, name: &str, config: &str) -> Result<u32, Failed> {
        self.ask(&Request::Create(Create { home: Home::Sharded, name, config }), |reply| match reply {
            Reply::Create(info) => info.table,
            other => panic!("{other:?}"),
        })
    }

    /// Rows, and the positions of keys without one.
    pub(crate) fn pull(&mut self, table: u32, keys: &[u64]) -> Result<(Vec<f32>, Vec<usize>), Failed> {
        let (format, absent) = (RowFormat::F32, Absent::Init);
        self.ask(&Request::Pull(Pull { table, dim: DIM, absent, format, keys }), rows)
    }

    /// Had it been applied before?
    pub(crate) fn push(
        &mut self,
        table: u32,
        sequence: u64,
        keys: &[u64],
        grad: f32,
    ) -> Result<bool, Failed> {
        let (counts, grads) = (vec![1; keys.len()], vec![grad; keys.len() * DIM as usize]);
        let (counts, grads) = (&counts[..], &grads[..]);
        let push = Push { table, client: 77, sequence, dim: DIM, lr_scale: 1.0, keys, counts, grads };
        self.ask(&Request::Push(push), |reply| match reply {
            Reply::Push(pushed) => pushed.repeated,
            other => panic!("{other:?}"),
        })
    }

    /// A save of this name that is under way, and goes on when what is returned is dropped: it tells of a note that it cannot
    /// take away, and who is told waits.
    pub(crate) fn save_stuck<'a>(
        &mut self,
        place: &'a Place,
        data: &Path,
        name: &str,
    ) -> (u64, MutexGuard<'a, ()>) {
        // What is no file cannot be removed as one.
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

    /// A counter of the server.
    pub(crate) fn counter(&mut self, name: &str) -> u64 {
        let read = |reply: Reply<'_>| match reply {
            Reply::Stats(found) => found.counters.iter().find(|counter| counter.name == name).unwrap().value,
            other => panic!("{other:?}"),
        };
        self.ask(&Request::Stats(StatsScope::Commands), read).unwrap()
    }
}

/// What a pull was answered.
pub(crate) fn rows(reply: Reply<'_>) -> (Vec<f32>, Vec<usize>) {
    match reply {
        Reply::Pull(reply) | Reply::PullPooled(reply) | Reply::PullFed(reply) => {
            let mut rows = vec![0.0; reply.values.len()];
            reply.values.copy_to(&mut rows);
            (rows, reply.absent.positions().collect())
        }
        other => panic!("{other:?}"),
    }
}

/// A server in this process, at one address of each kind.
pub(crate) struct Place {
    pub(crate) server: Option<Server>,
    pub(crate) events: Arc<Mutex<Vec<Event>>>,
    /// While it is held, who tells of a note that is left waits.
    notes_wait: Arc<Mutex<()>>,
    pub(crate) folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new(change: impl FnOnce(&mut Config)) -> Place {
        Place::at(tempfile::tempdir().unwrap(), change)
    }

    pub(crate) fn at(folder: tempfile::TempDir, change: impl FnOnce(&mut Config)) -> Place {
        let mut config = Config { runtime_dir: folder.path().join("run"), workers: 2, ..Config::default() };
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        change(&mut config);
        let events = Arc::<Mutex<Vec<Event>>>::default();
        let notes_wait = Arc::<Mutex<()>>::default();
        let (told, wait) = (Arc::clone(&events), Arc::clone(&notes_wait));
        let on_event = move |event: Event| {
            let is_left = matches!(event, Event::NoteLeft { .. });
            told.lock().unwrap().push(event);
            if is_left {
                drop(wait.lock());
            }
        };
        let server = Server::start(&config, on_event).unwrap();
        Place { server: Some(server), events, notes_wait, folder }
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// The address of a kind: "tcp", "unix" or "shm".
    pub(crate) fn address(&self, kind: &str) -> Address {
        let mut addresses = self.server().addresses().iter();
        addresses.find(|address| address.to_string().starts_with(kind)).unwrap().clone()
    }
}
