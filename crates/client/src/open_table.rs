//! An opened table as requests need it: its shape, and the number by which each server knows it. Asks nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sanderling_store::StoreError;
use sanderling_wire::{Home, TableInfo};

use crate::error::ClientError;
use crate::rpc_state::{Needs, Peer};

/// An opened table: its name, its shape and its number on each server. Sessions make their requests about it.
#[derive(Debug)]
pub struct OpenTable {
    name: Arc<str>,
    home: Home,
    dim: usize,
    state: usize,
    /// Configuration as the servers have it, JSON.
    config: String,
    /// Per server, the table's number and the history of the server that it is good for; `None` where the table has no
    /// rows.
    numbers: Vec<Option<Number>>,
    /// The numbers for reading requests: those of the table that has the name now.
    read_numbers: Vec<AtomicU32>,
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
        OpenTable {
            name: info.name.into(),
            home: info.home,
            dim: info.dim as usize,
            state: info.state as usize,
            config: info.config.to_owned(),
            numbers: Vec::new(),
            read_numbers: Vec::new(),
        }
    }

    /// Adds the table's number on each server.
    pub(crate) fn with_numbers(self, numbers: Vec<Option<Number>>) -> OpenTable {
        let table = |number: &Option<Number>| AtomicU32::new(number.map_or(0, |number| number.table));
        OpenTable { read_numbers: numbers.iter().map(table).collect(), numbers, ..self }
    }

    /// Whether both have the same shape and configuration.
    pub(crate) fn is_like(&self, other: &OpenTable) -> bool {
        (self.home, self.dim, self.state, &self.config) == (other.home, other.dim, other.state, &other.config)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// Weights per row.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Values of optimizer state per row.
    #[must_use]
    pub fn state(&self) -> usize {
        self.state
    }

    /// Configuration as the servers have it: JSON, as `docs/wire-format.md` says.
    #[must_use]
    pub fn config_json(&self) -> &str {
        &self.config
    }

    pub(crate) fn home(&self) -> Home {
        self.home
    }

    /// The servers that have a part of it.
    pub(crate) fn servers(&self) -> impl Iterator<Item = usize> {
        (0..self.numbers.len()).filter(|&server| self.numbers[server].is_some())
    }

    /// The number by which a server knows the table; 0, which is none, on one that has no part of it.
    pub(crate) fn number(&self, server: usize) -> Number {
        self.numbers[server].unwrap_or_default()
    }

    /// The number of the table that has the name now, for requests that only read.
    pub(crate) fn read_number(&self, server: usize) -> u32 {
        self.read_numbers.get(server).map_or(0, |number| number.load(Ordering::Relaxed))
    }

    /// Sets [`OpenTable::read_number`].
    pub(crate) fn read_from(&self, server: usize, table: u32) {
        self.read_numbers[server].store(table, Ordering::Relaxed);
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
