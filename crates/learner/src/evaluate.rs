//! Scoring of files with a model: metrics over labelled rows, or one prediction per row in the order of the input.
//! Nothing here changes a table.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use sanderling_client::Lookup;
use sanderling_hub::{Pass, PassOptions, STAGES};
use sanderling_observe::Stages;
use sanderling_sample::{BLOCK_BYTES, BadRows, DataConfig, LabelUse, Rows};
use sanderling_store::Absent;

use crate::compute::Compute;
use crate::error::LearnError;
use crate::metrics::{EXACT_ROWS_MAX, Scores, sigmoid};
use crate::model::Model;
use crate::threads::{join, spawn};

/// Rows scored at a time: enough keys per table to look up in one go, few enough to stay in the cache.
const SCORE_BATCH_ROWS: usize = 512;
/// Seconds between two looks at the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// A thread, or why there is none.
type Started<'a, T> = Result<ScopedJoinHandle<'a, T>, LearnError>;

/// How far a scan over files is.
#[derive(Clone, Copy, Debug)]
pub struct ScanProgress {
    /// Bytes read, as stored.
    pub bytes_read: u64,
    /// Bytes in all, if known.
    pub bytes_total: Option<u64>,
}

/// Scores every row of labelled files.
///
/// `stop` ends the scan early with [`LearnError::Stopped`].
pub fn evaluate(
    model: &Model,
    inputs: &[String],
    config: &DataConfig,
    bad_rows: &Arc<BadRows>,
    threads: usize,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(ScanProgress),
) -> Result<Scores, LearnError> {
    let encoder = model.encoder(LabelUse::Required, false)?;
    let pass = Pass::open(inputs, config, &encoder, bad_rows, in_order(threads))?;
    let stages = Stages::new(&STAGES);
    let failed = AtomicBool::new(false);
    let work = |mut feed: sanderling_hub::Feed<'_>| -> Result<Scores, LearnError> {
        let mut scorer = Scorer::new(model);
        // All threads together hold no more rows than one may.
        let mut scores = Scores::with_exact_rows(EXACT_ROWS_MAX / threads.max(1));
        let mut timer = stages.timer();
        while !stop.load(Ordering::Relaxed) && !failed.load(Ordering::Relaxed) {
            let Some(rows) = feed.next(SCORE_BATCH_ROWS, &mut timer)? else { break };
            let logits = scorer.logits(model, &rows)?;
            for ((logit, label), weight) in logits.iter().zip(rows.labels()).zip(rows.weights()) {
                scores.push(*logit, *label, *weight);
            }
        }
        Ok(scores)
    };
    // Told of before any row is read: a short scan may be over before the first look at its threads.
    progress(scan_of(&pass));
    let parts = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|_| {
                // A stream may be silent: then it is a thread that nobody waits for that reads it.
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
        handles.into_iter().map(|thread| thread.and_then(join)).collect::<Vec<_>>()
    });
    let mut scores = Scores::new();
    for part in parts {
        scores.merge(&part?);
    }
    if stop.load(Ordering::Relaxed) {
        return Err(LearnError::Stopped);
    }
    if scores.is_empty() {
        return Err(LearnError::no_rows(inputs, bad_rows));
    }
    Ok(scores)
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

/// Predicts every row of the input, in its order: `write` gets the probabilities of consecutive rows, NaN for a row
/// that could not be read where `bad_rows` lets it pass. Labels may be absent.
///
/// `stop` ends it early with [`LearnError::Stopped`], also while a stream is silent.
pub fn predict(
    model: &Model,
    inputs: &[String],
    config: &DataConfig,
    bad_rows: &Arc<BadRows>,
    stop: &Arc<AtomicBool>,
    mut write: impl FnMut(&[f32], ScanProgress) -> Result<(), LearnError>,
) -> Result<u64, LearnError> {
    let encoder = model.encoder(LabelUse::Optional, false)?;
    let pass = Pass::open_until(inputs, config, &encoder, bad_rows, in_order(1), Arc::clone(stop))?;
    let stages = Stages::new(&STAGES);
    let (mut feed, mut timer) = (pass.feed_ahead(stages.timer()), stages.timer());
    let mut scorer = Scorer::new(model);
    let mut rows_done = 0;
    while !stop.load(Ordering::Relaxed) {
        // What stops us may end who writes to us, too: then this is not the end of the rows.
        let Some(rows) = feed.next_some(SCORE_BATCH_ROWS, &mut timer)? else { break };
        let logits = scorer.logits(model, &rows)?;
        // Only a placeholder has no weight that is a number.
        let scored = logits.iter_mut().zip(rows.weights());
        scored.for_each(|(x, weight)| *x = if weight.is_nan() { f32::NAN } else { sigmoid(*x) });
        write(logits, scan_of(&pass))?;
        rows_done += rows.len() as u64;
    }
    if stop.load(Ordering::Relaxed) { Err(LearnError::Stopped) } else { Ok(rows_done) }
}

/// One worker's scratch for scoring.
struct Scorer {
    lookup: Lookup,
    compute: Compute,
}

impl Scorer {
    fn new(model: &Model) -> Self {
        Scorer { lookup: model.client().lookup(), compute: Compute::new(model.config().model.factors()) }
    }

    /// The logits of the rows; keys that were never trained count as zero.
    fn logits(&mut self, model: &Model, rows: &Rows<'_>) -> Result<&mut [f32], LearnError> {
        model.client().pull(rows, Absent::Zero, &mut self.lookup)?;
        self.compute.forward(rows, &self.lookup);
        Ok(&mut self.compute.logits)
    }
}
