//! The rows that a learner still needs, slice of keys by slice of keys.
//!
//! A push to a row that the learner does not have yet would have to wait there, and a primary makes a million of them in a
//! second. So the learner gets the updates of a slice only from the moment on at which its rows begin to be sent: rows that
//! are read later have the updates before. The list of a slice's keys is that of the session's begin and of the rows that
//! were made since.

use std::sync::Arc;

use sanderling_store::{RowColumns, RowVersions};
use sanderling_wire::slot_of;

use crate::limit::{EXPORT_BYTES, EXPORT_ROWS, EXPORT_SLICES};
use crate::message::{AppliedPush, Message, Record};
use crate::rows::Rows;

/// Keys of a table.
type TableKeys = (u32, Vec<u64>);

/// See the top of this file. The default is that of a learner that needs no rows.
#[derive(Debug, Default)]
pub(super) struct Export {
    /// Keys with rows, of the slices whose updates are not sent yet.
    slices: Vec<Vec<TableKeys>>,
    /// The rest of the keys of the slice whose rows are being sent.
    keys: Vec<TableKeys>,
    /// Number of the part under way; 0 before the first.
    part: u64,
    pub(super) sent: Option<Message>,
    pub(super) is_done: bool,
}

fn slice_of(key: u64) -> usize {
    slot_of(key, EXPORT_SLICES)
}

impl Export {
    /// The export of all rows. No push may be under way.
    pub(super) fn of(rows: &Rows) -> Export {
        let mut slices: Vec<Vec<TableKeys>> = vec![Vec::new(); EXPORT_SLICES];
        for (&number, table) in &rows.tables {
            slices.iter_mut().for_each(|slice| slice.push((number, Vec::new())));
            table.for_each_key(
                |_| true,
                |key| slices[slice_of(key)].last_mut().expect("it was just pushed").1.push(key),
            );
        }
        Export { slices, ..Export::default() }
    }

    /// Whether the updates of a key are sent.
    fn is_sent(&self, key: u64) -> bool {
        slice_of(key) >= self.slices.len()
    }

    /// Notes a record before it is sent: rows that it has made belong to their slice.
    pub(super) fn note(&mut self, record: &Record) {
        let Record::Push(AppliedPush { push, rows, .. }) = record else { return };
        if self.slices.is_empty() {
            return;
        }
        for (&key, _) in push.keys.iter().zip(&rows.versions).filter(|(_, version)| **version == 1) {
            let Some(slice) = self.slices.get_mut(slice_of(key)) else { continue };
            match slice.iter_mut().find(|(table, _)| *table == push.table) {
                Some((_, keys)) => keys.push(key),
                None => slice.push((push.table, vec![key])),
            }
        }
    }

    /// The part of a record that the learner gets.
    pub(super) fn part_of(&self, record: &Arc<Record>) -> Arc<Record> {
        let Record::Push(AppliedPush { push, clock, rows, outcome }) = &**record else {
            return Arc::clone(record);
        };
        if self.slices.is_empty() || push.keys.iter().all(|&key| self.is_sent(key)) {
            return Arc::clone(record);
        }
        let dim = push.grads.len() / push.keys.len();
        let mut part = push.without_keys();
        let mut versions = RowVersions::default();
        for at in (0..push.keys.len()).filter(|&at| self.is_sent(push.keys[at])) {
            part.keys.push(push.keys[at]);
            part.counts.push(push.counts[at]);
            part.grads.extend_from_slice(&push.grads[at * dim..][..dim]);
            versions.versions.push(rows.versions[at]);
            versions.removals.push(rows.removals[at]);
        }
        let (clock, outcome) = (*clock, *outcome);
        Arc::new(Record::Push(AppliedPush { push: Arc::new(part), clock, rows: versions, outcome }))
    }

    /// Whether the next part begins another slice: no push may be under way then.
    pub(super) fn begins_slice(&self, part: u64) -> bool {
        part == self.part && !self.is_done && self.keys.is_empty() && !self.slices.is_empty()
    }

    /// Goes on if the learner has this part, which is the last that was sent; returns whether it was.
    pub(super) fn take_part(&mut self, part: u64, rows: &Rows) -> bool {
        let goes_on = part == self.part && !self.is_done;
        if goes_on {
            self.next(rows);
        }
        goes_on
    }

    /// Reads the next part.
    fn next(&mut self, rows: &Rows) {
        if matches!(self.sent, Some(Message::Rows { is_last: true, .. })) {
            (self.sent, self.is_done) = (None, true);
            return;
        }
        while self.keys.is_empty()
            && let Some(slice) = self.slices.pop()
        {
            self.keys = slice;
            self.keys.retain(|(_, keys)| !keys.is_empty());
        }
        let (mut columns, mut removals, mut pushes) = (RowColumns::default(), 0, 0);
        let is_last = self.keys.is_empty();
        let mut none = Vec::new();
        let (number, keys) = match self.keys.last_mut() {
            Some((number, keys)) => (*number, keys),
            None => (0, &mut none),
        };
        if let Some(table) = rows.tables.get(&number) {
            // Before the rows are read: a row of a key that is removed meanwhile comes by the streams.
            (removals, pushes) = (table.removals(), table.pushes());
            let config = table.config();
            let row_bytes = 4 * (config.dim() + config.state() + 5);
            let rows_max = (EXPORT_BYTES / row_bytes).clamp(1, EXPORT_ROWS);
            for key in keys.drain(keys.len().saturating_sub(rows_max)..) {
                if let Some(row) = table.get(key) {
                    columns.push(row.as_ref());
                }
            }
        } else {
            keys.clear();
        }
        if keys.is_empty() {
            self.keys.pop();
        }
        self.part += 1;
        let (part, rows) = (self.part, Arc::new(columns));
        self.sent = Some(Message::Rows { part, table: number, removals, pushes, rows, is_last });
    }
}
