//! Synchronous steps: gradients of one step, the progress of all workers, and barriers that exchange bytes.

use crate::WireError;
use crate::limit::{KEYS_MAX, MEET_BYTES_MAX, NAME_BYTES_MAX, WORKERS_MAX};
use crate::message::pull::{read_dim, write_dim};
use crate::reader::{Reader, product};
use crate::writer::{Writer, agree};

/// One worker of a synchronous group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Random number of the job.
    pub group: u64,
    /// Index of the worker.
    pub worker: u32,
    /// Number of workers, at most [`WORKERS_MAX`].
    pub workers: u32,
    /// Grows with each process that replaces a dead worker.
    pub attempt: u32,
}

impl Member {
    fn check(self) -> Result<Member, WireError> {
        if self.workers == 0 || self.workers as usize > WORKERS_MAX {
            return Err(WireError::Value { what: "workers", found: self.workers.into() });
        }
        if self.worker >= self.workers {
            return Err(WireError::Value { what: "worker", found: self.worker.into() });
        }
        Ok(self)
    }

    /// 20 bytes; another number of 4 follows.
    fn write(self, out: &mut Writer<'_>) -> Result<(), WireError> {
        self.check()?;
        out.u64(self.group);
        [self.worker, self.workers, self.attempt].iter().for_each(|&number| out.u32(number));
        Ok(())
    }

    fn read(from: &mut Reader<'_>) -> Result<Member, WireError> {
        let (group, worker) = (from.u64("group")?, from.u32("worker")?);
        let (workers, attempt) = (from.u32("workers")?, from.u32("attempt")?);
        Member { group, worker, workers, attempt }.check()
    }
}

/// A row of gradients per key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StepGradients<'a> {
    /// As in [`Push`](crate::Push).
    Single(&'a [f32]),
    /// Multiples of a power of two. Their sums do not depend on the distribution of samples to workers.
    Fixed {
        /// Exponent of the power.
        unit_log2: i8,
        /// The multiples.
        sums: &'a [i64],
    },
}

impl StepGradients<'_> {
    fn len(&self) -> usize {
        match self {
            StepGradients::Single(values) => values.len(),
            StepGradients::Fixed { sums, .. } => sums.len(),
        }
    }
}

/// A part of a worker's gradients for a step and a table. The server keeps it until all workers have completed theirs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PushStep<'a> {
    /// Number of the table.
    pub table: u32,
    /// The worker.
    pub member: Member,
    /// Number of the message among this worker's messages of the step to this server, from 0.
    pub number: u32,
    /// Number of the step, from 1 in a group, without gaps.
    pub step: u64,
    /// Weights per row.
    pub dim: u32,
    /// Factor of the learning rate, equal in all messages of the step about the table.
    pub lr_scale: f32,
    /// At most [`KEYS_MAX`]. Gradients of repeated keys are summed.
    pub keys: &'a [u64],
    /// Occurrences of each key in the batch.
    pub counts: &'a [u32],
    /// A row of `dim` values per key.
    pub gradients: StepGradients<'a>,
}

impl<'a> PushStep<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        agree("counts", self.keys.len(), self.counts.len())?;
        let values = product("gradients", self.keys.len(), self.dim as usize)?;
        agree("gradients", values, self.gradients.len())?;
        self.member.write(out)?;
        out.u32(self.number);
        out.u64(self.step);
        out.count("keys", self.keys.len(), KEYS_MAX)?;
        write_dim(self.dim, out)?;
        out.f32(self.lr_scale);
        let (form, unit) = match self.gradients {
            StepGradients::Single(_) => (0, 0),
            StepGradients::Fixed { unit_log2, .. } => (1, unit_log2 as u8),
        };
        out.u8(form);
        out.u8(unit);
        out.pad();
        out.slice(self.keys);
        out.slice(self.counts);
        match self.gradients {
            StepGradients::Single(values) => out.slice(values),
            StepGradients::Fixed { sums, .. } => out.slice(sums),
        }
        Ok(())
    }

    pub(crate) fn read(table: u32, from: &mut Reader<'a>) -> Result<PushStep<'a>, WireError> {
        let member = Member::read(from)?;
        let (number, step) = (from.u32("number")?, from.u64("step")?);
        let count = from.count("keys", KEYS_MAX)?;
        let dim = read_dim(from)?;
        let lr_scale = from.f32("lr_scale")?;
        let (is_fixed, unit) = (from.bool("form of the gradients")?, from.u8("unit")?);
        from.pad("unit")?;
        let keys = from.slice("keys", count)?;
        let counts = from.slice("counts", count)?;
        let values = product("gradients", count, dim as usize)?;
        let gradients = match (is_fixed, unit) {
            (true, unit) => {
                StepGradients::Fixed { unit_log2: unit as i8, sums: from.slice("gradients", values)? }
            }
            (false, 0) => StepGradients::Single(from.slice("gradients", values)?),
            (false, unit) => return Err(WireError::Value { what: "unit", found: unit.into() }),
        };
        Ok(PushStep { table, member, number, step, dim, lr_scale, keys, counts, gradients })
    }
}

/// A worker's report about a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// No report. From a new attempt it withdraws the earlier attempt's report about an undecided step.
    Nothing,
    /// All gradients of the worker are on the servers.
    Whole {
        /// Number of [`PushStep`] messages that this server has.
        messages: u32,
    },
    /// Another server decided the step with an earlier attempt's gradients, so these are complete here, too.
    WholeBefore {
        /// Number of that attempt.
        attempt: u32,
    },
    /// The worker has finished the step and continues without waiting.
    Finished,
}

/// Reports about a step and requests the progress of all workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitStep {
    /// The worker.
    pub member: Member,
    /// Number of the step.
    pub step: u64,
    /// The report.
    pub said: Said,
}

impl WaitStep {
    pub(crate) fn write(self, out: &mut Writer<'_>) -> Result<(), WireError> {
        let (said, number) = match self.said {
            Said::Nothing => (0, 0),
            Said::Whole { messages } => (1, messages),
            Said::WholeBefore { attempt } => (2, attempt),
            Said::Finished => (3, 0),
        };
        self.member.write(out)?;
        out.u32(number);
        out.u64(self.step);
        out.u8(said);
        out.pad();
        Ok(())
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<WaitStep, WireError> {
        let member = Member::read(from)?;
        let (number, step, said) = (from.u32("number")?, from.u64("step")?, from.u8("said")?);
        from.pad("said")?;
        let said = match (said, number) {
            (0, 0) => Said::Nothing,
            (1, messages) => Said::Whole { messages },
            (2, attempt) => Said::WholeBefore { attempt },
            (3, 0) => Said::Finished,
            (said, 0) => return Err(WireError::Value { what: "said", found: said.into() }),
            (_, number) => return Err(WireError::Value { what: "number", found: number.into() }),
        };
        Ok(WaitStep { member, step, said })
    }
}

/// The progress of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepState<'a> {
    /// The last applied step.
    pub applied: u64,
    /// The last step that is applied or irrevocably about to be.
    pub decided: u64,
    /// The attempt of this worker that took part in it.
    pub attempt: u32,
    /// The last step that all workers have [finished](Said::Finished).
    pub finished: u64,
    /// The first barrier that this worker has not reached.
    pub round: u64,
    /// The missing workers: those with incomplete gradients, or, for a finished worker, the slowest ones.
    pub missing: &'a [u32],
}

impl<'a> StepState<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        [self.applied, self.decided, self.finished, self.round].iter().for_each(|&number| out.u64(number));
        out.u32(self.attempt);
        out.count("missing workers", self.missing.len(), WORKERS_MAX)?;
        out.slice(self.missing);
        Ok(())
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<StepState<'a>, WireError> {
        let (applied, decided) = (from.u64("applied")?, from.u64("decided")?);
        let (finished, round) = (from.u64("finished")?, from.u64("round")?);
        let attempt = from.u32("attempt")?;
        let count = from.count("missing workers", WORKERS_MAX)?;
        let missing = from.slice("missing workers", count)?;
        Ok(StepState { applied, decided, attempt, finished, round, missing })
    }
}

/// Brings bytes to a barrier and requests those of all workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meet<'a> {
    /// The worker.
    pub member: Member,
    /// Number of the barrier, from 1 in a group, without gaps.
    pub round: u64,
    /// Purpose of the barrier. Different names show that workers are at different places of the program.
    pub name: &'a str,
    /// At most [`MEET_BYTES_MAX`].
    pub bytes: &'a [u8],
}

impl<'a> Meet<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        self.member.write(out)?;
        out.pad();
        out.u64(self.round);
        out.text("name of a meeting", self.name, NAME_BYTES_MAX)?;
        out.blob("bytes of a meeting", self.bytes, MEET_BYTES_MAX)
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Meet<'a>, WireError> {
        let member = Member::read(from)?;
        from.pad("attempt")?;
        let round = from.u64("round")?;
        let name = from.text("name of a meeting", NAME_BYTES_MAX)?;
        Ok(Meet { member, round, name, bytes: from.blob("bytes of a meeting", MEET_BYTES_MAX)? })
    }
}

/// Reply at a barrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Met<'a> {
    /// The workers that have not arrived. Ask again.
    Waiting(&'a [u32]),
    /// The bytes of all workers, in their order.
    All(Vec<&'a [u8]>),
}

/// Length of an empty part.
const PART_BYTES_MIN: usize = 8;
/// Length of the longest request or reply, without the bytes of workers.
const MEET_HEAD_BYTES: usize = 512;

impl<'a> Met<'a> {
    /// Bytes that each worker may bring to a barrier if `givers` of them bring any, so that all fit one frame.
    #[must_use]
    pub fn part_bytes_max(frame_bytes_max: usize, workers: usize, givers: usize) -> usize {
        let room = frame_bytes_max.saturating_sub(MEET_HEAD_BYTES + workers * PART_BYTES_MIN);
        // Each part is padded to a multiple of 8.
        (room / givers.max(1) / 8 * 8).min(MEET_BYTES_MAX)
    }

    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        let (missing, parts) = match self {
            Met::Waiting(missing) => (*missing, &[][..]),
            Met::All(parts) => (&[][..], &parts[..]),
        };
        check_one_of(missing.len(), parts.len())?;
        out.count("missing workers", missing.len(), WORKERS_MAX)?;
        out.count("parts of a meeting", parts.len(), WORKERS_MAX)?;
        out.slice(missing);
        parts.iter().try_for_each(|part| out.blob("bytes of a meeting", part, MEET_BYTES_MAX))
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Met<'a>, WireError> {
        let missing = from.count("missing workers", WORKERS_MAX)?;
        let parts = from.list("parts of a meeting", WORKERS_MAX, PART_BYTES_MIN)?;
        check_one_of(missing, parts)?;
        let missing = from.slice("missing workers", missing)?;
        if parts == 0 {
            return Ok(Met::Waiting(missing));
        }
        let part = |_| from.blob("bytes of a meeting", MEET_BYTES_MAX);
        Ok(Met::All((0..parts).map(part).collect::<Result<_, _>>()?))
    }
}

fn check_one_of(missing: usize, parts: usize) -> Result<(), WireError> {
    if (missing == 0) != (parts == 0) {
        return Ok(());
    }
    Err(WireError::Value { what: "parts of a meeting", found: parts as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Agreed, Buffer, Features, Reply, Request};

    /// Parts of the maximum size fit a reply and a request with the longest name. One more byte would not, where the
    /// frame is the limit.
    #[test]
    fn parts_of_a_meeting_fit_a_frame() {
        for (frame_bytes_max, workers, givers) in
            [(1 << 24, 1, 1), (1 << 24, 15, 15), (1 << 24, 16, 16), (1 << 24, 1024, 1), (1 << 24, 1024, 1024)]
                .into_iter()
                .chain([(1 << 16, 1, 1), (1 << 16, 3, 3), (1 << 16, 1024, 1), (1 << 16, 1024, 1024)])
        {
            let bytes_max = Met::part_bytes_max(frame_bytes_max, workers, givers);
            let agreed =
                Agreed { version: 1, features: Features::NONE, frame_bytes_max: frame_bytes_max as u32 };
            let what = format!("{frame_bytes_max} {workers} {givers} {bytes_max}");
            let part = vec![7; bytes_max];
            let parts = (0..workers).map(|at| if at < givers { &part[..] } else { &[] }).collect();
            let mut frame = Buffer::new(frame_bytes_max);
            let answer = Reply::Meet(Met::All(parts));
            let answered = frame.append(|out| answer.encode(&agreed, 1, out));
            assert!(answered.is_ok(), "{what}: {answered:?}");
            let spare = frame_bytes_max - frame.len();
            assert!(bytes_max == MEET_BYTES_MAX || spare < 512 + 8 * givers, "{what}: {spare} bytes more");
            let name = "x".repeat(NAME_BYTES_MAX);
            let member = Member { group: 1, worker: 0, workers: workers as u32, attempt: 0 };
            let question = Request::Meet(Meet { member, round: 1, name: &name, bytes: &part });
            frame.clear();
            let asked = frame.append(|out| question.encode(&agreed, 1, 0, out));
            assert!(asked.is_ok(), "{what}: {asked:?}");
        }
    }
}
