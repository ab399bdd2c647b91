//! Several runs with one purpose: a curve over rates, the highest rate whose latency is still as wanted, which of two targets
//! is faster. Knows of a run only what its result says.

use std::time::Duration;

use crate::compare::{Side, abba};
use crate::engine::{EngineError, Plan, Progress, Schedule, Watch, run_noting_cycles};
use crate::generate::Arrivals;
use crate::observed::Measured;
use crate::result::{Objective, RunResult};
use crate::target::Target;

mod cycles;
mod objective;
mod rates;

use cycles::Cycles;

pub use objective::{OBJECTIVES_MAX, meets, objectives};
pub use rates::{RATES_MAX, Rates, rate};

/// A rate of which less than this share was served ends a sweep: beyond it only queues grow.
const SERVED_MIN: f64 = 0.9;
/// The share of a rate that must be served for a search to take it as kept.
const KEPT_MIN: f64 = 0.98;
/// How often a trial is repeated in which the client itself was late.
const REPEATS_MAX: usize = 2;
/// Trials of a search after which it says what it knows.
pub const TRIALS_MAX: usize = 40;
/// The least rate that a search tries.
const RATE_MIN: f64 = 1.0;

/// Observer of several runs: gets the current work and its progress, returns whether to go on.
pub type WatchRuns<'a> = dyn FnMut(&str, Progress) -> bool + 'a;

/// A plan at a rate.
fn at_rate(plan: &Plan, per_s: f64, arrivals: Arrivals) -> Plan {
    Plan { schedule: Schedule::Open { per_s, arrivals }, ..plan.clone() }
}

/// A run with a label, over the cycles that are next, and the first cycle behind those that it took; none if it was told to
/// stop: a part of a run is nothing to count.
fn labelled(
    target: &Target,
    plan: &Plan,
    cycles: &Cycles,
    label: &str,
    watch: &mut WatchRuns<'_>,
) -> Result<Option<(RunResult, u64)>, EngineError> {
    let told: &mut Watch<'_> = &mut |progress| watch(label, progress);
    let plan = Plan { cycles: cycles.next(), ..plan.clone() };
    match run_noting_cycles(target, &plan, told) {
        Ok((run, end)) => Ok(Some((RunResult { label: label.to_owned(), ..run }, end))),
        Err(EngineError::Stopped(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Runs that were over, in the order in which they were made.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    /// All of them.
    pub runs: Vec<RunResult>,
    /// Whether there would have been more: it was told to stop, or the target is gone.
    pub cut: bool,
    /// Whether the target had stopped answering by the end of the last run.
    pub gone: bool,
}

/// The share of a rate that was served: how long calls were due, of how long it took until they had ended. (Not how many there
/// were, nor how long so many take on average: arrivals are random.)
fn kept(run: &RunResult) -> f64 {
    let Measured { due_s, seconds, .. } = run.measured;
    due_s.unwrap_or(seconds) / seconds
}

/// Runs at every rate, lowest first. Ends early at a rate that is not served, since those beyond it tell nothing.
pub fn sweep(
    target: &Target,
    plan: &Plan,
    rates: &Rates,
    arrivals: Arrivals,
    watch: &mut WatchRuns<'_>,
) -> Result<Made, EngineError> {
    let (mut runs, mut cycles) = (Vec::new(), Cycles::new(&plan.cycles));
    for &per_s in rates.all() {
        let run = labelled(target, &at_rate(plan, per_s, arrivals), &cycles, &name(per_s), watch)?;
        let Some((run, end)) = run else { return Ok(Made { runs, cut: true, gone: false }) };
        cycles.used(end);
        let (served, gone) = (kept(&run) >= SERVED_MIN, run.validity.gone);
        runs.push(run);
        if gone {
            return Ok(Made { runs, cut: true, gone });
        }
        if !served {
            break;
        }
    }
    Ok(Made { runs, cut: false, gone: false })
}

/// Result of a search.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Found {
    /// The highest rate, in calls per second, at which all objectives were met; `None` if they were at no rate.
    pub per_s: Option<f64>,
    /// The lowest rate tried at which they were not.
    pub not_per_s: Option<f64>,
    /// The lowest rate tried, below that one, at which the client itself was late, again and again: the server may have done
    /// well there.
    pub unknown_per_s: Option<f64>,
    /// The lowest rate tried, below that one, at which no call was due while it was measured, again and again.
    pub empty_per_s: Option<f64>,
    /// All trials, in the order in which they were made; the last one that met the objectives is the confirmation.
    pub runs: Vec<RunResult>,
    /// Whether it was told to stop before it knew, or the target is gone.
    pub cut: bool,
    /// Whether the target had stopped answering by the end of the last run.
    pub gone: bool,
}

/// How a search is made.
#[derive(Debug, Clone)]
pub struct Search {
    /// The latency objectives.
    pub objectives: Vec<Objective>,
    /// How calls are spread.
    pub arrivals: Arrivals,
    /// Length of a trial; the confirmation is as long as the plan says.
    pub trial: Duration,
    /// The search ends when the rate is known to this share.
    pub precision: f64,
}

impl Found {
    /// Below this the search goes on.
    fn bound(&self) -> Option<f64> {
        [self.not_per_s, self.unknown_per_s, self.empty_per_s].into_iter().flatten().min_by(f64::total_cmp)
    }

    fn note(&mut self, per_s: f64, outcome: Outcome) {
        match outcome {
            Outcome::Fine => self.per_s = Some(per_s),
            Outcome::Unknown => self.unknown_per_s = Some(per_s),
            Outcome::Empty => self.empty_per_s = Some(per_s),
            // Rates above it need not be known.
            Outcome::NotMet => {
                (self.not_per_s, self.unknown_per_s, self.empty_per_s) = (Some(per_s), None, None);
            }
        }
    }
}

/// Verdict of a trial on its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Fine,
    NotMet,
    /// Nothing, since the client itself was late.
    Unknown,
    /// Nothing, since there was no call.
    Empty,
}

/// Finds the highest rate at which the objectives are met: a closed loop tells about how much is possible, trials halve the
/// ratio between a rate that is fine and one that is not, and a run of full length confirms the answer, or lowers it.
pub fn search(
    target: &Target,
    plan: &Plan,
    search: &Search,
    watch: &mut WatchRuns<'_>,
) -> Result<Found, EngineError> {
    let short = Plan { length: crate::engine::Length::Time(search.trial), ..plan.clone() };
    let closed = Plan { schedule: Schedule::Closed, ..short.clone() };
    let probe = Plan { concurrency: Some(closed.under_way().max(4)), ..closed };
    let mut cycles = Cycles::new(&plan.cycles);
    seek(search, &mut |at, label| {
        let plan = match at {
            At::ClosedLoop => probe.clone(),
            At::Trial(per_s) => at_rate(&short, per_s, search.arrivals),
            At::Confirmation(per_s) => at_rate(plan, per_s, search.arrivals),
        };
        let run = labelled(target, &plan, &cycles, label, watch)?;
        Ok(run.map(|(run, end)| {
            cycles.used(end);
            run
        }))
    })
}

/// The next run of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
enum At {
    ClosedLoop,
    Trial(f64),
    Confirmation(f64),
}

/// Runs something, with a label; none if it was told to stop.
type Attempt<'a> = dyn FnMut(At, &str) -> Result<Option<RunResult>, EngineError> + 'a;

fn seek(search: &Search, attempt: &mut Attempt<'_>) -> Result<Found, EngineError> {
    let mut found = Found::default();
    // The rate found so far is not confirmed.
    let cut = |found: Found| {
        let gone = found.runs.last().is_some_and(|run| run.validity.gone);
        Ok(Found { runs: found.runs, cut: true, gone, ..Found::default() })
    };
    let Some(closed) = attempt(At::ClosedLoop, "closed loop")? else { return cut(found) };
    let most = closed.measured.calls_per_s().max(RATE_MIN);
    let gone = closed.validity.gone;
    found.runs.push(closed);
    if gone {
        return cut(found);
    }
    let mut per_s = (most / 2.0).max(RATE_MIN);
    while found.runs.len() < TRIALS_MAX {
        let outcome = tried(search, At::Trial(per_s), &name(per_s), &mut found, attempt)?;
        let Some(outcome) = outcome else { return cut(found) };
        found.note(per_s, outcome);
        per_s = match (found.per_s, found.bound()) {
            (Some(low), Some(high)) if high <= low * (1.0 + search.precision) => break,
            (Some(low), Some(high)) => (low * high).sqrt(),
            (Some(low), None) => low * 1.5,
            (None, Some(high)) if high <= RATE_MIN => return Ok(found),
            // Lower rates have even fewer calls.
            (None, _) if outcome == Outcome::Empty => return Ok(found),
            (None, high) => (high.unwrap_or(most) / 4.0).max(RATE_MIN),
        };
    }
    while let Some(per_s) = found.per_s
        && found.runs.len() < TRIALS_MAX
    {
        let label = format!("{}, confirmed", name(per_s));
        let outcome = tried(search, At::Confirmation(per_s), &label, &mut found, attempt)?;
        let Some(outcome) = outcome else { return cut(found) };
        if outcome == Outcome::Fine {
            return Ok(found);
        }
        found.note(per_s, outcome);
        found.per_s = Some(per_s * (1.0 - search.precision)).filter(|&lower| lower >= RATE_MIN);
    }
    // Nothing was confirmed.
    found.per_s = None;
    Ok(found)
}

/// Runs at a rate, and again where the client itself was late, or there was no call; what the last run says. None if it was
/// told to stop, or the target is gone.
fn tried(
    search: &Search,
    at: At,
    label: &str,
    found: &mut Found,
    attempt: &mut Attempt<'_>,
) -> Result<Option<Outcome>, EngineError> {
    let mut tries = 0;
    loop {
        let Some(run) = attempt(at, label)? else { return Ok(None) };
        let (outcome, gone) = (outcome(&run, &search.objectives), run.validity.gone);
        found.runs.push(run);
        if gone {
            return Ok(None);
        }
        tries += 1;
        let again = matches!(outcome, Outcome::Unknown | Outcome::Empty) && tries <= REPEATS_MAX;
        if !again || found.runs.len() >= TRIALS_MAX {
            return Ok(Some(outcome));
        }
    }
}

fn outcome(run: &RunResult, objectives: &[Objective]) -> Outcome {
    if run.validity.by_client {
        return if run.measured.calls() == 0 { Outcome::Empty } else { Outcome::Unknown };
    }
    match run.validity.valid && kept(run) >= KEPT_MIN && meets(run, objectives) {
        true => Outcome::Fine,
        false => Outcome::NotMet,
    }
}

/// Runs against two targets in turns, A B B A and so on, so that what drifts while they run touches both alike. Both of a pair
/// ask the same: the pair's cycles are those behind all that the pairs before took.
pub fn ab(
    a: &Target,
    b: &Target,
    plan: &Plan,
    runs: usize,
    watch: &mut WatchRuns<'_>,
) -> Result<Made, EngineError> {
    let sides = abba(runs);
    let of = sides.len();
    let (mut runs, mut cycles, mut pair_end) = (Vec::new(), Cycles::new(&plan.cycles), 0);
    for (number, side) in sides.into_iter().enumerate() {
        let (target, label) = match side {
            Side::A => (a, "A"),
            Side::B => (b, "B"),
        };
        let mut told = |_: &str, progress: Progress| {
            let share = (number as f64 + progress.share) / of as f64;
            watch(&format!("run {} of {of}, {label}", number + 1), Progress { share, ..progress })
        };
        let Some((run, end)) = labelled(target, plan, &cycles, label, &mut told)? else {
            return Ok(Made { runs, cut: true, gone: false });
        };
        let gone = run.validity.gone;
        runs.push(run);
        if gone {
            return Ok(Made { runs, cut: true, gone });
        }
        pair_end = end.max(pair_end);
        if number % 2 == 1 {
            cycles.used(std::mem::take(&mut pair_end));
        }
    }
    Ok(Made { runs, cut: false, gone: false })
}

/// A rate as people say it.
fn name(per_s: f64) -> String {
    match per_s {
        1e6.. => format!("{:.3} M/s", per_s / 1e6),
        1e3.. => format!("{:.3} k/s", per_s / 1e3),
        _ => format!("{per_s:.1}/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Length;
    use crate::result::tests::made_up;
    use crate::result::{Asked, Limit};
    use crate::script::{Mix, Program};

    /// A search of a server that is slow from a rate on, by a client that is late by itself from another one on, always or the
    /// first time; what it finds about these, and how many trials were repeated.
    fn check(slow_from: f64, late_from: f64, always: bool, expected: (bool, bool)) {
        let search = Search {
            objectives: objectives("p50<5ms").expect("an objective"),
            arrivals: Arrivals::Poisson,
            trial: Duration::from_secs(1),
            precision: 0.05,
        };
        let mut seen = Vec::new();
        let found = seek(&search, &mut |at, label| {
            let (At::Trial(per_s) | At::Confirmation(per_s)) = at else {
                return Ok(Some(made_up(label, 1000.0, 1.0, 500.0, 1)));
            };
            let mut run = made_up(label, 1000.0, 1.0, if per_s >= slow_from { 50_000.0 } else { 500.0 }, 1);
            let is_late = per_s >= late_from && (always || !seen.contains(&per_s));
            (run.validity.valid, run.validity.by_client) = (!is_late, is_late);
            seen.push(per_s);
            Ok(Some(run))
        })
        .expect("nothing fails");
        let least = slow_from.min(if always { late_from } else { f64::MAX });
        let per_s = found.per_s.expect("low rates are fine");
        assert!(per_s < least && least <= per_s * 1.05, "{slow_from}, {late_from}: {found:?}");
        assert_eq!(
            (found.not_per_s.is_some(), found.unknown_per_s.is_some()),
            expected,
            "{slow_from}, {late_from}"
        );
        let most = seen.iter().map(|rate| seen.iter().filter(|other| *other == rate).count()).max();
        assert!(most <= Some(1 + REPEATS_MAX), "{seen:?}");
    }

    #[test]
    fn a_client_that_is_late_is_no_limit_of_the_server() {
        check(800.0, f64::MAX, true, (true, false));
        check(800.0, 200.0, false, (true, false));
        check(f64::MAX, 800.0, true, (false, true));
        check(400.0, 800.0, true, (true, false));
        check(800.0, 400.0, true, (false, true));
    }

    /// A search by trials that have no call below 10/s, after a closed loop of so many calls/s, of a server that is slow at
    /// every rate or from 300/s on; how often a slow one was tried, and the rate that is said to have had no call.
    #[test]
    fn a_trial_without_a_call_is_no_fault_of_the_client() {
        let check = |most: f64, is_slow: bool, trials: usize, empty: Option<f64>| {
            let search = Search {
                objectives: objectives("p50<5ms").expect("an objective"),
                arrivals: Arrivals::Uniform,
                trial: Duration::from_millis(100),
                precision: 0.05,
            };
            let mut rates = Vec::new();
            let found = seek(&search, &mut |at, label| {
                let (At::Trial(per_s) | At::Confirmation(per_s)) = at else {
                    return Ok(Some(made_up(label, most, 1.0, 500.0, 1)));
                };
                rates.push(per_s);
                let service_us = if is_slow || per_s > 300.0 { 50_000.0 } else { 500.0 };
                let mut run = made_up(label, 1000.0, 1.0, service_us, 1);
                if per_s < 10.0 {
                    run.measured.functions.iter_mut().for_each(|function| function.calls = 0);
                    (run.validity.valid, run.validity.by_client) = (false, true);
                }
                Ok(Some(run))
            })
            .expect("nothing fails");
            assert!(rates.iter().all(|rate| *rate >= RATE_MIN), "{rates:?}");
            assert_eq!((found.unknown_per_s, found.per_s.is_some()), (None, !is_slow), "{rates:?}");
            assert_eq!(found.empty_per_s.is_some(), empty.is_some(), "{most}, {is_slow}: {rates:?}");
            let tried = found.empty_per_s.unwrap_or_default() - empty.unwrap_or_default();
            assert!(tried.abs() < 1.0 && (!is_slow || rates.len() == trials), "{most}: {rates:?}");
        };
        // 500, 125, 31 are not met; 8 has no call, thrice.
        check(1000.0, true, 6, Some(7.8));
        check(1.0, true, 3, Some(1.0));
        check(1000.0, false, 0, None);
    }

    /// A hundred calls at 900/s, of which so many had ended when the last was due.
    #[test]
    fn random_arrivals_are_no_fault_of_the_server() {
        let check = |due_s: f64, seconds: f64, expected: f64| {
            let run = made_up("", 900.0, seconds, 500.0, 1);
            let asked = Asked { limit: Limit::Calls { calls: 100 }, ..run.asked };
            let measured = Measured { due_s: Some(due_s), ..run.measured };
            let found = kept(&RunResult { asked, measured, ..run });
            assert!((found - expected).abs() < 1e-9, "{due_s} of {seconds} s: {found}");
        };
        check(0.14, 0.14, 1.0);
        check(0.08, 0.16, 0.5);
    }

    /// Which cycles runs begin with, of campaigns of runs of 50 calls.
    #[test]
    fn runs_begin_behind_the_cycles_that_are_used() {
        let nowhere = Target::connect("nowhere:", Default::default()).expect("it is nowhere");
        let program = Program::new("test.rn", "pub async fn f() { }");
        let mix = Mix::parse("f", &["f".to_owned()]).expect("there is one");
        let (warmup, length) = (Duration::ZERO, Length::Calls(50));
        let plan = Plan { warmup, length, threads: 2, cycles: 10..190, ..Plan::new(program, mix) };
        let check = |made: &Made, expected: &[u64]| {
            let begins: Vec<u64> =
                made.runs.iter().map(|run| run.asked.cycles.expect("a part of all").0).collect();
            assert!(expected.starts_with(&begins), "{begins:?} are not {expected:?}");
            assert!(made.runs.iter().all(|run| run.measured.calls() == 50));
        };
        let watch: &mut WatchRuns<'_> = &mut |_, _| true;
        // Both of a pair ask the same; the last pair has too few left, and begins anew.
        let made = ab(&nowhere, &nowhere, &plan, 4, watch).expect("they run");
        check(&made, &[10, 10, 60, 60, 110, 110, 10, 10]);
        assert_eq!(made.runs.len(), 8);
        // On a busy machine it ends before its last rate.
        let rates = "500,600,700".parse().expect("rates");
        let made = sweep(&nowhere, &plan, &rates, Arrivals::Uniform, watch).expect("they run");
        check(&made, &[10, 60, 110]);
    }
}
