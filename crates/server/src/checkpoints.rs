//! Saving all tables of a server to a folder and reading them back. Knows where checkpoints are and what a client may call
//! one; their bytes are the store's.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sanderling_store::{Checkpoint, CheckpointWriter, StoreError};
use sanderling_wire::{Fault, Home, Restored, Saved};
use serde::{Deserialize, Serialize};

use crate::description;
use crate::limit::CHECKPOINT_DEPTH_MAX;
use crate::refusal::Refusal;
use crate::tables::{Candidate, Tables};

/// The checkpoint that a server saves by itself, and starts from.
pub const LATEST: &str = "latest";
/// The blob that says what the store does not know of the tables.
const BLOB: &str = "server.json";

/// The checkpoints of one server.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    root: PathBuf,
    shard: u16,
    shards: u16,
    /// Two may not write to one folder.
    working: Mutex<()>,
}

#[derive(Debug, Serialize, Deserialize)]
struct About {
    shard: u16,
    shards: u16,
    tables: Vec<AboutTable>,
}

#[derive(Debug, Serialize, Deserialize)]
struct AboutTable {
    name: String,
    /// The server that has all of it; none when it is sharded.
    pinned: Option<u32>,
    config: serde_json::Value,
}

impl Checkpoints {
    /// Those below `root`.
    pub(crate) fn new(root: PathBuf, shard: u16, shards: u16) -> Checkpoints {
        Checkpoints { root, shard, shards, working: Mutex::default() }
    }

    /// Where the checkpoint of this name is. No name leads out of the root.
    fn folder(&self, name: &str) -> Result<PathBuf, Refusal> {
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
        let folder = self.root.join(name);
        // Servers of one cluster may share a root.
        Ok(match self.shards {
            1 => folder,
            shards => folder.join(format!("shard-{}-of-{shards}", self.shard)),
        })
    }

    /// Is there a checkpoint of this name?
    pub(crate) fn has(&self, name: &str) -> bool {
        self.folder(name).is_ok_and(|folder| folder.join("manifest.json").exists())
    }

    /// Saves all tables while requests go on. The checkpoint that was there is intact until the new one is whole.
    pub(crate) fn save(&self, tables: &Tables, name: &str) -> Result<Saved, Refusal> {
        let folder = self.folder(name)?;
        let _alone = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = tables.directory();
        let about = directory.entries.iter().map(|entry| AboutTable {
            name: entry.table.name().to_owned(),
            pinned: match entry.home {
                Home::Sharded => None,
                Home::Pinned(server) => Some(server),
            },
            config: serde_json::from_str(&entry.config).expect("it was made from a value"),
        });
        let about = About { shard: self.shard, shards: self.shards, tables: about.collect() };
        let mut writer = CheckpointWriter::create(&folder)?;
        for entry in &directory.entries {
            writer.table(&entry.table)?;
        }
        writer.blob(BLOB, &serde_json::to_vec(&about).expect("names and numbers become JSON"))?;
        let generation = writer.commit()?;
        let written = Checkpoint::open(&folder)?;
        let (rows, bytes) = written
            .tables()
            .iter()
            .fold((0, 0), |(rows, bytes), table| (rows + table.rows, bytes + table.bytes));
        Ok(Saved { generation, rows, bytes })
    }

    /// Puts the tables of a checkpoint in the place of all. When it fails, they stay as they are.
    pub(crate) fn restore(&self, tables: &Tables, name: &str) -> Result<Restored, Refusal> {
        let folder = self.folder(name)?;
        let _alone = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        let checkpoint = Checkpoint::open(&folder).map_err(|error| unknown(name, error))?;
        let about = self.about(&checkpoint, &folder)?;
        let mut candidates = Vec::new();
        for AboutTable { name, pinned, config } in about.tables {
            let table = checkpoint.load_table(&name)?;
            let config = description::describe(&description::parse(&name, &config.to_string())?);
            let home = pinned.map_or(Home::Sharded, Home::Pinned);
            candidates.push(Candidate { home, config, table });
        }
        let rows = candidates.iter().map(|candidate| candidate.table.len() as u64).sum();
        let restored = Restored { tables: candidates.len() as u64, rows };
        tables.restore(candidates);
        Ok(restored)
    }

    fn about(&self, checkpoint: &Checkpoint, folder: &Path) -> Result<About, Refusal> {
        let damaged =
            |reason: String| Refusal::new(Fault::Damaged, format!("{}: {reason}", folder.display()));
        if !checkpoint.blobs().iter().any(|blob| blob.name == BLOB) {
            return Err(damaged("it was not saved by a server".to_owned()));
        }
        let about: About = serde_json::from_slice(&checkpoint.blob(BLOB)?)
            .map_err(|error| damaged(format!("{BLOB}: {error}")))?;
        if (about.shard, about.shards) != (self.shard, self.shards) {
            let reason = format!(
                "{}: saved by server {} of {}, this is {} of {}",
                folder.display(),
                about.shard,
                about.shards,
                self.shard,
                self.shards
            );
            return Err(Refusal::new(Fault::UnknownCheckpoint, reason));
        }
        Ok(about)
    }
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

    #[test]
    fn names_stay_below_the_root() {
        let checkpoints = Checkpoints::new("/data".into(), 0, 1);
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
        ] {
            assert_eq!(checkpoints.folder(name).ok(), expected.map(PathBuf::from), "{name:?}");
        }
        let sharded = Checkpoints::new("/data".into(), 1, 2);
        assert_eq!(sharded.folder("x").ok(), Some("/data/x/shard-1-of-2".into()));
    }
}
