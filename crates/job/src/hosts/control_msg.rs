//! Messages between workers on several hosts, except for rows, as owned values. Knows no connection.

use sanderling_wire::{Agreed, Buffer, Request, Tell, WireError, limit, on_one_line};

/// A turn that is the end of the job.
pub(crate) const JOB: u64 = u64::MAX;

/// A worker that is lost, and how far it had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) worker: u32,
    /// The turn that was going on.
    pub(crate) turn: u64,
    /// Of its own units those before this one are done; [`ALL`]: what it had taken over, too.
    pub(crate) settled: u64,
}

/// So many losses as whoever has left a turn knows of: it takes no more part in it, whoever is lost.
pub(crate) const LEFT: u32 = u32::MAX;

/// Everything that a worker had to do in a turn.
pub(crate) const ALL: u64 = u64::MAX;

/// See [`Tell`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ControlMsg {
    Alive { stage: u32, for_us: u64, turn: u64, settled: u64 },
    TurnOver { turn: u64, losses: u32 },
    Lost { losses: u32, loss: Loss, reason: String },
    Start { group: u64 },
    Fail { worker: u32, reason: String },
    Pace { worker: u32, turn: u64, steps: u64, others: u64 },
    Stop { worker: u32 },
}

impl ControlMsg {
    /// `None`: it is about rows.
    pub(crate) fn of(tell: &Tell<'_>) -> Option<ControlMsg> {
        Some(match *tell {
            Tell::Alive { stage, for_us, turn, settled } => {
                ControlMsg::Alive { stage, for_us, turn, settled }
            }
            Tell::TurnOver { turn, losses } => ControlMsg::TurnOver { turn, losses },
            Tell::Lost { worker, losses, turn, settled, reason } => {
                ControlMsg::Lost { losses, loss: Loss { worker, turn, settled }, reason: on_one_line(reason) }
            }
            Tell::Regroup { group, .. } => ControlMsg::Start { group },
            Tell::Fail { worker, reason } => ControlMsg::Fail { worker, reason: on_one_line(reason) },
            Tell::Pace { worker, turn, steps, others } => ControlMsg::Pace { worker, turn, steps, others },
            Tell::Stop { worker } => ControlMsg::Stop { worker },
            Tell::Rows { .. } | Tell::RowsEnd { .. } | Tell::Part { .. } => return None,
        })
    }

    fn tell(&self) -> Tell<'_> {
        match *self {
            ControlMsg::Alive { stage, for_us, turn, settled } => {
                Tell::Alive { stage, for_us, turn, settled }
            }
            ControlMsg::TurnOver { turn, losses } => Tell::TurnOver { turn, losses },
            ControlMsg::Lost { losses, loss: Loss { worker, turn, settled }, ref reason } => {
                Tell::Lost { worker, losses, turn, settled, reason }
            }
            ControlMsg::Start { group } => Tell::Regroup { losses: 0, group, applied: 0, rounds: 0 },
            ControlMsg::Fail { worker, ref reason } => Tell::Fail { worker, reason },
            ControlMsg::Pace { worker, turn, steps, others } => Tell::Pace { worker, turn, steps, others },
            ControlMsg::Stop { worker } => Tell::Stop { worker },
        }
    }

    pub(crate) fn frame(&self, agreed: &Agreed) -> Result<Buffer, WireError> {
        frame(&Request::Tell(self.tell()), agreed, 0)
    }
}

/// A buffer with one frame.
pub(crate) fn frame(request: &Request<'_>, agreed: &Agreed, id: u64) -> Result<Buffer, WireError> {
    let mut buffer = Buffer::new(limit::FRAME_BYTES_MAX);
    buffer.append(|out| request.encode(agreed, id, 0, out))?;
    Ok(buffer)
}
