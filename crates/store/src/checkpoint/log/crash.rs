//! Crash tests of the log: with a failure or a power loss at every file operation, each acknowledged group is there, and
//! no part of another one.

#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::path::Path;

use super::{LogReader, LogTarget, LogWriter};
use crate::checkpoint::memory_files::{DIR, Fault, Memory, write_image};
use crate::{Init, Optimizer, PushScale, StoreError, Table, TableConfig};

type Rows = Vec<(u64, [u32; 3], Vec<f32>)>;

fn rows_of(table: &Table) -> Rows {
    let mut rows = Vec::new();
    table.for_each_row(|row| {
        let values = row.weights.iter().chain(row.state).copied().collect();
        rows.push((row.key, [row.frequency, row.last_use, row.version], values));
    });
    rows.sort_by_key(|(key, ..): &(u64, [u32; 3], Vec<f32>)| *key);
    rows
}

fn table() -> Table {
    let momentum = Optimizer::Momentum { lr: 0.5, momentum: 0.5, l2: 0.0 };
    Table::new(TableConfig::single("t", 2, Init::Zero, momentum)).unwrap()
}

/// The state that a replay gives.
struct Replayed {
    table: Table,
    history: Vec<u8>,
}

impl LogTarget for Replayed {
    fn tables(&mut self, list: &[u8]) -> Result<(), String> {
        if list == b"t" { Ok(()) } else { Err("another list".to_string()) }
    }

    fn table(&mut self, number: u32) -> Option<&mut Table> {
        (number == 1).then_some(&mut self.table)
    }

    fn pushes(&mut self, history: &[u8]) -> Result<(), String> {
        self.history = history.to_vec();
        Ok(())
    }
}

/// A table whose changes go to a log.
struct Logging {
    files: Memory,
    writer: LogWriter,
    table: Table,
    epoch: Option<u64>,
    /// The rows of each group that was tried.
    versions: Vec<Rows>,
    acknowledged: usize,
}

impl Logging {
    fn new() -> Logging {
        let files = Memory::default();
        let writer = LogWriter::create_on(Box::new(files.clone()), Path::new(DIR), 7, 700).unwrap();
        let (table, epoch, versions) = (table(), None, vec![Vec::new()]);
        Logging { files, writer, table, epoch, versions, acknowledged: 0 }
    }

    /// Changes, creates and removes rows, and logs that as a group.
    fn log_next(&mut self) -> Result<(), StoreError> {
        let version = self.versions.len() as u64;
        let keys: Vec<u64> = (version..version + 5).collect();
        self.table.push(&keys, &[0.5; 10], PushScale::default()).unwrap();
        self.table.remove(version);
        self.versions.push(rows_of(&self.table));
        let logged = self.try_log(version);
        match logged {
            Ok(epoch) => (self.epoch, self.acknowledged) = (Some(epoch), version as usize),
            Err(_) => self.writer.abandon(),
        }
        logged.map(|_| ())
    }

    fn try_log(&mut self, version: u64) -> Result<u64, StoreError> {
        if self.writer.begins_segment() {
            self.writer.tables(b"t")?;
        }
        let (epoch, skipped) = match self.epoch {
            None => self.writer.all_rows(1, &self.table, 1000)?,
            Some(since) => self.writer.changes(1, &self.table, since)?,
        };
        assert_eq!(skipped, None);
        self.writer.pushes(&version.to_le_bytes())?;
        self.writer.commit(version, false)?;
        Ok(epoch)
    }

    /// Replays each image that a loss of power may leave; all have the acknowledged groups.
    fn check(&self, what: &str) {
        for image in self.files.images() {
            let dir = write_image(&image);
            let mut replayed = Replayed { table: table(), history: vec![0; 8] };
            let reader =
                LogReader::open(dir.path(), 7, 1, false).unwrap_or_else(|error| panic!("{what}: {error}"));
            let end = reader.replay(&mut replayed).unwrap_or_else(|error| panic!("{what}: {error}"));
            let version = u64::from_le_bytes(replayed.history.clone().try_into().unwrap()) as usize;
            assert!(version >= self.acknowledged, "{what}: version {version} of {}", self.acknowledged);
            assert_eq!(rows_of(&replayed.table), self.versions[version], "{what}: version {version}");
            // The next server goes on, and its groups follow these.
            let next = &replayed.table;
            let mut writer = LogWriter::after(dir.path(), &end, 700).unwrap();
            writer.tables(b"t").unwrap();
            let (epoch, _) = writer.all_rows(1, next, 1000).unwrap();
            next.push(&[1, 99], &[1.0; 4], PushScale::default()).unwrap();
            writer.changes(1, next, epoch).unwrap();
            writer.commit(1, false).unwrap();
            let mut again = Replayed { table: table(), history: Vec::new() };
            LogReader::open(dir.path(), 7, 1, false).unwrap().replay(&mut again).unwrap();
            assert_eq!(rows_of(&again.table), rows_of(next), "{what}: after the next server");
        }
    }
}

#[test]
fn acknowledged_groups_survive_a_failure_of_any_operation() {
    for fault in [Fault::Error, Fault::Stop] {
        for at in 0.. {
            let mut logging = Logging::new();
            logging.log_next().unwrap();
            logging.files.fail_at(at, fault);
            for _ in 0..4 {
                let _ = logging.log_next();
                logging.check(&format!("{fault:?} at operation {at}"));
            }
            let is_reached = logging.files.is_reached();
            // After the failure the log goes on with all changes.
            logging.files.mend();
            logging.log_next().unwrap();
            logging.check(&format!("after {fault:?} at operation {at}"));
            assert_eq!(logging.acknowledged, 6);
            if !is_reached {
                assert!(at > 8, "{at}");
                break;
            }
        }
    }
}
