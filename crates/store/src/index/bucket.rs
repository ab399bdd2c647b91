//! A bucket of the index: one cache line with five keys' hashes and rows, which searches read without a lock while one
//! thread at a time changes it. Knows nothing of other buckets.
#![allow(unsafe_code)] // promises that a bucket is made of atomics

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::memory::ZeroAtomics;
use crate::simd::{self, Line, Vector};
#[cfg(loom)]
use crate::sync;
use crate::sync::{fence, pause};

/// Row number of a key that is absent.
pub(crate) const NO_ROW: u32 = u32::MAX;
/// Keys of a bucket.
pub(crate) const SLOTS: usize = 5;
/// Where the line's short words have the meta word: bit 0 odd while the bucket changes, bits 0 to 23 the version, bits 24
/// to 31 the overflow count, which sticks at its maximum.
const META: usize = SLOTS;
const VERSION_MASK: u32 = 0x00FF_FFFF;
const OVERFLOW_SHIFT: u32 = 24;
pub(crate) const OVERFLOW_MAX: u32 = 0xFF;
/// The long words are hashes, the short ones their row numbers and the meta word. Row numbers are kept plus one, so that
/// zero is an empty slot and zeroed memory an empty index.
#[derive(Debug)]
pub(crate) struct Bucket(Line);

// SAFETY: a bucket is made of atomics, and all zero is the empty bucket.
unsafe impl ZeroAtomics for Bucket {
    #[cfg(loom)]
    fn zero() -> Bucket {
        Bucket(Line {
            longs: std::array::from_fn(|_| sync::AtomicU64::new(0)),
            shorts: std::array::from_fn(|_| sync::AtomicU32::new(0)),
        })
    }
}

/// What a search in one bucket found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe {
    /// Row number, or [`NO_ROW`].
    pub(crate) row: u32,
    /// The key is not here but may be in the next bucket.
    pub(crate) goes_on: bool,
}

impl Bucket {
    #[inline(always)]
    pub(crate) fn hash(&self, slot: usize) -> u64 {
        self.0.longs[slot].load(Relaxed)
    }

    fn meta(&self) -> u32 {
        self.0.shorts[META].load(Relaxed)
    }

    /// Changes with every change of the bucket.
    pub(crate) fn version(&self) -> u32 {
        self.meta() & VERSION_MASK
    }

    /// How many keys were turned away.
    pub(crate) fn overflow(&self) -> u32 {
        self.meta() >> OVERFLOW_SHIFT
    }

    /// Row number plus one.
    #[inline(always)]
    pub(crate) fn row(&self, slot: usize) -> u32 {
        self.0.shorts[slot].load(Relaxed)
    }

    #[inline(always)]
    pub(crate) fn probe(&self, vector: impl Vector, hash: &u64) -> Probe {
        let mut spins = 0;
        loop {
            let meta = self.0.shorts[META].load(Acquire);
            let probe = self.probe_once(vector, hash);
            fence(Acquire);
            if self.meta() == meta && meta & 1 == 0 {
                return probe;
            }
            pause(&mut spins);
        }
    }

    /// The same while nobody changes the bucket, or for a caller that will find out if somebody did
    /// ([`crate::sync::write_gate::WriteGate::validate`]).
    #[inline(always)]
    pub(crate) fn probe_once(&self, vector: impl Vector, hash: &u64) -> Probe {
        let mut matches = simd::equal(vector, &self.0, hash);
        // More than one turn only for slots that are empty and hold an old hash.
        while matches != 0 {
            // Never beyond the slots; this way the compiler knows.
            let row = self.row((matches | 1 << SLOTS).trailing_zeros() as usize);
            if row != 0 {
                return Probe { row: row - 1, goes_on: false };
            }
            matches &= matches - 1;
        }
        Probe { row: NO_ROW, goes_on: self.overflow() != 0 }
    }

    /// Waits until nobody changes the bucket, and lets the caller do so until the result is dropped.
    pub(crate) fn hold(&self) -> Held<'_> {
        let mut spins = 0;
        loop {
            let (word, meta) = (&self.0.shorts[META], self.meta());
            if meta & 1 == 0 && word.compare_exchange_weak(meta, meta | 1, Acquire, Relaxed).is_ok() {
                break;
            }
            pause(&mut spins);
        }
        // The odd version is visible before any store of the change.
        fence(Release);
        Held { bucket: self, overflow: self.overflow() }
    }

    pub(crate) fn dec_overflow(&self) {
        let mut held = self.hold();
        // At its maximum it has lost count: it stays until the index is made anew.
        if held.overflow < OVERFLOW_MAX {
            held.overflow -= 1;
        }
    }

    /// Where the hash is. The caller must hold the key's lock, or the answer may be old.
    pub(crate) fn slot_of(&self, hash: u64) -> Option<usize> {
        let mut spins = 0;
        loop {
            let meta = self.0.shorts[META].load(Acquire);
            // Others may be filling an empty slot that still has the hash of a key that left it.
            let found = (0..SLOTS).find(|&slot| self.hash(slot) == hash && self.row(slot) != 0);
            fence(Acquire);
            if self.meta() == meta && meta & 1 == 0 {
                return found;
            }
            pause(&mut spins);
        }
    }

    /// The hashes that are in it, all at one moment.
    pub(crate) fn hashes(&self) -> [Option<u64>; SLOTS] {
        let mut spins = 0;
        loop {
            let meta = self.0.shorts[META].load(Acquire);
            let hashes = std::array::from_fn(|slot| (self.row(slot) != 0).then(|| self.hash(slot)));
            fence(Acquire);
            if self.meta() == meta && meta & 1 == 0 {
                return hashes;
            }
            pause(&mut spins);
        }
    }

    pub(crate) fn free_slot(&self) -> Option<usize> {
        (0..SLOTS).find(|&slot| self.row(slot) == 0)
    }
}

/// A bucket while its version is odd.
pub(crate) struct Held<'a> {
    pub(crate) bucket: &'a Bucket,
    overflow: u32,
}

impl Held<'_> {
    pub(crate) fn inc_overflow(&mut self) {
        self.overflow = (self.overflow + 1).min(OVERFLOW_MAX);
    }

    /// Row number plus one, 0 for an empty slot.
    pub(crate) fn set_row(&self, slot: usize, row: u32) {
        self.bucket.0.shorts[slot].store(row, Relaxed);
    }

    pub(crate) fn fill(&self, slot: usize, hash: u64, row: u32) {
        self.bucket.0.longs[slot].store(hash, Relaxed);
        self.set_row(slot, row + 1);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // From odd to the next even number.
        let version = self.bucket.meta().wrapping_add(1) & VERSION_MASK;
        self.bucket.0.shorts[META].store(version | self.overflow << OVERFLOW_SHIFT, Release);
    }
}
