//! Row versions: what makes the words of a row one row to readers who take no lock. Knows neither rows nor words.
//!
//! A reader copies a row between two looks at its version and starts over when the version was odd or has changed; a
//! writer makes it odd, stores, and makes it even (a sequence lock; Boehm 2012 for the fences). Versions are not in the
//! rows but in an array that rows share by the end of their number: rows of 32 weights then lie on two cache lines instead
//! of three. It is small enough for the second-level cache, and large enough that two threads that push seldom want the
//! same line: who is about to take a version asks for its line beforehand. (Sharing a version costs a rare needless retry,
//! never a missed one.)

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::memory::Region;
use crate::memory::prefetch::{PrefetchHint, prefetch};
use crate::sync::write_gate::{ExclusiveGuard, SharedGuard};
use crate::sync::{AtomicU32, fence, pause};

/// Versions of a table; a power of two, and enough of them for memory that is taken as it is touched.
const VERSIONS: usize = if cfg!(loom) { 2 } else { 1 << 15 };

#[derive(Debug)]
pub(crate) struct SeqLocks(Region<AtomicU32>);

/// A row's version while it is odd.
#[derive(Debug)]
pub(crate) struct RowWriteGuard<'a> {
    version: &'a AtomicU32,
    before: u32,
}

/// See [`SeqLocks::view`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeqLocksView<'a>(&'a [AtomicU32]);

impl<'a> SeqLocksView<'a> {
    #[inline(always)]
    fn of(self, row: u32) -> &'a AtomicU32 {
        &self.0[row as usize % VERSIONS]
    }

    /// Asks for the line of the row's version, to read it or to change it.
    #[inline(always)]
    pub(crate) fn prefetch(self, row: u32, hint: PrefetchHint) {
        prefetch(self.0, row as usize % VERSIONS, hint);
    }

    /// The row's version, once nobody changes the row. What is then loaded, by atomics, is one version of the row if
    /// [`SeqLocksView::read_validate`] says so afterwards.
    #[inline(always)]
    pub(crate) fn read_begin(self, row: u32) -> u32 {
        let (version, mut spins) = (self.of(row), 0);
        loop {
            let before = version.load(Acquire);
            if before & 1 == 0 {
                return before;
            }
            pause(&mut spins);
        }
    }

    /// Has the row not been changed since?
    #[inline(always)]
    pub(crate) fn read_validate(self, row: u32, before: u32) -> bool {
        fence(Acquire);
        self.of(row).load(Relaxed) == before
    }
}

impl SeqLocks {
    /// Bytes of the versions of the first rows.
    pub(crate) fn bytes(rows: u64) -> usize {
        rows.min(VERSIONS as u64) as usize * size_of::<u32>()
    }

    /// `None` without memory.
    pub(crate) fn new() -> Option<SeqLocks> {
        Region::zeroed(VERSIONS).map(SeqLocks)
    }

    #[inline(always)]
    fn of(&self, row: u32) -> &AtomicU32 {
        self.view().of(row)
    }

    /// The versions for who reads many, by value, so that it stays in registers.
    #[inline(always)]
    pub(crate) fn view(&self) -> SeqLocksView<'_> {
        SeqLocksView(&self.0)
    }

    /// Waits until nobody changes the row, and lets the caller do so until the result is dropped. One thread must not
    /// change two rows at once: they may share a version.
    #[inline(always)]
    pub(crate) fn write(&self, row: u32, _: &SharedGuard<'_>) -> RowWriteGuard<'_> {
        let (version, mut spins) = (self.of(row), 0);
        let before = loop {
            let before = version.load(Relaxed);
            if before & 1 == 0 && version.compare_exchange_weak(before, before | 1, Acquire, Relaxed).is_ok()
            {
                break before;
            }
            pause(&mut spins);
        };
        // The odd version is visible before any store of the change.
        fence(Release);
        RowWriteGuard { version, before }
    }

    /// The same without having to reckon with others.
    #[inline(always)]
    pub(crate) fn write_exclusive(&self, row: u32, _: &mut ExclusiveGuard<'_>) -> RowWriteGuard<'_> {
        let version = self.of(row);
        let before = version.load(Relaxed);
        version.store(before | 1, Relaxed);
        fence(Release);
        RowWriteGuard { version, before }
    }
}

impl Drop for RowWriteGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.version.store(self.before.wrapping_add(2), Release);
    }
}
