//! Decoding ahead: a thread that reads and decodes units while the one that learns is busy with earlier ones. Knows
//! nothing of shuffling or minibatches.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use sanderling_observe::StageTimer;
use sanderling_sample::{Batch, SampleError};

use crate::decoding::{Decoding, Shared};

/// Decoded units that may wait for the learner; with the one being decoded and the one in use this bounds memory.
const UNITS_AHEAD: usize = 4;

/// The thread and the channels to it. Dropping it ends the thread.
pub(crate) struct Ahead {
    /// None only while dropping.
    decoded: Option<Receiver<Result<Batch, SampleError>>>,
    /// Batches on their way back, so that their memory is used again.
    empty: SyncSender<Batch>,
    thread: Option<JoinHandle<()>>,
}

impl Ahead {
    /// Starts reading and decoding; the timer is the thread's own.
    pub(crate) fn start(shared: Arc<Shared>, mut timer: StageTimer) -> Self {
        let (sender, decoded) = sync_channel(UNITS_AHEAD);
        let (empty, returned) = sync_channel::<Batch>(UNITS_AHEAD + 2);
        let thread = std::thread::spawn(move || {
            let mut decoding = Decoding::new(&shared);
            loop {
                let mut batch = returned.try_recv().unwrap_or_else(|_| shared.encoder.new_batch());
                batch.clear();
                let message = match decoding.next(&shared, &mut batch, &mut timer) {
                    Ok(true) => Ok(batch),
                    Ok(false) => return,
                    Err(error) => Err(error),
                };
                timer.stop();
                let failed = message.is_err();
                // A learner that is gone needs no more; an error is the last word.
                if sender.send(message).is_err() || failed {
                    return;
                }
            }
        });
        Ahead { decoded: Some(decoded), empty, thread: Some(thread) }
    }

    /// The next decoded unit; None at the end.
    pub(crate) fn receive(&mut self) -> Result<Option<Batch>, SampleError> {
        let received = self.decoded.as_ref().and_then(|decoded| decoded.recv().ok());
        if received.is_none()
            && let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
        {
            // The end of the input and a panic look alike from the channel.
            std::panic::resume_unwind(panic);
        }
        received.transpose()
    }

    /// Gives a batch back to be filled again.
    pub(crate) fn give_back(&self, batch: Batch) {
        // A full channel has enough of them.
        let _ = self.empty.try_send(batch);
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.decoded = None;
        if let Some(thread) = self.thread.take() {
            // A panic was about rows that nobody will use any more.
            let _ = thread.join();
        }
    }
}
