//! The history of a server's tables: a number that stays as long as the tables hold every acknowledged change, over
//! starts of the server, too; and the numbers of the tables, which stay for a history. It knows no table and no log.
//!
//! Both are in a file beside the tables or their checkpoints. The file also says whether the next server will find all acknowledged changes.
//! It is written before the first change that it does not cover, so whatever ends the server, the file is right.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use sanderling_store::{Durability, KeptText};

use crate::refusal::Refusal;
use crate::replace_file::replace_file;

/// Maximum length of the file. A longer one is not of this module.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Maximum length beside kept tables: some 4,096 tables with names of 60 bytes.
const KEPT_BYTES_MAX: usize = 512 << 10;

/// The part of the acknowledged changes that the next server finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Holds {
    /// Perhaps not all of them.
    Some,
    /// All of them, however the server ends.
    All,
    /// All of them, in the checkpoint that was saved at this time at the end of the server.
    SavedAt(u64),
}

/// The content of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    history_id: u64,
    holds: Holds,
    /// The start of the machine without whose memory the changes are lost; 0: they are on disk.
    host_id: u64,
    /// The highest number of a table.
    numbers_given: u32,
    tables: Vec<NumberedTable>,
}

/// A table and its number. Two tables of a name differ in the time of their creation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NumberedTable {
    name: String,
    created_unix_ms: u64,
    number: u32,
}

/// How a server has got its tables at its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// They outlived the server before.
    Attached,
    /// They are those of the checkpoint that was saved at this time, and of the log after it.
    Latest { saved_unix_ms: u64 },
    /// There are none, or they are of an older state.
    Other,
}

/// The file of a history.
#[derive(Debug)]
enum HistoryFile {
    /// Nothing outlives the server.
    None,
    /// Beside checkpoints. It is replaced.
    Path(PathBuf),
    /// Beside kept tables, wherever they are.
    Kept(KeptText),
}

/// The history of a server's tables.
#[derive(Debug)]
pub(crate) struct History {
    file: Mutex<HistoryFile>,
    /// Whether all acknowledged changes outlive the server, however it ends.
    holds_all: bool,
    /// As in the file.
    host_id: u64,
    record: Mutex<Record>,
}

/// A history that is replaced by another one, with the numbers of its tables.
#[derive(Debug)]
pub(crate) struct Former {
    history_id: u64,
    tables: Vec<NumberedTable>,
}

impl Default for History {
    fn default() -> History {
        History::open(None, false, 0)
    }
}

impl History {
    /// The history in a file, or another one if the file is not there or unreadable. `host_id`: the start of the machine,
    /// if the changes are in its memory; else 0.
    pub(crate) fn open(path: Option<PathBuf>, holds_all: bool, host_id: u64) -> History {
        let found = path.as_deref().and_then(read);
        let record = found.unwrap_or_else(|| Record {
            history_id: sanderling_observe::unique(),
            holds: Holds::Some,
            host_id,
            numbers_given: 0,
            tables: Vec::new(),
        });
        let file = path.map_or(HistoryFile::None, HistoryFile::Path);
        History { file: Mutex::new(file), holds_all, host_id, record: Mutex::new(record) }
    }

    /// Goes on with the history in a file beside kept tables, if there is one, and keeps it there from now on.
    pub(crate) fn keep(&self, path: &Path, durability: Durability) -> Result<(), Refusal> {
        let mut text = KeptText::open(path, KEPT_BYTES_MAX, durability)?;
        if let Some(found) = text.read().and_then(|text| serde_json::from_slice(&text).ok()) {
            *self.record() = found;
        }
        *self.file() = HistoryFile::Kept(text);
        Ok(())
    }

    fn file(&self) -> MutexGuard<'_, HistoryFile> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the history.
    pub(crate) fn id(&self) -> u64 {
        self.record().history_id
    }

    /// Gives a table its number: that which it has in this history, or another one.
    pub(crate) fn number(&self, name: &str, created_unix_ms: u64) -> u32 {
        let record = &mut *self.record();
        let is_same = |table: &&NumberedTable| table.name == name && table.created_unix_ms == created_unix_ms;
        if let Some(table) = record.tables.iter().find(is_same) {
            return table.number;
        }
        record.numbers_given += 1;
        let number = record.numbers_given;
        record.tables.push(NumberedTable { name: name.to_owned(), created_unix_ms, number });
        number
    }

    /// [`History::number`] of a table that is about to be created: if it outlives the server, so does its number.
    pub(crate) fn number_new(&self, name: &str, created_unix_ms: u64) -> Result<u32, Refusal> {
        let number = self.number(name, created_unix_ms);
        if !self.holds_all {
            return Ok(number);
        }
        let written = self.write(&self.record());
        if written.is_err() {
            self.forget(number);
        }
        written.map(|()| number)
    }

    /// Forgets a table, which was dropped. Its number is not given again.
    pub(crate) fn forget(&self, number: u32) {
        self.record().tables.retain(|table| table.number != number);
    }

    /// Begins to serve tables. The history goes on if they hold all changes that it has acknowledged.
    pub(crate) fn start(&self, origin: Origin) -> Result<(), Refusal> {
        let (holds, host_id) = {
            let record = self.record();
            (record.holds, record.host_id)
        };
        let goes_on = match (holds, origin) {
            (Holds::All, Origin::Attached | Origin::Latest { .. }) => host_id == self.host_id,
            (Holds::SavedAt(saved), Origin::Latest { saved_unix_ms }) => saved == saved_unix_ms,
            _ => false,
        };
        if !goes_on {
            self.record().history_id = sanderling_observe::unique();
        }
        self.settle()
    }

    /// Begins another history, in which all tables get other numbers, before they are replaced. Until
    /// [`History::settle`] the file says that the next server finds no whole history.
    pub(crate) fn replace(&self) -> Result<Former, Refusal> {
        let record = &mut *self.record();
        self.write(&Record { holds: Holds::Some, ..record.clone() })?;
        record.holds = Holds::Some;
        let history_id = std::mem::replace(&mut record.history_id, sanderling_observe::unique());
        Ok(Former { history_id, tables: std::mem::take(&mut record.tables) })
    }

    /// Goes on with the former history: the tables were not replaced.
    pub(crate) fn take_back(&self, former: Former) {
        let record = &mut *self.record();
        record.history_id = former.history_id;
        let created_meanwhile = std::mem::replace(&mut record.tables, former.tables);
        record.tables.extend(created_meanwhile);
    }

    /// Notes in the file what outlives the server from here on.
    pub(crate) fn settle(&self) -> Result<(), Refusal> {
        let record = &mut *self.record();
        record.holds = if self.holds_all { Holds::All } else { Holds::Some };
        record.host_id = self.host_id;
        self.write(record)
    }

    /// Notes that the server ends with a checkpoint of all changes.
    pub(crate) fn end(&self, saved_unix_ms: u64) -> Result<(), Refusal> {
        let record = &mut *self.record();
        if !self.holds_all {
            record.holds = Holds::SavedAt(saved_unix_ms);
        }
        self.write(record)
    }

    fn write(&self, record: &Record) -> Result<(), Refusal> {
        let bytes = serde_json::to_vec(record).expect("names and numbers become JSON");
        match &mut *self.file() {
            HistoryFile::None => Ok(()),
            HistoryFile::Path(path) => {
                let failed = |error: &_| format!("{}: write the history: {error}", path.display());
                replace_file(path, &path.with_extension("history-new"), &bytes)
                    .map_err(|error| Refusal::io(failed(&error), &error))
            }
            HistoryFile::Kept(text) => text.write(&bytes).map_err(Refusal::from),
        }
    }
}

fn read(path: &Path) -> Option<Record> {
    let mut bytes = Vec::new();
    let file = sanderling_store::open_regular(path).ok()?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATEST: Origin = Origin::Latest { saved_unix_ms: 7 };

    /// Starts servers, one after another, of which the first has made two tables.
    fn check(holds_all: bool, end: impl Fn(&History), origin: Origin, expected: bool) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let open = || History::open(Some(path.clone()), holds_all, 0);
        let first = open();
        first.start(Origin::Other).unwrap();
        assert_eq!((first.number_new("a", 1).unwrap(), first.number_new("b", 2).unwrap()), (1, 2));
        first.forget(1);
        assert_eq!(first.number_new("a", 3).unwrap(), 3);
        end(&first);
        for restart in 0..2 {
            let next = open();
            next.start(origin).unwrap();
            let goes_on = next.id() == first.id();
            // A server that ended once may have acknowledged more by its next end.
            assert_eq!(goes_on, expected && (restart == 0 || holds_all), "{holds_all} {origin:?} {restart}");
            if expected {
                assert_eq!((next.number("b", 2), next.number("a", 3)), (2, 3));
                // A number is not given twice.
                assert!(next.number("a", 1) > 3);
            }
        }
    }

    #[test]
    fn a_history_goes_on_where_nothing_acknowledged_is_lost() {
        let killed = |_: &History| {};
        let ended = |history: &History| history.end(7).unwrap();
        check(true, killed, Origin::Attached, true);
        check(true, killed, LATEST, true);
        check(true, killed, Origin::Other, false);
        check(true, ended, LATEST, true);
        check(false, killed, LATEST, false);
        check(false, ended, LATEST, true);
        check(false, ended, Origin::Latest { saved_unix_ms: 6 }, false);
        check(false, ended, Origin::Other, false);
    }

    #[test]
    fn tables_in_memory_end_with_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        let started = |host_id| {
            let history = History::open(None, true, host_id);
            history.keep(&dir.path().join("history"), Durability::Process).unwrap();
            history.start(Origin::Attached).unwrap();
            history.id()
        };
        let first = started(7);
        assert_eq!(started(7), first);
        let other = started(8);
        assert_ne!(other, first);
        assert_eq!(started(8), other);
    }

    #[test]
    fn a_restore_begins_another_history_with_other_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let open = || History::open(Some(path.clone()), true, 0);
        let history = open();
        history.start(Origin::Other).unwrap();
        let (id, number) = (history.id(), history.number_new("a", 1).unwrap());
        let former = history.replace().unwrap();
        assert!(history.id() != id && history.number("a", 1) != number);
        // A server that is killed on the way has lost its history.
        let killed = open();
        killed.start(Origin::Attached).unwrap();
        assert_ne!(killed.id(), id);
        history.take_back(former);
        history.settle().unwrap();
        let next = open();
        next.start(Origin::Attached).unwrap();
        assert_eq!(next.id(), id);
    }

    #[test]
    fn a_table_whose_number_cannot_be_kept_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gone/history");
        let history = History::open(Some(path.clone()), true, 0);
        let refusal = history.number_new("a", 1).unwrap_err();
        assert!(refusal.reason.contains(path.to_str().unwrap()), "{refusal}");
        std::fs::create_dir(dir.path().join("gone")).unwrap();
        assert_eq!(history.number_new("a", 1).unwrap(), 2);
    }
}
