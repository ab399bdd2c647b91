//! What the workers of a job tell each other directly: who they are, rows and bytes of an exchange, signs of life, and who is
//! lost. Knows not what is in a row, and not what is done about a loss.

use crate::limit::{EXCHANGE_BYTES_MAX, REASON_BYTES_MAX, WORKERS_MAX};
use crate::reader::Reader;
use crate::writer::Writer;
use crate::{Kind, WireError};

/// What a connection between two workers is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Way {
    /// Rows and bytes of exchanges, which wait while the other has no room.
    Rows = 0,
    /// To the worker of rank 0: signs of life, losses and the like, which never wait behind rows.
    Control = 1,
}

/// The first request of a worker to one of a lower rank, after hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Join {
    /// Made of everything that must be the same for all workers of a job: configuration, input, number of workers.
    pub job: u64,
    /// Which worker it is, from 0.
    pub rank: u32,
    /// How many there are.
    pub workers: u32,
    /// Higher for each process that takes the place of a worker that died.
    pub attempt: u32,
    /// What the connection is for.
    pub way: Way,
}

impl Join {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        self.check()?;
        out.u64(self.job);
        [self.rank, self.workers, self.attempt].iter().for_each(|&number| out.u32(number));
        out.u8(self.way as u8);
        out.pad();
        Ok(())
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Join, WireError> {
        let (job, rank) = (from.u64("job")?, from.u32("rank")?);
        let (workers, attempt) = (from.u32("workers")?, from.u32("attempt")?);
        let way = match from.u8("way")? {
            0 => Way::Rows,
            1 => Way::Control,
            other => return Err(WireError::Value { what: "way", found: other.into() }),
        };
        from.pad("way")?;
        let join = Join { job, rank, workers, attempt, way };
        join.check()?;
        Ok(join)
    }

    fn check(&self) -> Result<(), WireError> {
        if self.workers as usize > WORKERS_MAX {
            return Err(WireError::Value { what: "workers", found: self.workers.into() });
        }
        check_worker("rank", self.rank, self.workers)
    }
}

/// Answer to [`Join`]: who answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joined {
    /// Which worker it is.
    pub rank: u32,
    /// Its attempt.
    pub attempt: u32,
}

impl Joined {
    pub(crate) fn write(self, out: &mut Writer<'_>) -> Result<(), WireError> {
        check_worker("rank", self.rank, WORKERS_MAX as u32)?;
        out.u32(self.rank);
        out.u32(self.attempt);
        Ok(())
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Joined, WireError> {
        let (rank, attempt) = (from.u32("rank")?, from.u32("attempt")?);
        check_worker("rank", rank, WORKERS_MAX as u32)?;
        Ok(Joined { rank, attempt })
    }
}

/// What one worker tells another; there are no answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tell<'a> {
    /// Rows that belong to the receiver.
    Rows {
        /// Of which exchange, counted over all that the job does.
        round: u64,
        /// Which part of the order of rows they are of.
        slice: u32,
        /// The rows, packed; at most [`EXCHANGE_BYTES_MAX`].
        bytes: &'a [u8],
    },
    /// The receiver has been sent all of its rows.
    RowsEnd {
        /// Of which exchange.
        round: u64,
    },
    /// Bytes of an all-to-all.
    Part {
        /// Which, counted with the exchanges of rows.
        round: u64,
        /// Whether no more follow.
        is_last: bool,
        /// At most [`EXCHANGE_BYTES_MAX`].
        bytes: &'a [u8],
    },
    /// The worker lives.
    Alive {
        /// What it does, as a number among the stages of the job.
        stage: u32,
        /// For how long.
        for_us: u64,
        /// Which of the job's passes it is in, counted over all that the job does.
        turn: u64,
        /// What it was given of that pass before this position is applied.
        settled: u64,
    },
    /// To rank 0: this worker has done its share of a pass, and that of others that it took over. From rank 0: all have.
    TurnOver {
        /// Which pass; 2^64 - 1: the job.
        turn: u64,
        /// Losses that it knows of.
        losses: u32,
    },
    /// To rank 0: this worker cannot be reached. From rank 0: it is lost; the others go on without it.
    Lost {
        /// Which.
        worker: u32,
        /// Number of the loss, from 1; 0 in what rank 0 is told.
        losses: u32,
        /// The pass that it was in.
        turn: u64,
        /// What it was given of that pass before this position is applied.
        settled: u64,
        /// How it was noticed, for people. Cut when it is written.
        reason: &'a str,
    },
    /// To rank 0: how far this worker's group was when it stopped for a loss. From rank 0: with which group the job goes on, and from where.
    Regroup {
        /// Losses so far.
        losses: u32,
        /// Number of the new group; 0 in what rank 0 is told.
        group: u64,
        /// The last step of the old group that is applied.
        applied: u64,
        /// The meetings of the old group that took place.
        rounds: u64,
    },
    /// A worker cannot go on, and so the job ends.
    Fail {
        /// Which.
        worker: u32,
        /// Why, for people. Cut when it is written.
        reason: &'a str,
    },
    /// To rank 0: how many steps of its own this worker has finished in a pass, where nobody may be far ahead of others. From rank
    /// 0: how many the slowest has of those who have not done the pass.
    Pace {
        /// Who the slowest is; in what rank 0 is told, who says it.
        worker: u32,
        /// Which pass.
        turn: u64,
        /// Steps.
        steps: u64,
        /// Steps of all but the receiver together; 0 in what rank 0 is told.
        others: u64,
    },
    /// A worker was asked to stop, and so the job ends. Nothing is wrong with it.
    Stop {
        /// Which.
        worker: u32,
    },
}

impl<'a> Tell<'a> {
    /// The kind of its frame.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Tell::Rows { .. } => Kind::Rows,
            Tell::RowsEnd { .. } => Kind::RowsEnd,
            Tell::Part { .. } => Kind::Part,
            Tell::Alive { .. } => Kind::Alive,
            Tell::TurnOver { .. } => Kind::TurnOver,
            Tell::Lost { .. } => Kind::Lost,
            Tell::Regroup { .. } => Kind::Regroup,
            Tell::Fail { .. } => Kind::Fail,
            Tell::Pace { .. } => Kind::Pace,
            Tell::Stop { .. } => Kind::Stop,
        }
    }

    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        match *self {
            Tell::Rows { round, slice, bytes } => {
                out.u64(round);
                out.u32(slice);
                out.pad();
                out.blob("rows of an exchange", bytes, EXCHANGE_BYTES_MAX)?;
            }
            Tell::RowsEnd { round } => out.u64(round),
            Tell::Part { round, is_last, bytes } => {
                out.u64(round);
                out.u8(is_last.into());
                out.pad();
                out.blob("bytes of an exchange", bytes, EXCHANGE_BYTES_MAX)?;
            }
            Tell::Alive { stage, for_us, turn, settled } => {
                out.u32(stage);
                out.pad();
                [for_us, turn, settled].iter().for_each(|&number| out.u64(number));
            }
            Tell::TurnOver { turn, losses } => {
                out.u64(turn);
                out.u32(losses);
                out.pad();
            }
            Tell::Lost { worker, losses, turn, settled, reason } => {
                check_worker("worker", worker, WORKERS_MAX as u32)?;
                out.u32(worker);
                out.u32(losses);
                out.u64(turn);
                out.u64(settled);
                out.reason(reason)?;
            }
            Tell::Regroup { losses, group, applied, rounds } => {
                out.u32(losses);
                out.pad();
                [group, applied, rounds].iter().for_each(|&number| out.u64(number));
            }
            Tell::Fail { worker, reason } => {
                check_worker("worker", worker, WORKERS_MAX as u32)?;
                out.u32(worker);
                out.pad();
                out.reason(reason)?;
            }
            Tell::Pace { worker, turn, steps, others } => {
                check_worker("worker", worker, WORKERS_MAX as u32)?;
                out.u32(worker);
                out.pad();
                [turn, steps, others].iter().for_each(|&number| out.u64(number));
            }
            Tell::Stop { worker } => {
                check_worker("worker", worker, WORKERS_MAX as u32)?;
                out.u32(worker);
                out.pad();
            }
        }
        Ok(())
    }

    /// `None`: workers tell each other nothing of this kind.
    pub(crate) fn read(kind: Kind, from: &mut Reader<'a>) -> Result<Option<Tell<'a>>, WireError> {
        Ok(Some(match kind {
            Kind::Rows => {
                let (round, slice) = (from.u64("round")?, from.u32("slice")?);
                from.pad("slice")?;
                Tell::Rows { round, slice, bytes: from.blob("rows of an exchange", EXCHANGE_BYTES_MAX)? }
            }
            Kind::RowsEnd => Tell::RowsEnd { round: from.u64("round")? },
            Kind::Part => {
                let (round, is_last) = (from.u64("round")?, from.bool("is_last")?);
                from.pad("is_last")?;
                Tell::Part { round, is_last, bytes: from.blob("bytes of an exchange", EXCHANGE_BYTES_MAX)? }
            }
            Kind::Alive => {
                let stage = from.u32("stage")?;
                from.pad("stage")?;
                let (for_us, turn) = (from.u64("for_us")?, from.u64("turn")?);
                Tell::Alive { stage, for_us, turn, settled: from.u64("settled")? }
            }
            Kind::TurnOver => {
                let (turn, losses) = (from.u64("turn")?, from.u32("losses")?);
                from.pad("losses")?;
                Tell::TurnOver { turn, losses }
            }
            Kind::Lost => {
                let (worker, losses) = (from.u32("worker")?, from.u32("losses")?);
                check_worker("worker", worker, WORKERS_MAX as u32)?;
                let (turn, settled) = (from.u64("turn")?, from.u64("settled")?);
                let reason = from.text("reason", REASON_BYTES_MAX)?;
                Tell::Lost { worker, losses, turn, settled, reason }
            }
            Kind::Regroup => {
                let losses = from.u32("losses")?;
                from.pad("losses")?;
                let (group, applied) = (from.u64("group")?, from.u64("applied")?);
                Tell::Regroup { losses, group, applied, rounds: from.u64("rounds")? }
            }
            Kind::Fail => {
                let worker = from.u32("worker")?;
                check_worker("worker", worker, WORKERS_MAX as u32)?;
                from.pad("worker")?;
                Tell::Fail { worker, reason: from.text("reason", REASON_BYTES_MAX)? }
            }
            Kind::Pace => {
                let worker = from.u32("worker")?;
                check_worker("worker", worker, WORKERS_MAX as u32)?;
                from.pad("worker")?;
                let (turn, steps) = (from.u64("turn")?, from.u64("steps")?);
                Tell::Pace { worker, turn, steps, others: from.u64("others")? }
            }
            Kind::Stop => {
                let worker = from.u32("worker")?;
                check_worker("worker", worker, WORKERS_MAX as u32)?;
                from.pad("worker")?;
                Tell::Stop { worker }
            }
            _ => return Ok(None),
        }))
    }
}

fn check_worker(what: &'static str, worker: u32, workers: u32) -> Result<(), WireError> {
    if worker < workers {
        return Ok(());
    }
    Err(WireError::Value { what, found: worker.into() })
}
