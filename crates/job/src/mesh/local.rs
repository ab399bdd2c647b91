//! The mesh between threads of one process: a bounded queue per worker; parcels are handed over without a copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use super::Parcel;
use crate::error::JobError;
use crate::halt::Halt;

/// Parcels that may wait for a worker, per worker that sends them.
const QUEUE_PARCELS: usize = 4;
/// How often a waiting worker looks whether it is to stop.
const POLL: Duration = Duration::from_millis(50);

/// A worker's ends.
#[derive(Debug)]
pub(crate) struct LocalMesh {
    rank: u32,
    inbox: Receiver<(u32, Parcel)>,
    to: Vec<SyncSender<(u32, Parcel)>>,
    /// Another worker has failed.
    stopped: Arc<AtomicBool>,
    halt: Halt,
}

/// The ends of all workers, in their order; whoever waits ends with an error when one has failed, or all are asked to stop.
pub(crate) fn meshes(workers: u32, stopped: &Arc<AtomicBool>, stop: &Arc<AtomicBool>) -> Vec<LocalMesh> {
    let (to, inboxes): (Vec<_>, Vec<_>) =
        (0..workers).map(|_| sync_channel(QUEUE_PARCELS * workers as usize)).unzip();
    let ends = |(rank, inbox)| {
        let halt = Halt::Local { stop: Arc::clone(stop), rank };
        LocalMesh { rank, inbox, to: to.clone(), stopped: Arc::clone(stopped), halt }
    };
    (0..).zip(inboxes).map(ends).collect()
}

impl LocalMesh {
    pub(super) fn halt(&self) -> &Halt {
        &self.halt
    }

    pub(super) fn try_send(&mut self, to: u32, parcel: Parcel) -> Result<Option<Parcel>, JobError> {
        self.check()?;
        match self.to[to as usize].try_send((self.rank, parcel)) {
            Ok(()) => Ok(None),
            // A worker that has ended may have failed, which is reported soon; otherwise the wait times out.
            Err(TrySendError::Full((_, parcel)) | TrySendError::Disconnected((_, parcel))) => {
                Ok(Some(parcel))
            }
        }
    }

    pub(super) fn receive(&mut self, wait: Duration) -> Result<Option<(u32, Parcel)>, JobError> {
        if let Ok(received) = self.inbox.try_recv() {
            return Ok(Some(received));
        }
        let until = Instant::now() + wait;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            match self.inbox.recv_timeout(left.min(POLL)) {
                Ok(received) => return Ok(Some(received)),
                // The channel cannot disconnect: this worker holds a sender to itself.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) if left <= POLL => {
                    return Ok(None);
                }
                Err(_) => {}
            }
        }
    }

    fn check(&self) -> Result<(), JobError> {
        self.halt.check()?;
        if self.stopped.load(Ordering::Relaxed) {
            return Err(JobError::Stopped { worker: self.rank });
        }
        Ok(())
    }
}
