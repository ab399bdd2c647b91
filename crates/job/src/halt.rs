//! Whether a worker is to stop, and by whom: its process was asked to, or that of another worker. Knows nothing of what is
//! stopped; whoever waits, or reads for long, asks it again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::JobError;
use crate::hosts::seen::Seen;

/// See the top of this file.
#[derive(Debug, Clone)]
pub(crate) enum Halt {
    /// All workers are threads of this process.
    Here { stop: Arc<AtomicBool>, rank: u32 },
    /// Others may have been stopped, too.
    Far(Arc<Seen>),
}

impl Halt {
    pub(crate) fn check(&self) -> Result<(), JobError> {
        match self {
            Halt::Here { stop, rank } if stop.load(Ordering::Relaxed) => {
                Err(JobError::Halted { worker: *rank })
            }
            Halt::Here { .. } => Ok(()),
            Halt::Far(seen) => seen.check_halt(),
        }
    }
}
