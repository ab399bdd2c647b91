//! A replica that follows a primary: streams in order, marks at receipt, barriers across streams.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::fault::Fault;
use crate::group::Member;
use crate::message::{Message, Operation, Record};
use crate::push_dedup::{PushDedup, Verdict};
use crate::rows::{Broken, Rows};

/// A session with a primary.
#[derive(Debug)]
pub(crate) struct Follower {
    pub(crate) primary: Member,
    pub(crate) epoch: u64,
    pub(crate) session: u64,
    streams: Vec<Inbox>,
    /// Barriers that were applied.
    barrier: u64,
    /// Highest part of the rows.
    part: u64,
    is_exported: bool,
    echo: u64,
    /// When the primary was heard last.
    pub(crate) heard: u64,
    /// Its process has ended, as far as the system says.
    pub(crate) is_ended: bool,
}

/// A stream, received up to a record.
#[derive(Debug)]
struct Inbox {
    received: u64,
    /// Received, and not looked at yet.
    held: VecDeque<Arc<Record>>,
    /// Removals per table that the stream has passed.
    passed: HashMap<u32, u64>,
}

impl Follower {
    /// Begins a session: the rows come later.
    pub(crate) fn new(
        (primary, epoch, session): (Member, u64, u64),
        starts: &[u64],
        barrier: u64,
        now: u64,
    ) -> Follower {
        let inbox =
            |&start: &u64| Inbox { received: start - 1, held: VecDeque::new(), passed: HashMap::new() };
        let streams = starts.iter().map(inbox).collect();
        Follower {
            primary,
            epoch,
            session,
            streams,
            barrier,
            part: 0,
            is_exported: false,
            echo: 0,
            heard: now,
            is_ended: false,
        }
    }

    /// Takes a message of the session.
    pub(crate) fn take(
        &mut self,
        message: &Message,
        rows: &mut Rows,
        dedup: &PushDedup,
    ) -> Result<(), Broken> {
        match message {
            Message::Records { stream, first, records } => {
                let inbox = self.streams.get_mut(*stream).ok_or(Broken)?;
                for (record, number) in records.iter().zip(*first..) {
                    // Earlier ones come again if an acknowledgement was lost; later ones are sent again.
                    if number == inbox.received + 1 {
                        inbox.received = number;
                        mark(record, rows.fault, dedup);
                        inbox.held.push_back(Arc::clone(record));
                    }
                }
                self.apply(rows, false)
            }
            Message::Rows { part, table, removals, pushes, rows: block, is_last }
                if *part == self.part + 1 =>
            {
                self.part = *part;
                self.is_exported |= is_last;
                rows.import(*table, *removals, *pushes, block)
            }
            Message::Heartbeat { sent } => {
                self.echo = self.echo.max(*sent);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Applies the records that can be, and changes that every stream has come to, or all if `is_last`.
    fn apply(&mut self, rows: &mut Rows, is_last: bool) -> Result<(), Broken> {
        loop {
            let streams = 0..self.streams.len();
            streams.into_iter().try_for_each(|stream| self.apply_stream(stream, rows))?;
            let at_barrier = |inbox: &Inbox| !inbox.held.is_empty();
            let mut ready = self.streams.iter().any(at_barrier);
            if !is_last && rows.fault != Fault::BarrierNotAwaited {
                ready &= self.streams.iter().all(at_barrier);
            }
            if !ready {
                return Ok(());
            }
            let next = self.barrier + 1;
            let mut operation = None;
            for inbox in &mut self.streams {
                if let Some(Record::Barrier { number, operation: change }) = inbox.held.front().map(|r| &**r)
                    && *number == next
                {
                    operation = Some(change.clone());
                    inbox.held.pop_front();
                }
            }
            let Some(operation) = operation else { return Err(Broken) };
            if is_last {
                rows.flush()?;
            }
            rows.operate(&operation, false).map_err(|_| Broken)?;
            if matches!(operation, Operation::Drop { .. } | Operation::Replace { .. }) {
                let is_there = |table: &u32, _: &mut u64| rows.tables.contains_key(table);
                self.streams.iter_mut().for_each(|inbox| inbox.passed.retain(is_there));
            }
            self.barrier = next;
        }
    }

    /// Applies the records of a stream before the next barrier.
    fn apply_stream(&mut self, stream: usize, rows: &mut Rows) -> Result<(), Broken> {
        loop {
            let inbox = &mut self.streams[stream];
            match inbox.held.front().map(|record| &**record) {
                None => return Ok(()),
                Some(Record::Barrier { number, .. }) if *number > self.barrier => return Ok(()),
                Some(Record::Barrier { .. }) => {}
                Some(Record::Push(applied)) => rows.follow(applied)?,
                Some(Record::Removals { table, before, keys }) => {
                    let (table, before) = (*table, *before);
                    rows.remove(table, before, keys);
                    inbox.passed.insert(table, before + keys.len() as u64);
                    let passed = |inbox: &Inbox| inbox.passed.get(&table).copied().unwrap_or(0);
                    let passed = self.streams.iter().map(passed).min().unwrap_or(0);
                    // Exported rows may be from before the removal.
                    if self.is_exported {
                        rows.forget_removed(table, passed);
                    }
                }
            }
            self.streams[stream].held.pop_front();
        }
    }

    /// Applies everything that was received, before the replica becomes the primary.
    pub(crate) fn finish(&mut self, rows: &mut Rows) -> Result<(), Broken> {
        self.apply(rows, true)?;
        rows.flush()
    }

    /// The acknowledgement of all that was received and marked.
    pub(crate) fn ack(&self) -> Message {
        let received = self.streams.iter().map(|inbox| inbox.received).collect();
        Message::Ack { received, part: self.part, echo: self.echo, is_broken: false }
    }

    /// Records that wait for a barrier.
    pub(crate) fn held(&self) -> usize {
        self.streams.iter().map(|inbox| inbox.held.len()).sum()
    }
}

/// Marks a push, so that it is not applied again if its client repeats it at this replica.
fn mark(record: &Record, fault: Fault, dedup: &PushDedup) {
    let Record::Push(applied) = record else { return };
    let (client, sequence) = (applied.push.client, applied.push.sequence);
    let mut window = None;
    if fault != Fault::MarksNotSent
        && dedup.begin(&mut window, client, sequence) == Verdict::Apply
        && let Some(window) = window
    {
        window.finish(sequence, Some(applied.outcome));
    }
}
