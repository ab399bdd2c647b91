//! Parameter servers in this process, as small as they can be: one thread per connection over an embedded table. They can
//! be told to misbehave. They are not `sanderling ps`; what they share with it is the wire format.

mod conversions;
pub(crate) mod fed;
pub(crate) mod placed;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use sanderling_client::{Address, Cluster, ConnectOptions};
use sanderling_store::{PushScale, Table, WholeRows};
use sanderling_transport::{Connection, Framing, ListenOptions, Listener, Stopper};
use sanderling_wire::{
    self as wire, Agreed, Bits, Buffer, Exported, Failure, Fault, Features, Frame, HEADER_BYTES, Home,
    Identity, Offer, Parsed, PlacementMap, Pong, PullReply, Pushed, Reply, Request, RowBlock, RowValues,
    TableInfo, WireError, limit,
};

pub(crate) use conversions::host_id;
use conversions::{failed, parse, refused, words};

const FRAMING: Framing = Framing {
    header_bytes: HEADER_BYTES,
    body_bytes: |header| wire::body_bytes(header.try_into().unwrap()).map_err(|error| error.to_string()),
    frame_bytes_max: limit::FRAME_BYTES_MAX,
};

/// What a server does with a request in place of answering it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misdeed {
    /// Says that it is busy.
    Busy,
    /// Carries it out and closes the connection.
    CutAfter,
    /// Closes the connection and does nothing.
    CutBefore,
    /// Carries it out and never says so.
    Silent,
    /// Answers with bytes that are no frame.
    Garbage,
    /// Answers a pull with a row less than was asked for.
    Short,
    /// Says goaway, answers, and closes the connection.
    Goaway,
    /// Answers with a frame of a damaged byte.
    Damaged,
}

/// What all connections of a server share.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) tables: Mutex<Vec<Arc<Table>>>,
    configs: Mutex<HashMap<String, String>>,
    applied: Mutex<HashMap<(u64, u64), ()>>,
    /// The slots that the server has; `None`: all keys are its own.
    pub(crate) place: RwLock<Option<placed::Place>>,
    /// Pushes of keys that are its own: their numbers, and whether they continue others.
    pub(crate) sequences: Mutex<Vec<(u64, bool)>>,
    /// By table, batch and feature.
    pub(crate) batches: Mutex<HashMap<(u32, u64, u32), fed::Kept>>,
    /// Pushes that were applied.
    pub(crate) pushes: AtomicU64,
    /// Misdeeds to come, the last first, for pulls and pushes.
    pub(crate) misdeeds: Mutex<Vec<Misdeed>>,
    pub(crate) token: Mutex<String>,
    /// By name, the number of the save.
    pub(crate) saves: Mutex<HashMap<String, u64>>,
    /// Saves and restores fail.
    pub(crate) has_no_disk: AtomicBool,
    /// Milliseconds that a save takes.
    pub(crate) save_ms: AtomicU64,
    pub(crate) restores: AtomicU64,
    pub(crate) local_url: Mutex<String>,
    /// Longest frame; 0: as long as any may be.
    pub(crate) frame_bytes_max: AtomicU32,
    /// Connections that greeted.
    pub(crate) greeted: AtomicU64,
}

impl Memory {
    fn frame_bytes_max(&self) -> u32 {
        match self.frame_bytes_max.load(Ordering::Relaxed) {
            0 => limit::FRAME_BYTES_MAX as u32,
            bytes => bytes,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: Address,
    pub(crate) memory: Arc<Memory>,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(address: &str, shard: u32, shards: u32) -> Server {
        Server::start_with(address, shard, shards, Arc::default())
    }

    pub(crate) fn start_with(address: &str, shard: u32, shards: u32, memory: Arc<Memory>) -> Server {
        static BOOT: AtomicU64 = AtomicU64::new(1);
        let framing = Framing { frame_bytes_max: memory.frame_bytes_max() as usize, ..FRAMING };
        let listener = Listener::bind(&address.parse().unwrap(), &ListenOptions::new(framing)).unwrap();
        let (address, stopper) = (listener.address().clone(), listener.stopper());
        let boot_id = BOOT.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&memory);
        let thread = std::thread::spawn(move || {
            while let Some(connection) = listener.accept().unwrap() {
                let memory = Arc::clone(&shared);
                std::thread::spawn(move || {
                    // The client may go whenever it likes.
                    let _ = Talk::new(memory, boot_id, (shard, shards)).run(connection);
                });
            }
        });
        Server { address, memory, stopper, thread: Some(thread) }
    }

    /// Takes no connections any more; those that are open go on.
    pub(crate) fn stop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    pub(crate) fn misbehave(&self, misdeeds: &[Misdeed]) {
        *self.memory.misdeeds.lock().unwrap() = misdeeds.iter().rev().copied().collect();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A unix address of its own.
pub(crate) fn address(folder: &tempfile::TempDir) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("unix:{}/{}", folder.path().display(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// So many shards, over unix sockets or TCP.
pub(crate) fn start(folder: &tempfile::TempDir, kind: &str, shards: u32) -> Vec<Server> {
    let at = || if kind == "unix" { address(folder) } else { "tcp://127.0.0.1:0".to_owned() };
    (0..shards).map(|shard| Server::start(&at(), shard, shards)).collect()
}

pub(crate) fn options() -> ConnectOptions {
    ConnectOptions { timeout: Duration::from_secs(20), ..ConnectOptions::default() }
}

pub(crate) fn connect(servers: &[Server], options: ConnectOptions) -> Arc<Cluster> {
    let addresses: Vec<Address> = servers.iter().map(|server| server.address.clone()).collect();
    Cluster::connect(&addresses, options).unwrap()
}

/// One connection.
struct Talk {
    memory: Arc<Memory>,
    boot_id: u64,
    shard: (u32, u32),
    agreed: Agreed,
    out: Buffer,
}

type Refusal = (Fault, String);

impl Talk {
    fn new(memory: Arc<Memory>, boot_id: u64, shard: (u32, u32)) -> Talk {
        Talk {
            memory,
            boot_id,
            shard,
            agreed: Agreed::BEFORE_HELLO,
            out: Buffer::new(limit::FRAME_BYTES_MAX),
        }
    }

    fn run(mut self, mut connection: Connection) -> Result<(), sanderling_transport::Error> {
        while let Some(bytes) = connection.receiver.receive(None)? {
            let Parsed::Frame(frame) = Frame::parse(bytes, &self.agreed).unwrap() else {
                panic!("part of a frame")
            };
            let request = Request::decode(&frame).unwrap();
            let misdeed = match &request {
                Request::Pull(_) | Request::Push(_) | Request::PushFed(_) => {
                    self.memory.misdeeds.lock().unwrap().pop()
                }
                _ => None,
            };
            self.out.clear();
            let id = frame.header.id;
            match misdeed {
                Some(Misdeed::CutBefore) => return Ok(()),
                Some(Misdeed::Busy) => {
                    self.reply(id, &failed(&request, (Fault::Busy { retry_after_us: 500 }, String::new())));
                }
                Some(Misdeed::Garbage) => {
                    let room = self.out.room(HEADER_BYTES).unwrap();
                    room[..HEADER_BYTES].fill(0);
                    room[..4].copy_from_slice(b"SNDL");
                    self.out.advance(HEADER_BYTES);
                }
                Some(Misdeed::Short) => {
                    let Request::Pull(pull) = &request else { panic!("not a pull") };
                    let rows = vec![0.0; (pull.keys.len() - 1) * pull.dim as usize];
                    let absent = vec![0; (pull.keys.len() - 1).div_ceil(64)];
                    let absent = Bits::new(&absent, pull.keys.len() - 1).unwrap();
                    let reply = PullReply { dim: pull.dim, absent, values: RowValues::F32(&rows) };
                    self.reply(id, &Reply::Pull(reply));
                }
                _ => {
                    if misdeed == Some(Misdeed::Goaway) {
                        let goaway = wire::Goaway { closing_in_ms: 1000, reason: "tired" };
                        self.reply(0, &Reply::Goaway(goaway));
                    }
                    self.answer(id, &request);
                }
            }
            match misdeed {
                Some(Misdeed::CutAfter) => return Ok(()),
                Some(Misdeed::Silent) => continue,
                Some(Misdeed::Damaged) => *self.out.bytes_mut().last_mut().unwrap() ^= 1,
                _ => {}
            }
            let mut rest = self.out.bytes();
            while !rest.is_empty() {
                let body = wire::body_bytes(rest[..HEADER_BYTES].try_into().unwrap()).unwrap();
                let (frame, after) = rest.split_at(HEADER_BYTES + body);
                connection.sender.frame(frame.len())?.write(frame);
                rest = after;
            }
            connection.sender.flush()?;
            if misdeed == Some(Misdeed::Goaway) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn reply(&mut self, id: u64, reply: &Reply<'_>) {
        let agreed = self.agreed;
        let written = self.out.append(|out| reply.encode(&agreed, id, out));
        if let Err(WireError::TooLong { found: bytes, max: bytes_max, .. }) = written {
            let (kind, fault) = (reply.kind(), Fault::TooLarge { bytes, bytes_max });
            self.reply(id, &Reply::Failed(Failure { kind, fault, reason: "ask for less" }));
        } else {
            written.unwrap();
        }
    }

    fn answer(&mut self, id: u64, request: &Request<'_>) {
        let memory = Arc::clone(&self.memory);
        // The slots stay until the request is carried out.
        let place = memory.place.read().unwrap();
        let refusal = place.as_ref().and_then(|place| place.refusal(&memory, request));
        if let Err(refusal) = refusal.map_or_else(|| self.try_answer(id, request), Err) {
            self.reply(id, &failed(request, refusal));
        }
    }

    fn table(&self, number: u32) -> Result<Arc<Table>, Refusal> {
        let tables = self.memory.tables.lock().unwrap();
        let found = (number as usize).checked_sub(1).and_then(|at| tables.get(at));
        found.cloned().ok_or_else(|| (Fault::UnknownTable, format!("number {number}")))
    }

    fn kept(&self, of: (u32, u64, u32)) -> Result<fed::Kept, Refusal> {
        let kept = self.memory.batches.lock().unwrap().get(&of).cloned();
        kept.ok_or_else(|| (Fault::UnknownBatch, format!("batch {}, feature {}", of.1, of.2)))
    }

    fn table_of(&self, number: u32, dim: u32) -> Result<Arc<Table>, Refusal> {
        let table = self.table(number)?;
        if table.dim() == dim as usize {
            return Ok(table);
        }
        Err((Fault::DimensionMismatch { expected: table.dim() as u32, found: dim }, String::new()))
    }

    fn info(&mut self, id: u64, name: &str, create: bool) -> Result<(), Refusal> {
        let memory = Arc::clone(&self.memory);
        let tables = memory.tables.lock().unwrap();
        let at = tables.iter().position(|table| table.name() == name);
        let at = at.ok_or_else(|| (Fault::UnknownTable, format!("no table {name:?}")))?;
        let configs = memory.configs.lock().unwrap();
        let info = TableInfo {
            table: at as u32 + 1,
            home: Home::Sharded,
            dim: tables[at].dim() as u32,
            state: tables[at].config().state() as u32,
            rows: tables[at].len() as u64,
            bytes: tables[at].bytes(),
            name,
            config: &configs[name],
        };
        self.reply(id, &if create { Reply::Create(info) } else { Reply::Open(info) });
        Ok(())
    }

    fn try_answer(&mut self, id: u64, request: &Request<'_>) -> Result<(), Refusal> {
        match request {
            Request::Hello(hello) => {
                let token = self.memory.token.lock().unwrap().clone();
                // A server without a token takes what clients found for an earlier server of its port.
                if !token.is_empty() && hello.token != token {
                    return Err((Fault::Unauthorized, String::new()));
                }
                let frame_bytes_max = self.memory.frame_bytes_max();
                let offer = Offer {
                    frame_bytes_max,
                    ..Offer::of(Features::NO_CHECKSUM | Features::SAVES | Features::PUSH_PARTS)
                };
                let agreed = offer.meet(&hello.offer).unwrap();
                let local_url = self.memory.local_url.lock().unwrap().clone();
                let (shard, shards) = self.shard;
                let identity = Identity {
                    agreed,
                    in_flight_max: 8,
                    shard,
                    shards,
                    server_id: shard.into(),
                    boot_id: self.boot_id,
                    host_id: host_id(),
                    placement_version: 0,
                    history_id: 0,
                    name: "test",
                    local_url: &local_url,
                };
                self.reply(id, &Reply::Hello(identity));
                self.memory.greeted.fetch_add(1, Ordering::Relaxed);
                self.agreed = agreed;
            }
            Request::Ping(ping) => self.reply(id, &Reply::Ping(Pong { serving: true, bytes: ping.bytes })),
            Request::Placement => {
                self.reply(
                    id,
                    &Reply::Placement(PlacementMap { version: 0, servers: Vec::new(), slots: &[] }),
                );
            }
            Request::Create(create) => {
                let memory = Arc::clone(&self.memory);
                let mut configs = memory.configs.lock().unwrap();
                match configs.get(create.name) {
                    Some(config) if config != create.config => {
                        return Err((Fault::TableExists, create.name.to_owned()));
                    }
                    Some(_) => {}
                    None => {
                        let table =
                            Table::new(parse(create.name, create.config)).map_err(|error| refused(&error))?;
                        configs.insert(create.name.to_owned(), create.config.to_owned());
                        memory.tables.lock().unwrap().push(Arc::new(table));
                    }
                }
                drop(configs);
                self.info(id, create.name, true)?;
            }
            Request::Open(name) => self.info(id, name, false)?,
            Request::Pull(pull) => {
                let table = self.table_of(pull.table, pull.dim)?;
                let (mut rows, mut missing) = (vec![0.0; pull.keys.len() * table.dim()], Vec::new());
                table
                    .pull(pull.keys, pull.absent, &mut rows, Some(&mut missing))
                    .map_err(|error| refused(&error))?;
                let words = words(pull.keys.len(), &missing);
                let absent = Bits::new(&words, pull.keys.len()).unwrap();
                let reply = PullReply { dim: pull.dim, absent, values: RowValues::F32(&rows) };
                self.reply(id, &Reply::Pull(reply));
            }
            Request::PullPooled(pull) => {
                let table = self.table_of(pull.table, pull.dim)?;
                let wire::Ragged { keys, offsets, values } = pull.ragged;
                let (mut rows, mut missing) = (vec![0.0; (offsets.len() - 1) * table.dim()], Vec::new());
                table
                    .pull_pooled(
                        keys,
                        values,
                        offsets,
                        pull.pooling,
                        pull.absent,
                        &mut rows,
                        Some(&mut missing),
                    )
                    .map_err(|error| refused(&error))?;
                let words = words(keys.len(), &missing);
                let absent = Bits::new(&words, keys.len()).unwrap();
                let reply = PullReply { dim: pull.dim, absent, values: RowValues::F32(&rows) };
                self.reply(id, &Reply::PullPooled(reply));
            }
            Request::Push(push) => {
                let table = self.table_of(push.table, push.dim)?;
                let mut applied = self.memory.applied.lock().unwrap();
                let repeated = applied.contains_key(&(push.client, push.sequence));
                if !repeated {
                    let scale = PushScale { lr_scale: push.lr_scale };
                    table
                        .push_unique(push.keys, push.counts, push.grads, scale)
                        .map_err(|error| refused(&error))?;
                    applied.insert((push.client, push.sequence), ());
                    self.memory.pushes.fetch_add(1, Ordering::Relaxed);
                }
                drop(applied);
                self.reply(id, &Reply::Push(Pushed { repeated }));
            }
            Request::Feed(feed) => {
                self.table(feed.table)?;
                let of = (feed.table, feed.batch, feed.feature);
                self.memory.batches.lock().unwrap().insert(of, fed::Kept::of(feed));
                self.reply(id, &Reply::Feed);
            }
            Request::PullFed(pull) => {
                let table = self.table_of(pull.table, pull.dim)?;
                let kept = self.kept((pull.table, pull.batch, pull.feature))?;
                let (rows, missing) = kept.pull(&table, pull.absent).map_err(|error| refused(&error))?;
                let words = words(kept.keys(), &missing);
                let absent = Bits::new(&words, kept.keys()).unwrap();
                let reply = PullReply { dim: pull.dim, absent, values: RowValues::F32(&rows) };
                self.reply(id, &Reply::PullFed(reply));
            }
            Request::PushFed(push) => {
                let table = self.table_of(push.table, push.dim)?;
                let mut applied = self.memory.applied.lock().unwrap();
                let repeated = applied.contains_key(&(push.client, push.sequence));
                if !repeated {
                    let of = (push.table, push.batch, push.feature);
                    let kept = self.kept(of)?;
                    kept.push(&table, push.grads, PushScale { lr_scale: push.lr_scale })
                        .map_err(|error| refused(&error))?;
                    self.memory.batches.lock().unwrap().remove(&of);
                    applied.insert((push.client, push.sequence), ());
                    self.memory.pushes.fetch_add(1, Ordering::Relaxed);
                }
                drop(applied);
                self.reply(id, &Reply::PushFed(Pushed { repeated }));
            }
            Request::Delete(delete) => {
                let table = self.table(delete.table)?;
                let gone = delete.keys.iter().filter(|key| table.remove(**key)).count();
                self.reply(id, &Reply::Delete(gone as u64));
            }
            Request::Import(import) => {
                let table = self.table(import.table)?;
                let RowBlock { keys, frequencies, last_uses, versions, weights, states, .. } = import.rows;
                let rows = WholeRows { keys, frequencies, last_uses, versions, weights, states };
                table.import(rows).map_err(|error| refused(&error))?;
                self.reply(id, &Reply::Import(keys.len() as u64));
            }
            Request::Export(export) => {
                let table = self.table(export.table)?;
                let mut all = Vec::new();
                table.for_each_row(|row| all.push(table.get(row.key).unwrap()));
                let rows = all.iter().skip(export.cursor as usize).take(export.rows_max as usize);
                let done = export.cursor as usize + rows.len();
                let numbers =
                    |of: fn(&sanderling_store::Row) -> u32| rows.clone().map(of).collect::<Vec<_>>();
                let block = RowBlock {
                    dim: table.dim() as u32,
                    state: table.config().state() as u32,
                    keys: &rows.clone().map(|row| row.key).collect::<Vec<_>>(),
                    frequencies: &numbers(|row| row.frequency),
                    last_uses: &numbers(|row| row.last_use),
                    versions: &numbers(|row| row.version),
                    weights: &rows.clone().flat_map(|row| row.weights.clone()).collect::<Vec<_>>(),
                    states: &rows.clone().flat_map(|row| row.state.clone()).collect::<Vec<_>>(),
                };
                let next = Some(done as u64).filter(|_| done < all.len());
                self.reply(id, &Reply::Export(Exported { next, rows: block }));
            }
            Request::SaveAs(_) | Request::Restore(_) if self.memory.has_no_disk.load(Ordering::Relaxed) => {
                return Err((Fault::Io { os_error: 28 }, "no space".to_owned()));
            }
            Request::SaveAs(save) => {
                std::thread::sleep(Duration::from_millis(self.memory.save_ms.load(Ordering::Relaxed)));
                self.memory.saves.lock().unwrap().insert(save.name.to_owned(), save.number);
                self.reply(id, &Reply::SaveAs(wire::Saved { generation: 1, rows: 2, bytes: 3 }));
            }
            Request::Saved(name) => {
                let number = self.memory.saves.lock().unwrap().get(*name).copied();
                let number = number.ok_or_else(|| (Fault::UnknownCheckpoint, (*name).to_owned()))?;
                self.reply(id, &Reply::Saved(number));
            }
            Request::Restore(_) => {
                self.memory.restores.fetch_add(1, Ordering::Relaxed);
                self.reply(id, &Reply::Restore(wire::Restored { tables: 1, rows: 2 }));
            }
            other => return Err((Fault::BadRequest, format!("{} is not for this server", other.kind()))),
        }
        Ok(())
    }
}
