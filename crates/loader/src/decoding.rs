//! Reading and decoding units from a source that several threads share. Knows nothing of shuffling or minibatches.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sanderling_formats::{BadRows, Decoded, Decoder, Source, Unit};
use sanderling_observe::StageTimer;
use sanderling_sample::{Batch, Encoder, SampleError};

/// The stages of a feed, by number: waiting for the source and reading it (decompression included), parsing and
/// encoding, waiting for the prefetching thread, shuffling and copying rows into minibatches. A caller's timer begins
/// with these.
pub const STAGES: [&str; 4] = ["read", "decode", "wait", "assemble"];
const READ: usize = 0;
const DECODE: usize = 1;
pub(crate) const WAIT: usize = 2;
pub(crate) const ASSEMBLE: usize = 3;

/// State shared by the workers of a pass and their prefetching threads.
pub(crate) struct Shared {
    pub(crate) source: Mutex<Units>,
    pub(crate) encoder: Arc<Encoder>,
    pub(crate) bad_rows: Arc<BadRows>,
    pub(crate) stopped: Arc<AtomicBool>,
    /// Outside of the source, whose lock a read holds while a stream is silent.
    pub(crate) bytes_read: Arc<AtomicU64>,
    pub(crate) bytes_total: Option<u64>,
}

/// The source, and how many units were read from it.
pub(crate) struct Units {
    pub(crate) source: Source,
    pub(crate) read: u64,
}

/// Reading and decoding, unit by unit.
pub(crate) struct Decoding {
    decoder: Decoder,
    unit: Unit,
}

impl Decoding {
    /// Bad rows go to the given account.
    pub(crate) fn new(shared: &Shared, bad_rows: Arc<BadRows>) -> Self {
        let decoder = Decoder::new(Arc::clone(&shared.encoder), bad_rows);
        Decoding { decoder, unit: Unit::default() }
    }

    /// Appends the rows of the next unit; `false` at the end of the input, or when the pass was stopped.
    pub(crate) fn next(
        &mut self,
        shared: &Shared,
        batch: &mut Batch,
        timer: &mut StageTimer,
    ) -> Result<bool, SampleError> {
        let more = self.read(shared, timer).1?;
        if more {
            self.decoder.decode(&self.unit, batch)?;
        }
        Ok(more)
    }

    /// Replaces the rows of `into` with those of the next unit, in place if possible.
    pub(crate) fn next_in_place(
        &mut self,
        shared: &Shared,
        into: &mut Decoded,
        timer: &mut StageTimer,
    ) -> Result<bool, SampleError> {
        let more = self.read(shared, timer).1?;
        if more {
            self.decode_in_place(into)?;
        }
        Ok(more)
    }

    /// Reads the next unit; `false` at the end of the input, or when the pass was stopped. Units and errors have
    /// numbers from 0 on, in the order of the input.
    pub(crate) fn read(
        &mut self,
        shared: &Shared,
        timer: &mut StageTimer,
    ) -> (u64, Result<bool, SampleError>) {
        timer.switch(READ);
        let mut units = lock(&shared.source);
        let number = units.read;
        if shared.stopped.load(Ordering::Relaxed) {
            return (number, Ok(false));
        }
        let more = match units.source.next_unit(&mut self.unit) {
            Err(SampleError::Unwanted) => Ok(false),
            more => more,
        };
        units.read += u64::from(!matches!(more, Ok(false)));
        drop(units);
        if matches!(more, Ok(true)) {
            timer.switch(DECODE);
        }
        (number, more)
    }

    /// Replaces the rows of `into` with those of the unit that was read, in place if possible.
    pub(crate) fn decode_in_place(&mut self, into: &mut Decoded) -> Result<(), SampleError> {
        self.decoder.decode_in_place(&self.unit, into)
    }

    /// Gives the unit that was read away.
    pub(crate) fn take_unit(&mut self) -> Unit {
        std::mem::take(&mut self.unit)
    }
}

/// Locks a mutex; a panic while reading leaves the source between two units.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
