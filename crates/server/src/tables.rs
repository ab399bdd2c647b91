//! The tables of a server by number and by name. The list is replaced as a whole, so that workers read a copy without
//! a lock.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sanderling_store::{Attached, Durability, Table, TableConfig, forget_kept, kept_tables};
use sanderling_wire::{Fault, Home, TableInfo, limit};
use serde::{Deserialize, Serialize};

use crate::clock::unix_ms;
use crate::description;
use crate::gather::{GatherOptions, TableGather};
use crate::history::History;
use crate::placement::Slots;
use crate::refusal::Refusal;

/// Shares of a memory limit that differ by at most this are of one limit: each share is rounded up, and again when the
/// number of shards changes.
const SHARE_BYTES_OFF_MAX: u64 = limit::SERVERS_MAX as u64;

/// A table and its description for clients.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Number of the table, the same throughout a history. It is never reused.
    pub(crate) number: u32,
    /// Placement of the rows.
    pub(crate) home: Home,
    /// Requested configuration, as JSON. The server may have limited the table further.
    pub(crate) config: String,
    /// Optimizer state values per row.
    pub(crate) state: u32,
    /// Creation time in milliseconds since 1970. 0: unknown.
    pub(crate) created_unix_ms: u64,
    /// Whether checkpoints leave it out.
    pub(crate) temporary: bool,
    /// The rows.
    pub(crate) table: Arc<Table>,
    /// The gatherer of rows for pulls by RDMA.
    pub(crate) gather: TableGather,
}

/// The properties of a table beside its rows, as replicas and kept folders have them.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableNote {
    pinned: Option<u32>,
    config: String,
    created_unix_ms: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    temporary: bool,
    /// A checkpoint is being read into it: it is not listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) restoring: bool,
}

impl Candidate {
    /// The note of its table while its rows are on their way to it, or afterwards.
    pub(crate) fn note(&self, restoring: bool) -> TableNote {
        let Candidate { home, config, created_unix_ms, temporary, .. } = self;
        let (config, created_unix_ms, temporary) = (config.clone(), *created_unix_ms, *temporary);
        TableNote { pinned: pinned(*home), config, created_unix_ms, temporary, restoring }
    }
}

impl TableNote {
    fn new(home: Home, config: String, temporary: bool) -> TableNote {
        let (created_unix_ms, restoring) = (unix_ms(), false);
        TableNote { pinned: pinned(home), config, created_unix_ms, temporary, restoring }
    }

    pub(crate) fn home(&self) -> Home {
        self.pinned.map_or(Home::Sharded, Home::Pinned)
    }

    /// The placement of the rows of a table with this note.
    pub(crate) fn home_of(text: &str) -> Home {
        serde_json::from_str(text).map_or(Home::Sharded, |note: TableNote| note.home())
    }

    pub(crate) fn to_text(&self) -> String {
        serde_json::to_string(self).expect("numbers and names become JSON")
    }
}

fn pinned(home: Home) -> Option<u32> {
    match home {
        Home::Sharded => None,
        Home::Pinned(server) => Some(server),
    }
}

/// A table that a client asks for.
pub(crate) enum Asked {
    /// It is there.
    There(Arc<Entry>),
    /// It is to be made, within the server's limits.
    New { config: Box<TableConfig>, note: TableNote },
}

impl Entry {
    /// A replica's table, in the list of these.
    pub(crate) fn of_note(number: u32, note: TableNote, table: Arc<Table>, tables: &Tables) -> Entry {
        let gather = tables.gather_of(&table);
        let (home, state) = (note.home(), table.config().state() as u32);
        let TableNote { config, created_unix_ms, temporary, .. } = note;
        Entry { number, home, config, state, created_unix_ms, temporary, table, gather }
    }

    /// Its properties beside its rows.
    pub(crate) fn note(&self) -> TableNote {
        TableNote {
            pinned: pinned(self.home),
            config: self.config.clone(),
            created_unix_ms: self.created_unix_ms,
            temporary: self.temporary,
            restoring: false,
        }
    }

    /// Weights per row.
    pub(crate) fn dim(&self) -> u32 {
        self.table.dim() as u32
    }

    pub(crate) fn info(&self) -> TableInfo<'_> {
        TableInfo {
            table: self.number,
            home: self.home,
            dim: self.dim(),
            state: self.state,
            rows: self.table.len() as u64,
            bytes: self.table.bytes(),
            name: self.table.name(),
            config: &self.config,
        }
    }
}

/// A snapshot of the table list, ascending by number.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    version: u64,
    pub(crate) entries: Vec<Arc<Entry>>,
    /// The slots of this server's group, if slots may move.
    pub(crate) slots: Option<Arc<Slots>>,
}

impl Directory {
    /// The tables that a checkpoint of this server has. Pinned tables that have moved to another group are not here any
    /// more, and those that are on their way are not here yet.
    pub(crate) fn lasting(&self) -> impl Iterator<Item = &Arc<Entry>> {
        let is_here = |entry: &&Arc<Entry>| self.slots.as_ref().is_none_or(|slots| slots.has(entry.home));
        self.entries.iter().filter(|entry| !entry.temporary).filter(is_here)
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Arc<Entry>> {
        self.entries.iter().find(|entry| entry.table.name() == name)
    }
}

/// A new or restored table without a number yet.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) home: Home,
    pub(crate) config: String,
    /// See [`Entry`].
    pub(crate) created_unix_ms: u64,
    /// See [`Entry`].
    pub(crate) temporary: bool,
    pub(crate) table: Table,
}

/// All tables of a server.
#[derive(Debug)]
pub(crate) struct Tables {
    current: Mutex<Current>,
    /// Version of the current directory.
    version: AtomicU64,
    /// Memory limit per table, in bytes. It also bounds tables whose configuration asks for more.
    budget_bytes: Option<u64>,
    /// The folder in which tables outlive this process.
    kept: Option<PathBuf>,
    durability: Durability,
    gather: GatherOptions,
    /// Gives the tables their numbers.
    pub(crate) history: History,
}

#[derive(Debug, Default)]
struct Current {
    directory: Arc<Directory>,
}

impl Tables {
    pub(crate) fn new(budget_bytes: Option<u64>) -> Tables {
        Tables {
            current: Mutex::default(),
            version: AtomicU64::new(0),
            budget_bytes,
            kept: None,
            durability: Durability::Detect,
            gather: GatherOptions::default(),
            history: History::default(),
        }
    }

    /// The tables of a server that outlive it in this folder, and survive what `durability` says.
    pub(crate) fn kept_in(self, folder: Option<PathBuf>, durability: Durability) -> Tables {
        Tables { kept: folder, durability, ..self }
    }

    /// The tables of a server, gathered like this.
    pub(crate) fn gathered_by(self, gather: GatherOptions) -> Tables {
        Tables { gather, ..self }
    }

    fn gather_of(&self, table: &Table) -> TableGather {
        TableGather::new(self.gather.of(table.name()), table)
    }

    /// Refuses tables whose rows a card is to gather and cannot.
    pub(crate) fn check_gather(&self) -> Result<(), Refusal> {
        self.directory().entries.iter().try_for_each(|entry| self.gather.check_table(&entry.table))
    }

    /// The tables of a server with this history.
    pub(crate) fn of(self, history: History) -> Tables {
        Tables { history, ..self }
    }

    /// The folder in which tables outlive this process.
    pub(crate) fn kept(&self) -> Option<&Path> {
        self.kept.as_deref()
    }

    /// Makes a table, without rows, that outlives this process if that is configured and the table is not temporary.
    pub(crate) fn make(&self, config: TableConfig, temporary: bool) -> Result<Table, Refusal> {
        match &self.kept {
            Some(folder) if !temporary => {
                // A table that the start has not attached was never completed.
                forget_kept(folder, &config.name)?;
                Ok(Table::kept_for(config, folder, "", self.durability)?.0)
            }
            _ => Ok(Table::new(config)?),
        }
    }

    /// Attaches the tables of an earlier server; returns what was found of each.
    pub(crate) fn attach(&self) -> Result<Vec<(String, Attached)>, Refusal> {
        let Some(folder) = &self.kept else { return Ok(Vec::new()) };
        let (mut candidates, mut found) = (Vec::new(), Vec::new());
        for kept in kept_tables(folder)? {
            let name = kept.config.name;
            // Without a note, a restore ended before all rows were there.
            let Ok(note) = serde_json::from_str::<TableNote>(&kept.note) else {
                forget_kept(folder, &name)?;
                continue;
            };
            let asked = description::parse(&name, &note.config)?;
            let limited = self.limited(asked);
            let (table, attached) = Table::kept_for(limited, folder, &kept.note, self.durability)?;
            let home = note.home();
            let TableNote { config, created_unix_ms, .. } = note;
            candidates.push(Candidate { home, config, created_unix_ms, temporary: false, table });
            found.push((name, attached));
        }
        self.restore(candidates);
        Ok(found)
    }

    /// Removes the tables of an earlier server; returns their names.
    pub(crate) fn forget(&self) -> Result<Vec<String>, Refusal> {
        let Some(folder) = &self.kept else { return Ok(Vec::new()) };
        // Also those that this version cannot read.
        sanderling_store::forget_all_kept(folder).map_err(Refusal::from)
    }

    pub(crate) fn directory(&self) -> Arc<Directory> {
        Arc::clone(&self.current().directory)
    }

    // The directory is replaced in one step, so it is whole even after a panic.
    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace(&self, current: &mut Current, entries: Vec<Arc<Entry>>) {
        let version = current.directory.version + 1;
        let slots = current.directory.slots.clone();
        current.directory = Arc::new(Directory { version, entries, slots });
        self.version.store(version, Ordering::Release);
    }

    /// Looks for the table with this name and configuration.
    pub(crate) fn ask(&self, name: &str, home: Home, config: &str) -> Result<Asked, Refusal> {
        self.ask_in(&self.current(), name, home, config)
    }

    fn ask_in(&self, current: &Current, name: &str, home: Home, config: &str) -> Result<Asked, Refusal> {
        let (mut asked, temporary) = description::parse_asked(name, config)?;
        let there = current.directory.named(name);
        if let (Some(entry), Home::Sharded) = (there, home)
            && let Some(kept) = description::parse(name, &entry.config)?.budget_bytes
            && asked.budget_bytes.is_some_and(|bytes| bytes.abs_diff(kept) <= SHARE_BYTES_OFF_MAX)
        {
            asked.budget_bytes = Some(kept);
        }
        let config = description::describe_as(&asked, temporary);
        if let Some(entry) = there {
            let is_same =
                entry.home == home && entry.config == description::describe_as(&asked, entry.temporary);
            // A client of a permanent table must not train a temporary one.
            if is_same && entry.temporary && !temporary {
                let reason = format!(
                    "table {name:?} is temporary: no checkpoint has it; drop it (sanderling ctl drop), or choose another name"
                );
                return Err(Refusal::new(Fault::TableExists, reason));
            }
            if is_same {
                return Ok(Asked::There(Arc::clone(entry)));
            }
            let reason = format!(
                "table {name:?} is there {} with the configuration {}; wanted is one {} with {config}; open it as it is, \
                 drop it, or choose another name",
                place(entry.home),
                entry.config,
                place(home)
            );
            return Err(Refusal::new(Fault::TableExists, reason));
        }
        let tables = current.directory.entries.len();
        if tables >= limit::TABLES_MAX {
            let reason = format!("there are {tables} tables, and no more are possible; drop some");
            return Err(Refusal::new(Fault::BadConfig, reason));
        }
        self.gather.check(&asked)?;
        let note = TableNote::new(home, config, temporary);
        Ok(Asked::New { config: Box::new(self.limited(asked)), note })
    }

    /// Creates a table, or finds the table with this name and configuration.
    pub(crate) fn create(&self, name: &str, home: Home, config: &str) -> Result<Arc<Entry>, Refusal> {
        let mut current = self.current();
        let (asked, note) = match self.ask_in(&current, name, home, config)? {
            Asked::There(entry) => return Ok(entry),
            Asked::New { config, note } => (config, note),
        };
        let mut entries = current.directory.entries.clone();
        let TableNote { config, created_unix_ms, temporary, .. } = note;
        let table = self.make(*asked, temporary)?;
        self.gather.check_table(&table).inspect_err(|_| {
            // Without a note the next start forgets it, too.
            let _ = table.forget_kept();
        })?;
        let number = self.history.number_new(name, created_unix_ms)?;
        let candidate = Candidate { home, config, created_unix_ms, temporary, table };
        let entry = self.complete(candidate, number);
        entries.push(Arc::clone(&entry));
        self.replace(&mut current, entries);
        Ok(entry)
    }

    /// The configuration with the server's memory limit.
    pub(crate) fn limited(&self, mut config: TableConfig) -> TableConfig {
        config.budget_bytes = config.budget_bytes.into_iter().chain(self.budget_bytes).min();
        config
    }

    /// Drops a table. Its memory is freed when all workers have refreshed their copies.
    pub(crate) fn drop_named(&self, name: &str) -> Result<(), Refusal> {
        let mut current = self.current();
        let mut entries = current.directory.entries.clone();
        let before = entries.len();
        if let Some(entry) = current.directory.named(name) {
            entry.table.forget_kept()?;
            self.history.forget(entry.number);
        }
        entries.retain(|entry| entry.table.name() != name);
        if entries.len() == before {
            return Err(Refusal::no_table(&format!("{name:?}")));
        }
        self.replace(&mut current, entries);
        Ok(())
    }

    /// Replaces the list of tables, and the slots of the group.
    pub(crate) fn list(&self, entries: Vec<Arc<Entry>>, slots: Option<Arc<Slots>>) {
        let mut current = self.current();
        let version = current.directory.version + 1;
        current.directory = Arc::new(Directory { version, entries, slots });
        self.version.store(version, Ordering::Release);
    }

    fn complete(&self, candidate: Candidate, number: u32) -> Arc<Entry> {
        let Candidate { home, config, created_unix_ms, temporary, table } = candidate;
        let (state, gather) = (table.config().state() as u32, self.gather_of(&table));
        let note = TableNote { pinned: pinned(home), config, created_unix_ms, temporary, restoring: false };
        // From here on the table is complete for the next server.
        table.set_kept_note(&note.to_text());
        let (config, table) = (note.config, Arc::new(table));
        Arc::new(Entry { number, home, config, state, created_unix_ms, temporary, table, gather })
    }

    /// Replaces all tables.
    pub(crate) fn restore(&self, candidates: Vec<Candidate>) {
        let mut current = self.current();
        let complete = |candidate: Candidate| {
            let number = self.history.number(candidate.table.name(), candidate.created_unix_ms);
            self.complete(candidate, number)
        };
        let mut entries: Vec<_> = candidates.into_iter().map(complete).collect();
        entries.sort_unstable_by_key(|entry| entry.number);
        self.replace(&mut current, entries);
    }
}

/// Names the placement of a table's rows.
fn place(home: Home) -> String {
    match home {
        Home::Sharded => "on all shards".to_owned(),
        Home::Pinned(server) => format!("pinned to server {server}"),
    }
}

/// A worker's copy of the directory.
#[derive(Debug, Default)]
pub(crate) struct View {
    directory: Arc<Directory>,
}

impl View {
    /// Updates the copy, which frees dropped tables.
    pub(crate) fn refresh(&mut self, tables: &Tables) {
        if self.directory.version != tables.version.load(Ordering::Acquire) {
            self.directory = tables.directory();
        }
    }

    /// Whether no table was created or dropped since the last refresh.
    pub(crate) fn is_newest(&self, tables: &Tables) -> bool {
        self.directory.version == tables.version.load(Ordering::Acquire)
    }

    /// The slots of this server's group, if slots may move.
    pub(crate) fn slots(&self) -> Option<&Arc<Slots>> {
        self.directory.slots.as_ref()
    }

    /// How many slots share the rows of a table out; `None` for one whose rows are all on one server.
    pub(crate) fn slots_of(&self, number: u32) -> Option<usize> {
        let is_sharded = self.table(number).is_ok_and(|entry| entry.home == Home::Sharded);
        is_sharded.then(|| self.slots().map_or(limit::SLOTS_DEFAULT, |slots| slots.record.slots as usize))
    }

    pub(crate) fn table(&self, number: u32) -> Result<&Arc<Entry>, Refusal> {
        let entries = &self.directory.entries;
        match entries.binary_search_by_key(&number, |entry| entry.number) {
            Ok(at) => Ok(&entries[at]),
            Err(_) => Err(Refusal::no_table_number(number)),
        }
    }
}
