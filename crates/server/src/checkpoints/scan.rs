//! The checkpoints of one server and their sizes, from a scan of its folder. The scan opens no checkpoint.

use std::io;
use std::path::Path;

use super::parts;
use super::unfinished::{MANIFEST, is_data};
use crate::limit::CHECKPOINT_DEPTH_MAX;

/// Directory entries that a scan visits. Checkpoints beyond them are not listed.
const ENTRIES_MAX: usize = 1 << 18;

/// One checkpoint of a server, for a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointStatus {
    /// Name to restore it by.
    pub name: String,
    /// Bytes of this server's part.
    pub bytes: u64,
    /// Time of the save, in milliseconds since 1970.
    pub saved_unix_ms: u64,
}

/// Lists the checkpoints of a shard, ascending by name. Unreadable ones are left out.
pub(super) fn run(root: &Path, shard: u16, shards: u16) -> Vec<CheckpointStatus> {
    let mut scan = Scan { shard, shards, entries_left: ENTRIES_MAX, found: Vec::new() };
    scan.look(root, "", 0);
    scan.found.sort_by(|one, other| one.name.cmp(&other.name));
    scan.found
}

struct Scan {
    shard: u16,
    shards: u16,
    entries_left: usize,
    found: Vec<CheckpointStatus>,
}

impl Scan {
    /// Scans the folder of the checkpoint `name` and the folders below it.
    fn look(&mut self, folder: &Path, name: &str, depth: usize) {
        if depth > 0
            && let Ok(Some(status)) = self.measure(&parts::folder(folder, self.shard, self.shards), name)
        {
            self.found.push(status);
        }
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        for entry in entries.flatten() {
            if self.entries_left == 0 {
                return;
            }
            self.entries_left -= 1;
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let file_name = entry.file_name();
            let Some(part) = file_name.to_str().filter(|part| is_folder && !part.starts_with('.')) else {
                continue;
            };
            if depth < CHECKPOINT_DEPTH_MAX && parts::of_name(part).is_none() {
                let below = if name.is_empty() { part.to_owned() } else { format!("{name}/{part}") };
                self.look(&entry.path(), &below, depth + 1);
            }
        }
    }

    fn measure(&mut self, part: &Path, name: &str) -> io::Result<Option<CheckpointStatus>> {
        let manifest = match std::fs::metadata(part.join(MANIFEST)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            manifest => manifest?,
        };
        let saved = manifest.modified()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let mut bytes = manifest.len();
        for entry in std::fs::read_dir(part)?.flatten() {
            self.entries_left = self.entries_left.saturating_sub(1);
            if entry.file_name().to_str().is_some_and(is_data) {
                bytes += entry.metadata().map_or(0, |file| file.len());
            }
        }
        let saved_unix_ms = saved.as_millis() as u64;
        Ok(Some(CheckpointStatus { name: name.to_owned(), bytes, saved_unix_ms }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checkpoints_of_a_shard_are_those_with_its_part() {
        let root = tempfile::tempdir().unwrap();
        let make = |folder: &str, files: &[(&str, usize)]| {
            let folder = root.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            files
                .iter()
                .for_each(|(name, bytes)| std::fs::write(folder.join(name), vec![0; *bytes]).unwrap());
        };
        make("latest", &[(MANIFEST, 10), ("g1-0.table", 100), ("g1-1.blob", 5), ("other", 7)]);
        make("daily/2026-11-28", &[(MANIFEST, 1)]);
        make("daily/2026-11-29/shard-0-of-2", &[(MANIFEST, 2), ("g3-0.table", 20)]);
        make("daily/2026-11-29/shard-1-of-2", &[(MANIFEST, 3)]);
        make("lost", &[("g1-0.table", 100)]);
        make(".hidden", &[(MANIFEST, 1)]);
        let found = |shard, shards| -> Vec<(String, u64)> {
            run(root.path(), shard, shards).into_iter().map(|found| (found.name, found.bytes)).collect()
        };
        assert_eq!(found(0, 1), [("daily/2026-11-28".to_owned(), 1), ("latest".to_owned(), 115)]);
        assert_eq!(found(0, 2), [("daily/2026-11-29".to_owned(), 22)]);
        assert_eq!(found(1, 2), [("daily/2026-11-29".to_owned(), 3)]);
        assert!(run(root.path(), 0, 1).iter().all(|found| found.saved_unix_ms > 1_700_000_000_000));
        assert_eq!(found(0, 3), []);
        assert!(run(&root.path().join("nowhere"), 0, 1).is_empty());
    }
}
