//! The record of a run under way in its folder, `run.json`, written again every two seconds. Knows no content of it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::LearnError;
use crate::live::LiveRun;
use crate::run_record::RECORD;

/// Interval between two writes.
const WRITE_EVERY: Duration = Duration::from_secs(2);

/// A record that is being written. Dropped, it stays as it was.
pub(super) struct Record {
    path: PathBuf,
    live: LiveRun,
    /// The record of an earlier run of the same name.
    before: Option<Vec<u8>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Record {
    /// Writes the record, and starts a thread that goes on with it.
    pub(super) fn start(run_dir: &Path, live: &LiveRun) -> Result<Record, LearnError> {
        let path = run_dir.join(RECORD);
        let before = fs::read(&path).ok();
        write(&path, live)?;
        let (stop, stopped) = channel();
        let (of_thread, shown) = (path.clone(), live.clone());
        let thread = std::thread::Builder::new().name("record".to_owned()).spawn(move || {
            while matches!(stopped.recv_timeout(WRITE_EVERY), Err(RecvTimeoutError::Timeout)) {
                // A disk that is full for a while ends no training; the last write tells.
                let _ = write(&of_thread, &shown);
            }
        });
        let thread = thread.map_err(LearnError::io(&path))?;
        Ok(Record { path, live: live.clone(), before, stop: Some(stop), thread: Some(thread) })
    }

    fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }

    /// Writes the last record of a run that has ended.
    pub(super) fn finish(mut self) -> Result<(), LearnError> {
        self.stop();
        write(&self.path, &self.live)
    }

    /// Says why the run failed. A run that has saved nothing puts the record of the earlier one back.
    pub(super) fn fail(mut self, error: &LearnError, has_saved: bool) {
        self.stop();
        self.live.fail(&error.to_string());
        // The error of the run is the one to mend.
        let _ = match self.before.take().filter(|_| !has_saved) {
            Some(before) => fs::write(&self.path, before).map_err(LearnError::io(&self.path)),
            None => write(&self.path, &self.live),
        };
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Replaces the file, so that a reader sees it whole.
fn write(path: &Path, live: &LiveRun) -> Result<(), LearnError> {
    let Some(report) = live.report() else { return Ok(()) };
    let part = path.with_extension("json.part");
    // A struct of numbers and text has a JSON form.
    let json = serde_json::to_vec(&report).unwrap_or_default();
    let replaced = fs::write(&part, json).and_then(|()| fs::rename(&part, path));
    match replaced {
        // The folder of the run was removed, which others report.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        replaced => replaced.map_err(LearnError::io(path)),
    }
}
