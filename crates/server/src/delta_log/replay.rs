//! Applies a log to the tables of the checkpoint before it.

use std::collections::HashMap;
use std::path::Path;

use sanderling_replica::push_dedup::{LoggedPushes, SavedPushDedup};
use sanderling_store::{LogEnd, LogReader, LogTarget, Table};
use sanderling_wire::{Fault, Home};
use serde::{Deserialize, Serialize};

use super::LogPosition;
use crate::description;
use crate::refusal::Refusal;
use crate::tables::{Candidate, Tables};

/// The numbers of the tables in the log, by name.
pub(crate) type Followed = HashMap<String, u32>;

/// A table in the list of a group.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ListedTable {
    /// Number in the log. Another number of a name is another table, which begins without rows.
    pub(super) number: u32,
    pub(super) name: String,
    /// The server that holds all rows. None: the table is sharded.
    pub(super) pinned: Option<u32>,
    pub(super) created_unix_ms: u64,
    pub(super) config: serde_json::Value,
}

/// The state that the groups change.
struct Replayed<'a> {
    tables: &'a Tables,
    candidates: Vec<(u32, Candidate)>,
    pushes: Option<LoggedPushes>,
}

/// Applies the log after a checkpoint to the checkpoint's tables; returns these with their push history, if groups
/// have one, the numbers of the tables, and the end of the log.
#[allow(clippy::type_complexity)] // what a start needs
pub(crate) fn replay(
    folder: &Path,
    position: &LogPosition,
    cut: bool,
    tables: &Tables,
    candidates: Vec<Candidate>,
) -> Result<(Vec<Candidate>, Option<SavedPushDedup>, Followed, LogEnd), Refusal> {
    let reader = LogReader::open(folder, position.id, position.segment, cut)?;
    let number = |candidate: &Candidate| {
        let listed = position.tables.iter().find(|(name, _)| name == candidate.table.name());
        listed.map_or(0, |(_, number)| *number)
    };
    let candidates = candidates.into_iter().map(|candidate| (number(&candidate), candidate)).collect();
    let mut replayed = Replayed { tables, candidates, pushes: None };
    let end = reader.replay(&mut replayed)?;
    if end.group < position.through {
        let reason = format!(
            "{}: the log ends with group {}, but the checkpoint needs those up to {}: put its files back, or start with \
             --restore latest, without the log",
            folder.display(),
            end.group,
            position.through
        );
        return Err(Refusal::new(Fault::Damaged, reason));
    }
    let Replayed { candidates, pushes, .. } = replayed;
    let named = |(number, candidate): &(u32, Candidate)| {
        (*number > 0).then(|| (candidate.table.name().to_owned(), *number))
    };
    let followed = candidates.iter().filter_map(named).collect();
    let candidates = candidates.into_iter().map(|(_, candidate)| candidate).collect();
    Ok((candidates, pushes.map(LoggedPushes::into_saved), followed, end))
}

impl LogTarget for Replayed<'_> {
    fn tables(&mut self, list: &[u8]) -> Result<(), String> {
        let listed: Vec<ListedTable> =
            serde_json::from_slice(list).map_err(|error| format!("list of tables: {error}"))?;
        let mut before = std::mem::take(&mut self.candidates);
        for ListedTable { number, name, pinned, created_unix_ms, config } in listed {
            let same = before
                .iter()
                .position(|(other, candidate)| *other == number && candidate.table.name() == name);
            let candidate = match same {
                Some(at) => before.swap_remove(at).1,
                None => {
                    let made = description::parse(&name, &config.to_string()).and_then(|asked| {
                        let config = description::describe(&asked);
                        Ok((config, self.tables.make(self.tables.limited(asked), false)?))
                    });
                    let (config, table) = made.map_err(|refusal| refusal.reason)?;
                    let home = pinned.map_or(Home::Sharded, Home::Pinned);
                    Candidate { home, config, created_unix_ms, temporary: false, table }
                }
            };
            self.candidates.push((number, candidate));
        }
        Ok(())
    }

    fn table(&mut self, number: u32) -> Option<&mut Table> {
        let found = self.candidates.iter_mut().find(|(other, _)| *other == number);
        found.map(|(_, candidate)| &mut candidate.table)
    }

    fn pushes(&mut self, history: &[u8]) -> Result<(), String> {
        let part = serde_json::from_slice(history).map_err(|error| format!("push history: {error}"))?;
        self.pushes.get_or_insert_default().add(part);
        Ok(())
    }
}
