//! Restoring a checkpoint on another number of shards: reads all parts in turn and keeps the rows of this server's
//! keys.

use std::path::{Path, PathBuf};

use sanderling_replica::push_dedup::SavedPushDedup;
use sanderling_store::{Checkpoint, TableConfig};
use sanderling_wire::{Fault, Home};

use super::record::{ServerRecord, TableRecord, pushes};
use super::state_name::open;
use crate::description;
use crate::event::{Event, Log};
use crate::placement::{Placement, Slots};
use crate::refusal::Refusal;
use crate::tables::{Candidate, Tables};

/// The server that restores.
pub(super) struct Resharder<'a> {
    pub(super) shard: u16,
    pub(super) shards: u16,
    pub(super) log: Option<&'a Log>,
    /// The deltas of each part that are read. None: all.
    pub(super) deltas: Option<usize>,
    /// The slots of this server's group, if slots may move: it keeps their keys.
    pub(super) slots: Option<&'a Slots>,
}

/// One part. Parts are opened one at a time, because each may have thousands of files.
struct Part<'a> {
    folder: &'a Path,
    generation: u64,
    record: ServerRecord,
}

/// Requires that all parts belong to one save.
fn check_numbers(parts: &[Part<'_>]) -> Result<(), Refusal> {
    let Some((first, others)) = parts.split_first() else { return Ok(()) };
    let Some(other) = others.iter().find(|part| part.record.number != first.record.number) else {
        return Ok(());
    };
    let reason = format!(
        "{} and {} are of different saves, since one of them failed on some servers; restore another checkpoint",
        first.folder.display(),
        other.folder.display()
    );
    Err(Refusal::new(Fault::UnknownCheckpoint, reason))
}

impl Part<'_> {
    /// Opens the part again and requires that it is unchanged.
    fn open_again(&self, deltas: Option<usize>) -> Result<Checkpoint, Refusal> {
        let checkpoint = open(self.folder, deltas)?;
        if checkpoint.generation() == self.generation {
            return Ok(checkpoint);
        }
        let reason = format!("{}: it was saved again while it was restored", self.folder.display());
        Err(Refusal::new(Fault::Damaged, reason))
    }
}

impl Resharder<'_> {
    /// Reads the tables with this server's rows from parts in shard order. All known pushes become "outcome unknown".
    pub(super) fn read(
        &self,
        tables: &Tables,
        folders: &[PathBuf],
    ) -> Result<(Vec<Candidate>, Option<SavedPushDedup>), Refusal> {
        let mut parts = Vec::new();
        for (shard, folder) in (0..).zip(folders) {
            let checkpoint = open(folder, self.deltas)?;
            let record = ServerRecord::read(&checkpoint, folder)?;
            record.check(&checkpoint, folder, shard, folders.len() as u16)?;
            parts.push(Part { folder, generation: checkpoint.generation(), record });
        }
        check_numbers(&parts)?;
        let mut candidates = self.tables(tables, &parts)?;
        let placement =
            Placement::new(self.shard, self.shards, vec![String::new(); usize::from(self.shards)]);
        let mut known = Vec::new();
        for part in &parts {
            let (folder, checkpoint) = (part.folder, part.open_again(self.deltas)?);
            for TableRecord { name, .. } in &part.record.tables {
                let Some(candidate) = candidates.iter_mut().find(|candidate| candidate.table.name() == name)
                else {
                    continue;
                };
                let home = candidate.home;
                let here = |key| {
                    home != Home::Sharded
                        || self.slots.map_or_else(|| placement.is_here(key), |slots| slots.is_here(key))
                };
                let rows = checkpoint.load_rows(name, &mut candidate.table, here)?;
                if let Some(log) = self.log {
                    let (folder, table) = (folder.display().to_string(), name.clone());
                    log.report(Event::RowsTaken { folder, table, rows });
                }
            }
            known.extend(pushes(&checkpoint, folder)?);
        }
        // Parts of older versions have no push history. The server keeps its own then.
        let known = (!known.is_empty()).then(|| SavedPushDedup::merged(known));
        Ok((candidates, known))
    }

    /// Creates empty tables for all tables that this server has a share of.
    fn tables(&self, tables: &Tables, parts: &[Part<'_>]) -> Result<Vec<Candidate>, Refusal> {
        let mut candidates: Vec<Candidate> = Vec::new();
        for Part { folder, record, .. } in parts {
            for TableRecord { name, pinned, created_unix_ms, config } in &record.tables {
                let home = pinned.map_or(Home::Sharded, Home::Pinned);
                let own = self.slots.map_or(self.shard, Slots::group);
                match home {
                    Home::Pinned(server) if self.slots.is_none() && server >= u32::from(self.shards) => {
                        let reason = format!(
                            "{}: table {name:?} is pinned to server {server}, and there are {} now; drop it before the \
                             checkpoint is saved, or start more servers",
                            folder.display(),
                            self.shards
                        );
                        return Err(Refusal::new(Fault::UnknownCheckpoint, reason));
                    }
                    Home::Pinned(server) if server != u32::from(own) => continue,
                    _ => {}
                }
                let asked = description::parse(name, &config.to_string())?;
                let asked = self.with_share_of_budget(asked, home, record.shards);
                let config = description::describe(&asked);
                match candidates.iter().find(|candidate| candidate.table.name() == name) {
                    Some(other) if (other.home, &other.config) == (home, &config) => {}
                    Some(other) => {
                        let reason = format!(
                            "{}: table {name:?} is not the same in all parts: {config} here and {} before",
                            folder.display(),
                            other.config
                        );
                        return Err(Refusal::new(Fault::Damaged, reason));
                    }
                    None => {
                        candidates.push(Candidate {
                            home,
                            config,
                            created_unix_ms: *created_unix_ms,
                            temporary: false,
                            table: tables.make(tables.limited(asked), false)?,
                        });
                    }
                }
            }
        }
        Ok(candidates)
    }

    /// Divides a table's memory limit among the new shards. The sum stays the same.
    fn with_share_of_budget(&self, mut config: TableConfig, home: Home, shards_before: u16) -> TableConfig {
        if home == Home::Sharded {
            let share = |bytes: u64| {
                let all = u128::from(bytes) * u128::from(shards_before);
                u64::try_from(all.div_ceil(u128::from(self.shards))).unwrap_or(u64::MAX)
            };
            config.budget_bytes = config.budget_bytes.map(share);
        }
        config
    }
}
