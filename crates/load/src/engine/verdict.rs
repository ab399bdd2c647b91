//! Whether a run may be taken at its word. Knows no statistics but those of the run itself.

use sanderling_client::IN_FLIGHT_MAX;

use super::{Length, Plan, Ran, Schedule};
use crate::result::Validity;

/// In a closed loop a client that waits for less than this share of its time is itself the limit.
const WAITED_MIN: f64 = 0.05;
/// In an open loop the client's own delays may be so large at their 99th percentile, or such a part of the response's, ...
const OWN_LAG_NS: u64 = 200_000;
const OWN_LAG_PART: f64 = 0.1;
/// ... and calls must have ended when at least this share of the time it took was the time in which they were due.
const RATE_KEPT: f64 = 0.98;

/// A closed loop for a time may take so many times as long, and this much more, until its last call has ended.
const LONGER_MAX: f64 = 1.5;
const LONGER_S: f64 = 1.0;

/// Judges a run. `served`: another process answers, so that the client's own work can be told from it.
pub(super) fn validity(plan: &Plan, served: bool, ran: &Ran) -> Validity {
    let measured = &ran.measured;
    // Problems of the run, and those that the client alone caused.
    let (mut against, mut by_client) = (Vec::new(), Vec::new());
    let mut notes = Vec::new();
    let (calls, failed) = (measured.calls(), measured.failed());
    let ran_out = !ran.ends.is_empty() && ran.ends.iter().all(|end| end.ran_out);
    let gave_up = ran.ends.iter().any(|end| end.gave_up);
    let of_cycles = format!("the cycles that it was given, {} to {},", plan.cycles.start, plan.cycles.end);
    match (calls, ran_out) {
        (0, true) => by_client.push(format!(
            "no call was made in the measured part: {of_cycles} were over within the warm-up; give it more, or a shorter warm-up"
        )),
        // Longer would be no cure.
        (0, false) if gave_up => {}
        (0, false) => by_client.push("no call was made in the measured part: make it longer".to_owned()),
        (_, true) => notes.push(format!("{of_cycles} were over before its end: {calls} calls were measured")),
        (_, false) => {}
    }
    let share = failed as f64 / calls.max(1) as f64;
    let slots_s = measured.seconds * ran.ends.iter().map(|end| end.slots).sum::<usize>().max(1) as f64;
    let share_of_time = ran.ends.iter().map(|end| end.failing.as_secs_f64()).sum::<f64>() / slots_s;
    if failed > 0 && share > plan.failures_max {
        against.push(format!(
            "{failed} of {calls} calls failed, {:.2} %; at most {:.2} % may",
            100.0 * share,
            100.0 * plan.failures_max
        ));
    } else if failed > 0 && share_of_time > plan.failures_max {
        against.push(format!(
            "the {failed} calls that failed took {:.1} % of the time; at most {:.2} % may",
            100.0 * share_of_time,
            100.0 * plan.failures_max
        ));
    }
    if gave_up {
        against.push("it was cut short, since most calls failed".to_owned());
    }
    let not_ended: u64 = ran.ends.iter().map(|end| end.not_ended).sum();
    if ran.is_gone() {
        against.push("nothing was answered during the last request time-out: the target is gone".to_owned());
    }
    if not_ended > 0 && !ran.stopped_by_watch {
        against.push(format!(
            "{not_ended} calls that were due had not ended long after the end and were given up"
        ));
    }
    if ran.stopped_by_watch {
        against.push(format!("it was stopped before its end, after {:.1} s", measured.seconds));
    }
    // A thread without a call, of more threads than calls, had nothing to wait for.
    let at_work = ran.ends.iter().filter(|end| end.calls > 0);
    let waited = at_work.map(|end| end.waited).fold(1.0, f64::min);
    let window_s = match plan.length {
        Length::Time(window) => Some(window.as_secs_f64()),
        Length::Calls(_) => None,
    };
    match plan.schedule {
        Schedule::Closed => {
            if served && calls > 0 && waited < WAITED_MIN {
                by_client.push(format!(
                    "the client was the bottleneck: one of its threads waited for answers for only {:.1} % of its time; \
                     use more threads, or more machines",
                    100.0 * waited
                ));
            }
            // In an open loop the calls that were due are made, however long that takes.
            if let Some(window_s) = window_s
                && measured.seconds > LONGER_MAX * window_s + LONGER_S
            {
                against.push(format!(
                    "it took {:.1} s in place of {window_s:.1} s: calls that were under way at its end were not answered before",
                    measured.seconds
                ));
            }
        }
        Schedule::Open { per_s, .. } => {
            let own = ran.ends.iter().map(|end| end.own_lag.quantile_of_any_ns(0.99)).max().unwrap_or(0);
            let response = measured.response().quantile_of_any_ns(0.99);
            if own > OWN_LAG_NS && own as f64 > OWN_LAG_PART * response as f64 {
                by_client.push(format!(
                    "the client was late by itself: it began calls {} us after they were due at the 99th percentile, \
                     though it had room for them; use more threads, or more machines",
                    own / 1000
                ));
            }
            let achieved = measured.calls_per_s();
            if window_s.is_some_and(|window_s| window_s < RATE_KEPT * measured.seconds)
                && !ran.stopped_by_watch
            {
                notes.push(format!(
                    "{achieved:.0} calls/s of the {per_s:.0} that were asked for: what is served is less than what is due, \
                     and latencies grow with the length of the run"
                ));
            }
            if measured.backlog_s > (1.0 - RATE_KEPT) * measured.seconds {
                notes.push(format!(
                    "the warm-up left a queue that took {:.1} s of the measured part: rates leave that time out, response times \
                     do not; --warmup 0s leaves none",
                    measured.backlog_s
                ));
            }
        }
    }
    if ran.ends.iter().any(|end| end.crowded) {
        notes.push(format!(
            "calls waited though fewer than the concurrency were under way: of a connection a server has at most \
             {IN_FLIGHT_MAX} requests at a time; use more threads"
        ));
    }
    let (valid, only_client) = (against.is_empty() && by_client.is_empty(), against.is_empty());
    against.append(&mut by_client);
    against.append(&mut notes);
    Validity { valid, reasons: against, by_client: !valid && only_client, gone: ran.is_gone() }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::engine::{cpu, thread::ThreadEnd};
    use crate::generate::Arrivals;
    use crate::observed::{Measured, Observed};
    use crate::script::{Mix, Program};

    /// A closed loop of threads with so many calls each, which waited for such a share of their time.
    fn check(ends: &[(u64, f64)], valid: bool) {
        let functions = ["f".to_owned()];
        let program = Program::new("test.rn", "pub async fn f() { }");
        let plan = Plan::new(program, Mix::parse("f", &functions).unwrap());
        let mut observed = Observed::new(&functions, Duration::ZERO);
        for _ in 0..ends.iter().map(|(calls, _)| calls).sum() {
            observed.call(0, Duration::ZERO, Duration::ZERO, Duration::ZERO, Duration::ZERO, false);
        }
        let end = |&(calls, waited)| ThreadEnd { calls, waited, slots: 1, ..ThreadEnd::default() };
        let ran = Ran {
            measured: observed.measured(Duration::from_secs(10)),
            ends: ends.iter().map(end).collect(),
            began: SystemTime::UNIX_EPOCH,
            cpu: cpu::Times::default(),
            stopped_by_watch: false,
        };
        let found = validity(&plan, true, &ran);
        assert_eq!(found.valid, valid, "{ends:?}: {:?}", found.reasons);
    }

    /// Successful calls count as served, in the note as in the two lines.
    #[test]
    fn calls_that_fail_are_not_served() {
        let functions = ["f".to_owned()];
        let program = Program::new("test.rn", "pub async fn f() { }");
        let schedule = Schedule::Open { per_s: 9.0, arrivals: Arrivals::Uniform };
        let mut plan = Plan::new(program, Mix::parse("f", &functions).unwrap());
        (plan.schedule, plan.failures_max) = (schedule, 1.0);
        let mut observed = Observed::new(&functions, Duration::ZERO);
        for call in 0..100 {
            observed.call(0, Duration::ZERO, Duration::ZERO, Duration::ZERO, Duration::ZERO, call < 40);
        }
        let measured = Measured { backlog_s: 5.0, ..observed.measured(Duration::from_secs(20)) };
        let ran = Ran {
            measured,
            ends: Vec::new(),
            began: SystemTime::UNIX_EPOCH,
            cpu: cpu::Times::default(),
            stopped_by_watch: false,
        };
        let found = validity(&plan, true, &ran).reasons;
        assert!(found[0].starts_with("4 calls/s of the 9 that were asked for"), "{found:?}");
        assert!(found[1].contains("took 5.0 s of the measured part"), "{found:?}");
    }

    #[test]
    fn a_thread_without_a_call_was_no_bottleneck() {
        check(&[(5, 0.5), (5, 0.2)], true);
        check(&[(5, 0.5), (5, 0.01)], false);
        check(&[(1, 0.5), (0, 0.0)], true);
    }
}
