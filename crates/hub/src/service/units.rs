//! Units of the input, decoded by several threads and passed on in input order. Knows nothing of shuffling or
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

/// Decoded units that may wait, beside one per thread; bounds memory.
const UNITS_AHEAD: u64 = 4;
/// Interval at which a waiting thread checks whether to stop.
const POLL: Duration = Duration::from_millis(50);

/// Every `of`-th unit, from number `index` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) index: u64,
    pub(crate) of: u64,
}

struct Taken {
    source: Source,
    /// Units read so far, of all shares.
    read: u64,
    /// Units taken by a thread.
    taken: u64,
}

#[derive(Default)]
struct Waiting {
    waiting: BTreeMap<u64, Result<Decoded, SampleError>>,
    /// The next unit to pass on.
    next: u64,
    /// The number of units, once the end was seen.
    end: Option<u64>,
    /// Units whose memory can be reused.
    spare: Vec<Decoded>,
    /// Whether a thread panicked.
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

/// The decoding threads. Nothing joins them, since one may block on a silent stream; they end by themselves.
pub(crate) struct Units {
    shared: Arc<Shared>,
    ended: Arc<AtomicBool>,
}

/// Cleanup when a thread ends or panics.
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
    /// Starts the threads; they end when `stopped` is set or this is dropped.
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

    /// The rows of the next unit, perhaps none; `None` at the end of the input or when stopped.
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

    /// Returns a unit's memory to be reused.
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
        // The thread with the next unit never waits.
        while number >= decoded.next + shared.ahead && !is_over() {
            decoded = shared.changed.wait_timeout(decoded, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        decoded.waiting.insert(number, result);
        shared.changed.notify_all();
        if failed {
            // Nothing after an error is looked at.
            decoded.end.get_or_insert(number + 1);
            return;
        }
    }
}

/// Reads the next unit of this share; `false` at the end.
fn take(taken: &mut Taken, share: Share, unit: &mut Unit) -> Result<bool, SampleError> {
    loop {
        match taken.source.next_unit(unit) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => {
                // Takes the number before decoding, so that no other thread gets it.
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
