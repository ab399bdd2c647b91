//! The operations of a worker: pull, forward, backward, push, score, and the end of a pass. The pages of the
//! algorithms say in which order, and over which rows.

use std::sync::atomic::Ordering;

use sanderling_client::{Fixed, Handles, Lookup, StepGradients};
use sanderling_job::{Input, Share, Worker};
use sanderling_sample::Rows;
use sanderling_store::{Absent, GRADIENT_ABS_MAX, PushScale};

use super::algorithm::Algorithm;
use super::job_shared::{JobShared, PassEnd, Start, Verdict, WorkerMsg, judged_of_bytes, judged_to_bytes};
use super::recording::OrderedWorker;
use super::staleness::Staleness;
use super::{COMPUTE, PULL, PUSH, SCORE};
use crate::compute::Compute;
use crate::config::Reduction;
use crate::error::LearnError;
use crate::magnitude::{self, Magnitudes};
use crate::metrics::BinnedScores;
use crate::model::Model;
use crate::worker::of_push;

/// Rows whose keys are looked up together when rows are learned one by one.
const ONLINE_ROWS: usize = 128;
/// A window is handed over before it holds many more rows than this, however rarely metrics are printed.
const WINDOW_ROWS_MAX: u64 = 1 << 18;
/// The waits of a recorded or replayed job, as errors name them.
const ITS_TURN: &str = "its turn in the recording";

/// One worker with everything it reuses from minibatch to minibatch.
pub(super) struct Learner<'a> {
    shared: &'a JobShared<'a>,
    model: &'a Model,
    algorithm: Algorithm,
    lookup: Lookup,
    handles: Handles,
    compute: Compute,
    magnitudes: Magnitudes,
    has_looked: bool,
    /// In place of the client's pulls and pushes, if their order is recorded or replayed.
    ordered: Option<OrderedWorker<'a>>,
    staleness: Option<Staleness<'a>>,
    /// Rows of the minibatch at hand.
    rows: usize,
    /// The next pass, and whether there is one.
    pass: u64,
    goes_on: bool,
    plateaus: u32,
    /// Steps of the run before this pass, and of this worker in it.
    first_step: u64,
    steps: u64,
    workers: u64,
    /// Of the pass, and of what the thread that prints was not told yet.
    scores: BinnedScores,
    window: BinnedScores,
    window_steps: u64,
    window_steps_max: u64,
    /// Whether this worker's steps stand for all of a step: in step, one worker counts them.
    counts_steps: bool,
}

impl<'a> Learner<'a> {
    /// All workers hear from the first one where the run stands.
    pub(super) fn new(
        shared: &'a JobShared<'a>,
        model: &'a Model,
        algorithm: Algorithm,
        worker: &mut Worker,
    ) -> Result<Self, LearnError> {
        let config = model.config();
        let told = worker.broadcast("where the run stands", 0, &shared.start.to_bytes())?;
        let start = Start::of_bytes(&told).unwrap_or_default();
        let workers = u64::from(worker.workers());
        let sharing = if algorithm.is_in_step() { 1 } else { workers };
        let window_rows = WINDOW_ROWS_MAX / config.train.batch_size as u64;
        let rank = worker.rank() as usize;
        let staleness = match algorithm.is_in_step() {
            false if rank < shared.pushes.len() => Some(Staleness::here(&shared.pushes, rank)),
            // Others on other hosts say how far they are where there is a bound.
            false if shared.bound.is_some() => Some(Staleness::told()),
            _ => None,
        };
        if worker.rank() == 0 || shared.pushes.is_empty() {
            shared.say(WorkerMsg::Started(start));
        }
        Ok(Learner {
            shared,
            model,
            algorithm,
            lookup: model.client().lookup(),
            handles: Handles::default(),
            compute: Compute::new(config),
            magnitudes: Magnitudes::new(config.feature.len()),
            has_looked: false,
            ordered: shared.order.map(|order| OrderedWorker::new(order, worker.rank())),
            staleness,
            rows: 0,
            pass: start.pass,
            goes_on: start.goes_on,
            plateaus: start.plateaus,
            first_step: start.step,
            steps: 0,
            workers,
            scores: config.train.loss.binned_scores(),
            window: config.train.loss.binned_scores(),
            window_steps: 0,
            window_steps_max: (config.train.print_steps() / sharing).min(window_rows).max(1),
            counts_steps: !algorithm.is_in_step() || rank == 0,
        })
    }

    /// The number of the pass that follows, from 0 on; none if that was the last one.
    pub(super) fn next_pass(&mut self) -> Option<u64> {
        self.goes_on.then_some(self.pass)
    }

    /// The input of the pass.
    pub(super) fn input(&self) -> Input {
        self.shared.input(self.pass)
    }

    /// Rows that this worker takes at once, where each goes its own way.
    pub(super) fn minibatch(&self) -> usize {
        if self.is_online() { ONLINE_ROWS } else { self.global_batch() }
    }

    /// Rows of a step, where all go in step.
    pub(super) fn global_batch(&self) -> usize {
        self.model.config().train.batch_size
    }

    /// Whether every row is a minibatch of its own and the tables are here, so that there is no need to pull and push it.
    pub(super) fn is_online(&self) -> bool {
        self.global_batch() == 1 && !self.model.is_remote()
    }

    /// Pulls the rows of the minibatch's keys.
    pub(super) fn pull(&mut self, worker: &mut Worker, rows: &Rows<'_>) -> Result<(), LearnError> {
        self.shared.check_stop()?;
        self.rows = rows.len();
        if rows.is_empty() {
            return Ok(());
        }
        worker.timer().switch(PULL);
        self.staleness.iter_mut().for_each(|staleness| staleness.pulls(worker.steps_of_others()));
        match &mut self.ordered {
            Some(ordered) => {
                ordered.pull(rows, &mut self.lookup, &|| Ok(worker.check_going_on(ITS_TURN)?))?;
            }
            None => {
                self.model.client().pull(rows, Absent::Init, &mut self.lookup)?;
            }
        }
        Ok(())
    }

    /// Computes each row's logit, and from that the derivative of its loss.
    pub(super) fn forward(&mut self, worker: &mut Worker, rows: &Rows<'_>) -> Result<(), LearnError> {
        worker.timer().switch(COMPUTE);
        self.has_looked |= self.magnitudes.add(rows);
        let Learner { compute, lookup, model, .. } = self;
        compute.errors.clear();
        if rows.is_empty() {
            compute.logits.clear();
            return Ok(());
        }
        compute.forward(rows, lookup);
        if !compute.logits.iter().all(|logit| logit.is_finite()) {
            let cause = magnitude::cause(rows, &model.config().feature);
            return Err(LearnError::Diverged { step: self.step(), cause });
        }
        let config = model.config();
        let reduce = match config.reduction() {
            Reduction::Sum => 1.0,
            // In step it is the mean over the rows of all workers, of which a pass's last step may have fewer.
            Reduction::Mean if self.algorithm.is_in_step() => 1.0 / config.train.batch_size as f32,
            Reduction::Mean => 1.0 / rows.len() as f32,
        };
        let labelled = compute.logits.iter().zip(rows.labels()).zip(rows.weights());
        compute.errors.extend(
            labelled.map(|((logit, label), weight)| reduce * config.train.error(*logit, *label, *weight)),
        );
        Ok(())
    }

    /// Adds up the gradients of the minibatch, per key.
    pub(super) fn backward(&mut self, worker: &mut Worker, rows: &Rows<'_>) {
        worker.timer().switch(COMPUTE);
        self.compute.backward(rows, &mut self.lookup);
    }

    /// The backward pass in fixed point, so that the sum over all workers does not depend on how rows are shared out.
    /// A step of one row needs no sum.
    pub(super) fn backward_in_step(
        &mut self,
        worker: &mut Worker,
        rows: &Rows<'_>,
    ) -> Result<(), LearnError> {
        if rows.is_empty() {
            return Ok(());
        }
        if self.global_batch() == 1 {
            self.backward(worker, rows);
            return Ok(());
        }
        worker.timer().switch(COMPUTE);
        let added = self.compute.backward_exact(rows, &mut self.lookup, Fixed::default());
        added.map_err(|error| {
            let cause = magnitude::cause(rows, &self.model.config().feature);
            LearnError::GradientRange { step: self.step(), gradient: error.gradient, cause }
        })
    }

    /// Pushes the gradients, which are applied as they come.
    pub(super) fn push(&mut self, worker: &mut Worker, rows: &Rows<'_>) -> Result<(), LearnError> {
        worker.timer().switch(PUSH);
        self.staleness.iter_mut().for_each(|staleness| staleness.pushes(worker.steps_of_others()));
        let scale = self.scale();
        let pushed = match &mut self.ordered {
            Some(ordered) => ordered.push(&mut self.lookup, scale, &|| Ok(worker.check_going_on(ITS_TURN)?)),
            None => self.model.client().push(&mut self.lookup, scale).map_err(LearnError::Client),
        };
        pushed.map_err(|error| match error {
            LearnError::Client(error) => of_push(error, self.step(), rows, &self.model.config().feature),
            error => error,
        })?;
        self.end_step(1);
        Ok(())
    }

    /// Hands the sums in; the number of the step.
    pub(super) fn hand_in(&mut self, worker: &mut Worker) -> Result<u64, LearnError> {
        worker.timer().switch(PUSH);
        let (scale, model) = (self.scale(), self.model);
        let step = worker.group().applied() + 1;
        if self.rows > 0 {
            // The constant occurs in every row, however many workers these are shared out to.
            self.lookup.count_constant(self.rows as u32);
            if self.global_batch() > 1 {
                let unit_log2 = Fixed::default().unit_log2();
                for (table, (keys, counts, sums)) in self.lookup.sums().enumerate() {
                    let (group, sums) = (worker.group(), StepGradients::Fixed { unit_log2, sums });
                    let table = model.client().step_table(group, table)?;
                    group.push_step(step, table, keys, counts, sums, scale)?;
                }
            } else {
                for (table, (keys, counts, gradients)) in self.lookup.gradients().enumerate() {
                    let (group, gradients) = (worker.group(), StepGradients::Single(gradients));
                    let table = model.client().step_table(group, table)?;
                    group.push_step(step, table, keys, counts, gradients, scale)?;
                }
            }
        }
        worker.group().hand_over(step);
        Ok(step)
    }

    /// Waits until the sums of all workers are applied. False if another worker was lost meanwhile: the step is not made, and
    /// will be given once more.
    pub(super) fn wait_applied(&mut self, worker: &mut Worker, step: u64) -> Result<bool, LearnError> {
        let is_applied = worker.wait_applied(step)?;
        if is_applied {
            self.end_step(1);
        }
        Ok(is_applied)
    }

    /// Learns rows one after the other, each from what the one before it taught.
    pub(super) fn learn_row_by_row(
        &mut self,
        worker: &mut Worker,
        rows: &Rows<'_>,
    ) -> Result<(), LearnError> {
        self.shared.check_stop()?;
        worker.timer().switch(PULL);
        self.has_looked |= self.magnitudes.add(rows);
        let (scale, step, workers) = (self.scale(), self.step(), self.workers as usize);
        let Learner { model, handles, compute, window, .. } = self;
        let train = &model.config().train;
        let mut online = model.client().online(rows, workers, scale, handles)?;
        worker.timer().switch(COMPUTE);
        for row in 0..rows.len() {
            let (label, weight) = (rows.labels()[row], rows.weights()[row]);
            let logit = compute.forward_row(rows, row, &online);
            train.loss.note(logit, label, weight, window);
            let error = train.error(logit, label, weight);
            let applies = logit.is_finite() && error.abs() < GRADIENT_ABS_MAX;
            if !applies || !compute.update_row(rows, row, error, &mut online) {
                // The rows before it stay learned; what says that the run diverged is this row.
                let _ = online.finish();
                let cause = magnitude::cause(&rows.slice(row..row + 1), &model.config().feature);
                return Err(LearnError::Diverged { step: step + row as u64, cause });
            }
            online.note_learned()?;
        }
        worker.timer().switch(PUSH);
        online.finish()?;
        self.staleness.iter_mut().for_each(|staleness| staleness.pushed_alone(rows.len() as u64));
        self.end_step(rows.len() as u64);
        self.shared.rows.fetch_add(rows.len() as u64, Ordering::Relaxed);
        self.hand_full_window_over();
        Ok(())
    }

    /// Keeps the score of rows as they were predicted before they were learned from. In step, once that is certain.
    pub(super) fn score(&mut self, worker: &mut Worker, rows: &Rows<'_>) {
        worker.timer().switch(SCORE);
        let scored = self.compute.logits.iter().zip(rows.labels()).zip(rows.weights());
        let loss = self.model.config().train.loss;
        scored.for_each(|((logit, label), weight)| loss.note(*logit, *label, *weight, &mut self.window));
        self.shared.rows.fetch_add(rows.len() as u64, Ordering::Relaxed);
        self.hand_full_window_over();
    }

    /// Waits while the slowest worker is too far behind, if there is a bound.
    pub(super) fn keep_within_bound(&mut self, worker: &mut Worker) -> Result<(), LearnError> {
        if let Some(bound) = self.shared.bound {
            self.ordered.iter().for_each(OrderedWorker::pause);
            worker.keep_pace(bound)?;
        }
        Ok(())
    }

    /// Waits until all pushes are applied, if another worker needs this one's position.
    pub(super) fn settle(&mut self, worker: &mut Worker, share: &mut Share) -> Result<(), LearnError> {
        if share.wants_settling() {
            worker.timer().switch(PUSH);
            self.model.client().finish(&mut self.lookup)?;
            share.settled(worker);
        }
        Ok(())
    }

    /// Waits for all workers, adds up what they measured, and hears whether another pass follows.
    pub(super) fn end_pass(&mut self, worker: &mut Worker) -> Result<(), LearnError> {
        worker.timer().switch(PUSH);
        self.model.client().finish(&mut self.lookup)?;
        self.ordered.as_mut().map_or(Ok(()), OrderedWorker::end_pass)?;
        worker.barrier("the end of a pass")?;
        self.hand_window_over();
        let leads = worker.rank() == 0 || self.shared.pushes.is_empty();
        let mut numbers = self.scores.to_addends();
        let steps = if self.counts_steps { self.steps } else { 0 };
        let bad_rows = if leads { self.shared.bad_rows().count() } else { 0 };
        numbers.extend([steps as f64, bad_rows as f64]);
        worker.sum("the scores of a pass", &mut numbers)?;
        let bad_rows = numbers.pop().unwrap_or_default() as u64;
        let steps = numbers.pop().unwrap_or_default() as u64;
        let mut staleness = self.staleness.as_mut().map(Staleness::take).unwrap_or_default();
        worker.histogram("staleness", &mut staleness)?;
        worker.timer().stop();
        if leads && let Some(scores) = BinnedScores::from_addends(&numbers) {
            let bad_row_messages = self.shared.bad_rows().messages();
            self.shared.say(WorkerMsg::Ended(PassEnd {
                scores,
                steps,
                bad_rows,
                bad_row_messages,
                staleness,
            }));
        }
        let Verdict { goes_on, plateaus } = self.verdict(worker)?;
        (self.goes_on, self.plateaus) = (goes_on, plateaus);
        self.pass += 1;
        self.shared.say(WorkerMsg::Judged(self.pass));
        self.first_step += steps;
        self.steps = 0;
        self.scores.clear();
        Ok(())
    }

    /// The verdict on the pass, from the thread that judges it beside the first worker.
    fn verdict(&self, worker: &mut Worker) -> Result<Verdict, LearnError> {
        loop {
            let known = if worker.rank() == 0 { self.shared.await_verdict()? } else { None };
            let said = worker.broadcast("verdict", 0, &judged_to_bytes(known.as_ref()))?;
            worker.timer().stop();
            if let Some(judged) = judged_of_bytes(&said) {
                let pass = self.pass + 1;
                return judged.map_err(|reason| LearnError::Unjudged { pass, reason });
            }
        }
    }

    /// The step of the run; where each worker goes its own way, about.
    fn step(&self) -> u64 {
        let together = if self.algorithm.is_in_step() { 1 } else { self.workers };
        self.first_step + self.steps * together
    }

    fn scale(&self) -> PushScale {
        let train = &self.model.config().train;
        PushScale {
            lr_scale: train.schedule.factor(self.step(), self.pass, self.plateaus, train.warmup_steps),
        }
    }

    fn end_step(&mut self, steps: u64) {
        self.steps += steps;
        self.window_steps += steps;
    }

    fn hand_full_window_over(&mut self) {
        if self.window_steps >= self.window_steps_max || self.has_looked {
            self.hand_window_over();
        }
    }

    /// Tells the thread that prints what was done since the last time.
    fn hand_window_over(&mut self) {
        self.scores.merge(&self.window);
        let steps = if self.counts_steps { self.window_steps } else { 0 };
        self.has_looked = false;
        let large = self.magnitudes.take_large(&self.model.config().feature);
        self.shared.say(WorkerMsg::Window { scores: self.window.clone(), steps, large });
        self.window.clear();
        self.window_steps = 0;
    }
}
