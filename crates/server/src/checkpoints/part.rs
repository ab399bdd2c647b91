//! The part of a checkpoint that a server saves, and the parts that it restores.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use sanderling_wire::Fault;

use super::origin::{self, Origin};
use super::parts::{self, Source};
use super::record::ServerRecord;
use super::reshard::Resharder;
use super::state_name::parse_state;
use super::{Checkpoints, LATEST, LogUse, unfinished};
use crate::placement::Slots;
use crate::refusal::Refusal;
use crate::tables::{Candidate, Tables};

/// The part of a checkpoint that a server saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) shard: u16,
    /// Parts of the checkpoint.
    pub(crate) shards: u16,
    /// Whether each part has the keys that a server of so many has; otherwise slots have moved.
    pub(crate) is_even: bool,
}

impl Part {
    /// Its folder in a checkpoint.
    pub(super) fn folder(self, base: &Path) -> PathBuf {
        parts::folder(base, self.shard, self.shards)
    }
}

impl Checkpoints {
    pub(super) fn part(&self) -> Part {
        *self.part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, this server saves this part: slots have moved.
    pub(crate) fn set_part(&self, part: Part) {
        *self.part.lock().unwrap_or_else(PoisonError::into_inner) = part;
    }

    /// Chooses the parts to restore a checkpoint from.
    pub(super) fn source(&self, name: &str) -> Result<Source, Refusal> {
        let base = self.base(name)?;
        unfinished::check(&self.folder(name)?)?;
        let found = parts::find(&base)
            .map_err(|error| Refusal::io(format!("{}: list: {error}", base.display()), &error))?;
        if let Ok(Some(file)) = parts::lost(&base) {
            file.parent().map_or(Ok(()), unfinished::check)?;
        }
        let saved_unix_ms = |folder: &Path| Ok(ServerRecord::of(folder)?.saved_unix_ms);
        // Read after the parts: a shard with a saved part had written its note before.
        let noted = origin::noted(&self.folder(name)?);
        let Part { shard, shards, .. } = self.part();
        let chosen = parts::choose(found, shard, shards, noted, saved_unix_ms)?;
        if chosen == Source::Own && shards > 1 { self.own_or_all(name, &base) } else { Ok(chosen) }
    }

    /// The tables of a checkpoint, or of its first deltas (`NAME@DELTAS`), with the rows of the slots that this group has
    /// now.
    pub(crate) fn of_group(
        &self,
        tables: &Tables,
        name: &str,
        slots: &Slots,
    ) -> Result<Vec<Candidate>, Refusal> {
        let (name, deltas) = parse_state(name)?;
        let base = self.base(name)?;
        let _alone = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        let Part { shard, shards, is_even } = self.part();
        let resharder = Resharder { shard, shards, log: self.log.get(), deltas, slots: Some(slots) };
        let of_all = |folders: Vec<PathBuf>| Ok::<_, Refusal>((resharder.read(tables, &folders)?.0, folders));
        let (candidates, folders) = match self.source(name)? {
            Source::Own if is_even => {
                (self.own(tables, name, deltas, LogUse::Without)?.candidates, vec![self.folder(name)?])
            }
            Source::Own => of_all((0..shards).map(|shard| parts::folder(&base, shard, shards)).collect())?,
            Source::Parts { folders, .. } => of_all(folders)?,
        };
        self.note_trained(&folders, deltas)?;
        Ok(candidates)
    }

    /// The own part, or all parts if slots had moved when they were saved.
    fn own_or_all(&self, name: &str, base: &Path) -> Result<Source, Refusal> {
        let (folder, shards) = (self.folder(name)?, self.part().shards);
        // A damaged part is refused where it is read.
        let Ok(record) = ServerRecord::of(&folder) else { return Ok(Source::Own) };
        if record.is_even {
            return Ok(Source::Own);
        }
        if name == LATEST {
            let reason = format!(
                "{}: a cluster saved it whose slots had moved between its groups; restore one that was saved by name \
                 (sanderling ctl save NAME)",
                folder.display()
            );
            return Err(Refusal::new(Fault::UnknownCheckpoint, reason));
        }
        let folders = (0..shards).map(|shard| parts::folder(base, shard, shards)).collect();
        let origin = Origin { shards, saved_unix_ms: record.saved_unix_ms };
        Ok(Source::Parts { folders, origin, noted: true })
    }
}
