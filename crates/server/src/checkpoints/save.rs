//! Saves all tables of a server: in full, or as a delta on the checkpoint of that name.

use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use sanderling_replica::push_dedup::{PushDedup, SavedPushDedup};
use sanderling_store::{CheckpointWriter, DeltaWriter, SkippedRows, StoreError};
use sanderling_wire::{Home, Saved as SavedSize};

use super::part::Part;
use super::record::{BLOB, PUSHES_BLOB, ServerRecord, TableRecord};
use super::save_mode::{SaveMode, SaveReport};
use super::trained_keys::{KEYS_BLOB, TrainedKeys};
use super::{Checkpoints, LATEST, origin, unfinished};
use crate::delta_log::{Base, DeltaLog, Sealed};
use crate::event::{Event, Log};
use crate::limit::CHANGE_KEYS_MAX;
use crate::refusal::Refusal;
use crate::tables::{Directory, Entry, Tables};

/// The name and kind of a save.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Saved<'a> {
    pub(crate) name: &'a str,
    /// Number of a save of several servers; 0 if there is none.
    pub(crate) number: u64,
    pub(crate) mode: SaveMode,
    /// The keys of the tables so far.
    pub(crate) keys: &'a TrainedKeys,
    /// The server ends, so no changes follow.
    pub(crate) is_last: bool,
}

/// A save under way.
struct Saving<'a> {
    folder: &'a Path,
    directory: &'a Directory,
    push_dedup: &'a PushDedup,
    /// The push history before any row is read.
    before: SavedPushDedup,
    record: ServerRecord,
    keys: &'a TrainedKeys,
    /// The log that follows the checkpoint.
    log: Option<(&'a DeltaLog, Base)>,
    tables: &'a Tables,
    is_last: bool,
}

impl Checkpoints {
    /// Saves all tables except temporary ones while requests go on. The previous checkpoint is intact until the new
    /// one is complete.
    pub(crate) fn save(
        &self,
        tables: &Tables,
        push_dedup: &PushDedup,
        what: &Saved<'_>,
        log: Option<&DeltaLog>,
    ) -> Result<SaveReport, Refusal> {
        let Saved { name, number, mode, keys, is_last } = *what;
        // Once: the slots of the group may change meanwhile.
        let part = self.part();
        let folder = part.folder(&self.base(name)?);
        let _alone = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        let _locked = self.lock(part)?;
        unfinished::check(&folder)?;
        self.check_is_own(&folder)?;
        self.check_room(name, &folder)?;
        unfinished::begin(&folder)?;
        let log = log.filter(|_| name == LATEST);
        let log = log.map(|log| Ok::<_, StoreError>((log, log.begin_base(tables)?))).transpose()?;
        // Before the list of tables is read, and so before any row.
        let before = push_dedup.copy();
        let directory = tables.directory();
        let table_records = directory.lasting().map(|entry| TableRecord {
            name: entry.table.name().to_owned(),
            pinned: match entry.home {
                Home::Sharded => None,
                Home::Pinned(server) => Some(server),
            },
            created_unix_ms: entry.created_unix_ms,
            config: serde_json::from_str(&entry.config).expect("it was made from a value"),
        });
        let now_unix_ms =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
        let saved_unix_ms = now_unix_ms.max(self.restored_unix_ms.load(Ordering::Relaxed).saturating_add(1));
        // Each server saves this one by itself, so it has no common number.
        let number = if name == LATEST { 0 } else { number };
        let (Part { shard, shards, is_even }, records) = (part, table_records.collect());
        let record =
            ServerRecord { shard, shards, is_even, saved_unix_ms, number, tables: records, log: None };
        let (folder, directory) = (&*folder, &*directory);
        let saving = Saving { folder, directory, push_dedup, before, record, keys, log, tables, is_last };
        let report = match mode {
            SaveMode::Full | SaveMode::Base => self.save_full(&saving, mode)?,
            SaveMode::Delta => match self.save_delta(&saving) {
                Err(Unsaved::Store(
                    error @ (StoreError::NoDelta { .. } | StoreError::StreamTooLate { .. }),
                )) => {
                    let report = self.save_full(&saving, SaveMode::Base)?;
                    SaveReport { full_because: error.to_string(), ..report }
                }
                report => report?,
            },
        };
        // From here on the save has succeeded.
        if name == LATEST {
            self.latest_unix_ms.store(saved_unix_ms, Ordering::Relaxed);
        }
        if let (Err(refusal), Some(log)) = (origin::remove(folder), self.log.get()) {
            log.report(Event::NoteLeft { reason: refusal.reason });
        }
        // A stale marker is removed by the next save.
        let _ = unfinished::end(folder);
        self.count();
        Ok(report)
    }

    fn save_full(&self, saving: &Saving<'_>, mode: SaveMode) -> Result<SaveReport, Unsaved> {
        let mut writer = CheckpointWriter::create(saving.folder)?;
        if mode == SaveMode::Base {
            writer.begin_chain(CHANGE_KEYS_MAX);
        }
        for entry in saving.directory.lasting() {
            // One diverged table must not prevent saving the others.
            let left_out = writer.table_of_finite_rows(&entry.table)?;
            self.report_skipped(entry, left_out);
        }
        writer.blob(PUSHES_BLOB, &saving.pushes())?;
        writer.blob(KEYS_BLOB, &saving.keys.to_blob())?;
        let sealed = saving.seal(self.log.get())?;
        writer.blob(BLOB, &saving.record(sealed.as_ref()))?;
        let (rows, bytes) =
            writer.tables().fold((0, 0), |(rows, bytes), table| (rows + table.rows, bytes + table.bytes));
        let saved = SavedSize { generation: writer.commit()?, rows, bytes };
        sealed.into_iter().for_each(Sealed::committed);
        Ok(SaveReport { saved, deltas: 0, full_because: String::new() })
    }

    fn save_delta(&self, saving: &Saving<'_>) -> Result<SaveReport, Unsaved> {
        let mut writer = DeltaWriter::create(saving.folder)?;
        for entry in saving.directory.lasting() {
            let left_out = writer.changes(&entry.table)?;
            self.report_skipped(entry, left_out);
        }
        writer.blob(PUSHES_BLOB, &saving.pushes())?;
        writer.blob(KEYS_BLOB, &saving.keys.to_blob())?;
        let sealed = saving.seal(self.log.get())?;
        writer.blob(BLOB, &saving.record(sealed.as_ref()))?;
        let (deltas, (rows, bytes)) = (writer.sequence(), writer.size());
        let saved = SavedSize { generation: writer.commit()?, rows, bytes };
        sealed.into_iter().for_each(Sealed::committed);
        Ok(SaveReport { saved, deltas, full_because: String::new() })
    }

    fn report_skipped(&self, entry: &Entry, left_out: Option<SkippedRows>) {
        if let (Some(left_out), Some(log)) = (left_out, self.log.get()) {
            log.report(Event::SkippedRows { table: entry.table.name().to_owned(), left_out });
        }
    }
}

/// Why a save failed.
enum Unsaved {
    Store(StoreError),
    Log(Refusal),
}

impl From<StoreError> for Unsaved {
    fn from(error: StoreError) -> Unsaved {
        Unsaved::Store(error)
    }
}

impl From<Unsaved> for Refusal {
    fn from(unsaved: Unsaved) -> Refusal {
        match unsaved {
            Unsaved::Store(error) => error.into(),
            Unsaved::Log(refusal) => refusal,
        }
    }
}

impl Saving<'_> {
    /// Makes the log ready for the commit, once all rows are written.
    fn seal(&self, log: Option<&Log>) -> Result<Option<Sealed<'_>>, Unsaved> {
        let Some((delta_log, base)) = &self.log else { return Ok(None) };
        let saved: Vec<(u32, String)> =
            self.directory.lasting().map(|entry| (entry.number, entry.table.name().to_owned())).collect();
        let sealed = delta_log.seal(self.tables, self.push_dedup, &saved, base, self.is_last, log);
        sealed.map(Some).map_err(Unsaved::Log)
    }

    fn record(&self, sealed: Option<&Sealed<'_>>) -> Vec<u8> {
        let record =
            ServerRecord { log: sealed.map(|sealed| sealed.position.clone()), ..self.record.clone() };
        serde_json::to_vec(&record).expect("names and numbers become JSON")
    }

    /// The push history, once all rows are written.
    fn pushes(&self) -> Vec<u8> {
        let pushes = SavedPushDedup::around_rows(&self.before, self.push_dedup.copy());
        serde_json::to_vec(&pushes).expect("numbers become JSON")
    }
}
