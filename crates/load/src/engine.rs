//! A run: threads that share nothing ask what their scripts say, when it is due, and note what came of it. Knows no script
//! language, no law of keys and no command line.
//!
//! [`prepare`] makes the tables and fills them; [`run`] measures. Cycle `c` belongs to thread `c % threads`, so that the same
//! seed asks the same on any number of threads and no thread has to ask another which cycle is next.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use sanderling_client::SLOTS_MAX;
use sanderling_store::TableConfig;

use crate::generate::{Arrivals, GenerateError, Seeds};
use crate::observed::{Measured, Observed};
use crate::port::Port;
use crate::request::Failure;
use crate::result::RunResult;
use crate::script::{Mix, MixError, Program, ScriptError, ThreadScript};
use crate::target::Target;

mod cpu;
mod pace;
mod report;
mod server;
mod thread;
mod verdict;

use pace::Share;
use thread::{Thread, ThreadEnd};

/// Most threads of one client.
pub const THREADS_MAX: usize = 1024;
/// Calls that an open loop has under way per thread unless told otherwise; those beyond wait, and their time runs.
pub const OPEN_CONCURRENCY: usize = 64;
/// How often who watches is told.
const WATCH_EVERY: Duration = Duration::from_millis(100);
/// Between when the last thread is ready and the first cycle.
const START_AFTER: Duration = Duration::from_millis(2);

/// When calls are due.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Schedule {
    /// As soon as an earlier one has ended.
    Closed,
    /// By the clock.
    Open {
        /// Calls per second of all threads together.
        per_s: f64,
        /// How they are spread.
        arrivals: Arrivals,
    },
}

/// How long a run is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Length {
    /// So long, not counting the warm-up.
    Time(Duration),
    /// So many calls, those of the warm-up not among them.
    Calls(u64),
}

/// The plan of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The script with its parameters.
    pub program: Program,
    /// Which functions are called how often.
    pub mix: Mix,
    /// Of all that is drawn.
    pub seeds: Seeds,
    /// Each with a connection, a script and generators of its own.
    pub threads: usize,
    /// Calls that each thread has under way at most; if not given, one in a closed loop and [`OPEN_CONCURRENCY`] in an open one.
    pub concurrency: Option<usize>,
    /// When calls are due.
    pub schedule: Schedule,
    /// Length of the warm-up, which is not recorded.
    pub warmup: Duration,
    /// How long it is measured.
    pub length: Length,
    /// The cycles of this client; other clients take the others.
    pub cycles: Range<u64>,
    /// The share of calls that may fail, of a run that is to count.
    pub failures_max: f64,
    /// One failure is too many to go on with.
    pub ends_at_failure: bool,
    /// A call whose answer comes later than so long after it was due has failed; one that is not begun by half of that is not
    /// begun at all.
    pub deadline: Option<Duration>,
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Progress {
    /// Calls that have ended, those of the warm-up too.
    pub calls: u64,
    /// Of them, those that failed.
    pub failed: u64,
    /// Since the start.
    pub elapsed: Duration,
    /// From 0 to 1.
    pub share: f64,
}

/// Why there was no run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The script.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// The functions that were asked for.
    #[error(transparent)]
    Mix(#[from] MixError),
    /// Laws and rates.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The tables cannot be reached.
    #[error("{}", .0.reason)]
    Target(Failure),
    /// Loading failed.
    #[error("loading stopped after {calls} of {of} calls: {failure}")]
    Load {
        /// Calls that were made.
        calls: u64,
        /// Calls that there are.
        of: u64,
        /// Of the first that failed.
        failure: String,
    },
    /// Numbers that make no run.
    #[error("{what} is {value}: it must be {allowed}")]
    Number {
        /// Which.
        what: &'static str,
        /// The value.
        value: u64,
        /// The possible values.
        allowed: String,
    },
    /// The observer ended it; with the measurements so far, if any.
    #[error("stopped before its end")]
    Stopped(Option<Box<RunResult>>),
}

/// Observer of a run: gets [`Progress`] and returns whether the run goes on.
pub type Watch<'a> = dyn FnMut(Progress) -> bool + 'a;

impl Plan {
    /// A closed loop of one thread over all cycles, with a call under way at a time: ten seconds, the first of them for
    /// warming up.
    #[must_use]
    pub fn new(program: Program, mix: Mix) -> Plan {
        Plan {
            program,
            mix,
            seeds: Seeds::new(1),
            threads: 1,
            concurrency: None,
            schedule: Schedule::Closed,
            warmup: Duration::from_secs(1),
            length: Length::Time(Duration::from_secs(10)),
            cycles: 0..u64::MAX,
            failures_max: 0.01,
            ends_at_failure: false,
            deadline: None,
        }
    }

    /// Calls that each thread has under way at most.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.concurrency.unwrap_or(match self.schedule {
            Schedule::Closed => 1,
            Schedule::Open { .. } => OPEN_CONCURRENCY,
        })
    }

    /// The parameter `keys`, which the scripts that ship call the keys of their largest table; none if there is none.
    pub fn keys(&self) -> Result<Option<u64>, EngineError> {
        let params = self.program.describe()?.params;
        let keys = params.iter().find(|param| param.name == "keys");
        Ok(keys.and_then(|param| param.value.to_string().parse().ok()))
    }

    /// The tables that the script's `schema` would make; none if it has none. Makes nothing.
    pub fn tables(&self) -> Result<Vec<TableConfig>, EngineError> {
        let port = Rc::new(RefCell::new(Port::nowhere()));
        Ok(ThreadScript::new(&self.program, &self.seeds, port, 1)?.schema()?)
    }

    fn check(&self) -> Result<(), EngineError> {
        for (what, value, most) in
            [("threads", self.threads, THREADS_MAX), ("concurrency", self.under_way(), SLOTS_MAX)]
        {
            if value == 0 || value > most {
                let allowed = format!("1 to {most}");
                return Err(EngineError::Number { what, value: value as u64, allowed });
            }
        }
        if self.cycles.is_empty() {
            let (what, allowed) = ("the first cycle", format!("below the last, {}", self.cycles.end));
            return Err(EngineError::Number { what, value: self.cycles.start, allowed });
        }
        Ok(())
    }
}

/// Result of creating and filling the tables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prepared {
    /// The tables of the script.
    pub tables: Vec<String>,
    /// Calls of `load` that were made; 0 if the tables had rows.
    pub load_calls: u64,
    /// Rows that are missing all the same.
    pub shortage: Option<Shortage>,
}

/// A workload that has more keys than its largest table has rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// Of the largest table.
    pub rows: u64,
    /// The script's parameter `keys`.
    pub keys: u64,
}

/// Makes the tables of a script, or opens those that are there; none if the script has no `schema`.
pub fn schema(target: &Target, plan: &Plan) -> Result<Vec<String>, EngineError> {
    let port = Rc::new(RefCell::new(target.port().map_err(EngineError::Target)?));
    let mut script = ThreadScript::new(&plan.program, &plan.seeds, port, 1)?;
    Ok(script.schema()?.into_iter().map(|config| config.name).collect())
}

/// Calls the script's `load` for all its cycles, on all threads of the plan. Stops at the first failure.
pub fn load(target: &Target, plan: &Plan, watch: &mut Watch<'_>) -> Result<u64, EngineError> {
    let Some(cycles) = plan.program.describe()?.load_cycles else { return Ok(0) };
    let known = vec!["load".to_owned()];
    let loading = Plan {
        mix: Mix::parse("load", &known)?,
        schedule: Schedule::Closed,
        warmup: Duration::ZERO,
        length: Length::Calls(cycles),
        cycles: 0..cycles,
        failures_max: 0.0,
        ends_at_failure: true,
        deadline: None,
        ..plan.clone()
    };
    if cycles == 0 {
        return Ok(0);
    }
    let ran = threads(target, &loading, watch)?;
    let (calls, failed) = (ran.measured.calls(), ran.measured.failed());
    match ran.measured.failures.first() {
        _ if ran.stopped_by_watch => Err(EngineError::Stopped(None)),
        None if failed == 0 && calls == cycles => Ok(calls),
        first => {
            let failure = first.map_or_else(|| "it was cut short".to_owned(), |first| first.first.clone());
            Err(EngineError::Load { calls, of: cycles, failure })
        }
    }
}

/// Rows that the tables of a script lack: all, if there are none; else what the largest of them has less than the parameter
/// `keys` says, which is what the scripts that ship call the keys of their largest table.
pub fn shortage(target: &Target, plan: &Plan, tables: &[String]) -> Result<Option<Shortage>, EngineError> {
    if tables.is_empty() || target.is_nowhere() {
        return Ok(None);
    }
    let mut rows = 0;
    for table in tables {
        rows = target.rows(table).map_err(EngineError::Target)?.unwrap_or(0).max(rows);
    }
    let keys = plan.keys()?.unwrap_or(1).max(1);
    Ok((rows < keys).then_some(Shortage { rows, keys }))
}

/// Makes the tables and, if rows are missing, fills them: from the first key on, since it is not known which are there.
pub fn prepare(target: &Target, plan: &Plan, watch: &mut Watch<'_>) -> Result<Prepared, EngineError> {
    let tables = schema(target, plan)?;
    if shortage(target, plan, &tables)?.is_none() {
        return Ok(Prepared { tables, ..Prepared::default() });
    }
    let load_calls = load(target, plan, watch)?;
    let shortage = shortage(target, plan, &tables)?;
    Ok(Prepared { tables, load_calls, shortage })
}

/// Runs a plan against tables that are there and full.
///
/// # Errors
/// The run cannot start, or it was stopped (`Stopped`, which holds the part that was measured). Failures during the run are
/// counted; too many make the result invalid.
pub fn run(target: &Target, plan: &Plan, watch: &mut Watch<'_>) -> Result<RunResult, EngineError> {
    run_noting_cycles(target, plan, watch).map(|(run, _)| run)
}

/// Runs a plan; also returns the first cycle that the run did not take.
pub(crate) fn run_noting_cycles(
    target: &Target,
    plan: &Plan,
    watch: &mut Watch<'_>,
) -> Result<(RunResult, u64), EngineError> {
    let before = server::statistics(target);
    let ran = threads(target, plan, watch)?;
    let stopped = ran.stopped_by_watch;
    if stopped && ran.measured.calls() == 0 {
        return Err(EngineError::Stopped(None));
    }
    // Servers that are silent are not asked when it is to end at once.
    let silent = stopped && ran.ends.iter().any(|end| end.not_ended > 0) || ran.is_gone();
    let server = if silent { Vec::new() } else { server::since(&before, server::statistics(target)) };
    let cycles_end = ran.ends.iter().map(|end| end.cycles_end).max().unwrap_or(plan.cycles.start);
    let result = report::result(target, plan, ran, server);
    if stopped { Err(EngineError::Stopped(Some(Box::new(result)))) } else { Ok((result, cycles_end)) }
}

/// Results of the threads of a run.
#[derive(Debug)]
struct Ran {
    measured: Measured,
    ends: Vec<ThreadEnd>,
    began: SystemTime,
    cpu: cpu::Times,
    stopped_by_watch: bool,
}

impl Ran {
    /// Had the target stopped answering by its end, to all threads that asked something?
    fn is_gone(&self) -> bool {
        let mut asked =
            self.ends.iter().filter(|end| end.calls > 0 || end.not_ended > 0 || end.gone).peekable();
        asked.peek().is_some() && asked.all(|end| end.gone)
    }
}

/// Calls under way at a time, per thread.
fn concurrency(target: &Target, plan: &Plan) -> usize {
    // A request that is carried out at once is never in flight.
    if target.cluster().is_none() { 1 } else { plan.under_way() }
}

/// Progress of a running thread, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Tally {
    calls: AtomicU64,
    failed: AtomicU64,
    /// Has it ended?
    over: AtomicBool,
}

fn threads(target: &Target, plan: &Plan, watch: &mut Watch<'_>) -> Result<Ran, EngineError> {
    plan.check()?;
    let concurrency = concurrency(target, plan);
    let stop = AtomicBool::new(false);
    let tallies: Vec<Tally> = (0..plan.threads).map(|_| Tally::default()).collect();
    std::thread::scope(|scope| {
        let (ready, readies) = mpsc::channel();
        let mut starts = Vec::new();
        let mut workers = Vec::new();
        for (number, tally) in tallies.iter().enumerate() {
            let (start, starting) = mpsc::channel();
            starts.push(start);
            let (ready, stop) = (ready.clone(), &stop);
            let share = Share { number, threads: plan.threads, concurrency };
            let body = move || -> Option<(Observed, ThreadEnd)> {
                let made = Thread::new(target, plan, share);
                let (thread, said) = match made {
                    Ok(thread) => (Some(thread), Ok(())),
                    Err(error) => (None, Err(error)),
                };
                // The receiver of these lives as long as the threads.
                ready.send(said).ok()?;
                let start = starting.recv().ok()?;
                Some(thread?.run(start, stop, tally))
            };
            let name = format!("load {number}");
            let spawned = std::thread::Builder::new().name(name).spawn_scoped(scope, body);
            workers.push(spawned.map_err(|error| {
                let reason = format!("thread {number} of {} cannot be started: {error}", plan.threads);
                EngineError::Target(Failure { kind: "threads", reason })
            })?);
        }
        drop(ready);
        for said in readies.iter().take(plan.threads) {
            // Threads that wait for their start end when it cannot come any more.
            said?;
        }
        let (start, began) = (Instant::now() + START_AFTER, SystemTime::now() + START_AFTER + plan.warmup);
        for waiting in starts {
            let _ = waiting.send(start);
        }
        let (stopped_by_watch, cpu_before) = watch_over(plan, start, &tallies, &stop, watch);
        let mut ends = Vec::new();
        let mut all: Option<Observed> = None;
        for worker in workers {
            let ended = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let Some((observed, end)) = ended else { continue };
            ends.push(end);
            match &mut all {
                Some(all) => all.merge(&observed),
                None => all = Some(observed),
            }
        }
        let observed = all.ok_or(EngineError::Stopped(None))?;
        let cpu = cpu::Times::now().since(cpu_before);
        let last = ends.iter().map(|end| end.last).max().unwrap_or_default();
        let window = match plan.length {
            // Unless it was over before, since all threads were told to stop, had no cycles left or gave up.
            Length::Time(window)
                if !stop.load(Ordering::Relaxed) && !ends.iter().all(|end| end.ran_out || end.gave_up) =>
            {
                Some(window)
            }
            Length::Time(_) | Length::Calls(_) => None,
        };
        // An empty run has a length, too.
        let length = last.max(window.unwrap_or_default()).max(Duration::from_nanos(1));
        let measured = observed.measured(length);
        let measured = match plan.schedule {
            Schedule::Closed => measured,
            Schedule::Open { per_s, .. } => {
                let due = window.unwrap_or_else(|| one_more_due(&ends, per_s));
                let backlog_s = backlog(length, due, &ends).as_secs_f64();
                Measured { due_s: Some(due.as_secs_f64()), backlog_s, ..measured }
            }
        };
        Ok(Ran { measured, ends, began, cpu, stopped_by_watch })
    })
}

/// When one more call would have been due behind those that were.
fn one_more_due(ends: &[ThreadEnd], per_s: f64) -> Duration {
    let gap = Duration::try_from_secs_f64(1.0 / per_s).unwrap_or_default();
    ends.iter().map(|end| end.due).max().unwrap_or_default().saturating_add(gap)
}

/// How much of the measured part went by while calls of the warm-up were still to be begun, on an average thread. What
/// was caught up with until calls were no longer due is not counted: rates are never those of less time than that.
fn backlog(length: Duration, due: Duration, ends: &[ThreadEnd]) -> Duration {
    let at_work = || ends.iter().filter(|end| end.calls > 0);
    let threads = u32::try_from(at_work().count()).unwrap_or(u32::MAX).max(1);
    let mean = at_work().map(|end| end.backlog).sum::<Duration>() / threads;
    mean.min(length.saturating_sub(due)).min(length.saturating_sub(Duration::from_nanos(1)))
}

/// Tells who watches, until all threads have ended. Whether they were told to end early, and the processor time when the
/// measured part began.
fn watch_over(
    plan: &Plan,
    start: Instant,
    tallies: &[Tally],
    stop: &AtomicBool,
    watch: &mut Watch<'_>,
) -> (bool, cpu::Times) {
    let (mut stopped, mut cpu) = (false, None);
    loop {
        let sum = |of: fn(&Tally) -> &AtomicU64| -> u64 {
            tallies.iter().map(|tally| of(tally).load(Ordering::Relaxed)).sum()
        };
        let (calls, failed) = (sum(|tally| &tally.calls), sum(|tally| &tally.failed));
        let elapsed = start.elapsed();
        if elapsed >= plan.warmup {
            cpu.get_or_insert_with(cpu::Times::now);
        }
        let share = match plan.length {
            Length::Time(window) => elapsed.as_secs_f64() / (plan.warmup + window).as_secs_f64().max(1e-9),
            Length::Calls(of) => calls as f64 / of.max(1) as f64,
        };
        let over = tallies.iter().all(|tally| tally.over.load(Ordering::Relaxed));
        // A stop after the last call is too late: a thread that has made its last call reports it a moment later.
        let share = if over { 1.0 } else { share.min(1.0_f64.next_down()) };
        let progress = Progress { calls, failed, elapsed, share };
        let goes_on = watch(progress);
        if over {
            return (stopped, cpu.unwrap_or_else(cpu::Times::now));
        }
        if !goes_on {
            stopped = true;
            stop.store(true, Ordering::Relaxed);
        }
        let to_warmup = plan.warmup.saturating_sub(start.elapsed());
        std::thread::sleep(if cpu.is_none() { WATCH_EVERY.min(to_warmup) } else { WATCH_EVERY });
    }
}

#[cfg(test)]
mod tests;
