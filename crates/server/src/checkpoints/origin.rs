//! Notes about where the rows of a shard are until its first save after the number of shards changed.
//!
//! The first shard of the new number to start writes a note for each shard, and a shard's save removes its own. So a
//! lost part (no note) differs on disk from a part that never existed (a note).

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::parts;
use crate::refusal::Refusal;
use crate::replace_file::replace_file;

const NOTE: &str = "origin.json";
/// Maximum length of a note. A longer file is not a note.
const NOTE_BYTES_MAX: u64 = 4096;

/// The parts that hold the rows: the number of shards that saved them, and the time of their last save.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Origin {
    pub(super) shards: u16,
    pub(super) saved_unix_ms: u64,
}

/// Reads the note in a shard's folder. An unreadable note counts as none, so that doubtful restores are refused.
pub(super) fn noted(folder: &Path) -> Option<Origin> {
    let mut bytes = Vec::new();
    let file = sanderling_store::open_regular(&folder.join(NOTE)).ok()?;
    file.take(NOTE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Writes and syncs the notes of all shards, because a later save is durable, too, and would make the other parts look
/// lost.
///
/// The note of this shard comes last: a shard that finds its own note knows that all of them exist.
pub(super) fn note(base: &Path, shard: u16, shards: u16, origin: Origin) -> Result<(), Refusal> {
    let bytes = serde_json::to_vec(&origin).expect("numbers become JSON");
    for at in (0..shards).filter(|&at| at != shard).chain([shard]) {
        let folder = parts::folder(base, at, shards);
        let written = write(&folder, shard, &bytes);
        written.map_err(|error| {
            Refusal::io(format!("{}: write: {error}", folder.join(NOTE).display()), &error)
        })?;
    }
    Ok(())
}

/// Writes a file atomically and syncs it. Another shard may write the same file at the same time.
fn write(folder: &Path, by: u16, bytes: &[u8]) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let new = folder.join(format!("{NOTE}.new-by-{by}"));
    replace_file(&folder.join(NOTE), &new, bytes)?;
    // The sync of a folder covers its entries, not the folder itself.
    if let Some(parent) = folder.parent() {
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

/// Removes the note after a save of the shard: its rows are in its own part now.
pub(super) fn remove(folder: &Path) -> Result<(), Refusal> {
    let path = folder.join(NOTE);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Refusal::io(format!("{}: remove: {error}", path.display()), &error))
        }
        _ => Ok(()),
    }
}
