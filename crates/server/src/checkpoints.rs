//! Saving all tables of a server to a folder and reading them back, also what servers of another number of shards have saved.
//! Knows where checkpoints are and what a client may call one; their bytes are the store's.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use sanderling_store::{Checkpoint, CheckpointWriter, StoreError, Table, TableEntry};
use sanderling_wire::{Fault, Home, Restored, Saved};
use serde::{Deserialize, Serialize};

mod census;
mod origin;
mod parts;
mod together;
mod unfinished;

use crate::description;
use crate::event::{Event, Log};
use crate::limit::CHECKPOINT_DEPTH_MAX;
use crate::pushes::{Pushers, SavedPushers};
use crate::refusal::Refusal;
use crate::tables::{Candidate, Tables};
pub use census::CheckpointStatus;
use parts::Source;
use together::Together;

/// The checkpoint that a server saves by itself, and starts from.
pub const LATEST: &str = "latest";
/// The blob that says what the store does not know of the tables.
const BLOB: &str = "server.json";
/// The blob that says which pushes are in the rows.
const PUSHES_BLOB: &str = "pushes.json";

/// The checkpoints of one server.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    root: PathBuf,
    shard: u16,
    shards: u16,
    /// Most of them.
    names_max: usize,
    /// Those that there are, as they were last looked at.
    census: Mutex<Vec<CheckpointStatus>>,
    /// Two may not write to one folder.
    working: Mutex<()>,
    /// When what was restored had been saved. What is saved next says that it was later, by whatever clock: of two numbers
    /// of shards, that decides.
    restored_unix_ms: AtomicU64,
    /// Who is told how far it is, once known.
    log: OnceLock<Log>,
}

#[derive(Debug, Serialize, Deserialize)]
struct About {
    shard: u16,
    shards: u16,
    /// When; absent in checkpoints from before this was written.
    #[serde(default)]
    saved_unix_ms: u64,
    /// Of which save of all servers it is part; 0: of none, or it is from before this was written.
    #[serde(default)]
    number: u64,
    tables: Vec<AboutTable>,
}

#[derive(Debug, Serialize, Deserialize)]
struct AboutTable {
    name: String,
    /// The server that has all of it; none when it is sharded.
    pinned: Option<u32>,
    /// When it was made; 0: that is not known, or it is from before this was written.
    #[serde(default)]
    created_unix_ms: u64,
    config: serde_json::Value,
}

impl Checkpoints {
    /// Those below `root`, at most so many.
    pub(crate) fn new(root: PathBuf, shard: u16, shards: u16, names_max: usize) -> Checkpoints {
        let (working, restored_unix_ms, log) = <_>::default();
        let census = Mutex::new(census::of(&root, shard, shards));
        Checkpoints { root, shard, shards, names_max, census, working, restored_unix_ms, log }
    }

    /// Those that there are, ascending by name, as they were at the start or when one was saved last.
    pub(crate) fn list(&self) -> Vec<CheckpointStatus> {
        self.census.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks what there is now.
    pub(crate) fn count(&self) -> Vec<CheckpointStatus> {
        let found = census::of(&self.root, self.shard, self.shards);
        self.census.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&found);
        found
    }

    /// Refuses a save of a name that is not there yet where there are as many as may be. The server's own save always has its
    /// place.
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
            "checkpoint {name:?}: there are {} already, of {bytes} bytes, below {}; remove some, save under a name that is \
             there, or start with a larger --checkpoints-max",
            found.len(),
            self.root.display()
        );
        Err(Refusal::bad(reason))
    }

    /// Refuses to save where somebody else has: what is no server's, or another's, is not replaced.
    fn check_is_own(&self, folder: &Path) -> Result<(), Refusal> {
        // What cannot be opened any more is of no use to anybody; whether it is damaged is found out about by who writes.
        let Ok(checkpoint) = Checkpoint::open(folder) else { return Ok(()) };
        if !checkpoint.blobs().iter().any(|blob| blob.name == BLOB) {
            let reason = "it was not saved by a server, so it is not replaced; save under another name";
            return Err(damaged(folder, reason));
        }
        let Ok(about) = About::read(&checkpoint, folder) else { return Ok(()) };
        if (about.shard, about.shards) != (self.shard, self.shards) {
            let reason = format!(
                "server {} of {} saved it, so {} of {} does not replace it; save under another name",
                about.shard, about.shards, self.shard, self.shards
            );
            return Err(damaged(folder, &reason));
        }
        Ok(())
    }

    /// Says from now on how far a restore of many parts is.
    pub(crate) fn tell(&self, log: &Log) {
        let _ = self.log.set(log.clone());
    }

    /// Where the checkpoint of this name is, with the parts of all servers that share the root. No name leads out of it.
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

    /// Where this server's part of it is.
    fn folder(&self, name: &str) -> Result<PathBuf, Refusal> {
        Ok(parts::folder(&self.base(name)?, self.shard, self.shards))
    }

    /// Is there a checkpoint of this name, by this server or by those of another number of shards, or with rows of the other
    /// shards of its own number?
    pub(crate) fn has(&self, name: &str) -> bool {
        // What cannot be looked at is found out about when it is restored.
        let has_rows = |folder: &Path| {
            Checkpoint::open(folder).map_or(true, |part| part.tables().iter().any(|table| table.rows > 0))
        };
        // Its own part was there, and something of it is.
        let is_lost = |base: &Path| {
            unfinished::lost(&parts::folder(base, self.shard, self.shards))
                .map_or(true, |lost| lost.is_some())
        };
        let found = |base: PathBuf| {
            is_lost(&base)
                || parts::lost(&base).map_or(true, |lost| lost.is_some())
                || parts::find(&base)
                    .map_or(true, |found| parts::any(&found, self.shard, self.shards, has_rows))
        };
        self.base(name).is_ok_and(found)
    }

    /// Saves all tables but temporary ones, while requests go on. The checkpoint that was there is intact until the new one is whole.
    pub(crate) fn save(
        &self,
        tables: &Tables,
        pushers: &Pushers,
        name: &str,
        number: u64,
    ) -> Result<Saved, Refusal> {
        let folder = self.folder(name)?;
        let _alone = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        unfinished::check(&folder)?;
        self.check_is_own(&folder)?;
        self.check_room(name, &folder)?;
        unfinished::begin(&folder)?;
        // Before it is decided which tables are saved, let alone which rows.
        let before = pushers.copy();
        let directory = tables.directory();
        let lasting = || directory.entries.iter().filter(|entry| !entry.temporary);
        let about = lasting().map(|entry| AboutTable {
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
        // That one each server saves by itself, too.
        let number = if name == LATEST { 0 } else { number };
        let (shard, shards, tables) = (self.shard, self.shards, about.collect());
        let about = About { shard, shards, saved_unix_ms, number, tables };
        let mut writer = CheckpointWriter::create(&folder)?;
        for entry in lasting() {
            // One table that diverged must not keep the others from being saved.
            if let (Some(left_out), Some(log)) = (writer.table_of_finite_rows(&entry.table)?, self.log.get())
            {
                log.say(Event::SkippedRows { table: entry.table.name().to_owned(), left_out });
            }
        }
        let pushes = SavedPushers::around_rows(&before, pushers.copy());
        writer.blob(PUSHES_BLOB, &serde_json::to_vec(&pushes).expect("numbers become JSON"))?;
        writer.blob(BLOB, &serde_json::to_vec(&about).expect("names and numbers become JSON"))?;
        let (rows, bytes) =
            writer.tables().fold((0, 0), |(rows, bytes), table| (rows + table.rows, bytes + table.bytes));
        let generation = writer.commit()?;
        // Whatever happens from here on, it is saved.
        if let (Err(refusal), Some(log)) = (origin::remove(&folder), self.log.get()) {
            log.say(Event::NoteLeft { reason: refusal.reason });
        }
        // A mark that stays goes with the next save.
        let _ = unfinished::end(&folder);
        self.count();
        Ok(Saved { generation, rows, bytes })
    }

    /// Puts the tables of a checkpoint in the place of all, and what it says of pushes in the place of what was known. When
    /// it fails, they stay as they are.
    pub(crate) fn restore(
        &self,
        tables: &Tables,
        pushers: &Pushers,
        name: &str,
    ) -> Result<Restored, Refusal> {
        let base = self.base(name)?;
        let _alone = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        let (candidates, pushes, saved_unix_ms) = match self.source(name)? {
            Source::Own => self.own(tables, name)?,
            Source::Parts { folders, origin, noted } => {
                // Servers save that one by themselves, each at its own time.
                if name == LATEST && !noted && self.shards > 1 {
                    origin::note(&base, self.shard, self.shards, origin)?;
                }
                let together = Together { shard: self.shard, shards: self.shards, log: self.log.get() };
                let (candidates, pushes) = together.read(tables, &folders)?;
                (candidates, pushes, origin.saved_unix_ms)
            }
        };
        self.restored_unix_ms.fetch_max(saved_unix_ms, Ordering::Relaxed);
        let rows = candidates.iter().map(|candidate| candidate.table.len() as u64).sum();
        let restored = Restored { tables: candidates.len() as u64, rows };
        // Pushes go on meanwhile, and none may be applied twice to the tables that are restored. To them none comes before it
        // is known which pushes are in them; nor is one forgotten that came to them. What comes in between goes to the tables
        // that were there, and with them.
        if let Some(pushes) = pushes {
            pushers.restore(pushes);
        }
        tables.restore(candidates);
        Ok(restored)
    }

    /// What is read to restore the checkpoint of this name.
    fn source(&self, name: &str) -> Result<Source, Refusal> {
        let base = self.base(name)?;
        unfinished::check(&self.folder(name)?)?;
        let found = parts::find(&base)
            .map_err(|error| Refusal::io(format!("{}: list: {error}", base.display()), &error))?;
        if let Ok(Some(file)) = parts::lost(&base) {
            file.parent().map_or(Ok(()), unfinished::check)?;
        }
        let saved_unix_ms = |folder: &Path| Ok(About::of(folder)?.saved_unix_ms);
        // After the parts: who has saved one had noted before what it was made of.
        let noted = origin::noted(&self.folder(name)?);
        parts::choose(found, self.shard, self.shards, noted, saved_unix_ms)
    }

    /// Of which save of all servers the checkpoint of this name is part; 0: of none.
    pub(crate) fn saved(&self, name: &str) -> Result<u64, Refusal> {
        let _alone = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = match self.source(name)? {
            Source::Own => self.folder(name)?,
            // That the others are of the same is looked at where they are read.
            Source::Parts { folders, .. } => folders.into_iter().next().unwrap_or_default(),
        };
        let checkpoint = Checkpoint::open(&folder).map_err(|error| unknown(name, error))?;
        Ok(About::read(&checkpoint, &folder)?.number)
    }

    /// What this server has saved, each table within the limit that holds now, and when.
    fn own(
        &self,
        tables: &Tables,
        name: &str,
    ) -> Result<(Vec<Candidate>, Option<SavedPushers>, u64), Refusal> {
        let folder = self.folder(name)?;
        let checkpoint = Checkpoint::open(&folder).map_err(|error| unknown(name, error))?;
        let about = About::read(&checkpoint, &folder)?;
        about.check(&checkpoint, &folder, self.shard, self.shards)?;
        let mut candidates = Vec::new();
        for AboutTable { name, pinned, created_unix_ms, config } in about.tables {
            let asked = description::parse(&name, &config.to_string())?;
            let config = description::describe(&asked);
            let table = load(&checkpoint, &folder, &name, tables.limited(asked).budget_bytes)?;
            let home = pinned.map_or(Home::Sharded, Home::Pinned);
            candidates.push(Candidate { home, config, created_unix_ms, temporary: false, table });
        }
        Ok((candidates, pushes(&checkpoint, &folder)?, about.saved_unix_ms))
    }
}

impl About {
    fn read(checkpoint: &Checkpoint, folder: &Path) -> Result<About, Refusal> {
        if !checkpoint.blobs().iter().any(|blob| blob.name == BLOB) {
            return Err(damaged(folder, "it was not saved by a server"));
        }
        let about = checkpoint.blob(BLOB)?;
        serde_json::from_slice(&about).map_err(|error| damaged(folder, &format!("{BLOB}: {error}")))
    }

    fn of(folder: &Path) -> Result<About, Refusal> {
        About::read(&Checkpoint::open(folder)?, folder)
    }

    /// It must be of this server, and tell of the checkpoint's tables what its manifest tells: what one of them does not know
    /// of would be gone with the next save.
    fn check(&self, checkpoint: &Checkpoint, folder: &Path, shard: u16, shards: u16) -> Result<(), Refusal> {
        if (self.shard, self.shards) != (shard, shards) {
            let (folder, of) = (folder.display(), (self.shard, self.shards));
            let reason = format!(
                "{folder}: saved by server {} of {}, but this is the folder of {shard} of {shards}",
                of.0, of.1
            );
            return Err(Refusal::new(Fault::UnknownCheckpoint, reason));
        }
        self.check_tables(checkpoint.tables()).map_err(|reason| damaged(folder, &format!("{BLOB}: {reason}")))
    }

    fn check_tables(&self, saved: &[TableEntry]) -> Result<(), String> {
        let mut told: BTreeMap<&str, &AboutTable> = BTreeMap::new();
        for table in &self.tables {
            if told.insert(&table.name, table).is_some() {
                return Err(format!("it has two tables named {:?}", table.name));
            }
        }
        for TableEntry { name, config: saved, .. } in saved {
            let table = told
                .remove(name.as_str())
                .ok_or_else(|| format!("it does not name the table {name:?} of the manifest"))?;
            let config = description::parse(name, &table.config.to_string());
            let mut config = config.map_err(|refusal| refusal.reason)?;
            // The server may have had a tighter limit than was asked for.
            config.budget_bytes = saved.budget_bytes;
            if config != *saved {
                let [told, saved] = [&config, saved].map(description::describe);
                return Err(format!("table {name:?} is {told} here, and {saved} in the manifest"));
            }
        }
        told.keys().next().map_or(Ok(()), |name| Err(format!("the manifest has no table {name:?}")))
    }
}

/// A table as it was saved, but for its budget.
fn load(
    checkpoint: &Checkpoint,
    folder: &Path,
    name: &str,
    budget_bytes: Option<u64>,
) -> Result<Table, Refusal> {
    checkpoint.load_table_within(name, budget_bytes).map_err(|error| {
        let StoreError::TableFull { rows, budget_bytes, .. } = error else { return error.into() };
        let saved = checkpoint.tables().iter().find(|saved| saved.name == name);
        let all = saved.map_or(rows, |saved| saved.rows);
        let before = saved.and_then(|saved| saved.config.budget_bytes);
        let before = before.map_or("none".to_owned(), |bytes| format!("{bytes} bytes"));
        let reason = format!(
            "{}: table {name:?}: {rows} of its {all} rows fill the budget of {budget_bytes} bytes; it was saved with {before}; \
             start with a larger --table-budget",
            folder.display()
        );
        let rejected = all.saturating_sub(rows);
        Refusal::new(Fault::TableFull { rejected, rows, budget_bytes }, reason)
    })
}

/// What a checkpoint says of pushes; nothing, if it is from before this was saved.
fn pushes(checkpoint: &Checkpoint, folder: &Path) -> Result<Option<SavedPushers>, Refusal> {
    if !checkpoint.blobs().iter().any(|blob| blob.name == PUSHES_BLOB) {
        return Ok(None);
    }
    let pushes = checkpoint.blob(PUSHES_BLOB)?;
    let pushes = serde_json::from_slice(&pushes);
    pushes.map(Some).map_err(|error| damaged(folder, &format!("{PUSHES_BLOB}: {error}")))
}

fn damaged(folder: &Path, reason: &str) -> Refusal {
    Refusal::new(Fault::Damaged, format!("{}: {reason}", folder.display()))
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
    use sanderling_store::{Init, Optimizer, PushScale, TableConfig};

    const MANY: usize = 64;

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
        let (tables, pushers) = (Tables::new(None), Pushers::default());
        let checkpoints = Checkpoints::new(root.path().to_path_buf(), 0, 2, MANY);
        let (said, hears) = std::sync::mpsc::channel();
        checkpoints.tell(&Log(std::sync::Arc::new(move |event: Event| said.send(event).unwrap())));
        // What is no file cannot be removed as one.
        let folder = checkpoints.folder(LATEST).unwrap();
        std::fs::create_dir_all(folder.join("origin.json")).unwrap();
        for generation in [1, 2] {
            let saved = checkpoints.save(&tables, &pushers, LATEST, 0).unwrap();
            assert_eq!((saved.generation, saved.rows, saved.bytes), (generation, 0, 0));
            let said = hears.try_recv().unwrap().to_string();
            assert!(said.contains("shard-0-of-2/origin.json"), "{said}");
        }
    }

    /// What is restored is what the next save writes: a table that one of the two lists lacks would be lost by it.
    #[test]
    fn the_two_lists_of_tables_agree() {
        let block = |lr: f32| {
            format!(r#"{{"dims":2,"init":{{"type":"zero"}},"optimizer":{{"type":"sgd","lr":{lr}}}}}"#)
        };
        let told = |name: &str, lr: f32, more: &str| {
            format!(r#"{{"name":"{name}","pinned":null,"config":{{"blocks":[{}]{more}}}}}"#, block(lr))
        };
        let check = |tables: &[String], expected: Option<&str>| {
            let root = tempfile::tempdir().unwrap();
            // As one server's own, and as a part for two.
            for (name, shards) in [("x", 1), ("y", 2)] {
                let sgd = Optimizer::Sgd { lr: 0.5, l2: 0.0 };
                let config = TableConfig {
                    budget_bytes: Some(64 << 20),
                    ..TableConfig::single("t", 2, Init::Zero, sgd)
                };
                let table = Table::new(config).unwrap();
                table.push(&[1, 2, 3], &[1.0; 6], PushScale::default()).unwrap();
                let folder = root.path().join(name);
                let mut writer = CheckpointWriter::create(&folder).unwrap();
                writer.table(&table).unwrap();
                let about = format!(r#"{{"shard":0,"shards":1,"tables":[{}]}}"#, tables.join(","));
                writer.blob(BLOB, about.as_bytes()).unwrap();
                writer.commit().unwrap();
                let checkpoints = Checkpoints::new(root.path().to_path_buf(), 0, shards, MANY);
                let (tables, pushers) = (Tables::new(None), Pushers::default());
                match (checkpoints.restore(&tables, &pushers, name), expected) {
                    (Ok(restored), None) => assert_eq!(restored.tables, 1),
                    (Err(refusal), Some(expected)) => {
                        assert_eq!(refusal.fault, Fault::Damaged);
                        assert!(refusal.reason.contains(expected), "{}, not {expected}", refusal.reason);
                        assert!(refusal.reason.starts_with(folder.to_str().unwrap()), "{}", refusal.reason);
                    }
                    (other, expected) => panic!("{other:?}, not {expected:?}"),
                }
            }
        };
        let good = told("t", 0.5, "");
        check(std::slice::from_ref(&good), None);
        // What was asked for; the server's own limit was tighter.
        check(&[told("t", 0.5, r#","budget_bytes":100000000"#)], None);
        check(&[], Some("does not name the table \"t\""));
        check(&[good.clone(), good.clone()], Some("two tables named \"t\""));
        check(&[good, told("u", 0.5, "")], Some("the manifest has no table \"u\""));
        check(&[told("t", 3.0, "")], Some("\"lr\":3.0"));
        check(&[told("t", 0.5, r#","seed":2"#)], Some("\"seed\":2"));
        check(&[told("t", 0.5, r#","sead":2"#)], Some("unknown field `sead`"));
    }

    /// Of two numbers of shards, the later one is read: also where the clock has gone back since.
    #[test]
    fn what_is_saved_is_later_than_what_was_restored() {
        let root = tempfile::tempdir().unwrap();
        let (tables, pushers) = (Tables::new(None), Pushers::default());
        let of = |shard, shards| Checkpoints::new(root.path().to_path_buf(), shard, shards, MANY);
        let saved = |by: &Checkpoints| {
            by.save(&tables, &pushers, LATEST, 7).unwrap();
            let about = About::of(&by.folder(LATEST).unwrap()).unwrap();
            assert_eq!(about.number, 0);
            about.saved_unix_ms
        };
        let ahead = of(0, 1);
        ahead.restored_unix_ms.store(1 << 60, Ordering::Relaxed);
        assert_eq!(saved(&ahead), (1 << 60) + 1);
        // From the one server's part, and then from its own.
        for later in [2, 3] {
            let one_of_two = of(0, 2);
            one_of_two.restore(&tables, &pushers, LATEST).unwrap();
            assert_eq!(saved(&one_of_two), (1 << 60) + later);
        }
    }
}
