//! A bucket of the index: one cache line with the hashes and row numbers of five keys. Searches read it without a
//! lock while at most one thread changes it.
#![allow(unsafe_code)] // promises that a bucket is made of atomics

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::kept::fault::{self, Fault};
use crate::kept::in_order;
use crate::memory::ZeroAtomics;
use crate::simd::{self, Line, Vector};
#[cfg(loom)]
use crate::sync;
use crate::sync::{fence, pause};

/// Row number of a key that is absent.
pub(crate) const NO_ROW: u32 = u32::MAX;
/// Keys of a bucket.
pub(crate) const SLOTS: usize = 5;
/// Position of the meta word among the short words. Bit 0 is set while the bucket changes, bits 0 to 23 are the
/// version, bits 24 to 31 the overflow count, which saturates.
const META: usize = SLOTS;
const VERSION_MASK: u32 = 0x00FF_FFFF;
const OVERFLOW_SHIFT: u32 = 24;
pub(crate) const OVERFLOW_MAX: u32 = 0xFF;
/// The long words are hashes; the short words are row numbers plus one, then the meta word. So 0 is an empty slot,
/// and zeroed memory is an empty index.
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

/// Result of a search in one bucket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe {
    /// Row number, or [`NO_ROW`].
    pub(crate) row: u32,
    /// The key is not here, but may be in the next bucket.
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

    /// The version, which changes with every change of the bucket.
    pub(crate) fn version(&self) -> u32 {
        self.meta() & VERSION_MASK
    }

    /// The number of keys that overflowed to later buckets.
    pub(crate) fn overflow(&self) -> u32 {
        self.meta() >> OVERFLOW_SHIFT
    }

    /// The row number plus one; 0 for an empty slot.
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

    /// Searches once, without checking the version. For use while the bucket cannot change, or for callers that
    /// validate the whole read afterwards ([`crate::sync::write_gate::WriteGate::validate`]).
    #[inline(always)]
    pub(crate) fn probe_once(&self, vector: impl Vector, hash: &u64) -> Probe {
        let mut matches = simd::equal(vector, &self.0, hash);
        // Loops only over empty slots that still hold an old hash.
        while matches != 0 {
            // The extra bit tells the compiler that the slot is in bounds.
            let row = self.row((matches | 1 << SLOTS).trailing_zeros() as usize);
            if row != 0 {
                return Probe { row: row - 1, goes_on: false };
            }
            matches &= matches - 1;
        }
        Probe { row: NO_ROW, goes_on: self.overflow() != 0 }
    }

    /// Locks the bucket for changes until the guard is dropped.
    pub(crate) fn hold(&self) -> Held<'_> {
        let mut spins = 0;
        loop {
            let (word, meta) = (&self.0.shorts[META], self.meta());
            if meta & 1 == 0 && word.compare_exchange_weak(meta, meta | 1, Acquire, Relaxed).is_ok() {
                break;
            }
            pause(&mut spins);
        }
        // Makes the odd version visible before any store of the change.
        fence(Release);
        Held { bucket: self, overflow: self.overflow() }
    }

    pub(crate) fn dec_overflow(&self) {
        let mut held = self.hold();
        // A saturated count is inexact: it stays until the index is rebuilt.
        if held.overflow < OVERFLOW_MAX {
            held.overflow -= 1;
        }
    }

    /// The slot of the hash. The caller must hold the key's lock, or the answer may be stale.
    pub(crate) fn slot_of(&self, hash: u64) -> Option<usize> {
        let mut spins = 0;
        loop {
            let meta = self.0.shorts[META].load(Acquire);
            // Another thread may be filling an empty slot that still has the hash of a removed key.
            let found = (0..SLOTS).find(|&slot| self.hash(slot) == hash && self.row(slot) != 0);
            fence(Acquire);
            if self.meta() == meta && meta & 1 == 0 {
                return found;
            }
            pause(&mut spins);
        }
    }

    /// A consistent snapshot of the hashes in the bucket and their rows.
    pub(crate) fn rows(&self) -> [Option<(u64, u32)>; SLOTS] {
        let mut spins = 0;
        loop {
            let meta = self.0.shorts[META].load(Acquire);
            let rows = std::array::from_fn(|slot| Some((self.hash(slot), self.row(slot).checked_sub(1)?)));
            fence(Acquire);
            if self.meta() == meta && meta & 1 == 0 {
                return rows;
            }
            pause(&mut spins);
        }
    }

    /// Sets the overflow count and makes the version even, while no thread uses the bucket.
    pub(crate) fn mend(&self, overflow: u32) {
        let version = self.version().next_multiple_of(2) & VERSION_MASK;
        self.0.shorts[META].store(version | overflow.min(OVERFLOW_MAX) << OVERFLOW_SHIFT, Release);
    }

    /// Stores a slot while no thread uses the bucket; row 0 empties it.
    pub(crate) fn set_slot(&self, slot: usize, hash: u64, row: u32) {
        self.0.longs[slot].store(hash, Relaxed);
        in_order();
        self.0.shorts[slot].store(row, Relaxed);
    }

    pub(crate) fn free_slot(&self) -> Option<usize> {
        (0..SLOTS).find(|&slot| self.row(slot) == 0)
    }
}

/// Guard of a bucket whose version is odd.
pub(crate) struct Held<'a> {
    pub(crate) bucket: &'a Bucket,
    overflow: u32,
}

impl Held<'_> {
    pub(crate) fn inc_overflow(&mut self) {
        self.overflow = (self.overflow + 1).min(OVERFLOW_MAX);
    }

    /// Stores a row number plus one; 0 empties the slot.
    pub(crate) fn set_row(&self, slot: usize, row: u32) {
        self.bucket.0.shorts[slot].store(row, Relaxed);
    }

    pub(crate) fn fill(&self, slot: usize, hash: u64, row: u32) {
        if fault::is(Fault::RowBeforeHash) {
            self.set_row(slot, row + 1);
            in_order();
        }
        self.bucket.0.longs[slot].store(hash, Relaxed);
        // The row is what makes the slot a key's, also for a process that finds the bucket of a dead one.
        in_order();
        self.set_row(slot, row + 1);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Increments the odd version to the next even one.
        let version = self.bucket.meta().wrapping_add(1) & VERSION_MASK;
        self.bucket.0.shorts[META].store(version | self.overflow << OVERFLOW_SHIFT, Release);
    }
}
