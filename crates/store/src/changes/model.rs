//! Model of the race between a change of a row and a drain, for loom ([`crate::sync::models`]).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use loom::thread::spawn;

use crate::changes::notes::Notes;
use crate::sync::models::{TwoWords, check};
use crate::sync::pause;

/// A row that is marked, a change of it beside a drain, and a drain after both. The last read has the change.
fn a_change_beside_a_drain(drain: fn(&Notes, &TwoWords) -> Option<[u32; 2]>) {
    check(3, move || {
        let shared = Arc::new((Notes::new(32, 0).unwrap(), TwoWords::new()));
        shared.0.note_store(0);
        let changer = Arc::clone(&shared);
        let changing = spawn(move || {
            let (notes, row) = &*changer;
            let gate = row.write_gate.lock_shared(0);
            let _guard = row.seq_locks.write(0, &gate);
            notes.note_update(0);
            row.words.iter().for_each(|word| word.store(1, Relaxed));
        });
        let drainer = Arc::clone(&shared);
        let draining = spawn(move || drain(&drainer.0, &drainer.1));
        changing.join().unwrap();
        let first = draining.join().unwrap();
        let last = drain(&shared.0, &shared.1).or(first);
        assert_eq!(last, Some([1, 1]), "the change is lost or torn");
    });
}

fn read_two_words(row: &TwoWords) -> [u32; 2] {
    let mut spins = 0;
    loop {
        let before = row.seq_locks.view().read_begin(0);
        let copy = row.words.each_ref().map(|word| word.load(Relaxed));
        if row.seq_locks.view().read_validate(0, before) {
            return copy;
        }
        pause(&mut spins);
    }
}

/// Checks that the mark is cleared before the row is read, and the fence of `Notes::note_update`.
#[test]
fn loom_a_change_beside_a_drain_is_in_it_or_in_the_next() {
    a_change_beside_a_drain(|notes, row| {
        let mut rows = Vec::new();
        notes.take_rows(&mut notes.lines_of(32), |row| {
            rows.push(row);
            false
        });
        (!rows.is_empty()).then(|| read_two_words(row))
    });
}

/// The fault that the model must find: a drain that reads the row first.
#[test]
#[should_panic(expected = "the change is lost")]
fn loom_a_mark_that_is_cleared_after_the_read_loses_a_change() {
    a_change_beside_a_drain(|notes, row| {
        let read = notes.is_noted(0).then(|| read_two_words(row));
        notes.take_rows(&mut notes.lines_of(32), |_| false);
        read
    });
}
