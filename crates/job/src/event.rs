//! Events of a job for its observer: lost, slow, unreachable and rejected workers. Decides nothing about them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// An event of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEvent {
    /// Before it begins, this worker has tried for long to reach another one, and goes on trying.
    Unreached {
        /// Which.
        worker: u32,
        /// Where it should be.
        address: String,
        /// The error of the last attempt.
        reason: String,
    },
    /// Before the job begins, a peer was rejected. Logged once per host and reason, up to a limit.
    TurnedAway {
        /// Which worker it says to be, if it has said so.
        worker: Option<u32>,
        /// Where it came from.
        address: String,
        /// Why it cannot take part.
        reason: String,
    },
    /// Others have waited for this worker for long.
    Straggler {
        /// Which.
        worker: u32,
        /// Where it is.
        address: String,
        /// Its stage.
        stage: String,
        /// It said so when it was last heard of, some time ago.
        is_silent: bool,
        /// For how long others have waited.
        waited: Duration,
    },
    /// A worker is lost.
    Lost {
        /// Which.
        worker: u32,
        /// Where it was.
        address: String,
        /// Its stage when it was last heard of.
        stage: String,
        /// How it was noticed.
        reason: String,
        /// Whether the others go on without it.
        goes_on: bool,
    },
}

impl fmt::Display for JobEvent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobEvent::Unreached { worker, address, reason } => {
                write!(out, "worker {worker} at {address} cannot be reached yet: {reason}")
            }
            JobEvent::TurnedAway { worker: Some(worker), address, reason } => {
                write!(out, "turned away a peer claiming to be worker {worker} from {address}: {reason}")
            }
            JobEvent::TurnedAway { worker: None, address, reason } => {
                write!(out, "turned away an unknown peer from {address}: {reason}")
            }
            JobEvent::Straggler { worker, address, stage, is_silent, waited } => {
                let waited_s = waited.as_secs_f64();
                let it = if *is_silent { "it says nothing, and was in" } else { "it is in" };
                write!(
                    out,
                    "others have waited for worker {worker} at {address} for {waited_s:.1} s; {it} {stage}"
                )
            }
            JobEvent::Lost { worker, address, stage, reason, goes_on } => {
                let next = if *goes_on { "the others take its rows over" } else { "the job stops" };
                write!(out, "worker {worker} at {address} is lost in {stage}: {reason}; {next}")
            }
        }
    }
}

/// A callback for events, on any thread: on rank 0, and on all workers before the job begins.
#[derive(Clone)]
pub struct Observer(pub Arc<dyn Fn(&JobEvent) + Send + Sync>);

impl fmt::Debug for Observer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Observer")
    }
}
