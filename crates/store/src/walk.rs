//! Every row of a table, once, while others go on changing it. Knows nothing of requests.

use crate::hash::mix;
use crate::index::NO_ROW;
use crate::layout::Header;
use crate::row::RowRef;
use crate::sync::lock;
use crate::table::Table;

/// Rows whose headers and index lines are fetched together.
const GROUP: u32 = 64;

impl Table {
    /// Calls `f` on every row, in no particular order (the same for the same history). Rows that are pushed meanwhile
    /// are seen before or after, each key at most once, and every key that is there all the time exactly once; keys that
    /// come meanwhile may be seen or not. `f` may use this table in every other way, but must not call this again.
    pub fn for_each_row(&self, mut f: impl FnMut(RowRef<'_>)) {
        let _one_at_a_time = lock(&self.walk);
        let made = self.rows.begin_walk(&self.directory.lock_all()) as u32;
        let lane = crate::lanes::lane();
        let mut words = vec![0.0; self.layout.unpacked()];
        for first in (0..made).step_by(GROUP as usize) {
            let rows = first..made.min(first.saturating_add(GROUP));
            {
                let view = self.directory.view(lane);
                rows.clone().for_each(|row| view.index().prefetch(mix(self.key_of(row))));
            }
            for row in rows {
                let key = self.key_of(row);
                if self.visit(key, Some(row), &mut words) {
                    self.show(&words, &mut f);
                }
            }
        }
        // Copy-on-write has moved these while they were still to come.
        for key in self.rows.moved() {
            if self.visit(key, None, &mut words) {
                self.show(&words, &mut f);
            }
        }
        self.rows.end_walk(&self.directory.lock_all());
    }

    /// The key that a row has, if it has one.
    fn key_of(&self, row: u32) -> u64 {
        let header = self.layout.header_at();
        u64::from(self.slab.word(row, header)) | u64::from(self.slab.word(row, header + 1)) << 32
    }

    /// Copies the key's row if it is still to be visited; if it is `row`, when one is given: a row is in use if its key
    /// leads to it.
    fn visit(&self, key: u64, row: Option<u32>, words: &mut [f32]) -> bool {
        let hash = mix(key);
        let locked = self.directory.lock(hash);
        let found = locked.index().find(hash);
        if found == NO_ROW || row.is_some_and(|row| row != found || self.rows.is_visited(row, &locked)) {
            return false;
        }
        self.layout.read_row(&self.slab, found, words);
        self.rows.note_visited(found, &locked);
        true
    }

    fn show(&self, words: &[f32], f: &mut impl FnMut(RowRef<'_>)) {
        let (weights, header, state) = self.layout.parts(words);
        let Header { key, frequency, last_use, version } = header;
        f(RowRef { key, frequency, last_use, version, weights, state });
    }
}
