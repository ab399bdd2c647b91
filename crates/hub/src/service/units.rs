//! Units of the input, decoded by several threads and handed on in the order of the input. Knows nothing of shuffling or
//! minibatches.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use sanderling_formats::{BadRows, Decoded, Decoder, Source, Unit};
use sanderling_observe::{StageTimer, Stages};
use sanderling_sample::{Encoder, SampleError};

use crate::lock::lock;

use super::making::{DECODE, READ, WAIT};

/// Decoded units that may wait, beside one per thread: this bounds memory.
const UNITS_AHEAD: u64 = 4;
/// How often a waiting thread looks whether it is to stop.
const POLL: Duration = Duration::from_millis(50);

/// Every `of`-th unit, from number `index` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) index: u64,
    pub(crate) of: u64,
}

struct Taken {
    source: Source,
    /// Units that were read, all shares.
    read: u64,
    /// Units that were given to a thread.
    taken: u64,
}

#[derive(Default)]
struct Waiting {
    waiting: BTreeMap<u64, Result<Decoded, SampleError>>,
    /// The next one to hand on.
    next: u64,
    /// Number of units, once the end was seen.
    end: Option<u64>,
    /// Units whose memory may be used again.
    spare: Vec<Decoded>,
    /// A thread has ended that must not.
    panicked: bool,
}

struct Shared {
    source: Mutex<Taken>,
    decoded: Mutex<Waiting>,
    changed: Condvar,
    stopped: Arc<AtomicBool>,
    share: Share,
    ahead: u64,
}

/// The threads, which end by themselves; nobody waits for them, since one may be reading a stream that is silent.
pub(crate) struct Units {
    shared: Arc<Shared>,
    ended: Arc<AtomicBool>,
}

/// What a thread leaves behind however it ends.
struct Leaving<'a>(&'a Shared);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(&self.0.decoded).panicked = true;
        }
        self.0.changed.notify_all();
    }
}

impl Units {
    /// Starts so many threads; they end when `stopped` is set, or when this is dropped.
    pub(crate) fn start(
        source: Source,
        encoder: &Arc<Encoder>,
        bad_rows: &Arc<BadRows>,
        share: Share,
        threads: usize,
        stages: &Stages,
        stopped: &Arc<AtomicBool>,
    ) -> std::io::Result<Units> {
        let shared = Arc::new(Shared {
            source: Mutex::new(Taken { source, read: 0, taken: 0 }),
            decoded: Mutex::default(),
            changed: Condvar::new(),
            stopped: Arc::clone(stopped),
            share,
            ahead: UNITS_AHEAD + threads as u64,
        });
        let ended = Arc::new(AtomicBool::new(false));
        for _ in 0..threads {
            let (shared, ended, timer) = (Arc::clone(&shared), Arc::clone(&ended), stages.timer());
            let (encoder, bad_rows) = (Arc::clone(encoder), Arc::clone(bad_rows));
            std::thread::Builder::new().name("decode".to_owned()).spawn(move || {
                let _leaving = Leaving(&shared);
                decode(&shared, &ended, &encoder, Decoder::new(Arc::clone(&encoder), bad_rows), timer);
            })?;
        }
        Ok(Units { shared, ended })
    }

    /// The rows of the next unit, perhaps none; None at the end of the input, or when it was stopped.
    pub(crate) fn next(&self, timer: &mut StageTimer) -> Result<Option<Decoded>, SampleError> {
        timer.switch(WAIT);
        let mut decoded = lock(&self.shared.decoded);
        loop {
            let number = decoded.next;
            if let Some(batch) = decoded.waiting.remove(&number) {
                decoded.next += 1;
                self.shared.changed.notify_all();
                return batch.map(Some);
            }
            let stopped = self.shared.stopped.load(Ordering::Relaxed);
            if stopped || decoded.end.is_some_and(|end| number >= end) {
                return Ok(None);
            }
            assert!(!decoded.panicked, "a thread that decodes has panicked; see above");
            decoded = self.wait(decoded);
        }
    }

    fn wait<'a>(&self, decoded: std::sync::MutexGuard<'a, Waiting>) -> std::sync::MutexGuard<'a, Waiting> {
        self.shared.changed.wait_timeout(decoded, POLL).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Gives a unit's memory back to be filled again.
    pub(crate) fn give_back(&self, unit: Decoded) {
        let mut decoded = lock(&self.shared.decoded);
        if (decoded.spare.len() as u64) < self.shared.ahead {
            decoded.spare.push(unit);
        }
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.shared.changed.notify_all();
    }
}

fn decode(
    shared: &Shared,
    ended: &AtomicBool,
    encoder: &Encoder,
    mut decoder: Decoder,
    mut timer: StageTimer,
) {
    let mut unit = Unit::default();
    let is_over = || shared.stopped.load(Ordering::Relaxed) || ended.load(Ordering::Relaxed);
    loop {
        timer.switch(READ);
        let (number, read) = {
            let mut taken = lock(&shared.source);
            if is_over() || lock(&shared.decoded).end.is_some() {
                return;
            }
            (taken.taken, take(&mut taken, shared.share, &mut unit))
        };
        timer.switch(DECODE);
        let result = match read {
            Ok(true) => {
                let spare = lock(&shared.decoded).spare.pop();
                let mut rows = spare.unwrap_or_else(|| Decoded::new(encoder));
                decoder.decode_in_place(&unit, &mut rows).map(|()| rows)
            }
            Ok(false) => {
                lock(&shared.decoded).end = Some(number);
                shared.changed.notify_all();
                return;
            }
            Err(error) => Err(error),
        };
        timer.stop();
        let failed = result.is_err();
        let mut decoded = lock(&shared.decoded);
        // Whoever has the next one may always hand it on.
        while number >= decoded.next + shared.ahead && !is_over() {
            decoded = shared.changed.wait_timeout(decoded, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        decoded.waiting.insert(number, result);
        shared.changed.notify_all();
        if failed {
            // The last word: nothing after it is looked at.
            decoded.end.get_or_insert(number + 1);
            return;
        }
    }
}

/// Reads the next unit of this share; false at the end.
fn take(taken: &mut Taken, share: Share, unit: &mut Unit) -> Result<bool, SampleError> {
    loop {
        match taken.source.next_unit(unit) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => {
                // Nobody else is to have this number.
                taken.taken += 1;
                return Err(error);
            }
        }
        let number = taken.read;
        taken.read += 1;
        if number % share.of == share.index {
            taken.taken += 1;
            return Ok(true);
        }
    }
}
