//! The recorder of a job: appends the entries of all workers to one file. Knows no table's content.
//!
//! A replay reads ahead to the next entry of every worker. So that this is not far, a worker waits while another one has
//! not ended its minibatch for [`LEAD_MAX`] entries.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sanderling_store::Table;

use super::digest::of_tables;
use super::file::RecordingWriter;
use super::header::Header;
use crate::error::LearnError;

/// Entries of other workers since the last one of a worker, at most about.
const LEAD_MAX: u64 = 1024;
/// Interval at which a waiting worker checks for a stop.
const POLL: Duration = Duration::from_millis(50);

/// The recorder, shared by the workers.
pub(in crate::distributed) struct Recorder {
    path: PathBuf,
    pub(super) tables: Vec<Arc<Table>>,
    file: Mutex<Writing>,
    /// An entry was appended.
    appended: Condvar,
}

struct Writing {
    writer: RecordingWriter,
    /// Per worker the minibatches of all at its last one; `None` while it makes none.
    last: Vec<Option<u64>>,
}

impl Writing {
    /// Whether a worker has to wait for one that is slower.
    fn is_ahead(&self, worker: usize) -> bool {
        let Some(own) = self.last[worker] else { return false };
        // The slowest never waits.
        let slowest = self.last.iter().flatten().filter(|&&last| last < own).min();
        slowest.is_some_and(|&last| self.writer.minibatches() - last >= LEAD_MAX)
    }
}

impl Recorder {
    pub(super) fn create(
        path: &Path,
        header: &Header,
        tables: Vec<Arc<Table>>,
    ) -> Result<Recorder, LearnError> {
        let writer = RecordingWriter::create(path, header)?;
        let last = vec![None; header.workers as usize];
        let file = Mutex::new(Writing { writer, last });
        Ok(Recorder { path: path.to_owned(), tables, file, appended: Condvar::new() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn lock(&self) -> MutexGuard<'_, Writing> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a minibatch of a worker.
    pub(super) fn begin(
        &self,
        worker: u32,
        check: &dyn Fn() -> Result<(), LearnError>,
    ) -> Result<(), LearnError> {
        let mut file = self.lock();
        let now = file.writer.minibatches();
        file.last[worker as usize].get_or_insert(now);
        while file.is_ahead(worker as usize) {
            let (waited, _) = self.appended.wait_timeout(file, POLL).unwrap_or_else(PoisonError::into_inner);
            file = waited;
            check()?;
        }
        Ok(())
    }

    /// Appends a minibatch of a worker.
    pub(super) fn append(&self, worker: u32, entry: &[u8]) -> Result<(), LearnError> {
        let mut file = self.lock();
        file.writer.minibatch(entry)?;
        file.last[worker as usize] = Some(file.writer.minibatches());
        drop(file);
        self.appended.notify_all();
        Ok(())
    }

    /// Notes that a worker waits for others by itself.
    pub(super) fn pause(&self, worker: u32) {
        self.lock().last[worker as usize] = None;
        self.appended.notify_all();
    }

    /// Ends the pass of a worker.
    pub(super) fn end_pass(&self, worker: u32) -> Result<(), LearnError> {
        self.pause(worker);
        self.lock().writer.pass_end(worker)
    }

    /// Ends the file; returns what it holds, in words.
    pub(super) fn finish(self, examples: u64) -> Result<String, LearnError> {
        let digest = of_tables(&self.tables);
        let writer = self.file.into_inner().unwrap_or_else(PoisonError::into_inner).writer;
        let minibatches = writer.minibatches();
        let bytes = writer.finish(digest)?;
        let per_example = bytes as f64 / examples.max(1) as f64;
        Ok(format!(
            "recorded {minibatches} minibatches in {}: {bytes} bytes, {per_example:.1} per example; tables {digest:016x}",
            self.path.display()
        ))
    }
}
