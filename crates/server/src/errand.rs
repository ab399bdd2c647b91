//! Requests that take long: saving and restoring, one after the other on a thread of their own, and exporting on another,
//! while the workers go on. Knows no connection: the reply goes to whoever posted the errand.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use sanderling_wire::{Agreed, Buffer, Kind, Reply, WireError, limit};

use crate::call::{unwritten, write_failure};
use crate::checkpoints::LATEST;
use crate::event::{Event, Log};
use crate::export::Exporter;
use crate::limit::{ERRANDS_MAX, FAILURE_BYTES_MAX};
use crate::refusal::Refusal;
use crate::state::State;
use crate::tables::Entry;

/// A request that takes long.
#[derive(Debug)]
pub struct Errand {
    pub(crate) work: Work,
    pub(crate) kind: Kind,
    pub(crate) id: u64,
    pub(crate) agreed: Agreed,
    /// When the request came.
    pub(crate) since: Instant,
    /// After this nobody waits for the answer; zero: that is not known.
    pub(crate) within: Duration,
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Work {
    /// As part of the save of all servers that has this number; 0: of none.
    Save {
        name: String,
        number: u64,
    },
    /// Says of which save a checkpoint is part.
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
}

/// An errand and where its reply goes.
pub(crate) struct Posted {
    pub(crate) errand: Errand,
    /// Gets the reply, and how long it took since the request came.
    pub(crate) reply: Box<dyn FnOnce(Buffer, Duration) + Send>,
}

/// Where errands are posted. An export does not wait for checkpoints: a save takes as long as a disk does, and who exports
/// waits no longer for that than for any other answer.
#[derive(Debug, Clone)]
pub(crate) struct Postbox {
    checkpoints: SyncSender<Posted>,
    exports: SyncSender<Posted>,
}

/// What was posted, for the threads that [`run`].
pub(crate) struct Inboxes {
    pub(crate) checkpoints: Receiver<Posted>,
    pub(crate) exports: Receiver<Posted>,
}

impl Postbox {
    pub(crate) fn new() -> (Postbox, Inboxes) {
        let ((checkpoints, saves), (exports, blocks)) =
            (sync_channel(ERRANDS_MAX), sync_channel(ERRANDS_MAX));
        (Postbox { checkpoints, exports }, Inboxes { checkpoints: saves, exports: blocks })
    }

    /// `false`: too many wait.
    pub(crate) fn post(&self, posted: Posted) -> bool {
        let thread = match posted.errand.work {
            Work::Save { .. } | Work::Saved { .. } | Work::Restore { .. } => &self.checkpoints,
            Work::Export { .. } => &self.exports,
        };
        thread.try_send(posted).is_ok()
    }
}

/// Runs errands until nobody can post any more, and saves every so often in between, however many wait.
pub(crate) fn run(state: &State, posted: &Receiver<Posted>, save_every: Option<Duration>, log: &Log) {
    let mut exporter = Exporter::default();
    let mut next_save = save_every.map(|every| Instant::now() + every);
    loop {
        if next_save.is_some_and(|at| at <= Instant::now()) {
            log.say(saved(LATEST, state.save(LATEST, 0)));
            next_save = save_every.map(|every| Instant::now() + every);
        }
        let next = match next_save {
            Some(at) => posted.recv_timeout(at.saturating_duration_since(Instant::now())),
            None => posted.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok(Posted { errand, reply }) => {
                let frame = errand.carry_out(state, &mut exporter, log);
                reply(frame, errand.since.elapsed());
            }
            Err(RecvTimeoutError::Disconnected) => return,
            // It is time to save.
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// What is to be said of a save.
pub(crate) fn saved(name: &str, result: Result<sanderling_wire::Saved, Refusal>) -> Event {
    let name = name.to_owned();
    match result {
        Ok(saved) => Event::Saved { name, rows: saved.rows, bytes: saved.bytes },
        Err(refusal) => Event::SaveFailed { name, reason: refusal.reason },
    }
}

impl Errand {
    pub(crate) fn carry_out(&self, state: &State, exporter: &mut Exporter, log: &Log) -> Buffer {
        let mut frame = Buffer::new(self.agreed.frame_bytes_max as usize);
        let waited = self.since.elapsed();
        let done = match &self.work {
            _ if !self.within.is_zero() && waited > self.within => Err(Refusal::late(waited, self.within)),
            Work::Save { name, number } => {
                let result = state.save(name, *number);
                log.say(saved(name, result.clone()));
                let reply = if self.kind == Kind::SaveAs { Reply::SaveAs } else { Reply::Save };
                result.and_then(|saved| self.write(&reply(saved), &mut frame))
            }
            Work::Saved { name } => {
                state.saved(name).and_then(|number| self.write(&Reply::Saved(number), &mut frame))
            }
            Work::Restore { name } => {
                let result = state.restore(name);
                if let Ok(restored) = result {
                    log.say(Event::Restored { name: name.clone(), rows: restored.rows });
                }
                result.and_then(|restored| self.write(&Reply::Restore(restored), &mut frame))
            }
            Work::Export { entry, from, rows_max } => {
                let exported = exporter.rows(entry, *from, *rows_max, self.agreed.frame_bytes_max as usize);
                exported.and_then(|exported| self.write(&Reply::Export(exported), &mut frame))
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

    /// The reply when it cannot be carried out.
    pub(crate) fn refused(&self, refusal: &Refusal) -> Buffer {
        let mut frame = Buffer::new(self.agreed.frame_bytes_max as usize);
        self.write_failure(refusal, &mut frame);
        frame
    }
}
