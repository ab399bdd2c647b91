//! The input of a job, as numbered units of which each worker reads its own. Knows nothing of shuffling.

use std::sync::Arc;

use sanderling_formats::{BLOCK_BYTES, BadRows, DataConfig, Decoded, Decoder, Source, Unit};
use sanderling_observe::StageTimer;
use sanderling_sample::{Batch, Encoder, SampleError};

use crate::error::JobError;
use crate::halt::Halt;
use crate::stages::{PARSE, READ};

/// The smallest unit that small inputs are cut into, so that every worker gets some.
const UNIT_BYTES_MIN: u64 = 512;
/// An input is cut into at least about this many units, if they are not to be smaller than the smallest.
const UNITS_MIN: u64 = 1024;

/// The input, and how its rows are parsed.
#[derive(Clone)]
pub struct Input {
    /// Files and patterns, in this order.
    pub inputs: Vec<String>,
    /// How they are read.
    pub reading: DataConfig,
    /// The feature encoder.
    pub encoder: Arc<Encoder>,
    /// The account of bad rows of this process.
    pub bad_rows: Arc<BadRows>,
}

/// In which order a pass goes through the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// As they lie: every worker takes every so-many-th unit.
    Input,
    /// Over all of the input, anew in each pass, as seed and pass say.
    Shuffled,
}

/// The units of an input, in order; each worker passes over those of others without parsing them. What is in a unit depends
/// on the input alone.
pub(crate) struct Units {
    source: Source,
    decoder: Decoder,
    unit: Unit,
    next: u64,
    halt: Halt,
}

impl Units {
    /// Opens the input for one of so many workers, which reads until it is to stop.
    pub(crate) fn open(input: &Input, workers: u32, halt: &Halt) -> Result<Units, JobError> {
        let source = Source::open(&input.inputs, &input.reading, &input.encoder)?;
        if workers > 1 && source.has_stream() {
            let reason = "every worker of a job opens the input for itself: a stream or standard input can be read \
                          by one worker only; store it as a file";
            return Err(JobError::Options(reason.to_owned()));
        }
        let bytes = source.bytes_total().unwrap_or(u64::MAX);
        let unit_bytes = (bytes / UNITS_MIN).clamp(UNIT_BYTES_MIN, BLOCK_BYTES as u64);
        // Also where the rows of a pass are shared out anew. A worker of this process that is ahead may skip a few more.
        input.bad_rows.begin_pass();
        let decoder = Decoder::new(Arc::clone(&input.encoder), Arc::clone(&input.bad_rows));
        let watched = halt.clone();
        let source = source
            .with_unit_bytes(unit_bytes as usize)
            .while_wanted(Arc::new(move || watched.check().is_ok()));
        Ok(Units { source, decoder, unit: Unit::default(), next: 0, halt: halt.clone() })
    }

    /// Size of all inputs as stored, if it is known.
    pub(crate) fn bytes_total(&self) -> Option<u64> {
        self.source.bytes_total()
    }

    /// Reads the next unit whose number is wanted; its number, or None at the end.
    pub(crate) fn read(
        &mut self,
        timer: &mut StageTimer,
        is_wanted: impl Fn(u64) -> bool,
    ) -> Result<Option<u64>, JobError> {
        timer.switch(READ);
        loop {
            self.halt.check()?;
            let more = self.source.next_unit(&mut self.unit);
            // A silent stream ends with an error when the job stops.
            self.halt.check()?;
            if !more? {
                return Ok(None);
            }
            let number = self.next;
            self.next += 1;
            if is_wanted(number) {
                return Ok(Some(number));
            }
        }
    }

    /// Puts the rows of the unit that was read last in place of what `into` held.
    pub(crate) fn decode_in_place(
        &mut self,
        into: &mut Decoded,
        timer: &mut StageTimer,
    ) -> Result<(), SampleError> {
        timer.switch(PARSE);
        self.decoder.decode_in_place(&self.unit, into)
    }

    /// Appends the rows of the unit that was read last.
    pub(crate) fn decode(&mut self, batch: &mut Batch, timer: &mut StageTimer) -> Result<(), SampleError> {
        timer.switch(PARSE);
        self.decoder.decode(&self.unit, batch)
    }
}
