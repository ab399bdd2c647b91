//! Synchronous steps and barriers. The thread that reports the last missing part of a step applies it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sanderling_store::PushScale;
use sanderling_sync::{
    Complete, Gradients, Group, Met, Mismatch, Part, Participant, Progress, StepError, StepReport,
};
use sanderling_wire as wire;
use sanderling_wire::{Meet, Member, PushStep, Reply, StepGradients, StepState, WaitStep};

use super::check_dim;
use super::replicated_step::Primary;
use crate::call::Call;
use crate::refusal::Refusal;
use crate::session::Handled;
use crate::state::State;

/// Encodes a reply before there is room for it.
type Write<'a> = &'a mut dyn FnMut(Reply<'_>) -> Result<Handled, Refusal>;

// A group changes in single operations, so it is consistent even after a panic.
pub(super) fn lock(group: &Mutex<Group<Refusal>>) -> MutexGuard<'_, Group<Refusal>> {
    group.lock().unwrap_or_else(PoisonError::into_inner)
}

fn participant(member: Member) -> Participant {
    Participant { worker: member.worker, workers: member.workers, attempt: member.attempt }
}

/// Stores a message of a worker's part.
pub(crate) fn push(call: &Call<'_>, push: &PushStep<'_>, slot: &mut [u8]) -> Result<usize, Refusal> {
    let entry = call.view.table(push.table)?;
    check_dim(entry, push.dim)?;
    call.check_keys(entry.home, push.keys)?;
    let part = Part {
        table: push.table,
        lr_scale: push.lr_scale,
        dim: push.dim as usize,
        keys: push.keys.into(),
        counts: push.counts.into(),
        gradients: match push.gradients {
            StepGradients::Single(values) => Gradients::Single(values.into()),
            StepGradients::Fixed { unit_log2, sums } => Gradients::Fixed { unit_log2, sums: sums.into() },
        },
    };
    let participant = participant(push.member);
    let progress = in_group(call.state, push.member, call.now, |group| {
        let mut group = lock(group);
        group.take(participant, push.step, push.number, part)?;
        Ok(group.progress(participant, push.step, StepReport::Nothing))
    })?;
    // Only waiting workers need the list of missing ones.
    call.encode(&Reply::PushStep(state_of(&progress, &[])), slot)
}

/// Records a worker's report, applies the step if it is complete, and returns the progress of all workers.
pub(crate) fn wait(
    state: &State,
    worker: usize,
    now: Instant,
    wait: &WaitStep,
    write: Write<'_>,
) -> Result<Handled, Refusal> {
    let said = match wait.said {
        wire::Said::Nothing => StepReport::Nothing,
        wire::Said::Whole { messages } => StepReport::Whole { messages },
        wire::Said::WholeBefore { attempt } => StepReport::WholeBefore { attempt },
        wire::Said::Finished => StepReport::Finished,
    };
    let participant = participant(wait.member);
    // Before the step is taken: it cannot be given back.
    let entered = state.replication.as_ref().map(|replication| replication.enter(worker)).transpose()?;
    let progress = in_group(state, wait.member, now, |group| {
        let progress = lock(group).say(participant, wait.step, said)?;
        let Some(mut complete) = lock(group).begin() else { return Ok(progress) };
        if let (Some(replication), Some(entered)) = (&state.replication, &entered) {
            // It ends when the other replicas have it; until then the workers ask again.
            let primary = Primary { state, replication, worker, epoch: entered.epoch };
            primary.apply(group, complete);
            let group = lock(group);
            group.check()?;
            return Ok(group.progress(participant, wait.step, said));
        }
        // Without the lock, so that other workers can ask meanwhile.
        let applied = apply(state, &mut complete);
        let mut group = lock(group);
        group.end(complete, applied);
        group.check()?;
        Ok(group.progress(participant, wait.step, said))
    })?;
    write(Reply::WaitStep(state_of(&progress, &progress.missing)))
}

/// Takes a worker's contribution to a barrier and answers with those of all workers.
pub(crate) fn meet(
    state: &State,
    now: Instant,
    meet: &Meet<'_>,
    write: Write<'_>,
) -> Result<Handled, Refusal> {
    let participant = participant(meet.member);
    let mut step = None;
    in_group(state, meet.member, now, |group| {
        let mut group = lock(group);
        step = Some(match group.meet(participant, meet.round, meet.name, meet.bytes)? {
            Met::Waiting(missing) => write(Reply::Meet(wire::Met::Waiting(&missing))),
            Met::All(parts) => write(Reply::Meet(wire::Met::All(parts))),
        });
        Ok(())
    })?;
    step.expect("it was written")
}

/// Finds the group. Without room, the request is to be repeated after idle groups have been removed.
fn in_group<T>(
    state: &State,
    member: Member,
    now: Instant,
    work: impl FnOnce(&Arc<Mutex<Group<Refusal>>>) -> Result<T, StepError<Refusal>>,
) -> Result<T, Refusal> {
    let group = state.steps.group(member.group, member.workers, now);
    group.and_then(|group| work(&group)).map_err(|refused| {
        if matches!(refused, StepError::Full { .. }) {
            state.steps.forget_idle(now);
        }
        refused.into()
    })
}

fn apply(state: &State, complete: &mut Complete) -> Result<(), Refusal> {
    let directory = state.tables.directory();
    complete.each(|sums| {
        let entry = directory.entries.iter().find(|entry| entry.number == sums.table);
        let entry = entry.ok_or_else(|| Refusal::no_table_number(sums.table))?;
        let scale = PushScale { lr_scale: sums.lr_scale };
        Ok(entry.table.push_unique(sums.keys, sums.counts, sums.gradients, scale)?)
    })
}

fn state_of<'a>(progress: &Progress, missing: &'a [u32]) -> StepState<'a> {
    let &Progress { applied, decided, attempt, finished, round, .. } = progress;
    StepState { applied, decided, attempt, finished, round, missing }
}

impl From<Mismatch> for Refusal {
    fn from(uneven: Mismatch) -> Refusal {
        Refusal::bad(uneven.to_string())
    }
}

impl From<StepError<Refusal>> for Refusal {
    fn from(refused: StepError<Refusal>) -> Refusal {
        match &refused {
            StepError::Full { .. } => Refusal::busy(refused.to_string()),
            StepError::Failed { failure, .. } => Refusal::new(failure.fault, refused.to_string()),
            _ => Refusal::bad(refused.to_string()),
        }
    }
}
