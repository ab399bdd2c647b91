//! A reply that waits until the changes of its request are on disk, or at all replicas in sync.

use std::time::Instant;

use sanderling_transport::Token;
use sanderling_wire::{Agreed, Buffer, Kind};

use crate::call::write_failure;
use crate::limit::FAILURE_BYTES_MAX;
use crate::refusal::Refusal;
use crate::traces::HeldTrace;
use crate::worker::{WorkerHandle, WorkerMsg};

/// A reply with its way back.
pub(crate) struct HeldReply {
    pub(crate) worker: WorkerHandle,
    pub(crate) to: Token,
    pub(crate) kind: Kind,
    pub(crate) id: u64,
    pub(crate) agreed: Agreed,
    pub(crate) began: Instant,
    pub(crate) frame: Buffer,
    /// The request, if it is sampled.
    pub(crate) trace: Option<Box<HeldTrace>>,
}

impl HeldReply {
    /// Sends the reply, or a refusal.
    pub(crate) fn send(mut self, refusal: Option<&Refusal>) {
        if let Some(refusal) = refusal {
            self.frame.clear();
            // A buffer of a reply has room for a failure.
            let _ = self.frame.append(|out| {
                if out.len() < FAILURE_BYTES_MAX {
                    let (needed, found) = (FAILURE_BYTES_MAX, out.len());
                    return Err(sanderling_wire::WireError::NoRoom { needed, found });
                }
                Ok(write_failure(refusal, self.kind, &self.agreed, self.id, out))
            });
        }
        let HeldReply { worker, to, kind, began, frame, trace, .. } = self;
        worker.send(WorkerMsg::Reply { to, kind, took: began.elapsed(), frame, was_held: true, trace });
    }
}
