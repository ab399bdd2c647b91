//! Where the tables are that a load is for: in this process, on servers, or nowhere. Made once; every thread gets a port of
//! its own. Knows not what is asked.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sanderling_client::{Cluster, ConnectOptions};
use sanderling_store::{Maintenance, Table, TableConfig};

use crate::port::Port;
use crate::request::Failure;

pub(crate) mod failure;
use failure::failure;

/// The address of tables in this process, which live as long as the target.
pub const EMBEDDED: &str = "embedded:";
/// The address of no tables at all: every request is answered at once. What is left is the cost of making requests.
pub const NOWHERE: &str = "nowhere:";

/// See the top of this file.
#[derive(Debug, Clone)]
pub struct Target {
    address: String,
    place: Place,
    /// Within which a request to its servers is answered or has failed.
    timeout: Duration,
    /// Are tables that are made on its servers temporary?
    temporary: bool,
}

#[derive(Debug, Clone)]
enum Place {
    Embedded(Arc<Embedded>),
    Cluster(Arc<Cluster>),
    Nowhere,
}

/// The tables of this process, maintained as those of a server are.
#[derive(Debug)]
pub(crate) struct Embedded {
    tables: Arc<Mutex<Vec<Arc<Table>>>>,
    _maintenance: Maintenance,
}

impl Embedded {
    fn new() -> Result<Embedded, Failure> {
        let tables: Arc<Mutex<Vec<Arc<Table>>>> = Arc::default();
        let maintained = Arc::clone(&tables);
        let all = move |maintain: &mut dyn FnMut(&Table)| {
            let tables = maintained.lock().unwrap_or_else(PoisonError::into_inner).clone();
            tables.iter().for_each(|table| maintain(table));
        };
        let maintenance = Maintenance::start(all).map_err(|error| {
            let reason = format!("no thread to maintain the tables: {error}");
            Failure { kind: "no_thread", reason }
        })?;
        Ok(Embedded { tables, _maintenance: maintenance })
    }

    fn tables(&self) -> MutexGuard<'_, Vec<Arc<Table>>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn create(&self, config: &TableConfig) -> Result<Arc<Table>, Failure> {
        let mut tables = self.tables();
        if let Some(table) = tables.iter().find(|table| table.name() == config.name) {
            if table.config() != config {
                let reason = format!(
                    "table {:?} is there with another configuration; give it another name",
                    config.name
                );
                return Err(Failure { kind: "table_exists", reason });
            }
            return Ok(Arc::clone(table));
        }
        let table = Arc::new(Table::new(config.clone()).map_err(|error| failure(&error.into()))?);
        tables.push(Arc::clone(&table));
        Ok(table)
    }

    pub(crate) fn open(&self, name: &str) -> Result<Arc<Table>, Failure> {
        let tables = self.tables();
        let found = tables.iter().find(|table| table.name() == name);
        found.map(Arc::clone).ok_or_else(|| {
            let reason = format!("table {name:?}: there is none; make it with the script's `schema`");
            Failure { kind: "unknown_table", reason }
        })
    }
}

impl Target {
    /// Reaches what is at an address: `embedded:`, `nowhere:`, or those of all shards of a cluster, separated by commas.
    pub fn connect(address: &str, options: ConnectOptions) -> Result<Target, Failure> {
        let timeout = options.timeout;
        let place = match address {
            EMBEDDED => Place::Embedded(Arc::new(Embedded::new()?)),
            NOWHERE => Place::Nowhere,
            _ => {
                let cluster = Cluster::of(address, options);
                Place::Cluster(cluster.map_err(|error| failure(&error))?)
            }
        };
        Ok(Target { address: address.to_owned(), place, timeout, temporary: false })
    }

    /// The target with temporary tables on its servers, which no checkpoint contains.
    #[must_use]
    pub fn with_temporary_tables(self) -> Target {
        Target { temporary: true, ..self }
    }

    /// The address as it was given.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Time-out of requests to its servers.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The ways over which its servers are talked to; none when there are no servers.
    #[must_use]
    pub fn ways(&self) -> Vec<String> {
        let ways = self.cluster().into_iter().flat_map(|cluster| cluster.servers());
        ways.map(|server| server.way.to_string()).collect()
    }

    /// Its servers.
    #[must_use]
    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        match &self.place {
            Place::Cluster(cluster) => Some(cluster),
            Place::Embedded(_) | Place::Nowhere => None,
        }
    }

    /// Is nothing there?
    #[must_use]
    pub fn is_nowhere(&self) -> bool {
        matches!(self.place, Place::Nowhere)
    }

    /// One thread's way to it.
    pub fn port(&self) -> Result<Port, Failure> {
        match &self.place {
            Place::Embedded(tables) => Ok(Port::embedded(tables)),
            Place::Cluster(cluster) => Port::remote(cluster, self.temporary).map_err(|error| failure(&error)),
            Place::Nowhere => Ok(Port::nowhere()),
        }
    }

    /// Rows of a table; `None` if there is no such table.
    pub fn rows(&self, table: &str) -> Result<Option<u64>, Failure> {
        let found = match &self.place {
            Place::Embedded(tables) => tables.open(table).map(|table| table.len() as u64),
            Place::Cluster(cluster) => sanderling_client::RemoteTable::open(cluster, table)
                .and_then(|table| table.size())
                .map(|(rows, _)| rows)
                .map_err(|error| failure(&error)),
            Place::Nowhere => return Ok(None),
        };
        match found {
            Ok(rows) => Ok(Some(rows)),
            Err(Failure { kind: "unknown_table", .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
