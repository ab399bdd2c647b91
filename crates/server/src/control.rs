//! A handle on a running server for whoever operates it. Knows neither a protocol nor a command line.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sanderling_store::TableStats;
use sanderling_transport::Connection;
use sanderling_wire::{Fault, Features, Home, Restored, Saved, StatsScope, same_token};

use crate::checkpoints::{CheckpointStatus, Checkpoints};
use crate::connections::ConnectionStatus;
use crate::errand;
use crate::event::{Event, Log};
use crate::logins::Plane;
use crate::refusal::Refusal;
use crate::state::{State, unix_ms};
use crate::statistics::CommandLatency;
use crate::worker::{Letter, Mailbox};

/// A handle; copies are of the same server.
#[derive(Clone)]
pub struct Control {
    pub(crate) state: Arc<State>,
    pub(crate) workers: Arc<[Mailbox]>,
    pub(crate) ending: Arc<Ending>,
    pub(crate) log: Log,
    /// Where the server listens.
    pub(crate) addresses: Arc<[String]>,
    /// Names of this server.
    pub(crate) hosts: Arc<[String]>,
    /// Counts connections: whose turn it is to have one.
    pub(crate) next: Arc<AtomicUsize>,
}

/// What is offered to who does not share memory.
pub(crate) const REMOTE_FEATURES: Features =
    Features(Features::F16_ROWS.0 | Features::LZ4.0 | Features::ZSTD.0);

impl std::fmt::Debug for Control {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Control").field("server", &self.state.name()).finish_non_exhaustive()
    }
}

/// Whether the server was asked to end, for the thread that waits for it.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    asked: Mutex<bool>,
    changed: Condvar,
}

impl Ending {
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

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Does it take new work?
    pub serving: bool,
    /// Which shard it is.
    pub shard: u16,
    /// Of how many.
    pub shards: u16,
    /// Since its start.
    pub uptime: Duration,
    /// Where it listens, as URLs.
    pub addresses: Vec<String>,
    /// Has it a folder for checkpoints?
    pub saves: bool,
    /// Why the last attempt to save failed; empty: it did not, or there was none.
    pub save_failure: String,
    /// Everything that is one number, with its name.
    pub counters: Vec<(&'static str, u64)>,
}

/// What a server says of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableStatus {
    /// Number by which requests name it.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// The server that has all of it; none when it is sharded.
    pub pinned: Option<u32>,
    /// Weights per row.
    pub dim: u32,
    /// Values of optimizer state per row.
    pub state: u32,
    /// Since it was made; none: that is not known.
    pub age: Option<Duration>,
    /// Whether no checkpoint has it.
    pub temporary: bool,
    /// Its sizes.
    pub stats: TableStats,
    /// Its configuration, as JSON.
    pub config: String,
}

impl Control {
    /// How the server is.
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

    /// Its tables.
    #[must_use]
    pub fn tables(&self) -> Vec<TableStatus> {
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
            stats: entry.table.stats(),
            config: entry.config.clone(),
        };
        directory.entries.iter().map(status).collect()
    }

    /// Its checkpoints, ascending by name.
    #[must_use]
    pub fn checkpoints(&self) -> Vec<CheckpointStatus> {
        self.state.checkpoints.as_ref().map(Checkpoints::count).unwrap_or_default()
    }

    /// Who is connected, oldest first.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        self.state.connections.list()
    }

    /// How long requests took at the server, by command, or by peer and command.
    #[must_use]
    pub fn stats(&self, scope: StatsScope) -> Vec<CommandLatency> {
        self.state.statistics.latencies(scope)
    }

    /// May somebody who says this token, or none, ask for anything?
    #[must_use]
    pub fn admits(&self, token: Option<&str>) -> bool {
        match &self.state.token {
            Some(secret) => same_token(secret, token.unwrap_or_default()),
            None => true,
        }
    }

    /// Must a client say a token?
    #[must_use]
    pub fn has_token(&self) -> bool {
        self.state.token.is_some()
    }

    /// Takes note of a client of the control plane that [`Control::admits`] has refused.
    pub fn refused_login(&self, peer: &str) {
        self.state.logins.refused(Plane::Control, peer, &self.log);
    }

    /// Is that a name of this server, by which its clients may call it?
    #[must_use]
    pub fn knows_host(&self, host: &str) -> bool {
        self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host))
    }

    /// Is it asked to end, or about to?
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.state.is_draining() || self.ending.is_asked()
    }

    /// What changes tables is refused once the last checkpoint may have begun.
    fn check_serving(&self) -> Result<(), Refusal> {
        match self.is_ending() {
            true => Err(Refusal::new(Fault::Draining, "the server is about to stop")),
            false => Ok(()),
        }
    }

    /// Makes a table, or finds the one of this name and configuration (JSON); its number.
    ///
    /// # Errors
    /// As those of the request of this name.
    pub fn create(&self, name: &str, home: Home, config: &str) -> Result<u32, Refusal> {
        self.check_serving()?;
        Ok(self.state.create(name, home, config)?.number)
    }

    /// Saves all tables but temporary ones under a name, while requests go on. By the number saves of one name are told from each other; 0: none.
    ///
    /// # Errors
    /// The name is impossible, or writing failed; then what was saved before is intact. The server is about to stop: then
    /// it saves by itself.
    pub fn save(&self, name: &str, number: u64) -> Result<Saved, Refusal> {
        self.check_serving()?;
        let result = self.state.save(name, number);
        self.log.say(errand::saved(name, result.clone()));
        result
    }

    /// The number of the save of this name.
    ///
    /// # Errors
    /// There is no such checkpoint, or it is damaged.
    pub fn saved(&self, name: &str) -> Result<u64, Refusal> {
        self.state.saved(name)
    }

    /// Puts the tables of a checkpoint in the place of all. Their numbers are new.
    ///
    /// # Errors
    /// There is no such checkpoint, or it is damaged; then the tables stay as they are.
    pub fn restore(&self, name: &str) -> Result<Restored, Refusal> {
        self.check_serving()?;
        let restored = self.state.restore(name)?;
        self.log.say(Event::Restored { name: name.to_owned(), rows: restored.rows });
        Ok(restored)
    }

    /// Drops a table.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn drop_table(&self, name: &str) -> Result<(), Refusal> {
        self.check_serving()?;
        self.state.drop_table(name)?;
        self.log.say(Event::Dropped { table: name.to_owned() });
        Ok(())
    }

    /// Hands a connection to the workers in their turn. `false`: there are too many, and it is closed.
    pub(crate) fn join(&self, mut connection: Connection, features: Features) -> bool {
        let Some(presence) = self.state.connections.enter(connection.peer(), Instant::now()) else {
            return false;
        };
        connection.receiver.share_memory(&self.state.receiving);
        let worker = self.next.fetch_add(1, Ordering::Relaxed) % self.workers.len();
        let connection = Box::new(connection);
        self.workers[worker].post(Letter::Join { connection, presence, features });
        true
    }

    /// Asks the server to answer what is under way, save, and end. Returns at once.
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
    use crate::limit::{CONNECTIONS_MAX, HELLO_WITHIN, SURPLUS_MAX};
    use crate::listen::framing;
    use crate::{Config, Server};

    /// Far longer than anything takes that goes well.
    const LONG: Duration = Duration::from_secs(60);

    /// Is a request answered? Not if the connection has ended, or the server is busy.
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
        let open_max = CONNECTIONS_MAX + SURPLUS_MAX;
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
        // Who had to make room is closed, not only counted less.
        while connections.len() > CONNECTIONS_MAX {
            in_time();
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
