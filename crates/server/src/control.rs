//! A handle on a running server for whoever operates it. Knows neither a protocol nor a command line.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use sanderling_store::TableStats;
use sanderling_wire::{Home, Restored, Saved, StatsScope};

use crate::LatencySummary;
use crate::connections::ConnectionStatus;
use crate::refusal::Refusal;
use crate::state::State;
use crate::worker::Mailbox;

/// A handle; copies are of the same server.
#[derive(Clone)]
pub struct Control {
    pub(crate) state: Arc<State>,
    pub(crate) workers: Arc<[Mailbox]>,
    pub(crate) ending: Arc<Ending>,
}

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
            serving: !state.is_draining(),
            shard: state.placement.shard,
            shards: state.placement.shards,
            uptime: state.started.elapsed(),
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
            stats: entry.table.stats(),
            config: entry.config.clone(),
        };
        directory.entries.iter().map(status).collect()
    }

    /// Who is connected, oldest first.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        self.state.connections.list()
    }

    /// How long requests took at the server, by command, or by peer and command.
    #[must_use]
    pub fn stats(&self, scope: StatsScope) -> Vec<(String, LatencySummary)> {
        self.state.latencies(scope)
    }

    /// Makes a table, or finds the one of this name and configuration (JSON); its number.
    ///
    /// # Errors
    /// As those of the request of this name.
    pub fn create(&self, name: &str, home: Home, config: &str) -> Result<u32, Refusal> {
        Ok(self.state.create(name, home, config)?.number)
    }

    /// Saves all tables under a name, while requests go on.
    ///
    /// # Errors
    /// The name is impossible, or writing failed; then what was saved before is intact.
    pub fn save(&self, name: &str) -> Result<Saved, Refusal> {
        self.state.save(name)
    }

    /// Puts the tables of a checkpoint in the place of all. Their numbers are new.
    ///
    /// # Errors
    /// There is no such checkpoint, or it is damaged; then the tables stay as they are.
    pub fn restore(&self, name: &str) -> Result<Restored, Refusal> {
        self.state.restore(name)
    }

    /// Drops a table.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn drop_table(&self, name: &str) -> Result<(), Refusal> {
        self.state.drop_table(name)
    }

    /// Asks the server to answer what is under way, save, and end. Returns at once.
    pub fn drain(&self) {
        self.ending.ask();
    }
}
