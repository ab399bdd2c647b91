//! A lock on the checkpoint folder of a shard, so that two servers do not overwrite each other's files.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long to retry a lock that another process holds. A child process inherits all open files, locks included, until
/// it executes another program. A lock that was just released can look taken for that time.
const TRIED_FOR: Duration = Duration::from_secs(1);
/// Interval between two attempts.
const TRIED_EVERY: Duration = Duration::from_millis(10);

/// The lock of one shard below a root folder. The system releases it when the process ends.
#[derive(Debug)]
pub(crate) struct FolderLock {
    _locked: File,
}

impl FolderLock {
    /// Creates the root folder if necessary and takes the shard's lock.
    ///
    /// # Errors
    /// The folder cannot be written to, or another server holds the lock. The text says which.
    pub(crate) fn new(root: &Path, shard: u16, shards: u16) -> Result<FolderLock, String> {
        let at = |error: std::io::Error| {
            format!("{}: cannot be written to, so nothing could be saved there: {error}", root.display())
        };
        std::fs::create_dir_all(root).map_err(at)?;
        // Checkpoint names do not begin with a dot.
        let path = root.join(format!(".shard-{shard}-of-{shards}.lock"));
        let mut file =
            File::options().create(true).truncate(false).read(true).write(true).open(path).map_err(at)?;
        let start = Instant::now();
        let locked = loop {
            match file.try_lock() {
                Err(TryLockError::WouldBlock) if start.elapsed() < TRIED_FOR => {
                    std::thread::sleep(TRIED_EVERY);
                }
                locked => break locked,
            }
        };
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                return Err(format!(
                    "{}: process {} serves or saves shard {shard} of {shards} there; end it, or name another folder",
                    root.display(),
                    holder.trim()
                ));
            }
            // The file system has no locks, so its users must prevent conflicts themselves.
            Err(TryLockError::Error(_)) => {}
        }
        let note = |file: &mut File| -> std::io::Result<()> {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        note(&mut file).map_err(at)?;
        Ok(FolderLock { _locked: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_has_one_server() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("new/tables");
        let first = FolderLock::new(&root, 0, 2).unwrap();
        let _other_shard = FolderLock::new(&root, 1, 2).unwrap();
        let refused = FolderLock::new(&root, 0, 2).unwrap_err();
        assert!(refused.contains("shard 0 of 2"), "{refused}");
        assert!(refused.contains(&format!("process {} ", std::process::id())), "{refused}");
        drop(first);
        let second = FolderLock::new(&root, 0, 2).unwrap();
        // A lock that is released soon is waited for.
        let ending = std::thread::spawn(move || {
            std::thread::sleep(5 * TRIED_EVERY);
            drop(second);
        });
        FolderLock::new(&root, 0, 2).unwrap();
        ending.join().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let refused = FolderLock::new(&dir.path().join("file"), 0, 1).unwrap_err();
        assert!(refused.contains("cannot be written to"), "{refused}");
    }
}
