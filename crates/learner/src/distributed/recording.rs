//! Recordings of asynchronous jobs: the order in which pulls and pushes of several workers met in each row, so that a
//! replay ends with equal bits ([why](../../../../docs/design/0049-replays.md)). Knows no algorithm and no server.

use std::path::{Path, PathBuf};

use sanderling_store::{Admission, Eviction};

use super::JobOptions;
use crate::config::Config;
use crate::error::LearnError;
use crate::model::{Model, table_configs};
use crate::state::data_bytes;

mod digest;
mod file;
mod header;
mod minibatch;
mod recorder;
mod replayer;
mod versioned_pull;
mod worker;

#[cfg(test)]
mod tests;

use file::RecordingReader;
use header::Header;
use recorder::Recorder;
use replayer::Replayer;
pub(super) use worker::OrderedWorker;

/// The order of pulls and pushes of an asynchronous job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Recording {
    /// As it happens.
    #[default]
    Off,
    /// As it happens, and written to this file.
    Record(PathBuf),
    /// As this file says.
    Replay(PathBuf),
}

impl Recording {
    /// Name of the option, and the file.
    fn option(&self) -> Option<(&'static str, &Path)> {
        match self {
            Recording::Off => None,
            Recording::Record(path) => Some(("--record", path)),
            Recording::Replay(path) => Some(("--replay", path)),
        }
    }

    /// Refuses a run whose order cannot be recorded, before anything of it begins.
    pub(crate) fn check(
        &self,
        config: &Config,
        job: Option<&JobOptions>,
        has_servers: bool,
        resumes: bool,
    ) -> Result<(), LearnError> {
        let Some((option, path)) = self.option() else { return Ok(()) };
        let refuse = |reason: String| Err(LearnError::Config { path: option.into(), reason });
        let Some(job) = job.filter(|job| !job.algorithm.is_in_step()) else {
            return refuse(
                "needs --algorithm ftrl or fm, where each worker has its own share of the rows; -sync and one thread give \
                 equal bits without it"
                    .to_owned(),
            );
        };
        if has_servers {
            return refuse(
                "the tables are on servers (--ps), which do not tell a worker the versions of the rows that it pulls; \
                 leave --ps out"
                    .to_owned(),
            );
        }
        if resumes {
            return refuse(
                "a recording holds a run from its start; leave --resume out, or begin a new run with --from"
                    .to_owned(),
            );
        }
        if config.train.batch_size == 1 {
            return refuse(
                "train.batch_size = 1 updates rows one by one without versions; set it to 2 or more"
                    .to_owned(),
            );
        }
        for table in table_configs(config) {
            let setting = match (table.admission, table.eviction) {
                (Admission::Always, Eviction::Never) => continue,
                (Admission::Always, _) => "eviction",
                _ => "admission (or min_count of a feature)",
            };
            return refuse(format!(
                "table {:?} has {setting}, which depends on the time of each push; leave it out of the recorded run",
                table.name
            ));
        }
        match self {
            Recording::Replay(_) => RecordingReader::open(path)?.header.check_job(path, job),
            _ => Ok(()),
        }
    }
}

/// The order of a job under way, shared by its workers.
pub(super) enum Order {
    Record(Box<Recorder>),
    Replay(Box<Replayer>),
}

impl Order {
    /// Begins a recording, or opens the one that is replayed.
    pub(super) fn begin(
        recording: &Recording,
        model: &Model,
        job: &JobOptions,
    ) -> Result<Option<Order>, LearnError> {
        let Some((_, path)) = recording.option() else { return Ok(None) };
        let header = Header::new(job, model.config(), data_bytes(model.config())?, model.client().tables());
        let tables = model.client().tables().to_vec();
        Ok(Some(match recording {
            Recording::Replay(_) => {
                let reader = RecordingReader::open(path)?;
                reader.header.check(path, &header)?;
                Order::Replay(Box::new(Replayer::new(reader, tables)))
            }
            _ => Order::Record(Box::new(Recorder::create(path, &header, tables)?)),
        }))
    }

    /// Ends a recording whose job was stopped; returns what there is to say.
    pub(super) fn give_up(self) -> Option<String> {
        match self {
            Order::Record(recorder) => {
                Some(format!("no recording in {}: the run was stopped", recorder.path().display()))
            }
            Order::Replay(_) => None,
        }
    }

    /// Ends the job's recording or replay after its last pass; returns what there is to say.
    pub(super) fn finish(self, examples: u64) -> Result<String, LearnError> {
        match self {
            Order::Record(recorder) => recorder.finish(examples),
            Order::Replay(replayer) => replayer.finish(),
        }
    }
}

/// An error of a row in a recording.
fn damaged_order(path: &Path, table: &str, key: u64, reason: &str) -> LearnError {
    damaged(path, format!("table {table:?}, key {key}: {reason}"))
}

/// An error of a recording.
fn damaged(path: &Path, reason: impl Into<String>) -> LearnError {
    LearnError::Recording { path: path.to_owned(), reason: reason.into() }
}
