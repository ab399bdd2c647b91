//! Rows of an earlier process, of which those without a key are free ([`crate::table::free_rows`]).

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::kept::fault::{self, Fault};

/// Free rows that are handed over together.
const TURN: usize = 1 << 12;

/// The rows below a number. A bit is set for each row that a key has, or had when this process found the table.
#[derive(Debug)]
pub(crate) struct InheritedRows {
    rows: u64,
    used: Box<[AtomicU64]>,
    is_pending: AtomicBool,
}

impl InheritedRows {
    pub(crate) fn new(rows: u64) -> InheritedRows {
        let used = (0..rows.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        InheritedRows { rows, used, is_pending: AtomicBool::new(true) }
    }

    /// Whether the free rows are still to be found.
    pub(crate) fn is_pending(&self) -> bool {
        self.is_pending.load(Relaxed)
    }

    /// Notes that a key has this row, or has just lost it. The key is locked.
    pub(crate) fn note_used(&self, row: u32) {
        if u64::from(row) < self.rows {
            self.used[row as usize / 64].fetch_or(1 << (row % 64), Relaxed);
        }
    }

    /// Forgets the rows, because all keys are gone.
    pub(crate) fn forget(&self) {
        self.is_pending.store(false, Relaxed);
    }

    /// Passes the rows that no key had to `take`, in parts; returns the number of the others, which must all be noted.
    pub(crate) fn end(&self, mut take: impl FnMut(&mut Vec<u32>)) -> u64 {
        self.is_pending.store(false, Relaxed);
        let (mut used, mut free) = (0, Vec::with_capacity(TURN + 64));
        for (at, word) in (0..).zip(&self.used) {
            let word = word.load(Relaxed);
            used += u64::from(word.count_ones());
            let rows = (0..64).filter(|bit| word >> bit & 1 == 0).map(|bit| at * 64 + bit);
            free.extend(rows.filter(|&row| row < self.rows).map(|row| row as u32));
            if fault::is(Fault::LeakedRow) {
                free.pop();
            }
            if free.len() >= TURN {
                take(&mut free);
            }
        }
        take(&mut free);
        used
    }
}
