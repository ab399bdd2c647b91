//! Which rows of a slab are in use. Knows neither keys nor what a row holds.
//!
//! Every lane has rows of its own, so that threads that make rows do not meet: a run of rows that were never used, and a
//! list of those that were removed. What a lane lacks it takes from the reserve, rows that were removed for whoever needs
//! some; then from the table's unused memory, in pieces that grow with the slab up to a huge page and are charged to the
//! budget; and when that is used up, from other lanes.
//!
//! While somebody walks over all rows, a bit per row says that it need not be visited (see [`RowAllocator::begin_walk`]).

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::index::directory::{Directory, IndexLock, KeyLock};
use crate::memory::budget::Budget;
use crate::memory::prefetch::PrefetchHint;
use crate::memory::{HUGE_BYTES, Region};
use crate::rows::slab::Slab;
use crate::sync::lanes::Lanes;
use crate::sync::seqlock::SeqLocks;
use crate::sync::{Mutex, lock};

/// The first piece has as many rows (a power of two) as fit in this, and at least one.
const FIRST_PIECE_BYTES: usize = 64 * 1024;
/// Later pieces are as large as all before them together, up to about this size.
const PIECE_BYTES: usize = HUGE_BYTES;
/// Removed rows that wait together for the readers who may still see them.
const LIMBO_ROWS: usize = 256;
/// A lane takes so many rows at a time from the reserve, so that it is seldom there.
const RESERVED_ROWS: usize = 256;
/// Rows whose numbers the reserve has at hand; further ones are on a list, which takes no memory beside theirs.
pub(crate) const RESERVE_MAX: usize = 1 << 14;
/// Removed rows that are asked for before they are put on a list.
const AHEAD_ROWS: usize = 8;
/// End of a list of removed rows.
const NO_NEXT: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct RowAllocator {
    lanes: Lanes<Mutex<Lane>>,
    /// Rows for all lanes. Locked after a lane.
    reserve: Mutex<Reserve>,
    charge: Mutex<Charge>,
    /// Rows of the first piece, and the most rows of a piece; powers of two.
    first_piece: u64,
    piece_max: u64,
    /// Rows that there is address space for, here and in the slab.
    rows_max: u64,
    /// A bit per row: it need not be visited. Address space only while nobody walks.
    visited: Region<AtomicU64>,
    walking: AtomicBool,
    /// Keys that moved to another row before they were visited.
    moved: Mutex<Vec<u64>>,
}

/// What the budget was charged for.
#[derive(Debug, Default)]
struct Charge {
    rows: u64,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Lane {
    /// Rows that were never used.
    run: Range<u32>,
    /// Removed rows.
    free: List,
    /// Those that readers may still see.
    limbo: Vec<u32>,
    /// Those that no reader can see any more, which are taken first: most are wanted at once, and on the list each of them
    /// would be written and read once more.
    ready: Vec<u32>,
}

/// Rows that no reader can see; each holds the next one's number in its first word.
#[derive(Debug)]
struct List {
    first: u32,
    len: u32,
}

/// Rows that no reader can see, for all lanes.
#[derive(Debug, Default)]
struct Reserve {
    /// At most [`RESERVE_MAX`]; they are taken first, as in a lane.
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
        slab.unpublished(row).set(0, self.first);
        self.first = row;
        self.len += 1;
    }

    fn push_all(&mut self, slab: &Slab, rows: &[u32]) {
        for (at, &row) in rows.iter().enumerate() {
            if let Some(&later) = rows.get(at + AHEAD_ROWS) {
                slab.prefetch_word(later, 0, PrefetchHint::Write);
            }
            self.push(slab, row);
        }
    }

    fn pop(&mut self, slab: &Slab) -> Option<u32> {
        let row = Some(self.first).filter(|&row| row != NO_NEXT)?;
        self.first = slab.word(row, 0);
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

    /// Waits for the readers who may still see removed rows, and then has these ready.
    fn leave_limbo(&mut self, slab: &Slab, directory: &Directory) {
        if self.limbo.is_empty() {
            return;
        }
        directory.synchronize();
        let mut before = std::mem::take(&mut self.ready);
        self.free.push_all(slab, &before);
        before.clear();
        self.ready = std::mem::replace(&mut self.limbo, before);
    }

    /// Moves up to `rows` rows to `taken`, removed ones first; how many are still wanted.
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
    /// `None` without address space.
    pub(crate) fn new(slab: &Slab) -> Option<RowAllocator> {
        Some(RowAllocator::of(slab, Region::reserved(slab.rows_max().div_ceil(64) as usize)?))
    }

    /// With a bit per row of which there may be fewer than were asked for.
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
        }
    }

    /// Rows that there is address space for.
    pub(crate) fn rows_max(&self) -> u64 {
        self.rows_max
    }

    /// Bytes beside those of the rows.
    pub(crate) fn new_bytes() -> usize {
        Lanes::<Mutex<Lane>>::bytes()
    }

    /// Rows that were charged to the budget; all row numbers are below.
    pub(crate) fn charged(&self) -> u64 {
        lock(&self.charge).rows
    }

    /// Bytes that were charged to the budget.
    pub(crate) fn bytes(&self) -> usize {
        lock(&self.charge).bytes
    }

    /// Rows that were removed and wait to be used again.
    pub(crate) fn free_rows(&self) -> usize {
        let own: usize = self.lanes.iter().map(|lane| lock(lane).free_rows()).sum();
        own + self.reserved_rows()
    }

    /// Those of them that are for all lanes.
    pub(crate) fn reserved_rows(&self) -> usize {
        lock(&self.reserve).rows()
    }

    /// Appends `rows` rows of unspecified content, which no reader can see, to `taken`; fewer when the budget, the memory
    /// and the row numbers are used up. The caller must neither have a view nor hold the lock of a key.
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
                // Memory that was in use before memory that never was.
                own.leave_limbo(slab, directory);
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
            other.leave_limbo(slab, directory);
            missing = other.take(slab, missing, taken);
        }
    }

    /// Charges `rows` rows to the budget before they are taken, fewer when that is used up, for a lane whose rows so far have
    /// all been taken.
    pub(crate) fn charge_ahead(&mut self, lane: usize, rows: u64, slab: &Slab, budget: &Budget) {
        let first = self.charged();
        while self.charge_piece(first + rows - self.charged(), slab, budget).is_some() {}
        let mut own = lock(self.lanes.get(lane));
        debug_assert!(own.run.is_empty(), "these rows would be lost");
        own.run = first as u32..self.charged() as u32;
    }

    /// Another piece, of the size that is due or as large as the budget allows.
    fn charge(&self, slab: &Slab, budget: &Budget) -> Option<Range<u32>> {
        self.charge_piece(self.charged().clamp(self.first_piece, self.piece_max), slab, budget)
    }

    /// A piece of `rows` rows, or as large as the budget allows.
    fn charge_piece(&self, mut rows: u64, slab: &Slab, budget: &Budget) -> Option<Range<u32>> {
        let mut charge = lock(&self.charge);
        rows = rows.min(self.rows_max - charge.rows);
        while rows > 0 {
            let versions = SeqLocks::bytes(charge.rows + rows) - SeqLocks::bytes(charge.rows);
            let bytes = rows as usize * slab.row_bytes() + versions;
            if budget.take(bytes) {
                let first = charge.rows;
                charge.rows += rows;
                charge.bytes += bytes;
                return Some(first as u32..charge.rows as u32);
            }
            rows /= 2;
        }
        None
    }

    /// Takes rows back that no reader was told of.
    pub(crate) fn give_back(&self, lane: usize, slab: &Slab, rows: &mut Vec<u32>) {
        if !rows.is_empty() {
            let mut lane = lock(self.lanes.get(lane));
            rows.drain(..).rev().for_each(|row| lane.free.push(slab, row));
        }
    }

    /// Takes rows back that searches no longer find. The caller must neither have a view nor hold the lock of a key.
    pub(crate) fn retire(&self, lane: usize, slab: &Slab, directory: &Directory, rows: &mut Vec<u32>) {
        if !rows.is_empty() {
            let mut lane = lock(self.lanes.get(lane));
            lane.limbo.append(rows);
            if lane.limbo.len() >= LIMBO_ROWS {
                lane.leave_limbo(slab, directory);
            }
        }
    }

    /// As [`RowAllocator::retire`], and waits for the readers who may still see removed rows, so that they can be taken.
    pub(crate) fn retire_now(&self, lane: usize, slab: &Slab, directory: &Directory, rows: &mut Vec<u32>) {
        let mut lane = lock(self.lanes.get(lane));
        lane.limbo.append(rows);
        lane.leave_limbo(slab, directory);
    }

    /// As [`RowAllocator::retire`], for all lanes and at once.
    pub(crate) fn retire_for_all(&self, slab: &Slab, directory: &Directory, rows: &mut Vec<u32>) {
        if !rows.is_empty() {
            directory.synchronize();
            lock(&self.reserve).append(slab, rows);
        }
    }

    /// Forgets all rows and gives their memory back. The caller has made sure that nobody can reach a row.
    pub(crate) fn clear(&self, slab: &Slab, budget: &Budget) {
        self.lanes.iter().for_each(|lane| *lock(lane) = Lane::default());
        *lock(&self.reserve) = Reserve::default();
        let charge = std::mem::take(&mut *lock(&self.charge));
        // A walk that goes on marks rows that are made from now on; those from before it would not find at its end.
        self.forget_visited(charge.rows);
        slab.discard(charge.rows);
        budget.give_back(charge.bytes);
    }

    /// Begins a walk over the rows below the number that is returned. One at a time.
    ///
    /// Until it ends, every row that gets a key is to be marked as visited before it is published: its key is new, or was
    /// removed before and perhaps visited then. (When a copy-on-write gives a key another row, the old one's mark says
    /// whether the key is still to be visited: see [`RowAllocator::note_moved`].)
    pub(crate) fn begin_walk(&self, _: &IndexLock<'_>) -> u64 {
        self.walking.store(true, Relaxed);
        self.charged()
    }

    /// Ends it; the marks are gone.
    pub(crate) fn end_walk(&self, _: &IndexLock<'_>) {
        self.walking.store(false, Relaxed);
        self.forget_visited(self.charged());
        *lock(&self.moved) = Vec::new();
    }

    fn forget_visited(&self, rows: u64) {
        self.visited.discard(rows.div_ceil(64) as usize, |word| word.store(0, Relaxed));
    }

    /// Marks a row while somebody walks.
    pub(crate) fn note_visited(&self, row: u32, _: &KeyLock<'_>) {
        if self.walking.load(Relaxed) {
            self.visited[row as usize / 64].fetch_or(1 << (row % 64), Relaxed);
        }
    }

    /// Is the row marked?
    pub(crate) fn is_visited(&self, row: u32, _: &KeyLock<'_>) -> bool {
        self.visited[row as usize / 64].load(Relaxed) >> (row % 64) & 1 == 1
    }

    /// A key goes from one row to another; who walks will find it in [`RowAllocator::moved`] if it still has to be visited.
    pub(crate) fn note_moved(&self, key: u64, from: u32, to: u32, locked: &KeyLock<'_>) {
        if self.walking.load(Relaxed) {
            if !self.is_visited(from, locked) {
                lock(&self.moved).push(key);
            }
            self.note_visited(to, locked);
        }
    }

    /// Takes the keys that moved before they were visited, each once in a walk.
    pub(crate) fn moved(&self) -> Vec<u64> {
        std::mem::take(&mut lock(&self.moved))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::index::Index;

    #[test]
    fn rows_are_handed_out_once_reused_and_counted() {
        for (stride, rows) in [(6, 150_000), (8, 70_000), (37, 3000), (200_000, 70)] {
            if cfg!(miri) && stride > 100 {
                continue;
            }
            let count = if cfg!(miri) { 20 } else { rows };
            let (slab, budget) = (Slab::new(stride, None).unwrap(), Budget::new(None));
            let (rows, directory) =
                (RowAllocator::new(&slab).unwrap(), Directory::new(Index::new().unwrap()));
            let take = |lane: usize, count: usize| {
                let mut taken = Vec::new();
                rows.take(lane, count, &slab, &budget, &directory, &mut taken);
                taken
            };
            // In order, and whole, in the slab.
            assert_eq!(take(0, count), (0..count as u32).collect::<Vec<_>>());
            for row in 0..count as u32 {
                slab.unpublished(row).store(0, &vec![row as f32; stride]);
            }
            let mut values = vec![0.0; stride];
            for row in 0..count as u32 {
                slab.read(row, &mut values);
                assert!(values.iter().all(|&word| word == row as f32));
            }
            rows.retire(0, &slab, &directory, &mut vec![0, 1]);
            rows.give_back(1, &slab, &mut vec![2, 3]);
            assert_eq!(rows.free_rows(), 4);
            assert_eq!(take(1, 2), [2, 3]);
            let used = count * stride * 4;
            assert_eq!(rows.bytes() as u64, budget.used_bytes());
            assert!((used..used * 2 + FIRST_PIECE_BYTES + PIECE_BYTES).contains(&rows.bytes()));
            rows.clear(&slab, &budget);
            assert_eq!((budget.used_bytes(), take(0, 1)), (0, vec![0]));
            slab.read(count as u32 - 1, &mut values);
            assert!(values.iter().all(|&word| word == 0.0));
        }
    }

    /// The system may have less address space than was asked for: rows end where it does.
    #[test]
    fn rows_end_where_the_address_space_does() {
        for (row_words, visited_words, expected) in [(10 * 37 + 5, 1, 10), (100 * 37, 1, 64), (37, 1, 1)] {
            let slab = Slab::of(Region::zeroed(row_words).unwrap(), 37).unwrap();
            let rows = RowAllocator::of(&slab, Region::zeroed(visited_words).unwrap());
            let (budget, directory) = (Budget::new(None), Directory::new(Index::new().unwrap()));
            let mut taken = Vec::new();
            rows.take(0, 200, &slab, &budget, &directory, &mut taken);
            assert_eq!(taken, (0..expected).collect::<Vec<u32>>(), "{row_words} {visited_words}");
            taken.iter().for_each(|&row| slab.unpublished(row).store(0, &[1.0; 37]));
        }
        assert!(Slab::of(Region::zeroed(36).unwrap(), 37).is_none());
    }

    /// Any lane finds all rows that were removed for all, and their numbers take no more memory than a bound.
    #[test]
    fn the_reserve_keeps_few_numbers_and_loses_no_row() {
        if cfg!(miri) {
            return;
        }
        let (slab, budget) = (Slab::new(8, None).unwrap(), Budget::new(None));
        let (rows, directory) = (RowAllocator::new(&slab).unwrap(), Directory::new(Index::new().unwrap()));
        let mut taken = Vec::new();
        rows.take(0, 3 * RESERVE_MAX, &slab, &budget, &directory, &mut taken);
        for part in taken.chunks(1000) {
            rows.retire_for_all(&slab, &directory, &mut part.to_vec());
            assert!(lock(&rows.reserve).ready.capacity() <= 2 * RESERVE_MAX);
        }
        let (removed, charged) = (taken.len(), rows.charged());
        assert_eq!((rows.reserved_rows(), rows.free_rows()), (removed, removed));
        let mut again = Vec::new();
        (0..removed / 1024).for_each(|_| rows.take(1, 1024, &slab, &budget, &directory, &mut again));
        again.sort_unstable();
        assert!(again == taken && rows.charged() == charged);
    }

    /// No row of the budget is out of reach of any lane.
    #[test]
    fn lanes_help_each_other_out() {
        let slab = Slab::new(8, None).unwrap();
        // With a version for each row.
        let budget = Budget::new(Some(36 * 5000));
        let (rows, directory) = (RowAllocator::new(&slab).unwrap(), Directory::new(Index::new().unwrap()));
        let mut taken = Vec::new();
        for lane in [0, 1, 0, 1] {
            rows.take(lane, 10, &slab, &budget, &directory, &mut taken);
        }
        rows.retire(0, &slab, &directory, &mut taken.split_off(30));
        rows.retire_for_all(&slab, &directory, &mut taken.split_off(10));
        assert_eq!((rows.reserved_rows(), rows.free_rows()), (20, 30));
        rows.take(1, 6000, &slab, &budget, &directory, &mut taken);
        taken.sort_unstable();
        assert_eq!(taken, (0..5000).collect::<Vec<_>>());
        assert_eq!(budget.used_bytes(), 36 * 5000);
        rows.take(0, 1, &slab, &budget, &directory, &mut taken);
        assert_eq!(taken.len(), 5000);
    }
}
