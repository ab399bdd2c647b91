//! The search for free rows of an earlier process: a row without a key in the index is free. It runs in the background,
//! because the index is large; pushes take rows that were never used meanwhile.

use crate::index::growth::shares;
use crate::memory::persist::Step;
use crate::sync::lock;
use crate::table::Table;

/// Rows per share of the search.
const SHARE_ROWS: u64 = 1024;

/// The progress of the search.
#[derive(Debug, Default)]
pub(crate) struct FreeRowSearch {
    /// Rows of the earlier process.
    rows: u64,
    /// Keys that were counted when the process found the table: at least as many as there were.
    keys: u64,
    next_share: u32,
}

impl FreeRowSearch {
    pub(super) fn new(rows: u64, keys: u64) -> FreeRowSearch {
        FreeRowSearch { rows, keys, next_share: 0 }
    }
}

impl Table {
    /// Ends the search for free rows in a table that an earlier process has kept; returns whether there was one to end.
    ///
    /// [`crate::Maintenance`] does it in parts, and so does a push that finds no other row.
    #[cold]
    pub fn find_free_rows(&self) -> bool {
        self.row_allocator.inherited().is_some() && {
            // Another thread may end it meanwhile, which is as good.
            while self.search_free_rows(usize::MAX) > 0 {}
            true
        }
    }

    /// Searches up to `shares_max` shares of the index; returns their number. The caller must hold no index guard and
    /// no key lock.
    pub(crate) fn search_free_rows(&self, shares_max: usize) -> usize {
        if self.row_allocator.inherited().is_none() {
            return 0;
        }
        let search = &mut *lock(&self.search);
        if self.row_allocator.inherited().is_none() {
            return 0;
        }
        let shares = shares((search.rows / SHARE_ROWS) as usize);
        let first = search.next_share;
        search.next_share = shares.min(first.saturating_add(u32::try_from(shares_max).unwrap_or(u32::MAX)));
        for share in first..search.next_share {
            // A key that leaves the index afterwards notes its row as well.
            self.directory
                .lock_share(share, shares)
                .for_each(|_, row| self.row_allocator.note_inherited(row));
        }
        if search.next_share == shares {
            // A slot that a killed process has stored may not be durable yet, and its former row is free.
            self.directory.write_back(crate::sync::lanes::lane(), Step::Inherited);
            let keys = self.row_allocator.free_inherited(&self.slab);
            debug_assert!(keys <= search.keys, "{keys} keys, {} counted", search.keys);
            self.directory.unclaim(search.keys.saturating_sub(keys) as usize);
        }
        (search.next_share - first) as usize
    }
}
