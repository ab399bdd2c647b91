//! Samples the looked-up keys: each lane records one key in 64, and at least one per request, in its own ring. A
//! reader of all rings learns which keys are hot. Unsampled keys cost no store.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use crate::index::hash::mix;
use crate::sync::lanes::Lanes;

/// One key in this many is recorded.
const EVERY: usize = 64;
/// Capacity of a ring; new keys overwrite the oldest.
const RING: usize = 32;

#[derive(Debug)]
pub(crate) struct KeySampler(Lanes<Ring>);

#[derive(Debug)]
struct Ring {
    hashes: [AtomicU64; RING],
    noted: AtomicUsize,
}

impl Default for Ring {
    fn default() -> Ring {
        Ring { hashes: [const { AtomicU64::new(0) }; RING], noted: AtomicUsize::new(0) }
    }
}

impl KeySampler {
    pub(crate) fn new() -> KeySampler {
        KeySampler(Lanes::new())
    }

    pub(crate) fn bytes() -> usize {
        Lanes::<Ring>::bytes()
    }

    /// Records some of the hashes, from a varying position on.
    pub(crate) fn note(&self, lane: usize, hashes: &[u64]) {
        let ring = self.0.get(lane);
        let mut noted = ring.noted.load(Relaxed);
        let first = mix(noted as u64) as usize % EVERY.min(hashes.len().max(1));
        for &hash in hashes.iter().skip(first).step_by(EVERY) {
            ring.hashes[noted % RING].store(hash, Relaxed);
            noted = noted.wrapping_add(1);
        }
        ring.noted.store(noted, Relaxed);
    }

    /// Appends the hashes recorded since the last call, except overwritten ones. `read` holds the positions of that
    /// call.
    pub(crate) fn collect(&self, read: &mut Vec<usize>, hashes: &mut Vec<u64>) {
        for (at, ring) in self.0.iter().enumerate() {
            if read.len() <= at {
                read.push(0);
            }
            let noted = ring.noted.load(Relaxed);
            let new = noted.wrapping_sub(read[at]).min(RING);
            hashes.extend((1..=new).map(|back| ring.hashes[noted.wrapping_sub(back) % RING].load(Relaxed)));
            read[at] = noted;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_turn_and_none_comes_twice() {
        let samples = KeySampler::new();
        let (mut read, mut seen) = (Vec::new(), Vec::new());
        let request: Vec<u64> = (1..=70).collect();
        for round in 0..1000 {
            samples.note(round % 2, &request);
            samples.note(0, &request[..1]);
            samples.note(1, &[]);
            samples.collect(&mut read, &mut seen);
        }
        assert!((2000..4000).contains(&seen.len()), "{}", seen.len());
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, request);
        (0..1000).for_each(|_| samples.note(0, &request));
        seen.clear();
        samples.collect(&mut read, &mut seen);
        assert_eq!(seen.len(), RING);
    }
}
