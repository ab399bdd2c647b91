//! An opened table as requests need it: its shape, and the number by which each server knows it. Asks nothing.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use sanderling_store::StoreError;
use sanderling_wire::{Home, TableInfo};

use crate::by_server::ByServer;
use crate::error::ClientError;
use crate::rpc_state::{Needs, Peer};

/// An opened table: its name, its shape and its number on each server. Sessions make their requests about it. Copies share
/// the numbers.
#[derive(Debug, Clone)]
pub struct OpenTable {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    home: Home,
    dim: usize,
    state: usize,
    /// Configuration as the servers have it, JSON.
    config: String,
    /// Numbers of servers that have a part of it. Those of groups that get their first slots later are added.
    numbers: ByServer<NumberThere>,
}

/// A table's number at one server.
#[derive(Debug, Default)]
struct NumberThere {
    /// The number and the history of the server that it is good for; nothing where the table has no rows.
    number: OnceLock<Number>,
    /// The number for reading requests: that of the table that has the name now.
    read: AtomicU32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Number {
    pub(crate) table: u32,
    /// The need of requests with the number.
    pub(crate) needs: Needs,
    /// The need of requests about the memory of the server's process.
    pub(crate) needs_memory: Needs,
}

impl Number {
    /// A table's number as a server has just told it.
    pub(crate) fn of(table: u32, peer: &Peer) -> Number {
        Number { table, needs: peer.tables(), needs_memory: peer.memory() }
    }
}

impl OpenTable {
    /// A table as a server describes it, without numbers.
    pub(crate) fn of(info: &TableInfo<'_>) -> OpenTable {
        let shared = Shared {
            name: info.name.to_owned(),
            home: info.home,
            dim: info.dim as usize,
            state: info.state as usize,
            config: info.config.to_owned(),
            numbers: ByServer::default(),
        };
        OpenTable { shared: Arc::new(shared) }
    }

    /// Adds the table's number at a server, unless it has one.
    pub(crate) fn add_number(&self, server: usize, number: Number) {
        let there = self.shared.numbers.at(server);
        there.number.get_or_init(|| {
            there.read.store(number.table, Ordering::Relaxed);
            number
        });
    }

    /// Whether both have the same shape and configuration.
    pub(crate) fn is_like(&self, other: &OpenTable) -> bool {
        let of = |table: &OpenTable| (table.home(), table.dim(), table.state());
        of(self) == of(other) && self.config_json() == other.config_json()
    }

    /// Whether one is a copy of the other.
    pub(crate) fn is_same(&self, other: &OpenTable) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Weights per row.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.shared.dim
    }

    /// Values of optimizer state per row.
    #[must_use]
    pub fn state(&self) -> usize {
        self.shared.state
    }

    /// Configuration as the servers have it: JSON, as `docs/wire-format.md` says.
    #[must_use]
    pub fn config_json(&self) -> &str {
        &self.shared.config
    }

    pub(crate) fn home(&self) -> Home {
        self.shared.home
    }

    /// The servers that have told a number.
    pub(crate) fn servers(&self) -> impl Iterator<Item = usize> {
        self.shared.numbers.iter().filter(|(_, there)| there.number.get().is_some()).map(|(server, _)| server)
    }

    /// The number by which a server knows the table, if it has told one.
    #[inline]
    pub(crate) fn told_number(&self, server: usize) -> Option<Number> {
        self.shared.numbers.get(server)?.number.get().copied()
    }

    /// The number by which a server knows the table; 0, which is none, on one that has no part of it.
    #[inline]
    pub(crate) fn number(&self, server: usize) -> Number {
        self.told_number(server).unwrap_or_default()
    }

    /// The number of the table that has the name now, for requests that only read.
    #[inline]
    pub(crate) fn read_number(&self, server: usize) -> u32 {
        self.shared.numbers.get(server).map_or(0, |there| there.read.load(Ordering::Relaxed))
    }

    /// Sets [`OpenTable::read_number`].
    pub(crate) fn read_from(&self, server: usize, table: u32) {
        self.shared.numbers.at(server).read.store(table, Ordering::Relaxed);
    }

    /// An error unless an argument is as long as it must be.
    pub(crate) fn length(
        &self,
        what: &'static str,
        expected: usize,
        found: usize,
    ) -> Result<(), ClientError> {
        if expected == found {
            return Ok(());
        }
        Err(StoreError::Length { table: self.name().to_owned(), what, expected, found }.into())
    }
}
