//! Slow requests: one thread saves and restores, one exports, one tells followers what changed, while the workers go on.
//!
//! The module knows no connection. A callback in the queued job takes the reply.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use sanderling_wire::{Agreed, Buffer, Changes, Fault, Kind, Reply, WireError, limit};

use crate::call::{unwritten, write_failure};
use crate::changes::ChangedPage;
use crate::checkpoints::{LATEST, SaveMode, SaveReport};
use crate::event::{Event, Log};
use crate::export::Exporter;
use crate::limit::{BACKGROUND_JOBS_MAX, FAILURE_BYTES_MAX};
use crate::refusal::Refusal;
use crate::replication::{Change, Input, Made, answer_to};
use crate::state::State;
use crate::tables::Entry;

/// A request that runs on a background thread.
#[derive(Debug)]
pub struct BackgroundJob {
    pub(crate) work: JobKind,
    pub(crate) kind: Kind,
    pub(crate) id: u64,
    pub(crate) agreed: Agreed,
    /// Arrival of the request.
    pub(crate) since: Instant,
    /// The client's deadline, counted from `since`. Zero: the client gave none.
    pub(crate) within: Duration,
}

/// The work of a background job.
#[derive(Debug)]
pub(crate) enum JobKind {
    /// Saves all tables. `number` identifies a save of several servers; 0 if there is none.
    Save {
        name: String,
        number: u64,
    },
    /// Reads the save number of a checkpoint.
    Saved {
        name: String,
    },
    Restore {
        name: String,
    },
    Export {
        entry: Arc<Entry>,
        from: u64,
        rows_max: u32,
    },
    Changes {
        entry: Arc<Entry>,
        changes: Changes,
    },
    /// A question of another group about rows that move to it.
    Transfer {
        question: Vec<u8>,
    },
    /// A change that all replicas make.
    Change(Change),
}

/// A job and the callback for its reply.
pub(crate) struct QueuedJob {
    pub(crate) job: BackgroundJob,
    /// Takes the reply and the time since the request arrived.
    pub(crate) reply: Box<dyn FnOnce(Buffer, Duration) + Send>,
}

/// Sends jobs to the background threads. Exports have a thread of their own, because a save takes as long as the disk
/// does, and followers have one, because an export scans the table for each window.
#[derive(Debug, Clone)]
pub(crate) struct JobQueues {
    checkpoints: SyncSender<QueuedJob>,
    exports: SyncSender<QueuedJob>,
    changes: SyncSender<QueuedJob>,
    /// To the thread of replication, if there is one.
    replication: Option<Sender<Input>>,
}

/// The receiving ends of the job queues, for [`run`].
pub(crate) struct JobReceivers {
    pub(crate) checkpoints: Receiver<QueuedJob>,
    pub(crate) exports: Receiver<QueuedJob>,
    pub(crate) changes: Receiver<QueuedJob>,
}

impl JobQueues {
    pub(crate) fn new(replication: Option<Sender<Input>>) -> (JobQueues, JobReceivers) {
        let [(checkpoints, saves), (exports, blocks), (changes, pages)] =
            std::array::from_fn(|_| sync_channel(BACKGROUND_JOBS_MAX));
        let receivers = JobReceivers { checkpoints: saves, exports: blocks, changes: pages };
        (JobQueues { checkpoints, exports, changes, replication }, receivers)
    }

    /// Queues a job. `false`: the queue is full.
    pub(crate) fn post(&self, queued: QueuedJob) -> bool {
        let thread = match queued.job.work {
            JobKind::Save { .. } | JobKind::Saved { .. } | JobKind::Restore { .. } => &self.checkpoints,
            JobKind::Export { .. } => &self.exports,
            JobKind::Changes { .. } | JobKind::Transfer { .. } => &self.changes,
            JobKind::Change(_) => {
                let replication = self.replication.as_ref();
                return replication.is_some_and(|inputs| inputs.send(Input::Job(Box::new(queued))).is_ok());
            }
        };
        thread.try_send(queued).is_ok()
    }
}

/// Intervals of automatic saves.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SaveIntervals {
    /// Of full saves.
    pub(crate) full: Option<Duration>,
    pub(crate) delta: Option<Duration>,
}

/// The times of the next automatic saves.
struct NextSaves {
    intervals: SaveIntervals,
    full: Option<Instant>,
    delta: Option<Instant>,
}

impl NextSaves {
    fn new(intervals: SaveIntervals) -> NextSaves {
        NextSaves { intervals, full: after(intervals.full), delta: after(intervals.delta) }
    }

    /// The save that is due. A full one replaces the delta of that time.
    fn due(&self) -> Option<SaveMode> {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= Instant::now());
        match is_due(self.full) {
            true if self.intervals.delta.is_some() => Some(SaveMode::Base),
            true => Some(SaveMode::Full),
            false => is_due(self.delta).then_some(SaveMode::Delta),
        }
    }

    fn note_saved(&mut self, mode: SaveMode) {
        if mode != SaveMode::Delta {
            self.full = after(self.intervals.full);
        }
        self.delta = after(self.intervals.delta);
    }
}

fn after(every: Option<Duration>) -> Option<Instant> {
    every.map(|every| Instant::now() + every)
}

/// Runs jobs until all senders are gone. Saves at these intervals between two jobs, however long the queue is.
pub(crate) fn run(state: &State, queued: &Receiver<QueuedJob>, intervals: SaveIntervals, log: &Log) {
    let mut exporter = Exporter::default();
    let mut next_saves = NextSaves::new(intervals);
    loop {
        if let Some(mode) = next_saves.due() {
            if state.is_saving() {
                log.report(saved(LATEST, state.save(LATEST, 0, mode)));
            }
            next_saves.note_saved(mode);
        }
        let next = match next_saves.full.into_iter().chain(next_saves.delta).min() {
            Some(at) => queued.recv_timeout(at.saturating_duration_since(Instant::now())),
            None => queued.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok(QueuedJob { job, reply }) => {
                let frame = job.run(state, &mut exporter, log);
                reply(frame, job.since.elapsed());
            }
            Err(RecvTimeoutError::Disconnected) => return,
            // The save interval is over.
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// The event for the result of a save.
pub(crate) fn saved(name: &str, result: Result<SaveReport, Refusal>) -> Event {
    let name = name.to_owned();
    match result {
        Ok(SaveReport { saved, deltas, full_because }) => {
            Event::Saved { name, rows: saved.rows, bytes: saved.bytes, deltas, full_because }
        }
        Err(refusal) => Event::SaveFailed { name, reason: refusal.reason },
    }
}

impl BackgroundJob {
    pub(crate) fn run(&self, state: &State, exporter: &mut Exporter, log: &Log) -> Buffer {
        let mut frame = Buffer::new(self.agreed.frame_bytes_max as usize);
        let waited = self.since.elapsed();
        let done = match &self.work {
            _ if !self.within.is_zero() && waited > self.within => Err(Refusal::late(waited, self.within)),
            JobKind::Save { name, number } => {
                let result = state.save(name, *number, SaveMode::Full);
                log.report(saved(name, result.clone()));
                let reply = if self.kind == Kind::SaveAs { Reply::SaveAs } else { Reply::Save };
                result.and_then(|report| self.write(&reply(report.saved), &mut frame))
            }
            JobKind::Saved { name } => {
                state.saved(name).and_then(|number| self.write(&Reply::Saved(number), &mut frame))
            }
            JobKind::Restore { name } => {
                let result = state.restore(name);
                if let Ok(restored) = result {
                    log.report(Event::Restored { name: name.clone(), rows: restored.rows });
                }
                result.and_then(|restored| self.write(&Reply::Restore(restored), &mut frame))
            }
            JobKind::Export { entry, from, rows_max } => {
                let exported = exporter.rows(entry, *from, *rows_max, self.agreed.frame_bytes_max as usize);
                exported.and_then(|exported| self.write(&Reply::Export(exported), &mut frame))
            }
            JobKind::Changes { entry, changes } => {
                let page = ChangedPage::read(entry, changes, &self.agreed);
                page.and_then(|page| self.write(&Reply::Changes(page.reply(entry.dim())), &mut frame))
            }
            JobKind::Transfer { question } => {
                let answer = answer_to(state, question);
                answer.and_then(|answer| self.write(&Reply::Transfer(&answer), &mut frame))
            }
            JobKind::Change(_) => {
                Err(Refusal::new(Fault::Internal, "the thread of replication makes changes"))
            }
        };
        if let Err(refusal) = done {
            self.write_failure(&refusal, &mut frame);
        }
        frame
    }

    fn write(&self, reply: &Reply<'_>, frame: &mut Buffer) -> Result<(), Refusal> {
        frame.append(|out| reply.encode(&self.agreed, self.id, out)).map(|_| ()).map_err(unwritten)
    }

    fn write_failure(&self, refusal: &Refusal, frame: &mut Buffer) {
        frame.clear();
        let written = frame.append(|out| match out.len() {
            0..FAILURE_BYTES_MAX => Err(WireError::NoRoom { needed: FAILURE_BYTES_MAX, found: out.len() }),
            _ => Ok(write_failure(refusal, self.kind, &self.agreed, self.id, out)),
        });
        debug_assert!(!matches!(written, Err(WireError::NoRoom { .. } | WireError::TooLong { .. })));
        const { assert!(FAILURE_BYTES_MAX < limit::FRAME_BYTES_MIN) };
    }

    /// The reply for a change that all replicas have made.
    pub(crate) fn made(&self, state: &State, made: Made) -> Buffer {
        let mut frame = Buffer::new(self.agreed.frame_bytes_max as usize);
        let written = match made {
            Made::Created(number) => {
                let directory = state.tables.directory();
                let entry = directory.entries.iter().find(|entry| entry.number == number);
                let entry = entry.ok_or_else(|| Refusal::no_table_number(number));
                entry.and_then(|entry| self.write(&Reply::Create(entry.info()), &mut frame))
            }
            Made::Dropped => self.write(&Reply::Drop, &mut frame),
            Made::Imported(rows) => self.write(&Reply::Import(rows), &mut frame),
            Made::Deleted(rows) => self.write(&Reply::Delete(rows), &mut frame),
        };
        if let Err(refusal) = written {
            self.write_failure(&refusal, &mut frame);
        }
        frame
    }

    /// The reply for a job that the server refuses to run.
    pub(crate) fn refused(&self, refusal: &Refusal) -> Buffer {
        let mut frame = Buffer::new(self.agreed.frame_bytes_max as usize);
        self.write_failure(refusal, &mut frame);
        frame
    }
}
