//! Writes the groups of the log: the list of tables, their changes, and the push history around them.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use sanderling_replica::push_dedup::{LoggedPushes, PushDedup, SavedPushDedup};
use sanderling_store::{LogEnd, LogWriter, SkippedRows, StoreError};
use sanderling_wire::Home;

use super::measured::WrittenGroup;
use super::replay::{Followed, ListedTable};
use crate::clock::unix_ms;
use crate::event::{Event, Log};
use crate::limit::{CHANGE_KEYS_MAX, LOG_SEGMENT_BYTES_MAX};
use crate::tables::{Directory, Entry, Tables};

/// A table whose changes are logged.
#[derive(Debug, Clone, Copy)]
struct LoggedTable {
    /// Number in the log.
    number: u32,
    epoch: u64,
}

/// The writer of the groups and what they have so far.
#[derive(Debug)]
pub(super) struct Groups {
    folder: PathBuf,
    id: u64,
    writer: Option<LogWriter>,
    /// By the tables' numbers in the server.
    followed: HashMap<u32, LoggedTable>,
    numbers_given: u32,
    logged: LoggedPushes,
    /// Tables with rows that are not finite, which was reported.
    skipped: HashSet<u32>,
    /// There is a checkpoint that the log follows.
    pub(super) has_base: bool,
}

impl Groups {
    pub(super) fn new(folder: PathBuf) -> Groups {
        Groups {
            folder,
            id: sanderling_observe::unique(),
            writer: None,
            followed: HashMap::new(),
            numbers_given: 0,
            logged: LoggedPushes::default(),
            skipped: HashSet::new(),
            has_base: false,
        }
    }

    /// Goes on after a replay.
    pub(super) fn go_on(
        &mut self,
        directory: &Directory,
        end: &LogEnd,
        replayed: &Followed,
    ) -> Result<(), StoreError> {
        self.writer = Some(LogWriter::after(&self.folder, end, LOG_SEGMENT_BYTES_MAX)?);
        self.id = end.id;
        self.numbers_given = replayed.values().copied().max().unwrap_or(0);
        for entry in directory.lasting() {
            // Another table is logged with all of its rows.
            if let Some(&number) = replayed.get(entry.table.name()) {
                let epoch = entry.table.subscribe_changes(CHANGE_KEYS_MAX)?;
                self.followed.insert(entry.number, LoggedTable { number, epoch });
            }
        }
        self.has_base = true;
        Ok(())
    }

    pub(super) fn lose_base(&mut self) {
        *self = Groups::new(std::mem::take(&mut self.folder));
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn last_group(&self) -> u64 {
        self.writer.as_ref().map_or(0, LogWriter::group)
    }

    fn writer(&mut self) -> Result<&mut LogWriter, StoreError> {
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => LogWriter::create(&self.folder, self.id, LOG_SEGMENT_BYTES_MAX)?,
        };
        Ok(self.writer.insert(writer))
    }

    /// Ends the segment; returns the number of the next one.
    pub(super) fn end_segment(&mut self) -> Result<u64, StoreError> {
        Ok(self.writer()?.end_segment())
    }

    /// The numbers of the tables in the log.
    pub(super) fn numbers(&self) -> HashMap<u32, u32> {
        self.followed.iter().map(|(entry, followed)| (*entry, followed.number)).collect()
    }

    /// Follows all tables from here on, if the save that begins is the first checkpoint of the log.
    pub(super) fn follow_for_base(&mut self, directory: &Directory) -> Result<(), StoreError> {
        if self.has_base {
            return Ok(());
        }
        self.followed.clear();
        for entry in directory.lasting() {
            self.numbers_given += 1;
            let epoch = entry.table.subscribe_changes(CHANGE_KEYS_MAX)?;
            self.followed.insert(entry.number, LoggedTable { number: self.numbers_given, epoch });
        }
        Ok(())
    }

    /// Notes that a checkpoint is committed, after which the log goes on with this segment.
    pub(super) fn follow_base(&mut self, segment: u64) {
        self.has_base = true;
        if let Some(writer) = &self.writer {
            writer.prune(segment);
        }
    }

    /// Writes a group with all changes so far; if there are none, only when `always` is set. Returns what was written.
    pub(super) fn write(
        &mut self,
        tables: &Tables,
        pushes: &PushDedup,
        always: bool,
        log: Option<&Log>,
    ) -> Result<Option<WrittenGroup>, StoreError> {
        // Before the list of tables is read, and so before any row.
        let before = pushes.copy();
        let directory = tables.directory();
        let begins = self.writer()?.begins_segment();
        if begins {
            self.logged = LoggedPushes::default();
        }
        if !always && !self.has_changes(&directory, &before, begins) {
            return Ok(None);
        }
        let written = self.try_write(&directory, pushes, &before, begins, log);
        match written {
            Ok((followed, part, group)) => {
                self.followed = followed;
                part.into_iter().for_each(|part| self.logged.add(part));
                Ok(Some(group))
            }
            Err(error) => {
                if let Some(writer) = &mut self.writer {
                    writer.abandon();
                }
                Err(error)
            }
        }
    }

    /// Whether tables or rows have changed since the last group.
    pub(super) fn has_new_rows(&self, directory: &Directory) -> bool {
        let is_changed = |entry: &Arc<Entry>| {
            let followed = self.followed.get(&entry.number);
            followed.is_none_or(|followed| entry.table.has_changes(followed.epoch).unwrap_or(true))
        };
        directory.lasting().count() != self.followed.len() || directory.lasting().any(is_changed)
    }

    fn has_changes(&self, directory: &Directory, pushes: &SavedPushDedup, begins: bool) -> bool {
        self.has_new_rows(directory)
            // The first group of a segment has the whole history, and is not written for that alone.
            || !begins && self.logged.difference(pushes).is_some()
    }

    #[allow(clippy::type_complexity)] // the tables and the part of the history that the group has, and its size
    fn try_write(
        &mut self,
        directory: &Directory,
        pushes: &PushDedup,
        before: &SavedPushDedup,
        begins: bool,
        log: Option<&Log>,
    ) -> Result<(HashMap<u32, LoggedTable>, Option<SavedPushDedup>, WrittenGroup), StoreError> {
        let mut followed = HashMap::new();
        let mut new = HashSet::new();
        for entry in directory.lasting() {
            let known = self.followed.get(&entry.number).copied();
            let known = known.filter(|known| {
                // Changes that are not kept any more: the log gets all rows.
                !matches!(entry.table.has_changes(known.epoch), Err(StoreError::StreamTooLate { .. }))
            });
            let known = known.unwrap_or_else(|| {
                self.numbers_given += 1;
                new.insert(entry.number);
                LoggedTable { number: self.numbers_given, epoch: 0 }
            });
            followed.insert(entry.number, known);
        }
        if begins || !new.is_empty() || followed.len() != self.followed.len() {
            let list = list(directory, &followed);
            self.writer()?.tables(&list)?;
        }
        for entry in directory.lasting() {
            let Some(followed_table) = followed.get(&entry.number).copied() else { continue };
            let (number, table) = (followed_table.number, &entry.table);
            let logged = if new.contains(&entry.number) {
                self.writer()?.all_rows(number, table, CHANGE_KEYS_MAX)
            } else {
                self.writer()?.changes(number, table, followed_table.epoch)
            };
            let (number, (epoch, skipped)) = match logged {
                Ok(logged) => (number, logged),
                Err(StoreError::StreamTooLate { .. }) => {
                    self.numbers_given += 1;
                    let number = self.numbers_given;
                    followed.insert(entry.number, LoggedTable { number, epoch: 0 });
                    let list = list(directory, &followed);
                    self.writer()?.tables(&list)?;
                    (number, self.writer()?.all_rows(number, table, CHANGE_KEYS_MAX)?)
                }
                Err(error) => return Err(error),
            };
            followed.insert(entry.number, LoggedTable { number, epoch });
            self.report_skipped(entry, skipped, log);
        }
        let now = SavedPushDedup::around_rows(before, pushes.copy());
        let part = self.logged.difference(&now);
        if let Some(part) = &part {
            let history = serde_json::to_vec(part).expect("numbers become JSON");
            self.writer()?.pushes(&history)?;
        }
        let start = Instant::now();
        let bytes = self.writer()?.commit(unix_ms(), true)?.bytes;
        Ok((followed, part, WrittenGroup { bytes, sync: start.elapsed() }))
    }

    fn report_skipped(&mut self, entry: &Entry, skipped: Option<SkippedRows>, log: Option<&Log>) {
        if let (Some(left_out), Some(log)) = (skipped, log)
            && self.skipped.insert(entry.number)
        {
            log.report(Event::SkippedRows { table: entry.table.name().to_owned(), left_out });
        }
    }
}

/// The list of tables, as JSON.
fn list(directory: &Directory, followed: &HashMap<u32, LoggedTable>) -> Vec<u8> {
    let listed: Vec<ListedTable> = directory
        .lasting()
        .filter_map(|entry| {
            Some(ListedTable {
                number: followed.get(&entry.number)?.number,
                name: entry.table.name().to_owned(),
                pinned: match entry.home {
                    Home::Sharded => None,
                    Home::Pinned(server) => Some(server),
                },
                created_unix_ms: entry.created_unix_ms,
                config: serde_json::from_str(&entry.config).expect("it was made from a value"),
            })
        })
        .collect();
    serde_json::to_vec(&listed).expect("names and numbers become JSON")
}
