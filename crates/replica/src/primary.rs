//! The primary: streams, sessions with followers, answers that wait for them, and exports for learners.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::fault::Fault;
use crate::group::Member;
use crate::limit::{
    BACKLOG_RECORDS_MAX, DROP_AFTER, HEARTBEAT, JOIN_WITHIN, LEASE, REMOVALS_MAX, RESENT_RECORDS,
};
use crate::message::{Answer, Message, Operation, Record, TableState};
use crate::push_dedup::{Outcome, PushDedup};
use crate::rows::Rows;

mod export;
use export::Export;

/// The state of a primary in an epoch.
#[derive(Debug)]
pub(crate) struct Primary {
    pub(crate) epoch: u64,
    streams: Vec<Stream>,
    pub(crate) sessions: Vec<Session>,
    sessions_so_far: u64,
    pending: Vec<Pending>,
    /// Barriers so far.
    barrier: u64,
    /// When a hand-over was begun, and to whom it was sent.
    pub(crate) handing_over: Option<(u64, Option<Member>)>,
}

/// The records of a worker, numbered from 1 on in each epoch.
#[derive(Debug, Default)]
struct Stream {
    /// Records before the first one that is kept.
    before: u64,
    records: VecDeque<Arc<Record>>,
    /// Removals per table that the stream has.
    removals: BTreeMap<u32, u64>,
}

impl Stream {
    fn last(&self) -> u64 {
        self.before + self.records.len() as u64
    }
}

/// A follower, as its primary sees it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) number: u64,
    pub(crate) member: Member,
    begin: Message,
    has_begun: bool,
    /// Acknowledged records of each stream.
    acked: Vec<u64>,
    /// Last records of each stream that were sent again; 0: none were, or they are acknowledged with all later ones.
    resent: Vec<u64>,
    /// Last records of the streams when pushes began to wait for this learner.
    joined_at: Option<Vec<u64>>,
    export: Export,
    /// When the follower was heard last, and the latest heartbeat that it has heard.
    pub(crate) heard: u64,
    /// Its process has ended, as far as the system says.
    is_ended: bool,
    echo: u64,
    pub(crate) is_broken: bool,
}

/// An answer that waits for followers.
#[derive(Debug)]
struct Pending {
    requests: Vec<u64>,
    /// Client and sequence of a push.
    push: Option<(u64, u64)>,
    /// Records by stream and number.
    records: Vec<(usize, u64)>,
    answer: Answer,
}

/// Messages by session.
pub(crate) type Outbox = Vec<(Member, u64, Message)>;

impl Primary {
    pub(crate) fn new(epoch: u64, streams: usize, rows: &Rows) -> Primary {
        let removals: BTreeMap<u32, u64> =
            rows.tables.iter().map(|(&number, table)| (number, table.removals())).collect();
        let stream = || Stream { removals: removals.clone(), ..Stream::default() };
        Primary {
            epoch,
            streams: (0..streams).map(|_| stream()).collect(),
            sessions: Vec::new(),
            sessions_so_far: 0,
            pending: Vec::new(),
            barrier: 0,
            handing_over: None,
        }
    }

    /// Returns whether some follower is too far behind for more pushes.
    pub(crate) fn is_full(&self) -> bool {
        self.streams.iter().any(|stream| stream.records.len() as u64 > BACKLOG_RECORDS_MAX)
    }

    /// Adds the request to the answers of a push that was applied and waits; returns whether there is such a push.
    pub(crate) fn join_pending(&mut self, client: u64, sequence: u64, request: u64) -> bool {
        let found = self.pending.iter_mut().find(|pending| pending.push == Some((client, sequence)));
        found.map(|pending| pending.requests.push(request)).is_some()
    }

    /// Appends a record, after the removals that it has seen.
    fn append(&mut self, stream: usize, record: &Arc<Record>, rows: &Rows, out: &mut Outbox) -> u64 {
        self.append_removals(stream, rows, out);
        self.append_record(stream, record, out)
    }

    fn append_record(&mut self, stream: usize, record: &Arc<Record>, out: &mut Outbox) -> u64 {
        self.streams[stream].records.push_back(Arc::clone(record));
        let first = self.streams[stream].last();
        for session in &mut self.sessions {
            session.export.note(record);
            if !session.has_begun {
                continue;
            }
            let records = vec![session.export.part_of(record)];
            out.push((session.member, session.number, Message::Records { stream, first, records }));
        }
        first
    }

    /// Appends the removals that the stream lacks.
    fn append_removals(&mut self, stream: usize, rows: &Rows, out: &mut Outbox) {
        for (&table, rows) in &rows.tables {
            let before = self.streams[stream].removals.get(&table).copied().unwrap_or(0);
            let Some(keys) = rows.removals_after(before, REMOVALS_MAX) else {
                // More than are kept since the last tick: all followers begin anew.
                self.streams[stream].removals.insert(table, rows.removals());
                self.sessions.iter_mut().for_each(|session| session.is_broken = true);
                continue;
            };
            if !keys.is_empty() {
                self.streams[stream].removals.insert(table, before + keys.len() as u64);
                self.append_record(stream, &Arc::new(Record::Removals { table, before, keys }), out);
            }
        }
    }

    /// Sends a push that was applied; the answer waits.
    pub(crate) fn send_push(
        &mut self,
        (request, stream): (u64, usize),
        record: Record,
        rows: &Rows,
        out: &mut Outbox,
    ) {
        let Record::Push(applied) = &record else { return };
        let (push, answer) =
            (Some((applied.push.client, applied.push.sequence)), Answer::Done(applied.outcome));
        let number = self.append(stream, &Arc::new(record), rows, out);
        self.pending.push(Pending { requests: vec![request], push, records: vec![(stream, number)], answer });
    }

    /// Sends a change that was applied. Learners begin anew where it may replace rows that they have yet to get.
    pub(crate) fn send_barrier(
        &mut self,
        (request, outcome): (u64, Outcome),
        operation: &Operation,
        in_sync: &[Member],
        rows: &Rows,
        out: &mut Outbox,
    ) {
        if !matches!(operation, Operation::Place(_)) {
            self.sessions.retain(|session| in_sync.contains(&session.member));
        }
        self.barrier += 1;
        let record = Arc::new(Record::Barrier { number: self.barrier, operation: operation.clone() });
        let records =
            (0..self.streams.len()).map(|stream| (stream, self.append(stream, &record, rows, out))).collect();
        if matches!(operation, Operation::Drop { .. } | Operation::Replace { .. }) {
            // A later table of the number counts from 0.
            let is_there = |table: &u32, _: &mut u64| rows.tables.contains_key(table);
            self.streams.iter_mut().for_each(|stream| stream.removals.retain(is_there));
        }
        let answer = Answer::Done(outcome);
        self.pending.push(Pending { requests: vec![request], push: None, records, answer });
    }

    /// Begins a session with a learner that has lost its session `lost`, or sends the beginning again.
    pub(crate) fn join(
        &mut self,
        (member, lost): (Member, u64),
        in_sync: &[Member],
        now: u64,
        rows: &Rows,
        dedup: &PushDedup,
        out: &mut Outbox,
    ) {
        if let Some(session) = self.sessions.iter_mut().find(|session| session.member == member) {
            session.is_broken |= lost == session.number;
            if !session.has_begun {
                out.push((member, session.number, session.begin.clone()));
            }
            return;
        }
        if in_sync.contains(&member) {
            return;
        }
        for stream in 0..self.streams.len() {
            self.append_removals(stream, rows, out);
        }
        let notes = &rows.notes;
        let tables = rows.tables.iter().map(|(&table, rows)| TableState {
            table,
            config: rows.config().clone(),
            note: notes.get(&table).cloned().unwrap_or_default(),
            removals: rows.removals(),
        });
        let marks =
            if rows.fault == Fault::MarksNotSent { PushDedup::default().copy() } else { dedup.copy() };
        let begin = Message::Begin {
            starts: self.streams.iter().map(|stream| stream.last() + 1).collect(),
            tables: tables.collect(),
            marks: Arc::new(marks),
            barrier: self.barrier,
            placement: rows.placement.clone(),
        };
        self.sessions_so_far += 1;
        let session = Session {
            number: self.sessions_so_far,
            member,
            begin: begin.clone(),
            has_begun: false,
            acked: self.streams.iter().map(Stream::last).collect(),
            resent: vec![0; self.streams.len()],
            joined_at: None,
            export: Export::of(rows),
            heard: now,
            is_ended: false,
            echo: 0,
            is_broken: false,
        };
        out.push((member, session.number, begin));
        self.sessions.push(session);
    }

    /// Takes what a follower has received; returns whether there is such a session.
    pub(crate) fn acknowledge(
        &mut self,
        (member, number): (Member, u64),
        message: &Message,
        now: u64,
        rows: &Rows,
        out: &mut Outbox,
    ) -> bool {
        let Message::Ack { received, part, echo, is_broken } = message else { return true };
        let is_session = |session: &&mut Session| session.number == number && session.member == member;
        let Some(session) = self.sessions.iter_mut().find(is_session) else { return false };
        (session.heard, session.is_ended) = (now, false);
        session.is_broken |= is_broken;
        session.has_begun = true;
        session.echo = session.echo.max(*echo);
        for ((acked, received), stream) in session.acked.iter_mut().zip(received).zip(&self.streams) {
            *acked = (*acked).max(*received).min(stream.last());
        }
        // A follower that lacks records takes no later ones: the next of them follow at once, not with the next heartbeat.
        for (at, stream) in self.streams.iter().enumerate() {
            if session.resent[at] > 0 && session.acked[at] >= session.resent[at] {
                out.extend(session.resend(at, stream).map(|message| (member, number, message)));
            }
        }
        if session.export.take_part(*part, rows)
            && let Some(message) = &session.export.sent
        {
            out.push((member, number, message.clone()));
        }
        true
    }

    /// Lets pushes wait for learners that have all rows and nearly all records, and no longer for silent ones.
    fn join_learners(&mut self, now: u64) {
        let lasts: Vec<u64> = self.streams.iter().map(Stream::last).collect();
        for session in &mut self.sessions {
            let is_close =
                lasts.iter().zip(&session.acked).all(|(last, acked)| last - acked < RESENT_RECORDS as u64);
            if session.is_broken || session.is_silent(now, JOIN_WITHIN) {
                session.joined_at = None;
            } else if session.joined_at.is_none() && session.export.is_done && is_close {
                session.joined_at = Some(lasts.clone());
            }
        }
    }

    /// Members that pushes wait for although they are not in sync yet.
    pub(crate) fn joining(&self) -> impl Iterator<Item = &Member> {
        self.sessions.iter().filter(|session| session.joined_at.is_some()).map(|session| &session.member)
    }

    /// Returns whether the follower has all rows, and every push that was acknowledged without it.
    fn is_complete(&self, session: &Session, fault: Fault) -> bool {
        let has = |at: &Vec<u64>| session.acked.iter().zip(at).all(|(acked, at)| acked >= at);
        session.joined_at.as_ref().is_some_and(|at| has(at) || fault == Fault::AddedTooEarly)
    }

    /// Followers that may be in sync: those that are, without the silent and the broken ones, and complete learners.
    ///
    /// A member that is silent, but not known to be replaced or broken, stays while the group needs it.
    pub(crate) fn wanted(&self, in_sync: &[Member], needed: usize, now: u64, fault: Fault) -> Vec<Member> {
        let session = |member: &Member| self.sessions.iter().find(|session| session.member == *member);
        let is_fine = |session: &Session| !session.is_broken && !session.is_silent(now, DROP_AFTER);
        let learners = self.sessions.iter().filter(|session| {
            is_fine(session) && self.is_complete(session, fault) && !in_sync.contains(&session.member)
        });
        let mut wanted: Vec<Member> = learners.map(|session| session.member).collect();
        let (fine, silent): (Vec<Member>, Vec<Member>) =
            in_sync.iter().partition(|&member| session(member).is_some_and(is_fine));
        wanted.extend(fine);
        for member in silent {
            if wanted.len() < needed && session(&member).is_none_or(|session| !session.is_broken) {
                wanted.push(member);
            }
        }
        wanted.sort_unstable();
        wanted
    }

    /// Returns whether every one of these followers has heard of this primary lately.
    pub(crate) fn has_lease(&self, in_sync: &[Member], now: u64) -> bool {
        now < self.lease_until(in_sync)
    }

    /// The first tick at which one of these followers may not have heard of this primary lately.
    pub(crate) fn lease_until(&self, in_sync: &[Member]) -> u64 {
        let until = in_sync.iter().map(|member| {
            let session = self.sessions.iter().find(|session| session.member == *member);
            session.map_or(0, |session| session.echo + LEASE)
        });
        until.min().unwrap_or(u64::MAX)
    }

    /// Records that one of these followers has not acknowledged.
    pub(crate) fn backlog(&self, in_sync: &[Member]) -> u64 {
        let sessions = self.sessions.iter().filter(|session| in_sync.contains(&session.member));
        let missing = sessions.map(|session| {
            self.streams.iter().zip(&session.acked).map(|(stream, acked)| stream.last() - acked).sum()
        });
        missing.max().unwrap_or(0)
    }

    /// Notes that a follower's process has ended.
    pub(crate) fn take_end(&mut self, member: Member) {
        for session in self.sessions.iter_mut().filter(|session| session.member == member) {
            session.is_ended = true;
        }
    }

    /// A follower to which a hand-over loses nothing: in sync, and with every record. Of several, the one that was told.
    pub(crate) fn heir(&self, in_sync: &[Member], told: Option<Member>) -> Option<(Member, u64)> {
        let has_all = |session: &&Session| {
            in_sync.contains(&session.member)
                && told.is_none_or(|told| told == session.member)
                && !session.is_broken
                && self.streams.iter().zip(&session.acked).all(|(stream, &acked)| stream.last() == acked)
        };
        self.sessions.iter().find(has_all).map(|session| (session.member, session.number))
    }

    /// Takes the answers whose records all these followers have.
    pub(crate) fn answers(&mut self, in_sync: &[Member], fault: Fault) -> Vec<(u64, Answer)> {
        let sessions: Vec<Option<&Session>> = in_sync
            .iter()
            .map(|member| self.sessions.iter().find(|session| session.member == *member))
            .collect();
        let has = |session: &Option<&Session>, pending: &Pending| {
            session.is_some_and(|session| {
                pending.records.iter().all(|&(stream, number)| session.acked[stream] >= number)
            })
        };
        let mut answers = Vec::new();
        self.pending.retain(|pending| {
            let is_done = fault == Fault::AcknowledgeBeforeBackup
                || sessions.iter().all(|session| has(session, pending));
            if is_done {
                answers.extend(pending.requests.iter().map(|&request| (request, pending.answer.clone())));
            }
            !is_done
        });
        answers
    }

    /// Requests whose answers this primary will never know.
    pub(crate) fn give_up(self) -> impl Iterator<Item = u64> {
        self.pending.into_iter().flat_map(|pending| pending.requests)
    }

    /// Sends heartbeats, what was not acknowledged, and removals on idle streams; drops what all followers have.
    pub(crate) fn tick(&mut self, in_sync: &[Member], now: u64, rows: &Rows, out: &mut Outbox) {
        self.sessions.retain(|session| {
            in_sync.contains(&session.member) || (!session.is_broken && !session.is_silent(now, DROP_AFTER))
        });
        self.join_learners(now);
        if !now.is_multiple_of(HEARTBEAT) {
            return;
        }
        for stream in 0..self.streams.len() {
            self.append_removals(stream, rows, out);
        }
        for (&number, table) in &rows.tables {
            let passed = self.streams.iter().map(|stream| stream.removals.get(&number).copied().unwrap_or(0));
            table.forget_removals(passed.min().unwrap_or(0));
        }
        for session in &mut self.sessions {
            let (member, number) = (session.member, session.number);
            let mut send = |message: Message| out.push((member, number, message));
            send(Message::Heartbeat { sent: now });
            if !session.has_begun {
                send(session.begin.clone());
                continue;
            }
            session.export.sent.iter().cloned().for_each(&mut send);
            for (at, stream) in self.streams.iter().enumerate() {
                session.resend(at, stream).into_iter().for_each(&mut send);
            }
        }
        for (at, stream) in self.streams.iter_mut().enumerate() {
            let acked = self.sessions.iter().map(|session| session.acked[at]).min().unwrap_or(u64::MAX);
            while stream.before < acked && stream.records.pop_front().is_some() {
                stream.before += 1;
            }
        }
    }
}

impl Session {
    /// Whether this acknowledgement of a part begins another slice of the export.
    pub(crate) fn begins_slice(&self, part: u64) -> bool {
        self.export.begins_slice(part)
    }

    fn is_silent(&self, now: u64, within: u64) -> bool {
        self.is_ended || now - self.heard >= within
    }

    /// The first records of a stream that the follower has not acknowledged.
    fn resend(&mut self, at: usize, stream: &Stream) -> Option<Message> {
        let acked = self.acked[at];
        let skipped = (acked - stream.before) as usize;
        let records = stream.records.iter().skip(skipped).take(RESENT_RECORDS);
        let records: Vec<_> = records.map(|record| self.export.part_of(record)).collect();
        self.resent[at] = if records.is_empty() { 0 } else { acked + records.len() as u64 };
        (!records.is_empty()).then_some(Message::Records { stream: at, first: acked + 1, records })
    }
}
