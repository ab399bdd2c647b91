//! Allocates the rows of a slab.
//!
//! Each lane has rows of its own, so that threads that create rows do not contend: a run of never used rows and a
//! list of removed ones. A lane that needs more takes them from the shared reserve of removed rows, then from the
//! table's unused memory, in pieces that grow with the slab up to a huge page and are charged to the budget, and
//! finally from other lanes.
//!
//! While a walk over all rows is in progress, a bit per row marks rows to skip (see [`RowAllocator::begin_walk`]).

mod kept;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::index::directory::{Directory, IndexLock, KeyLock};
use crate::kept::Kept;
use crate::memory::budget::Budget;
use crate::memory::prefetch::PrefetchHint;
use crate::memory::{HUGE_BYTES, Region};
use crate::rows::held::HeldRows;
use crate::rows::inherited::InheritedRows;
use crate::rows::slab::Slab;
use crate::sync::lanes::Lanes;
use crate::sync::seqlock::SeqLocks;
use crate::sync::{Mutex, lock};

/// The first piece has as many rows (a power of two) as fit into this size, and at least one.
const FIRST_PIECE_BYTES: usize = 64 * 1024;
/// Later pieces double the slab, up to about this size.
const PIECE_BYTES: usize = HUGE_BYTES;
/// Removed rows that wait together for their readers.
const LIMBO_ROWS: usize = 256;
/// Rows that a lane takes from the reserve at a time.
const RESERVED_ROWS: usize = 256;
/// Row numbers that the reserve keeps in an array; more go to a linked list, which needs no memory of its own.
pub(crate) const RESERVE_MAX: usize = 1 << 14;
/// Prefetch distance for linking removed rows.
const AHEAD_ROWS: usize = 8;
/// End of a linked list.
const NO_NEXT: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct RowAllocator {
    lanes: Lanes<Mutex<Lane>>,
    /// Rows for all lanes. Locked after a lane.
    reserve: Mutex<Reserve>,
    charge: Mutex<Charge>,
    /// Rows of the first piece, and the maximum rows of a piece; powers of two.
    first_piece: u64,
    piece_max: u64,
    /// Rows with address space here and in the slab.
    rows_max: u64,
    /// A bit per row, set to skip it in a walk. Untouched while there is no walk.
    visited: Region<AtomicU64>,
    walking: AtomicBool,
    /// Keys that moved to another row before they were visited.
    moved: Mutex<Vec<u64>>,
    /// Rows that devices read. Locked after a lane.
    pub(crate) held: HeldRows,
    /// The part that outlives the process, if the rows do.
    kept: Option<Arc<Kept>>,
    /// Rows of an earlier process, of which the free ones are still to be found.
    inherited: Option<InheritedRows>,
}

/// Rows and bytes charged to the budget.
#[derive(Debug, Default)]
struct Charge {
    rows: u64,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Lane {
    /// Never used rows.
    run: Range<u32>,
    /// Removed rows.
    free: List,
    /// Removed rows that readers may still see.
    limbo: Vec<u32>,
    /// Removed rows that no reader can see. They are taken first, which saves linking them.
    ready: Vec<u32>,
}

/// A linked list of rows that no reader can see. Each holds the next one's number in its first word of weights.
#[derive(Debug)]
struct List {
    first: u32,
    len: u32,
}

/// Rows that no reader can see, for all lanes.
#[derive(Debug, Default)]
struct Reserve {
    /// At most [`RESERVE_MAX`] rows, taken first.
    ready: Vec<u32>,
    free: List,
}

impl Default for List {
    fn default() -> List {
        List { first: NO_NEXT, len: 0 }
    }
}

impl List {
    fn push(&mut self, slab: &Slab, row: u32) {
        slab.unpublished(row).set_weight(0, self.first);
        self.first = row;
        self.len += 1;
    }

    fn push_all(&mut self, slab: &Slab, rows: &[u32]) {
        for (at, &row) in rows.iter().enumerate() {
            if let Some(&later) = rows.get(at + AHEAD_ROWS) {
                slab.prefetch_first(later, PrefetchHint::Write);
            }
            self.push(slab, row);
        }
    }

    fn pop(&mut self, slab: &Slab) -> Option<u32> {
        let row = Some(self.first).filter(|&row| row != NO_NEXT)?;
        self.first = slab.first_word(row);
        self.len -= 1;
        Some(row)
    }
}

impl Reserve {
    fn rows(&self) -> usize {
        self.ready.len() + self.free.len as usize
    }

    fn take(&mut self, slab: &Slab, rows: usize, taken: &mut Vec<u32>) {
        let ready = rows.min(self.ready.len());
        taken.extend(self.ready.drain(self.ready.len() - ready..));
        taken.extend((ready..rows).map_while(|_| self.free.pop(slab)));
    }

    fn append(&mut self, slab: &Slab, rows: &mut Vec<u32>) {
        let ready = rows.len().min(RESERVE_MAX.saturating_sub(self.ready.len()));
        self.ready.extend_from_slice(&rows[..ready]);
        self.free.push_all(slab, &rows[ready..]);
        rows.clear();
    }
}

impl Lane {
    fn free_rows(&self) -> usize {
        self.free.len as usize + self.limbo.len() + self.ready.len()
    }

    /// Waits until no reader can see the removed rows, and makes them, or stand-ins, available.
    fn leave_limbo(&mut self, slab: &Slab, directory: &Directory, held: &HeldRows) {
        if self.limbo.is_empty() {
            return;
        }
        directory.synchronize();
        held.screen(&mut self.limbo);
        let mut before = std::mem::take(&mut self.ready);
        self.free.push_all(slab, &before);
        before.clear();
        self.ready = std::mem::replace(&mut self.limbo, before);
    }

    /// Moves up to `rows` rows to `taken`, removed ones first; returns the number of missing rows.
    fn take(&mut self, slab: &Slab, mut rows: usize, taken: &mut Vec<u32>) -> usize {
        let ready = rows.min(self.ready.len());
        taken.extend(self.ready.drain(self.ready.len() - ready..));
        rows -= ready;
        while rows > 0
            && let Some(row) = self.free.pop(slab)
        {
            taken.push(row);
            rows -= 1;
        }
        let run = rows.min(self.run.len());
        taken.extend(self.run.by_ref().take(run));
        rows - run
    }
}

impl RowAllocator {
    /// Creates an allocator; `None` if address space is exhausted.
    pub(crate) fn new(slab: &Slab) -> Option<RowAllocator> {
        Some(RowAllocator::of(slab, Region::reserved(slab.rows_max().div_ceil(64) as usize)?))
    }

    /// An allocator whose bitmap may cover fewer rows than the slab has.
    fn of(slab: &Slab, visited: Region<AtomicU64>) -> RowAllocator {
        let power = |bytes: usize| 1 << (bytes / slab.row_bytes()).max(1).ilog2();
        RowAllocator {
            lanes: Lanes::new(),
            reserve: Mutex::default(),
            charge: Mutex::default(),
            first_piece: power(FIRST_PIECE_BYTES),
            piece_max: power(PIECE_BYTES),
            rows_max: slab.rows_max().min(visited.len() as u64 * 64),
            visited,
            walking: AtomicBool::new(false),
            moved: Mutex::default(),
            held: HeldRows::new(slab.row_bytes()),
            kept: None,
            inherited: None,
        }
    }

    /// Rows with address space.
    pub(crate) fn rows_max(&self) -> u64 {
        self.rows_max
    }

    /// Bytes in addition to those of the rows.
    pub(crate) fn new_bytes() -> usize {
        Lanes::<Mutex<Lane>>::bytes()
    }

    /// Rows charged to the budget; all row numbers are below.
    pub(crate) fn charged(&self) -> u64 {
        lock(&self.charge).rows
    }

    /// Bytes that were charged to the budget.
    pub(crate) fn bytes(&self) -> usize {
        lock(&self.charge).bytes
    }

    /// Removed rows that wait for reuse.
    pub(crate) fn free_rows(&self) -> usize {
        let own: usize = self.lanes.iter().map(|lane| lock(lane).free_rows()).sum();
        own + self.reserved_rows()
    }

    /// Removed rows in the shared reserve.
    pub(crate) fn reserved_rows(&self) -> usize {
        lock(&self.reserve).rows()
    }

    /// Appends `rows` rows, with unspecified contents and invisible to readers, to `taken`. Appends fewer if the
    /// budget, the memory or the row numbers are exhausted. The caller must hold no index guard and no key lock.
    pub(crate) fn take(
        &self,
        lane: usize,
        rows: usize,
        slab: &Slab,
        budget: &Budget,
        directory: &Directory,
        taken: &mut Vec<u32>,
    ) {
        let mut missing = {
            let mut own = lock(self.lanes.get(lane));
            let mut missing = own.take(slab, rows, taken);
            if missing > 0 {
                lock(&self.reserve).take(slab, missing.max(RESERVED_ROWS), &mut own.ready);
                missing = own.take(slab, missing, taken);
            }
            while missing > 0 {
                // Prefers used memory to unused memory.
                own.leave_limbo(slab, directory, &self.held);
                missing = own.take(slab, missing, taken);
                if missing > 0 {
                    match self.charge(slab, budget) {
                        Some(piece) => own.run = piece,
                        None => break,
                    }
                }
            }
            missing
        };
        for other in self.lanes.from(lane + 1) {
            if missing == 0 {
                break;
            }
            let mut other = lock(other);
            other.leave_limbo(slab, directory, &self.held);
            missing = other.take(slab, missing, taken);
        }
    }

    /// Charges up to `rows` rows to the budget in advance, for a lane that has no rows of its own.
    pub(crate) fn charge_ahead(&mut self, lane: usize, rows: u64, slab: &Slab, budget: &Budget) {
        let first = self.charged();
        while self.charge_piece(first + rows - self.charged(), slab, budget).is_some() {}
        let mut own = lock(self.lanes.get(lane));
        debug_assert!(own.run.is_empty(), "these rows would be lost");
        own.run = first as u32..self.charged() as u32;
    }

    /// Charges the next piece, or a smaller one if the budget is short.
    fn charge(&self, slab: &Slab, budget: &Budget) -> Option<Range<u32>> {
        self.charge_piece(self.charged().clamp(self.first_piece, self.piece_max), slab, budget)
    }

    /// Charges a piece of `rows` rows, or a smaller one if the budget is short.
    fn charge_piece(&self, mut rows: u64, slab: &Slab, budget: &Budget) -> Option<Range<u32>> {
        let mut charge = lock(&self.charge);
        rows = rows.min(self.rows_max - charge.rows);
        while rows > 0 {
            let versions = SeqLocks::bytes(charge.rows + rows) - SeqLocks::bytes(charge.rows);
            let bytes = rows as usize * slab.row_bytes() + versions;
            if budget.take(bytes) {
                let first = charge.rows;
                // Of the file system, too, if the rows are in a file.
                let has_space = slab.reserve(first..first + rows).is_ok();
                if let Some(kept) = &self.kept {
                    kept.note_space(!has_space);
                }
                if has_space {
                    charge.rows += rows;
                    charge.bytes += bytes;
                    if let Some(kept) = &self.kept {
                        kept.live.set_rows(charge.rows);
                    }
                    return Some(first as u32..charge.rows as u32);
                }
                budget.give_back(bytes);
            }
            rows /= 2;
        }
        None
    }

    /// Takes rows back that were never published.
    pub(crate) fn give_back(&self, lane: usize, slab: &Slab, rows: &mut Vec<u32>) {
        if !rows.is_empty() {
            let mut lane = lock(self.lanes.get(lane));
            rows.drain(..).rev().for_each(|row| lane.free.push(slab, row));
        }
    }

    /// Takes rows back that searches no longer find. The caller must hold no index guard and no key lock.
    pub(crate) fn retire(&self, lane: usize, slab: &Slab, directory: &Directory, rows: &mut Vec<u32>) {
        if !rows.is_empty() {
            let mut lane = lock(self.lanes.get(lane));
            lane.limbo.append(rows);
            if lane.limbo.len() >= LIMBO_ROWS {
                lane.leave_limbo(slab, directory, &self.held);
            }
        }
    }

    /// Takes rows back like [`RowAllocator::retire`], and waits until they can be reused.
    pub(crate) fn retire_now(&self, lane: usize, slab: &Slab, directory: &Directory, rows: &mut Vec<u32>) {
        let mut lane = lock(self.lanes.get(lane));
        lane.limbo.append(rows);
        lane.leave_limbo(slab, directory, &self.held);
    }

    /// Takes rows back like [`RowAllocator::retire`], for all lanes and for immediate reuse.
    pub(crate) fn retire_for_all(&self, slab: &Slab, directory: &Directory, rows: &mut Vec<u32>) {
        if !rows.is_empty() {
            directory.synchronize();
            self.held.screen(rows);
            lock(&self.reserve).append(slab, rows);
        }
    }

    /// Frees all rows and returns their memory. The caller guarantees that no thread can reach a row.
    pub(crate) fn clear(&self, slab: &Slab, budget: &Budget) {
        self.lanes.iter().for_each(|lane| *lock(lane) = Lane::default());
        *lock(&self.reserve) = Reserve::default();
        if let Some(inherited) = &self.inherited {
            inherited.forget();
        }
        if let Some(kept) = &self.kept {
            kept.live.set_rows(0);
        }
        let charge = std::mem::take(&mut *lock(&self.charge));
        // A walk in progress marks new rows from now on, and could not find the old ones at its end.
        self.forget_visited(charge.rows);
        slab.discard(charge.rows);
        budget.give_back(charge.bytes);
    }

    /// Begins a walk over the rows below the returned number. Only one walk may run at a time.
    ///
    /// Until it ends, every row that gets a key must be marked before it is published: its key is new, or was
    /// removed and perhaps visited before. When a copy-on-write update moves a key, the mark of the old row tells
    /// whether the key is still to be visited, see [`RowAllocator::note_moved`].
    pub(crate) fn begin_walk(&self, _: &IndexLock<'_>) -> u64 {
        self.walking.store(true, Relaxed);
        self.charged()
    }

    /// Ends a walk and clears the marks.
    pub(crate) fn end_walk(&self, _: &IndexLock<'_>) {
        self.walking.store(false, Relaxed);
        self.forget_visited(self.charged());
        *lock(&self.moved) = Vec::new();
    }

    fn forget_visited(&self, rows: u64) {
        self.visited.discard(rows.div_ceil(64) as usize, |word| word.store(0, Relaxed));
    }

    /// Marks a row as visited, if a walk is in progress.
    pub(crate) fn note_visited(&self, row: u32, _: &KeyLock<'_>) {
        if self.walking.load(Relaxed) {
            self.visited[row as usize / 64].fetch_or(1 << (row % 64), Relaxed);
        }
    }

    /// Returns whether the row is marked.
    pub(crate) fn is_visited(&self, row: u32, _: &KeyLock<'_>) -> bool {
        self.visited[row as usize / 64].load(Relaxed) >> (row % 64) & 1 == 1
    }

    /// Records that a key moves to another row. [`RowAllocator::moved`] reports it if it was not visited yet.
    pub(crate) fn note_moved(&self, key: u64, from: u32, to: u32, locked: &KeyLock<'_>) {
        if self.walking.load(Relaxed) {
            if !self.is_visited(from, locked) {
                lock(&self.moved).push(key);
            }
            self.note_visited(to, locked);
        }
    }

    /// Takes the keys that moved before they were visited.
    pub(crate) fn moved(&self) -> Vec<u64> {
        std::mem::take(&mut lock(&self.moved))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
