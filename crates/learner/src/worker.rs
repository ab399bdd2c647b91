//! One training worker: takes minibatches from its feed, pulls, computes, pushes, and keeps score. Workers share the
//! tables and the feed's source, nothing else; its measurements go to the coordinator in windows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;

use sanderling_client::{ClientError, Handles, Lookup};
use sanderling_loader::{Feed, Pass};
use sanderling_observe::StageTimer;
use sanderling_sample::Rows;
use sanderling_sample::spec::Feature;
use sanderling_store::{Absent, GRADIENT_ABS_MAX, PushScale, StoreError};

use crate::compute::Compute;
use crate::config::{Reduction, Train};
use crate::error::LearnError;
use crate::magnitude::{self, LargeValues, Magnitudes};
use crate::metrics::Scores;
use crate::model::Model;

/// Stages of a training worker, after those of its feed; the last two are the coordinator's.
pub(crate) const STAGES: [&str; 10] =
    ["read", "decode", "wait", "assemble", "pull", "compute", "push", "score", "evaluate", "save"];
const PULL: usize = 4;
const COMPUTE: usize = 5;
const PUSH: usize = 6;
const SCORE: usize = 7;
pub(crate) const EVALUATE: usize = 8;
pub(crate) const SAVE: usize = 9;

/// A window is handed over before it holds many more rows than this, however rarely metrics are printed.
const WINDOW_ROWS_MAX: u64 = 1 << 18;

/// Online learning: keys that are looked up together, if they are of more than one row. It bounds memory.
const RUN_KEYS_MAX: usize = 1 << 17;

/// Online learning: rows of one learning rate, where that changes from step to step.
const RATE_ROWS: u64 = 1024;

/// A worker's results since its last window: progressive scores, each row scored before it was learned from.
pub(crate) struct Window {
    pub(crate) scores: Scores,
    pub(crate) steps: u64,
    /// Features whose values swamp the model, as far as the worker's first rows tell; in one window of a worker.
    pub(crate) large: Vec<LargeValues>,
}

/// Inputs of all workers of a segment, read only.
pub(crate) struct Segment<'a> {
    pub(crate) model: &'a Model,
    pub(crate) pass: &'a Pass,
    pub(crate) train: &'a Train,
    pub(crate) reduction: Reduction,
    /// Steps that one worker may take.
    pub(crate) quota: u64,
    /// Steps of the whole run before this segment, the number of the pass, validations without improvement.
    pub(crate) first_step: u64,
    pub(crate) pass_number: u64,
    pub(crate) plateaus: u32,
    /// Set to end the segment at the next step.
    pub(crate) halt: &'a AtomicBool,
}

impl Segment<'_> {
    /// The learning rate at a step of the run.
    fn scale(&self, step: u64) -> PushScale {
        let train = self.train;
        PushScale {
            lr_scale: train.schedule.factor(step, self.pass_number, self.plateaus, train.warmup_steps),
        }
    }
}

/// A worker with everything it reuses from minibatch to minibatch.
pub(crate) struct Worker<'a> {
    pub(crate) feed: Feed<'a>,
    lookup: Lookup,
    /// The lookup of the next minibatch, whose keys may have been numbered.
    next: Lookup,
    is_next_ready: bool,
    handles: Handles,
    /// Online learning: rows whose keys are looked up together.
    run_rows: u64,
    compute: Compute,
    magnitudes: Magnitudes,
    /// Whether enough rows were looked at and the result is not reported yet.
    has_looked: bool,
    timer: StageTimer,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(model: &Model, feed: Feed<'a>, timer: StageTimer) -> Self {
        let compute = Compute::new(model.config());
        let run_rows = model.client().online_rows(model.config().train.threads) as u64;
        Worker {
            feed,
            lookup: model.client().lookup(),
            next: model.client().lookup(),
            is_next_ready: false,
            handles: Handles::default(),
            run_rows,
            compute,
            magnitudes: Magnitudes::new(model.config().feature.len()),
            has_looked: false,
            timer,
        }
    }

    /// Takes minibatches until the pass ends (true), the quota is used up, or the segment is halted (false). With
    /// several workers a used-up quota stops the pass, and what the feed still holds is trained on too.
    pub(crate) fn run(
        &mut self,
        segment: &Segment<'_>,
        windows: &SyncSender<Window>,
    ) -> Result<bool, LearnError> {
        let workers = segment.train.threads as u64;
        let window_rows = WINDOW_ROWS_MAX / segment.train.batch_size as u64;
        let window_steps = (segment.train.print_steps() / workers).min(window_rows).max(1);
        let room = ((window_steps + self.run_rows) * segment.train.batch_size as u64).min(2 * WINDOW_ROWS_MAX)
            as usize;
        let mut scores = Scores::with_room(room);
        let mut steps = 0;
        let mut sent = 0;
        let ended = loop {
            if segment.halt.load(Ordering::Relaxed) || (steps >= segment.quota && workers == 1) {
                break false;
            }
            if steps >= segment.quota {
                segment.pass.stop();
            }
            let done = self.advance(segment, steps, &mut scores)?;
            if done == 0 {
                break true;
            }
            steps += done;
            if steps - sent >= window_steps || self.has_looked {
                // The coordinator outlives the workers; otherwise the message is dropped.
                let scores = std::mem::replace(&mut scores, Scores::with_room(room));
                let large = self.large(segment);
                let _ = windows.send(Window { scores, steps: steps - sent, large });
                sent = steps;
            }
        };
        // All reported work has arrived.
        self.timer.switch(PUSH);
        segment.model.client().finish(&mut self.lookup)?;
        self.timer.stop();
        let large = self.large(segment);
        let _ = windows.send(Window { scores, steps: steps - sent, large });
        Ok(ended)
    }

    /// Features whose values swamp the model, once enough rows were looked at or the pass is over.
    fn large(&mut self, segment: &Segment<'_>) -> Vec<LargeValues> {
        self.has_looked = false;
        self.magnitudes.take_large(&segment.model.config().feature)
    }

    /// One minibatch, or where a minibatch is one row, a run of them. `steps` were done in this segment. The number of
    /// steps; 0 at the end of the pass.
    fn advance(&mut self, segment: &Segment<'_>, steps: u64, scores: &mut Scores) -> Result<u64, LearnError> {
        let step = segment.first_step + steps * segment.train.threads as u64;
        if segment.train.batch_size > 1 {
            return self.minibatch(segment, step, scores);
        }
        // A used-up quota has stopped the feed; what is left in it is trained on.
        let quota = segment.quota.checked_sub(steps).filter(|left| *left > 0).unwrap_or(self.run_rows);
        // Where the learning rate changes from step to step, it does so every so many steps of the run, wherever that was
        // stopped and resumed.
        let is_steady = segment.train.schedule.is_steady(step, segment.train.warmup_steps);
        let rate_rows = self.run_rows.min(RATE_ROWS);
        let (scale, most) = match is_steady {
            true => (segment.scale(step), self.run_rows),
            false => (segment.scale(step - step % rate_rows), rate_rows - step % rate_rows),
        };
        self.online(segment, step, scale, quota.min(most), scores)
    }

    fn minibatch(
        &mut self,
        segment: &Segment<'_>,
        step: u64,
        scores: &mut Scores,
    ) -> Result<u64, LearnError> {
        let Worker { feed, lookup, next, is_next_ready, compute, magnitudes, has_looked, timer, .. } = self;
        let Some((rows, following)) = feed.next_and(segment.train.batch_size, timer)? else { return Ok(0) };
        *has_looked |= magnitudes.add(&rows);
        let (client, features) = (segment.model.client(), &segment.model.config().feature);
        timer.switch(PULL);
        if std::mem::take(is_next_ready) {
            lookup.change_places(next);
        }
        client.pull_while(&rows, Absent::Init, lookup, || {
            let rows = following.assemble(timer);
            timer.switch(PULL);
            if let Some(rows) = rows {
                next.number(&rows);
                *is_next_ready = true;
            }
        })?;
        timer.switch(COMPUTE);
        compute.forward(&rows, lookup);
        if !compute.logits.iter().all(|logit| logit.is_finite()) {
            return Err(LearnError::Diverged { step, cause: magnitude::cause(&rows, features) });
        }
        timer.switch(SCORE);
        let reduce = match segment.reduction {
            Reduction::Sum => 1.0,
            Reduction::Mean => 1.0 / rows.len() as f32,
        };
        let scored = compute.logits.iter().zip(rows.labels()).zip(rows.weights());
        compute.errors.clear();
        let errors =
            scored.map(|((logit, label), weight)| segment.train.score(*logit, *label, *weight, scores));
        compute.errors.extend(errors.map(|error| reduce * error));
        timer.switch(COMPUTE);
        compute.backward(&rows, lookup);
        timer.switch(PUSH);
        let pushed = match *is_next_ready {
            true => client.begin_push(lookup, segment.scale(step)),
            // The input may let the next pull wait for as long as it likes.
            false => client.push(lookup, segment.scale(step)),
        };
        pushed.map_err(|error| of_push(error, step, &rows, features))?;
        Ok(1)
    }

    /// Online learning: every row is a step of its own, but the keys of many rows are looked up together.
    fn online(
        &mut self,
        segment: &Segment<'_>,
        step: u64,
        scale: PushScale,
        most: u64,
        scores: &mut Scores,
    ) -> Result<u64, LearnError> {
        let Worker { feed, compute, timer, handles, magnitudes, has_looked, .. } = self;
        let Some(rows) = feed.next_some(most as usize, timer)? else { return Ok(0) };
        *has_looked |= magnitudes.add(&rows);
        let keys: usize = (0..rows.columns()).map(|column| rows.keys(column).len()).sum();
        // In equal parts.
        let run_rows = rows.len().div_ceil(keys.div_ceil(RUN_KEYS_MAX).max(1));
        for first in (0..rows.len()).step_by(run_rows) {
            let rows = rows.slice(first..rows.len().min(first + run_rows));
            timer.switch(PULL);
            let workers = segment.model.config().train.threads;
            let mut online = segment.model.client().online(&rows, workers, scale, handles)?;
            timer.switch(COMPUTE);
            for row in 0..rows.len() {
                let (label, weight) = (rows.labels()[row], rows.weights()[row]);
                let logit = compute.forward_row(&rows, row, &online);
                let error = segment.train.score(logit, label, weight, scores);
                let applies = logit.is_finite() && error.abs() < GRADIENT_ABS_MAX;
                if !applies || !compute.update_row(&rows, row, error, &mut online) {
                    // The rows before it stay learned; what says that the run diverged is this row.
                    let _ = online.finish();
                    let features = &segment.model.config().feature;
                    let cause = magnitude::cause(&rows.slice(row..row + 1), features);
                    return Err(LearnError::Diverged { step: step + (first + row) as u64, cause });
                }
                online.note_learned()?;
            }
            timer.switch(PUSH);
            online.finish()?;
        }
        Ok(rows.len() as u64)
    }
}

/// The error of a push; where a table refuses a gradient, with the value that it comes from.
pub(crate) fn of_push(error: ClientError, step: u64, rows: &Rows<'_>, features: &[Feature]) -> LearnError {
    match error {
        ClientError::Store(StoreError::BadGradient { .. }) => {
            LearnError::Diverged { step, cause: magnitude::cause(rows, features) }
        }
        error => error.into(),
    }
}
