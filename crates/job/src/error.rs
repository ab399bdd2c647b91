//! What a job can fail with, each naming worker, file or meeting. Knows no model.

use std::path::PathBuf;

use sanderling_client::ClientError;
use sanderling_sample::SampleError;

/// What a job can fail with.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The input could not be read.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The tables, or the other workers, were not there.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// What was asked for cannot be.
    #[error("{0}")]
    Options(String),
    /// A thread could not be started, or a temporary file not be written.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A temporary file cannot be used.
    #[error("a temporary file in {}: {source}; name a directory with room as the job's scratch directory", directory.display())]
    Scratch {
        /// The directory.
        directory: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Another worker has failed; its error says why.
    #[error("worker {worker} stopped, since another one failed")]
    Stopped {
        /// Who stopped.
        worker: u32,
    },
    /// Another worker did not come to an exchange.
    #[error("worker {worker}: {what}: workers {missing:?} did not come within {timeout_s} s")]
    Awaited {
        /// Who waited.
        worker: u32,
        /// For what.
        what: String,
        /// For whom.
        missing: Vec<u32>,
        /// How long.
        timeout_s: u64,
    },
    /// What is the matter with another worker on another host, or with this one.
    #[error("worker {worker} at {address}: {reason}")]
    Worker {
        /// Which.
        worker: u32,
        /// Where it is.
        address: String,
        /// What.
        reason: String,
    },
    /// It was asked to stop ([`crate::Options::stop`]) before the others were there.
    #[error(
        "worker {worker} was stopped while it waited for workers {missing:?} of {workers}; nothing had begun"
    )]
    Interrupted {
        /// Who stopped.
        worker: u32,
        /// Who was not there.
        missing: Vec<u32>,
        /// How many they are.
        workers: u32,
    },
    /// It was asked to stop ([`crate::Options::stop`]) in the middle of the job.
    #[error("worker {worker} was stopped, and so the job is")]
    Halted {
        /// Who stopped.
        worker: u32,
    },
    /// Another worker was asked to stop, and so all do. Nothing is wrong with any of them.
    #[error("worker {worker} at {address} was stopped, and so the job is")]
    HaltedBy {
        /// Who was asked to.
        worker: u32,
        /// Where it is.
        address: String,
    },
    /// This worker cannot listen, or not talk to others.
    #[error(transparent)]
    Transport(#[from] sanderling_transport::Error),
    /// Another worker is at another place of the program, or has left it.
    #[error("worker {worker}: {reason}; all workers must call the same things in the same order")]
    OutOfStep {
        /// Who saw it.
        worker: u32,
        /// What it saw.
        reason: String,
    },
    /// Gradients were handed in for a step that this worker does not end.
    #[error(
        "worker {worker}: what it handed in for step {step} would be lost, since it does not end the step: call end_step() \
         (Worker::wait_applied in Rust) when all of a minibatch's step is handed in, before the next minibatch and before the \
         function returns"
    )]
    OpenStep {
        /// Whose.
        worker: u32,
        /// Which.
        step: u64,
    },
    /// What another worker sent, or what was read back from a temporary file, is not what was written.
    #[error("rows that were exchanged are damaged: {0}")]
    Damaged(&'static str),
}
