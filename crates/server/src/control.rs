//! A handle on a running server for its operator. It knows neither a protocol nor a command line.

mod group;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sanderling_observe::{LatencySummary, Parts};
use sanderling_replica::SlotWork;
use sanderling_store::{RowSample, Table, TableStats};
use sanderling_transport::Connection;
use sanderling_wire::{Fault, Features, Home, Restored, StatsScope, same_token};

use crate::background;
use crate::checkpoints::{CheckpointStatus, Checkpoints, SaveMode, SaveReport};
use crate::clock::unix_ms;
use crate::connections::ConnectionStatus;
use crate::delta_log::DeltaLog;
use crate::event::{Event, Log};
use crate::gather::GatherStatus;
use crate::key_shares::KeyShares;
use crate::logins::Plane;
use crate::refusal::Refusal;
use crate::state::State;
use crate::statistics::CommandLatency;
use crate::traces::{HotKeyList, RequestTrace};
use crate::worker::{WorkerHandle, WorkerMsg};

/// A handle on a running server. Copies share the server.
#[derive(Clone)]
pub struct Control {
    pub(crate) state: Arc<State>,
    pub(crate) workers: Arc<[WorkerHandle]>,
    pub(crate) ending: Arc<ShutdownRequest>,
    pub(crate) log: Log,
    /// Addresses of the data plane.
    pub(crate) addresses: Arc<[String]>,
    /// Host names of this server.
    pub(crate) hosts: Arc<[String]>,
    /// Counts connections, to hand them to the workers in turn.
    pub(crate) next: Arc<AtomicUsize>,
}

/// Features that the server offers to clients that do not share memory with it.
pub(crate) const REMOTE_FEATURES: Features =
    Features(Features::F16_ROWS.0 | Features::LZ4.0 | Features::ZSTD.0);

impl std::fmt::Debug for Control {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Control").field("server", &self.state.name()).finish_non_exhaustive()
    }
}

/// The request to shut down, for the thread that waits for it.
#[derive(Debug, Default)]
pub(crate) struct ShutdownRequest {
    asked: Mutex<bool>,
    changed: Condvar,
}

impl ShutdownRequest {
    pub(crate) fn ask(&self) {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    fn is_asked(&self) -> bool {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait(&self) {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(asked, |asked| !*asked));
    }
}

/// The state of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Name of the server.
    pub name: String,
    /// Whether it accepts new work.
    pub serving: bool,
    /// Index of its shard.
    pub shard: u16,
    /// Number of shards.
    pub shards: u16,
    /// Time since its start.
    pub uptime: Duration,
    /// Addresses of the data plane, as URLs.
    pub addresses: Vec<String>,
    /// Whether it has a folder for checkpoints.
    pub saves: bool,
    /// Why the last save failed. Empty: it succeeded, or there was none.
    pub save_failure: String,
    /// Named counters.
    pub counters: Vec<(&'static str, u64)>,
}

/// The state of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableStatus {
    /// Number that requests of the data plane use.
    pub number: u32,
    /// Name of the table.
    pub name: String,
    /// The server that holds all rows. None: the table is sharded.
    pub pinned: Option<u32>,
    /// Weights per row.
    pub dim: u32,
    /// Optimizer state values per row.
    pub state: u32,
    /// Time since it was created. None: unknown.
    pub age: Option<Duration>,
    /// Whether checkpoints leave it out.
    pub temporary: bool,
    /// Sizes and counters.
    pub stats: TableStats,
    /// The gatherer of its rows for pulls by RDMA.
    pub gather: GatherStatus,
    /// Configuration, as JSON.
    pub config: String,
}

impl Control {
    /// The state of the server.
    #[must_use]
    pub fn status(&self) -> Status {
        let state = &self.state;
        Status {
            name: state.name().to_owned(),
            serving: !self.is_ending(),
            shard: state.placement.shard,
            shards: state.placement.shards,
            uptime: state.started.elapsed(),
            addresses: self.addresses.to_vec(),
            saves: state.checkpoints.is_some(),
            save_failure: state.save_failure(),
            counters: state.counters(),
        }
    }

    /// The tables of the server.
    #[must_use]
    pub fn tables(&self) -> Vec<TableStatus> {
        self.tables_with(Table::stats)
    }

    /// The tables of the server, without the number of their huge pages, which takes long to count.
    #[must_use]
    pub fn quick_tables(&self) -> Vec<TableStatus> {
        self.tables_with(Table::quick_stats)
    }

    fn tables_with(&self, stats: fn(&Table) -> TableStats) -> Vec<TableStatus> {
        let directory = self.state.tables.directory();
        let status = |entry: &Arc<crate::tables::Entry>| TableStatus {
            number: entry.number,
            name: entry.table.name().to_owned(),
            pinned: match entry.home {
                Home::Sharded => None,
                Home::Pinned(server) => Some(server),
            },
            dim: entry.dim(),
            state: entry.state,
            age: (entry.created_unix_ms > 0)
                .then(|| Duration::from_millis(unix_ms().saturating_sub(entry.created_unix_ms))),
            temporary: entry.temporary,
            stats: stats(&entry.table),
            gather: entry.gather.status(&self.state.cards),
            config: entry.config.clone(),
        };
        directory.entries.iter().map(status).collect()
    }

    /// The checkpoints of the server, ascending by name.
    #[must_use]
    pub fn checkpoints(&self) -> Vec<CheckpointStatus> {
        self.state.checkpoints.as_ref().map(Checkpoints::count).unwrap_or_default()
    }

    /// The open connections, oldest first.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        self.state.connections.list()
    }

    /// Latencies of requests, by command or by peer and command.
    #[must_use]
    pub fn stats(&self, scope: StatsScope) -> Vec<CommandLatency> {
        self.state.statistics.latencies(scope)
    }

    /// Sampled and slow requests, the latest first.
    #[must_use]
    pub fn traces(&self) -> Vec<RequestTrace> {
        self.state.traces.list()
    }

    /// One in this many requests is sampled. 0: none.
    #[must_use]
    pub fn sample_every(&self) -> u32 {
        self.state.traces.settings.every.load(Ordering::Relaxed)
    }

    /// Samples one in this many requests from now on. 0: none.
    pub fn set_sample_every(&self, every: u32) {
        self.state.traces.settings.every.store(every, Ordering::Relaxed);
        self.log.report(Event::OptionSet { name: "sample-every", value: every.to_string() });
    }

    /// Time from which on a request is slow. Zero: none is.
    #[must_use]
    pub fn slow(&self) -> Duration {
        Duration::from_micros(self.state.traces.settings.slow_us.load(Ordering::Relaxed))
    }

    /// Lists requests as slow that take this long, from now on. Zero: none.
    pub fn set_slow(&self, slow: Duration) {
        let us = u64::try_from(slow.as_micros()).unwrap_or(u64::MAX);
        self.state.traces.settings.slow_us.store(us, Ordering::Relaxed);
        self.log.report(Event::OptionSet { name: "slow", value: format!("{us}us") });
    }

    /// The keys that occur most in sampled requests.
    #[must_use]
    pub fn hot_keys(&self) -> HotKeyList {
        self.state.traces.hot_keys()
    }

    /// Requests, and the keys of sampled ones by slot, of a server in a cluster.
    #[must_use]
    pub fn slot_work(&self) -> SlotWork {
        self.state.traces.slot_work()
    }

    /// Samples of the rows of all tables, by number, at most some seconds old; of many tables some are older.
    #[must_use]
    pub fn row_samples(&self) -> HashMap<u32, RowSample> {
        let directory = self.state.tables.directory();
        self.state.row_samples.retain(&directory.entries);
        self.state.row_samples.look(&directory.entries)
    }

    /// A sample of the rows of a table, by its number.
    #[must_use]
    pub fn row_sample(&self, number: u32) -> Option<RowSample> {
        let directory = self.state.tables.directory();
        let entry = directory.entries.iter().find(|entry| entry.number == number)?;
        self.state.row_samples.look(std::slice::from_ref(entry)).remove(&number)
    }

    /// Sampled keys of requests, by the number of the table.
    #[must_use]
    pub fn key_shares(&self) -> HashMap<u32, KeyShares> {
        self.state.traces.key_shares()
    }

    /// The keys of each table in the training that the restored checkpoint is of, by the name of the table.
    pub fn trained_keys(&self) -> impl Fn(&str) -> Option<Parts> + use<> {
        let trained = self.state.checkpoints.as_ref().map(Checkpoints::trained).unwrap_or_default();
        move |table| trained.of(table)
    }

    /// The times in which groups of the delta log were synced, on a server that has one.
    #[must_use]
    pub fn log_syncs(&self) -> Option<LatencySummary> {
        self.state.log.as_ref().map(DeltaLog::syncs)
    }

    /// Whether the server admits a client with this token.
    #[must_use]
    pub fn admits(&self, token: Option<&str>) -> bool {
        match &self.state.token {
            Some(secret) => same_token(secret, token.unwrap_or_default()),
            None => true,
        }
    }

    /// Whether the server requires a token.
    #[must_use]
    pub fn has_token(&self) -> bool {
        self.state.token.is_some()
    }

    /// Counts and logs a refused login at the control plane.
    pub fn refused_login(&self, peer: &str) {
        self.state.logins.refused(Plane::Control, peer, &self.log);
    }

    /// Whether this is a host name of the server.
    #[must_use]
    pub fn knows_host(&self, host: &str) -> bool {
        self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host))
    }

    /// Whether the server shuts down or was asked to.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.state.is_draining() || self.ending.is_asked()
    }

    /// Refuses changes to tables once the last checkpoint may have begun.
    fn check_serving(&self) -> Result<(), Refusal> {
        match self.is_ending() {
            true => Err(Refusal::new(Fault::Draining, "the server is about to stop")),
            false => Ok(()),
        }
    }

    /// Creates a table, or finds the table with this name and configuration (JSON). Returns its number.
    ///
    /// # Errors
    /// As those of the `create` request.
    pub fn create(&self, name: &str, home: Home, config: &str) -> Result<u32, Refusal> {
        self.check_serving()?;
        Ok(self.state.create(name, home, config)?.number)
    }

    /// Saves all tables except temporary ones, or their changes since the last save of this name. `number` identifies a
    /// save of several servers; 0 if there is none.
    ///
    /// # Errors
    /// The name is invalid, or writing failed: the previous checkpoint is intact then. A server that shuts down
    /// refuses.
    pub fn save(&self, name: &str, number: u64, mode: SaveMode) -> Result<SaveReport, Refusal> {
        self.check_serving()?;
        let result = self.state.save(name, number, mode);
        self.log.report(background::saved(name, result.clone()));
        result
    }

    /// The save number of a checkpoint.
    ///
    /// # Errors
    /// There is no such checkpoint, or it is damaged.
    pub fn saved(&self, name: &str) -> Result<u64, Refusal> {
        self.state.saved(name)
    }

    /// Replaces all tables by those of a checkpoint. The tables get new numbers.
    ///
    /// # Errors
    /// There is no such checkpoint, or it is damaged: the tables stay as they are then.
    pub fn restore(&self, name: &str) -> Result<Restored, Refusal> {
        self.check_serving()?;
        let restored = self.state.restore(name)?;
        self.log.report(Event::Restored { name: name.to_owned(), rows: restored.rows });
        Ok(restored)
    }

    /// Drops a table.
    ///
    /// # Errors
    /// There is no table of this name.
    pub fn drop_table(&self, name: &str) -> Result<(), Refusal> {
        self.check_serving()?;
        self.state.drop_table(name)?;
        self.log.report(Event::Dropped { table: name.to_owned() });
        Ok(())
    }

    /// Hands a connection to the next worker. `false`: there are too many connections, and it is closed.
    pub(crate) fn join(&self, mut connection: Connection, features: Features) -> bool {
        let Some(entry) = self.state.connections.enter(connection.peer(), Instant::now()) else {
            return false;
        };
        connection.receiver.share_memory(&self.state.receiving);
        let worker = self.next.fetch_add(1, Ordering::Relaxed) % self.workers.len();
        let connection = Box::new(connection);
        self.workers[worker].send(WorkerMsg::Join { connection, entry, features });
        true
    }

    /// Requests a shutdown: answer pending requests, save, end. Returns at once.
    pub fn drain(&self) {
        self.ending.ask();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::net::TcpStream;

    use sanderling_transport::{Address, ConnectOptions, connect};
    use sanderling_wire::{Agreed, Buffer, Frame, Hello, Offer, Parsed, Ping, Reply, Request};

    use super::*;
    use crate::limit::{CONNECTIONS_MAX, HELLO_WITHIN, OVER_LIMIT_MAX};
    use crate::listen::framing;
    use crate::{Config, Server};

    /// Longer than any operation of a passing test takes.
    const LONG: Duration = Duration::from_secs(60);

    /// Whether a request gets a reply other than "busy".
    fn is_answered(connection: &mut Connection, request: &Request<'_>, agreed: &mut Agreed) -> bool {
        let mut bytes = Buffer::new(1 << 16);
        bytes.append(|out| request.encode(agreed, 9, 0, out)).expect("it fits");
        let Ok(slot) = connection.sender.frame(bytes.len()) else { return false };
        slot.write(bytes.bytes());
        if connection.sender.flush().is_err() {
            return false;
        }
        let Ok(Some(reply)) = connection.receiver.receive(Some(Instant::now() + LONG)) else { return false };
        let Parsed::Frame(frame) = Frame::parse(reply, agreed).expect("a frame") else { panic!("not whole") };
        match Reply::decode(&frame).expect("a reply") {
            Reply::Hello(said) => *agreed = said.agreed,
            Reply::Failed(failure) => {
                assert!(matches!(failure.fault, Fault::Busy { .. }), "{failure:?}");
                return false;
            }
            _ => {}
        }
        true
    }

    #[test]
    fn who_says_nothing_takes_neither_all_descriptors_nor_all_places() {
        let listen = vec!["127.0.0.1:0".parse().expect("an address")];
        let token = Some("secret".to_owned());
        let config = Config { listen, local: false, workers: 2, token, ..Config::default() };
        let server = Server::start(&config, |_| {}).expect("it starts");
        let address = server.addresses()[0].clone();
        let options = ConnectOptions::new(framing(config.frame_bytes_max));
        let hello =
            Request::Hello(Hello { offer: Offer::of(Features::NONE), token: "secret", name: "known" });
        let ping = Request::Ping(Ping { reply_bytes: 0, bytes: &[] });
        let mut agreed = Agreed::BEFORE_HELLO;
        let mut known = connect(&address, &options).expect("it listens");
        assert!(is_answered(&mut known, &hello, &mut agreed));

        let Address::Tcp(endpoints) = &address else { panic!("{address} is not TCP") };
        let begun = Instant::now();
        let in_time = || assert!(begun.elapsed() < HELLO_WITHIN, "the silent ones' own time was up first");
        let silent = |_| {
            let stream = TcpStream::connect(("127.0.0.1", endpoints[0].port)).expect("it listens");
            stream.set_nonblocking(true).expect("set");
            stream
        };
        let silent: Vec<TcpStream> = (0..100).map(silent).collect();
        let control = server.control();
        let connections = &control.state.connections;
        while connections.accepted() < 101 {
            in_time();
            std::thread::sleep(Duration::from_millis(5));
        }
        let open_max = CONNECTIONS_MAX + OVER_LIMIT_MAX;
        assert!(connections.len() <= open_max, "{}", connections.len());
        let is_open = |mut stream: &TcpStream| {
            let read = stream.read(&mut [0; 64]);
            read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        while silent.iter().filter(|stream| is_open(stream)).count() > open_max {
            in_time();
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(is_answered(&mut known, &ping, &mut agreed), "it goes on");
        loop {
            let mut newcomer = connect(&address, &options).expect("it listens");
            let mut before = Agreed::BEFORE_HELLO;
            if is_answered(&mut newcomer, &hello, &mut before) {
                break;
            }
            in_time();
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(is_answered(&mut known, &ping, &mut agreed), "it has kept its place");
        // Connections without a slot are closed, not only left out of the count.
        while connections.len() > CONNECTIONS_MAX {
            in_time();
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
