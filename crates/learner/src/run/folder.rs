//! The folder of a run: making it, and locking it against another run of its name.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::Path;

use crate::error::LearnError;

/// Creates the folder of a run.
pub(super) fn create_run_dir(path: &Path) -> Result<(), LearnError> {
    std::fs::create_dir_all(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
            let reason = "there is a file where the run's folder is to be; give the run another name, or another folder";
            LearnError::io(path)(std::io::Error::new(error.kind(), reason))
        }
        _ => LearnError::io(path)(error),
    })
}

/// Locks the folder of a run, if it exists, until the result is dropped or the process ends.
///
/// Two runs of one name would overwrite each other's files.
pub(super) fn claim(run_dir: &Path) -> Result<Option<File>, LearnError> {
    let Ok(dir) = File::open(run_dir) else { return Ok(None) };
    match dir.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let reason =
                "another process trains a run of this name here; wait for it, or give this one another name";
            Err(LearnError::io(run_dir)(std::io::Error::new(ErrorKind::ResourceBusy, reason)))
        }
        // On a file system without locks, the user must see to it.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(Some(dir)),
    }
}
