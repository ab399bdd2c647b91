//! How a run went over time: calls, keys, failures and a coarse histogram of latencies per interval. Knows
//! nothing of functions and operations.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::distribution::NS_MAX;

/// The most intervals: when they are full, neighbours are merged and intervals become twice as long.
pub const INTERVALS_MAX: usize = 256;
/// The shortest interval.
const INTERVAL_NS_MIN: u64 = 100_000_000;
/// Digits of an interval's histogram: 16 buckets for every doubling, 6 % apart at most.
pub(crate) const INTERVAL_DIGITS: u8 = 1;

/// Intervals of equal length, from the beginning of the measured part.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    pub(crate) interval_ns: u64,
    pub(crate) intervals: Vec<Interval>,
    /// Bounds of the interval that was noted last, so that the next one needs no division.
    at: Here,
    done: Here,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Here {
    from_ns: u64,
    to_ns: u64,
    place: usize,
}

/// Measurements of an interval.
#[derive(Debug, Clone, PartialEq)]
pub struct Interval {
    /// Calls that succeeded, by when they ended.
    pub calls: u64,
    /// Calls that failed, by when they ended.
    pub failed: u64,
    /// Keys of requests that succeeded, by when they ended.
    pub keys: u64,
    /// Response times in nanoseconds of calls that succeeded, by when they were due.
    pub response: Histogram<u32>,
}

impl Interval {
    pub(crate) fn new() -> Interval {
        let response =
            Histogram::new_with_bounds(1, NS_MAX, INTERVAL_DIGITS).expect("these bounds are possible");
        Interval { calls: 0, failed: 0, keys: 0, response }
    }

    pub(crate) fn merge(&mut self, other: &Interval) {
        self.calls += other.calls;
        self.failed += other.failed;
        self.keys += other.keys;
        self.response.add(&other.response).expect("all have the same bounds");
    }
}

impl Series {
    /// An empty one; `expected` decides how long intervals are, so that there will be at least half of
    /// [`INTERVALS_MAX`] where the shortest interval allows it.
    #[must_use]
    pub fn new(expected: Duration) -> Series {
        let mut interval_ns = INTERVAL_NS_MIN;
        while expected.as_nanos() > u128::from(interval_ns) * INTERVALS_MAX as u128 {
            interval_ns *= 2;
        }
        Series::of(interval_ns, Vec::with_capacity(INTERVALS_MAX))
    }

    pub(crate) fn of(interval_ns: u64, intervals: Vec<Interval>) -> Series {
        Series { interval_ns, intervals, at: Here::default(), done: Here::default() }
    }

    /// Notes a call that was due at `at_ns` and took `response_ns` from then.
    #[inline]
    pub fn call(&mut self, at_ns: u64, response_ns: u64, failed: bool) {
        let done_ns = at_ns.saturating_add(response_ns);
        // The later one first: making room for it may merge intervals.
        if done_ns < self.done.from_ns || done_ns >= self.done.to_ns {
            self.done = self.find(done_ns);
        }
        if at_ns < self.at.from_ns || at_ns >= self.at.to_ns {
            self.at = self.find(at_ns);
        }
        let done = &mut self.intervals[self.done.place];
        if failed {
            done.failed += 1;
        } else {
            done.calls += 1;
            self.intervals[self.at.place].response.saturating_record(response_ns.min(NS_MAX));
        }
    }

    /// Notes keys of a request that succeeded and ended at `done_ns`.
    #[inline]
    pub fn keys(&mut self, done_ns: u64, keys: u64) {
        if done_ns < self.done.from_ns || done_ns >= self.done.to_ns {
            self.done = self.find(done_ns);
        }
        self.intervals[self.done.place].keys += keys;
    }

    /// Adds another's intervals.
    ///
    /// # Panics
    /// When the other was begun for another expected time.
    pub fn merge(&mut self, other: &Series) {
        while self.interval_ns < other.interval_ns {
            self.halve();
        }
        let ratio = (self.interval_ns / other.interval_ns) as usize;
        assert_eq!(self.interval_ns, other.interval_ns * ratio as u64, "both began with the same interval");
        for (place, interval) in other.intervals.iter().enumerate() {
            let place = place / ratio;
            self.fill_to(place);
            self.intervals[place].merge(interval);
        }
    }

    /// How long an interval is.
    #[must_use]
    pub fn interval(&self) -> Duration {
        Duration::from_nanos(self.interval_ns)
    }

    /// All intervals. The last ones may lie, in part or wholly, after the end of the measured part.
    #[must_use]
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// The intervals that lie wholly within the measured part of this length.
    #[must_use]
    pub fn whole(&self, seconds: f64) -> &[Interval] {
        let whole = (seconds * 1e9 / self.interval_ns as f64 + 1e-6).floor() as usize;
        &self.intervals[..whole.min(self.intervals.len())]
    }

    /// With an interval for every part of the measured time, also where nothing happened.
    #[must_use]
    pub(super) fn until(mut self, measured: Duration) -> Series {
        if let Some(last_ns) = super::nanoseconds(measured).checked_sub(1) {
            let last = self.find(last_ns);
            self.fill_to(last.place);
        }
        (self.at, self.done) = (Here::default(), Here::default());
        self
    }

    #[cold]
    fn find(&mut self, ns: u64) -> Here {
        while ns / self.interval_ns >= INTERVALS_MAX as u64 {
            self.halve();
        }
        let place = (ns / self.interval_ns) as usize;
        self.fill_to(place);
        let from_ns = place as u64 * self.interval_ns;
        Here { from_ns, to_ns: from_ns.saturating_add(self.interval_ns), place }
    }

    fn fill_to(&mut self, place: usize) {
        while self.intervals.len() <= place {
            self.intervals.push(Interval::new());
        }
    }

    /// Merges neighbours.
    fn halve(&mut self) {
        let mut merged = Vec::with_capacity(INTERVALS_MAX);
        for pair in self.intervals.chunks(2) {
            let mut first = pair[0].clone();
            pair[1..].iter().for_each(|second| first.merge(second));
            merged.push(first);
        }
        *self = Series::of(self.interval_ns.saturating_mul(2), merged);
    }
}
