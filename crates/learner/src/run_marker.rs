//! The marker file that a run writes to its folder at the start, so that files saved by an earlier run of this name
//! are not taken for its own. Knows no model.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::LearnError;

/// The file's name.
const NAME: &str = "begun";

/// The marker of a run, and the contents that it replaced.
pub(crate) struct RunMarker {
    /// The run's number, which the state in its checkpoints carries.
    pub(crate) run_id: u64,
    path: PathBuf,
    before: Option<Vec<u8>>,
}

/// Marks a run's folder anew.
pub(crate) fn mark(run_dir: &Path) -> Result<RunMarker, LearnError> {
    let path = run_dir.join(NAME);
    let before = fs::read(&path).ok();
    let run_id = sanderling_observe::unique();
    fs::write(&path, format!("{run_id}\n")).map_err(LearnError::io(&path))?;
    Ok(RunMarker { run_id, path, before })
}

impl RunMarker {
    /// Restores the earlier marker for a run that has saved nothing, so that the earlier run can be resumed. If that
    /// fails, the new marker stays, as after a killed process.
    pub(crate) fn take_back(self) {
        let _ = match self.before {
            Some(before) => fs::write(&self.path, before),
            None => fs::remove_file(&self.path),
        };
    }
}

/// The number of the run that began last in this folder; `None` if its version wrote no marker.
pub(crate) fn last(run_dir: &Path) -> Result<Option<u64>, LearnError> {
    let path = run_dir.join(NAME);
    match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map(Some).map_err(|_| {
            let reason = "not the number of a run; start the run anew, without --resume".to_owned();
            LearnError::Model { path, reason }
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(LearnError::io(&path)(error)),
    }
}
