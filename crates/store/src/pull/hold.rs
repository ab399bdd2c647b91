//! Pulls whose rows a device reads from where they lie, after the call: finds the rows and holds them.

use std::sync::Arc;

use crate::Absent;
use crate::index::NO_ROW;
use crate::lookup::{CHUNK_KEYS, with_lookup};
use crate::memory::prefetch::PrefetchHint;
use crate::rows::held::Claim;
use crate::sync::lanes::lane;
use crate::table::Table;

/// Prefetch distance of buckets.
const AHEAD_KEYS: usize = 16;
/// The row of a key that has none, in the result of [`Table::hold`].
pub const ABSENT_ROW: u32 = NO_ROW;

/// Rows that neither change nor go as long as this lives. Nothing waits for it.
#[derive(Debug)]
pub struct RowHold {
    table: Arc<Table>,
    hold: u64,
}

/// The places of the weights of a table's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPlaces {
    /// Address of row 0.
    pub start: usize,
    /// Bytes from one row to the next.
    pub stride_bytes: usize,
    /// Bytes of a row's weights, with which it begins.
    pub weight_bytes: usize,
    /// Rows that have memory. All row numbers are below.
    pub rows: u64,
}

impl Table {
    /// Why a device may not read this table's rows in place. `None`: it may.
    #[must_use]
    pub fn not_held_because(&self) -> Option<&'static str> {
        let of_memory = "cards cannot read its file system (DAX): keep it on a /dev/dax device, a tmpfs or in private memory";
        let is_unreadable = || self.slab.is_on_file_system_with_dax().then_some(of_memory);
        self.config().not_held_because().or_else(is_unreadable)
    }

    /// The places of the weights of this table's rows.
    #[must_use]
    pub fn row_places(&self) -> RowPlaces {
        let (start, stride_bytes) = self.slab.weights();
        let weight_bytes = self.layout.weight_words * size_of::<f32>();
        RowPlaces { start, stride_bytes, weight_bytes, rows: self.row_allocator.charged() }
    }

    /// Finds the rows of `keys`, which replace the content of `rows`, and holds them. Keys may repeat; those without a row
    /// have [`ABSENT_ROW`].
    ///
    /// A held row is its key's as of now: it neither changes nor is it reused until the hold is dropped. `None`: the
    /// table has no copy-on-write, too many rows are held, or there are no free rows that could stand in for held ones.
    pub fn hold(self: &Arc<Table>, keys: &[u64], rows: &mut Vec<u32>) -> Option<RowHold> {
        rows.clear();
        if keys.is_empty() || self.cow_gate.is_none() {
            return None;
        }
        let (lane, held) = (lane(), &self.row_allocator.held);
        let Claim { hold, missing } = held.claim(keys.len())?;
        // Ends the claim, too.
        let held_here = RowHold { table: Arc::clone(self), hold };
        if missing > 0 && !self.supply_stand_ins(lane, missing) {
            return None;
        }
        rows.reserve(keys.len());
        with_lookup(|lookup| {
            for keys in keys.chunks(CHUNK_KEYS) {
                lookup.assign(self.hash_key, keys);
                self.note(lane, lookup);
                let (first, hashes) = (rows.len(), lookup.hashes());
                let pinned = self.directory.pin(lane);
                hashes.iter().take(AHEAD_KEYS).for_each(|&hash| pinned.prefetch(hash, PrefetchHint::Read));
                for (at, &hash) in hashes.iter().enumerate() {
                    if let Some(&later) = hashes.get(at + AHEAD_KEYS) {
                        pinned.prefetch(later, PrefetchHint::Read);
                    }
                    rows.push(pinned.find(hash));
                }
                held.add(hold, rows[first..].iter().copied().filter(|&row| row != NO_ROW));
            }
        });
        Some(held_here)
    }

    /// Sets free rows aside. Returns false if that would leave none for updates.
    #[cold]
    fn supply_stand_ins(&self, lane: usize, missing: usize) -> bool {
        let Some(cow_gate) = &self.cow_gate else { return false };
        // A push that finds no spare row waits until all threads have returned theirs.
        let _returns = cow_gate.lock_shared(lane);
        let mut taken = Vec::with_capacity(missing + 1);
        let rows = &self.row_allocator;
        rows.take(lane, missing + 1, &self.slab, &self.budget, &self.directory, &mut taken);
        let has_all = taken.len() > missing;
        let mut left = taken.split_off(if has_all { missing } else { 0 });
        rows.held.supply(missing, &taken);
        rows.give_back(lane, &self.slab, &mut left);
        has_all
    }

    /// Computes the weights of a key without a row.
    pub fn absent_weights(&self, absent: Absent, key: u64, weights: &mut [f32]) {
        self.layout.fill_absent(absent, key, &mut weights[..self.layout.dim]);
    }

    /// Keys of up to `keys_max` random rows, each drawn on its own: one may come twice.
    #[must_use]
    pub fn random_keys(&self, keys_max: usize, random: &mut u64) -> Vec<u64> {
        let mut keys = Vec::new();
        self.for_random_keys(keys_max, random, |key| keys.push(key));
        keys
    }
}

impl Drop for RowHold {
    fn drop(&mut self) {
        self.table.row_allocator.held.release(self.hold);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Dtype, Eviction, Init, Optimizer, PushScale, StoreError, TableConfig, Writes};

    const DIM: usize = 8;
    const KEYS: u64 = 3000;

    fn table(eviction: Eviction, budget_bytes: Option<u64>) -> Arc<Table> {
        let config = TableConfig::single("t", DIM, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
        let config = TableConfig { writes: Writes::CopyOnWrite, eviction, budget_bytes, ..config };
        Arc::new(Table::new(config).expect("a table"))
    }

    /// Makes or counts rows: the key, a count in all other weights, the sum of both in the last one.
    fn push(t: &Table, keys: &[u64], is_new: bool) -> Result<(), StoreError> {
        let mut grads = vec![if is_new { 0.0 } else { -1.0 }; keys.len() * DIM];
        for (row, key) in grads.chunks_mut(DIM).zip(keys) {
            row[0] = if is_new { -(*key as f32) } else { 0.0 };
            row[DIM - 1] = if is_new { -(*key as f32) } else { -1.0 };
        }
        t.push(keys, &grads, PushScale::default())
    }

    /// The weights of a row as a device reads them: without versions.
    fn read(t: &Table, row: u32) -> Vec<f32> {
        t.slab.view().words(row)[..DIM].iter().map(|word| f32::from_bits(word.load(Relaxed))).collect()
    }

    #[test]
    fn held_rows_are_those_of_a_pull_and_others_may_be_refused() {
        let t = table(Eviction::Never, None);
        let keys: Vec<u64> = (0..5000).collect();
        push(&t, &keys, true).expect("room");
        let mut rows = vec![7];
        let mixed: Vec<u64> = (0..5000).map(|at| at * 3 % 7000).collect();
        let hold = t.hold(&mixed, &mut rows).expect("room");
        for (key, row) in mixed.iter().zip(&rows) {
            assert_eq!(*row == ABSENT_ROW, *key >= 5000);
            if *row != ABSENT_ROW {
                assert_eq!(read(&t, *row)[0], *key as f32);
                let RowPlaces { start, stride_bytes, weight_bytes, rows } = t.row_places();
                let ((at, bytes), _) = t.slab.parts(*row);
                assert_eq!((start + *row as usize * stride_bytes, weight_bytes), (at, bytes));
                assert!(u64::from(*row) < rows);
            }
        }
        drop(hold);
        assert!(t.hold(&[], &mut rows).is_none());
        assert!(t.hold(&vec![1; 1 << 17], &mut rows).is_none(), "too many rows");
        let config = t.config().clone();
        for (config, expected) in [
            (config.clone(), None),
            (TableConfig { writes: Writes::InPlace, ..config.clone() }, Some("copy_on_write")),
            (TableConfig { dtype: Dtype::F16, ..config }, Some("f32")),
        ] {
            let refused = Table::new(config).expect("a table").not_held_because();
            assert!(
                refused.is_some_and(|reason| expected.is_some_and(|part| reason.contains(part)))
                    || refused == expected,
                "{refused:?}"
            );
        }
    }

    /// A cleared table keeps the memory that a device may know, and every row of a hold.
    #[test]
    fn a_cleared_table_keeps_held_rows() {
        let t = table(Eviction::Never, None);
        let keys: Vec<u64> = (1..500).collect();
        push(&t, &keys, true).expect("room");
        let mut rows = Vec::new();
        let hold = t.hold(&keys, &mut rows).expect("room");
        let charged = t.row_places().rows;
        t.clear();
        assert!(t.is_empty() && t.row_places().rows == charged);
        let others: Vec<u64> = (1000..3000).collect();
        push(&t, &others, true).expect("room");
        for (key, row) in keys.iter().zip(&rows) {
            assert_eq!(read(&t, *row)[0], *key as f32);
        }
        drop(hold);
        t.clear();
        push(&t, &others, true).expect("room");
        assert_eq!(t.len(), others.len());
    }

    /// A full table has no row to set aside. Its updates go on beside the attempts.
    #[test]
    fn a_full_table_holds_nothing_and_takes_updates() {
        let t = table(Eviction::Never, Some(1 << 20));
        let mut keys: Vec<u64> = (0..50_000).collect();
        push(&t, &keys, true).expect_err("no room for all");
        keys.retain(|key| t.contains(*key));
        assert!(keys.len() > 1000);
        let mut rows = Vec::new();
        for _ in 0..20 {
            assert!(t.hold(&keys[..500], &mut rows).is_none());
            push(&t, &keys, false).expect("an update needs no room");
        }
    }

    /// Readers hold rows for a while and read them again and again, without versions: every row is whole and stays the
    /// same, while others count, remove and make rows, evict, and grow the index. The held rows are bounded all the time.
    #[test]
    fn held_rows_neither_change_nor_go() {
        let lasts = if cfg!(miri) { Duration::from_millis(1) } else { lasts() };
        for (eviction, budget_bytes) in [(Eviction::Never, None), (Eviction::Clock, Some(1 << 20))] {
            let t = table(eviction, budget_bytes);
            let all: Vec<u64> = (0..if cfg!(miri) { 40 } else { KEYS }).collect();
            push(&t, &all, true).expect("room");
            let (stop, before) = (AtomicBool::new(false), Instant::now());
            let mut held = 0;
            std::thread::scope(|scope| {
                for writer in 0..2 {
                    let (t, all, stop) = (&t, &all, &stop);
                    scope.spawn(move || {
                        for round in 0_u64.. {
                            if stop.load(Relaxed) {
                                break;
                            }
                            let keys: Vec<u64> =
                                all.iter().copied().filter(|key| (key + round) % 5 == writer).collect();
                            let present: Vec<u64> =
                                keys.iter().copied().filter(|key| t.contains(*key)).collect();
                            push(t, &present, false).or_else(full).expect("a push");
                            // Each writer has keys of its own to remove and to make.
                            let own = 10_000 + writer * 100_000 + round % 40 * 1000;
                            let own: Vec<u64> = (own..own + 300).collect();
                            push(t, &own, true).or_else(full).expect("a push");
                            own.iter().step_by(2).for_each(|key| _ = t.remove(*key));
                            t.maintain(100);
                        }
                    });
                }
                let _stops = Stop(&stop);
                let mut rows = Vec::new();
                let mut holds: Vec<(RowHold, Read)> = Vec::new();
                for round in 0.. {
                    if before.elapsed() > lasts && held > 20 {
                        break;
                    }
                    let keys: Vec<u64> =
                        (0..200).map(|at: u64| (at * 7 + round * 13) % all.len() as u64).collect();
                    let hold = t.hold(&keys, &mut rows);
                    let found_no_room = hold.is_none();
                    if let Some(hold) = hold {
                        held += 1;
                        holds.push((hold, whole_rows(&t, &keys, &rows)));
                    }
                    for (_, rows) in &holds {
                        for (row, weights) in rows {
                            assert_eq!(read(&t, *row), *weights, "a held row changed");
                        }
                    }
                    if holds.len() > 6 || found_no_room && !holds.is_empty() {
                        holds.remove(0);
                    }
                    assert!(t.row_allocator.held.set_aside() <= 200 * 9);
                }
            });
            assert_eq!(t.row_allocator.held.retired(), 0);
        }
    }

    /// Stops the writers when it is dropped, also by a panic.
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }

    /// Rows with their weights.
    type Read = Vec<(u32, Vec<f32>)>;

    /// Reads the rows of keys, and checks that each is its key's and of one version. A row that was made again after its
    /// eviction counts from zero, without its key.
    fn whole_rows(t: &Table, keys: &[u64], rows: &[u32]) -> Read {
        let found = keys.iter().zip(rows).filter(|(_, row)| **row != ABSENT_ROW);
        let whole = found.map(|(key, row)| {
            let weights = read(t, *row);
            let (first, count, key) = (weights[0], weights[1], *key as f32);
            assert!(weights[1..DIM - 1].iter().all(|other| *other == count), "{weights:?}");
            assert!(
                weights[DIM - 1] == first + count && (first == key || first == 0.0),
                "{key}: {weights:?}"
            );
            (*row, weights)
        });
        whole.collect()
    }

    fn full(error: StoreError) -> Result<(), StoreError> {
        if matches!(error, StoreError::TableFull { .. }) { Ok(()) } else { Err(error) }
    }

    fn lasts() -> Duration {
        let seconds = std::env::var("SANDERLING_TEST_SECONDS").ok().and_then(|text| text.parse().ok());
        Duration::from_secs_f64(seconds.unwrap_or(0.3))
    }
}
