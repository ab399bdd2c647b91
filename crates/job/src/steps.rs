//! Synchronous steps: each worker gets its part of every step. Does not know what a step does.
//!
//! A step's rows do not depend on the number of workers. Rows belong to *lanes*, whose number depends on the batch
//! alone: a step takes the next rows of every lane, equally many while there are, and each worker has some of the
//! lanes.

use std::collections::VecDeque;

use sanderling_client::Reduce;
use sanderling_observe::StageTimer;
use sanderling_observe::numbers::bytes as in_units;
use sanderling_sample::{Batch, Rows};

use crate::deal::Dealer;
use crate::error::JobError;
use crate::exchange::exchange;
use crate::hosts::survivors::Turn;
use crate::input::{Input, Order, Units};
use crate::job::{ASSEMBLE, SHUFFLE, WAIT};
use crate::sorted::{Lanes, Sorted};
use crate::worker::Worker;

/// The most lanes, and with that the most workers in step.
const LANES_MAX: u32 = 64;
/// Bytes of rows that a worker holds in input order; an input whose units are so large is refused.
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
    dealer: Dealer,
    minibatch: Batch,
    /// The rows after those, and whether they are there: [`Steps::prepare`].
    ahead: Batch,
    prepared: Option<Result<(), JobError>>,
    given: u64,
    /// Whether the dealer knows of all rows.
    is_all: bool,
}

/// The source of the steps' rows.
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

/// Units of the lanes of this worker, in the order of the input. They are read in rounds, in which every lane has one unit.
struct InOrder {
    units: Units,
    lanes: Lanes,
    worker: u32,
    ready: Vec<Ready>,
    /// No rows, of the input's columns; and memory for units to come.
    shape: Batch,
    spare: Vec<Batch>,
    bytes: usize,
    /// Rows per lane of a round that is read and not agreed on, of this worker's lanes; then 1 if the input ended in it.
    round: Option<Vec<u64>>,
}

/// The rows of a lane read so far.
#[derive(Default)]
struct Ready {
    units: VecDeque<Batch>,
    /// Rows of the first unit that were taken.
    head: usize,
}

impl Worker {
    /// This worker's parts of the steps of a pass, `batch` rows each over all workers. All workers must call it, with the same
    /// input, pass, order and batch; all but the input is compared.
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
        if workers > 1 {
            // Each would be given parts of other steps, and nothing else would show it.
            self.timer.switch(WAIT);
            let order = if order == Order::Input { "in the order of the input" } else { "shuffled" };
            let met = self.group.barrier(&format!("pass {pass}, {order}, in steps of {batch} rows"));
            met.map_err(|error| self.called_off(error))?;
        }
        let mut dealer = Dealer::new(lanes.count, batch);
        let (rows, is_all) = match order {
            Order::Input => {
                let units = Units::open(input, workers, &self.halt)?;
                let ready = lanes.of_worker(worker).map(|_| Ready::default()).collect();
                let (shape, spare, bytes) = (input.encoder.new_batch(), Vec::new(), 0);
                let in_order = InOrder { units, lanes, worker, ready, shape, spare, bytes, round: None };
                (Source::InOrder(Box::new(in_order)), false)
            }
            Order::Shuffled => {
                let (sorted, counts) = exchange(self, input, pass, lanes)?;
                dealer.add(&counts);
                (Source::Shuffled(Box::new(sorted)), true)
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
            dealer,
            minibatch: input.encoder.new_batch(),
            ahead: input.encoder.new_batch(),
            prepared: None,
            given: 0,
            is_all,
        })
    }
}

/// The largest power of two that divides the batch, if the workers can share so many.
///
/// # Errors
/// [`JobError::Options`], which says what batch would do.
pub fn lanes_of(batch: usize, workers: u32) -> Result<u32, JobError> {
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
                steps.pass_over(worker, made)?;
                Ok(steps)
            });
            match shared {
                Ok(steps) => return Ok(Steps { turn, ..steps }),
                Err(error) => worker.go_on(error)?,
            }
            made = worker.take_redo().unwrap_or(made);
        }
    }

    /// Passes over steps until so many are behind it. Where their rows are all here already, nothing but the look between two of
    /// them tells that this worker is to stop, or that another one is lost.
    fn pass_over(&mut self, worker: &mut Worker, made: u64) -> Result<(), JobError> {
        while self.given < made {
            worker.check_all()?;
            if !self.advance(worker)? {
                let reason = format!("{made} steps were made, and the input has {}", self.given);
                return Err(JobError::OutOfStep { worker: worker.rank(), reason });
            }
        }
        Ok(())
    }

    /// This worker's rows of the next step, perhaps none; `None` when all workers have none left. After a loss the
    /// lost rows are shared out anew and the open step is given once more ([`Worker::wait_applied`]).
    ///
    /// # Errors
    /// [`JobError::OpenStep`] if gradients were handed in for the step before, and it was not waited for.
    pub fn next(&mut self, worker: &mut Worker) -> Result<Option<Rows<'_>>, JobError> {
        worker.check_step_ended()?;
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

    /// Reads the rows of the next step ahead, as far as that needs no other worker.
    ///
    /// For the time between [`SyncGroup::hand_over`](sanderling_client::SyncGroup::hand_over) and
    /// [`Worker::wait_applied`]. [`Steps::next`] reports errors.
    pub fn prepare(&mut self, worker: &mut Worker) {
        if self.prepared.is_some() {
            return;
        }
        if self.wants_more() {
            if let Err(error) = self.read_round(worker) {
                self.prepared = Some(Err(error));
            }
        } else if self.dealer.has_rows() {
            self.prepared = Some(self.fill_ahead(worker));
        }
    }

    /// Puts the rows of the next step into the minibatch; `false`: there is none.
    fn advance(&mut self, worker: &mut Worker) -> Result<bool, JobError> {
        if let Some(prepared) = self.prepared.take() {
            prepared?;
        } else {
            while self.wants_more() {
                self.agree(worker)?;
            }
            if !self.dealer.has_rows() {
                return Ok(false);
            }
            self.fill_ahead(worker)?;
        }
        std::mem::swap(&mut self.minibatch, &mut self.ahead);
        self.given += 1;
        Ok(true)
    }

    fn wants_more(&self) -> bool {
        !self.is_all && self.dealer.wants_more()
    }

    /// Takes the rows that are next of all lanes of this worker.
    fn fill_ahead(&mut self, worker: &mut Worker) -> Result<(), JobError> {
        self.ahead.clear();
        let dealt = self.dealer.deal();
        for (position, &lane) in self.lanes.iter().enumerate() {
            let (timer, rows) = (&mut worker.timer, dealt[lane as usize]);
            match &mut self.rows {
                Source::InOrder(in_order) => {
                    timer.switch(ASSEMBLE);
                    in_order.take(position, rows, &mut self.ahead);
                }
                Source::Shuffled(sorted) => {
                    timer.switch(SHUFFLE);
                    let rows = sorted.make_ready(position, rows)?;
                    timer.switch(ASSEMBLE);
                    sorted.take(position, rows, &mut self.ahead)?;
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

    /// All workers learn how many rows the next round gives each lane. They depend on the input alone, and so does who asks
    /// when: all ask at the same step.
    fn agree(&mut self, worker: &mut Worker) -> Result<(), JobError> {
        self.read_round(worker)?;
        let Source::InOrder(in_order) = &mut self.rows else { return Ok(()) };
        let Some(mut round) = in_order.round.take() else { return Ok(()) };
        worker.timer.switch(WAIT);
        if worker.living() > 1 {
            let agreed = worker.group.all_reduce_counts("rows to come", &mut round, Reduce::Sum);
            agreed.map_err(|error| worker.called_off(error))?;
        }
        self.is_all = round.pop() != Some(0);
        self.dealer.add(&round);
        Ok(())
    }

    fn read_round(&mut self, worker: &mut Worker) -> Result<(), JobError> {
        match &mut self.rows {
            Source::InOrder(in_order) => in_order.read_round(&mut worker.timer),
            Source::Shuffled(_) => Ok(()),
        }
    }
}

impl InOrder {
    /// Reads a unit for each lane of this worker, unless that is done.
    fn read_round(&mut self, timer: &mut StageTimer) -> Result<(), JobError> {
        if self.round.is_some() {
            return Ok(());
        }
        let (lanes, worker) = (self.lanes, self.worker);
        let mut round = vec![0; lanes.count as usize + 1];
        for (ready, lane) in self.ready.iter_mut().zip(lanes.of_worker(worker)) {
            let read = self.units.read(timer, |number| lanes.owner(lanes.of(number)) == worker)?;
            let Some(number) = read else {
                round[lanes.count as usize] = 1;
                break;
            };
            debug_assert_eq!(lanes.of(number), lane);
            let mut unit = self.spare.pop().unwrap_or_else(|| Batch::like(&self.shape));
            self.units.decode(&mut unit, timer)?;
            self.bytes += unit.bytes();
            if self.bytes > AHEAD_BYTES_MAX {
                let reason = format!(
                    "steps in the order of the input are made of {} units of it at once, which are more than {}; \
                     shuffle it, or convert it into smaller blocks (--block-rows)",
                    lanes.count,
                    in_units(AHEAD_BYTES_MAX as u64)
                );
                return Err(JobError::Options(reason));
            }
            round[lane as usize] = unit.len() as u64;
            ready.units.push_back(unit);
        }
        self.round = Some(round);
        Ok(())
    }

    /// Appends rows that are ready.
    fn take(&mut self, lane: usize, mut rows: usize, batch: &mut Batch) {
        let ready = &mut self.ready[lane];
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::control_msg::ControlMsg;
    use crate::hosts::test_hosts;

    #[test]
    fn whoever_passes_over_steps_hears_that_it_is_to_stop_and_what_becomes_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let input = test_hosts::input(dir.path(), &"0 1:1\n".repeat(100));
        let fail = ControlMsg::Fail { worker: 1, reason: "its disk is full".to_owned() };
        let check = |said: Option<ControlMsg>, expected: Result<(), &str>| {
            let (mut worker, status) = test_hosts::first(dir.path(), 1);
            let mut steps = worker.steps(&input, 0, Order::Shuffled, 4).unwrap();
            said.iter().for_each(|said| status.note(said));
            match (steps.pass_over(&mut worker, 20), expected) {
                (Ok(()), Ok(())) => assert_eq!(steps.given(), 20),
                (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
                (found, _) => panic!("{said:?}: {found:?}"),
            }
        };
        check(None, Ok(()));
        check(Some(ControlMsg::Stop { worker: 0 }), Err("worker 0 was stopped"));
        check(Some(ControlMsg::Stop { worker: 1 }), Err("worker 1 at "));
        check(Some(test_hosts::loss_of(1)), Err("it is lost"));
        check(Some(fail), Err("its disk is full"));
    }
}
