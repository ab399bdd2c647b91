//! Whether a worker must stop, because its own process or that of another worker was asked to. Waits and long reads
//! check it repeatedly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::JobError;
use crate::hosts::peer_status::PeerStatus;

/// See the top of this file.
#[derive(Debug, Clone)]
pub(crate) enum Halt {
    /// All workers are threads of this process.
    Local { stop: Arc<AtomicBool>, rank: u32 },
    /// Others may have been stopped, too.
    Remote(Arc<PeerStatus>),
}

impl Halt {
    pub(crate) fn check(&self) -> Result<(), JobError> {
        match self {
            Halt::Local { stop, rank } if stop.load(Ordering::Relaxed) => {
                Err(JobError::Halted { worker: *rank })
            }
            Halt::Local { .. } => Ok(()),
            Halt::Remote(status) => status.check_halt(),
        }
    }
}
