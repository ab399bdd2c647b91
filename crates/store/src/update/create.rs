//! Rows for new keys: who is admitted, where they go, and what happens when there is no room. Knows nothing of requests.

use std::sync::atomic::Ordering::Relaxed;

use crate::Admission;
use crate::index::NO_ROW;
use crate::index::directory::KeyLock;
use crate::index::hash::{HashKey, mix};
use crate::lookup::Lookup;
use crate::memory::budget::Budget;
use crate::memory::prefetch::PrefetchHint;
use crate::policy::sketch::Sketch;
use crate::rows::slab::{LINE_WORDS, RowMut};
use crate::sync::write_gate::SharedGuard;
use crate::table::Table;

/// Rows that are asked for before they are made: no cache knows one that was evicted, nor one that was never used.
const AHEAD_ROWS: usize = 8;

/// Who lets keys in.
#[derive(Debug)]
pub(crate) enum AdmissionFilter {
    Always,
    Sightings { sightings: u8, filter: Sketch },
    Probability { seed: u64, threshold: u64 },
}

impl AdmissionFilter {
    /// Takes its memory from the budget; `Err` with the bytes that it would have needed.
    pub(crate) fn new(admission: Admission, seed: u64, budget: &Budget) -> Result<AdmissionFilter, usize> {
        Ok(match admission {
            Admission::Always => AdmissionFilter::Always,
            Admission::Sightings { sightings, filter_bytes } => {
                let bytes = Sketch::rounded_bytes(filter_bytes);
                let filter = budget.take(bytes).then(|| Sketch::new(bytes)).flatten().ok_or(bytes)?;
                AdmissionFilter::Sightings { sightings, filter }
            }
            Admission::Probability { probability } => {
                // 2^64 for 1 saturates: every hash but one is below.
                AdmissionFilter::Probability {
                    seed,
                    threshold: (f64::from(probability) * 2.0_f64.powi(64)) as u64,
                }
            }
        })
    }

    fn admits(&self, hash: u64, clock: u32) -> bool {
        match self {
            AdmissionFilter::Always => true,
            AdmissionFilter::Sightings { sightings, filter } => filter.add(hash) >= *sightings,
            AdmissionFilter::Probability { seed, threshold } => {
                mix(mix(hash ^ seed) ^ u64::from(clock)) <= *threshold
            }
        }
    }

    /// To be called after so many sightings.
    fn age(&self, sightings: usize) {
        if let AdmissionFilter::Sightings { filter, .. } = self {
            filter.age(sightings);
        }
    }

    pub(crate) fn admits_all(&self) -> bool {
        matches!(self, AdmissionFilter::Always)
    }

    /// Forgets whom it has seen.
    pub(crate) fn clear(&self) {
        if let AdmissionFilter::Sightings { filter, .. } = self {
            filter.clear();
        }
    }
}

/// What is done with the row of a key that had none.
pub(crate) trait RowInit {
    /// Does [`RowInit::new_row`] store all weights and all state of this one itself? Then they are not made before.
    fn initializes(&self, at: usize) -> bool;
    /// The key's row is about to be published; it holds what a new row holds, or if this one is filled here, its key alone.
    fn new_row(&mut self, at: usize, row: u32, words: RowMut<'_>);
    /// Somebody else, or an earlier place in the request, has made a row meanwhile. It stays while the key is locked.
    fn existing_row(&mut self, at: usize, row: u32, locked: &KeyLock<'_>);
}

impl Table {
    /// Drops the positions of keys that are not admitted.
    pub(crate) fn admit(&self, lane: usize, lookup: &mut Lookup, clock: u32) {
        if self.admission_filter.admits_all() {
            return;
        }
        let mut absent = std::mem::take(&mut lookup.absent);
        let before = absent.len();
        // By the public hash: who is admitted must not depend on the process.
        let index_key = HashKey::get();
        let public = |at: u32| mix(index_key.key(lookup.hash(at as usize)));
        absent.retain(|&at| self.admission_filter.admits(public(at), clock));
        self.admission_filter.age(before);
        self.counters.get(lane).rejected.fetch_add((before - absent.len()) as u64, Relaxed);
        lookup.absent = absent;
    }

    /// Makes rows for the keys at the positions `lookup.absent`, unless they have one by now. How many were left out
    /// because there is no room, even if others may be evicted, for which the right to change rows is given: the last ones.
    ///
    /// The caller must have the right to change rows, no view, and no key locked.
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
            let lines = self.layout.words().div_ceil(LINE_WORDS);
            let ask_for = |row: &u32| self.slab.view().prefetch(*row, lines, PrefetchHint::Write, true);
            spare.iter().take(AHEAD_ROWS).for_each(ask_for);
            let mut used = 0;
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
            // Every round but the last makes a row.
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

    /// Leaves out the keys at the positions `lookup.absent`: there is no room. How many.
    pub(crate) fn reject_absent(&self, lane: usize, lookup: &mut Lookup) -> u64 {
        let rejected = lookup.absent.len() as u64;
        lookup.absent.clear();
        self.counters.get(lane).rejected_full.fetch_add(rejected, Relaxed);
        rejected
    }

    /// Gives the row to the key unless that has one. Was it needed? The hash of a key that is to have a row a little later
    /// is asked for: where many keys are absent, no cache holds all buckets that were searched.
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
            locked.index().prefetch_to_change(later);
        }
        let found = locked.index().find(hash);
        if found != NO_ROW {
            row_init.existing_row(at, found, &locked);
            return false;
        }
        let fills = row_init.initializes(at);
        let words = if fills { self.layout.blank_row(key, words) } else { self.layout.init_row(key, words) };
        self.slab.write_unpublished(row, words);
        row_init.new_row(at, row, self.slab.unpublished(row));
        self.row_allocator.note_visited(row, &locked);
        locked.index().insert(hash, row);
        true
    }

    /// Claims room in the index for up to `keys` keys, and makes it if possible; for how many. The caller must neither
    /// have a view nor a key locked.
    pub(crate) fn claim(&self, keys: usize) -> usize {
        let (lane, mut claimed) = (crate::sync::lanes::lane(), 0);
        let is_bounded = self.budget.limit_bytes() < u64::MAX;
        loop {
            let wanted = self.directory.len() + keys - claimed;
            let needs_growth = self.directory.pin(lane).index().grown_bytes(wanted, is_bounded) > 0;
            // Where that is not possible, it fills beyond what is good for it.
            let has_room = !needs_growth || self.grow(|index| index.grown_bytes(wanted, is_bounded));
            claimed += self.directory.claim(keys - claimed, self.directory.pin(lane).index().keys_max());
            // Other threads may have claimed that room meanwhile.
            if claimed == keys || !has_room {
                return claimed;
            }
        }
    }
}
