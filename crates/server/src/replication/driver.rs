//! The thread of replication: it alone steps the machine, and answers what waits for the followers.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel};
use std::time::{Duration, Instant};

use sanderling_observe::SpanContext;
use sanderling_replica::push_dedup::Outcome;
use sanderling_replica::{
    Action, Answer, AppliedPush, Envelope, Event as ReplicaEvent, Group, Member, Node, Revised, Standing,
    Told,
};
use sanderling_store::RowColumns;
use sanderling_wire::{Fault, Home};

use super::codec::Outgoing;
use super::peers::{PeerOptions, Peers};
use super::restore::{RestoreChange, RestoreResult};
use super::traced::{TracedPushes, replica_span};
use super::{GroupRecord, GroupRecords, GroupStatus, MoveChange, Replication};
use crate::background::QueuedJob;
use crate::event::{Event, Log};
use crate::limit::TICK;
use crate::placement::Slots;
use crate::refusal::{Refusal, SendReply};
use crate::state::State;
use crate::tables::{Entry, TableNote};

mod changes;
mod restores;
mod versions;
use versions::Versions;

/// Inputs that are taken before the next look at the time.
const INPUTS_MAX: usize = 256;
/// Ticks that are made up for after a pause.
const TICKS_MAX: u64 = 20;
/// Of a table's number, the low bits that count the tables of an epoch.
const NUMBER_BITS: u32 = 16;

/// A message to the thread.
pub(crate) enum Input {
    /// A worker has applied a push.
    Applied { request: u64, stream: usize, epoch: u64, applied: Box<AppliedPush>, span: Option<SpanContext> },
    /// A push came again.
    Repeated { request: u64, client: u64, sequence: u64, outcome: Outcome },
    /// The reply to a push.
    Held { request: u64, reply: SendReply },
    /// A request that changes tables.
    Job(Box<QueuedJob>),
    /// A message of another replica.
    Message { envelope: Box<Envelope>, url: String, version: u8, spans: Vec<SpanContext>, came: Instant },
    /// A server does not read the messages of another one.
    Unread { reason: String },
    /// The registry's record.
    Record(u64, Option<GroupRecord>),
    /// A change for a move of slots, in this epoch.
    Move { epoch: u64, change: MoveChange, told: SyncSender<Told> },
    /// A change of a restore, in this epoch.
    Restore { epoch: u64, change: RestoreChange, told: SyncSender<RestoreResult> },
    /// This server is to pass its role on.
    HandOver,
    /// A process has ended.
    Ended(Member),
    /// The server ends.
    End,
}

/// A change of tables that all replicas make.
#[derive(Debug)]
pub(crate) enum Change {
    Create { name: String, home: Home, config: String },
    Drop { name: String },
    Import { table: u32, rows: Arc<RowColumns> },
    Delete { table: u32, keys: Vec<u64> },
}

/// The outcome of a change, for its reply.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Made {
    Created(u32),
    Dropped,
    Imported(u64),
    Deleted(u64),
}

/// An answer and who waits for it.
enum Waiting {
    Reply(SendReply),
    Job(Box<QueuedJob>, Made),
    Move(SyncSender<Told>),
    Restore(SyncSender<RestoreResult>, u32),
    /// The answer came before the way for it.
    Answered(Answer),
}

/// A question to the registry.
enum Ask {
    Read,
    Set(u64, GroupRecord),
}

/// The machine with everything around it.
pub(crate) struct Driver {
    state: Arc<State>,
    shared: Arc<Replication>,
    node: Node,
    inputs: Receiver<Input>,
    /// Inputs that came while the workers were stopped.
    deferred: VecDeque<Input>,
    asks: Sender<Ask>,
    peers: Peers,
    me: Member,
    url: String,
    min_in_sync: usize,
    pull_staleness: Duration,
    start: Instant,
    tick: u64,
    waiting: HashMap<u64, Waiting>,
    traced: TracedPushes,
    /// Jobs so far, which give their requests numbers.
    jobs: u64,
    record: Option<GroupRecord>,
    /// Addresses of other replicas, as their messages say.
    urls: BTreeMap<u32, String>,
    /// The list of tables that workers see.
    listed: u64,
    /// Tables that this server has created in an epoch.
    created: (u64, u32),
    /// The last epoch in which it took changes.
    led: u64,
    standing: Standing,
    versions: Versions,
    log: Log,
}

/// The surroundings of the machine.
pub(crate) struct Around {
    pub(crate) state: Arc<State>,
    pub(crate) shared: Arc<Replication>,
    pub(crate) inputs: Receiver<Input>,
    pub(crate) me: Member,
    pub(crate) min_in_sync: usize,
    pub(crate) pull_staleness: Duration,
    pub(crate) peers: PeerOptions,
    pub(crate) log: Log,
}

impl Driver {
    /// Begins with a machine without rows, and a thread that asks the registry.
    pub(crate) fn new(
        node: Node,
        around: Around,
        registry: Box<dyn GroupRecords>,
    ) -> std::io::Result<Driver> {
        let Around { state, shared, inputs, me, min_in_sync, pull_staleness, peers, log } = around;
        let (asks, asked) = channel();
        let told = shared.inputs.clone();
        std::thread::Builder::new()
            .name("registry".to_owned())
            .spawn(move || ask(registry, &asked, &told))?;
        Ok(Driver {
            state,
            node,
            inputs,
            deferred: VecDeque::new(),
            asks,
            url: peers.url.clone(),
            peers: Peers::new(peers, Arc::clone(&shared)),
            versions: Versions::new(shared.spoken),
            shared,
            me,
            min_in_sync,
            pull_staleness,
            start: Instant::now(),
            tick: 0,
            waiting: HashMap::new(),
            traced: TracedPushes::default(),
            jobs: 0,
            record: None,
            urls: BTreeMap::new(),
            listed: 0,
            created: (0, 0),
            led: 0,
            standing: Standing::Learner,
            log,
        })
    }

    /// How this server reaches others.
    pub(crate) fn peer_options(&self) -> PeerOptions {
        self.peers.options()
    }

    /// Runs until the server ends.
    pub(crate) fn run(mut self) {
        loop {
            let next = self.start + TICK * (self.tick + 1) as u32;
            let mut input = match self.deferred.pop_front() {
                Some(input) => Some(input),
                None => match self.inputs.recv_timeout(next.saturating_duration_since(Instant::now())) {
                    Ok(input) => Some(input),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return,
                },
            };
            self.pass_time();
            let mut taken = 0;
            while let Some(some) = input {
                if matches!(some, Input::End) {
                    return self.shared.close();
                }
                self.take(some);
                taken += 1;
                input = match taken < INPUTS_MAX {
                    true => self.deferred.pop_front().or_else(|| self.inputs.try_recv().ok()),
                    false => None,
                };
            }
            self.publish();
        }
    }

    /// Ticks until the present.
    fn pass_time(&mut self) {
        let now = (self.start.elapsed().as_micros() / TICK.as_micros()) as u64;
        self.tick = self.tick.max(now.saturating_sub(TICKS_MAX));
        while self.tick < now {
            self.tick += 1;
            self.step(ReplicaEvent::Tick);
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Applied { request, stream, epoch, applied, span } => {
                self.traced.add(request, &applied.push, span);
                self.step(ReplicaEvent::Applied { request, stream, epoch, applied });
            }
            Input::Repeated { request, client, sequence, outcome } => {
                self.step(ReplicaEvent::Repeated { request, client, sequence, outcome });
            }
            Input::Held { request, reply } => match self.waiting.remove(&request) {
                Some(Waiting::Answered(answer)) => self.reply(reply, &answer),
                _ => _ = self.waiting.insert(request, Waiting::Reply(reply)),
            },
            Input::Job(job) => self.change(job),
            Input::Unread { reason } => self.report_version(reason),
            Input::Message { envelope, url, version, spans, came } => {
                self.shared.waiting.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
                if !self.reads(envelope.from, version) {
                    return;
                }
                self.urls.insert(envelope.from.server, url);
                // The tables and marks that a session begins with must have all pushes of the records before.
                if self.node.begins_session(&envelope) {
                    self.stop_workers();
                    self.state.batches.clear();
                }
                let from = envelope.from.server;
                self.step(ReplicaEvent::Message(envelope));
                if let Some(queue) = self.state.traces.spans() {
                    queue.add(spans.into_iter().map(|span| replica_span(span, came, self.me.server, from)));
                }
            }
            Input::Record(revision, record) => {
                if revision > self.node.known().revision {
                    self.stop_workers();
                    self.record.clone_from(&record);
                    let group = record.map(|record| record.group);
                    self.step(ReplicaEvent::Registry(Revised { revision, group }));
                }
            }
            Input::HandOver => {
                self.stop_workers();
                self.step(ReplicaEvent::HandOver);
            }
            Input::Move { epoch, change, told } => self.change_for_move(epoch, change, told),
            Input::Restore { epoch, change, told } => self.change_for_restore(epoch, change, told),
            Input::Ended(member) => self.step(ReplicaEvent::Ended(member)),
            Input::End => {}
        }
    }

    /// Stops the workers between two pushes, and takes the pushes that they have applied.
    fn stop_workers(&mut self) {
        self.shared.close();
        while let Ok(input) = self.inputs.try_recv() {
            match input {
                Input::Applied { .. } | Input::Repeated { .. } | Input::Held { .. } => self.take(input),
                other => self.deferred.push_back(other),
            }
        }
    }

    fn step(&mut self, event: ReplicaEvent) {
        for action in self.node.step(self.tick, event) {
            match action {
                Action::Read => _ = self.asks.send(Ask::Read),
                Action::CompareAndSet { revision, group } => {
                    let urls = self.urls_of(&group);
                    let _ = self.asks.send(Ask::Set(revision, GroupRecord { group, urls }));
                }
                Action::Send { to, envelope } => {
                    let known = self.urls.get(&to.server);
                    let url = known.or_else(|| self.record.as_ref()?.urls.get(&to.server));
                    if let Some(url) = url {
                        let version = self.versions.of(to);
                        let spans = self.traced.spans();
                        self.peers.send(to, url, Outgoing { envelope, version, spans });
                    }
                }
                Action::Answer { request, answer } => match self.answered(request) {
                    Some(Waiting::Reply(reply)) => self.reply(reply, &answer),
                    Some(Waiting::Job(job, made)) => self.reply_to_job(*job, made, &answer),
                    Some(Waiting::Restore(told, table)) => self.reply_to_restore(&told, table, &answer),
                    Some(Waiting::Move(told)) => {
                        let result = match answer {
                            Answer::Done(outcome) => Told::Made(outcome),
                            _ => Told::Failed,
                        };
                        let _ = told.send(result);
                    }
                    _ if self.shared.waits(request) => {
                        self.waiting.insert(request, Waiting::Answered(answer));
                    }
                    _ => {}
                },
            }
        }
    }

    /// Takes the caller that waits for the answer to a request.
    fn answered(&mut self, request: u64) -> Option<Waiting> {
        self.traced.end(request);
        self.waiting.remove(&request)
    }

    /// The addresses of a group's members.
    fn urls_of(&self, group: &Group) -> BTreeMap<u32, String> {
        let members = std::iter::once(&group.primary).chain(&group.in_sync);
        let url = |member: &Member| match member.server == self.me.server {
            true => Some(self.url.clone()),
            false => {
                let known = self.urls.get(&member.server);
                known.or_else(|| self.record.as_ref()?.urls.get(&member.server)).cloned()
            }
        };
        members.filter_map(|member| Some((member.server, url(member)?))).collect()
    }

    /// Shows the workers the tables, and whether they may push and pull.
    fn publish(&mut self) {
        self.refresh();
        let epoch = match self.standing {
            Standing::Primary { epoch, is_open: true } => epoch,
            _ => 0,
        };
        if epoch != 0 && self.led != epoch {
            self.led = epoch;
            self.drop_unfinished();
        }
        let until = self.node.lease_until();
        let at = self.start + TICK * u32::try_from(until).unwrap_or(u32::MAX);
        self.shared.open(epoch, (until != u64::MAX).then_some(at));
        let heard = self.node.heard_primary().map(|heard| TICK * u32::try_from(heard).unwrap_or(u32::MAX));
        self.shared.answer_as_follower(heard.map(|heard| self.start + heard + self.pull_staleness));
        self.shared.set_status(self.status());
    }

    /// Shows the workers the tables, and the operator a change of the role.
    fn refresh(&mut self) {
        let (listed, _) = self.node.tables();
        if listed != self.listed {
            self.listed = listed;
            self.list_tables();
        }
        let standing = self.node.standing();
        if standing != self.standing {
            let (role, epoch) = (role(standing), self.node.epoch());
            if role != self::role(self.standing) {
                let group = self.state.placement.shard;
                self.log.report(Event::Role { group, role, epoch });
            }
            self.standing = standing;
        }
    }

    fn status(&self) -> GroupStatus {
        let known = self.node.known();
        GroupStatus {
            group: self.state.placement.shard.into(),
            server: self.me.server,
            role: role(self.standing),
            is_primary: matches!(self.standing, Standing::Primary { .. }),
            epoch: self.node.epoch(),
            history: known.group.as_ref().map_or(0, |group| group.history),
            version: known.revision,
            replicas: GroupStatus::replicas_of(self.record.as_ref()),
            min_in_sync: self.min_in_sync,
            backlog: self.node.backlog(),
            waiting: self.node.waiting() as u64,
        }
    }

    fn note_of(&self, table: u32) -> Option<TableNote> {
        serde_json::from_str(self.node.note(table)?).ok()
    }

    /// Replaces the workers' list of tables by that of the machine.
    fn list_tables(&self) {
        let before = self.state.tables.directory();
        let (_, tables) = self.node.tables();
        let entry = |(&number, table): (&u32, &Arc<sanderling_store::Table>)| {
            let known = before.entries.iter().find(|entry| entry.number == number);
            if let Some(entry) = known.filter(|entry| Arc::ptr_eq(&entry.table, table)) {
                return Some(Arc::clone(entry));
            }
            let note = self.note_of(number)?;
            if note.restoring {
                return None;
            }
            Some(Arc::new(Entry::of_note(number, note, Arc::clone(table), &self.state.tables)))
        };
        let group = self.state.placement.shard;
        let slots = self.node.placement().map(|record| Arc::new(Slots::new(record, group)));
        if let (Some(checkpoints), Some(part)) =
            (&self.state.checkpoints, slots.as_ref().and_then(|slots| slots.part()))
        {
            checkpoints.set_part(part);
        }
        self.state.tables.list(tables.iter().filter_map(entry).collect(), slots);
        self.state.refresh_workers();
    }

    fn reply(&self, reply: SendReply, answer: &Answer) {
        reply(self.refusal(answer).as_ref());
    }

    fn reply_to_job(&mut self, job: QueuedJob, made: Made, answer: &Answer) {
        // A reply to a creation tells about the table.
        self.refresh();
        let QueuedJob { job, reply } = job;
        let frame = match self.refusal(answer) {
            Some(refusal) => job.refused(&refusal),
            None => job.made(&self.state, made),
        };
        reply(frame, job.since.elapsed());
    }

    /// The refusal of a request with this answer.
    fn refusal(&self, answer: &Answer) -> Option<Refusal> {
        match answer {
            Answer::Done(_) | Answer::Rows { .. } => None,
            Answer::Elsewhere { version } => {
                let fault = Fault::NotHere { placement_version: *version };
                Some(Refusal::new(fault, "the keys are in another group"))
            }
            Answer::NotHere => {
                let version = self.node.known().revision;
                let reason = "another replica has become the primary; its answer counts";
                Some(Refusal::new(Fault::NotPrimary { version }, reason))
            }
            Answer::Busy => Some(self.shared.not_taking()),
            Answer::Stale | Answer::Refused => {
                Some(Refusal::bad("the replicas cannot make this change: see the log of the primary"))
            }
        }
    }
}

/// The role in words.
fn role(standing: Standing) -> &'static str {
    match standing {
        Standing::Learner => "learner",
        Standing::Following => "catching up",
        Standing::InSync => "in sync",
        Standing::Primary { .. } => "primary",
    }
}

/// Asks the registry, one question after the other. An answer that is lost is asked for again by the machine.
fn ask(mut registry: Box<dyn GroupRecords>, asked: &Receiver<Ask>, told: &Sender<Input>) {
    while let Ok(mut ask) = asked.recv() {
        // While the registry was slow, the machine has asked again.
        while let Ok(later) = asked.try_recv() {
            ask = later;
        }
        let record = match &ask {
            Ask::Read => registry.read(),
            Ask::Set(revision, record) => registry.compare_and_set(*revision, record),
        };
        if let Ok((revision, record)) = record
            && told.send(Input::Record(revision, record)).is_err()
        {
            return;
        }
    }
}
