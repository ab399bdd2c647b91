//! Workers that go in step: a step is applied as soon as everybody has said that its part is whole, by the thread that is
//! told so last; meetings. What is kept until then is the group's own business.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sanderling_store::PushScale;
use sanderling_sync::{Complete, Gradients, Group, Met, Part, Progress, Refused, Said, Uneven, Who};
use sanderling_wire as wire;
use sanderling_wire::{Meet, Member, PushStep, Reply, StepGradients, StepState, WaitStep};

use super::check_dim;
use crate::call::Call;
use crate::refusal::Refusal;
use crate::session::Step;
use crate::state::State;

/// How a reply is written that is put together before there is room for it.
type Write<'a> = &'a mut dyn FnMut(Reply<'_>) -> Result<Step, Refusal>;

// A group changes in single steps, so it is whole even if somebody panicked meanwhile.
fn lock(group: &Mutex<Group<Refusal>>) -> MutexGuard<'_, Group<Refusal>> {
    group.lock().unwrap_or_else(PoisonError::into_inner)
}

fn who(member: Member) -> Who {
    Who { worker: member.worker, workers: member.workers, attempt: member.attempt }
}

/// Keeps a message of a worker's part.
pub(crate) fn push(call: &Call<'_>, push: &PushStep<'_>, slot: &mut [u8]) -> Result<usize, Refusal> {
    let entry = call.view.table(push.table)?;
    check_dim(entry, push.dim)?;
    call.state.placement.check_keys(entry.home, push.keys)?;
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
    let who = who(push.member);
    let progress = in_group(call.state, push.member, call.now, |group| {
        let mut group = lock(group);
        group.take(who, push.step, push.number, part)?;
        Ok(group.progress(who, push.step, Said::Nothing))
    })?;
    // Who is awaited matters to those who wait.
    call.encode(&Reply::PushStep(state_of(&progress, &[])), slot)
}

/// Notes what a worker says, applies the step if that was the last that was missing, and says how far everybody is.
pub(crate) fn wait(state: &State, now: Instant, wait: &WaitStep, write: Write<'_>) -> Result<Step, Refusal> {
    let said = match wait.said {
        wire::Said::Nothing => Said::Nothing,
        wire::Said::Whole { messages } => Said::Whole { messages },
        wire::Said::WholeBefore { attempt } => Said::WholeBefore { attempt },
        wire::Said::Finished => Said::Finished,
    };
    let who = who(wait.member);
    let progress = in_group(state, wait.member, now, |group| {
        let progress = lock(group).say(who, wait.step, said)?;
        let Some(mut complete) = lock(group).begin() else { return Ok(progress) };
        // Not under the lock: others may ask meanwhile.
        let applied = apply(state, &mut complete);
        let mut group = lock(group);
        group.end(complete, applied);
        group.check()?;
        Ok(group.progress(who, wait.step, said))
    })?;
    write(Reply::WaitStep(state_of(&progress, &progress.missing)))
}

/// Takes what a worker brings to a meeting, and answers with what all have brought.
pub(crate) fn meet(state: &State, now: Instant, meet: &Meet<'_>, write: Write<'_>) -> Result<Step, Refusal> {
    let who = who(meet.member);
    let mut step = None;
    in_group(state, meet.member, now, |group| {
        let mut group = lock(group);
        step = Some(match group.meet(who, meet.round, meet.name, meet.bytes)? {
            Met::Waiting(missing) => write(Reply::Meet(wire::Met::Waiting(&missing))),
            Met::All(parts) => write(Reply::Meet(wire::Met::All(parts))),
        });
        Ok(())
    })?;
    step.expect("it was written")
}

/// Looks the group up. What has no room is to be tried again, when those that nobody uses have gone.
fn in_group<T>(
    state: &State,
    member: Member,
    now: Instant,
    work: impl FnOnce(&Mutex<Group<Refusal>>) -> Result<T, Refused<Refusal>>,
) -> Result<T, Refusal> {
    let group = state.steps.group(member.group, member.workers, now);
    group.and_then(|group| work(&group)).map_err(|refused| {
        if matches!(refused, Refused::Full { .. }) {
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

impl From<Uneven> for Refusal {
    fn from(uneven: Uneven) -> Refusal {
        Refusal::bad(uneven.to_string())
    }
}

impl From<Refused<Refusal>> for Refusal {
    fn from(refused: Refused<Refusal>) -> Refusal {
        match &refused {
            Refused::Full { .. } => Refusal::busy(refused.to_string()),
            Refused::Failed { failure, .. } => Refusal::new(failure.fault, refused.to_string()),
            _ => Refusal::bad(refused.to_string()),
        }
    }
}
