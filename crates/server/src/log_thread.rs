//! The thread that writes the log: groups when they are due, a checkpoint where the log has none to follow.

use std::time::Instant;

use crate::background;
use crate::checkpoints::{LATEST, SaveMode};
use crate::delta_log::DeltaLog;
use crate::event::{Event, Log};
use crate::refusal::Refusal;
use crate::state::State;

/// Writes groups until the server ends.
pub(crate) fn run(delta_log: &DeltaLog, state: &State, log: &Log) {
    let (mut is_behind, mut has_failed) = (false, false);
    loop {
        let (waiting, is_ending) = delta_log.next();
        if is_ending && waiting.is_empty() {
            return;
        }
        let start = Instant::now();
        let failure = write(delta_log, state, log).err();
        delta_log.note(start, failure.as_ref());
        match (&failure, has_failed) {
            (Some(refusal), false) => log.report(Event::LogFailed { reason: refusal.reason.clone() }),
            (None, true) => log.report(Event::LogWorks),
            _ => {}
        }
        has_failed = failure.is_some();
        let (took, lose) = (start.elapsed(), delta_log.lose());
        let is_late = !lose.is_zero() && took > lose / 2;
        if is_late && !is_behind {
            let (took_ms, lose_ms) = (took.as_millis() as u64, lose.as_millis() as u64);
            log.report(Event::LogBehind { took_ms, lose_ms });
        }
        is_behind = is_late;
        let replies = waiting.len();
        waiting.into_iter().for_each(|reply| reply(failure.as_ref()));
        delta_log.answered(replies);
    }
}

fn write(delta_log: &DeltaLog, state: &State, log: &Log) -> Result<(), Refusal> {
    if delta_log.has_no_base() {
        let saved = state.save(LATEST, 0, SaveMode::Full);
        log.report(background::saved(LATEST, saved.clone()));
        saved?;
        return state.tables.history.settle();
    }
    Ok(delta_log.write(&state.tables, &state.push_dedup, Some(log))?)
}
