//! The blobs of a server in a checkpoint: its description of the tables, which must match the store's manifest, and the
//! push history.

use std::collections::BTreeMap;
use std::path::Path;

use sanderling_replica::push_dedup::SavedPushDedup;
use sanderling_store::{Checkpoint, TableEntry};
use sanderling_wire::Fault;
use serde::{Deserialize, Serialize};

use crate::delta_log::LogPosition;
use crate::description;
use crate::refusal::Refusal;

/// The blob with the server's description of its tables.
pub(super) const BLOB: &str = "server.json";
/// The blob with the push history.
pub(super) const PUSHES_BLOB: &str = "pushes.json";

/// The server's description of a checkpoint, as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ServerRecord {
    pub(super) shard: u16,
    pub(super) shards: u16,
    /// Whether the keys are those of a server of so many. Otherwise slots had moved: all parts are read.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub(super) is_even: bool,
    /// Time of the save. Absent in checkpoints of older versions.
    #[serde(default)]
    pub(super) saved_unix_ms: u64,
    /// Number of the save that all servers share. 0: none, or a checkpoint of an older version.
    #[serde(default)]
    pub(super) number: u64,
    pub(super) tables: Vec<TableRecord>,
    /// Place of the checkpoint in a log. None: there is no log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) log: Option<LogPosition>,
}

fn yes() -> bool {
    true
}

fn is_true(value: &bool) -> bool {
    *value
}

/// One table in a [`ServerRecord`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct TableRecord {
    pub(super) name: String,
    /// The server that holds all rows. None: the table is sharded.
    pub(super) pinned: Option<u32>,
    /// Creation time. 0: unknown, or a checkpoint of an older version.
    #[serde(default)]
    pub(super) created_unix_ms: u64,
    pub(super) config: serde_json::Value,
}

impl ServerRecord {
    /// Reads the record of an open checkpoint.
    pub(super) fn read(checkpoint: &Checkpoint, folder: &Path) -> Result<ServerRecord, Refusal> {
        if !checkpoint.blobs().iter().any(|blob| blob.name == BLOB) {
            return Err(damaged(folder, "it was not saved by a server"));
        }
        let record = checkpoint.blob(BLOB)?;
        serde_json::from_slice(&record).map_err(|error| damaged(folder, &format!("{BLOB}: {error}")))
    }

    /// Opens a checkpoint and reads its record.
    pub(super) fn of(folder: &Path) -> Result<ServerRecord, Refusal> {
        ServerRecord::read(&Checkpoint::open(folder)?, folder)
    }

    /// Requires that the blob belongs to this server and lists the same tables as the manifest. A table in only one
    /// list would be lost with the next save.
    pub(super) fn check(
        &self,
        checkpoint: &Checkpoint,
        folder: &Path,
        shard: u16,
        shards: u16,
    ) -> Result<(), Refusal> {
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
        let mut told: BTreeMap<&str, &TableRecord> = BTreeMap::new();
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
            // The server may have had a tighter memory limit than the client asked for.
            config.budget_bytes = saved.budget_bytes;
            if config != *saved {
                let [told, saved] = [&config, saved].map(description::describe);
                return Err(format!("table {name:?} is {told} here, and {saved} in the manifest"));
            }
        }
        told.keys().next().map_or(Ok(()), |name| Err(format!("the manifest has no table {name:?}")))
    }
}

/// Reads the push history. None: the checkpoint is of an older version.
pub(super) fn pushes(checkpoint: &Checkpoint, folder: &Path) -> Result<Option<SavedPushDedup>, Refusal> {
    if !checkpoint.blobs().iter().any(|blob| blob.name == PUSHES_BLOB) {
        return Ok(None);
    }
    let pushes = checkpoint.blob(PUSHES_BLOB)?;
    let pushes = serde_json::from_slice(&pushes);
    pushes.map(Some).map_err(|error| damaged(folder, &format!("{PUSHES_BLOB}: {error}")))
}

/// The refusal for a damaged checkpoint.
pub(super) fn damaged(folder: &Path, reason: &str) -> Refusal {
    Refusal::new(Fault::Damaged, format!("{}: {reason}", folder.display()))
}

#[cfg(test)]
mod tests {
    use sanderling_store::{CheckpointWriter, Init, Optimizer, PushScale, Table, TableConfig};

    use super::*;
    use crate::checkpoints::{Checkpoints, LogUse};
    use crate::tables::Tables;
    use sanderling_replica::push_dedup::PushDedup;

    const MANY: usize = 64;

    /// The next save writes the restored tables, so a table that only one list has would be lost.
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
            // As the server's own part, and as one part for two servers.
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
                let record = format!(r#"{{"shard":0,"shards":1,"tables":[{}]}}"#, tables.join(","));
                writer.blob(BLOB, record.as_bytes()).unwrap();
                writer.commit().unwrap();
                let checkpoints = Checkpoints::new(root.path().to_path_buf(), 0, shards, MANY);
                let (tables, push_dedup) = (Tables::new(None), PushDedup::default());
                match (checkpoints.restore(&tables, &push_dedup, name, LogUse::Without), expected) {
                    (Ok((restored, _)), None) => assert_eq!(restored.tables, 1),
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
        // The requested limit. The server's own limit was tighter.
        check(&[told("t", 0.5, r#","budget_bytes":100000000"#)], None);
        check(&[], Some("does not name the table \"t\""));
        check(&[good.clone(), good.clone()], Some("two tables named \"t\""));
        check(&[good, told("u", 0.5, "")], Some("the manifest has no table \"u\""));
        check(&[told("t", 3.0, "")], Some("\"lr\":3.0"));
        check(&[told("t", 0.5, r#","seed":2"#)], Some("\"seed\":2"));
        check(&[told("t", 0.5, r#","sead":2"#)], Some("unknown field `sead`"));
    }
}
