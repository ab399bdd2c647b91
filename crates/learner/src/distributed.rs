//! Training as a job: several workers, each a thread of this process or a process of its own, take passes over one input
//! together. Each algorithm is a page of its own that every worker runs; this file starts the workers, judges and saves what
//! they come to after each pass, and says whether another one follows. It knows no algorithm from inside.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sanderling_client::Cluster;
use sanderling_job::{self as job, Tables, Worker};
use sanderling_sample::{BadRows, LabelUse};

use crate::config::Config;
use crate::error::LearnError;
use crate::evaluate::join;
use crate::event::{Event, PassLine};
use crate::metrics::Scores;
use crate::model::Model;
use crate::state::RunState;
use crate::train::{StageList, Trainer};
use crate::worker::Window;

mod algorithm;
mod course;
mod learner;
mod staleness;

mod ftrl;
mod ftrl_sync;
mod ftrl_sync_no_shuffle;

mod fm;
mod fm_sync;
mod fm_sync_no_shuffle;

pub use algorithm::{Algorithm, GLOBAL_BATCH_MAX};
use course::{Course, PassEnd, Said, Verdict};
use learner::Learner;

/// The stages of a job: those that every job has, and then a learner's. The last two are of the thread that judges.
const STAGES: [&str; 11] = [
    job::STAGES[0],
    job::STAGES[1],
    job::STAGES[2],
    job::STAGES[3],
    job::STAGES[4],
    "pull",
    "compute",
    "push",
    "score",
    "evaluate",
    "save",
];
const WAIT: usize = 4;
const PULL: usize = 5;
const COMPUTE: usize = 6;
const PUSH: usize = 7;
const SCORE: usize = 8;
pub(crate) const STAGE_LIST: StageList = StageList { names: &STAGES, evaluate: 9, save: 10 };

/// How long this thread waits for the workers before it looks whether somebody asks to stop.
const POLL: Duration = Duration::from_millis(50);
/// Windows that may wait for this thread, per worker.
const WINDOWS_IN_FLIGHT: usize = 2;

/// How a job trains.
#[derive(Clone, Debug)]
pub struct JobOptions {
    /// What the workers do.
    pub algorithm: Algorithm,
    /// Where each goes its own way: the most minibatches that a worker may be ahead of the slowest. `None`: any number.
    pub staleness: Option<u64>,
    /// How many workers there are, where, and how long they wait for each other. The seed is that of the configuration.
    pub job: job::Options,
}

impl JobOptions {
    pub(crate) fn check(&self, config: &Config) -> Result<(), LearnError> {
        let bad = |reason| LearnError::Config { path: "--algorithm".into(), reason };
        self.algorithm.check(config, self.staleness).map_err(bad)?;
        let (threads, workers) = (config.train.threads, self.job.workers as usize);
        if threads > 1 && threads != workers {
            let reason = format!(
                "train.threads = {threads}, but the job has {workers} workers, which are what trains; leave train.threads out"
            );
            return Err(bad(reason));
        }
        Ok(())
    }

    pub(crate) fn describe(&self, batch: usize) -> String {
        self.algorithm.describe(self.job.workers, batch, self.staleness)
    }

    /// Workers in this process.
    pub(crate) fn threads(&self) -> usize {
        if self.is_here() { self.job.workers as usize } else { 1 }
    }

    fn is_here(&self) -> bool {
        matches!(self.job.place, job::Place::Here)
    }
}

/// What a job came to beside what is in the trainer.
#[derive(Debug, Default)]
pub(crate) struct JobEnd {
    /// At each place, how many pushes missed so many of others; none where nobody counts.
    pub(crate) staleness: Option<Vec<u64>>,
    /// Whether it was stopped in the middle of a pass, so that the tables are not those of the state.
    pub(crate) is_cut: bool,
}

/// Trains until all passes are done, validation stops improving, or somebody asks to stop: then the run goes back to the end
/// of the last pass, as it was saved there.
pub(crate) fn run(
    trainer: &mut Trainer<'_>,
    options: &JobOptions,
    cluster: Option<&Arc<Cluster>>,
) -> Result<JobEnd, LearnError> {
    let mut end = JobEnd::default();
    if trainer.state.pass_to_judge && !trainer.judge_pass()? {
        trainer.save_stopped()?;
        return Ok(end);
    }
    let model = Arc::clone(&trainer.model);
    if trainer.state.is_whole(&model.config().train) {
        return Ok(end);
    }
    let mut judge = Judge::new(trainer, options);
    match work(&mut judge, &model, options, cluster) {
        _ if judge.failed.is_some() => judge.failed.map_or(Ok(end), Err),
        // Asked to stop while it validated: the tables are those of the pass.
        Err(LearnError::Stopped) if judge.trainer.state.pass_to_judge => {
            judge.trainer.save_stopped()?;
            Ok(end)
        }
        Err(LearnError::Stopped) => {
            drop(model);
            judge.go_back()?;
            end.is_cut = true;
            Ok(end)
        }
        Err(error) => Err(error),
        Ok(_) => {
            end.staleness = (!judge.staleness.is_empty()).then_some(judge.staleness);
            Ok(end)
        }
    }
}

/// Starts the workers and hears them until they end.
fn work(
    judge: &mut Judge<'_, '_>,
    model: &Model,
    options: &JobOptions,
    cluster: Option<&Arc<Cluster>>,
) -> Result<(), LearnError> {
    let config = model.config().clone();
    let (stages, state) = (judge.trainer.stages.clone(), &judge.trainer.state);
    let tables = match cluster {
        Some(cluster) => Tables::Servers(Arc::clone(cluster), model.client().remote_tables().to_vec()),
        None => Tables::Embedded(model.client().tables().to_vec()),
    };
    let job_options = job::Options { seed: config.seed, ..options.job.clone() };
    let workers = options.threads();
    let (said, heard) = sync_channel(workers * WINDOWS_IN_FLIGHT);
    let (verdicts, awaited) = channel();
    let stop: &AtomicBool = judge.trainer.stop;
    let course = Course {
        model,
        encoder: model.encoder(LabelUse::Required, true)?,
        bound: options.staleness,
        first_pass: state.pass,
        first_step: state.step,
        plateaus: state.plateaus,
        stop,
        pushes: if options.is_here() {
            (0..workers).map(|_| Default::default()).collect()
        } else {
            Vec::new()
        },
        timeout: job_options.timeout,
        said,
        verdicts: Mutex::new(awaited),
        account: Mutex::new((u64::MAX, Arc::new(BadRows::new(config.data.reading.on_bad_row)))),
    };
    std::thread::scope(|scope| {
        let running = scope.spawn(move || {
            // The course goes with the workers: when they have ended, nobody speaks any more.
            let course = course;
            let work = |worker: &mut Worker| {
                train(options.algorithm, &mut Learner::new(&course, options.algorithm, worker), worker)
            };
            job::run(&job_options, &tables, &stages, work).map(|_| ())
        });
        let mut verdicts = Some(verdicts);
        loop {
            match heard.recv_timeout(POLL) {
                Ok(Said::Window { scores, steps }) => judge.take_window(scores.to_scores(), steps, &config),
                Ok(Said::Ended(end)) => judge.end_pass(&end, &mut verdicts),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        join(running)
    })
}

/// What every worker does.
fn train(algorithm: Algorithm, learner: &mut Learner<'_>, worker: &mut Worker) -> Result<(), LearnError> {
    match algorithm {
        Algorithm::Ftrl => ftrl::train(learner, worker),
        Algorithm::FtrlSync => ftrl_sync::train(learner, worker),
        Algorithm::FtrlSyncNoShuffle => ftrl_sync_no_shuffle::train(learner, worker),
        Algorithm::Fm => fm::train(learner, worker),
        Algorithm::FmSync => fm_sync::train(learner, worker),
        Algorithm::FmSyncNoShuffle => fm_sync_no_shuffle::train(learner, worker),
    }
}

/// The thread that hears the workers, and after each pass validates, saves and says whether another one follows.
struct Judge<'a, 'b> {
    trainer: &'a mut Trainer<'b>,
    /// The state at the end of the last pass.
    boundary: RunState,
    since: Instant,
    staleness: Vec<u64>,
    /// What it could not do.
    failed: Option<LearnError>,
    /// Whether it is this process that validates and saves.
    leads: bool,
}

impl<'a, 'b> Judge<'a, 'b> {
    fn new(trainer: &'a mut Trainer<'b>, options: &JobOptions) -> Self {
        let boundary = trainer.state.clone();
        let leads = options.is_here();
        Judge { trainer, boundary, since: Instant::now(), staleness: Vec::new(), failed: None, leads }
    }

    fn take_window(&mut self, scores: Scores, steps: u64, config: &Config) {
        self.trainer.take_window(&Window { scores, steps }, &config.train);
    }

    /// Judges a pass and sends the verdict. When it cannot, nobody sends one any more, and so the workers end.
    fn end_pass(&mut self, end: &PassEnd, verdicts: &mut Option<Sender<Verdict>>) {
        self.close_pass(end);
        if !self.leads {
            return;
        }
        match self.judge_pass() {
            Ok(Some(verdict)) => {
                // Should the workers have failed meanwhile, their error says so.
                verdicts.as_ref().map(|verdicts| verdicts.send(verdict));
            }
            Ok(None) => *verdicts = None,
            Err(error) => {
                self.failed = Some(error);
                *verdicts = None;
            }
        }
    }

    /// Takes what all workers say for what this process has heard of its own.
    fn close_pass(&mut self, end: &PassEnd) {
        let Judge { trainer, boundary, .. } = self;
        trainer.print_rest();
        let seconds = self.since.elapsed().as_secs_f64();
        let examples = end.scores.len();
        trainer.state.step = boundary.step + end.steps;
        trainer.state.examples = boundary.examples + examples;
        trainer.state.train_seconds = boundary.train_seconds + seconds;
        trainer.state.bad_rows = end.bad_rows;
        trainer.pass_scores = end.scores.to_scores();
        trainer.close_pass(seconds);
        if self.staleness.len() < end.staleness.len() {
            self.staleness.resize(end.staleness.len(), 0);
        }
        self.staleness.iter_mut().zip(&end.staleness).for_each(|(sum, count)| *sum += count);
        if let Some(total) = trainer.passes.last() {
            let (pushes, missed) = (0_u64..)
                .zip(&end.staleness)
                .fold((0, 0), |(pushes, missed), (at, count)| (pushes + count, missed + at * count));
            let line = PassLine {
                step: trainer.state.step,
                pass: total.pass,
                trained_examples: trainer.state.examples,
                metrics: total.metrics,
                calibration: total.calibration,
                seconds,
                examples_per_s: examples as f64 / seconds.max(1e-9),
                staleness_mean: (pushes > 0).then(|| missed as f64 / pushes as f64),
            };
            (trainer.observer)(&Event::Pass(&line));
        }
    }

    /// Validates and saves the pass; none if that was stopped.
    fn judge_pass(&mut self) -> Result<Option<Verdict>, LearnError> {
        let trainer = &mut *self.trainer;
        if trainer.passes.last().is_none_or(|pass| pass.metrics.examples == 0) {
            return Err(LearnError::NoRows(trainer.model.config().data.train.0.join(", ")));
        }
        if !trainer.judge_pass()? {
            return Ok(None);
        }
        self.boundary = trainer.state.clone();
        self.since = Instant::now();
        let goes_on = !trainer.state.is_whole(&trainer.model.config().train);
        if goes_on && trainer.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        Ok(Some(Verdict { goes_on, plateaus: trainer.state.plateaus }))
    }

    /// Puts the state back to the end of the last pass. Before the first one ended that is an untrained model, which nobody
    /// has saved yet.
    fn go_back(&mut self) -> Result<(), LearnError> {
        let trainer = &mut *self.trainer;
        trainer.state = self.boundary.clone();
        trainer.pass_scores.clear();
        if trainer.state.pass > 0 {
            return Ok(());
        }
        trainer.model = Arc::new(Model::new(trainer.model.config().clone())?);
        if trainer.validates() {
            trainer.save(&trainer.last_dir.clone())?;
        }
        trainer.save(&trainer.model_dir.clone())
    }
}
