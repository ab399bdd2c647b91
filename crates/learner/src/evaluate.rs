//! Scoring of files with a model: metrics over labelled rows, or one prediction per row in the order of the input.
//! Nothing here changes a table.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use sanderling_client::{Lookup, Occurrences};
use sanderling_formats::{BLOCK_BYTES, BadRows, DataConfig};
use sanderling_loader::{Pass, PassOptions, STAGES};
use sanderling_observe::Stages;
use sanderling_sample::Rows;
use sanderling_store::Absent;

use crate::compute::{Compute, FeatureSums};
use crate::config::Loss;
use crate::error::{LearnError, names};
use crate::event::ScanProgress;
use crate::importance::{ContributionSums, Importance};
use crate::known_keys::KnownKeys;
use crate::magnitude;
use crate::metrics::{EXACT_ROWS_MAX, Scores};
use crate::model::{Model, Purpose};
use crate::threads::{join, spawn};

/// Rows scored at a time: enough keys per table to look up in one go, few enough to stay in the cache.
const SCORE_BATCH_ROWS: usize = 512;
/// Most threads that decode ahead of the one that predicts in order.
const DECODERS_MAX: usize = 4;
/// Seconds between two looks at the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// A thread, or why there is none.
type Started<'a, T> = Result<ScopedJoinHandle<'a, T>, LearnError>;

/// The results of scoring labelled files.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// The scored rows.
    pub scores: Scores,
    /// Rows with a positive label, each counted once; 0 of a regression.
    pub positives: u64,
    /// By feature, how many of its keys the model knows.
    pub known: Vec<KnownKeys>,
    /// Feature importance over these rows, where it was asked for.
    pub(crate) importance: Option<Importance>,
}

/// The results of scoring files without labels.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// Rows of the input, bad ones included.
    pub rows: u64,
    /// By feature, how many of its keys the model knows.
    pub known: Vec<KnownKeys>,
}

/// Scores every row of labelled files.
///
/// `stop` ends the scan early with [`LearnError::Stopped`].
///
/// # Errors
/// [`LearnError::Prediction`] where a prediction is infinite or undefined.
pub fn evaluate(
    model: &Model,
    inputs: &[String],
    config: &DataConfig,
    bad_rows: &Arc<BadRows>,
    threads: usize,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(ScanProgress),
) -> Result<Evaluation, LearnError> {
    let purpose = Purpose::Score;
    let scan =
        Scan { model, inputs, purpose, config, bad_rows, threads, stop, rows_max: u64::MAX, explains: false };
    scan.run(progress)
}

/// A scan over labelled files, and what is measured.
pub(crate) struct Scan<'a> {
    pub(crate) model: &'a Model,
    pub(crate) inputs: &'a [String],
    /// Which rows of them.
    pub(crate) purpose: Purpose,
    pub(crate) config: &'a DataConfig,
    pub(crate) bad_rows: &'a Arc<BadRows>,
    pub(crate) threads: usize,
    pub(crate) stop: &'a AtomicBool,
    /// About how many rows are scored at most; the first ones.
    pub(crate) rows_max: u64,
    /// Whether feature importance is measured.
    pub(crate) explains: bool,
}

/// One thread's measurements.
struct Part {
    scores: Scores,
    positives: u64,
    known: Vec<Occurrences>,
    contributions: ContributionSums,
}

impl Scan<'_> {
    /// Scores the rows.
    pub(crate) fn run(&self, progress: &mut dyn FnMut(ScanProgress)) -> Result<Evaluation, LearnError> {
        let features = &self.model.config().feature;
        let names = || features.iter().map(|feature| feature.name.as_str());
        let mut all = Part::new(features.len(), Scores::new());
        for part in self.parts(progress)? {
            all.merge(&part);
        }
        if self.stop.load(Ordering::Relaxed) {
            return Err(LearnError::Stopped);
        }
        if all.scores.is_empty() {
            return Err(LearnError::no_rows(self.inputs, self.bad_rows));
        }
        let importance = self.explains.then(|| all.contributions.finish(names()));
        let known = KnownKeys::of(names(), &all.known);
        Ok(Evaluation { scores: all.scores, positives: all.positives, known, importance })
    }

    /// Each thread's measurements.
    fn parts(&self, progress: &mut dyn FnMut(ScanProgress)) -> Result<Vec<Part>, LearnError> {
        let Scan { model, threads, stop, .. } = *self;
        let encoder = model.encoder(self.purpose)?;
        let pass = Pass::open(self.inputs, self.config, &encoder, self.bad_rows, in_order(threads))?;
        let stages = Stages::new(&STAGES);
        let (failed, scored) = (AtomicBool::new(false), AtomicU64::new(0));
        let work = |mut feed: sanderling_loader::Feed<'_>| -> Result<Part, LearnError> {
            let mut scorer = Scorer::new(model);
            // All threads together hold no more rows than one may.
            let scores = Scores::with_exact_rows(EXACT_ROWS_MAX / threads.max(1));
            let mut part = Part::new(model.config().feature.len(), scores);
            let mut timer = stages.timer();
            while !stop.load(Ordering::Relaxed)
                && !failed.load(Ordering::Relaxed)
                && scored.load(Ordering::Relaxed) < self.rows_max
            {
                let Some(rows) = feed.next(SCORE_BATCH_ROWS, &mut timer)? else { break };
                scored.fetch_add(rows.len() as u64, Ordering::Relaxed);
                self.score(&mut scorer, &rows, &mut part)?;
            }
            Ok(part)
        };
        // Told of before any row is read: a short scan may be over before the first look at its threads.
        progress(scan_of(&pass));
        std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads)
                .map(|_| {
                    // A stream may be silent, so a detached thread reads it.
                    let is_stream = pass.bytes_total().is_none();
                    let feed = if is_stream { pass.feed_ahead(stages.timer()) } else { pass.feed() };
                    let fail = |_: &LearnError| failed.store(true, Ordering::Relaxed);
                    spawn(scope, move || work(feed).inspect_err(fail)).inspect_err(fail)
                })
                .collect();
            while !are_done(&handles) {
                wait(&handles);
                progress(scan_of(&pass));
                if stop.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed) {
                    pass.stop();
                }
            }
            handles.into_iter().map(|thread| thread.and_then(join)).collect()
        })
    }

    fn score(&self, scorer: &mut Scorer, rows: &Rows<'_>, part: &mut Part) -> Result<(), LearnError> {
        let model = self.model;
        let is_regression = model.config().train.loss == Loss::Mse;
        let logits = scorer.logits(model, rows)?;
        for (row, ((logit, label), weight)) in
            logits.iter().zip(rows.labels()).zip(rows.weights()).enumerate()
        {
            if !logit.is_finite() {
                return Err(bad_prediction(model, self.inputs, rows, row, None));
            }
            if is_regression {
                part.scores.push_number(*logit, *label, *weight);
                continue;
            }
            part.scores.push(*logit, *label, *weight);
            part.positives += u64::from(*label > 0.5);
        }
        scorer.count_known(&mut part.known);
        if self.explains {
            scorer.explain(rows, &mut part.contributions);
        }
        Ok(())
    }
}

impl Part {
    fn new(features: usize, scores: Scores) -> Self {
        let known = vec![Occurrences::default(); features];
        Part { scores, positives: 0, known, contributions: ContributionSums::new(features) }
    }

    fn merge(&mut self, other: &Part) {
        self.scores.merge(&other.scores);
        self.positives += other.positives;
        for (mine, theirs) in self.known.iter_mut().zip(&other.known) {
            mine.all += theirs.all;
            mine.known += theirs.known;
        }
        self.contributions.merge(&other.contributions);
    }
}

/// The error of a prediction that is no number, of a row of these; `number` is the row's place in the input, if known.
fn bad_prediction(
    model: &Model,
    inputs: &[String],
    rows: &Rows<'_>,
    row: usize,
    number: Option<u64>,
) -> LearnError {
    let cause = magnitude::cause(&rows.slice(row..row + 1), &model.config().feature);
    let which = number.map_or("a row".to_owned(), |number| format!("row {number}"));
    LearnError::Prediction { input: names(inputs), which, cause }
}

fn scan_of(pass: &Pass) -> ScanProgress {
    ScanProgress { bytes_read: pass.bytes_read(), bytes_total: pass.bytes_total() }
}

/// In the order of the input.
fn in_order(workers: usize) -> PassOptions {
    PassOptions { shuffle: 0, seed: 0, number: 0, workers, used_rows: 0, unit_bytes: BLOCK_BYTES }
}

/// Sleeps until something may have changed; short at first so that small files are not waited for.
fn wait<T>(handles: &[Started<'_, T>]) {
    let start = Instant::now();
    while start.elapsed() < PROGRESS_INTERVAL && !are_done(handles) {
        std::thread::sleep(PROGRESS_INTERVAL / 50);
    }
}

fn are_done<T>(handles: &[Started<'_, T>]) -> bool {
    handles.iter().flatten().all(ScopedJoinHandle::is_finished)
}

/// Predicts every row of the input, in its order; labels may be absent.
///
/// `write` gets the probabilities of consecutive rows: NaN for a bad row that `bad_rows` allows.
///
/// `stop` ends it early with [`LearnError::Stopped`], also while a stream is silent.
pub fn predict(
    model: &Model,
    inputs: &[String],
    config: &DataConfig,
    bad_rows: &Arc<BadRows>,
    stop: &Arc<AtomicBool>,
    mut write: impl FnMut(&[f32], ScanProgress) -> Result<(), LearnError>,
) -> Result<Predicted, LearnError> {
    let encoder = model.encoder(Purpose::Predict)?;
    let pass = Pass::open_until(inputs, config, &encoder, bad_rows, in_order(1), Arc::clone(stop))?;
    let stages = Stages::new(&STAGES);
    let decoders = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(DECODERS_MAX));
    let mut feed = pass.feed_ahead_by((0..decoders).map(|_| stages.timer()));
    let mut timer = stages.timer();
    let mut scorer = Scorer::new(model);
    let features = &model.config().feature;
    let mut known = vec![Occurrences::default(); features.len()];
    let mut rows_done = 0;
    while !stop.load(Ordering::Relaxed) {
        // A stop may also end the writer of the stream: then the end is not the end of the rows.
        let Some(rows) = feed.next_some(SCORE_BATCH_ROWS, &mut timer)? else { break };
        write(scorer.probabilities(model, inputs, &rows, rows_done)?, scan_of(&pass))?;
        scorer.count_known(&mut known);
        rows_done += rows.len() as u64;
    }
    if stop.load(Ordering::Relaxed) {
        return Err(LearnError::Stopped);
    }
    Ok(Predicted {
        rows: rows_done,
        known: KnownKeys::of(features.iter().map(|feature| feature.name.as_str()), &known),
    })
}

/// One worker's scratch for scoring.
pub(crate) struct Scorer {
    lookup: Lookup,
    compute: Compute,
    unknown: Vec<bool>,
    feature_sums: FeatureSums,
}

impl Scorer {
    pub(crate) fn new(model: &Model) -> Self {
        let mut lookup = model.client().lookup();
        lookup.note_missing();
        let compute = Compute::new(model.config());
        Scorer { lookup, compute, unknown: Vec::new(), feature_sums: FeatureSums::default() }
    }

    /// The logits of the rows; keys that were never trained count as zero.
    fn logits(&mut self, model: &Model, rows: &Rows<'_>) -> Result<&mut [f32], LearnError> {
        model.client().pull(rows, Absent::Zero, &mut self.lookup)?;
        self.compute.forward(rows, &self.lookup);
        Ok(&mut self.compute.logits)
    }

    /// The predictions of the rows, the first of which is row `rows_before + 1` of the input; NaN for placeholders.
    pub(crate) fn probabilities(
        &mut self,
        model: &Model,
        inputs: &[String],
        rows: &Rows<'_>,
        rows_before: u64,
    ) -> Result<&[f32], LearnError> {
        let loss = model.config().train.loss;
        let logits = self.logits(model, rows)?;
        for (row, (x, weight)) in logits.iter_mut().zip(rows.weights()).enumerate() {
            // Only a placeholder has no weight that is a number.
            *x = if weight.is_nan() { f32::NAN } else { loss.prediction(*x) };
            if !x.is_finite() && !weight.is_nan() {
                return Err(bad_prediction(model, inputs, rows, row, Some(rows_before + row as u64 + 1)));
            }
        }
        Ok(logits)
    }

    /// Counts, for the rows that were scored last, the keys that have a row.
    fn count_known(&mut self, known: &mut [Occurrences]) {
        self.lookup.count_known(&mut self.unknown, known);
    }

    /// Calls `each` with feature, row and contribution, of the rows that were scored last; returns the bias.
    pub(crate) fn contributions(&mut self, rows: &Rows<'_>, each: impl FnMut(usize, usize, f64)) -> f64 {
        let Scorer { compute, lookup, feature_sums, .. } = self;
        compute.contributions(rows, lookup, feature_sums, each);
        lookup.constant().first().copied().map_or(0.0, f64::from)
    }

    /// Adds what each feature contributes to the logits of the rows that were scored last.
    fn explain(&mut self, rows: &Rows<'_>, to: &mut ContributionSums) {
        let (weights, sums) = (rows.weights(), &mut to.sums);
        self.contributions(rows, |feature, row, contribution| {
            sums[feature] += f64::from(weights[row]) * contribution.abs();
        });
        to.weight += weights.iter().map(|&weight| f64::from(weight)).sum::<f64>();
        to.rows += rows.len() as u64;
    }
}
