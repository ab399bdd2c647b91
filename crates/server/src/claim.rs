//! One server at a time has the checkpoints of a shard: two would write over each other's. Knows nothing of what they hold.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a lock is tried that somebody has. A process that this one starts has copies of all open files, of a lock's
/// too, until it becomes another program: who let go of a place and claims it again would be refused meanwhile.
const TRIED_FOR: Duration = Duration::from_secs(1);
/// See [`TRIED_FOR`].
const TRIED_EVERY: Duration = Duration::from_millis(10);

/// The lock of a shard's place below a root, which the system lets go of when the process ends, however it does.
#[derive(Debug)]
pub(crate) struct Claim {
    _locked: File,
}

impl Claim {
    /// Makes the root if need be, and claims the shard's place there.
    ///
    /// # Errors
    /// It cannot be written to, or another server has it; in words.
    pub(crate) fn new(root: &Path, shard: u16, shards: u16) -> Result<Claim, String> {
        let at = |error: std::io::Error| {
            format!("{}: cannot be written to, so nothing could be saved there: {error}", root.display())
        };
        std::fs::create_dir_all(root).map_err(at)?;
        // No checkpoint has a name that begins with a dot.
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
                    "{}: process {} serves shard {shard} of {shards} from there; end it, or name another folder",
                    root.display(),
                    holder.trim()
                ));
            }
            // A file system without locks: whoever uses one looks after this.
            Err(TryLockError::Error(_)) => {}
        }
        let note = |file: &mut File| -> std::io::Result<()> {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        note(&mut file).map_err(at)?;
        Ok(Claim { _locked: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_has_one_server() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("new/tables");
        let first = Claim::new(&root, 0, 2).unwrap();
        let _other_shard = Claim::new(&root, 1, 2).unwrap();
        let refused = Claim::new(&root, 0, 2).unwrap_err();
        assert!(refused.contains("shard 0 of 2"), "{refused}");
        assert!(refused.contains(&format!("process {} ", std::process::id())), "{refused}");
        drop(first);
        let second = Claim::new(&root, 0, 2).unwrap();
        // Who lets go soon is waited for.
        let ending = std::thread::spawn(move || {
            std::thread::sleep(5 * TRIED_EVERY);
            drop(second);
        });
        Claim::new(&root, 0, 2).unwrap();
        ending.join().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let refused = Claim::new(&dir.path().join("file"), 0, 1).unwrap_err();
        assert!(refused.contains("cannot be written to"), "{refused}");
    }
}
