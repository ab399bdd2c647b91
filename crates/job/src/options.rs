//! Options of a job: how many workers there are and where, what they share, what becomes of a loss. Runs nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sanderling_client::{Cluster, RemoteTable};
use sanderling_store::Table;

use crate::error::JobError;
use crate::event::Observer;
use crate::worker_hosts::Hosts;

/// The most workers that a job may have.
pub(crate) const WORKERS_MAX: u32 = 1024;

/// The tables of synchronous steps, by their numbers there ([`sanderling_client::SyncGroup::push_step`]).
///
/// They determine where the workers meet. A job without synchronous steps needs none.
#[derive(Clone)]
pub enum Tables {
    /// Tables of this process.
    Embedded(Vec<Arc<Table>>),
    /// Tables on servers.
    Servers(Arc<Cluster>, Vec<RemoteTable>),
}

/// Where the workers are.
#[derive(Debug, Clone, Default)]
pub enum Place {
    /// All are threads of this process.
    #[default]
    Here,
    /// Each is a process of its own, and this is one of them. They need tables on servers, where they meet.
    Hosts(Hosts),
}

/// Policy for the loss of a worker on another host. An error of a worker is no loss: it stops the job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// The others take its rows over and repeat the current step. The loss of rank 0 always stops the job.
    Redo,
    /// They stop, with an error that names it.
    #[default]
    Stop,
}

/// How a job runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// How many workers share the input.
    pub workers: u32,
    /// Where they are.
    pub place: Place,
    /// Seed of the shuffle.
    pub seed: u64,
    /// How long other workers are waited for, each time.
    pub timeout: Duration,
    /// Memory limit for the shuffled rows of this process; further rows go to temporary files.
    ///
    /// Rows under way are not counted, about 16 MiB per worker.
    pub shuffle_bytes_max: u64,
    /// Where temporary files are, which have no name and vanish with the process.
    pub scratch_dir: PathBuf,
    /// Policy for the loss of a worker on another host.
    pub on_loss: OnLoss,
    /// Callback for events: lost and slow workers on rank 0; unreachable and rejected workers on each.
    pub observer: Option<Observer>,
    /// Set to stop the workers of this process, and with them the job, within moments.
    ///
    /// Before the job begins it ends with [`JobError::Interrupted`], afterwards with [`JobError::Halted`]. Workers on
    /// other hosts end with [`JobError::HaltedBy`], and their flag is set.
    pub stop: Arc<AtomicBool>,
}

impl Default for Options {
    /// One worker; a minute; 96 MiB; the system's directory for temporary files.
    fn default() -> Options {
        Options {
            workers: 1,
            place: Place::Here,
            seed: 0,
            timeout: Duration::from_secs(60),
            shuffle_bytes_max: 96 << 20,
            scratch_dir: std::env::temp_dir(),
            on_loss: OnLoss::Stop,
            observer: None,
            stop: Arc::default(),
        }
    }
}

impl Options {
    /// Refuses numbers of workers that cannot be, as [`crate::run`] does before anything else.
    pub fn check(&self) -> Result<(), JobError> {
        if self.workers == 0 || self.workers > WORKERS_MAX {
            let found = self.workers;
            return Err(JobError::Options(format!("a job of {found} workers: there are 1 to {WORKERS_MAX}")));
        }
        Ok(())
    }
}
