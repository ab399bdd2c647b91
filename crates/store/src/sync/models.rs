//! Models of the synchronization protocols for loom, which explores every interleaving, and every value that weak
//! memory allows, within a bound on preemptions.
//!
//! They are compiled and run by `make proof` only (`--cfg loom`). The comment of a model names its purpose: "fails
//! without" was verified, "checks" was not. Reads run on the spawned thread, because loom explores little if the
//! first thread only loads.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::thread::spawn;

use crate::index::directory::Directory;
use crate::index::{Index, NO_ROW};
use crate::sync::epoch::Epoch;
use crate::sync::seqlock::SeqLocks;
use crate::sync::write_gate::WriteGate;
use crate::sync::{AtomicPtr, AtomicU32, pause};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Under loom an index begins with two buckets. Hashes from here on are at home in the second one.
const SECOND: u64 = 1 << 63;

pub(crate) fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    let interleavings = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = Arc::clone(&interleavings);
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        model();
    });
    let interleavings = interleavings.load(Relaxed);
    assert!(interleavings > 10, "a model of {interleavings} interleavings shows nothing");
}

/// An index whose first bucket has the keys 1 to 5 and whose second one has the overflowed keys from 6 on; rows
/// equal keys.
fn crowded(keys: u64) -> Arc<Index> {
    let index = Index::new().unwrap();
    (1..=keys).for_each(|key| index.insert(key, key as u32));
    Arc::new(index)
}

/// Fails without the fence of `Bucket::probe`. Checks its version comparison and the order of a change.
#[test]
fn loom_a_probe_sees_a_bucket_before_or_after_a_change() {
    check(3, || {
        let index = crowded(1);
        let reader = Arc::clone(&index);
        let thread = spawn(move || {
            let (one, seven) = (reader.find(1), reader.find(7));
            assert!([1, NO_ROW, 10].contains(&one) && [NO_ROW, 70].contains(&seven), "{one} {seven}");
        });
        index.remove(1);
        index.insert(7, 70);
        index.insert(1, 10);
        thread.join().unwrap();
        assert_eq!((index.find(1), index.find(7)), (10, 70));
    });
}

/// Checks that a bucket is locked while a row in it is replaced.
#[test]
fn loom_a_replaced_row_is_the_old_or_the_new_one() {
    check(3, || {
        let index = crowded(2);
        let changer = Arc::clone(&index);
        let thread = spawn(move || {
            assert_eq!(changer.replace(1, 10), 1);
            assert!([2, 20].contains(&changer.find(2)));
        });
        assert_eq!(index.replace(2, 20), 2);
        thread.join().unwrap();
        assert_eq!((index.find(1), index.find(2)), (10, 20));
    });
}

/// Checks the compare-and-swap of `Bucket::hold`.
#[test]
fn loom_two_keys_get_two_slots() {
    check(3, || {
        let index = crowded(3);
        let changer = Arc::clone(&index);
        let thread = spawn(move || {
            changer.insert(4, 4);
            changer.insert(SECOND, 9);
        });
        index.insert(5, 5);
        let found = index.find(4);
        assert!([4, NO_ROW].contains(&found), "{found}");
        thread.join().unwrap();
        (1..=5).for_each(|key| assert_eq!(index.find(key), key as u32));
        assert_eq!(index.find(SECOND), 9);
    });
}

/// Fails without the comparison of the home bucket's version in `Index::find`.
#[test]
fn loom_a_key_is_found_while_it_moves_into_a_free_slot_at_home() {
    check(3, || {
        let index = crowded(6);
        index.remove(3);
        let changer = Arc::clone(&index);
        let thread = spawn(move || assert_eq!(changer.find(6), 6));
        assert!(index.promote(6, |_| 1, |_| Some(()), None));
        thread.join().unwrap();
        assert_eq!((index.find(6), index.lines(6), index.find(3)), (6, 1, NO_ROW));
    });
}

/// Fails without the same comparison. Checks, for the victim, that the far bucket is unlocked before the near one.
#[test]
fn loom_both_keys_are_found_while_they_change_places() {
    for sought in [6, 2, 99] {
        check(3, move || {
            let index = crowded(6);
            let changer = Arc::clone(&index);
            let thread = spawn(move || {
                let expected = if sought == 99 { NO_ROW } else { sought as u32 };
                assert_eq!(changer.find(sought), expected);
            });
            let hotness = |key: u64| u32::from(key != 2) + u32::from(key == 6);
            assert!(index.promote(6, hotness, |_| Some(()), None));
            thread.join().unwrap();
            assert_eq!((index.find(6), index.find(2), index.lines(6), index.lines(2)), (6, 2, 1, 2));
        });
    }
}

/// Checks that overflow counts are decremented after the slot is empty.
#[test]
fn loom_a_displaced_key_is_found_while_another_leaves() {
    check(3, || {
        let index = crowded(7);
        let changer = Arc::clone(&index);
        let thread = spawn(move || {
            assert_eq!(changer.find(7), 7);
            assert!([6, NO_ROW].contains(&changer.find(6)));
        });
        assert_eq!(index.remove(6), 6);
        thread.join().unwrap();
        assert_eq!((index.find(6), index.find(7)), (NO_ROW, 7));
        assert_eq!((index.remove(7), index.lines(7)), (7, 1));
    });
}

/// A row of two words, which are equal before and after every change.
pub(crate) struct TwoWords {
    pub(crate) seq_locks: SeqLocks,
    pub(crate) write_gate: WriteGate,
    pub(crate) words: [AtomicU32; 2],
}

impl TwoWords {
    pub(crate) fn new() -> Arc<TwoWords> {
        let words = [AtomicU32::new(0), AtomicU32::new(0)];
        Arc::new(TwoWords { seq_locks: SeqLocks::new().unwrap(), write_gate: WriteGate::new(), words })
    }

    fn change(&self, lane: usize) {
        let shared = self.write_gate.lock_shared(lane);
        let _guard = self.seq_locks.write(0, &shared);
        self.words.iter().for_each(|word| word.store(word.load(Relaxed) + 1, Relaxed));
    }
}

/// Fails without the reader's fence. Checks the writer's fence and the version comparison.
#[test]
fn loom_a_row_is_read_whole() {
    check(3, || {
        let row = TwoWords::new();
        let changer = Arc::clone(&row);
        let thread = spawn(move || {
            let mut spins = 0;
            let copy = loop {
                let before = changer.seq_locks.view().read_begin(0);
                let copy = changer.words.each_ref().map(|word| word.load(Relaxed));
                if changer.seq_locks.view().read_validate(0, before) {
                    break copy;
                }
                pause(&mut spins);
            };
            assert!(copy[0] == copy[1] && copy[0] <= 1, "{copy:?}");
        });
        row.change(0);
        thread.join().unwrap();
    });
}

/// Checks the compare-and-swap of the odd version.
#[test]
fn loom_no_change_of_a_row_is_lost() {
    check(3, || {
        let row = TwoWords::new();
        let changer = Arc::clone(&row);
        let thread = spawn(move || changer.change(1));
        row.change(0);
        thread.join().unwrap();
        assert_eq!(row.words.each_ref().map(|word| word.load(Relaxed)), [2, 2]);
    });
}

/// Fails if leaving an epoch is relaxed. Checks the two phases and the fence of entering.
#[test]
fn loom_what_a_reader_sees_is_not_freed() {
    check(3, || {
        struct Shared {
            epoch: Epoch,
            present: AtomicPtr<UnsafeCell<u32>>,
            cells: [UnsafeCell<u32>; 2],
        }
        let shared = Arc::new(Shared {
            epoch: Epoch::new(),
            present: AtomicPtr::new(std::ptr::null_mut()),
            cells: [UnsafeCell::new(1), UnsafeCell::new(2)],
        });
        shared.present.store((&raw const shared.cells[0]).cast_mut(), SeqCst);
        let threads = [0, 1].map(|lane| {
            let shared = Arc::clone(&shared);
            spawn(move || {
                let guard = shared.epoch.pin(lane);
                let present = shared.present.load(SeqCst);
                let at = usize::from(!std::ptr::eq(present, &raw const shared.cells[0]));
                shared.cells[at].with(|_| ());
                drop(guard);
            })
        });
        shared.present.swap((&raw const shared.cells[1]).cast_mut(), SeqCst);
        shared.epoch.synchronize();
        // Loom detects a remaining reader.
        shared.cells[0].with_mut(|_| ());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Checks the order of counting and checking, and the fences between them, on both sides.
#[test]
fn loom_an_exclusive_holder_is_alone() {
    check(3, || {
        let shared = Arc::new((WriteGate::new(), UnsafeCell::new(0)));
        let threads = [0, 1].map(|lane| {
            let shared = Arc::clone(&shared);
            spawn(move || {
                let guard = shared.0.lock_shared(lane);
                shared.1.with(|_| ());
                drop(guard);
            })
        });
        let exclusive = shared.0.lock_exclusive();
        shared.1.with_mut(|_| ());
        drop(exclusive);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Checks the reader's fence, and that every writer is counted before it writes.
#[test]
fn loom_an_optimistic_read_beside_writers_is_consistent_or_rejected() {
    check(3, || {
        let row = TwoWords::new();
        let changer = Arc::clone(&row);
        let thread = spawn(move || {
            let optimistic = changer.write_gate.try_optimistic();
            let copy = changer.words.each_ref().map(|word| word.load(Relaxed));
            let optimistic = optimistic.is_some_and(|optimistic| changer.write_gate.validate(optimistic));
            assert!(!optimistic || copy[0] == copy[1], "{copy:?}");
        });
        row.change(0);
        row.change(1);
        thread.join().unwrap();
        assert!(
            row.write_gate.try_optimistic().is_some_and(|optimistic| row.write_gate.validate(optimistic))
        );
    });
}

/// Checks an optimistic read against an exclusive writer. A reader that has seen the change must see its version.
#[test]
fn loom_an_optimistic_read_is_before_or_after_an_exclusive_write() {
    check(3, || {
        let row = TwoWords::new();
        let changer = Arc::clone(&row);
        let thread = spawn(move || {
            let first = changer.words[0].load(Relaxed);
            let optimistic = changer.write_gate.try_optimistic();
            let copy = changer.words.each_ref().map(|word| word.load(Relaxed));
            let optimistic = optimistic.is_some_and(|optimistic| changer.write_gate.validate(optimistic));
            assert!(!optimistic || copy[0] == copy[1] && first <= copy[0], "{first} {copy:?}");
        });
        let mut exclusive = row.write_gate.lock_exclusive();
        {
            let _guard = row.seq_locks.write_exclusive(0, &mut exclusive);
            row.words.iter().for_each(|word| word.store(1, Relaxed));
        }
        drop(exclusive);
        thread.join().unwrap();
    });
}

/// Two exclusive writers and a shared one all get their turn. Fails without the fence of the shared one.
#[test]
fn loom_every_thread_gets_its_turn() {
    check(2, || {
        let shared = Arc::new((WriteGate::new(), UnsafeCell::new(0)));
        let other = Arc::clone(&shared);
        let first = spawn(move || {
            let _exclusive = other.0.lock_exclusive();
            other.1.with_mut(|_| ());
        });
        let other = Arc::clone(&shared);
        let second = spawn(move || {
            let _shared = other.0.lock_shared(1);
            other.1.with(|_| ());
        });
        let exclusive = shared.0.lock_exclusive();
        shared.1.with_mut(|_| ());
        drop(exclusive);
        first.join().unwrap();
        second.join().unwrap();
    });
}

/// A directory of the keys 1 and [`SECOND`], which lie in the two shares of its hash space.
fn two_shares() -> Arc<Directory> {
    let directory = Arc::new(Directory::new(Index::new().unwrap()));
    directory.lock(1).insert(1);
    directory.lock(SECOND).insert(2);
    directory
}

fn begin_growth(directory: &Directory, lane: usize) {
    let make = |index: &Index| Index::with_bytes(index.bytes() * 2).ok_or(());
    directory.begin_growth(lane, make).unwrap().unwrap();
}

/// Checks that a share's keys are locked while they move, that they are then looked up in the next index, and that
/// the old one is freed after its readers.
#[test]
fn loom_growth_loses_no_key() {
    check(2, || {
        let directory = two_shares();
        let grower = Arc::clone(&directory);
        let first = spawn(move || {
            begin_growth(&grower, 0);
            assert!(grower.finish_growth(0));
        });
        let changer = Arc::clone(&directory);
        let second = spawn(move || {
            changer.lock(3).insert(3);
            assert_eq!(changer.pin(1).find(3), 3);
            assert_eq!(changer.lock(SECOND).remove(), 2);
            assert_eq!(changer.pin(1).find(SECOND), NO_ROW);
        });
        assert_eq!(directory.pin(0).find(1), 1);
        first.join().unwrap();
        second.join().unwrap();
        assert!(!directory.finish_growth(0));
        let view = directory.pin(0);
        assert_eq!([1, 3, SECOND].map(|hash| view.find(hash)), [1, 3, NO_ROW]);
    });
}

/// Checks that two threads move each share once, while a third one searches, and that one of them ends the growth.
#[test]
fn loom_two_threads_move_all_shares() {
    check(2, || {
        let directory = two_shares();
        begin_growth(&directory, 0);
        let threads = [0, 1].map(|lane| {
            let directory = Arc::clone(&directory);
            spawn(move || assert!(directory.move_shares(lane, 1) == 1))
        });
        assert_eq!([1, SECOND].map(|hash| directory.pin(0).find(hash)), [1, 2]);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(!directory.finish_growth(0));
        assert_eq!([1, SECOND].map(|hash| directory.pin(0).find(hash)), [1, 2]);
    });
}

/// Checks that an index that is replaced while it grows is freed once, and that no key of it comes back.
#[test]
fn loom_an_index_is_cleared_while_it_grows() {
    check(2, || {
        let directory = two_shares();
        begin_growth(&directory, 0);
        let grower = Arc::clone(&directory);
        let thread = spawn(move || grower.move_shares(1, 2));
        directory.clear(Index::new().unwrap());
        assert_eq!(directory.pin(0).find(1), NO_ROW);
        directory.lock(1).insert(7);
        thread.join().unwrap();
        assert!(!directory.finish_growth(0));
        assert_eq!([1, SECOND].map(|hash| directory.pin(0).find(hash)), [7, NO_ROW]);
    });
}

/// Checks that a row that was removed during a growth is reused after all searches that find it, in either index.
#[test]
fn loom_a_row_is_reused_after_its_readers_while_the_index_grows() {
    check(2, || {
        let shared = Arc::new((two_shares(), UnsafeCell::new(0)));
        begin_growth(&shared.0, 0);
        let other = Arc::clone(&shared);
        let thread = spawn(move || {
            let view = other.0.pin(1);
            if view.find(1) == 1 {
                other.1.with(|_| ());
            }
            drop(view);
        });
        shared.0.move_shares(0, 1);
        assert_eq!(shared.0.lock(1).replace(8), 1);
        shared.0.synchronize();
        shared.1.with_mut(|_| ());
        thread.join().unwrap();
        assert_eq!(shared.0.pin(0).find(1), 8);
    });
}

/// Checks the reuse of rows: a row found under an index guard stays valid until the guard is dropped. Fails without
/// the fence of entering an epoch, and if leaving it is relaxed.
#[test]
fn loom_a_row_is_reused_after_its_readers() {
    check(3, || {
        let shared = Arc::new((Directory::new(Index::new().unwrap()), UnsafeCell::new(0)));
        shared.0.lock(1).insert(1);
        let other = Arc::clone(&shared);
        let thread = spawn(move || {
            let view = other.0.pin(1);
            if view.find(1) != NO_ROW {
                other.1.with(|_| ());
            }
            drop(view);
        });
        assert_eq!(shared.0.lock(1).remove(), 1);
        shared.0.synchronize();
        shared.1.with_mut(|_| ());
        thread.join().unwrap();
    });
}
