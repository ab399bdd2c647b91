//! Rows that a device reads after their pull has returned. As long as a hold has a row, the row is not reused: when it is
//! retired, another row takes its place among the free ones. It knows neither tables nor devices.
//!
//! Holds are not epochs: no thread waits for one. A hold needs as many *stand-ins* as it has rows, which are taken from
//! the table's free rows before. So a table with holds has as many free rows as one without, and a push never fails
//! because of a hold.

use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;

use crate::sync::{AtomicUsize, Mutex, lock};

/// The maximum number of rows in all holds of a table, which bounds the work of a thread that retires rows.
const HELD_ROWS_MAX: usize = 1 << 16;
/// The maximum size of these rows.
const HELD_BYTES_MAX: usize = 64 << 20;
/// Words of the filter that a row passes before it is searched.
const FILTER_WORDS: usize = 64;

#[derive(Debug)]
pub(crate) struct HeldRows {
    /// The number of holds, so that threads that retire rows take no lock while there is none.
    present: AtomicUsize,
    state: Mutex<State>,
    rows_max: usize,
}

#[derive(Debug, Default)]
struct State {
    holds: HashMap<u64, Hold>,
    /// Number of the next hold.
    next: u64,
    /// Rows that the holds may have, together.
    claimed: usize,
    /// Rows that were taken for holds, or are about to be: at least `claimed`.
    taken: usize,
    /// Free rows that no one else may use.
    stand_ins: Vec<u32>,
    /// Retired rows that a hold has. A stand-in is free in the place of each.
    retired: Vec<u32>,
    /// Whether there can be no holds, because all rows are about to be discarded.
    is_closed: bool,
}

/// The rows of one hold.
#[derive(Debug)]
struct Hold {
    claimed: usize,
    rows: Vec<u32>,
}

/// A hold that has begun without rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) hold: u64,
    /// Stand-ins that the caller must supply.
    pub(crate) missing: usize,
}

impl HeldRows {
    /// No holds, of rows of this size.
    pub(crate) fn new(row_bytes: usize) -> HeldRows {
        let rows_max = (HELD_BYTES_MAX / row_bytes).clamp(1, HELD_ROWS_MAX);
        HeldRows { present: AtomicUsize::new(0), state: Mutex::default(), rows_max }
    }

    /// Begins a hold of up to `rows` rows. `None`: too many are held.
    ///
    /// The caller then supplies the missing stand-ins, finds its rows, and adds them while it still pins the index.
    pub(crate) fn claim(&self, rows: usize) -> Option<Claim> {
        let mut state = lock(&self.state);
        if state.is_closed || state.claimed + rows > self.rows_max {
            return None;
        }
        state.claimed += rows;
        let missing = state.claimed.saturating_sub(state.taken);
        state.taken += missing;
        let hold = state.next;
        state.next += 1;
        state.holds.insert(hold, Hold { claimed: rows, rows: Vec::with_capacity(rows) });
        // Before the caller pins the index: a thread that waits for its pin then sees the hold.
        self.present.fetch_add(1, SeqCst);
        Some(Claim { hold, missing })
    }

    /// Takes the stand-ins of a claim, of which some may be lacking.
    pub(crate) fn supply(&self, missing: usize, rows: &[u32]) {
        let mut state = lock(&self.state);
        state.taken -= missing - rows.len();
        state.stand_ins.extend_from_slice(rows);
    }

    /// Adds rows that were found with the present pin of the index.
    pub(crate) fn add(&self, hold: u64, rows: impl Iterator<Item = u32>) {
        let mut state = lock(&self.state);
        if let Some(hold) = state.holds.get_mut(&hold) {
            hold.rows.extend(rows);
            debug_assert!(hold.rows.len() <= hold.claimed, "more rows than were claimed");
        }
    }

    /// Ends a hold. Retired rows that no other hold has become stand-ins.
    pub(crate) fn release(&self, hold: u64) {
        let state = &mut *lock(&self.state);
        let Some(Hold { claimed, .. }) = state.holds.remove(&hold) else { return };
        state.claimed -= claimed;
        self.present.fetch_sub(1, SeqCst);
        let retired = std::mem::take(&mut state.retired);
        let Split { held, others } = state.split_off_held(retired);
        state.retired = held;
        state.stand_ins.extend(others);
    }

    /// Replaces each row that a hold has by a stand-in. No search finds the rows any more, and all pins of before are gone.
    pub(crate) fn screen(&self, rows: &mut Vec<u32>) {
        if self.present.load(SeqCst) == 0 {
            return;
        }
        let state = &mut *lock(&self.state);
        let Split { held, others } = state.split_off_held(std::mem::take(rows));
        *rows = others;
        assert!(state.stand_ins.len() >= held.len(), "a held row without a stand-in");
        rows.extend(state.stand_ins.drain(state.stand_ins.len() - held.len()..));
        state.retired.extend(held);
    }

    /// Prevents holds until [`HeldRows::open`]. Returns false, without a change, if there ever was one: a device may know
    /// the memory of the rows.
    pub(crate) fn close(&self) -> bool {
        let mut state = lock(&self.state);
        state.is_closed = state.taken == 0;
        state.is_closed
    }

    pub(crate) fn open(&self) {
        lock(&self.state).is_closed = false;
    }

    /// Rows that no one else may use: stand-ins, and retired rows that a hold has.
    #[cfg(test)]
    pub(crate) fn set_aside(&self) -> usize {
        let state = lock(&self.state);
        state.stand_ins.len() + state.retired.len()
    }

    /// Retired rows that a hold has.
    #[cfg(test)]
    pub(crate) fn retired(&self) -> usize {
        lock(&self.state).retired.len()
    }
}

/// Rows by whether a hold has them.
struct Split {
    held: Vec<u32>,
    others: Vec<u32>,
}

impl State {
    /// Splits rows by whether a hold has them. The others keep their order.
    fn split_off_held(&self, mut rows: Vec<u32>) -> Split {
        if rows.is_empty() || self.holds.is_empty() {
            return Split { held: Vec::new(), others: rows };
        }
        let (mut sorted, mut filter) = (rows.clone(), [0_u64; FILTER_WORDS]);
        sorted.sort_unstable();
        let place = |row: u32| (row as usize / 64 % FILTER_WORDS, 1 << (row % 64));
        for &row in &sorted {
            let (word, bit) = place(row);
            filter[word] |= bit;
        }
        let may_be = |row: u32| {
            let (word, bit) = place(row);
            filter[word] & bit != 0
        };
        let all = self.holds.values().flat_map(|hold| &hold.rows).copied();
        let mut held: Vec<u32> =
            all.filter(|&row| may_be(row) && sorted.binary_search(&row).is_ok()).collect();
        held.sort_unstable();
        held.dedup();
        if !held.is_empty() {
            rows.retain(|row| held.binary_search(row).is_err());
        }
        Split { held, others: rows }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn hold(held: &HeldRows, rows: &[u32], free: &mut Vec<u32>) -> Option<u64> {
        let Claim { hold, missing } = held.claim(rows.len())?;
        held.supply(missing, &free.split_off(free.len() - missing));
        held.add(hold, rows.iter().copied());
        Some(hold)
    }

    #[test]
    fn a_retired_row_is_not_reused_before_its_last_hold_ends() {
        let (held, mut free) = (HeldRows::new(64), (100..110).collect::<Vec<u32>>());
        let first = hold(&held, &[1, 2, 2], &mut free).expect("room");
        let second = hold(&held, &[2, 3], &mut free).expect("room");
        let mut retired = vec![2, 7, 1];
        held.screen(&mut retired);
        assert!(retired.len() == 3 && retired[0] == 7, "{retired:?}");
        assert!(retired[1..].iter().all(|row| *row >= 100), "{retired:?}");
        assert_eq!(held.retired(), 2);
        held.release(first);
        assert_eq!(held.retired(), 1);
        held.release(second);
        assert_eq!((held.retired(), held.set_aside()), (0, 5));
        // Stand-ins are used again.
        assert_eq!(held.claim(5).map(|claim| claim.missing), Some(0));
        assert_eq!(held.claim(2).map(|claim| claim.missing), Some(2));
    }

    #[test]
    fn holds_are_bounded_and_excluded_before_rows_are_discarded() {
        for (row_bytes, rows_max) in [(4, HELD_ROWS_MAX), (1 << 20, 64), (1 << 30, 1)] {
            let held = HeldRows::new(row_bytes);
            assert!(held.close() && held.claim(1).is_none());
            held.open();
            let all = held.claim(rows_max).expect("room for the most rows");
            assert!(held.claim(1).is_none());
            // There may be no free rows.
            held.supply(all.missing, &[]);
            held.release(all.hold);
            assert!(held.close(), "no row was ever held");
            held.open();
            let one = held.claim(1).expect("room");
            held.supply(one.missing, &[9]);
            held.release(one.hold);
            assert!(!held.close(), "a device may know the memory");
        }
    }

    proptest! {
        /// Rows are held, retired and released at random: no row is ever twice among free rows, stand-ins and rows in use,
        /// no held row is free, and nothing is lost.
        #[test]
        fn rows_are_neither_lost_nor_free_while_held(
            steps in prop::collection::vec((0..4_u8, prop::collection::vec(0..40_usize, 1..8)), 1..120)
        ) {
            let held = HeldRows::new(HELD_BYTES_MAX / 24);
            let mut used: Vec<u32> = (0..40).collect();
            let mut free: Vec<u32> = (1000..1060).collect();
            let mut holds: Vec<(u64, Vec<u32>)> = Vec::new();
            for (step, places) in steps {
                match step {
                    0 => {
                        let rows: Vec<u32> = places.iter().map(|&place| used[place]).collect();
                        holds.extend(hold(&held, &rows, &mut free).map(|hold| (hold, rows)));
                    }
                    1 if !holds.is_empty() => held.release(holds.swap_remove(places[0] % holds.len()).0),
                    _ => {
                        // Copies replace rows, as with copy-on-write.
                        let places: BTreeSet<usize> = places.into_iter().collect();
                        let mut retired = Vec::new();
                        for place in places {
                            let copy = free.pop().expect("holds take no room");
                            retired.push(std::mem::replace(&mut used[place], copy));
                        }
                        held.screen(&mut retired);
                        free.extend(retired);
                    }
                }
                let all: Vec<u32> = used.iter().chain(&free).copied().collect();
                prop_assert_eq!(all.len() + held.set_aside(), 100);
                let distinct: BTreeSet<u32> = all.iter().copied().collect();
                prop_assert_eq!(distinct.len(), all.len());
                let free: BTreeSet<u32> = free.iter().copied().collect();
                for (_, rows) in &holds {
                    prop_assert!(rows.iter().all(|row| !free.contains(row)), "{:?} is free", rows);
                }
                prop_assert!(holds.iter().map(|(_, rows)| rows.len()).sum::<usize>() <= 24);
            }
            holds.into_iter().for_each(|(hold, _)| held.release(hold));
            prop_assert_eq!(held.retired(), 0);
        }
    }
}
