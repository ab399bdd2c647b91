//! Address space: how much of it a table may reserve, and what is left to threads' stacks and the heap. Knows no rows.
//!
//! A table without a budget takes a share of the room that is left. The share shrinks with the square of that room, so
//! that the room falls as 1 / (1 + n / parts) with the number n of tables, and never to nothing.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;

use crate::memory::{address_bytes_taken, address_limit, machine_bytes};

/// Addresses of a process: 47 bits on x86-64, and no fewer elsewhere.
const ADDRESS_BYTES: usize = 1 << 47;
/// Of the room, the first table without a budget takes this part; a larger one under a limit, which is less than the
/// machine could give.
const PARTS: usize = 128;
const PARTS_OF_LIMIT: usize = 8;
/// A table whose share would be smaller is refused: it would be full at once.
const SHARE_BYTES_MIN: usize = 1 << 20;
/// What tables leave to threads and the heap: a part of a limit, more on a machine of many processors, at most another
/// part.
const OTHERS_PART: usize = 8;
const OTHERS_PART_MAX: usize = 4;
/// Threads of a processor that are reckoned with. Each has a stack and an arena of the heap, for which glibc reserves 64 MiB.
const THREADS_PER_PROCESSOR: usize = 2;
const THREAD_BYTES: usize = 72 << 20;
/// The same without a limit.
const OTHERS_BYTES: usize = 1 << 40;

/// Held while the room is measured and reserved: two tables that are made at once do not take the same.
static RESERVING: Mutex<()> = Mutex::new(());

/// The address space of this process at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Space {
    /// All that tables may have together.
    tables: usize,
    /// What is left of it.
    room: usize,
    parts: usize,
}

impl Space {
    /// That of now. Nobody else reserves for a table while the guard lives.
    pub(crate) fn measure() -> (Space, MutexGuard<'static, ()>) {
        let guard = RESERVING.lock().unwrap_or_else(PoisonError::into_inner);
        let processors = available_parallelism().map_or(1, usize::from);
        (Space::of(address_limit(), address_bytes_taken(), processors), guard)
    }

    fn of(limit: Option<usize>, taken: usize, processors: usize) -> Space {
        let limit = limit.filter(|&limit| limit < ADDRESS_BYTES);
        let others = limit.map_or(OTHERS_BYTES, |limit| {
            let threads = processors.saturating_mul(THREADS_PER_PROCESSOR * THREAD_BYTES);
            threads.clamp(limit / OTHERS_PART, limit / OTHERS_PART_MAX)
        });
        let all = limit.unwrap_or(ADDRESS_BYTES);
        let parts = if limit.is_some() { PARTS_OF_LIMIT } else { PARTS };
        let room = all.saturating_sub(others).saturating_sub(taken);
        Space { tables: all - others, room, parts }
    }

    /// What a table without a budget may take; `None` if that is too little for one.
    pub(crate) fn share(self) -> Option<usize> {
        let share = (self.room / self.parts) as f64 * (self.room as f64 / self.tables as f64);
        Some(share as usize).filter(|&share| share >= SHARE_BYTES_MIN)
    }

    /// What a table with a budget may take at most.
    pub(crate) fn room(self) -> usize {
        self.room
    }
}

/// Bytes of memory and swap of this machine: the most that the budget of a table may be.
#[must_use]
pub fn budget_bytes_max() -> u64 {
    machine_bytes() as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const GIB: usize = 1 << 30;

    /// What is left when so many tables have taken their shares, and the last share.
    fn after(limit: Option<usize>, processors: usize, tables: usize) -> (usize, usize) {
        let (mut taken, mut last) = (GIB / 4, 0);
        for table in 0..tables {
            let share = Space::of(limit, taken, processors).share();
            last = share.unwrap_or_else(|| panic!("table {table} finds no room under {limit:?}"));
            taken += last;
        }
        (limit.unwrap_or(ADDRESS_BYTES) - taken, last)
    }

    /// Threads and the heap find room however many tables there are.
    #[test]
    fn many_tables_leave_room_for_threads() {
        for processors in [1, 2, 8, 64, 256] {
            for (limit, tables) in [(3 * GIB, 5), (20 * GIB, 40), (20 * GIB, 200), (256 * GIB, 400)] {
                let (left, last) = after(Some(limit), processors, tables);
                assert!(left >= limit / OTHERS_PART && last >= SHARE_BYTES_MIN, "{limit}: {left} {last}");
                let threads = processors * THREADS_PER_PROCESSOR * THREAD_BYTES;
                assert!(left >= threads.min(limit / OTHERS_PART_MAX), "{limit}: {left} for {threads}");
            }
        }
    }

    /// As many tables as a server takes, without budgets, have room for millions of rows each.
    #[test]
    fn four_thousand_tables_without_a_budget_find_room() {
        let (left, last) = after(None, 64, 4096);
        assert!(left > OTHERS_BYTES && last > GIB / 4, "{left} {last}");
    }

    #[test]
    fn a_share_that_is_too_small_is_none() {
        assert_eq!(Space::of(Some(GIB), GIB - (GIB / 8), 1).share(), None);
        assert_eq!(Space::of(Some(GIB), 2 * GIB, 1).room(), 0);
        assert!(Space::of(Some(GIB), GIB / 4, 1).share().is_some());
        // What CUDA or a sanitizer maps.
        assert!(Space::of(None, ADDRESS_BYTES / 4 * 3, 1).share().is_some());
        // No limit is one that is beyond all addresses.
        assert_eq!(Space::of(Some(usize::MAX), 0, 1).share(), Space::of(None, 0, 1).share());
    }
}
