//! Steps that all workers make together: each is given its part of every step. Knows not what a step does.
//!
//! A step's rows are the same however many workers there are. For that rows belong to *lanes*, whose number depends on the
//! batch alone: a step has the next rows of every lane, as many of each, and a worker has some of the lanes.

use std::collections::VecDeque;

use sanderling_client::Reduce;
use sanderling_observe::StageTimer;
use sanderling_sample::{Batch, Rows};

use crate::error::JobError;
use crate::exchange::exchange;
use crate::hosts::worker::Turn;
use crate::input::{Input, Order, Units};
use crate::job::{ASSEMBLE, SHUFFLE, WAIT};
use crate::sorted::{Lanes, Sorted};
use crate::worker::Worker;

/// The most lanes, and with that the most workers in step.
const LANES_MAX: u32 = 64;
/// In input order nobody knows how many steps there are: after so many steps, or so many rows, all agree whether there are
/// more.
const AGREED_STEPS: usize = 16;
const AGREED_ROWS: usize = 16 << 10;
/// Bytes of rows that a worker holds in input order; lanes whose rows are so uneven are refused.
const AHEAD_BYTES_MAX: usize = 1 << 30;

/// This worker's parts of the steps of a pass.
pub struct Steps {
    plan: Plan,
    turn: Turn,
    /// Losses before the rows were shared out.
    losses: usize,
    is_over: bool,
    lanes: Vec<u32>,
    rows: Source,
    /// Rows of a lane in a step.
    lane_rows: usize,
    minibatch: Batch,
    /// The rows after those, and whether they are there: [`Steps::prepare`].
    ahead: Batch,
    prepared: Option<Result<(), JobError>>,
    given: u64,
    /// Steps that are known to be, and whether these are all.
    known: u64,
    is_all: bool,
}

/// What the steps are made of.
#[derive(Clone)]
struct Plan {
    input: Input,
    pass: u64,
    order: Order,
    batch: usize,
}

enum Source {
    InOrder(Box<InOrder>),
    Shuffled(Box<Sorted>),
}

/// Units of the lanes of this worker, in the order of the input.
struct InOrder {
    units: Units,
    lanes: Lanes,
    worker: u32,
    ready: Vec<Ready>,
    /// No rows, of the input's columns; and memory for units to come.
    shape: Batch,
    spare: Vec<Batch>,
    bytes: usize,
    is_at_end: bool,
}

/// What is read of a lane.
#[derive(Default)]
struct Ready {
    units: VecDeque<Batch>,
    /// Rows of the first unit that were taken.
    head: usize,
    rows: usize,
}

impl Worker {
    /// This worker's parts of the steps of a pass, `batch` rows each over all workers. All workers must call it, with the same
    /// input, pass, order and batch.
    pub fn steps(&mut self, input: &Input, pass: u64, order: Order, batch: usize) -> Result<Steps, JobError> {
        let plan = Plan { input: input.clone(), pass, order, batch };
        let turn = self.begin_turn();
        Steps::share_out(self, &plan, turn, 0)
    }

    fn try_steps(&mut self, plan: &Plan) -> Result<Steps, JobError> {
        let &Plan { ref input, pass, order, batch } = plan;
        let losses = self.losses_known();
        let (worker, workers) = (self.place(), self.living());
        let lanes = Lanes { count: lanes_of(batch, workers)?, workers };
        let lane_rows = batch / lanes.count as usize;
        let (rows, known, is_all) = match order {
            Order::Input => {
                let units = Units::open(input, workers, &self.halt)?;
                let ready = lanes.of_worker(worker).map(|_| Ready::default()).collect();
                let (shape, spare, bytes) = (input.encoder.new_batch(), Vec::new(), 0);
                let in_order = InOrder { units, lanes, worker, ready, shape, spare, bytes, is_at_end: false };
                (Source::InOrder(Box::new(in_order)), 0, false)
            }
            Order::Shuffled => {
                let (sorted, counts) = exchange(self, input, pass, lanes)?;
                let longest = counts.iter().max().copied().unwrap_or(0);
                (Source::Shuffled(Box::new(sorted)), longest.div_ceil(lane_rows as u64), true)
            }
        };
        let lanes = lanes.of_worker(worker).collect();
        Ok(Steps {
            plan: plan.clone(),
            turn: Turn::default(),
            losses,
            is_over: false,
            lanes,
            rows,
            lane_rows,
            minibatch: input.encoder.new_batch(),
            ahead: input.encoder.new_batch(),
            prepared: None,
            given: 0,
            known,
            is_all,
        })
    }
}

/// The largest power of two that divides the batch, if the workers can share so many.
fn lanes_of(batch: usize, workers: u32) -> Result<u32, JobError> {
    let lanes = if batch == 0 { 0 } else { 1 << batch.trailing_zeros().min(LANES_MAX.ilog2()) };
    if lanes >= workers {
        return Ok(lanes);
    }
    let reason = if workers > LANES_MAX {
        format!("{workers} workers cannot go in step: at most {LANES_MAX}")
    } else {
        let works = batch.next_multiple_of(workers.next_power_of_two() as usize).max(1);
        format!(
            "steps of {batch} rows cannot be shared by {workers} workers such that each has the same rows for any number \
             of workers: take {works}, or another multiple of {}",
            workers.next_power_of_two()
        )
    };
    Err(JobError::Options(reason))
}

impl Steps {
    /// Shares the rows out to those who live, and passes over the steps that are made.
    fn share_out(worker: &mut Worker, plan: &Plan, turn: Turn, made: u64) -> Result<Steps, JobError> {
        let mut made = made;
        loop {
            let shared = worker.try_steps(plan).and_then(|mut steps| {
                while steps.given < made {
                    if !steps.advance(worker)? {
                        let reason = format!("{made} steps were made, and the input has {}", steps.given);
                        return Err(JobError::OutOfStep { worker: worker.rank(), reason });
                    }
                }
                Ok(steps)
            });
            match shared {
                Ok(steps) => return Ok(Steps { turn, ..steps }),
                Err(error) => worker.go_on(error)?,
            }
            made = worker.take_redo().unwrap_or(made);
        }
    }

    /// This worker's rows of the next step, perhaps none; None when nobody has any more. When another worker was lost, its
    /// rows are shared out anew, and the step that was not made is given once more ([`Worker::wait_applied`]).
    pub fn next(&mut self, worker: &mut Worker) -> Result<Option<Rows<'_>>, JobError> {
        while !self.is_over {
            worker.check_others()?;
            if let Some(made) = worker.take_redo() {
                *self = Steps::share_out(worker, &self.plan, std::mem::take(&mut self.turn), made)?;
            }
            match self.advance(worker) {
                Ok(true) => {
                    worker.note_given(self.given);
                    return Ok(Some(self.rows()));
                }
                Ok(false) => self.is_over = worker.end_turn(&mut self.turn, self.losses)?,
                Err(error) => worker.go_on(error)?,
            }
        }
        Ok(None)
    }

    /// This worker's rows of the step that was given last.
    #[must_use]
    pub fn rows(&self) -> Rows<'_> {
        Rows::all(&self.minibatch)
    }

    /// Reads the rows of the step after that, if it is known that there is one: for the time between
    /// [`SyncGroup::hand_over`](sanderling_client::SyncGroup::hand_over) and [`Worker::wait_applied`]. What fails is said by
    /// [`Steps::next`].
    pub fn prepare(&mut self, worker: &mut Worker) {
        if self.prepared.is_none() && self.given < self.known {
            self.prepared = Some(self.fill_ahead(worker));
        }
    }

    /// Puts the rows of the next step into the minibatch; `false`: there is none.
    fn advance(&mut self, worker: &mut Worker) -> Result<bool, JobError> {
        if self.given == self.known && !self.is_all {
            self.agree(worker)?;
        }
        if self.given == self.known {
            return Ok(false);
        }
        match self.prepared.take() {
            Some(prepared) => prepared?,
            None => self.fill_ahead(worker)?,
        }
        std::mem::swap(&mut self.minibatch, &mut self.ahead);
        self.given += 1;
        Ok(true)
    }

    /// Takes the rows that are next of all lanes of this worker.
    fn fill_ahead(&mut self, worker: &mut Worker) -> Result<(), JobError> {
        self.ahead.clear();
        for lane in 0..self.lanes.len() {
            let (timer, rows) = (&mut worker.timer, self.lane_rows);
            match &mut self.rows {
                Source::InOrder(in_order) => {
                    let rows = in_order.make_ready(lane, rows, timer)?.min(rows);
                    timer.switch(ASSEMBLE);
                    in_order.take(lane, rows, &mut self.ahead);
                }
                Source::Shuffled(sorted) => {
                    timer.switch(SHUFFLE);
                    let rows = sorted.make_ready(lane, rows)?;
                    timer.switch(ASSEMBLE);
                    sorted.take(lane, rows, &mut self.ahead)?;
                }
            }
        }
        Ok(())
    }

    /// Steps of this pass that were given.
    #[must_use]
    pub fn given(&self) -> u64 {
        self.given
    }

    /// Bytes of rows that this worker kept in a temporary file.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        match &self.rows {
            Source::InOrder(_) => 0,
            Source::Shuffled(sorted) => sorted.stored_bytes(),
        }
    }

    /// All workers learn how many steps there are next. Each looks ahead by so many, whatever it has read: the answer does
    /// not depend on the number of workers.
    fn agree(&mut self, worker: &mut Worker) -> Result<(), JobError> {
        let Source::InOrder(in_order) = &mut self.rows else { return Ok(()) };
        let all_lanes = self.lane_rows * in_order.lanes.count as usize;
        let ahead = (AGREED_ROWS / all_lanes).clamp(1, AGREED_STEPS);
        let mut steps = [0];
        for lane in 0..self.lanes.len() {
            let rows = in_order.make_ready(lane, ahead * self.lane_rows, &mut worker.timer)?;
            steps[0] = steps[0].max(rows.div_ceil(self.lane_rows).min(ahead) as u64);
        }
        worker.timer.switch(WAIT);
        if worker.living() > 1 {
            let agreed = worker.group.all_reduce_counts("steps to come", &mut steps, Reduce::Max);
            agreed.map_err(|error| worker.called_off(error))?;
        }
        self.known += steps[0];
        self.is_all = steps[0] < ahead as u64;
        Ok(())
    }
}

impl InOrder {
    /// Reads until there are so many rows of a lane, or to the end; how many there are.
    fn make_ready(&mut self, lane: usize, rows: usize, timer: &mut StageTimer) -> Result<usize, JobError> {
        while self.ready[lane].rows < rows && !self.is_at_end {
            let (lanes, worker) = (self.lanes, self.worker);
            let read = self.units.read(timer, |number| lanes.owner(lanes.of(number)) == worker)?;
            let Some(number) = read else {
                self.is_at_end = true;
                break;
            };
            let mut unit = self.spare.pop().unwrap_or_else(|| Batch::like(&self.shape));
            self.units.decode(&mut unit, timer)?;
            self.bytes += unit.bytes();
            if self.bytes > AHEAD_BYTES_MAX {
                let reason = format!(
                    "steps in the order of the input need more than {AHEAD_BYTES_MAX} bytes of it at once, since its rows \
                     are of very different lengths; shuffle it"
                );
                return Err(JobError::Options(reason));
            }
            let ready = &mut self.ready[(lanes.of(number) / lanes.workers) as usize];
            ready.rows += unit.len();
            ready.units.push_back(unit);
        }
        Ok(self.ready[lane].rows)
    }

    /// Appends rows that are ready.
    fn take(&mut self, lane: usize, mut rows: usize, batch: &mut Batch) {
        let ready = &mut self.ready[lane];
        ready.rows -= rows;
        while rows > 0 {
            let Some(unit) = ready.units.front() else { return };
            let range = ready.head..unit.len().min(ready.head + rows);
            batch.append(&Rows::new(unit, range.clone()));
            rows -= range.len();
            ready.head = range.end;
            if ready.head == unit.len()
                && let Some(mut unit) = ready.units.pop_front()
            {
                self.bytes -= unit.bytes();
                unit.clear();
                self.spare.push(unit);
                ready.head = 0;
            }
        }
    }
}
