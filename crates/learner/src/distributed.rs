//! Training as a job: several workers, each a thread of this process or a process of its own, take passes over one input
//! together. How they train, in step or each on its own way, is a page that every worker runs; this file starts the workers,
//! judges and saves what they come to after each pass, and says whether another one follows. It knows no algorithm from inside.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sanderling_client::{ClientError, Cluster};
use sanderling_formats::BadRows;
use sanderling_job::{self as job, Tables, Worker};
use sanderling_observe::Stages;

use crate::config::Config;
use crate::error::{LearnError, job_stopped};
use crate::event::Event;
use crate::model::{Model, Purpose, encoder};
use crate::state::RunState;
use crate::threads::{join, spawn};
use crate::train::{StageList, Trainer};
use crate::worker::Window;

mod algorithm;
mod follower;
mod job_shared;
mod learner;
mod recording;
mod staleness;

mod asynchronous;
mod synchronous;

pub use algorithm::{Algorithm, GLOBAL_BATCH_MAX};
pub(crate) use follower::follow;
use job_shared::{JobShared, Judged, PassEnd, Start, Verdict, WorkerMsg};
use learner::Learner;
use recording::Order;
pub use recording::Recording;

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
const PULL: usize = 5;
const COMPUTE: usize = 6;
const PUSH: usize = 7;
const SCORE: usize = 8;
pub(crate) const STAGE_LIST: StageList = StageList { names: &STAGES, evaluate: 9, save: 10 };

/// Interval at which the waiting thread checks for a stop.
const POLL: Duration = Duration::from_millis(50);
/// Windows that may wait for this thread, per worker.
const WINDOWS_IN_FLIGHT: usize = 2;

/// How a job trains.
#[derive(Clone, Debug)]
pub struct JobOptions {
    /// The workers' algorithm.
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
        if self.algorithm.is_in_step() {
            // Else it is found out when an earlier run of this name cannot be resumed any more.
            job::lanes_of(config.train.batch_size, self.job.workers)?;
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

    /// Whether this process validates, saves and reports: the only one, or that of the first worker.
    pub(crate) fn leads(&self) -> bool {
        self.rank() == 0
    }

    /// Tells workers on other hosts, which wait for this one, that it failed before it came to them. A stop is not told: whoever was
    /// stopped may be started again.
    pub(crate) fn turn_away(&self, error: &LearnError) {
        if !error.is_stop() {
            job::reject_workers(&self.job, &format!("it could not start: {error}"));
        }
    }

    /// The worker of this process; the first one, if all are here.
    fn rank(&self) -> u32 {
        match &self.job.place {
            job::Place::Here => 0,
            job::Place::Hosts(hosts) => hosts.rank,
        }
    }

    pub(crate) fn is_here(&self) -> bool {
        matches!(self.job.place, job::Place::Here)
    }
}

/// The results of a job that are not in the trainer.
#[derive(Debug, Default)]
pub(crate) struct JobEnd {
    /// Number of pushes by how many pushes of others they missed; `None` if not counted.
    pub(crate) staleness: Option<Vec<u64>>,
    /// Whether it was stopped in the middle of a pass, so that the tables are not those of the state.
    pub(crate) is_cut: bool,
}

/// Trains until all passes are done, validation stops improving, or the run is asked to stop. A stop restores the
/// state saved at the end of the last pass.
pub(crate) fn run(
    trainer: &mut Trainer<'_>,
    options: &JobOptions,
    recording: &Recording,
    cluster: Option<&Arc<Cluster>>,
) -> Result<JobEnd, LearnError> {
    let mut end = JobEnd::default();
    if trainer.state.pass_to_judge && !trainer.judge_pass()? {
        trainer.save_stopped()?;
        return Ok(end);
    }
    let model = Arc::clone(&trainer.model);
    let goes_on = !trainer.state.is_whole(&model.config().train);
    // Workers on other hosts wait to hear it.
    if !goes_on && options.is_here() {
        return Ok(end);
    }
    let order = Order::begin(recording, &model, options)?;
    let (stages, stop) = (trainer.stages.clone(), trainer.stop);
    let RunState { pass, step, examples, plateaus, .. } = trainer.state;
    let start = Start { pass, step, examples, plateaus, goes_on };
    let mut judge = Judge::new(trainer);
    let train = model.config().train.clone();
    let mut hear = |said: WorkerMsg, verdicts: &mut Option<Sender<Judged>>| match said {
        WorkerMsg::Progress(rows) => {
            let pass = judge.boundary.pass + 1;
            judge.progress.note(rows, pass, train.passes, &mut *judge.trainer.observer);
        }
        WorkerMsg::Window { scores, steps, large } => {
            judge.trainer.take_window(&Window { scores: scores.to_scores(), steps, large }, &train);
        }
        WorkerMsg::Started(_) => judge.begin(),
        WorkerMsg::Ended(end) => judge.end_pass(&end, verdicts),
        // It has judged by itself.
        WorkerMsg::Judged(_) => {}
    };
    let worked = work(
        Workers {
            model: Some(&model),
            config: model.config(),
            options,
            order: order.as_ref(),
            cluster,
            stages,
            start,
            stop,
        },
        &mut hear,
    );
    match worked {
        _ if judge.failed.is_some() => judge.failed.map_or(Ok(end), Err),
        Err(error) if error.is_stop() => {
            let by = match &error {
                LearnError::Job(by) => by.to_string(),
                _ => "the job was stopped".to_owned(),
            };
            let is_whole = judge.trainer.state.pass_to_judge;
            if is_whole {
                // Asked to stop while it validated: the tables are those of the pass.
                judge.trainer.save_stopped()?;
            } else if judge.trainer.has_earlier {
                // An untrained model is not worth what an earlier run has saved.
                return Err(LearnError::JobUnsaved { by });
            } else {
                drop(model);
                judge.go_back()?;
            }
            end.is_cut = !is_whole;
            if let Some(words) = order.and_then(Order::give_up) {
                (judge.trainer.observer)(&Event::Recorded { words: &words });
            }
            let pass = judge.trainer.state.pass;
            (judge.trainer.observer)(&Event::JobStopped { words: &job_stopped(&by, pass) });
            Ok(end)
        }
        Err(error) => Err(error),
        Ok(_) => {
            if let Some(order) = order {
                let words = order.finish(judge.trainer.state.examples)?;
                (judge.trainer.observer)(&Event::Recorded { words: &words });
            }
            end.staleness = (!judge.staleness.is_empty()).then_some(judge.staleness);
            Ok(end)
        }
    }
}

/// The inputs of the workers of this process.
pub(crate) struct Workers<'a> {
    /// None: they find its tables on the servers, where the first worker has made them.
    model: Option<&'a Model>,
    config: &'a Config,
    options: &'a JobOptions,
    order: Option<&'a Order>,
    cluster: Option<&'a Arc<Cluster>>,
    stages: Stages,
    start: Start,
    stop: &'a AtomicBool,
}

/// Starts the workers and hears them until they end.
fn work(
    workers: Workers<'_>,
    hear: &mut dyn FnMut(WorkerMsg, &mut Option<Sender<Judged>>),
) -> Result<(), LearnError> {
    let Workers { model, config, options, order, cluster, stages, start, stop } = workers;
    let tables = match (cluster, model) {
        // On several hosts the others know the tables only when the first worker has come.
        (Some(cluster), Some(model)) if options.is_here() => {
            Tables::Servers(Arc::clone(cluster), model.client().remote_tables().to_vec())
        }
        (Some(cluster), _) => Tables::Servers(Arc::clone(cluster), Vec::new()),
        (None, model) => {
            Tables::Embedded(model.map(|model| model.client().tables().to_vec()).unwrap_or_default())
        }
    };
    let job_options = job::Options { seed: config.seed, ..options.job.clone() };
    let threads = options.threads();
    let (said, heard) = sync_channel(threads * WINDOWS_IN_FLIGHT);
    let rows = Arc::new(AtomicU64::new(0));
    let (verdicts, awaited) = channel();
    let shared = JobShared {
        config,
        encoder: match model {
            Some(model) => model.training_encoder()?,
            None => encoder(config, Purpose::Train)?,
        },
        order,
        bound: options.staleness,
        start,
        stop,
        pushes: if options.is_here() {
            (0..threads).map(|_| Default::default()).collect()
        } else {
            Vec::new()
        },
        timeout: job_options.timeout,
        said,
        rows: Arc::clone(&rows),
        verdicts: Mutex::new(awaited),
        account: Mutex::new((u64::MAX, Arc::new(BadRows::new(config.data.reading.on_bad_row)))),
    };
    std::thread::scope(|scope| {
        let running = spawn(scope, move || {
            // The shared state ends with the workers, and with it their messages.
            let shared = shared;
            let work = |worker: &mut Worker| {
                let found = match (model, cluster) {
                    (None, Some(cluster)) => Some(Model::found_on_servers(config.clone(), cluster)?),
                    _ => None,
                };
                let Some(model) = model.or(found.as_ref()) else { return Err(LearnError::Stopped) };
                let mut learner = Learner::new(&shared, model, options.algorithm, worker)?;
                train(options.algorithm, &mut learner, worker).map_err(|error| match error {
                    // Others, if there are any, hear that it was stopped, not that it failed.
                    LearnError::Client(ClientError::Stopped { .. }) => {
                        worker.check_halt().err().map_or(error, LearnError::from)
                    }
                    error => error,
                })
            };
            job::run(&job_options, &tables, &stages, work).map(|_| ())
        })?;
        let mut verdicts = Some(verdicts);
        loop {
            let said = heard.recv_timeout(POLL);
            // Before the message, so that a pass ends with all of its rows.
            hear(WorkerMsg::Progress(rows.load(Ordering::Relaxed)), &mut verdicts);
            match said {
                Ok(said) => hear(said, &mut verdicts),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        join(running)
    })
}

/// The function of every worker.
fn train(algorithm: Algorithm, learner: &mut Learner<'_>, worker: &mut Worker) -> Result<(), LearnError> {
    match algorithm.is_in_step() {
        true => synchronous::train(learner, worker, algorithm.order()),
        false => asynchronous::train(learner, worker, algorithm.order()),
    }
}

/// Progress of a job by rows, for its observer.
#[derive(Debug, Default)]
struct JobProgress {
    /// Whether a pass is under way.
    is_under_way: bool,
    /// Rows since the workers began, and what they were at the end of the last pass.
    rows: u64,
    before: u64,
    /// Rows of the last pass.
    rows_total: Option<u64>,
}

impl JobProgress {
    fn begin(&mut self) {
        self.is_under_way = true;
    }

    fn note(&mut self, rows: u64, pass: u64, passes: u64, observer: &mut dyn FnMut(&Event<'_>)) {
        self.rows = rows;
        if self.is_under_way && pass <= passes {
            let (rows, rows_total) = (rows - self.before, self.rows_total);
            observer(&Event::TrainingRows { pass, passes, rows, rows_total });
        }
    }

    fn end_pass(&mut self) {
        self.rows_total = Some(self.rows - self.before);
        self.before = self.rows;
    }
}

/// The thread that hears the workers, and after each pass validates, saves and says whether another one follows.
struct Judge<'a, 'b> {
    trainer: &'a mut Trainer<'b>,
    /// The state at the end of the last pass.
    boundary: RunState,
    since: Instant,
    staleness: Vec<u64>,
    progress: JobProgress,
    /// The first failure.
    failed: Option<LearnError>,
}

impl<'a, 'b> Judge<'a, 'b> {
    fn new(trainer: &'a mut Trainer<'b>) -> Self {
        let boundary = trainer.state.clone();
        Judge {
            trainer,
            boundary,
            since: Instant::now(),
            staleness: Vec::new(),
            progress: JobProgress::default(),
            failed: None,
        }
    }

    /// The workers' wait for each other before is no training time.
    fn begin(&mut self) {
        self.since = Instant::now();
        self.progress.begin();
        self.trainer.begin_line();
    }

    /// Judges a pass and tells the workers. After a stop they are not told, and so they end.
    fn end_pass(&mut self, end: &PassEnd, verdicts: &mut Option<Sender<Judged>>) {
        self.close_pass(end);
        let judged = match self.judge_pass(end) {
            Ok(Some(verdict)) => Ok(verdict),
            Ok(None) => return *verdicts = None,
            Err(error) => {
                let reason = error.to_string();
                self.failed = Some(error);
                Err(reason)
            }
        };
        // Should the workers have failed meanwhile, their error says so.
        verdicts.as_ref().map(|verdicts| verdicts.send(judged));
    }

    /// Takes what all workers say for what this process has heard of its own.
    fn close_pass(&mut self, end: &PassEnd) {
        let Judge { trainer, boundary, progress, .. } = self;
        progress.end_pass();
        trainer.print_rest();
        let seconds = self.since.elapsed().as_secs_f64();
        trainer.state.step = boundary.step + end.steps;
        trainer.state.examples = boundary.examples + end.scores.len();
        trainer.state.train_seconds = boundary.train_seconds + seconds;
        trainer.state.bad_rows = end.bad_rows;
        if end.bad_rows > 0 {
            let (count, messages) = (end.bad_rows, &end.bad_row_messages);
            (trainer.observer)(&Event::BadRows { count, messages });
        }
        trainer.pass_scores = end.scores.to_scores();
        trainer.close_pass(seconds);
        if self.staleness.len() < end.staleness.len() {
            self.staleness.resize(end.staleness.len(), 0);
        }
        self.staleness.iter_mut().zip(&end.staleness).for_each(|(sum, count)| *sum += count);
        // Without rows there is nothing to tell but the error.
        if let Some(total) = trainer.passes.last().filter(|total| total.metrics.examples > 0) {
            let (step, examples) = (trainer.state.step, trainer.state.examples);
            let line = end.line(step, examples, total);
            (trainer.observer)(&Event::Pass(&line));
        }
    }

    /// Validates and saves the pass; none if that was stopped.
    fn judge_pass(&mut self, end: &PassEnd) -> Result<Option<Verdict>, LearnError> {
        let trainer = &mut *self.trainer;
        if trainer.passes.last().is_none_or(|pass| pass.metrics.examples == 0) {
            let inputs = &trainer.model.config().data.train.0;
            return Err(LearnError::no_rows_of(inputs, end.bad_rows, &end.bad_row_messages));
        }
        if !trainer.judge_pass()? {
            return Ok(None);
        }
        self.boundary = trainer.state.clone();
        self.since = Instant::now();
        let goes_on = !trainer.state.is_whole(&trainer.model.config().train);
        self.progress.is_under_way = goes_on;
        if goes_on && trainer.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        Ok(Some(Verdict { goes_on, plateaus: trainer.state.plateaus }))
    }

    /// Restores the state of the end of the last pass; before the first one ended, an untrained model that was never
    /// saved.
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
