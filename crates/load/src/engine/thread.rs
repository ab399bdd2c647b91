//! One thread of a run: calls its script when a call is due, hands it what its requests became, and notes how long that
//! took. Everything it touches is its own. Knows not what a call asks.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::pace::{Due, Pace, Share};
use super::{EngineError, Length, Plan, Schedule, Tally, cpu};
use crate::generate::Seeds;
use crate::observed::{Distribution, Failures, Observed};
use crate::port::Port;
use crate::request::Finished;
use crate::script::{CallFailure, FunctionId, Mix, SCRIPT_KIND, Step, ThreadScript};
use crate::target::Target;

/// How long a thread waits for what is still under way when its time is over, before it gives up; a target that answers nothing
/// at all is given up after one request time-out.
const DRAIN: Duration = Duration::from_secs(60);
/// Time limit after a stop: Ctrl-C does not wait for silent servers.
const DRAIN_STOPPED: Duration = Duration::from_millis(500);
/// The longest time between two looks at whether it is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The kind of what has no answer in time.
const LATE: &str = "late";
/// Kinds of failures that no server has answered.
const NO_ANSWER: [&str; 5] = [LATE, "lost", "stopped", "transport", "cluster"];
/// Failures after which a run that has too many is cut short.
const FAILURES_BEFORE_STOP: u64 = 1000;

/// Report of a thread at its end.
#[derive(Debug, Default)]
pub(super) struct ThreadEnd {
    /// Its calls in the measured part.
    pub(super) calls: u64,
    /// The first cycle behind all that it took, those of the warm-up too.
    pub(super) cycles_end: u64,
    /// When its last call ended, since the measured part began.
    pub(super) last: Duration,
    /// In an open loop: when the last of them was due, and when the last call of the warm-up was begun, both since the
    /// measured part began.
    pub(super) due: Duration,
    pub(super) backlog: Duration,
    /// Share of a core that it used in the measured part.
    pub(super) cpu: f64,
    /// Share of its time there in which it had nothing to do but wait.
    pub(super) waited: f64,
    /// How much later than due, or than a slot was free, calls were begun: what the client is to blame for.
    pub(super) own_lag: Distribution,
    /// Did a call wait for room at a server, though fewer than [`slots`](Self::slots) were under way?
    pub(super) crowded: bool,
    /// Calls that were due and had not ended long after the end, or soon after it was told to stop.
    pub(super) not_ended: u64,
    /// Did its target answer nothing during the last request time-out before its end?
    pub(super) gone: bool,
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
    ends_at_failure: bool,
    /// Time-out of a request.
    timeout: Duration,
    counts_calls: bool,
    deadline: Option<Duration>,
    /// When the last request was answered.
    heard: Duration,
    /// When the first request was begun of those that failed without an answer since then.
    unheard_since: Option<Duration>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    observed: Observed,
    /// Failures of the warm-up, reported only if the run gives up there.
    failures_before: Failures,
    /// Calls and failures, those of the warm-up too.
    calls: u64,
    failed: u64,
    failing: Duration,
    last: Duration,
    due: Duration,
    backlog: Duration,
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
            ends_at_failure: plan.ends_at_failure,
            timeout: target.timeout(),
            counts_calls: matches!(plan.length, Length::Calls(_)),
            deadline: plan.deadline,
            heard: Duration::ZERO,
            unheard_since: None,
            slots: vec![Slot::default(); share.concurrency],
            // The first is taken first.
            free: (0..share.concurrency).rev().collect(),
            observed: Observed::new(&names, expected),
            failures_before: Failures::new(),
            calls: 0,
            failed: 0,
            failing: Duration::ZERO,
            last: Duration::ZERO,
            due: Duration::ZERO,
            backlog: Duration::ZERO,
            own_lag: Distribution::new(),
        })
    }

    /// Runs its part and returns what it noted.
    pub(super) fn run(mut self, start: Instant, stop: &AtomicBool, tally: &Tally) -> (Observed, ThreadEnd) {
        let mut finished: Vec<Finished> = Vec::new();
        let (mut waited, mut not_ended, mut gave_up, mut gone) = (Duration::ZERO, 0, false, false);
        let (mut over_since, mut freed_at, mut crowded) = (None, Duration::ZERO, false);
        let mut measuring = false;
        std::thread::sleep(start.saturating_duration_since(Instant::now()));
        let (mut since, mut cpu_before) = (Duration::ZERO, cpu::thread());
        loop {
            let mut now = start.elapsed();
            if !measuring && now >= self.warmup {
                // Keys, places of failures and the thread's own time are looked at only where they are noted.
                self.port.borrow_mut().count_distinct_keys();
                self.script.draw_failures_anew();
                (since, cpu_before, waited) = (now, cpu::thread(), Duration::ZERO);
                measuring = true;
            }
            let stopped = stop.load(Ordering::Relaxed);
            // After a call without a request all else has its turn: a script whose calls all are so would keep it from that.
            let mut ended = false;
            while let Some(&slot) = self.free.last()
                && !stopped
                && !ended
                && self.has_room()
                && let Some(due) = self.pace.take(now)
            {
                if self.deadline.is_some_and(|deadline| now > due.at + deadline / 2) {
                    self.pass_over(due, now);
                    continue;
                }
                self.free.pop();
                match due.at.checked_sub(self.warmup) {
                    _ if !self.is_open => {}
                    Some(at) => {
                        let own = now.saturating_sub(due.at.max(freed_at));
                        self.own_lag.record(u64::try_from(own.as_nanos()).unwrap_or(u64::MAX));
                        self.due = at;
                    }
                    None => self.backlog = now.saturating_sub(self.warmup),
                }
                ended = self.start(slot, due, now, start);
                now = start.elapsed();
            }
            let idle = self.free.len() == self.slots.len();
            let next = self.pace.next_at(now).filter(|_| !stopped);
            if next.is_none() && idle {
                break;
            }
            // The work after the end is bounded: a target that serves less than is due never catches up.
            if next.is_none_or(|next| self.pace.is_after_end(now) && next <= now) {
                let over_since = *over_since.get_or_insert(now);
                gone = !stopped && now > over_since.max(self.heard) + self.timeout;
                if gone || now > over_since + if stopped { DRAIN_STOPPED } else { DRAIN } {
                    not_ended = (self.slots.len() - self.free.len()) as u64 + self.pace.count_left(now);
                    break;
                }
            }
            let full = !self.has_room();
            if full && !self.free.is_empty() && next.is_some_and(|next| (self.warmup..=now).contains(&next)) {
                crowded = true;
            }
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
                self.hear(&finished, done, start);
                if self.slots[slot].due >= self.warmup {
                    self.observed.request(done.saturating_sub(self.warmup), &finished);
                } else if let Err(failure) = &finished.outcome {
                    self.failures_before.note(failure.kind, &failure.reason);
                }
                if let Step::Done(result) = self.script.resume(slot, finished) {
                    self.end(slot, done, &result);
                }
            }
            if full && self.has_room() {
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
            if self.counts_calls && self.is_gone(after) {
                // Each of the calls that are left would take a time-out, and their number has no end in time.
                gave_up = true;
                break;
            }
            if self.ends_at_failure && self.failed > 0 {
                gave_up = true;
                stop.store(true, Ordering::Relaxed);
            }
        }
        let gone = gone || self.is_gone(start.elapsed());
        let elapsed = start.elapsed().saturating_sub(since);
        let share = |part: Duration| part.as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
        let cpu = share(cpu::thread().saturating_sub(cpu_before));
        if let Some(keys) = self.port.borrow_mut().distinct_keys() {
            self.observed.unique_of(&keys);
        }
        if gave_up && self.observed.calls() == 0 {
            self.observed.failures_of(&self.failures_before);
        }
        tally.calls.store(self.calls, Ordering::Relaxed);
        tally.failed.store(self.failed, Ordering::Relaxed);
        tally.over.store(true, Ordering::Relaxed);
        let end = ThreadEnd {
            calls: self.observed.calls(),
            cycles_end: self.pace.taken_end(),
            last: self.last,
            due: self.due,
            backlog: self.backlog,
            cpu,
            waited: share(waited),
            own_lag: self.own_lag,
            crowded,
            not_ended,
            gone,
            gave_up,
            slots: self.slots.len(),
            failing: self.failing,
            ran_out: self.pace.ran_out(self.last + self.warmup),
        };
        (self.observed, end)
    }

    /// Notes whether the target answered, be it with a refusal.
    fn hear(&mut self, finished: &Finished, done: Duration, start: Instant) {
        let answered = match &finished.outcome {
            Ok(_) => true,
            Err(failure) => !NO_ANSWER.contains(&failure.kind),
        };
        if answered {
            (self.heard, self.unheard_since) = (done, None);
        } else {
            self.unheard_since.get_or_insert(finished.sent.saturating_duration_since(start));
        }
    }

    /// Has nothing been answered for a request time-out, though something was asked?
    fn is_gone(&self, now: Duration) -> bool {
        self.unheard_since.is_some_and(|since| now >= since.max(self.heard) + self.timeout)
    }

    /// May another call begin?
    fn has_room(&self) -> bool {
        !self.free.is_empty() && self.port.borrow().has_room()
    }

    /// Does not begin a call whose time is half over: of a queue that is longer than the deadline the first ones would be answered
    /// just too late.
    fn pass_over(&mut self, due: Due, now: Duration) {
        (self.calls, self.failed) = (self.calls + 1, self.failed + 1);
        let late = now.saturating_sub(due.at);
        let reason = "not begun within half of its deadline: all calls that may be under way were";
        let Some(at) = due.at.checked_sub(self.warmup) else {
            self.failures_before.note(LATE, reason);
            return;
        };
        self.due = at;
        self.observed.failure(LATE, reason);
        let function = self.mix.pick(&self.seeds, due.cycle);
        self.observed.call(function, at, late, Duration::ZERO, late, true);
    }

    /// Begins a call. `true`: it has ended, too.
    fn start(&mut self, slot: usize, due: Due, now: Duration, start: Instant) -> bool {
        let function = self.mix.pick(&self.seeds, due.cycle);
        self.slots[slot] = Slot { function, due: due.at, started: now };
        self.port.borrow_mut().limit(slot, self.deadline.map(|deadline| start + due.at + deadline));
        if let Step::Done(result) = self.script.start(slot, self.functions[function], due.cycle, due.at) {
            self.end(slot, start.elapsed(), &result);
            return true;
        }
        false
    }

    /// Notes a call that has ended.
    fn end(&mut self, slot: usize, done: Duration, result: &Result<(), CallFailure>) {
        self.free.push(slot);
        let Slot { function, due, started } = self.slots[slot];
        self.calls += 1;
        self.failed += u64::from(result.is_err());
        let at = due.checked_sub(self.warmup);
        // Failures of requests were recorded with the requests.
        if let Err(failure) = result
            && failure.kind == SCRIPT_KIND
        {
            match at {
                Some(_) => self.observed.failure(failure.kind, &failure.message),
                None => self.failures_before.note(failure.kind, &failure.message),
            }
        }
        let Some(at) = at else { return };
        let (response, service) = (done.saturating_sub(due), done.saturating_sub(started));
        if result.is_err() {
            self.failing += service;
        }
        self.observed.call(function, at, response, service, started.saturating_sub(due), result.is_err());
        self.last = self.last.max(done.saturating_sub(self.warmup));
    }
}
