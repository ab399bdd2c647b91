//! One training worker: takes minibatches from its feed, pulls, computes, pushes, and keeps score. Workers share the
//! tables and the feed's source, nothing else; what they measured travels to the coordinator in windows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;

use sanderling_client::Lookup;
use sanderling_hub::{Feed, Pass};
use sanderling_observe::StageTimer;
use sanderling_store::{Absent, PushScale};

use crate::compute::Compute;
use crate::config::{Reduction, Train};
use crate::error::LearnError;
use crate::metrics::{Scores, sigmoid};
use crate::model::Model;

/// Stages of a training worker, after those of its feed; the last two are the coordinator's.
pub(crate) const STAGES: [&str; 9] =
    ["read", "decode", "assemble", "pull", "compute", "push", "score", "evaluate", "save"];
const PULL: usize = 3;
const COMPUTE: usize = 4;
const PUSH: usize = 5;
const SCORE: usize = 6;
pub(crate) const EVALUATE: usize = 7;
pub(crate) const SAVE: usize = 8;

/// A window is handed over before it holds many more rows than this, however rarely metrics are printed.
const WINDOW_ROWS_MAX: u64 = 1 << 18;

/// What a worker did since its last window: progressive scores, each row scored before it was learned from.
pub(crate) struct Window {
    pub(crate) scores: Scores,
    pub(crate) steps: u64,
}

/// What all workers of a segment look at and none writes.
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

/// A worker with everything it reuses from minibatch to minibatch.
pub(crate) struct Worker<'a> {
    pub(crate) feed: Feed<'a>,
    lookup: Lookup,
    compute: Compute,
    timer: StageTimer,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(model: &Model, feed: Feed<'a>, timer: StageTimer) -> Self {
        let compute = Compute::new(model.config().model.factors());
        Worker { feed, lookup: model.client().lookup(), compute, timer }
    }

    /// Takes minibatches until the pass ends (true), the quota is used up, or the segment is halted (false). With
    /// several workers a used-up quota stops the pass, and what the feed still holds is trained on too.
    pub(crate) fn run(
        &mut self,
        segment: &Segment<'_>,
        windows: &SyncSender<Window>,
    ) -> Result<bool, LearnError> {
        let workers = segment.train.threads as u64;
        let window_rows = WINDOW_ROWS_MAX / segment.train.batch as u64;
        let window_steps = (segment.train.print_every / workers).min(window_rows).max(1);
        let mut scores = Scores::new();
        let mut steps = 0;
        let mut sent = 0;
        let ended = loop {
            if segment.halt.load(Ordering::Relaxed) || (steps >= segment.quota && workers == 1) {
                break false;
            }
            if steps == segment.quota {
                segment.pass.stop();
            }
            let step = segment.first_step + steps * workers;
            if !self.step(segment, step, &mut scores)? {
                break true;
            }
            steps += 1;
            if steps - sent == window_steps {
                // The coordinator outlives the workers; should it not, there is nobody to tell.
                let _ = windows.send(Window { scores: std::mem::take(&mut scores), steps: steps - sent });
                sent = steps;
            }
        };
        self.timer.stop();
        let _ = windows.send(Window { scores, steps: steps - sent });
        Ok(ended)
    }

    /// One minibatch; false at the end of the pass.
    fn step(&mut self, segment: &Segment<'_>, step: u64, scores: &mut Scores) -> Result<bool, LearnError> {
        let Worker { feed, lookup, compute, timer } = self;
        let Some(rows) = feed.next(timer)? else { return Ok(false) };
        let client = segment.model.client();
        timer.switch(PULL);
        client.pull(&rows, Absent::Init, lookup)?;
        timer.switch(COMPUTE);
        compute.forward(&rows, lookup);
        timer.switch(SCORE);
        for ((logit, label), weight) in compute.logits.iter().zip(rows.labels()).zip(rows.weights()) {
            scores.push(*logit, *label, *weight);
        }
        timer.switch(COMPUTE);
        let reduce = match segment.reduction {
            Reduction::Sum => 1.0,
            Reduction::Mean => 1.0 / rows.len() as f32,
        };
        let class_weight = segment.train.class_weight;
        let graded = compute.logits.iter().zip(rows.labels()).zip(rows.weights());
        compute.errors.clear();
        compute.errors.extend(graded.map(|((logit, label), weight)| {
            let class = if *label > 0.5 { class_weight } else { 1.0 };
            reduce * weight * class * (sigmoid(*logit) - label)
        }));
        compute.backward(&rows, lookup);
        timer.switch(PUSH);
        let train = segment.train;
        let lr = train.schedule.factor(step, segment.pass_number, segment.plateaus, train.warmup_steps);
        client.push(lookup, PushScale { lr })?;
        Ok(true)
    }
}
