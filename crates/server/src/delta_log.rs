//! The delta log of a server: changes since the last checkpoint, written in groups by a thread of its own.
//!
//! Pushes of at most `lose` are not on disk yet. With `lose` 0, replies wait until a group has their changes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sanderling_observe::LatencySummary;
use sanderling_replica::push_dedup::PushDedup;
use sanderling_store::{LogEnd, LogReader, StoreError};
use sanderling_wire::Kind;
use serde::{Deserialize, Serialize};

mod groups;
mod measured;
mod replay;

use crate::event::Log;
use crate::limit::LOG_RETRY;
use crate::refusal::{Refusal, SendReply};
use crate::tables::Tables;
use groups::Groups;
use measured::{Measured, WrittenGroup};
pub(crate) use replay::{Followed, replay};

/// How often a log without waiting replies is written, at least.
const IDLE: Duration = Duration::from_secs(1);

/// The log of a server.
#[derive(Debug)]
pub(crate) struct DeltaLog {
    folder: PathBuf,
    lose: Duration,
    groups: Mutex<Groups>,
    /// Set while the last group failed.
    has_failed: AtomicBool,
    failure: Mutex<Option<Refusal>>,
    /// Groups that were written.
    successes: AtomicU64,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    /// Replies that are not sent yet.
    held: AtomicU64,
    measured: Mutex<Measured>,
}

#[derive(Default)]
struct Inbox {
    /// Replies that wait for a group with their changes.
    waiting: Vec<SendReply>,
    is_ending: bool,
}

/// The place of a checkpoint in a log, as the checkpoint has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogPosition {
    /// The folder, for messages.
    pub(crate) folder: PathBuf,
    /// The number that names the log.
    pub(crate) id: u64,
    /// The changes after the checkpoint are in this segment and later ones.
    pub(crate) segment: u64,
    /// The rows are of several moments up to this group, so it must be there. 0: none is needed.
    pub(crate) through: u64,
    /// The server ended with this checkpoint. Segments are there only if a later server wrote them.
    pub(crate) ended: bool,
    /// The tables of the checkpoint by their numbers in the log.
    pub(crate) tables: Vec<(String, u32)>,
}

/// The state of a log when a save begins.
#[derive(Debug)]
pub(crate) struct Base {
    segment: u64,
    /// Numbers in the log of the tables, by their numbers in the server.
    numbers: HashMap<u32, u32>,
    had_failed: bool,
    successes: u64,
}

/// A save that is about to be committed. The log waits meanwhile.
#[derive(Debug)]
pub(crate) struct Sealed<'a> {
    groups: MutexGuard<'a, Groups>,
    pub(crate) position: LogPosition,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Inbox").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeltaLog {
    /// The log in a folder, without a checkpoint to follow yet.
    pub(crate) fn new(folder: PathBuf, lose: Duration) -> DeltaLog {
        // Checkpoints name it, and the next server may start elsewhere.
        let folder = std::path::absolute(&folder).unwrap_or(folder);
        DeltaLog {
            groups: Mutex::new(Groups::new(folder.clone())),
            folder,
            lose,
            has_failed: AtomicBool::new(false),
            failure: Mutex::default(),
            successes: AtomicU64::new(0),
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            held: AtomicU64::new(0),
            measured: Mutex::new(Measured::new()),
        }
    }

    /// Goes on after a replay, with the tables of the server as they are now.
    pub(crate) fn go_on(&self, tables: &Tables, end: &LogEnd, followed: &Followed) -> Result<(), StoreError> {
        lock(&self.groups).go_on(&tables.directory(), end, followed)
    }

    /// Whether there is no checkpoint for the log to follow.
    pub(crate) fn has_no_base(&self) -> bool {
        !lock(&self.groups).has_base
    }

    /// Begins another log, because all tables are replaced. Nothing is logged until the next checkpoint.
    pub(crate) fn lose_base(&self) {
        lock(&self.groups).lose_base();
        self.arrived.notify_all();
    }

    /// Whether the reply to such a request waits until its changes are on disk.
    pub(crate) fn holds(&self, kind: Kind) -> bool {
        self.lose.is_zero() && changes_tables(kind)
    }

    /// The refusal of requests that change tables, while the log cannot be written.
    pub(crate) fn refusal(&self, kind: Kind) -> Option<Refusal> {
        if !self.has_failed.load(Ordering::Relaxed) || !changes_tables(kind) {
            return None;
        }
        lock(&self.failure).clone()
    }

    /// Sends a reply when the changes so far are on disk, or a refusal in its place.
    pub(crate) fn hold(&self, reply: SendReply) {
        self.held.fetch_add(1, Ordering::Relaxed);
        lock(&self.inbox).waiting.push(reply);
        self.arrived.notify_all();
    }

    /// Ends the thread of the log, once it has answered all that wait.
    pub(crate) fn end(&self) {
        lock(&self.inbox).is_ending = true;
        self.arrived.notify_all();
    }

    /// Notes that a save of the checkpoint begins, before it reads rows.
    pub(crate) fn begin_base(&self, tables: &Tables) -> Result<Base, StoreError> {
        let mut groups = lock(&self.groups);
        groups.follow_for_base(&tables.directory())?;
        Ok(Base {
            segment: groups.end_segment()?,
            numbers: groups.numbers(),
            had_failed: self.has_failed.load(Ordering::Relaxed),
            successes: self.successes.load(Ordering::Relaxed),
        })
    }

    /// Makes the log ready for the commit of a save: the changes beside it are on disk. `ended`: there are none after it.
    pub(crate) fn seal(
        &self,
        tables: &Tables,
        pushes: &PushDedup,
        saved: &[(u32, String)],
        base: &Base,
        ended: bool,
        log: Option<&Log>,
    ) -> Result<Sealed<'_>, Refusal> {
        let mut groups = lock(&self.groups);
        // Where no group could be written since before the save, all acknowledged pushes are in the rows that it read.
        let needs_none = base.had_failed && self.successes.load(Ordering::Relaxed) == base.successes;
        let (segment, through) = if ended || needs_none {
            (groups.end_segment()?, 0)
        } else {
            let written = groups.write(tables, pushes, true, log)?;
            self.count(written);
            (base.segment, groups.last_group())
        };
        let number = |(entry, name): &(u32, String)| Some((name.clone(), *base.numbers.get(entry)?));
        let position = LogPosition {
            folder: self.folder.clone(),
            id: groups.id(),
            segment,
            through,
            ended,
            tables: saved.iter().filter_map(number).collect(),
        };
        Ok(Sealed { groups, position })
    }

    /// Writes a group with the changes so far; if there are none, nothing.
    pub(crate) fn write(
        &self,
        tables: &Tables,
        pushes: &PushDedup,
        log: Option<&Log>,
    ) -> Result<(), StoreError> {
        let groups = &mut *lock(&self.groups);
        if groups.has_base {
            let written = groups.write(tables, pushes, false, log)?;
            self.count(written);
        }
        Ok(())
    }

    /// The time whose pushes may be lost.
    pub(crate) fn lose(&self) -> Duration {
        self.lose
    }

    fn count(&self, written: Option<WrittenGroup>) {
        self.successes.fetch_add(1, Ordering::Relaxed);
        if let Some(group) = written {
            lock(&self.measured).add(group);
        }
    }

    /// Notes that replies were sent.
    pub(crate) fn answered(&self, replies: usize) {
        self.held.fetch_sub(replies as u64, Ordering::Relaxed);
    }

    /// The log's counters, for a status.
    pub(crate) fn counters(&self, tables: &Tables) -> [(&'static str, u64); 5] {
        // A group is under way if another thread has them.
        let has_changes =
            self.groups.try_lock().map_or(true, |groups| groups.has_new_rows(&tables.directory()));
        let measured = lock(&self.measured);
        let unsynced = measured.synced.elapsed().as_millis() as u64;
        [
            ("log_groups", measured.groups),
            ("log_bytes", measured.bytes),
            ("log_waiting", self.held.load(Ordering::Relaxed)),
            ("log_refused_since_unix_ms", measured.refused_since_unix_ms),
            ("log_unsynced_ms", if has_changes { unsynced } else { 0 }),
        ]
    }

    /// The times of writing the ends of groups and syncing them.
    pub(crate) fn syncs(&self) -> LatencySummary {
        lock(&self.measured).sync.summary()
    }

    /// Notes whether the log can be written, after an attempt that began at `start`.
    pub(crate) fn note(&self, start: Instant, failure: Option<&Refusal>) {
        lock(&self.measured).note(start, failure.is_some());
        let failure = failure.map(|refusal| {
            let reason = format!("log: {}; changes are refused until it can be written", refusal.reason);
            Refusal::new(refusal.fault, reason)
        });
        self.has_failed.store(failure.is_some(), Ordering::Relaxed);
        *lock(&self.failure) = failure;
    }

    /// Waits until a group is due; takes the replies that wait for it.
    pub(crate) fn next(&self) -> (Vec<SendReply>, bool) {
        let has_failed = self.has_failed.load(Ordering::Relaxed);
        let within = match (has_failed, self.lose.is_zero()) {
            _ if self.has_no_base() => LOG_RETRY,
            (true, _) => LOG_RETRY,
            (false, true) => IDLE,
            // A group must begin and end within the time.
            (false, false) => self.lose / 2,
        };
        let inbox = lock(&self.inbox);
        // A log that fails is not tried for every reply.
        let is_quiet = |inbox: &mut Inbox| !inbox.is_ending && (has_failed || inbox.waiting.is_empty());
        let (mut inbox, _) =
            self.arrived.wait_timeout_while(inbox, within, is_quiet).unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut inbox.waiting), inbox.is_ending)
    }
}

impl LogPosition {
    /// Whether there may be changes after the checkpoint.
    pub(crate) fn goes_on(&self) -> Result<bool, StoreError> {
        Ok(!self.ended || LogReader::has_segments(&self.folder, self.id, self.segment)?)
    }
}

impl Sealed<'_> {
    /// Notes that the save is committed: segments before it are not needed any more.
    pub(crate) fn committed(mut self) {
        self.groups.follow_base(self.position.segment);
    }
}

/// Whether a reply to such a request says that tables have changed.
pub(crate) fn changes_tables(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Push
            | Kind::PushFed
            | Kind::PushStep
            | Kind::WaitStep
            | Kind::Import
            | Kind::Delete
            | Kind::Create
            | Kind::Drop
    )
}
