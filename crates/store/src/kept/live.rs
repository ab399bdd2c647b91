//! Words of a kept table that change with every request: counts, the use clock, the progress of a growth, and a record
//! per key lock of the change in hand.
//!
//! Counts follow those of the table ([`crate::index::directory`], [`crate::policy::clock`]). A death in between leaves
//! the number of keys too high, never too low; the search for free rows corrects it.

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::kept::{fault, in_order};
use crate::memory::Region;
use crate::memory::file::PageFile;
use crate::memory::persist::{Persist, Step};

/// Lanes of the use clock: at least as many as a table has ([`crate::sync::lanes`]).
const CLOCK_LANES: usize = 64;
const CLOCK_LANE_WORDS: usize = 16;
/// Parts of an index that move by themselves, and key locks.
const PARTS: usize = 32;
const LOCKS: usize = 256;
const RECORD_WORDS: usize = 8;
/// Positions of the words.
const ROWS: usize = 0;
const KEYS: usize = 1;
/// Moved shares of each part, for the growths to an even and to an odd index.
const MOVED: usize = 64;
const CLOCK: usize = MOVED + 2 * PARTS;
const RECORDS: usize = CLOCK + CLOCK_LANES * CLOCK_LANE_WORDS;
pub(crate) const LIVE_WORDS: usize = RECORDS + LOCKS * RECORD_WORDS;
pub(crate) const LIVE_BYTES: usize = LIVE_WORDS * size_of::<u64>();

/// Positions in a record.
const ACT: usize = 0;
const HASH: usize = 1;
const LAST_BUCKET: usize = 2;
const INDEX: usize = 3;
/// Slot of the promoted key's new place, slot of the victim's, and their rows.
const NEAR: usize = 4;
const FAR: usize = 5;
const ROWS_OF_BOTH: usize = 6;
const VICTIM: usize = 7;

/// Acts of a record.
const NONE: u64 = 0;
const KEY: u64 = 1;
const EXCHANGE: u64 = 2;
const MOVE: u64 = 3;

#[derive(Debug)]
pub(crate) struct Live {
    words: Region<AtomicU64>,
    persist: Option<Persist>,
}

/// The record of a key lock: a cache line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    words: &'a [AtomicU64],
    persist: Option<Persist>,
}

/// An exchange of two keys: both slots with their new content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exchange {
    /// The number of the index.
    pub(crate) index: u64,
    pub(crate) hash: u64,
    pub(crate) row: u32,
    pub(crate) victim: u64,
    pub(crate) victim_row: u32,
    /// Bucket and slot of the promoted key, and of the victim.
    pub(crate) near: (u32, u32),
    pub(crate) far: (u32, u32),
}

/// A change that was in hand when the process died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InHand {
    /// A key, and the index and bucket that it was to be removed from.
    Key {
        hash: u64,
        last_bucket: Option<(u64, usize)>,
    },
    Exchange(Exchange),
    /// A share of a part that was moved to the next index: the key that was copied, or removed again.
    Move {
        part: u32,
        hash: u64,
        last_bucket: Option<(u64, usize)>,
    },
}

impl Live {
    /// Opens a file of [`LIVE_BYTES`].
    pub(crate) fn new(file: PageFile, persist: Option<Persist>) -> io::Result<Live> {
        let words = Region::of_file(file, LIVE_WORDS)?;
        words.reserve(0..LIVE_WORDS)?;
        Ok(Live { words, persist })
    }

    /// The way to make stores durable, if the table survives the loss of power.
    pub(crate) fn persist(&self) -> Option<Persist> {
        self.persist
    }

    /// Writes the words from number `first` on back.
    fn write_back(&self, step: Step, first: usize, words: usize) {
        if let Some(persist) = self.persist {
            persist.write_back(step, &self.words[first..][..words]);
        }
    }

    /// Makes what a killed process has left durable, before anything is done that relies on it.
    pub(crate) fn write_back_found(&self) {
        self.write_back(Step::Found, 0, LIVE_WORDS);
    }

    /// Ends all changes in hand after a recovery.
    pub(crate) fn end_all(&self) {
        in_order();
        (0..LOCKS).for_each(|lock| self.record(lock).set(ACT, NONE));
        in_order();
        if let Some(persist) = self.persist {
            // The head, which is written next, waits for it.
            persist.flush(Step::RecordsEnd, &self.words);
        }
    }

    /// Rows charged to the budget.
    pub(crate) fn rows(&self) -> u64 {
        self.words[ROWS].load(Relaxed)
    }

    pub(crate) fn set_rows(&self, rows: u64) {
        if fault::is(fault::Fault::NoCharge) {
            return;
        }
        self.words[ROWS].store(rows, Relaxed);
        in_order();
        self.write_back(Step::Charge, ROWS, 1);
    }

    /// Keys in the index, including keys about to be inserted or just removed.
    pub(crate) fn keys(&self) -> u64 {
        self.words[KEYS].load(Relaxed)
    }

    pub(crate) fn add_keys(&self, keys: usize) {
        self.words[KEYS].fetch_add(keys as u64, Relaxed);
        in_order();
    }

    pub(crate) fn subtract_keys(&self, keys: usize) {
        in_order();
        self.words[KEYS].fetch_sub(keys as u64, Relaxed);
    }

    pub(crate) fn set_keys(&self, keys: u64) {
        self.words[KEYS].store(keys, Relaxed);
    }

    /// Counts pushes.
    pub(crate) fn tick(&self, lane: usize, pushes: u64) {
        let word = &self.words[CLOCK + lane % CLOCK_LANES * CLOCK_LANE_WORDS];
        word.fetch_add(pushes, Relaxed);
        if let Some(persist) = self.persist {
            // Durable with the rows of the push.
            persist.flush(Step::Clock, std::slice::from_ref(word));
        }
    }

    /// The use clock.
    pub(crate) fn clock(&self) -> u64 {
        (0..CLOCK_LANES).map(|lane| self.words[CLOCK + lane * CLOCK_LANE_WORDS].load(Relaxed)).sum()
    }

    pub(crate) fn set_clock(&self, pushes: u64) {
        (1..CLOCK_LANES).for_each(|lane| self.words[CLOCK + lane * CLOCK_LANE_WORDS].store(0, Relaxed));
        self.words[CLOCK].store(pushes, Relaxed);
    }

    fn moved_at(&self, to: u64, part: u32) -> &AtomicU64 {
        &self.words[MOVED + (to % 2) as usize * PARTS + part as usize]
    }

    /// Shares of a part that have moved to the index `to`.
    pub(crate) fn moved(&self, to: u64, part: u32) -> u32 {
        self.moved_at(to, part).load(Relaxed) as u32
    }

    pub(crate) fn set_moved(&self, to: u64, part: u32, shares: u32) {
        in_order();
        self.moved_at(to, part).store(u64::from(shares), Relaxed);
        in_order();
        if let Some(persist) = self.persist {
            persist.write_back(Step::Moved, std::slice::from_ref(self.moved_at(to, part)));
        }
    }

    pub(crate) fn forget_moves(&self, to: u64) {
        (0..PARTS as u32).for_each(|part| self.moved_at(to, part).store(0, Relaxed));
        in_order();
        self.write_back(Step::NoMoves, MOVED, 2 * PARTS);
    }

    /// The record of a key lock. Only the holder of the lock may use it.
    #[inline]
    pub(crate) fn record(&self, lock: usize) -> Record<'_> {
        let words = &self.words[RECORDS + lock * RECORD_WORDS..][..RECORD_WORDS];
        Record { words, persist: self.persist }
    }

    /// Everything in hand, with its record.
    pub(crate) fn in_hand(&self, locks_per_part: usize) -> Vec<(InHand, Record<'_>)> {
        let each = (0..LOCKS).map(|lock| (lock, self.record(lock)));
        each.filter_map(|(lock, record)| Some((record.in_hand((lock / locks_per_part) as u32)?, record)))
            .collect()
    }
}

impl Record<'_> {
    fn set(self, at: usize, word: u64) {
        self.words[at].store(word, Relaxed);
    }

    fn get(self, at: usize) -> u64 {
        self.words[at].load(Relaxed)
    }

    fn begin(self, act: u64) {
        in_order();
        self.set(ACT, act);
        in_order();
    }

    /// Begins a change of a key.
    pub(crate) fn begin_key(self, hash: u64) {
        self.set(HASH, hash);
        self.set(LAST_BUCKET, 0);
        self.begin(KEY);
        if fault::is(fault::Fault::RecordEndsEarly) {
            self.end();
        }
    }

    /// Records the bucket that a key is removed from, which a search may not reach after an interrupted removal.
    pub(crate) fn set_last_bucket(self, index: u64, bucket: usize) {
        self.set(LAST_BUCKET, 0);
        in_order();
        self.set(INDEX, index);
        in_order();
        self.set(LAST_BUCKET, bucket as u64 + 1);
        in_order();
    }

    /// Records an exchange by the key in hand, which has not been changed. Until then the record of the key mends the
    /// buckets, which are locked already.
    pub(crate) fn begin_exchange(self, exchange: Exchange) {
        let pair = |(high, low): (u32, u32)| u64::from(high) << 32 | u64::from(low);
        self.set(HASH, exchange.hash);
        self.set(VICTIM, exchange.victim);
        self.set(INDEX, exchange.index);
        self.set(NEAR, pair(exchange.near));
        self.set(FAR, pair(exchange.far));
        self.set(ROWS_OF_BOTH, pair((exchange.row, exchange.victim_row)));
        self.begin(EXCHANGE);
        if let Some(persist) = self.persist {
            persist.write_back(Step::Exchange, self.words);
        }
        if fault::is(fault::Fault::NoRedo) {
            self.end();
        }
    }

    /// Ends an exchange, before either key is unlocked: another change of the victim must not be undone by this one.
    pub(crate) fn end_exchange(self) {
        self.end();
        if let Some(persist) = self.persist {
            persist.write_back(Step::ExchangeEnd, self.words);
        }
    }

    /// Records the key that is copied to the next index.
    pub(crate) fn begin_move(self, hash: u64) {
        in_order();
        self.set(HASH, hash);
        self.set(LAST_BUCKET, 0);
        self.begin(MOVE);
    }

    /// Ends the change in hand.
    pub(crate) fn end(self) {
        in_order();
        self.set(ACT, NONE);
        in_order();
    }

    fn in_hand(self, part: u32) -> Option<InHand> {
        let split = |word: u64| ((word >> 32) as u32, word as u32);
        let hash = self.get(HASH);
        let last_bucket = (self.get(LAST_BUCKET) as usize).checked_sub(1).map(|last| (self.get(INDEX), last));
        Some(match self.get(ACT) {
            KEY => InHand::Key { hash, last_bucket },
            EXCHANGE => {
                let ((near, far), (row, victim_row)) =
                    ((split(self.get(NEAR)), split(self.get(FAR))), split(self.get(ROWS_OF_BOTH)));
                let (index, victim) = (self.get(INDEX), self.get(VICTIM));
                InHand::Exchange(Exchange { index, hash, row, victim, victim_row, near, far })
            }
            MOVE => InHand::Move { part, hash, last_bucket },
            _ => return None,
        })
    }
}
