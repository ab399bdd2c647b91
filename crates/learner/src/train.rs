//! The training loop: passes over the data in segments, between which the run can be validated, saved and stopped.
//!
//! Workers train within a segment; between segments the tables do not change, so a save is one consistent state. The
//! loop knows neither formats nor tables, only the model and its feed.

mod validate;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use sanderling_formats::{BLOCK_BYTES, BadRows};
use sanderling_loader::{Pass, PassOptions};
use sanderling_observe::Stages;
use sanderling_sample::Encoder;

use crate::config::Train;
use crate::error::LearnError;
use crate::event::{Event, ScanProgress, StepLine};
use crate::importance::Importance;
use crate::known_keys::KnownKeys;
use crate::measured::MeasuredOn;
use crate::metrics::Scores;
use crate::model::Model;
use crate::state::{PROGRESSIVE_ROWS_MAX, RunState, data_bytes};
use crate::table_counters::TableCounters;
use crate::threads::{join, spawn};
use crate::timing::PassTotal;
use crate::worker::{EVALUATE, SAVE, STAGES, Segment, Window, Worker};

/// The stages of a training run, and which of them validation and saving are.
#[derive(Clone, Copy)]
pub(crate) struct StageList {
    pub(crate) names: &'static [&'static str],
    pub(crate) evaluate: usize,
    pub(crate) save: usize,
}

impl Default for StageList {
    /// The stages of the workers of this loop.
    fn default() -> Self {
        StageList { names: &STAGES, evaluate: EVALUATE, save: SAVE }
    }
}

/// Windows that may wait for the coordinator, per worker.
const WINDOWS_IN_FLIGHT: usize = 2;
/// How often progress is reported and a request to stop is noticed.
const POLL: Duration = Duration::from_millis(50);

/// A run under way.
pub(crate) struct Trainer<'a> {
    pub(crate) model: Arc<Model>,
    pub(crate) state: RunState,
    /// Progressive scores of the pass under way.
    pub(crate) pass_scores: Scores,
    pub(crate) stages: Stages,
    stage_list: StageList,
    /// Threads that validate.
    pub(crate) threads: usize,
    /// Scores of the best validation of this session, or without validation of the first pass, for the plots.
    pub(crate) plot_scores: Option<Scores>,
    /// Whether these are of training (seen) data.
    pub(crate) plots_seen: bool,
    /// Passes that this session ended.
    pub(crate) passes: Vec<PassTotal>,
    /// Where the served model and the state to resume from are saved.
    pub(crate) model_dir: PathBuf,
    pub(crate) last_dir: PathBuf,
    /// Whether what is saved there is of an earlier run: this one, which is not resumed, has saved nothing yet.
    pub(crate) has_earlier: bool,
    /// Fates of keys before this session.
    counters_before: BTreeMap<String, TableCounters>,
    /// Bytes of the training files when they were last looked at.
    bytes_seen: Option<u64>,
    /// Whether features whose values swamp the model were told of.
    has_told_large: bool,
    /// Feature importance over the rows of the best validation of this session.
    pub(crate) importance: Option<Importance>,
    /// By feature, the keys that the last validation of this session knew.
    pub(crate) known: Vec<KnownKeys>,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) observer: &'a mut dyn FnMut(&Event<'_>),
    line: LineClock,
}

/// The state of the next step line.
struct LineClock {
    scores: Scores,
    steps: u64,
    /// The time of the line before, moved by pauses of training.
    since: Instant,
}

enum PassEnd {
    Whole,
    Stopped,
}

impl<'a> Trainer<'a> {
    pub(crate) fn new(
        model: Model,
        state: RunState,
        pass_scores: Scores,
        (model_dir, last_dir): (PathBuf, PathBuf),
        stage_list: StageList,
        stop: &'a AtomicBool,
        observer: &'a mut dyn FnMut(&Event<'_>),
    ) -> Self {
        let scores = Scores::with_exact_rows(PROGRESSIVE_ROWS_MAX);
        let line = LineClock { scores, steps: 0, since: Instant::now() };
        let stages = Stages::new(stage_list.names);
        let (threads, bytes_seen) = (model.config().train.threads, state.data_bytes);
        let counters_before = state.table_counters.clone();
        Trainer {
            model: Arc::new(model),
            state,
            pass_scores,
            stages,
            stage_list,
            threads,
            plot_scores: None,
            plots_seen: false,
            passes: Vec::new(),
            model_dir,
            last_dir,
            has_earlier: false,
            counters_before,
            bytes_seen,
            has_told_large: false,
            importance: None,
            known: Vec::new(),
            stop,
            observer,
            line,
        }
    }

    /// Trains until all passes are done, validation stops improving, or the run is asked to stop.
    pub(crate) fn run(&mut self) -> Result<(), LearnError> {
        let encoder = self.model.training_encoder()?;
        loop {
            if self.state.pass_to_judge && !self.judge_pass()? {
                return self.save_stopped();
            }
            if self.state.is_whole(&self.model.config().train) {
                return Ok(());
            }
            let before_s = self.state.train_seconds;
            match self.pass(&encoder)? {
                PassEnd::Stopped => return self.save_stopped(),
                PassEnd::Whole => self.close_pass(self.state.train_seconds - before_s),
            }
        }
    }

    /// Makes the pass under way the last one that is done; it took so many seconds.
    pub(crate) fn close_pass(&mut self, seconds: f64) {
        self.state.pass += 1;
        self.state.used_rows = 0;
        let metrics = self.pass_scores.metrics();
        self.state.progressive = Some(metrics);
        self.passes.push(PassTotal::new(self.state.pass, seconds, metrics));
        self.state.pass_to_judge = true;
        let is_first = self.state.pass == 1;
        if is_first {
            self.state.first_pass = Some(metrics);
        }
        // Of a run that was resumed after its first pass there are only scores of seen rows to plot.
        if self.validates() || (!is_first && self.plot_scores.is_some() && !self.plots_seen) {
            self.pass_scores.clear();
        } else {
            self.plot_scores = Some(std::mem::take(&mut self.pass_scores));
            self.plots_seen = !is_first;
        }
    }

    /// Tells if the training files have changed meanwhile. That they cannot be found is said by the next pass, if there is one.
    fn look_at_input(&mut self) {
        let now = data_bytes(self.model.config()).ok().flatten();
        if let (Some(before), Some(now), true) = (self.state.data_bytes, now, now != self.bytes_seen) {
            self.bytes_seen = Some(now);
            (self.observer)(&Event::InputChanged { before, now });
        }
    }

    /// Validates the pass just ended, if there is something to validate on, and saves it; false if that was stopped.
    pub(crate) fn judge_pass(&mut self) -> Result<bool, LearnError> {
        let validates = self.validates();
        let best = match validates.then(|| self.validate()) {
            Some(Err(LearnError::Stopped)) => return Ok(false),
            Some(Err(error)) => {
                // Training took long, and is not what failed. If it cannot be saved either, the first error is the one to mend.
                if self.save_stopped().is_ok() {
                    (self.observer)(&Event::Unvalidated { pass: self.state.pass });
                }
                return Err(error);
            }
            Some(Ok(best)) => best,
            None => true,
        };
        self.state.pass_to_judge = false;
        if best {
            self.save(&self.model_dir.clone())?;
        }
        let train = &self.model.config().train;
        let (whole, early) = (self.state.is_whole(train), self.state.stopped_early(train));
        if validates && best && whole {
            // The model just saved is the state to resume from, too.
            remove_dir(&self.last_dir)?;
        } else if validates {
            self.save(&self.last_dir.clone())?;
        }
        // Only now: of inputs by url it asks others, who may be slow.
        self.look_at_input();
        if early {
            let best_pass = self.state.best.map_or(0, |best| best.0);
            (self.observer)(&Event::EarlyStop { best_pass });
        }
        Ok(true)
    }

    pub(crate) fn validates(&self) -> bool {
        self.model.config().data.validates()
    }

    /// One pass, or what is left of it.
    fn pass(&mut self, encoder: &Arc<Encoder>) -> Result<PassEnd, LearnError> {
        let config = self.model.config().clone();
        let train = &config.train;
        if self.pass_scores.is_empty() {
            self.pass_scores = Scores::with_exact_rows(PROGRESSIVE_ROWS_MAX);
        }
        loop {
            let bad_rows = Arc::new(BadRows::new(config.data.reading.on_bad_row));
            let options = PassOptions {
                shuffle: train.shuffle_rows,
                seed: config.seed,
                number: self.state.pass,
                workers: train.threads,
                used_rows: self.state.used_rows,
                unit_bytes: unit_bytes(train),
            };
            let (inputs, reading) = (&config.data.train.0, &config.data.reading);
            let mut skipping = |bytes_read, bytes_total| {
                let (pass, passes) = (self.state.pass + 1, train.passes);
                (self.observer)(&Event::Training {
                    pass,
                    passes,
                    scan: ScanProgress { bytes_read, bytes_total },
                });
                !self.stop.load(Ordering::Relaxed)
            };
            let stopped = Arc::default();
            let pass =
                Pass::open_while(inputs, reading, encoder, &bad_rows, options, stopped, &mut skipping)?;
            if pass.is_stopped() {
                return Ok(PassEnd::Stopped);
            }
            let mut workers: Vec<Worker<'_>> = (0..train.threads)
                .map(|_| {
                    let feed = if reads_ahead(train, &pass) {
                        pass.feed_ahead(self.stages.timer())
                    } else {
                        pass.feed()
                    };
                    Worker::new(&self.model, feed, self.stages.timer())
                })
                .collect();
            // One worker keeps its feed between segments; several have emptied theirs and reopen the input.
            loop {
                let quota = self.steps_to_next_save();
                if quota == 0 {
                    return Ok(PassEnd::Stopped);
                }
                let ended = self.segment(&pass, &mut workers, quota)?;
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(PassEnd::Stopped);
                }
                if ended && !pass.is_stopped() {
                    drop(workers);
                    self.end_pass(&bad_rows)?;
                    return Ok(PassEnd::Whole);
                }
                if self.steps_to_next_save() > 0 {
                    self.save_state()?;
                }
                if ended {
                    break;
                }
            }
        }
    }

    fn end_pass(&mut self, bad_rows: &BadRows) -> Result<(), LearnError> {
        self.state.bad_rows = bad_rows.count();
        self.report_bad_rows(bad_rows);
        if self.state.used_rows == 0 {
            return Err(LearnError::no_rows(&self.model.config().data.train.0, bad_rows));
        }
        self.print_rest();
        Ok(())
    }

    /// The time of the next line begins now.
    pub(crate) fn begin_line(&mut self) {
        self.line.since = Instant::now();
    }

    /// A line of what came after the last one.
    pub(crate) fn print_rest(&mut self) {
        if self.line.steps > 0 {
            self.print_line();
        }
    }

    pub(crate) fn report_bad_rows(&mut self, bad_rows: &BadRows) {
        if bad_rows.headers() > 0 {
            (self.observer)(&Event::RepeatedHeaders { count: bad_rows.headers() });
        }
        if bad_rows.count() > 0 {
            let messages = bad_rows.messages();
            (self.observer)(&Event::BadRows { count: bad_rows.count(), messages: &messages });
        }
    }

    /// Steps until the run must be saved or stopped; 0 if it must stop now.
    fn steps_to_next_save(&self) -> u64 {
        let train = &self.model.config().train;
        let step = self.state.step;
        let to_multiple = |every: u64| if every == 0 { u64::MAX } else { every - step % every };
        let to_end = if train.max_steps == 0 { u64::MAX } else { train.max_steps.saturating_sub(step) };
        to_multiple(train.save_every_steps).min(to_end)
    }

    /// Lets the workers train for `quota` steps altogether; true if their feeds came to an end.
    fn segment(&mut self, pass: &Pass, workers: &mut [Worker<'_>], quota: u64) -> Result<bool, LearnError> {
        let config = self.model.config().clone();
        let halt = AtomicBool::new(false);
        let start = Instant::now();
        let (sender, receiver) = sync_channel::<Window>(workers.len() * WINDOWS_IN_FLIGHT);
        let model = Arc::clone(&self.model);
        let segment = Segment {
            model: &model,
            pass,
            train: &config.train,
            reduction: config.reduction(),
            quota: quota.div_ceil(workers.len() as u64),
            first_step: self.state.step,
            pass_number: self.state.pass,
            plateaus: self.state.plateaus,
            halt: &halt,
        };
        let results = std::thread::scope(|scope| {
            let segment = &segment;
            let end_all = || {
                segment.halt.store(true, Ordering::Relaxed);
                // One of the others may be waiting for a stream, which may be silent.
                segment.pass.stop();
            };
            let handles: Vec<_> = workers
                .iter_mut()
                .map(|worker| {
                    let sender = sender.clone();
                    let work = move || worker.run(segment, &sender).inspect_err(|_| end_all());
                    spawn(scope, work).inspect_err(|_| end_all())
                })
                .collect();
            drop(sender);
            loop {
                match receiver.recv_timeout(POLL) {
                    Ok(window) => self.take_window(&window, &config.train),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                let scan = ScanProgress { bytes_read: pass.bytes_read(), bytes_total: pass.bytes_total() };
                let (number, passes) = (self.state.pass + 1, config.train.passes);
                (self.observer)(&Event::Training { pass: number, passes, scan });
                if self.stop.load(Ordering::Relaxed) {
                    // One worker stops where it is; several finish what they hold, which makes it a prefix.
                    let alone = segment.train.threads == 1;
                    halt.fetch_or(alone, Ordering::Relaxed);
                    if !alone || reads_ahead(segment.train, pass) {
                        pass.stop();
                    }
                }
            }
            handles.into_iter().map(|worker| worker.and_then(join)).collect::<Vec<_>>()
        });
        self.state.train_seconds += start.elapsed().as_secs_f64();
        let mut ended = true;
        for result in results {
            ended &= result?;
        }
        Ok(ended)
    }

    pub(crate) fn take_window(&mut self, window: &Window, train: &Train) {
        self.state.step += window.steps;
        self.state.examples += window.scores.len();
        self.state.used_rows += window.scores.len();
        if !window.large.is_empty() && !std::mem::replace(&mut self.has_told_large, true) {
            (self.observer)(&Event::LargeValues { features: &window.large });
        }
        self.pass_scores.merge(&window.scores);
        self.line.scores.merge(&window.scores);
        self.line.steps += window.steps;
        if self.line.steps >= train.print_steps() {
            self.print_line();
        }
    }

    fn print_line(&mut self) {
        let seconds = self.line.since.elapsed().as_secs_f64().max(1e-9);
        let line = StepLine {
            step: self.state.step,
            pass: self.state.pass + 1,
            trained_examples: self.state.examples,
            measured_on: MeasuredOn::of_pass(self.state.pass + 1),
            metrics: self.line.scores.metrics(),
            steps_per_s: self.line.steps as f64 / seconds,
            examples_per_s: self.line.scores.len() as f64 / seconds,
        };
        self.state.add_train_point(line.metrics);
        (self.observer)(&Event::Step(&line));
        self.line.scores.clear();
        self.line.steps = 0;
        self.line.since = Instant::now();
    }
}

/// Removes a directory, if it is there.
pub(crate) fn remove_dir(path: &Path) -> Result<(), LearnError> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(LearnError::io(path)(error)),
        _ => Ok(()),
    }
}

/// Whether another thread decodes for a worker. Several workers decode for themselves; a single one has no other
/// worker to do it meanwhile, or to wait for a stream, which may be silent.
fn reads_ahead(train: &Train, pass: &Pass) -> bool {
    train.threads == 1 && (train.decodes_ahead() || pass.bytes_total().is_none())
}

/// Online learning: rows that are looked up together are of one unit where they are in order, and the more they are, the fewer
/// keys there are per row. Several workers take shorter ones, to see each other's updates sooner.
fn unit_bytes(train: &Train) -> usize {
    if train.batch_size == 1 && train.threads == 1 { 4 * BLOCK_BYTES } else { BLOCK_BYTES }
}
