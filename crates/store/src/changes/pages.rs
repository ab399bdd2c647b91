//! The change stream in pages, for subscribers that ask for one page at a time: an export of all rows, then drains.
//!
//! The table keeps nothing for such a subscriber. Its place in the stream comes with each request, and pages read the
//! present values of keys in the order of their hashes. Subscribers of one moment share a drain.

use std::time::{Duration, Instant};

use crate::changes::epochs::{Changes, Stream};
use crate::index::growth::{SHARE_BUCKETS, hashes_of_share, shares};
use crate::sync::lanes::lane;
use crate::sync::lock;
use crate::{RowRef, StoreError, Table};

/// A subscriber's place in the change stream of a table. The default is the start of an export of all rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamPlace {
    /// Epoch until which all changes were passed; 0 during an export.
    pub since: u64,
    /// Epoch that the last page of the export or drain reaches; equal to `since` between two drains.
    pub until: u64,
    /// Hash from which the next page goes on.
    pub cursor: u64,
}

/// The result of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangePage {
    /// Place of the next page.
    pub next: StreamPlace,
    /// Time since the drain or export began: after its last page, changes that are older were all passed.
    pub age: Duration,
    /// More rows are marked as changed than one drain takes: the next one goes on at once, and `age` says nothing yet.
    pub has_more: bool,
}

/// How a subscriber takes pages.
#[derive(Debug, Clone, Copy)]
pub struct FollowOptions {
    /// A drain of another subscriber that is not older is used again.
    pub fresh: Duration,
    /// Keys of a page, at least 1.
    pub keys: usize,
    /// Keys of past epochs to keep, as for [`Table::subscribe_changes`].
    pub keys_kept: usize,
}

impl StreamPlace {
    fn is_export(&self) -> bool {
        self.since == 0
    }

    /// The place after a page of which `left` says where the next one begins.
    fn after(self, left: Option<u64>) -> StreamPlace {
        match left {
            Some(cursor) => StreamPlace { cursor, ..self },
            None => StreamPlace { since: self.until, until: self.until, cursor: 0 },
        }
    }
}

impl Table {
    /// Passes the next page of the export or drain at a place to `each`: keys with their present row, or without one.
    ///
    /// A subscriber begins at the default place, which exports all rows, and asks on with the place that it got. After
    /// the last page of the export, and of each drain, its rows are those of the table at the start of that drain or
    /// newer ones, and keys that were removed before were passed without a row. Keys that `wants` does
    /// not accept are left out. Neither function may use the table.
    ///
    /// # Errors
    ///
    /// [`StoreError::StreamTooLate`] if the changes since the place are not kept: begin at the default place again, and
    /// drop the keys that the new export does not have. The errors of [`Table::subscribe_changes`].
    pub fn follow_changes(
        &self,
        place: StreamPlace,
        options: &FollowOptions,
        wants: impl Fn(u64) -> bool,
        mut each: impl FnMut(u64, Option<RowRef<'_>>),
    ) -> Result<ChangePage, StoreError> {
        let began = Instant::now();
        let keys = options.keys.max(1);
        let wants = |hash: u64| wants(self.hash_key.key(hash));
        if place.is_export() {
            let until = match place.until {
                0 => self.subscribe_changes(options.keys_kept)?,
                epoch => epoch,
            };
            let (hashes, left) = self.hashes_from(place.cursor, keys, wants);
            self.read_present(&hashes, |key, row| {
                // A key that is gone by now is in the next drain.
                if row.is_some() {
                    each(key, row);
                }
            });
            let next = StreamPlace { until, ..place }.after(left);
            return Ok(ChangePage { next, age: began.elapsed(), has_more: false });
        }
        let Some(changes) = self.changes.get() else { return Err(self.too_late(place.since, 0)) };
        let mut stream = lock(&changes.stream);
        let check = |stream: &Stream| {
            let known = stream.oldest..=stream.epoch;
            if known.contains(&place.since) && known.contains(&place.until) {
                return Ok(());
            }
            Err(self.too_late(place.since, stream.oldest))
        };
        check(&stream)?;
        let mut place = place;
        if place.since == place.until {
            if !stream.progress.is_fresh(options.fresh) {
                self.take_part(changes, &mut stream, place.since)?;
                check(&stream)?;
            }
            place.until = stream.epoch;
        }
        let (age, has_more) = (stream.progress.began.elapsed(), stream.progress.line > 0);
        // Sets of later epochs may hold merged keys of earlier ones, so none is left out.
        let (hashes, left) = stream.hashes_from(place.since, place.cursor, keys, wants);
        drop(stream);
        self.read_present(&hashes, &mut each);
        Ok(ChangePage { next: place.after(left), age, has_more })
    }

    /// Takes marks until there are half as many as are kept, and keeps their keys as the set of an epoch.
    fn take_part(&self, changes: &Changes, stream: &mut Stream, since: u64) -> Result<(), StoreError> {
        let began = Instant::now();
        let mut hashes = Vec::new();
        changes.notes.take_removed(&mut hashes);
        if changes.notes.take_incomplete() {
            stream.epoch += 1;
            stream.forget();
            return Err(self.too_late(since, stream.oldest));
        }
        let all = changes.notes.lines_of(self.row_allocator.charged());
        if stream.progress.line == 0 {
            stream.progress.began = began;
        }
        let mut lines = stream.progress.line.min(all.end)..all.end;
        self.take_changed(changes, &mut lines, changes.keys_max / 2, &mut hashes);
        stream.progress.line = if lines.is_empty() { 0 } else { lines.start };
        stream.progress.drained = Some(Instant::now());
        if !hashes.is_empty() {
            stream.epoch += 1;
            // The subscriber of this drain gets its keys, however many they are.
            let keys_max = self.kept_keys_max(changes).max(hashes.len());
            stream.keep(hashes, keys_max);
        }
        Ok(())
    }

    /// Up to `keys` hashes of the index from one on, in order, and the first one after them if there may be more.
    fn hashes_from(&self, from: u64, keys: usize, wants: impl Fn(u64) -> bool) -> (Vec<u64>, Option<u64>) {
        let buckets = self.directory.pin(lane()).view().latest().len();
        let shares = shares(buckets / SHARE_BUCKETS);
        let (mut hashes, mut next) = (Vec::new(), Some(from));
        while let Some(first) = next
            && hashes.len() <= keys
        {
            let share = ((u128::from(first) * u128::from(shares)) >> u64::BITS) as u32;
            let begin = hashes.len();
            self.directory.lock_share(share, shares).for_each_hash(|hash| {
                if hash >= first && wants(hash) {
                    hashes.push(hash);
                }
            });
            hashes[begin..].sort_unstable();
            next = hashes_of_share(share, shares).1.checked_add(1);
        }
        if hashes.len() > keys {
            next = Some(hashes[keys]);
            hashes.truncate(keys);
        }
        (hashes, next)
    }
}

impl Stream {
    /// Up to `keys` hashes from one on that are in sets after an epoch, in order, and the first one after them.
    fn hashes_from(
        &self,
        since: u64,
        from: u64,
        keys: usize,
        wants: impl Fn(u64) -> bool,
    ) -> (Vec<u64>, Option<u64>) {
        let mut hashes = Vec::new();
        for (_, set) in self.sets.iter().filter(|(epoch, _)| *epoch > since) {
            let rest = &set[set.partition_point(|&hash| hash < from)..];
            // One more than wanted, which is the next page's first.
            hashes.extend(rest.iter().copied().filter(|&hash| wants(hash)).take(keys + 1));
        }
        // Stable, because this one merges sorted runs.
        hashes.sort();
        hashes.dedup();
        let next = hashes.get(keys).copied();
        hashes.truncate(keys);
        (hashes, next)
    }
}
