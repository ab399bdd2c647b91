//! The note in the folder of a shard that has not saved since the number of shards changed: its rows are where the servers
//! before it saved them. The first shard of the new number to start leaves one for each, and a shard's save takes its own
//! away. So a part that is gone differs on disk from one that was never there: of the first, no note is left.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::parts;
use crate::refusal::Refusal;

const NOTE: &str = "origin.json";
/// A note is two numbers; what is longer is none.
const NOTE_BYTES_MAX: u64 = 4096;

/// Whose parts have the rows: those of so many servers, the last of them saved then. Once they save again, it is another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Origin {
    pub(super) shards: u16,
    pub(super) saved_unix_ms: u64,
}

/// What is noted in the folder of a shard. A note that cannot be read is none: then it is refused what is in doubt.
pub(super) fn noted(folder: &Path) -> Option<Origin> {
    let mut bytes = Vec::new();
    let file = sanderling_store::open_regular(&folder.join(NOTE)).ok()?;
    file.take(NOTE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Notes for all shards, on the device when it returns: a save that follows is so, and without them it would say of the
/// others that theirs are gone. That of this one comes last: who finds its own can tell that nobody has to write any more.
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

/// Whole or not at all, and on the device. Another shard may write the same at the same time.
fn write(folder: &Path, by: u16, bytes: &[u8]) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let new = folder.join(format!("{NOTE}.new-by-{by}"));
    let mut file = sanderling_store::create_regular(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, folder.join(NOTE))?;
    // Syncing a folder keeps what is in it, but not itself.
    for folder in folder.ancestors().take(2) {
        File::open(folder)?.sync_all()?;
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
