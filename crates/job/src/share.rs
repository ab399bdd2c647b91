//! One worker's rows of a pass, as minibatches. Knows nothing of steps.

use sanderling_formats::Decoded;
use sanderling_sample::{Batch, Rows};

use crate::error::JobError;
use crate::exchange::exchange;
use crate::hosts::share_of_lost::Owned;
use crate::hosts::survivors::Turn;
use crate::input::{Input, Order, Units};
use crate::sorted::{Lanes, Sorted};
use crate::stages::{ASSEMBLE, SHUFFLE};
use crate::worker::Worker;

/// The rows of a pass that are this worker's. All workers together have each row once.
pub struct Share {
    given: Given,
}

enum Given {
    InOrder(Box<InOrder>),
    /// With the pass and the number of losses that it counts: a worker lost later keeps its rows.
    Shuffled(Box<Sorted>, Batch, Option<(Turn, usize)>),
    Owned(Box<Owned>),
}

/// Every so-many-th unit, in the order of the input.
struct InOrder {
    units: Units,
    /// The unit at hand, and which of its rows is next.
    unit: Decoded,
    head: usize,
    /// Rows of several units that one minibatch needs.
    pool: Batch,
    is_at_end: bool,
}

impl Worker {
    /// This worker's rows of a pass. All workers must call it with the same input and pass.
    ///
    /// In the order of the input it does not wait for the others, and the rows of a worker that does not call it are
    /// not read. Shuffled, it returns when all rows are at their workers.
    pub fn share(&mut self, input: &Input, pass: u64, order: Order) -> Result<Share, JobError> {
        let workers = self.living();
        let given = match order {
            Order::Input if self.links().is_some() => Given::Owned(Box::new(Owned::open(self, input)?)),
            Order::Input => {
                drop(self.begin_turn());
                let units = Units::open(input, workers, &self.halt)?;
                let (unit, pool) = (Decoded::new(&input.encoder), input.encoder.new_batch());
                Given::InOrder(Box::new(InOrder { units, unit, head: 0, pool, is_at_end: false }))
            }
            Order::Shuffled => {
                let turn = self.begin_turn();
                let (sorted, _) = exchange(self, input, pass, Lanes { count: workers, workers })?;
                Given::Shuffled(
                    Box::new(sorted),
                    input.encoder.new_batch(),
                    Some((turn, self.losses_known())),
                )
            }
        };
        Ok(Share { given })
    }
}

impl Share {
    /// The next minibatch of this many rows, or fewer at the end of the pass; `None` after the last.
    pub fn next(&mut self, worker: &mut Worker, rows: usize) -> Result<Option<Rows<'_>>, JobError> {
        match &mut self.given {
            Given::InOrder(in_order) => {
                let rows = in_order.next(worker, rows)?;
                if rows.is_none() {
                    worker.rest()?;
                }
                Ok(rows)
            }
            Given::Owned(owned) => owned.next(worker, rows),
            Given::Shuffled(sorted, minibatch, turn) => {
                worker.timer.switch(SHUFFLE);
                let rows = sorted.make_ready(0, rows)?;
                worker.timer.switch(ASSEMBLE);
                minibatch.clear();
                sorted.take(0, rows, minibatch)?;
                if rows == 0
                    && let Some((mut turn, losses)) = turn.take()
                    && !end(worker, &mut turn, losses)?
                {
                    let reason = "a worker was lost in an asynchronous pass over shuffled rows, and no other worker has its rows; \
                                  start the job again";
                    return Err(JobError::OutOfStep { worker: worker.rank(), reason: reason.to_owned() });
                }
                Ok((rows > 0).then(|| Rows::all(minibatch)))
            }
        }
    }

    /// Bytes of rows that this worker kept in a temporary file.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        match &self.given {
            Given::InOrder(_) | Given::Owned(_) => 0,
            Given::Shuffled(sorted, ..) => sorted.stored_bytes(),
        }
    }

    /// Whether another worker needs this one's position soon; see [`Share::settled`].
    #[must_use]
    pub fn wants_settling(&self) -> bool {
        matches!(&self.given, Given::Owned(owned) if owned.wants_settling())
    }

    /// Declares that the effects of all rows given so far are stored outside this worker.
    ///
    /// If the worker dies, the others read only later rows again.
    pub fn settled(&mut self, worker: &mut Worker) {
        if let Given::Owned(owned) = &mut self.given {
            owned.settled(worker);
        }
    }
}

/// All rows are given; `false`: a worker was lost before all others had theirs.
fn end(worker: &mut Worker, turn: &mut Turn, losses: usize) -> Result<bool, JobError> {
    worker.rest()?;
    worker.end_turn(turn, losses)
}

impl InOrder {
    fn next(&mut self, worker: &mut Worker, rows: usize) -> Result<Option<Rows<'_>>, JobError> {
        self.pool.clear();
        loop {
            while self.head == self.unit.len() && !self.is_at_end {
                self.next_unit(worker)?;
            }
            worker.timer.switch(ASSEMBLE);
            let wanted = rows - self.pool.len();
            let range = self.head..self.unit.len().min(self.head + wanted);
            self.head = range.end;
            if self.pool.is_empty() && (range.len() == wanted || self.is_at_end) {
                // Handed out where they lie.
                return Ok((!range.is_empty()).then(|| self.unit.rows().slice(range)));
            }
            self.pool.append(&self.unit.rows().slice(range));
            if self.pool.len() == rows || self.is_at_end || self.pool.max_keys() >= Batch::MAX_KEYS / 2 {
                return Ok(Some(Rows::all(&self.pool)));
            }
        }
    }

    fn next_unit(&mut self, worker: &mut Worker) -> Result<(), JobError> {
        let (rank, workers) = (u64::from(worker.rank()), u64::from(worker.workers()));
        let timer = &mut worker.timer;
        self.is_at_end = self.units.read(timer, |number| number % workers == rank)?.is_none();
        if !self.is_at_end {
            self.units.decode_in_place(&mut self.unit, timer)?;
            self.head = 0;
        }
        Ok(())
    }
}
