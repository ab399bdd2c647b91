//! Latencies of single calls and their statistics. Knows no transport.

use std::time::{Duration, Instant};

use sanderling_observe::{Latency, LatencySummary};

use crate::result::BenchError;

/// When a call was sent (or was due) and answered, counted from the start of its turn.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Call {
    pub(crate) sent: Duration,
    pub(crate) done: Duration,
}

/// A client that pulls over one connection. All pulls that were sent are answered when a method returns.
pub(crate) trait Caller: Send {
    /// The rows of one of the batches, for the check that answers are right.
    fn rows(&mut self, batch: usize) -> Result<Vec<f32>, BenchError>;
    /// Keeps `in_flight` calls under way for so long; makes one at least. Calls in the order of their sending.
    fn closed(&mut self, in_flight: usize, duration: Duration) -> Result<Vec<Call>, BenchError>;
    /// Makes a call at fixed times for so long, whether those before are answered or not. Calls in the order of their
    /// times.
    fn open(&mut self, per_s: f64, duration: Duration) -> Result<Vec<Call>, BenchError>;
}

/// The times of calls that are due at a fixed rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    per_s: f64,
    calls: usize,
}

impl Schedule {
    pub(crate) fn new(per_s: f64, duration: Duration) -> Schedule {
        Schedule { per_s, calls: ((per_s * duration.as_secs_f64()) as usize).max(1) }
    }

    pub(crate) fn calls(self) -> usize {
        self.calls
    }

    /// When call number `call` is due.
    pub(crate) fn due(self, call: usize) -> Duration {
        Duration::from_secs_f64(call as f64 / self.per_s)
    }

    /// When call number `call` is due, if there is such a call and that is now.
    pub(crate) fn due_by(self, call: usize, now: Duration) -> Option<Duration> {
        Some(self.due(call)).filter(|&due| call < self.calls && due <= now)
    }
}

/// One turn: all connections of a transport at once.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    pub(crate) per_s: f64,
    pub(crate) call: Latency,
    pub(crate) request: Latency,
}

impl Turn {
    /// Adds up what the connections observed; so many calls in a row are one request.
    pub(crate) fn of(connections: &[Vec<Call>], calls: usize) -> Turn {
        let mut turn = Turn::default();
        let (mut count, mut last) = (0, Duration::ZERO);
        for all in connections {
            count += all.len();
            for call in all {
                last = last.max(call.done);
                turn.call.record(call.done.saturating_sub(call.sent));
            }
            for request in all.chunks_exact(calls.min(all.len()).max(1)) {
                let done = request.iter().map(|call| call.done).max().unwrap_or_default();
                turn.request.record(done.saturating_sub(request[0].sent));
            }
        }
        turn.per_s = count as f64 / last.as_secs_f64().max(1e-9);
        turn
    }
}

/// All turns of one transport under one load.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    pub(crate) per_s: Vec<f64>,
    pub(crate) p99_to_p50: Vec<f64>,
    call: Latency,
    request: Latency,
}

impl Turns {
    pub(crate) fn add(&mut self, turn: &Turn) {
        let summary = turn.call.summary();
        self.per_s.push(turn.per_s);
        self.p99_to_p50.push(summary.p99_ns as f64 / (summary.p50_ns as f64).max(1.0));
        self.call.merge(&turn.call);
        self.request.merge(&turn.request);
    }

    pub(crate) fn call(&self) -> LatencySummary {
        self.call.summary()
    }

    pub(crate) fn request(&self) -> LatencySummary {
        self.request.summary()
    }
}

/// Lets all connections of a transport work at once, each on a thread of its own.
pub(crate) fn together(
    callers: &mut [Box<dyn Caller>],
    work: impl Fn(&mut dyn Caller) -> Result<Vec<Call>, BenchError> + Sync,
) -> Result<Vec<Vec<Call>>, BenchError> {
    std::thread::scope(|scope| {
        let work = &work;
        let all: Vec<_> =
            callers.iter_mut().map(|caller| scope.spawn(move || work(caller.as_mut()))).collect();
        let join = |one: std::thread::ScopedJoinHandle<'_, _>| match one.join() {
            Ok(calls) => calls,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        all.into_iter().map(join).collect()
    })
}

/// A closed loop of something that answers at once.
pub(crate) fn closed_at_once(
    duration: Duration,
    mut call: impl FnMut(usize) -> Result<(), BenchError>,
) -> Result<Vec<Call>, BenchError> {
    let start = Instant::now();
    let mut calls = Vec::new();
    let mut sent = Duration::ZERO;
    while sent < duration {
        call(calls.len())?;
        let done = start.elapsed();
        calls.push(Call { sent, done });
        sent = done;
    }
    Ok(calls)
}

/// An open loop of something that answers at once.
pub(crate) fn open_at_once(
    schedule: Schedule,
    mut call: impl FnMut(usize) -> Result<(), BenchError>,
) -> Result<Vec<Call>, BenchError> {
    let start = Instant::now();
    let mut calls = Vec::with_capacity(schedule.calls());
    for number in 0..schedule.calls() {
        let sent = schedule.due(number);
        while start.elapsed() < sent {
            std::hint::spin_loop();
        }
        call(number)?;
        calls.push(Call { sent, done: start.elapsed() });
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn a_request_ends_with_the_last_of_its_calls() {
        let call = |sent, done| Call { sent: us(sent), done: us(done) };
        // The last one has no whole request.
        let one = vec![call(0, 30), call(10, 20), call(20, 25), call(30, 70), call(40, 100)];
        let other = vec![call(5, 50)];
        let turn = Turn::of(&[one, other], 2);
        assert_eq!(turn.per_s, 60_000.0);
        let (call, request) = (turn.call.summary(), turn.request.summary());
        assert_eq!((call.count, call.min_ns, call.max_ns), (6, 5000, 60_000));
        assert_eq!((request.count, request.min_ns, request.max_ns), (3, 30_000, 50_000));
    }

    #[test]
    fn calls_are_due_at_a_fixed_rate() {
        let schedule = Schedule::new(1000.0, us(3500));
        assert_eq!(schedule.calls(), 3);
        assert_eq!(schedule.due(2), us(2000));
        for (call, now, expected) in
            [(1, 999, None), (1, 1000, Some(us(1000))), (2, 9000, Some(us(2000))), (3, 9000, None)]
        {
            assert_eq!(schedule.due_by(call, us(now)), expected, "{call} at {now}");
        }
    }
}
