//! The note in the folder of a shard that has not saved since the number of shards changed: its rows are where the servers
//! before it saved them. The first shard of the new number to start leaves one for each, and a shard's save takes its own
//! away. So a part that is gone differs on disk from one that was never there: of the first, no note is left.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::parts;
use crate::refusal::Refusal;

const NOTE: &str = "origin.json";

/// Whose parts have the rows: those of so many servers, the last of them saved then. Once they save again, it is another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Origin {
    pub(super) shards: u16,
    pub(super) saved_unix_ms: u64,
}

/// What is noted in the folder of a shard. A note that cannot be read is none: then it is refused what is in doubt.
pub(super) fn noted(folder: &Path) -> Option<Origin> {
    serde_json::from_slice(&std::fs::read(folder.join(NOTE)).ok()?).ok()
}

/// Notes for all shards. That of this one comes last: who finds its own can tell that nobody has to write any more.
pub(super) fn note(base: &Path, shard: u16, shards: u16, origin: Origin) -> Result<(), Refusal> {
    let bytes = serde_json::to_vec(&origin).expect("numbers become JSON");
    for at in (0..shards).filter(|&at| at != shard).chain([shard]) {
        let folder = parts::folder(base, at, shards);
        let path = folder.join(NOTE);
        let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, &bytes));
        written.map_err(|error| Refusal::io(format!("{}: write: {error}", path.display()), &error))?;
    }
    Ok(())
}

/// The shard has saved: from now on its rows are in its own part alone.
pub(super) fn remove(folder: &Path) -> Result<(), Refusal> {
    let path = folder.join(NOTE);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Refusal::io(format!("{}: remove: {error}", path.display()), &error))
        }
        _ => Ok(()),
    }
}
