//! Approximate counts of hashes in constant memory: a count-min sketch with conservative update (Cormode &
//! Muthukrishnan 2005; Estan & Varghese 2002). Counts since the last halving are never too low, and sometimes too
//! high.
//!
//! The counters of a hash lie in one cache line. Each is halved once per as many sightings as there are counters,
//! so that rare keys are forgotten (as in TinyLFU, Einziger et al. 2017). They are halved one per sighting, because
//! halving all at once would cause a long pause. Races between threads may lose a count.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicUsize};

use crate::memory::Region;

/// Counters per cache line, and counters of a hash.
const LINE: usize = 64;
const DEPTH: usize = 4;

#[derive(Debug)]
pub(crate) struct Sketch {
    counters: Region<AtomicU8>,
    /// Sightings so far. The first `counters.len()` halve nothing, because no count is older.
    sightings: AtomicUsize,
}

impl Sketch {
    /// The size of a sketch with at least `bytes` counters of a byte.
    pub(crate) fn rounded_bytes(bytes: u64) -> usize {
        usize::try_from(bytes).unwrap_or(usize::MAX / 2 + 1).max(LINE).next_power_of_two()
    }

    /// A sketch of [`Sketch::rounded_bytes`]; `None` if memory is exhausted.
    pub(crate) fn new(bytes: usize) -> Option<Sketch> {
        Some(Sketch { counters: Region::zeroed(bytes)?, sightings: AtomicUsize::new(0) })
    }

    #[inline(always)]
    fn counters(&self, hash: u64) -> [&AtomicU8; DEPTH] {
        // The upper bits choose the line, the lower ones a counter in each quarter.
        let line = ((u128::from(hash) * (self.counters.len() / LINE) as u128) >> 64) as usize * LINE;
        let line = &self.counters[line..][..LINE];
        std::array::from_fn(|at| {
            let part = LINE / DEPTH;
            &line[at * part + (hash >> (at * 8)) as usize % part]
        })
    }

    /// The count of the hash.
    pub(crate) fn count(&self, hash: u64) -> u8 {
        self.counters(hash).iter().map(|counter| counter.load(Relaxed)).min().unwrap_or(0)
    }

    /// Counts a sighting of the hash; returns the new count.
    pub(crate) fn add(&self, hash: u64) -> u8 {
        let seen = self.count(hash);
        if seen < u8::MAX {
            for counter in self.counters(hash) {
                if counter.load(Relaxed) == seen {
                    counter.store(seen + 1, Relaxed);
                }
            }
        }
        seen.saturating_add(1)
    }

    /// Ages the counters by `sightings`. Concurrent calls halve different counters.
    pub(crate) fn age(&self, sightings: usize) {
        let len = self.counters.len(); // a power of two
        let before = self.sightings.fetch_add(sightings, Relaxed);
        let turns = before.max(len)..before + sightings;
        for counter in turns.take(len).map(|turn| &self.counters[turn & (len - 1)]) {
            counter.store(counter.load(Relaxed) / 2, Relaxed);
        }
    }

    /// Resets all counts.
    pub(crate) fn clear(&self) {
        self.sightings.store(0, Relaxed);
        self.counters.iter().for_each(|counter| counter.store(0, Relaxed));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::index::hash::mix;

    #[test]
    fn counts_are_never_too_low_and_seldom_too_high() {
        let sketch = Sketch::new(Sketch::rounded_bytes(60_000)).unwrap();
        assert_eq!(sketch.counters.len(), 65_536);
        let keys = 65_536 / 8;
        for key in 0..keys {
            for seen in 1..=key % 5 {
                assert!(u64::from(sketch.add(mix(key))) >= seen);
            }
        }
        let wrong = (0..keys).filter(|&key| u64::from(sketch.count(mix(key))) != key % 5).count();
        assert!((0..keys).all(|key| u64::from(sketch.count(mix(key))) >= key % 5));
        assert!(wrong < keys as usize / 20, "{wrong} of {keys} are too high");
        sketch.age(65_535);
        sketch.age(1);
        assert_eq!(sketch.count(mix(4)), 4);
        // Each sighting halves one counter; a round halves all, in any partition.
        let halved = || (0..keys).filter(|&key| key % 5 == 4 && sketch.count(mix(key)) <= 3).count();
        for (sightings, expected) in [(100, 0), (32_668, keys as usize / 10), (32_768, keys as usize / 5)] {
            sketch.age(sightings);
            assert!(halved().abs_diff(expected) <= keys as usize / 50, "{} after {sightings}", halved());
        }
        assert_eq!(sketch.count(mix(4)), 2);
        sketch.age(65_536);
        assert_eq!(sketch.count(mix(4)), 1);
        sketch.clear();
        assert!((0..keys).all(|key| sketch.count(mix(key)) == 0));
        (0..300).for_each(|_| assert!(sketch.add(7) > 0));
        assert_eq!(sketch.count(7), u8::MAX);
    }
}
