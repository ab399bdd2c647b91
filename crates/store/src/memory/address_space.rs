//! Limits how much address space tables reserve, so that threads' stacks and the heap find room.
//!
//! A table without a budget takes a share of the room that is left. The share shrinks with the square of the room,
//! so that the room falls as 1 / (1 + n / parts) with the number n of tables and never reaches 0.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;

use crate::memory::{address_bytes_taken, address_limit, machine_bytes};

/// Address space of a process: 47 bits on x86-64, and no less elsewhere.
const ADDRESS_BYTES: usize = 1 << 47;
/// The first table without a budget takes one part in this many; a larger one under a limit, which is less than the
/// machine could provide.
const PARTS: usize = 128;
const PARTS_OF_LIMIT: usize = 8;
/// Smaller shares are an error: the table would be full at once.
const SHARE_BYTES_MIN: usize = 1 << 20;
/// The room for threads and the heap: at least one part of the limit in `OTHERS_PART`, at most one in
/// `OTHERS_PART_MAX`; more on machines with more processors.
const OTHERS_PART: usize = 8;
const OTHERS_PART_MAX: usize = 4;
/// Assumed threads per processor. Each has a stack and a heap arena, for which glibc reserves 64 MiB.
const THREADS_PER_PROCESSOR: usize = 2;
const THREAD_BYTES: usize = 72 << 20;
/// The room for threads and the heap without a limit.
const OTHERS_BYTES: usize = 1 << 40;

/// Locked while the room is measured and reserved, so that two tables do not take the same room.
static RESERVING: Mutex<()> = Mutex::new(());

/// A snapshot of the process's address space.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Space {
    /// The room for all tables together.
    tables: usize,
    /// The part of it that is left.
    room: usize,
    parts: usize,
}

impl Space {
    /// Measures the present room. No other table reserves any while the guard lives.
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

    /// The share of a table without a budget; `None` if it is too small.
    pub(crate) fn share(self) -> Option<usize> {
        let share = (self.room / self.parts) as f64 * (self.room as f64 / self.tables as f64);
        Some(share as usize).filter(|&share| share >= SHARE_BYTES_MIN)
    }

    /// The maximum for a table with a budget.
    pub(crate) fn room(self) -> usize {
        self.room
    }
}

/// Memory and swap of this machine in bytes: the maximum budget of a table.
#[must_use]
pub fn budget_bytes_max() -> u64 {
    machine_bytes() as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const GIB: usize = 1 << 30;

    /// The room that is left after `tables` tables, and the last share.
    fn after(limit: Option<usize>, processors: usize, tables: usize) -> (usize, usize) {
        let (mut taken, mut last) = (GIB / 4, 0);
        for table in 0..tables {
            let share = Space::of(limit, taken, processors).share();
            last = share.unwrap_or_else(|| panic!("table {table} finds no room under {limit:?}"));
            taken += last;
        }
        (limit.unwrap_or(ADDRESS_BYTES) - taken, last)
    }

    /// Many tables leave room for threads and the heap.
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

    /// A server's maximum number of tables, without budgets, have room for millions of rows each.
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
        // CUDA and sanitizers map that much.
        assert!(Space::of(None, ADDRESS_BYTES / 4 * 3, 1).share().is_some());
        // A limit beyond the address space is no limit.
        assert_eq!(Space::of(Some(usize::MAX), 0, 1).share(), Space::of(None, 0, 1).share());
    }
}
