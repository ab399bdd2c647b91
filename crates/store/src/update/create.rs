//! Creates rows for new keys: admission, allocation, and eviction of other rows.

use std::sync::atomic::Ordering::Relaxed;

use crate::index::directory::KeyLock;
use crate::index::hash::mix;
use crate::index::{Index, NO_ROW};
use crate::lookup::Lookup;
use crate::memory::persist::{Persist, Step};
use crate::rows::access::RowMut;
use crate::sync::write_gate::SharedGuard;
use crate::table::Table;

/// Prefetch distance of new rows, which no cache holds.
const AHEAD_ROWS: usize = 8;

/// Initializes the rows of new keys.
pub(crate) trait RowInit {
    /// Whether [`RowInit::new_row`] stores all weights and state itself, so that they need not be computed before.
    fn initializes(&self, at: usize) -> bool;
    /// Takes a row that is about to be published. It has initial values, or only its key if `initializes` returned
    /// true.
    fn new_row(&mut self, at: usize, row: u32, words: RowMut<'_>);
    /// Takes a row that another thread, or an earlier position of the request, has created. It is valid while the
    /// key is locked.
    fn existing_row(&mut self, at: usize, row: u32, locked: &KeyLock<'_>);
}

impl Table {
    /// Removes the positions of keys that are not admitted.
    pub(crate) fn admit(&self, lane: usize, lookup: &mut Lookup, clock: u32) {
        if self.admission_filter.admits_all() {
            return;
        }
        let mut absent = std::mem::take(&mut lookup.absent);
        let before = absent.len();
        // By the public hash, because admission must not depend on the process.
        let public = |at: u32| mix(self.hash_key.key(lookup.hash(at as usize)));
        absent.retain(|&at| self.admission_filter.admits(public(at), clock));
        self.admission_filter.age(before);
        self.counters.get(lane).rejected.fetch_add((before - absent.len()) as u64, Relaxed);
        lookup.absent = absent;
    }

    /// Creates rows for the keys at the positions `lookup.absent` that still have none. Evicts rows if needed and
    /// `evict` is given. Returns the number of keys, the last ones, without room.
    ///
    /// The caller must hold the write gate, but no index guard and no key lock.
    pub(crate) fn create_absent(
        &self,
        lane: usize,
        lookup: &mut Lookup,
        keys: &[u64],
        evict: Option<&SharedGuard<'_>>,
        row_init: &mut impl RowInit,
    ) -> u64 {
        let (mut absent, mut spare) = (std::mem::take(&mut lookup.absent), std::mem::take(&mut lookup.spare));
        lookup.words.resize(self.layout.unpacked(), 0.0);
        let (mut done, mut admitted) = (0, 0);
        loop {
            let wanted = absent.len() - done;
            let claimed = self.claim(wanted);
            self.row_allocator.take(lane, claimed, &self.slab, &self.budget, &self.directory, &mut spare);
            self.directory.unclaim(claimed - spare.len());
            let ask_for = |row: &u32| self.slab.prefetch_to_fill(*row);
            spare.iter().take(AHEAD_ROWS).for_each(ask_for);
            let mut used = 0;
            while let (Some(persist), Some(_), Some(_)) = (self.persist(), spare.get(used), absent.get(done))
            {
                let (rest, rows) = (&absent[done..], &mut spare[used..]);
                done += rest.len().min(rows.len());
                used += self.create_durable(persist, (keys, rest), rows, lookup, row_init);
            }
            while let (Some(&row), Some(&at)) = (spare.get(used), absent.get(done)) {
                let (key, hash) = (keys[at as usize], lookup.hash(at as usize));
                let later = absent.get(done + AHEAD_ROWS).map(|&at| lookup.hash(at as usize));
                if self.create((key, hash, later), row, &mut lookup.words, at as usize, row_init) {
                    used += 1;
                    spare.get(used + AHEAD_ROWS - 1).map(ask_for);
                }
                done += 1;
            }
            admitted += used as u64;
            spare.drain(..used);
            self.directory.unclaim(spare.len());
            self.row_allocator.give_back(lane, &self.slab, &mut spare);
            let wanted = absent.len() - done;
            // Every round but the last creates a row, or finds those that an earlier process has left.
            if wanted > 0 && self.find_free_rows() {
                continue;
            }
            if wanted == 0 || evict.is_none_or(|shared| self.evict(lane, wanted, shared) == 0) {
                break;
            }
        }
        let rejected = (absent.len() - done) as u64;
        let counters = self.counters.get(lane);
        counters.admitted.fetch_add(admitted, Relaxed);
        counters.rejected_full.fetch_add(rejected, Relaxed);
        absent.truncate(done);
        lookup.absent = absent;
        lookup.spare = spare;
        rejected
    }

    /// Rejects the keys at the positions `lookup.absent` for lack of room; returns their number.
    pub(crate) fn reject_absent(&self, lane: usize, lookup: &mut Lookup) -> u64 {
        let rejected = lookup.absent.len() as u64;
        lookup.absent.clear();
        self.counters.get(lane).rejected_full.fetch_add(rejected, Relaxed);
        rejected
    }

    /// Gives durable rows to as many keys as there are `spare` rows, of which those in use are the first afterwards;
    /// returns their number.
    fn create_durable(
        &self,
        persist: Persist,
        (keys, absent): (&[u64], &[u32]),
        spare: &mut [u32],
        lookup: &mut Lookup,
        row_init: &mut impl RowInit,
    ) -> usize {
        let count = spare.len().min(absent.len());
        for (&at, &row) in absent.iter().zip(&*spare) {
            self.fill_row(keys[at as usize], row, &mut lookup.words, at as usize, row_init);
            self.slab.flush(row, persist);
        }
        persist.fence(Step::Rows);
        let mut used = 0;
        for (number, &at) in absent[..count].iter().enumerate() {
            let hash = lookup.hash(at as usize);
            let locked = self.directory.lock(hash);
            if let Some(&later) = absent.get(number + AHEAD_ROWS) {
                locked.prefetch_to_change(lookup.hash(later as usize));
            }
            let found = locked.find();
            if found == NO_ROW {
                self.publish(spare[number], &locked);
                spare.swap(number, used);
                used += 1;
            } else {
                row_init.existing_row(at as usize, found, &locked);
            }
        }
        persist.fence(Step::Slots);
        used
    }

    /// Gives the row to the key unless the key has one; returns whether it did. Prefetches the bucket of the hash
    /// `later`, because a search for many absent keys has evicted it from the cache.
    fn create(
        &self,
        (key, hash, later): (u64, u64, Option<u64>),
        row: u32,
        words: &mut [f32],
        at: usize,
        row_init: &mut impl RowInit,
    ) -> bool {
        let locked = self.directory.lock(hash);
        if let Some(later) = later {
            locked.prefetch_to_change(later);
        }
        let found = locked.find();
        if found != NO_ROW {
            row_init.existing_row(at, found, &locked);
            return false;
        }
        self.fill_row(key, row, words, at, row_init);
        self.publish(row, &locked);
        true
    }

    /// Stores the first content of a row.
    #[inline(always)]
    fn fill_row(&self, key: u64, row: u32, words: &mut [f32], at: usize, row_init: &mut impl RowInit) {
        let fills = row_init.initializes(at);
        let words = if fills { self.layout.blank_row(key, words) } else { self.layout.init_row(key, words) };
        self.slab.write_unpublished(row, words);
        row_init.new_row(at, row, self.slab.unpublished(row));
    }

    /// Gives a row to an absent key.
    #[inline(always)]
    fn publish(&self, row: u32, locked: &KeyLock<'_>) {
        self.row_allocator.note_visited(row, locked);
        locked.insert(row);
        if let Some(notes) = self.notes() {
            notes.note_store(row);
        }
    }

    /// Reserves room in the index for up to `keys` keys, growing it if possible; returns their number. The caller
    /// must hold no index guard and no key lock.
    pub(crate) fn claim(&self, keys: usize) -> usize {
        let (lane, mut claimed) = (crate::sync::lanes::lane(), 0);
        let is_bounded = self.budget.limit_bytes() < u64::MAX;
        while claimed < keys {
            let wanted = self.directory.len() + keys - claimed;
            let grown_bytes = |index: &Index| index.grown_bytes(wanted, is_bounded);
            let needs_growth = grown_bytes(self.directory.pin(lane).view().latest()) > 0;
            // If growth fails, the index fills beyond its usual threshold.
            let has_room = !needs_growth || self.grow(grown_bytes);
            // Until a growth ends, the old index has a slot for every key.
            let keys_max = self.directory.pin(lane).view().index.keys_max();
            claimed += self.directory.claim(keys - claimed, keys_max);
            // Other threads may have taken the room meanwhile.
            if claimed == keys || (!self.directory.finish_growth(lane) && !has_room) {
                break;
            }
        }
        self.directory.advance_growth(lane, claimed);
        claimed
    }
}
