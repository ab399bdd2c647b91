//! A server as a replica of its group: what workers ask of it for each request, without a lock.
//!
//! Workers of the primary apply pushes as those of a single server do. They hand each push, with the versions of its
//! rows, to the thread of [`driver`], which sends it to the followers and answers when they have it. That thread alone
//! knows the machine of the crate `replica`.

mod codec;
mod driver;
mod moves;
mod peers;
mod records;
mod restore;
mod traced;
mod transfer;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use sanderling_observe::SpanContext;
use sanderling_replica::push_dedup::Outcome;
use sanderling_replica::{AppliedPush, Member, Progress};
use sanderling_wire::{Fault, Kind, Replicate};

pub(crate) use codec::record_bytes;
pub(crate) use driver::{Around, Change, Driver, Input, Made};
pub use moves::PlacementRecords;
pub(crate) use moves::{MoveChange, MoveThread};
pub(crate) use peers::PeerOptions;
pub use records::{GroupRecord, GroupRecords, GroupStatus, MemoryRecords, ReplicaStatus};
pub(crate) use restore::restore;
pub(crate) use transfer::answer_to;

use crate::limit::PEER_MESSAGES_MAX;
use crate::refusal::{Refusal, SendReply};

/// Numbers of requests below are those of workers, those of steps are up to the next one.
const FIRST_STEP: u64 = u64::MAX / 4;

/// The part that the workers and the thread of replication share.
#[derive(Debug)]
pub(crate) struct Replication {
    started: Instant,
    /// The epoch whose pushes are taken; 0: none are.
    epoch: AtomicU64,
    /// That epoch, also while workers are stopped between two pushes.
    leads: AtomicU64,
    /// Until when pulls are answered, in microseconds since the start.
    lease_until_us: AtomicU64,
    /// Until when a follower answers pulls of clients that pull from any, in microseconds since the start; 0: it does not.
    fresh_until_us: AtomicU64,
    history: AtomicU64,
    /// Per worker, whether it applies a push.
    busy: Box<[Busy]>,
    inputs: Sender<Input>,
    /// Parts of steps so far.
    steps: AtomicU64,
    /// Whether replies to pushes do not wait for the followers.
    acknowledges_local: bool,
    /// Messages of other replicas that wait.
    waiting: AtomicUsize,
    status: Mutex<GroupStatus>,
    /// The epoch and the version of the placement that all replicas in sync have applied in it, and the move under way.
    placed: Mutex<((u64, u64), Progress)>,
    /// How often a checkpoint has replaced the tables.
    replaced: AtomicU64,
}

/// A worker's flag, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Busy(AtomicBool);

/// A worker's permission to apply pushes of an epoch. The role does not change before it is dropped.
pub(crate) struct Entered<'a> {
    busy: &'a AtomicBool,
    pub(crate) epoch: u64,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.busy.store(false, Ordering::Release);
    }
}

impl Replication {
    pub(crate) fn new(workers: usize, inputs: Sender<Input>, acknowledges_local: bool) -> Replication {
        Replication {
            started: Instant::now(),
            epoch: AtomicU64::new(0),
            leads: AtomicU64::new(0),
            lease_until_us: AtomicU64::new(0),
            fresh_until_us: AtomicU64::new(0),
            history: AtomicU64::new(0),
            busy: (0..workers).map(|_| Busy::default()).collect(),
            inputs,
            steps: AtomicU64::new(0),
            acknowledges_local,
            waiting: AtomicUsize::new(0),
            status: Mutex::default(),
            placed: Mutex::default(),
            replaced: AtomicU64::new(0),
        }
    }

    /// Number of workers.
    pub(crate) fn workers(&self) -> usize {
        self.busy.len()
    }

    /// Lets a worker apply a push, if this server is the primary.
    pub(crate) fn enter(&self, worker: usize) -> Result<Entered<'_>, Refusal> {
        let busy = &self.busy[worker].0;
        // Either this thread sees the epoch's end, or whoever ends it sees that this thread is busy.
        busy.store(true, Ordering::SeqCst);
        let entered = Entered { busy, epoch: self.epoch.load(Ordering::SeqCst) };
        if entered.epoch == 0 { Err(self.not_taking()) } else { Ok(entered) }
    }

    /// Ends the epoch for workers, and waits until none of them applies a push.
    fn close(&self) {
        self.epoch.store(0, Ordering::SeqCst);
        for busy in &self.busy {
            while busy.0.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
    }

    /// Lets workers apply pushes of this epoch, or none if it is 0; pulls are answered for some time.
    fn open(&self, epoch: u64, lease_until: Option<Instant>) {
        self.lease_until_us.store(lease_until.map_or(u64::MAX, |at| self.us(at)), Ordering::Release);
        self.leads.store(epoch, Ordering::Release);
        self.epoch.store(epoch, Ordering::SeqCst);
    }

    /// Lets workers answer pulls of a follower until then, or none.
    fn answer_as_follower(&self, until: Option<Instant>) {
        self.fresh_until_us.store(until.map_or(0, |at| self.us(at)), Ordering::Release);
    }

    fn us(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.started).as_micros() as u64
    }

    /// The epoch in which this server takes changes; 0: it does not.
    fn epoch(&self) -> u64 {
        self.leads.load(Ordering::Acquire)
    }

    /// The epoch in which this server takes changes, and the version of the placement that all replicas in sync have
    /// applied in it.
    fn placed(&self) -> (u64, u64) {
        let (known, epoch) = (self.placed.lock().unwrap_or_else(PoisonError::into_inner).0, self.epoch());
        (epoch, if known.0 == epoch { known.1 } else { 0 })
    }

    /// The move that this group receives.
    pub(crate) fn progress(&self) -> Progress {
        self.placed.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    fn set_placed(&self, placed: (u64, u64), progress: Progress) {
        *self.placed.lock().unwrap_or_else(PoisonError::into_inner) = (placed, progress);
    }

    /// Notes that other tables take the names of those that there are.
    fn note_replaced(&self) {
        self.replaced.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells the streams of a table from those of its namesake in another epoch, or after a restore.
    fn source(&self, epoch: u64) -> u64 {
        epoch | self.replaced.load(Ordering::Relaxed) << 40
    }

    fn has_lease(&self, now: Instant) -> bool {
        self.us(now) < self.lease_until_us.load(Ordering::Acquire)
    }

    fn is_fresh(&self, now: Instant) -> bool {
        self.us(now) < self.fresh_until_us.load(Ordering::Acquire)
    }

    /// Whether replies to such a request wait for the followers.
    pub(crate) fn holds(&self, kind: Kind) -> bool {
        matches!(kind, Kind::Push | Kind::PushFed) && !self.acknowledges_local
    }

    /// Refuses requests that this server cannot answer as the replica that it is. `from_any`: a follower may answer pulls.
    pub(crate) fn check(&self, kind: Kind, now: Instant, from_any: bool) -> Result<(), Refusal> {
        match kind {
            Kind::Pull | Kind::PullPooled if from_any && self.is_fresh(now) => Ok(()),
            Kind::Pull
            | Kind::PullPooled
            | Kind::Feed
            | Kind::PullFed
            | Kind::Export
            | Kind::Changes
            | Kind::Open
            | Kind::Tables
            | Kind::Save
            | Kind::SaveAs
            | Kind::Restore
            | Kind::PushStep
            | Kind::WaitStep
            | Kind::Meet => match self.has_lease(now) {
                true => Ok(()),
                false => Err(self.not_taking()),
            },
            _ => Ok(()),
        }
    }

    /// The refusal of a request that does not fit the tables here. Those of a primary that may have been replaced do not
    /// count: its successor may have a table that it does not know.
    pub(crate) fn refusal(&self, refusal: Refusal) -> Refusal {
        if self.has_lease(Instant::now()) { refusal } else { self.not_taking() }
    }

    /// Why this server takes no pushes.
    fn not_taking(&self) -> Refusal {
        let status = self.status();
        match status.primary_url() {
            _ if status.is_primary => Refusal::busy(format!(
                "this primary has {} of {} replicas in sync, hands over, or is cut off from them",
                status.in_sync(),
                status.min_in_sync
            )),
            Some(url) => {
                let reason = format!("the primary of group {} is at {url}", status.group);
                Refusal::new(Fault::NotPrimary { version: status.version }, reason)
            }
            None => Refusal::busy(format!("group {} has no primary yet", status.group)),
        }
    }

    /// Sends a push that was applied. Its reply follows by [`Replication::hold`].
    pub(crate) fn send(
        &self,
        request: u64,
        worker: usize,
        epoch: u64,
        applied: AppliedPush,
        span: Option<SpanContext>,
    ) {
        let applied = Box::new(applied);
        let _ = self.inputs.send(Input::Applied { request, stream: worker, epoch, applied, span });
    }

    /// Asks whether a push that was applied before is on all followers. The answer's way follows by
    /// [`Replication::hold`].
    pub(crate) fn ask(&self, request: u64, (client, sequence): (u64, u64), outcome: Outcome) {
        let _ = self.inputs.send(Input::Repeated { request, client, sequence, outcome });
    }

    /// Whether a reply with this number waits for an answer.
    fn waits(&self, request: u64) -> bool {
        !self.acknowledges_local || request > FIRST_STEP
    }

    /// A number for the next part of a step.
    pub(crate) fn next_step(&self) -> u64 {
        FIRST_STEP + 1 + self.steps.fetch_add(1, Ordering::Relaxed)
    }

    /// Keeps a reply until the followers have its push.
    pub(crate) fn hold(&self, request: u64, reply: SendReply) {
        let _ = self.inputs.send(Input::Held { request, reply });
    }

    /// Takes a message of another replica. One that finds no room is sent again.
    pub(crate) fn take(&self, replicate: &Replicate<'_>) -> Result<(), Refusal> {
        let (envelope, spans) = codec::decode(replicate.envelope)
            .map_err(|reason| Refusal::bad(format!("a message between replicas: {reason}")))?;
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= PEER_MESSAGES_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Ok(());
        }
        let (envelope, url, came) = (Box::new(envelope), replicate.url.to_owned(), Instant::now());
        let _ = self.inputs.send(Input::Message { envelope, url, spans, came });
        Ok(())
    }

    /// Passes the role of the primary on. Its end shows in [`Replication::status`].
    pub(crate) fn hand_over(&self) {
        let _ = self.inputs.send(Input::HandOver);
    }

    /// The history of the group's tables; 0 before this server knows it.
    pub(crate) fn history(&self) -> u64 {
        self.history.load(Ordering::Relaxed)
    }

    /// The group, as this server knows it.
    pub(crate) fn status(&self) -> GroupStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_status(&self, status: GroupStatus) {
        self.history.store(status.history, Ordering::Relaxed);
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    /// Reports that a process has ended.
    fn note_end(&self, member: Member) {
        let _ = self.inputs.send(Input::Ended(member));
    }
}
