//! Saves all tables of a server to a folder and restores them, also from clusters with another number of shards.
//!
//! The module knows where checkpoints are and which names clients may use. The store knows their bytes.

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use sanderling_observe::numbers::bytes as in_units;
use sanderling_replica::push_dedup::{PushDedup, SavedPushDedup};
use sanderling_store::{Checkpoint, LogEnd, StoreError, Table, TableConfig};
use sanderling_wire::{Fault, Home, Restored};

mod log_after;
mod origin;
mod part;
mod parts;
mod record;
mod reshard;
mod save;
mod save_mode;
mod scan;
mod state_name;
mod trained_keys;
mod unfinished;

use crate::delta_log::Followed;
use crate::description;
use crate::event::Log;
use crate::folder_lock::FolderLock;
use crate::limit::CHECKPOINT_DEPTH_MAX;
use crate::refusal::Refusal;
use crate::tables::{Candidate, Tables};
use log_after::{check_log_ended, follow_log};
pub(crate) use part::Part;
use parts::Source;
use record::{BLOB, ServerRecord, TableRecord, damaged, pushes};
use reshard::Resharder;
pub(crate) use save::Saved;
pub use save_mode::{SaveMode, SaveReport};
pub use scan::CheckpointStatus;
use state_name::{open, parse_state};
pub(crate) use trained_keys::TrainedKeys;

/// The checkpoint that a server saves automatically and starts from.
pub const LATEST: &str = "latest";

/// The use that a restore makes of the log after the checkpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LogUse<'a> {
    /// The state is that of the checkpoint.
    Without,
    /// The changes of the log follow. Without a folder, a log with changes is refused.
    Follow { folder: Option<&'a Path>, cut: bool },
}

/// The end of a log that was replayed, and the numbers of its tables.
type Replayed = (LogEnd, Followed);

/// The state of this server's own part.
struct OwnPart {
    candidates: Vec<Candidate>,
    pushes: Option<SavedPushDedup>,
    saved_unix_ms: u64,
    replayed: Option<Replayed>,
}

/// The checkpoints of one server.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    root: PathBuf,
    /// The part that this server saves.
    part: Mutex<Part>,
    /// Maximum number of named checkpoints.
    names_max: usize,
    /// The checkpoints found by the last scan.
    scanned: Mutex<Vec<CheckpointStatus>>,
    /// Held during saves and restores, because they share folders.
    working: Mutex<()>,
    /// Save time of the restored checkpoint. The next save is later, whatever the clock says: between shard counts,
    /// the later save wins.
    restored_unix_ms: AtomicU64,
    /// See [`Checkpoints::latest_unix_ms`].
    latest_unix_ms: AtomicU64,
    /// The keys of the training that the restored checkpoint is of.
    trained: Mutex<TrainedKeys>,
    /// Receives progress events, once set.
    log: OnceLock<Log>,
    /// Whether other servers save the same parts.
    is_shared: bool,
}

impl Checkpoints {
    /// The checkpoints below `root`, at most `names_max` names.
    pub(crate) fn new(root: PathBuf, shard: u16, shards: u16, names_max: usize) -> Checkpoints {
        let (working, restored_unix_ms, latest_unix_ms, trained, log) = <_>::default();
        let scanned = Mutex::new(scan::run(&root, shard, shards));
        Checkpoints {
            root,
            part: Mutex::new(Part { shard, shards, is_even: true }),
            names_max,
            scanned,
            working,
            restored_unix_ms,
            latest_unix_ms,
            trained,
            log,
            is_shared: false,
        }
    }

    /// Whether other servers save the same parts, one at a time.
    pub(crate) fn shared(self, is_shared: bool) -> Checkpoints {
        Checkpoints { is_shared, ..self }
    }

    /// Keeps others from saving this part, if they may.
    fn lock(&self, part: Part) -> Result<Option<FolderLock>, Refusal> {
        if !self.is_shared {
            return Ok(None);
        }
        FolderLock::new(&self.root, part.shard, part.shards).map(Some).map_err(Refusal::busy)
    }

    /// The checkpoints, ascending by name, as of the start or the last save.
    pub(crate) fn list(&self) -> Vec<CheckpointStatus> {
        self.scanned.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Scans the folder.
    pub(crate) fn count(&self) -> Vec<CheckpointStatus> {
        let Part { shard, shards, .. } = self.part();
        let found = scan::run(&self.root, shard, shards);
        self.scanned.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&found);
        found
    }

    /// Refuses a new name if there are too many. The automatic save always has room.
    fn check_room(&self, name: &str, folder: &Path) -> Result<(), Refusal> {
        if name == LATEST || folder.join(unfinished::MANIFEST).exists() {
            return Ok(());
        }
        let found = self.count();
        if found.iter().filter(|found| found.name != LATEST).count() < self.names_max {
            return Ok(());
        }
        let bytes: u64 = found.iter().map(|found| found.bytes).sum();
        let reason = format!(
            "checkpoint {name:?}: there are {} already, of {}, below {}; remove some, save under a name that is \
             there, or start with a larger --checkpoints-max",
            found.len(),
            in_units(bytes),
            self.root.display()
        );
        Err(Refusal::bad(reason))
    }

    /// Refuses to overwrite a checkpoint of another program or another server.
    fn check_is_own(&self, folder: &Path) -> Result<(), Refusal> {
        // An unreadable checkpoint is of no use. The writer reports damage.
        let Ok(checkpoint) = Checkpoint::open(folder) else { return Ok(()) };
        if !checkpoint.blobs().iter().any(|blob| blob.name == BLOB) {
            let reason = "it was not saved by a server, so it is not replaced; save under another name";
            return Err(damaged(folder, reason));
        }
        let Ok(record) = ServerRecord::read(&checkpoint, folder) else { return Ok(()) };
        let Part { shard, shards, .. } = self.part();
        if (record.shard, record.shards) != (shard, shards) {
            let reason = format!(
                "server {} of {} saved it, so {shard} of {shards} does not replace it; save under another name",
                record.shard, record.shards
            );
            return Err(damaged(folder, &reason));
        }
        Ok(())
    }

    /// When `latest` was saved, as this server has restored its own part or saved it last. 0: it has done neither.
    pub(crate) fn latest_unix_ms(&self) -> u64 {
        self.latest_unix_ms.load(Ordering::Relaxed)
    }

    /// Sets the receiver of progress events.
    pub(crate) fn tell(&self, log: &Log) {
        let _ = self.log.set(log.clone());
    }

    /// The folder of a checkpoint, with the parts of all shards. No name leads out of the root.
    fn base(&self, name: &str) -> Result<PathBuf, Refusal> {
        let plain = |part: &str| {
            !part.starts_with('.')
                && !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        };
        let parts = name.split('/').count();
        if parts > CHECKPOINT_DEPTH_MAX || !name.split('/').all(plain) {
            let reason = format!(
                "checkpoint {name:?}: a name is 1 to {CHECKPOINT_DEPTH_MAX} parts of letters, digits, '.', '_', '-', none beginning with '.', separated by '/'"
            );
            return Err(Refusal::bad(reason));
        }
        if let Some(part) = name.split('/').find(|part| parts::of_name(part).is_some()) {
            let reason =
                format!("checkpoint {name:?}: {part:?} is how a server's part of a checkpoint is called");
            return Err(Refusal::bad(reason));
        }
        Ok(self.root.join(name))
    }

    /// The folder of this server's part.
    fn folder(&self, name: &str) -> Result<PathBuf, Refusal> {
        Ok(self.part().folder(&self.base(name)?))
    }

    /// Whether there is a checkpoint of this name that concerns this server, or evidence of a lost part.
    pub(crate) fn has(&self, name: &str) -> bool {
        // The restore reports what cannot be read here.
        let has_rows = |folder: &Path| {
            Checkpoint::open(folder).map_or(true, |part| part.tables().iter().any(|table| table.rows > 0))
        };
        let part = self.part();
        // Its own part existed once, and some files of it are left.
        let is_lost = |base: &Path| unfinished::lost(&part.folder(base)).map_or(true, |lost| lost.is_some());
        let found = |base: PathBuf| {
            is_lost(&base)
                || parts::lost(&base).map_or(true, |lost| lost.is_some())
                || parts::find(&base)
                    .map_or(true, |found| parts::any(&found, part.shard, part.shards, has_rows))
        };
        self.base(name).is_ok_and(found)
    }

    /// Replaces all tables and the push history by those of a checkpoint, or of its first deltas (`NAME@DELTAS`). On
    /// failure they stay as they are.
    pub(crate) fn restore(
        &self,
        tables: &Tables,
        push_dedup: &PushDedup,
        name: &str,
        log: LogUse<'_>,
    ) -> Result<(Restored, Option<Replayed>), Refusal> {
        let (name, deltas) = parse_state(name)?;
        self.restore_state(tables, push_dedup, name, deltas, log).map_err(|refusal| match deltas {
            None => self.with_whole_state(name, refusal),
            Some(_) => refusal,
        })
    }

    /// Names the last whole state of a chain with damage.
    fn with_whole_state(&self, name: &str, mut refusal: Refusal) -> Refusal {
        let is_damaged = refusal.fault == Fault::Damaged;
        let folder = self.folder(name).ok().filter(|_| is_damaged);
        if let Some(Ok((whole, deltas))) = folder.map(Checkpoint::whole_deltas)
            && whole < deltas
        {
            _ = write!(refusal.reason, "; {name}@{whole} is whole");
        }
        refusal
    }

    fn restore_state(
        &self,
        tables: &Tables,
        push_dedup: &PushDedup,
        name: &str,
        deltas: Option<usize>,
        log: LogUse<'_>,
    ) -> Result<(Restored, Option<Replayed>), Refusal> {
        let base = self.base(name)?;
        let _alone = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        let source = self.source(name)?;
        let is_own = matches!(source, Source::Own);
        let folders = match &source {
            Source::Own => vec![self.folder(name)?],
            Source::Parts { folders, .. } => folders.clone(),
        };
        let OwnPart { candidates, pushes, saved_unix_ms, replayed } = match source {
            Source::Own => self.own(tables, name, deltas, log)?,
            Source::Parts { folders, origin, noted } => {
                // Servers save `latest` automatically, each at its own time.
                let Part { shard, shards, .. } = self.part();
                if name == LATEST && !noted && shards > 1 {
                    origin::note(&base, shard, shards, origin)?;
                }
                if matches!(log, LogUse::Follow { .. }) {
                    folders.iter().try_for_each(|folder| check_log_ended(folder))?;
                }
                let log = self.log.get();
                let resharder = Resharder { shard, shards, log, deltas, slots: None };
                let (candidates, pushes) = resharder.read(tables, &folders)?;
                OwnPart { candidates, pushes, saved_unix_ms: origin.saved_unix_ms, replayed: None }
            }
        };
        self.note_trained(&folders, deltas)?;
        self.restored_unix_ms.fetch_max(saved_unix_ms, Ordering::Relaxed);
        let latest_unix_ms = if is_own && name == LATEST && deltas.is_none() { saved_unix_ms } else { 0 };
        self.latest_unix_ms.store(latest_unix_ms, Ordering::Relaxed);
        let rows = candidates.iter().map(|candidate| candidate.table.len() as u64).sum();
        let restored = Restored { tables: candidates.len() as u64, rows };
        // Pushes continue meanwhile, and none may be applied twice to the restored tables. The history is restored
        // first: pushes in between go to the old tables and disappear with them.
        if let Some(pushes) = pushes {
            push_dedup.restore(pushes);
        }
        tables.restore(candidates);
        Ok((restored, replayed))
    }

    /// The save number of a checkpoint; 0 if it has none.
    pub(crate) fn saved(&self, name: &str) -> Result<u64, Refusal> {
        let (name, deltas) = parse_state(name)?;
        let _alone = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = match self.source(name)? {
            Source::Own => self.folder(name)?,
            // The restore checks that the other parts have the same number.
            Source::Parts { folders, .. } => folders.into_iter().next().unwrap_or_default(),
        };
        let checkpoint = open(&folder, deltas).map_err(|error| unknown(name, error))?;
        Ok(ServerRecord::read(&checkpoint, &folder)?.number)
    }

    /// Loads this server's own part within today's memory limits. Returns the save time, too.
    fn own(
        &self,
        tables: &Tables,
        name: &str,
        deltas: Option<usize>,
        log: LogUse<'_>,
    ) -> Result<OwnPart, Refusal> {
        let folder = self.folder(name)?;
        let checkpoint = open(&folder, deltas).map_err(|error| unknown(name, error))?;
        let record = ServerRecord::read(&checkpoint, &folder)?;
        let Part { shard, shards, .. } = self.part();
        record.check(&checkpoint, &folder, shard, shards)?;
        let mut candidates = Vec::new();
        for TableRecord { name, pinned, created_unix_ms, config } in record.tables {
            let asked = description::parse(&name, &config.to_string())?;
            let config = description::describe(&asked);
            let table = load(&checkpoint, &folder, &name, tables, asked)?;
            let home = pinned.map_or(Home::Sharded, Home::Pinned);
            candidates.push(Candidate { home, config, created_unix_ms, temporary: false, table });
        }
        let pushes = pushes(&checkpoint, &folder)?;
        let part = OwnPart { candidates, pushes, saved_unix_ms: record.saved_unix_ms, replayed: None };
        match (log, record.log) {
            (LogUse::Follow { folder: Some(log), cut }, Some(position)) => {
                follow_log(log, &position, cut, tables, part)
            }
            (LogUse::Follow { folder: None, .. }, Some(position)) if position.goes_on()? => {
                let reason = format!(
                    "{}: its changes go on in the log {}: start with --log, or with --restore {LATEST} to lose them",
                    folder.display(),
                    position.folder.display()
                );
                Err(Refusal::new(Fault::Damaged, reason))
            }
            _ => Ok(part),
        }
    }
}

/// Loads a table with another memory limit.
fn load(
    checkpoint: &Checkpoint,
    folder: &Path,
    name: &str,
    tables: &Tables,
    asked: TableConfig,
) -> Result<Table, Refusal> {
    let limited = tables.limited(asked);
    let loaded = match tables.kept() {
        None => checkpoint.load_table_within(name, limited.budget_bytes),
        Some(_) => {
            let mut table = tables.make(limited, false)?;
            checkpoint.load_rows(name, &mut table, |_| true).map(|_| table)
        }
    };
    loaded.map_err(|error| {
        let StoreError::TableFull { rows, budget_bytes, .. } = error else { return error.into() };
        let saved = checkpoint.tables().iter().find(|saved| saved.name == name);
        let all = saved.map_or(rows, |saved| saved.rows);
        let before = saved.and_then(|saved| saved.config.budget_bytes);
        let before = before.map_or("none".to_owned(), in_units);
        let reason = format!(
            "{}: table {name:?}: {rows} of its {all} rows fill the budget of {}; it was saved with {before}; start with a larger --table-budget",
            folder.display(),
            in_units(budget_bytes)
        );
        let rejected = all.saturating_sub(rows);
        Refusal::new(Fault::TableFull { rejected, rows, budget_bytes }, reason)
    })
}

fn unknown(name: &str, error: StoreError) -> Refusal {
    match error {
        StoreError::Io { source, path, .. } if source.kind() == io::ErrorKind::NotFound => {
            let reason = format!("no checkpoint {name:?}: {} is not there", path.display());
            Refusal::new(Fault::UnknownCheckpoint, reason)
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;

    const MANY: usize = 64;

    fn latest() -> Saved<'static> {
        let keys = &*Box::leak(Box::default());
        Saved { name: LATEST, number: 0, mode: SaveMode::Full, keys, is_last: false }
    }

    #[test]
    fn names_stay_below_the_root() {
        let checkpoints = Checkpoints::new("/data".into(), 0, 1, MANY);
        for (name, expected) in [
            ("latest", Some("/data/latest")),
            ("daily/2026-11-21", Some("/data/daily/2026-11-21")),
            ("", None),
            ("..", None),
            ("a/../b", None),
            ("/etc", None),
            ("a//b", None),
            ("a/", None),
            (".hidden", None),
            ("a\0b", None),
            ("a b", None),
            ("a/b/c/d/e/f/g/h/i", None),
            ("latest/shard-0-of-2", None),
            ("shard-1-of-3/a", None),
            ("shard-of-2", Some("/data/shard-of-2")),
        ] {
            assert_eq!(checkpoints.folder(name).ok(), expected.map(PathBuf::from), "{name:?}");
        }
        let sharded = Checkpoints::new("/data".into(), 1, 2, MANY);
        assert_eq!(sharded.folder("x").ok(), Some("/data/x/shard-1-of-2".into()));
    }

    #[test]
    fn what_is_committed_is_saved_even_if_a_note_stays() {
        let root = tempfile::tempdir().unwrap();
        let (tables, push_dedup) = (Tables::new(None), PushDedup::default());
        let checkpoints = Checkpoints::new(root.path().to_path_buf(), 0, 2, MANY);
        let (said, hears) = std::sync::mpsc::channel();
        checkpoints.tell(&Log(std::sync::Arc::new(move |event: Event| said.send(event).unwrap())));
        // A folder cannot be removed as a file.
        let folder = checkpoints.folder(LATEST).unwrap();
        std::fs::create_dir_all(folder.join("origin.json")).unwrap();
        for generation in [1, 2] {
            let saved = checkpoints.save(&tables, &push_dedup, &latest(), None).unwrap().saved;
            assert_eq!((saved.generation, saved.rows, saved.bytes), (generation, 0, 0));
            let said = hears.try_recv().unwrap().to_string();
            assert!(said.contains("shard-0-of-2/origin.json"), "{said}");
        }
    }

    /// Between two shard counts the later save is read, even if the clock went back.
    #[test]
    fn what_is_saved_is_later_than_what_was_restored() {
        let root = tempfile::tempdir().unwrap();
        let (tables, push_dedup) = (Tables::new(None), PushDedup::default());
        let of = |shard, shards| Checkpoints::new(root.path().to_path_buf(), shard, shards, MANY);
        let saved = |by: &Checkpoints| {
            by.save(&tables, &push_dedup, &Saved { number: 7, ..latest() }, None).unwrap();
            let record = ServerRecord::of(&by.folder(LATEST).unwrap()).unwrap();
            assert_eq!(record.number, 0);
            record.saved_unix_ms
        };
        let ahead = of(0, 1);
        ahead.restored_unix_ms.store(1 << 60, Ordering::Relaxed);
        assert_eq!(saved(&ahead), (1 << 60) + 1);
        // From the part of one server, then from its own part.
        for later in [2, 3] {
            let one_of_two = of(0, 2);
            one_of_two.restore(&tables, &push_dedup, LATEST, LogUse::Without).unwrap();
            assert_eq!(saved(&one_of_two), (1 << 60) + later);
        }
    }
}
