//! One pass over the input, shared by several workers, each of which decodes, shuffles and batches for itself.
//!
//! Workers share only the source, whose lock they hold while the next unit is read; a unit belongs to the worker that
//! took it. With one worker the order of rows depends on the input and the seed alone, and a position (rows already
//! used) is enough to resume exactly.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sanderling_formats::{BLOCK_BYTES, BadRows, DataConfig, Decoded, Decoder, Source, Unit};
use sanderling_observe::StageTimer;
use sanderling_sample::{Batch, Encoder, Rows, SampleError};

use crate::ahead::{Ahead, Received};
use crate::decoding::{ASSEMBLE, Decoding, Shared, Units, WAIT, lock};
use crate::permute::seed_of;
use crate::shuffle::Shuffle;

/// Options of a pass.
#[derive(Clone, Copy, Debug)]
pub struct PassOptions {
    /// Rows of the shuffle buffer, over all workers; 0 keeps the order of the input. Rows are shuffled within
    /// consecutive runs of this length.
    pub shuffle: usize,
    /// Seed of the shuffle.
    pub seed: u64,
    /// Number of the pass; every pass is shuffled differently.
    pub number: u64,
    /// The number of feeds that will be taken.
    pub workers: usize,
    /// Rows of this pass that an earlier run has used.
    pub used_rows: u64,
    /// Approximate bytes of text that are read and decoded together; for a stream at most [`BLOCK_BYTES`], since its
    /// rows wait until the unit is full.
    pub unit_bytes: usize,
}

/// One pass over the input.
pub struct Pass {
    shared: Arc<Shared>,
    options: PassOptions,
    /// Rows read beyond `used_rows` while skipping; the first feed begins with them.
    surplus: Mutex<Option<Batch>>,
    feeds: AtomicU64,
    /// A buffer takes no further units once one of its columns has this many keys.
    keys_max: usize,
}

/// The decoder of a feed.
enum Input {
    /// The worker itself.
    Inline(Box<Decoding>),
    /// Prefetching threads.
    Ahead(Ahead),
}

/// A worker's stream of minibatches.
pub struct Feed<'a> {
    pass: &'a Pass,
    input: Input,
    /// The shuffle buffer; without a shuffle, rows of several units that one minibatch needs.
    pool: Batch,
    minibatch: Batch,
    /// With a shuffle: rows of the next minibatch that were gathered ahead.
    ahead: Batch,
    /// Without a shuffle: the index of the next row in the pool.
    head: usize,
    /// Without a shuffle: the current unit, and the index of its next row.
    unit: Box<Decoded>,
    unit_head: usize,
    shuffle: Shuffle,
    worker: u64,
    chunk: u64,
    /// Rows of this worker's shuffle buffer; 0: none.
    chunk_rows: usize,
    /// Rows of the first chunk that were used already.
    chunk_skip: usize,
    end: bool,
    /// Rows that were decoded for this feed, skipped ones included.
    decoded: u64,
    /// Whether the pass was stopped while this feed waited: its rows make no whole minibatch or shuffle buffer and
    /// must not be used; a resumed run reads them again.
    cut: bool,
}

impl Pass {
    /// Opens the input and skips the rows that were used already.
    pub fn open(
        inputs: &[String],
        config: &DataConfig,
        encoder: &Arc<Encoder>,
        bad_rows: &Arc<BadRows>,
        options: PassOptions,
    ) -> Result<Self, SampleError> {
        Self::open_until(inputs, config, encoder, bad_rows, options, Arc::default())
    }

    /// Opens a pass that stops once the flag is set, as by [`Pass::stop`].
    pub fn open_until(
        inputs: &[String],
        config: &DataConfig,
        encoder: &Arc<Encoder>,
        bad_rows: &Arc<BadRows>,
        options: PassOptions,
        stopped: Arc<AtomicBool>,
    ) -> Result<Self, SampleError> {
        let told = Arc::clone(&stopped);
        let mut go_on = |_, _| !told.load(Ordering::Relaxed);
        Self::open_while(inputs, config, encoder, bad_rows, options, stopped, &mut go_on)
    }

    /// Opens a pass; while used rows are skipped, calls `go_on` with the bytes read and the total if it is known. If
    /// it returns false, the pass is stopped and has no rows.
    pub fn open_while(
        inputs: &[String],
        config: &DataConfig,
        encoder: &Arc<Encoder>,
        bad_rows: &Arc<BadRows>,
        options: PassOptions,
        stopped: Arc<AtomicBool>,
        go_on: &mut dyn FnMut(u64, Option<u64>) -> bool,
    ) -> Result<Self, SampleError> {
        let source = Source::open(inputs, config, encoder)?;
        let unit_bytes_max = if source.has_stream() { BLOCK_BYTES } else { usize::MAX };
        let told = Arc::clone(&stopped);
        let mut source = source
            .with_unit_bytes(options.unit_bytes.min(unit_bytes_max))
            .while_wanted(Arc::new(move || !told.load(Ordering::Relaxed)));
        let skip = skipped_rows(&options);
        let (bytes_read, bytes_total) = (source.bytes_counter(), source.bytes_total());
        let mut going_on = || {
            let on = go_on(bytes_read.load(Ordering::Relaxed), bytes_total);
            if !on {
                stopped.store(true, Ordering::Relaxed);
            }
            on
        };
        let surplus =
            if skip > 0 { skip_rows(&mut source, encoder, bad_rows, skip, &mut going_on)? } else { None };
        let shared = Shared {
            bytes_read,
            bytes_total,
            source: Mutex::new(Units { source, read: 0 }),
            encoder: Arc::clone(encoder),
            bad_rows: Arc::clone(bad_rows),
            stopped,
        };
        Ok(Pass {
            shared: Arc::new(shared),
            options,
            surplus: Mutex::new(surplus),
            feeds: AtomicU64::new(0),
            keys_max: Batch::MAX_KEYS / 2,
        })
    }

    /// The stream of minibatches of one worker; call it once per worker.
    #[must_use]
    pub fn feed(&self) -> Feed<'_> {
        self.feed_from(Input::Inline(Box::new(Decoding::new(
            &self.shared,
            Arc::clone(&self.shared.bad_rows),
        ))))
    }

    /// The stream of minibatches of one worker, with a thread that reads and decodes ahead on its own timer.
    #[must_use]
    pub fn feed_ahead(&self, timer: StageTimer) -> Feed<'_> {
        self.feed_ahead_by([timer])
    }

    /// [`Pass::feed_ahead`] with one thread per timer. The rows do not depend on the number of threads.
    #[must_use]
    pub fn feed_ahead_by(&self, timers: impl IntoIterator<Item = StageTimer>) -> Feed<'_> {
        self.feed_from(Input::Ahead(Ahead::start(&self.shared, timers)))
    }

    fn feed_from(&self, input: Input) -> Feed<'_> {
        let worker = self.feeds.fetch_add(1, Ordering::Relaxed);
        let surplus = lock(&self.surplus).take();
        let options = &self.options;
        let chunk_rows = options.shuffle.div_ceil(options.workers.max(1));
        let skip = skipped_rows(options);
        Feed {
            pass: self,
            input,
            decoded: skip + surplus.as_ref().map_or(0, |surplus| surplus.len() as u64),
            pool: surplus.unwrap_or_else(|| self.shared.encoder.new_batch()),
            minibatch: self.shared.encoder.new_batch(),
            ahead: self.shared.encoder.new_batch(),
            head: 0,
            unit: Box::new(Decoded::new(&self.shared.encoder)),
            unit_head: 0,
            shuffle: Shuffle::default(),
            worker,
            chunk: if chunk_rows > 0 { skip / chunk_rows as u64 } else { 0 },
            chunk_rows,
            chunk_skip: (options.used_rows - skip) as usize,
            end: false,
            cut: false,
        }
    }

    /// Stops reading in all feeds.
    ///
    /// A feed still returns the rows that it holds, so that the used rows are a prefix of the input for any number of
    /// workers. A feed with a prefetching thread returns whole minibatches only, as if it had not been stopped.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether the pass was told to stop.
    pub fn is_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Relaxed)
    }

    /// Bytes read so far, as stored (compressed), for progress bars.
    pub fn bytes_read(&self) -> u64 {
        self.shared.bytes_read.load(Ordering::Relaxed)
    }

    /// Bytes of the whole input, if it is known.
    pub fn bytes_total(&self) -> Option<u64> {
        self.shared.bytes_total
    }
}

/// Rows to skip. A single shuffling worker returns to the start of its chunk, whose order is known only once it is
/// complete.
fn skipped_rows(options: &PassOptions) -> u64 {
    if options.workers == 1 && options.shuffle > 0 {
        options.used_rows - options.used_rows % options.shuffle as u64
    } else {
        options.used_rows
    }
}

fn skip_rows(
    source: &mut Source,
    encoder: &Arc<Encoder>,
    bad_rows: &Arc<BadRows>,
    mut skip: u64,
    going_on: &mut dyn FnMut() -> bool,
) -> Result<Option<Batch>, SampleError> {
    let mut decoder = Decoder::new(Arc::clone(encoder), Arc::clone(bad_rows));
    let mut unit = Unit::default();
    let mut decoded = Decoded::new(encoder);
    while going_on() {
        match source.next_unit(&mut unit) {
            Ok(true) => {}
            Ok(false) | Err(SampleError::Unwanted) => break,
            Err(error) => return Err(error),
        }
        decoder.decode_in_place(&unit, &mut decoded)?;
        let rows = decoded.len() as u64;
        if rows >= skip {
            let mut rest = encoder.new_batch();
            rest.append(&decoded.rows().slice(skip as usize..decoded.len()));
            return Ok(Some(rest));
        }
        skip -= rows;
    }
    Ok(None)
}

/// The minibatch after the one that was returned last, which can be assembled ahead.
pub struct Following<'a>(Option<Shuffled<'a>>);

/// The work ahead for shuffled rows; without a shuffle rows are used in place.
struct Shuffled<'a> {
    pool: &'a Batch,
    shuffle: &'a mut Shuffle,
    ahead: &'a mut Batch,
    batch: usize,
}

impl<'a> Following<'a> {
    /// Assembles the minibatch if its rows are in the shuffle buffer, while the one before is in use. The next call
    /// for the same number of rows gets it without waiting.
    pub fn assemble(self, timer: &mut StageTimer) -> Option<Rows<'a>> {
        let Shuffled { pool, shuffle, ahead, batch } = self.0?;
        if shuffle.left() < batch {
            return None;
        }
        timer.switch(ASSEMBLE);
        shuffle.gather(pool, batch, ahead);
        Some(Rows::all(ahead))
    }
}

impl Feed<'_> {
    /// Estimated rows of the whole pass, if this is its only feed: rows so far, scaled by the bytes left. For
    /// progress; `None` before the first rows, and for a stream.
    #[must_use]
    pub fn rows_expected(&self) -> Option<u64> {
        let (read, total) = (self.pass.bytes_read(), self.pass.bytes_total()?);
        if self.end {
            return Some(self.decoded);
        }
        let share = read as f64 / total.max(1) as f64;
        (self.decoded > 0 && read > 0).then(|| (self.decoded as f64 / share.min(1.0)) as u64)
    }

    /// The next minibatch, or None at the end of the pass. It has `batch` rows, or fewer at the end of the pass. The
    /// timer's first stages are [`STAGES`]; it is left in one of them.
    pub fn next(&mut self, batch: usize, timer: &mut StageTimer) -> Result<Option<Rows<'_>>, SampleError> {
        if self.chunk_rows > 0 {
            self.next_shuffled(batch, timer)
        } else {
            self.next_in_order(batch, batch, timer)
        }
    }

    /// The next minibatch like [`Feed::next`], and a handle that assembles the one after it.
    pub fn next_and(
        &mut self,
        batch: usize,
        timer: &mut StageTimer,
    ) -> Result<Option<(Rows<'_>, Following<'_>)>, SampleError> {
        if self.chunk_rows == 0 {
            return Ok(self.next_in_order(batch, batch, timer)?.map(|rows| (rows, Following(None))));
        }
        if !self.take_shuffled(batch, timer)? {
            return Ok(None);
        }
        let Feed { pool, minibatch, ahead, shuffle, .. } = self;
        let following = Following(Some(Shuffled { pool, shuffle, ahead, batch }));
        Ok(Some((Rows::all(minibatch), following)))
    }

    /// The next rows, at least one and at most `most`, as many as are available; `None` at the end of the pass.
    pub fn next_some(
        &mut self,
        most: usize,
        timer: &mut StageTimer,
    ) -> Result<Option<Rows<'_>>, SampleError> {
        if self.chunk_rows > 0 { self.next_shuffled(most, timer) } else { self.next_in_order(1, most, timer) }
    }

    fn next_in_order(
        &mut self,
        least: usize,
        most: usize,
        timer: &mut StageTimer,
    ) -> Result<Option<Rows<'_>>, SampleError> {
        let ready = self.pool.len() - self.head;
        if ready >= least {
            let range = self.head..self.head + ready.min(most);
            self.head = range.end;
            return Ok(Some(Rows::new(&self.pool, range)));
        }
        if ready == 0 {
            // Whole minibatches are used in place.
            while self.unit_head == self.unit.len() && !self.end {
                self.next_unit(timer)?;
            }
            if self.cut {
                return Ok(None);
            }
            let left = self.unit.len() - self.unit_head;
            if left >= least || self.end {
                let range = self.unit_head..self.unit_head + left.min(most);
                self.unit_head = range.end;
                return Ok((!range.is_empty()).then(|| self.unit.rows().slice(range)));
            }
        }
        timer.switch(ASSEMBLE);
        self.pool.drop_front(self.head);
        self.head = 0;
        while self.pool.len() < least && self.pool.max_keys() < self.pass.keys_max {
            if self.unit_head == self.unit.len() {
                if self.end {
                    break;
                }
                self.next_unit(timer)?;
                timer.switch(ASSEMBLE);
                continue;
            }
            let end = self.unit.len().min(self.unit_head + least - self.pool.len());
            self.pool.append(&self.unit.rows().slice(self.unit_head..end));
            self.unit_head = end;
        }
        if self.cut {
            return Ok(None);
        }
        self.head = self.pool.len().min(most);
        Ok((!self.pool.is_empty()).then(|| Rows::new(&self.pool, 0..self.head)))
    }

    /// Replaces the current unit, all of whose rows were used; sets `end` and `cut`.
    fn next_unit(&mut self, timer: &mut StageTimer) -> Result<(), SampleError> {
        self.unit_head = self.unit.len();
        match &mut self.input {
            Input::Inline(decoding) => {
                self.end = !decoding.next_in_place(&self.pass.shared, &mut self.unit, timer)?;
            }
            Input::Ahead(ahead) => {
                timer.switch(WAIT);
                match ahead.receive()? {
                    Received::Rows(decoded) => {
                        ahead.give_back(std::mem::replace(&mut self.unit, decoded));
                    }
                    Received::End => self.end = true,
                    Received::Stopped => (self.end, self.cut) = (true, true),
                }
            }
        }
        if !self.end {
            self.unit_head = 0;
            self.decoded += self.unit.len() as u64;
        }
        Ok(())
    }

    fn next_shuffled(
        &mut self,
        batch: usize,
        timer: &mut StageTimer,
    ) -> Result<Option<Rows<'_>>, SampleError> {
        Ok(self.take_shuffled(batch, timer)?.then(|| Rows::all(&self.minibatch)))
    }

    /// Fills the minibatch with the next rows; `false` if there are none.
    fn take_shuffled(&mut self, batch: usize, timer: &mut StageTimer) -> Result<bool, SampleError> {
        timer.switch(ASSEMBLE);
        if self.ahead.len() > batch {
            self.shuffle.give_back(self.ahead.len());
            self.ahead.clear();
        }
        std::mem::swap(&mut self.minibatch, &mut self.ahead);
        self.ahead.clear();
        while self.minibatch.len() < batch {
            if self.shuffle.left() == 0 && !self.next_chunk(timer)? {
                break;
            }
            let missing = batch - self.minibatch.len();
            self.shuffle.gather(&self.pool, missing, &mut self.minibatch);
        }
        Ok(!self.minibatch.is_empty() && !self.cut)
    }

    /// Refills the shuffle buffer and draws a new order; `false` at the end of the pass.
    fn next_chunk(&mut self, timer: &mut StageTimer) -> Result<bool, SampleError> {
        self.shuffle.drop_drawn(&mut self.pool);
        self.fill(self.chunk_rows, timer)?;
        timer.switch(ASSEMBLE);
        let options = &self.pass.options;
        let rows = self.pool.len().min(self.chunk_rows);
        let seed = seed_of(&[options.seed, options.number, self.worker, self.chunk]);
        self.shuffle.draw(&self.pool, rows, seed);
        self.shuffle.skip(std::mem::take(&mut self.chunk_skip));
        self.chunk += 1;
        Ok(rows > 0)
    }

    /// Takes units until the pool holds `rows` rows, or as many keys as a batch may hold, or the input ends.
    fn fill(&mut self, rows: usize, timer: &mut StageTimer) -> Result<(), SampleError> {
        while self.pool.len() < rows && !self.end && self.pool.max_keys() < self.pass.keys_max {
            if let Input::Inline(decoding) = &mut self.input {
                let before = self.pool.len();
                self.end = !decoding.next(&self.pass.shared, &mut self.pool, timer)?;
                self.decoded += (self.pool.len() - before) as u64;
                continue;
            }
            self.next_unit(timer)?;
            if !self.end {
                timer.switch(ASSEMBLE);
                self.unit.move_to(&mut self.pool);
                self.unit_head = 0;
            }
        }
        // A resumed run returns to the start of the buffer, which only a whole buffer determines.
        if self.pool.len() < rows && !self.end && self.pass.options.workers == 1 {
            let (rows, found) = (self.pool.len(), self.pass.options.shuffle);
            return Err(SampleError::Settings(format!(
                "shuffle_rows = {found}: {rows} rows have {} keys of one feature, which are as many as the shuffle buffer may hold; \
                 lower it below {rows}",
                self.pool.max_keys()
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
