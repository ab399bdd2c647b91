//! The errors of a job; each names a worker, a file or a meeting. Knows no model.

use std::path::PathBuf;

use sanderling_client::ClientError;
use sanderling_sample::SampleError;

/// An error of a job.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The input could not be read.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The tables, or the other workers, were not there.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The options do not fit together.
    #[error("{0}")]
    Options(String),
    /// A thread could not be started, or a temporary file not be written.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A temporary file cannot be used.
    #[error("a temporary file in {}: {source}; name a directory with room as the job's scratch directory", directory.display())]
    Scratch {
        /// The directory.
        directory: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// Another worker has failed; its error says why.
    #[error("worker {worker} stopped, since another one failed")]
    Stopped {
        /// The worker that stopped.
        worker: u32,
    },
    /// Another worker did not come to an exchange.
    #[error("worker {worker}: {what}: workers {missing:?} did not come within {timeout_s} s")]
    Awaited {
        /// The worker that waited.
        worker: u32,
        /// For what.
        what: String,
        /// For whom.
        missing: Vec<u32>,
        /// How long.
        timeout_s: u64,
    },
    /// Another worker failed or was lost, or this worker was.
    #[error("worker {worker} at {address}: {reason}")]
    Worker {
        /// Which.
        worker: u32,
        /// Where it is.
        address: String,
        /// The reason.
        reason: String,
    },
    /// It was asked to stop ([`crate::Options::stop`]) before the others were there.
    #[error(
        "worker {worker} was stopped while it waited for workers {missing:?} of {workers}; nothing had begun"
    )]
    Interrupted {
        /// The worker that stopped.
        worker: u32,
        /// The workers that did not come.
        missing: Vec<u32>,
        /// How many they are.
        workers: u32,
    },
    /// It was asked to stop ([`crate::Options::stop`]) in the middle of the job.
    #[error("worker {worker} was stopped, and so the job is")]
    Halted {
        /// The worker that stopped.
        worker: u32,
    },
    /// Another worker was asked to stop, and so all do. Nothing is wrong with any of them.
    #[error("worker {worker} at {address} was stopped, and so the job is")]
    HaltedBy {
        /// The worker that was asked to stop.
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
        /// The worker that noticed it.
        worker: u32,
        /// The symptom.
        reason: String,
    },
    /// Gradients were handed in for a step that this worker does not end.
    #[error(
        "worker {worker}: what it handed in for step {step} would be lost, since it does not end the step: call end_step() \
         (Worker::wait_applied in Rust) when all of a minibatch's step is handed in, before the next minibatch and before the \
         function returns"
    )]
    OpenStep {
        /// The worker whose step is open.
        worker: u32,
        /// Which.
        step: u64,
    },
    /// Rows of another worker, or rows read back from a temporary file, differ from the ones written.
    #[error("rows that were exchanged are damaged: {0}")]
    Damaged(&'static str),
}
