//! State shared by the workers of one process in a job, and their messages to the thread that started them: windows
//! of metrics, the end of a pass, and whether another one follows. Knows no algorithm.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sanderling_formats::BadRows;
use sanderling_job::Input;
use sanderling_sample::Encoder;

use super::recording::Order;
use super::staleness::Pushes;
use crate::config::Config;
use crate::error::LearnError;
use crate::event::PassLine;
use crate::magnitude::LargeValues;
use crate::metrics::BinnedScores;
use crate::timing::PassTotal;

/// Shared by the workers of a process.
pub(super) struct JobShared<'a> {
    pub(super) config: &'a Config,
    pub(super) encoder: Arc<Encoder>,
    /// The order of pulls and pushes, if it is recorded or replayed.
    pub(super) order: Option<&'a Order>,
    /// Most minibatches that a worker may be ahead of the slowest.
    pub(super) bound: Option<u64>,
    /// Where the run stood when the job began, where that is known.
    pub(super) start: Start,
    /// Set to end the run.
    pub(super) stop: &'a AtomicBool,
    /// Per worker; empty if the workers are not all in this process.
    pub(super) pushes: Vec<Pushes>,
    /// How long others are waited for, each time.
    pub(super) timeout: Duration,
    pub(super) said: SyncSender<WorkerMsg>,
    /// Rows that the workers of this process have trained on since they began.
    pub(super) rows: Arc<AtomicU64>,
    pub(super) verdicts: Mutex<Receiver<Judged>>,
    /// The account of bad rows of the pass with this number.
    pub(super) account: Mutex<(u64, Arc<BadRows>)>,
}

/// Where a run stands when a job begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Start {
    /// Passes that are over, and the steps and rows of them.
    pub(super) pass: u64,
    pub(super) step: u64,
    pub(super) examples: u64,
    pub(super) plateaus: u32,
    /// Whether there is another pass.
    pub(super) goes_on: bool,
}

impl Start {
    /// As the first worker tells all.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let Start { pass, step, examples, plateaus, goes_on } = self;
        [pass, step, examples, u64::from(plateaus), u64::from(goes_on)].map(u64::to_le_bytes).concat()
    }

    pub(super) fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let (numbers, []) = bytes.as_chunks::<8>() else { return None };
        let &[pass, step, examples, plateaus, goes_on] = numbers else { return None };
        let plateaus = u32::try_from(u64::from_le_bytes(plateaus)).ok()?;
        let [pass, step, examples, goes_on] = [pass, step, examples, goes_on].map(u64::from_le_bytes);
        Some(Start { pass, step, examples, plateaus, goes_on: goes_on == 1 })
    }
}

/// A worker's message.
pub(super) enum WorkerMsg {
    /// Rows that the workers of this process have trained on since they began.
    Progress(u64),
    /// A worker's results since its last window.
    Window {
        scores: BinnedScores,
        steps: u64,
        /// Features whose values swamp the model.
        large: Vec<LargeValues>,
    },
    /// All workers have come, and begin here.
    Started(Start),
    Ended(PassEnd),
    /// So many passes are over and saved, those of earlier sessions included.
    Judged(u64),
}

/// The results of a pass, over all workers.
pub(super) struct PassEnd {
    pub(super) scores: BinnedScores,
    pub(super) steps: u64,
    pub(super) bad_rows: u64,
    /// The first bad rows that this process read, with their errors.
    pub(super) bad_row_messages: Vec<String>,
    /// Number of pushes by how many pushes of others they missed; empty if not counted.
    pub(super) staleness: Vec<u64>,
}

impl PassEnd {
    /// The line of a pass after which the run has so many steps and rows.
    pub(super) fn line(&self, step: u64, examples: u64, total: &PassTotal) -> PassLine {
        let add = |(pushes, missed), (at, count): (u64, &u64)| (pushes + count, missed + at * count);
        let (pushes, missed) = (0..).zip(&self.staleness).fold((0, 0), add);
        PassLine {
            step,
            pass: total.pass,
            trained_examples: examples,
            measured_on: total.measured_on,
            metrics: total.metrics,
            calibration: total.calibration,
            seconds: total.seconds,
            examples_per_s: total.metrics.examples as f64 / total.seconds.max(1e-9),
            staleness_mean: (pushes > 0).then(|| missed as f64 / pushes as f64),
        }
    }
}

/// The decision after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Whether another pass follows.
    pub(super) goes_on: bool,
    /// Validations without improvement so far, for the plateau schedule.
    pub(super) plateaus: u32,
}

/// A verdict, or why there can be none.
pub(super) type Judged = Result<Verdict, String>;

/// The first byte of a failure; a verdict begins with its `goes_on`.
const NO_VERDICT: u8 = 2;

/// As all workers are told; nothing while nothing is known.
pub(super) fn judged_to_bytes(judged: Option<&Judged>) -> Vec<u8> {
    match judged {
        None => Vec::new(),
        Some(Ok(Verdict { goes_on, plateaus })) => {
            std::iter::once(u8::from(*goes_on)).chain(plateaus.to_le_bytes()).collect()
        }
        Some(Err(reason)) => std::iter::once(NO_VERDICT).chain(reason.bytes()).collect(),
    }
}

pub(super) fn judged_of_bytes(bytes: &[u8]) -> Option<Judged> {
    let (kind, rest) = bytes.split_first()?;
    if *kind == NO_VERDICT {
        return Some(Err(String::from_utf8_lossy(rest).into_owned()));
    }
    let plateaus = u32::from_le_bytes(rest.try_into().ok()?);
    Some(Ok(Verdict { goes_on: *kind == 1, plateaus }))
}

impl JobShared<'_> {
    /// The input of a pass.
    pub(super) fn input(&self, pass: u64) -> Input {
        let data = &self.config.data;
        let mut account = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        if account.0 != pass {
            *account = (pass, Arc::new(BadRows::new(data.reading.on_bad_row)));
        }
        Input {
            inputs: data.train.0.clone(),
            reading: data.reading.clone(),
            encoder: Arc::clone(&self.encoder),
            bad_rows: Arc::clone(&account.1),
        }
    }

    /// Bad rows that this process left out of the pass under way.
    pub(super) fn bad_rows(&self) -> Arc<BadRows> {
        Arc::clone(&self.account.lock().unwrap_or_else(PoisonError::into_inner).1)
    }

    /// Sends a message to the thread that started the workers; does nothing if that has ended.
    pub(super) fn say(&self, said: WorkerMsg) {
        let _ = self.said.send(said);
    }

    /// Fails once the run is asked to stop.
    pub(super) fn check_stop(&self) -> Result<(), LearnError> {
        if self.stop.load(Ordering::Relaxed) { Err(LearnError::Stopped) } else { Ok(()) }
    }

    /// Waits for the verdict on a pass; none if it takes long, and the others want to hear something meanwhile.
    pub(super) fn await_verdict(&self) -> Result<Option<Judged>, LearnError> {
        let verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        match verdicts.recv_timeout(self.timeout / 4) {
            Ok(verdict) => Ok(Some(verdict)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            // The judging thread was asked to stop.
            Err(RecvTimeoutError::Disconnected) => Err(LearnError::Stopped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_survives_the_way() {
        for judged in [
            None,
            Some(Ok(Verdict { goes_on: true, plateaus: 0 })),
            Some(Ok(Verdict { goes_on: false, plateaus: 7 })),
            Some(Err("the disk is full".to_owned())),
        ] {
            assert_eq!(judged_of_bytes(&judged_to_bytes(judged.as_ref())), judged);
        }
        assert_eq!(judged_of_bytes(&[1, 2]), None);
        let start = Start { pass: 3, step: 1 << 60, examples: u64::MAX, plateaus: 2, goes_on: true };
        assert_eq!(Start::of_bytes(&start.to_bytes()), Some(start));
        assert_eq!(Start::of_bytes(&start.to_bytes()[1..]), None);
        assert_eq!(Start::of_bytes(&[0; 48]), None);
    }
}
