//! A growing index agrees with a hash map after any part of the growth, and takes no key out of step.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::index::NO_ROW;
use crate::index::directory::Directory;
use crate::index::hash::mix;
use crate::sync::lanes::lane;
use crate::{Init, Optimizer, PushScale, Table, TableConfig};

/// A step of the test.
#[derive(Debug, Clone, Copy)]
enum Step {
    Insert(u64),
    Remove(u64),
    Replace(u64),
    Promote(u64),
    /// Begins a growth to so many percent more, ends an earlier one first.
    Grow(usize),
    Move(usize),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let hash = || (0_u64..300).prop_map(mix);
    prop_oneof![
        8 => hash().prop_map(Step::Insert),
        4 => hash().prop_map(Step::Remove),
        2 => hash().prop_map(Step::Replace),
        4 => hash().prop_map(Step::Promote),
        1 => (20_usize..200).prop_map(Step::Grow),
        2 => (1_usize..20).prop_map(Step::Move),
        1 => Just(Step::Clear),
    ]
}

/// A directory and the rows that it should have.
struct Pair {
    directory: Directory,
    model: HashMap<u64, u32>,
}

impl Pair {
    fn grow(&self, percent: usize) {
        self.directory.finish_growth(0);
        let make = |index: &Index| Index::with_bytes(index.bytes() * (100 + percent) / 100).ok_or(());
        self.directory.begin_growth(0, make).expect("it does not grow").expect("there is memory");
    }

    fn apply(&mut self, number: u32, step: Step) {
        let Pair { directory, model } = self;
        match step {
            Step::Insert(hash) if model.contains_key(&hash) => {}
            Step::Insert(hash) => {
                let claim = || directory.claim(1, directory.pin(0).view().index.keys_max());
                while claim() == 0 {
                    if !directory.finish_growth(0) {
                        let make = |index: &Index| Index::with_bytes(index.bytes() * 2).ok_or(());
                        directory.begin_growth(0, make).expect("it does not grow").expect("memory");
                    }
                }
                directory.lock(hash).insert(number);
                model.insert(hash, number);
            }
            Step::Remove(hash) => {
                let removed = directory.lock(hash).remove();
                directory.unclaim(usize::from(removed != NO_ROW));
                assert_eq!(removed, model.remove(&hash).unwrap_or(NO_ROW));
            }
            Step::Replace(hash) => {
                let old = model.get_mut(&hash).map_or(NO_ROW, |row| std::mem::replace(row, number));
                assert_eq!(directory.lock(hash).replace(number), old);
            }
            Step::Promote(hash) => {
                let before = directory.pin(0).view().of(hash).lines(hash);
                let moved = directory.lock(hash).promote(|other| u32::from(other == hash));
                assert!(!moved || (before > 1 && directory.pin(0).view().of(hash).lines(hash) == 1));
            }
            Step::Grow(percent) => self.grow(percent),
            Step::Move(shares) => _ = directory.move_shares(0, shares),
            Step::Clear => {
                directory.clear(Index::new().expect("memory"));
                model.clear();
            }
        }
    }

    /// Compares all ways to look keys up.
    fn check(&self) {
        let guard = self.directory.pin(0);
        let hashes: Vec<u64> = (0..304).map(mix).collect();
        for hashes in hashes.as_chunks::<8>().0 {
            let mut rows = [0; 8];
            guard.view().find_step(hashes, None, &mut rows);
            for (hash, row) in hashes.iter().zip(rows) {
                let expected = self.model.get(hash).copied().unwrap_or(NO_ROW);
                assert_eq!((row, guard.find(*hash)), (expected, expected), "{hash:x}");
            }
        }
        drop(guard);
        assert_eq!(self.directory.len(), self.model.len());
    }

    /// Collects the hashes of all of so many shares.
    fn check_shares(&self, wanted: usize) {
        let (shares, mut seen) = (shares(wanted), HashMap::new());
        for share in 0..shares {
            self.directory
                .lock_share(share, shares)
                .for_each_hash(|hash| *seen.entry(hash).or_insert(0) += 1);
        }
        assert!(seen.values().all(|&times| times == 1) && seen.len() == self.model.len());
        assert!(seen.keys().all(|hash| self.model.contains_key(hash)));
    }
}

proptest! {
    // Miri is slow.
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 48 }))]
    #[test]
    fn a_growing_index_agrees_with_a_hash_map(
        steps in prop::collection::vec(step(), 1..if cfg!(miri) { 30 } else { 500 }),
    ) {
        let mut pair = Pair { directory: Directory::new(Index::new().expect("memory")), model: HashMap::new() };
        for (number, step) in steps.into_iter().enumerate() {
            pair.apply(number as u32, step);
            pair.check();
            if number % 16 == 0 {
                pair.check_shares(number * 4);
            }
        }
        pair.directory.finish_growth(0);
        pair.check();
        let hashes: Vec<u64> = pair.model.keys().copied().collect();
        hashes.iter().for_each(|&hash| assert!(pair.directory.lock(hash).remove() != NO_ROW));
        prop_assert!(pair.directory.pin(0).view().index.is_pristine(), "a key or an overflow count was left");
    }
}

/// The shares that are due move before the index is full, and in every part alike.
#[test]
fn shares_move_in_step_with_new_keys() {
    let index = Index::with_bytes(64 * 40_000).expect("memory");
    let moves = Moves::new(&index);
    let all = index.len().div_ceil(SHARE_BUCKETS).next_power_of_two();
    let mut parts = vec![0; PARTS as usize];
    let mut begin = |due: usize| {
        while let Some(part) = moves.begin(due) {
            parts[part as usize] += 1;
        }
        (parts.iter().sum::<usize>(), parts.iter().max().copied(), parts.iter().min().copied())
    };
    assert_eq!((moves.due(0), begin(moves.due(0)).0), (0, 0));
    let half = moves.due(index.slots() / 64);
    assert_eq!((half, begin(half).0), (all / 2, all / 2));
    let each = Some(all / PARTS as usize);
    assert_eq!(begin(moves.due(index.slots() / 64)), (all, each, each));
    assert!((1..all).all(|_| !moves.end()) && moves.end());
}

/// A growth ends without new keys, by pushes to present ones or by maintenance.
#[test]
fn a_growth_ends_without_new_keys() {
    let config = TableConfig::single("t", 1, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
    let keys = if cfg!(miri) { 200 } else { 200_000 };
    for by_pushes in [true, false] {
        let table = Table::new(config.clone()).expect("a table");
        assert!(table.reserve(keys));
        let push = |keys: &[u64]| table.push(keys, &vec![1.0; keys.len()], PushScale::default());
        push(&(0..keys).collect::<Vec<_>>()).expect("room");
        assert!(table.grow(|index| index.bytes() * 2));
        let is_growing = || table.directory.pin(lane()).view().growth.is_some();
        let mut steps = 0;
        while is_growing() {
            if by_pushes {
                push(&[1]).expect("room");
            } else {
                table.maintain(0);
            }
            steps += 1;
            assert!(steps <= 1 << 12, "the growth does not end");
        }
        assert!(cfg!(miri) || steps > 1, "it ended at once");
        assert_eq!(table.len(), keys as usize);
    }
}
