//! One thread of a run: calls its script when a call is due, hands it what its requests became, and notes how long that
//! took. Everything it touches is its own. Knows not what a call asks.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::pace::{Due, Pace, Share};
use super::{EngineError, Length, Plan, Schedule, Tally, cpu};
use crate::generate::Seeds;
use crate::observed::{Distribution, Observed};
use crate::port::Port;
use crate::request::Finished;
use crate::script::{CallFailure, FunctionId, Mix, SCRIPT_KIND, Step, ThreadScript};
use crate::target::Target;

/// How long a thread waits for what is still under way when its time is over, before it gives up.
const DRAIN: Duration = Duration::from_secs(60);
/// The longest time between two looks at whether it is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Failures after which a run that has too many is cut short.
const FAILURES_BEFORE_STOP: u64 = 1000;

/// What a thread says of itself when it has ended.
#[derive(Debug)]
pub(super) struct ThreadEnd {
    /// When its last call ended, since the measured part began.
    pub(super) last: Duration,
    /// Share of a core that it used.
    pub(super) cpu: f64,
    /// Share of its time in which it had nothing to do but wait.
    pub(super) waited: f64,
    /// How much later than due, or than a slot was free, calls were begun: what the client is to blame for.
    pub(super) own_lag: Distribution,
    /// Calls that were due and had not ended long after the end.
    pub(super) not_ended: u64,
    /// Was it cut short, since too much failed?
    pub(super) gave_up: bool,
    /// Calls that it may have under way.
    pub(super) slots: usize,
    /// How long the calls that failed took, together.
    pub(super) failing: Duration,
    /// Had it no cycles left before its time was over?
    pub(super) ran_out: bool,
}

/// A call under way.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    function: usize,
    due: Duration,
    started: Duration,
}

/// See the top of this file.
pub(super) struct Thread {
    script: ThreadScript,
    port: Rc<RefCell<Port>>,
    functions: Vec<FunctionId>,
    mix: Mix,
    seeds: Seeds,
    pace: Pace,
    is_open: bool,
    warmup: Duration,
    failures_max: f64,
    slots: Vec<Slot>,
    free: Vec<usize>,
    observed: Observed,
    /// Calls and failures, those of the warm-up too.
    calls: u64,
    failed: u64,
    failing: Duration,
    last: Duration,
    own_lag: Distribution,
}

impl Thread {
    pub(super) fn new(target: &Target, plan: &Plan, share: Share) -> Result<Thread, EngineError> {
        let port = Rc::new(RefCell::new(target.port().map_err(EngineError::Target)?));
        let mut script = ThreadScript::new(&plan.program, &plan.seeds, Rc::clone(&port), share.concurrency)?;
        script.prepare()?;
        let names: Vec<String> = plan.mix.parts().iter().map(|(name, _)| name.clone()).collect();
        let functions = names.iter().map(|name| script.function(name)).collect::<Result<_, _>>()?;
        let expected = match plan.length {
            Length::Time(window) => window,
            Length::Calls(_) => Duration::ZERO,
        };
        Ok(Thread {
            script,
            port,
            functions,
            mix: plan.mix.clone(),
            seeds: plan.seeds,
            pace: Pace::new(plan, share)?,
            is_open: matches!(plan.schedule, Schedule::Open { .. }),
            warmup: plan.warmup,
            failures_max: plan.failures_max,
            slots: vec![Slot::default(); share.concurrency],
            // The first is taken first.
            free: (0..share.concurrency).rev().collect(),
            observed: Observed::new(&names, expected),
            calls: 0,
            failed: 0,
            failing: Duration::ZERO,
            last: Duration::ZERO,
            own_lag: Distribution::new(),
        })
    }

    /// Runs its part and returns what it noted.
    pub(super) fn run(mut self, start: Instant, stop: &AtomicBool, tally: &Tally) -> (Observed, ThreadEnd) {
        let mut finished: Vec<Finished> = Vec::new();
        let (mut waited, mut not_ended, mut gave_up) = (Duration::ZERO, 0, false);
        let (mut over_since, mut freed_at) = (None, Duration::ZERO);
        let mut port_counts = false;
        std::thread::sleep(start.saturating_duration_since(Instant::now()));
        let cpu_before = cpu::thread();
        loop {
            let mut now = start.elapsed();
            if !port_counts && now >= self.warmup {
                // Keys are looked at only where they are noted.
                self.port.borrow_mut().count_distinct_keys();
                port_counts = true;
            }
            let stopped = stop.load(Ordering::Relaxed);
            while let Some(&slot) = self.free.last()
                && !stopped
                && let Some(due) = self.pace.take(now)
            {
                self.free.pop();
                if due.at >= self.warmup && self.is_open {
                    let own = now.saturating_sub(due.at.max(freed_at));
                    self.own_lag.record(u64::try_from(own.as_nanos()).unwrap_or(u64::MAX));
                }
                self.start(slot, due, now, start);
                now = start.elapsed();
            }
            let idle = self.free.len() == self.slots.len();
            let next = self.pace.next_at(now).filter(|_| !stopped);
            if next.is_none() && idle {
                break;
            }
            // What is still to be done after the end is bounded: a target that serves less than is due never catches up.
            if next.is_none_or(|next| self.pace.is_after_end(now) && next <= now) {
                let since = *over_since.get_or_insert(now);
                if now > since + DRAIN {
                    not_ended = (self.slots.len() - self.free.len()) as u64 + self.pace.count_left(now);
                    break;
                }
            }
            let full = self.free.is_empty();
            let mut until = now + LOOK_EVERY;
            if !full && let Some(next) = next {
                until = until.min(next);
            }
            self.port.borrow_mut().poll(Some(start + until), &mut finished);
            let after = start.elapsed();
            let ready = finished.first().map_or(after, |first| first.done.saturating_duration_since(start));
            waited += ready.saturating_sub(now);
            for finished in finished.drain(..) {
                let (slot, done) = (finished.slot, finished.done.saturating_duration_since(start));
                if self.slots[slot].due >= self.warmup {
                    self.observed.request(done.saturating_sub(self.warmup), &finished);
                }
                if let Step::Done(result) = self.script.resume(slot, finished) {
                    self.end(slot, done, &result);
                }
            }
            if full && !self.free.is_empty() {
                freed_at = after;
            }
            tally.calls.store(self.calls, Ordering::Relaxed);
            tally.failed.store(self.failed, Ordering::Relaxed);
            if self.failed > FAILURES_BEFORE_STOP
                && self.failed as f64 > self.failures_max.max(0.5) * self.calls as f64
            {
                gave_up = true;
                break;
            }
            // Loading: one failure is too many.
            if self.failures_max == 0.0 && self.failed > 0 {
                gave_up = true;
                stop.store(true, Ordering::Relaxed);
            }
        }
        let elapsed = start.elapsed();
        let share = |part: Duration| part.as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
        let cpu = share(cpu::thread().saturating_sub(cpu_before));
        if let Some(keys) = self.port.borrow_mut().distinct_keys() {
            self.observed.unique_of(&keys);
        }
        tally.calls.store(self.calls, Ordering::Relaxed);
        tally.failed.store(self.failed, Ordering::Relaxed);
        tally.over.store(true, Ordering::Relaxed);
        let end = ThreadEnd {
            last: self.last,
            cpu,
            waited: share(waited),
            own_lag: self.own_lag,
            not_ended,
            gave_up,
            slots: self.slots.len(),
            failing: self.failing,
            ran_out: self.pace.ran_out(self.last + self.warmup),
        };
        (self.observed, end)
    }

    fn start(&mut self, slot: usize, due: Due, now: Duration, start: Instant) {
        let function = self.mix.pick(&self.seeds, due.cycle);
        self.slots[slot] = Slot { function, due: due.at, started: now };
        if let Step::Done(result) = self.script.start(slot, self.functions[function], due.cycle, due.at) {
            self.end(slot, start.elapsed(), &result);
        }
    }

    /// Notes a call that has ended.
    fn end(&mut self, slot: usize, done: Duration, result: &Result<(), CallFailure>) {
        self.free.push(slot);
        let Slot { function, due, started } = self.slots[slot];
        self.calls += 1;
        self.failed += u64::from(result.is_err());
        let Some(at) = due.checked_sub(self.warmup) else { return };
        if let Err(failure) = result
            && failure.kind == SCRIPT_KIND
        {
            self.observed.failure(failure.kind, &failure.message);
        }
        let (response, service) = (done.saturating_sub(due), done.saturating_sub(started));
        if result.is_err() {
            self.failing += service;
        }
        self.observed.call(function, at, response, service, started.saturating_sub(due), result.is_err());
        self.last = self.last.max(done.saturating_sub(self.warmup));
    }
}
