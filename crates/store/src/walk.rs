//! Every row of a table, once, while others go on changing it. Knows nothing of requests.

use crate::hash::mix;
use crate::index::NO_ROW;
use crate::row::RowRef;
use crate::sync::lock;
use crate::table::Table;

/// Rows whose headers and index lines are fetched together.
const GROUP: u32 = 64;

impl Table {
    /// Calls `f` on every row, in no particular order (the same for the same history). Rows that are pushed meanwhile
    /// are seen before or after, each key at most once, and every key that is there all the time exactly once; keys that
    /// come meanwhile may be seen or not. `f` may use this table in every other way, but must not call this again.
    pub fn for_each_row(&self, f: impl FnMut(RowRef<'_>)) {
        self.walk_all(&mut Rows { table: self, words: vec![0.0; self.layout.unpacked()], f });
    }

    /// The same with keys alone, which is faster: rows stay where they are, and keys that `wants` refuses are not even looked
    /// up.
    pub fn for_each_key(&self, wants: impl Fn(u64) -> bool, f: impl FnMut(u64)) {
        self.walk_all(&mut Keys { wants, f });
    }

    fn walk_all(&self, seen: &mut impl Seen) {
        let _one_at_a_time = lock(&self.walk);
        let made = self.rows.begin_walk(&self.directory.lock_all()) as u32;
        // Also when a caller's function panics: what is left of this walk would hide rows from the next.
        let _end = EndWalk(self);
        let lane = crate::lanes::lane();
        for first in (0..made).step_by(GROUP as usize) {
            let rows = first..made.min(first.saturating_add(GROUP));
            {
                let view = self.directory.view(lane);
                let keys = rows.clone().map(|row| self.key_of(row)).filter(|&key| seen.wants(key));
                keys.for_each(|key| view.index().prefetch(mix(key)));
            }
            for row in rows {
                let key = self.key_of(row);
                if seen.wants(key) && self.visit(key, Some(row), seen) {
                    seen.show(key);
                }
            }
        }
        // Copy-on-write has moved these while they were still to come.
        for key in self.rows.moved() {
            if seen.wants(key) && self.visit(key, None, seen) {
                seen.show(key);
            }
        }
    }

    /// The key that a row has, if it has one.
    fn key_of(&self, row: u32) -> u64 {
        let header = self.layout.header_at();
        u64::from(self.slab.word(row, header)) | u64::from(self.slab.word(row, header + 1)) << 32
    }

    /// Takes the key's row if it is still to be visited; if it is `row`, when one is given: a row is in use if its key
    /// leads to it.
    fn visit(&self, key: u64, row: Option<u32>, seen: &mut impl Seen) -> bool {
        let hash = mix(key);
        let locked = self.directory.lock(hash);
        let found = locked.index().find(hash);
        if found == NO_ROW || row.is_some_and(|row| row != found || self.rows.is_visited(row, &locked)) {
            return false;
        }
        seen.take(found);
        self.rows.note_visited(found, &locked);
        true
    }
}

/// Ends the table's walk when it is dropped.
struct EndWalk<'a>(&'a Table);

impl Drop for EndWalk<'_> {
    fn drop(&mut self) {
        self.0.rows.end_walk(&self.0.directory.lock_all());
    }
}

/// What is done with what a walk comes by.
trait Seen {
    /// Whether a key matters at all.
    fn wants(&self, key: u64) -> bool;
    /// A row, while its key is locked.
    fn take(&mut self, row: u32);
    /// Its key, when it is not any more.
    fn show(&mut self, key: u64);
}

/// Shows copies of rows.
struct Rows<'a, F> {
    table: &'a Table,
    words: Vec<f32>,
    f: F,
}

impl<F: FnMut(RowRef<'_>)> Seen for Rows<'_, F> {
    fn wants(&self, _key: u64) -> bool {
        true
    }

    fn take(&mut self, row: u32) {
        self.table.layout.read_row(&self.table.slab, row, &mut self.words);
    }

    fn show(&mut self, _key: u64) {
        (self.f)(self.table.layout.parts(&self.words));
    }
}

/// Shows keys.
struct Keys<W, F> {
    wants: W,
    f: F,
}

impl<W: Fn(u64) -> bool, F: FnMut(u64)> Seen for Keys<W, F> {
    fn wants(&self, key: u64) -> bool {
        (self.wants)(key)
    }

    fn take(&mut self, _row: u32) {}

    fn show(&mut self, key: u64) {
        (self.f)(key);
    }
}
