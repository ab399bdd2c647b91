//! Sequence locks of rows, which make lock-free reads of a row consistent.
//!
//! A reader copies a row between two loads of its version and retries if the version was odd or has changed. A
//! writer makes the version odd, stores, and makes it even (fences: Boehm 2012). Versions are not in the rows but
//! in an array that rows share by the low bits of their number, so that a row of 32 weights needs two cache lines
//! instead of three. The array fits into a second-level cache but is large enough that two writers rarely want the
//! same line; writers prefetch it. Sharing a version can cause a needless retry, but never hides a change.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::memory::Region;
use crate::memory::prefetch::{PrefetchHint, prefetch};
use crate::sync::write_gate::{ExclusiveGuard, SharedGuard};
use crate::sync::{AtomicU32, fence, pause};

/// Versions of a table; a power of two. The region is large enough to be committed on demand.
const VERSIONS: usize = if cfg!(loom) { 2 } else { 1 << 15 };

#[derive(Debug)]
pub(crate) struct SeqLocks(Region<AtomicU32>);

/// Guard of a row whose version is odd.
#[derive(Debug)]
pub(crate) struct RowWriteGuard<'a> {
    version: &'a AtomicU32,
    before: u32,
}

/// A copyable view of the locks, see [`SeqLocks::view`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeqLocksView<'a>(&'a [AtomicU32]);

impl<'a> SeqLocksView<'a> {
    #[inline(always)]
    fn of(self, row: u32) -> &'a AtomicU32 {
        &self.0[row as usize % VERSIONS]
    }

    /// Prefetches the line of the row's version.
    #[inline(always)]
    pub(crate) fn prefetch(self, row: u32, hint: PrefetchHint) {
        prefetch(self.0, row as usize % VERSIONS, hint);
    }

    /// Waits until the row is not being written; returns its version. Atomic loads that follow are consistent if
    /// [`SeqLocksView::read_validate`] then returns true.
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

    /// Returns whether the row is unchanged since `before`.
    #[inline(always)]
    pub(crate) fn read_validate(self, row: u32, before: u32) -> bool {
        fence(Acquire);
        self.of(row).load(Relaxed) == before
    }
}

impl SeqLocks {
    /// Bytes of the versions of the first `rows` rows.
    pub(crate) fn bytes(rows: u64) -> usize {
        rows.min(VERSIONS as u64) as usize * size_of::<u32>()
    }

    /// Creates the locks; `None` if memory is exhausted.
    pub(crate) fn new() -> Option<SeqLocks> {
        Region::zeroed(VERSIONS).map(SeqLocks)
    }

    #[inline(always)]
    fn of(&self, row: u32) -> &AtomicU32 {
        self.view().of(row)
    }

    /// A reader's view by value, so that it stays in registers.
    #[inline(always)]
    pub(crate) fn view(&self) -> SeqLocksView<'_> {
        SeqLocksView(&self.0)
    }

    /// Locks the row for a write until the guard is dropped. A thread must not lock two rows at once, because they
    /// may share a version.
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
        // Makes the odd version visible before any store of the change.
        fence(Release);
        RowWriteGuard { version, before }
    }

    /// Marks the row as being written, without competing writers.
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
