//! Prefetching: a thread that reads and decodes units ahead of the worker. Knows nothing of shuffling or minibatches.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use sanderling_formats::Decoded;
use sanderling_observe::StageTimer;
use sanderling_sample::SampleError;

use crate::decoding::{Decoding, Shared};

/// Decoded units that may wait for the worker; with the one being decoded and the one in use this bounds memory.
const UNITS_AHEAD: usize = 4;

/// Interval at which a waiting worker checks whether the pass was stopped.
const POLL: Duration = Duration::from_millis(50);

/// The thread and the channels to it. Dropping it ends the thread at its next unit without waiting, since the thread
/// may be reading a silent stream.
pub(crate) struct Ahead {
    shared: Arc<Shared>,
    decoded: Receiver<Result<Box<Decoded>, SampleError>>,
    /// Used rows, returned to reuse their memory.
    empty: SyncSender<Box<Decoded>>,
    thread: Option<JoinHandle<()>>,
}

/// The result of waiting for the thread.
pub(crate) enum Received {
    /// The rows of a unit.
    Rows(Box<Decoded>),
    /// The end of the input.
    End,
    /// The pass was stopped before its end.
    Stopped,
}

impl Ahead {
    /// Starts reading and decoding; the timer is the thread's own.
    pub(crate) fn start(shared: Arc<Shared>, mut timer: StageTimer) -> Self {
        let (sender, decoded) = sync_channel(UNITS_AHEAD);
        let (empty, returned) = sync_channel::<Box<Decoded>>(UNITS_AHEAD + 2);
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let shared = for_thread;
            let mut decoding = Decoding::new(&shared);
            loop {
                let mut decoded =
                    returned.try_recv().unwrap_or_else(|_| Box::new(Decoded::new(&shared.encoder)));
                let message = match decoding.next_in_place(&shared, &mut decoded, &mut timer) {
                    Ok(true) => Ok(decoded),
                    Ok(false) => return,
                    Err(error) => Err(error),
                };
                timer.stop();
                let failed = message.is_err();
                // The worker may be gone; after an error nothing follows.
                if sender.send(message).is_err() || failed {
                    return;
                }
            }
        });
        Ahead { shared, decoded, empty, thread: Some(thread) }
    }

    /// The next decoded unit. Returns within moments after the pass is stopped, even if the input is silent.
    pub(crate) fn receive(&mut self) -> Result<Received, SampleError> {
        loop {
            let stopped = self.shared.stopped.load(Ordering::Relaxed);
            match self.decoded.recv_timeout(POLL) {
                Ok(decoded) => return decoded.map(Received::Rows),
                Err(_) if stopped => return Ok(Received::Stopped),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // The end of the input and a panic look alike from the channel.
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
        {
            std::panic::resume_unwind(panic);
        }
        let stopped = self.shared.stopped.load(Ordering::Relaxed);
        Ok(if stopped { Received::Stopped } else { Received::End })
    }

    /// Returns used rows to be replaced.
    pub(crate) fn give_back(&self, used: Box<Decoded>) {
        // A full channel has enough of them.
        let _ = self.empty.try_send(used);
    }
}
