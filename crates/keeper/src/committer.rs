//! The thread that changes records: takes requests, makes their changes durable together, and then shows and answers
//! them. Knows no protocol.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sanderling_observe::{Latency, LatencySummary};
use sanderling_registry::history::History;
use sanderling_registry::state_machine::{Entry, Reply, Request, StateMachine};
use tokio::sync::{oneshot, watch};

use crate::journal::{AppendError, Found, Journal};
use crate::limit::{BATCH_BYTES_MAX, BATCH_CHANGES_MAX, LOOK_EVERY, LOOK_MAX, QUEUE_MAX};

/// Why a request is not answered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CommitError {
    /// Nothing was changed.
    Refused(String),
    /// The change may be made by the next start.
    Unknown(String),
}

struct Job {
    request: Request,
    reply: oneshot::Sender<Result<Reply, CommitError>>,
}

enum Message {
    Job(Job),
    /// The last one.
    End,
}

/// The records as all may see them: what is durable.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) machine: StateMachine,
    pub(crate) history: History,
}

/// Numbers for metrics.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) changes: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) leases_ended: AtomicU64,
    pub(crate) rewrites: AtomicU64,
    pub(crate) journal_bytes: AtomicU64,
}

/// The state that the thread shares with the port.
#[derive(Debug)]
pub(crate) struct Shared {
    published: RwLock<Published>,
    revision: watch::Sender<u64>,
    /// Why the disk takes no changes.
    trouble: Mutex<Option<String>>,
    writes: Mutex<Latency>,
    pub(crate) counters: Counters,
}

impl Shared {
    /// The durable records. Changes wait while this is held.
    pub(crate) fn published(&self) -> RwLockReadGuard<'_, Published> {
        self.published.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the revision of the durable records.
    pub(crate) fn follow(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// Wakes all that follow the revision, so that they look at other things, too.
    pub(crate) fn wake(&self) {
        self.revision.send_modify(|_| {});
    }

    /// Why the disk takes no changes at present.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Times of writes until they are durable.
    pub(crate) fn writes(&self) -> LatencySummary {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner).summary()
    }
}

/// The thread. Dropping it ends it after the requests that it has.
#[derive(Debug)]
pub(crate) struct Committer {
    queue: SyncSender<Message>,
    thread: Option<JoinHandle<()>>,
    pub(crate) shared: Arc<Shared>,
}

/// Gives requests to the thread.
#[derive(Debug, Clone)]
pub(crate) struct Requests(SyncSender<Message>);

impl Requests {
    /// Has a request answered. It is answered although its caller may be gone.
    pub(crate) async fn ask(&self, request: Request) -> Result<Reply, CommitError> {
        let (reply, answer) = oneshot::channel();
        match self.0.try_send(Message::Job(Job { request, reply })) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                return Err(CommitError::Refused(format!(
                    "{QUEUE_MAX} requests wait for the disk; try again later"
                )));
            }
            Err(TrySendError::Disconnected(_)) => {
                return Err(CommitError::Refused("the keeper ends".to_owned()));
            }
        }
        answer.await.unwrap_or_else(|_| Err(CommitError::Unknown("the keeper ended".to_owned())))
    }
}

impl Committer {
    /// Starts the thread. `note` gets a line when the disk takes no changes, and when it does again.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start(
        journal: Journal,
        found: Found,
        note: impl FnMut(&str) + Send + 'static,
    ) -> std::io::Result<Committer> {
        let Found { mut machine, history, .. } = found;
        // No lease could be renewed while there was no keeper.
        machine.renew_all(Duration::ZERO);
        let revision = watch::Sender::new(machine.revision());
        let shared = Arc::new(Shared {
            published: RwLock::new(Published { machine: machine.clone(), history }),
            revision,
            trouble: Mutex::default(),
            writes: Mutex::default(),
            counters: Counters::default(),
        });
        shared.counters.journal_bytes.store(journal.bytes(), Ordering::Relaxed);
        let (queue, jobs) = sync_channel(QUEUE_MAX);
        let clock = LeaseClock { last: Instant::now(), now: Duration::ZERO };
        let mut writing = Writing { journal, machine, clock, note, shared: Arc::clone(&shared) };
        let thread =
            std::thread::Builder::new().name("journal".to_owned()).spawn(move || writing.run(&jobs))?;
        Ok(Committer { queue, thread: Some(thread), shared })
    }

    /// For the port.
    pub(crate) fn requests(&self) -> Requests {
        Requests(self.queue.clone())
    }

    /// Ends the thread after the requests that it has.
    pub(crate) fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // It fails when the thread has ended already.
        let _ = self.queue.send(Message::End);
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.end();
    }
}

/// The time of leases: that of a monotonic clock while the thread looks at it often.
struct LeaseClock {
    last: Instant,
    now: Duration,
}

impl LeaseClock {
    fn look(&mut self) -> Duration {
        let now = Instant::now();
        self.now += now.duration_since(self.last).min(LOOK_MAX);
        self.last = now;
        self.now
    }
}

struct Writing<F> {
    journal: Journal,
    /// The records with the changes that are being written.
    machine: StateMachine,
    clock: LeaseClock,
    note: F,
    shared: Arc<Shared>,
}

impl<F: FnMut(&str)> Writing<F> {
    fn run(&mut self, messages: &Receiver<Message>) {
        let mut is_over = false;
        while !is_over {
            let batch = match messages.recv_timeout(LOOK_EVERY) {
                Ok(Message::Job(first)) => batch(first, messages, &mut is_over),
                Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => Vec::new(),
            };
            self.work(batch);
        }
    }

    /// Answers requests, and ends leases. Renewals come first: they may have waited for the disk.
    fn work(&mut self, batch: Vec<Job>) {
        let now = self.clock.look();
        let mut entries = Vec::new();
        let (renewals, changes): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|job| matches!(job.request, Request::KeepAlive { .. }));
        let mut replies = Vec::new();
        for job in renewals.into_iter().chain(changes) {
            let reply = self.decide(&job.request, now, &mut entries);
            replies.push((job, reply));
        }
        let ended = self.machine.ended(now);
        for &lease in &ended {
            self.decide(&Request::Revoke { lease }, now, &mut entries);
        }
        let written = if entries.is_empty() { Ok(()) } else { self.write(&entries) };
        match &written {
            Ok(()) => self.publish(&entries, ended.len(), now),
            Err(_) => {
                // Back to what is durable, with the leases' present times.
                let published = self.shared.published().machine.clone();
                let tried = std::mem::replace(&mut self.machine, published);
                self.machine.take_times(&tried);
            }
        }
        for (Job { request, reply }, decided) in replies {
            let outcome = match (&written, &request) {
                (Ok(()), _) => Ok(decided),
                // Renewals were decided before everything else.
                (Err(_), Request::KeepAlive { .. }) => Ok(decided),
                // Even one that changed nothing may have seen a change that is none.
                (Err(error), _) => {
                    self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
                    Err(error.clone())
                }
            };
            // The caller may be gone.
            let _ = reply.send(outcome);
        }
        if self.journal.wants_rewrite() {
            // Where it fails, the next change says so.
            let _ = self.rewrite();
        }
    }

    fn decide(&mut self, request: &Request, now: Duration, entries: &mut Vec<Entry>) -> Reply {
        let (changes, reply) = self.machine.decide(request, now);
        for change in &changes {
            self.machine.apply(change, now).expect("it was decided on this machine");
        }
        entries.extend(changes);
        reply
    }

    fn write(&mut self, entries: &[Entry]) -> Result<(), CommitError> {
        if self.journal.is_uncertain()
            && let Err(error) = self.rewrite()
        {
            return Err(self.fail(CommitError::Refused, &error.to_string()));
        }
        let start = Instant::now();
        let appended = self.journal.append(entries);
        self.shared.counters.journal_bytes.store(self.journal.bytes(), Ordering::Relaxed);
        match appended {
            Ok(()) => {
                self.shared.writes.lock().unwrap_or_else(PoisonError::into_inner).record(start.elapsed());
                let before = self.shared.trouble.lock().unwrap_or_else(PoisonError::into_inner).take();
                if before.is_some() {
                    (self.note)("the disk takes changes again");
                }
                Ok(())
            }
            Err(AppendError::Refused(reason)) => Err(self.fail(CommitError::Refused, &reason)),
            Err(AppendError::Unknown(reason)) => Err(self.fail(CommitError::Unknown, &reason)),
        }
    }

    fn fail(&mut self, kind: fn(String) -> CommitError, reason: &str) -> CommitError {
        let reason = format!("the disk takes no changes: {reason}");
        let mut trouble = self.shared.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if trouble.as_ref() != Some(&reason) {
            (self.note)(&format!("{reason}; records can be read"));
            *trouble = Some(reason.clone());
        }
        kind(reason)
    }

    /// Writes the journal anew, from what is durable.
    fn rewrite(&mut self) -> std::io::Result<()> {
        let written = self.journal.rewrite(&self.shared.published().machine);
        if written.is_ok() {
            self.shared.counters.rewrites.fetch_add(1, Ordering::Relaxed);
            self.shared.counters.journal_bytes.store(self.journal.bytes(), Ordering::Relaxed);
        }
        written
    }

    /// Shows durable changes.
    fn publish(&mut self, entries: &[Entry], ended: usize, now: Duration) {
        if entries.is_empty() {
            return;
        }
        let mut published = self.shared.published.write().unwrap_or_else(PoisonError::into_inner);
        let mut changes = 0;
        for entry in entries {
            let applied =
                published.machine.apply(entry, now).expect("it was applied to the same records before");
            if let Some(change) = applied {
                published.history.push(change);
                changes += 1;
            }
        }
        let revision = published.machine.revision();
        drop(published);
        self.shared.counters.changes.fetch_add(changes, Ordering::Relaxed);
        self.shared.counters.leases_ended.fetch_add(ended as u64, Ordering::Relaxed);
        self.shared.revision.send_replace(revision);
    }
}

/// The requests that wait, within the limits of a write.
fn batch(first: Job, messages: &Receiver<Message>, is_over: &mut bool) -> Vec<Job> {
    let bytes = |job: &Job| match &job.request {
        Request::Put { value, .. } => value.len(),
        _ => 0,
    };
    let mut all = bytes(&first);
    let mut batch = vec![first];
    while batch.len() < BATCH_CHANGES_MAX && all < BATCH_BYTES_MAX {
        match messages.try_recv() {
            Ok(Message::Job(next)) => {
                all += bytes(&next);
                batch.push(next);
            }
            Ok(Message::End) => {
                *is_over = true;
                break;
            }
            Err(_) => break,
        }
    }
    batch
}
