//! Messages between the workers of a job: identity, exchanged rows and bytes, heartbeats and losses.

use crate::limit::{EXCHANGE_BYTES_MAX, REASON_BYTES_MAX, WORKERS_MAX};
use crate::reader::Reader;
use crate::writer::Writer;
use crate::{Kind, WireError};

/// The purpose of a connection between two workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Way {
    /// Exchanged rows and bytes. They wait while the receiver has no room.
    Rows = 0,
    /// Heartbeats, losses and the like, to rank 0. They never wait behind rows.
    Control = 1,
}

/// The first request of a worker to one of a lower rank, after hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Join {
    /// Hash of all settings that workers of a job must share: configuration, input, number of workers.
    pub job: u64,
    /// Rank of the worker, from 0.
    pub rank: u32,
    /// Number of workers.
    pub workers: u32,
    /// Grows with each process that replaces a dead worker.
    pub attempt: u32,
    /// Purpose of the connection.
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

/// Reply to [`Join`]: the identity of the answering worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joined {
    /// Its rank.
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

/// A message between workers. There are no replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tell<'a> {
    /// Rows for the receiver.
    Rows {
        /// Number of the exchange within the job.
        round: u64,
        /// Index of the slice of the row order.
        slice: u32,
        /// Packed rows, at most [`EXCHANGE_BYTES_MAX`].
        bytes: &'a [u8],
    },
    /// The receiver has all of its rows.
    RowsEnd {
        /// Number of the exchange.
        round: u64,
    },
    /// Bytes of an all-to-all exchange.
    Part {
        /// Number of the exchange, counted with those of rows.
        round: u64,
        /// Whether it is the last part.
        is_last: bool,
        /// At most [`EXCHANGE_BYTES_MAX`].
        bytes: &'a [u8],
    },
    /// A heartbeat.
    Alive {
        /// Index of the worker's stage.
        stage: u32,
        /// Time in this stage, in microseconds.
        for_us: u64,
        /// Number of the pass within the job.
        turn: u64,
        /// All rows of the pass before this position are applied.
        settled: u64,
    },
    /// To rank 0: this worker has done its share of a pass, including shares taken over. From rank 0: all workers
    /// have.
    TurnOver {
        /// Number of the pass. 2^64 - 1: the job.
        turn: u64,
        /// Number of losses that the sender knows.
        losses: u32,
    },
    /// To rank 0: this worker is unreachable. From rank 0: it is lost, and the others continue without it.
    Lost {
        /// Rank of the worker.
        worker: u32,
        /// Number of the loss, from 1. 0 in messages to rank 0.
        losses: u32,
        /// Its pass.
        turn: u64,
        /// All rows of the pass before this position are applied.
        settled: u64,
        /// How the loss was noticed, for people. Encoding cuts it.
        reason: &'a str,
    },
    /// To rank 0: the position of this worker's group when it stopped for a loss. From rank 0: the new group and its
    /// start.
    Regroup {
        /// Number of losses so far.
        losses: u32,
        /// Number of the new group. 0 in messages to rank 0.
        group: u64,
        /// The last applied step of the old group.
        applied: u64,
        /// The last completed barrier of the old group.
        rounds: u64,
    },
    /// A worker failed, so the job ends.
    Fail {
        /// Rank of the worker.
        worker: u32,
        /// The reason, for people. Encoding cuts it.
        reason: &'a str,
    },
    /// To rank 0: the worker's finished steps in a pass, where the distance between workers is limited. From rank 0:
    /// the fewest finished steps of the workers still in the pass.
    Pace {
        /// Rank of the slowest worker; in messages to rank 0, of the sender.
        worker: u32,
        /// Number of the pass.
        turn: u64,
        /// Number of steps.
        steps: u64,
        /// Steps of all workers except the receiver. 0 in messages to rank 0.
        others: u64,
    },
    /// A worker was asked to stop, so the job ends without an error.
    Stop {
        /// Rank of the worker.
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

    /// `None`: the kind is not a message between workers.
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
