//! Batches whose keys were fed ahead. The server keeps them until they are pushed or a bound is reached. It knows keys
//! and shapes, no rows.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sanderling_observe::numbers::bytes as in_units;
use sanderling_store::{Dedup, PulledRows};
use sanderling_wire::{Fault, Feed, Pooling, set_bit};

use crate::limit::{BATCH_AGE_MAX, BATCHES_BYTES_MAX, BATCHES_MAX};
use crate::refusal::Refusal;

/// Names one feature of a batch: table, batch, feature.
pub(crate) type BatchId = (u32, u64, u32);

/// The distinct keys of one feature of a batch, and how samples are pooled from them.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Distinct keys.
    pub(crate) unique: Vec<u64>,
    /// Occurrences of each distinct key.
    pub(crate) counts: Vec<u32>,
    /// Per occurrence, the index of its key in `unique`.
    inverse: Vec<u32>,
    /// Per sample, the index of its first occurrence; one more entry ends the last sample.
    offsets: Vec<u32>,
    /// One value per occurrence; without them, every value is 1.
    values: Option<Vec<f32>>,
    pooling: Pooling,
    /// The rows that the last pull found, so that the push need not search the keys.
    pulled: Mutex<PulledRows>,
    fed: Instant,
}

impl Batch {
    pub(crate) fn new(feed: &Feed<'_>, now: Instant) -> Batch {
        let mut dedup = Dedup::new();
        dedup.assign(feed.ragged.keys);
        Batch {
            unique: dedup.unique.as_slice().into(),
            counts: dedup.counts.as_slice().into(),
            inverse: dedup.inverse.as_slice().into(),
            offsets: feed.ragged.offsets.into(),
            values: feed.ragged.values.map(Into::into),
            pooling: feed.pooling,
            pulled: Mutex::default(),
            fed: now,
        }
    }

    pub(crate) fn samples(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The rows that the last pull found.
    pub(crate) fn pulled(&self) -> MutexGuard<'_, PulledRows> {
        self.pulled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of occurrences.
    pub(crate) fn keys(&self) -> usize {
        self.inverse.len()
    }

    fn bytes(&self) -> usize {
        let words = self.counts.len() + self.inverse.len() + self.offsets.len();
        let values = self.values.as_ref().map_or(0, Vec::len);
        // Found rows are counted from the beginning.
        size_of::<Batch>() + self.unique.len() * 12 + (words + values) * 4
    }

    /// Calls `f(sample, index in unique, weight)` for every occurrence.
    fn for_each(&self, mut f: impl FnMut(usize, usize, f32)) {
        for (sample, ends) in self.offsets.windows(2).enumerate() {
            let occurrences = ends[0] as usize..ends[1] as usize;
            let share = match self.pooling {
                Pooling::Sum => 1.0,
                Pooling::Mean => 1.0 / occurrences.len().max(1) as f32,
            };
            for at in occurrences {
                let value = self.values.as_ref().map_or(1.0, |values| values[at]);
                f(sample, self.inverse[at] as usize, value * share);
            }
        }
    }

    /// Pools the rows of the distinct keys into one row per sample.
    pub(crate) fn pool(&self, rows: &[f32], dim: usize, out: &mut [f32]) {
        out.fill(0.0);
        self.for_each(|sample, unique, weight| {
            let row = &rows[unique * dim..][..dim];
            out[sample * dim..][..dim].iter_mut().zip(row).for_each(|(sum, x)| *sum += weight * x);
        });
    }

    /// Spreads the gradients of the samples over the distinct keys.
    pub(crate) fn spread(&self, samples: &[f32], dim: usize, out: &mut [f32]) {
        out.fill(0.0);
        self.for_each(|sample, unique, weight| {
            let gradient = &samples[sample * dim..][..dim];
            out[unique * dim..][..dim].iter_mut().zip(gradient).for_each(|(sum, g)| *sum += weight * g);
        });
    }

    /// Sets the bits of all occurrences of the keys at these ascending indexes.
    pub(crate) fn mark(&self, missing: &[u32], bits: &mut [u64]) {
        for (at, unique) in self.inverse.iter().enumerate() {
            if missing.binary_search(unique).is_ok() {
                set_bit(bits, at);
            }
        }
    }
}

/// All fed batches of a server.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    batches: HashMap<BatchId, Arc<Batch>>,
    /// In order of arrival. Entries of removed batches are skipped.
    order: VecDeque<(BatchId, Instant)>,
    bytes: usize,
}

impl Batches {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a batch. It replaces a batch with the same name.
    pub(crate) fn feed(&self, id: BatchId, batch: Batch) -> Result<(), Refusal> {
        let (fed, bytes) = (batch.fed, batch.bytes());
        let mut kept = self.kept();
        kept.forget_old(fed);
        kept.remove(id);
        if kept.batches.len() >= BATCHES_MAX || kept.bytes + bytes > BATCHES_BYTES_MAX {
            let (count, bytes) = (kept.batches.len(), in_units(kept.bytes as u64));
            let reason = format!("{count} batches of {bytes} wait to be pushed; push them first");
            return Err(Refusal::busy(reason));
        }
        kept.bytes += bytes;
        kept.batches.insert(id, Arc::new(batch));
        kept.order.push_back((id, fed));
        Ok(())
    }

    pub(crate) fn get(&self, id: BatchId, now: Instant) -> Result<Arc<Batch>, Refusal> {
        let mut kept = self.kept();
        kept.forget_old(now);
        kept.batches.get(&id).cloned().ok_or_else(|| {
            let (table, batch, feature) = id;
            let reason = format!(
                "batch {batch}, feature {feature} of table number {table} was never fed, is pushed, or waited for more than {} s",
                BATCH_AGE_MAX.as_secs()
            );
            Refusal::new(Fault::UnknownBatch, reason)
        })
    }

    pub(crate) fn remove(&self, id: BatchId) {
        self.kept().remove(id);
    }

    /// Removes all of them: the tables are others.
    pub(crate) fn clear(&self) {
        *self.kept() = Kept::default();
    }

    /// Number of batches, and their bytes.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        let kept = self.kept();
        (kept.batches.len(), kept.bytes)
    }
}

impl Kept {
    fn remove(&mut self, id: BatchId) {
        if let Some(batch) = self.batches.remove(&id) {
            self.bytes -= batch.bytes();
        }
        if self.order.len() > 2 * (self.batches.len() + BATCHES_MAX / 64) {
            let batches = &self.batches;
            self.order.retain(|(id, fed)| batches.get(id).is_some_and(|batch| batch.fed == *fed));
        }
    }

    fn forget_old(&mut self, now: Instant) {
        while let Some(&(id, fed)) = self.order.front() {
            let is_there = self.batches.get(&id).is_some_and(|batch| batch.fed == fed);
            if is_there && now.saturating_duration_since(fed) < BATCH_AGE_MAX {
                return;
            }
            self.order.pop_front();
            if is_there {
                self.remove(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sanderling_wire::Ragged;

    fn batch(keys: &[u64], offsets: &[u32], values: Option<&[f32]>, pooling: Pooling, now: Instant) -> Batch {
        let ragged = Ragged { keys, offsets, values };
        Batch::new(&Feed { table: 1, batch: 1, feature: 0, pooling, ragged }, now)
    }

    #[test]
    fn rows_are_pooled_and_gradients_spread_by_the_same_weights() {
        let values: &[f32] = &[1.0, 2.0, 3.0, 4.0];
        for (pooling, values, pooled, spread) in [
            (Pooling::Sum, None, [21.0, 0.0, 11.0], [2.0, 3.0]),
            (Pooling::Sum, Some(values), [48.0, 0.0, 44.0], [3.0, 11.0]),
            (Pooling::Mean, None, [7.0, 0.0, 11.0], [2.0 / 3.0, 1.0 / 3.0 + 2.0]),
        ] {
            let batch = batch(&[5, 5, 9, 9], &[0, 3, 3, 4], values, pooling, Instant::now());
            assert_eq!((batch.unique.as_slice(), batch.samples(), batch.keys()), (&[5, 9][..], 3, 4));
            let (mut rows, mut gradients) = ([f32::NAN; 3], [f32::NAN; 2]);
            batch.pool(&[5.0, 11.0], 1, &mut rows);
            batch.spread(&[1.0, 7.0, 2.0], 1, &mut gradients);
            let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(near(&rows, &pooled) && near(&gradients, &spread), "{rows:?} {gradients:?}");
            let mut bits = [0];
            batch.mark(&[1], &mut bits);
            assert_eq!(bits, [0b1100]);
        }
    }

    #[test]
    fn old_batches_are_forgotten_and_too_many_are_refused() {
        let (batches, start) = (Batches::default(), Instant::now());
        let feed = |id: u64, now| batches.feed((1, id, 0), batch(&[id], &[0, 1], None, Pooling::Sum, now));
        for id in 0..BATCHES_MAX as u64 {
            feed(id, start).expect("there is room");
        }
        assert!(matches!(feed(u64::MAX, start).unwrap_err().fault, Fault::Busy { .. }));
        // Replacing a batch takes no room.
        feed(3, start).expect("replaced");
        batches.remove((1, 7, 0));
        assert_eq!(batches.get((1, 7, 0), start).unwrap_err().fault, Fault::UnknownBatch);
        let later = start + BATCH_AGE_MAX;
        feed(u64::MAX, later).expect("the others are old");
        assert_eq!(batches.get((1, 3, 0), later).unwrap_err().fault, Fault::UnknownBatch);
        assert_eq!(batches.get((1, u64::MAX, 0), later).expect("just fed").unique, [u64::MAX]);
        let (count, bytes) = batches.sizes();
        assert!(count == 1 && bytes < 1000, "{count} {bytes}");
    }
}
