//! Records of one thread about its calls and requests, and their sum over several threads. Nothing is
//! shared, and nothing is allocated per call; notes are merged when the run is over. Knows neither clocks nor
//! scripts: times come as arguments.

pub mod distinct;
pub mod distribution;
pub mod failures;
pub mod requests;
pub mod series;

use std::time::Duration;

pub use distinct::{Distinct, DistinctKeys};
pub use distribution::Distribution;
pub use failures::{FailureCount, Failures};
pub use requests::{RequestCount, Requests};
pub use series::{Interval, Series};

use crate::request::Finished;

/// One thread's notes of the measured part of a run.
#[derive(Debug, Clone)]
pub struct Observed {
    functions: Vec<FunctionNotes>,
    series: Series,
    requests: Requests,
    failures: Failures,
    distinct: DistinctKeys,
}

/// Calls of one function.
#[derive(Debug, Clone)]
struct FunctionNotes {
    name: String,
    calls: u64,
    failed: u64,
    /// Calls that began when they were due: response and service are one, and noted once.
    prompt: Distribution,
    /// Of the others.
    response: Distribution,
    service: Distribution,
    lag: Distribution,
    failed_response: Distribution,
}

/// Calls of one function.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct FunctionCalls {
    /// As in the script.
    pub name: String,
    /// All calls, failed ones too.
    pub calls: u64,
    /// Number of failures.
    pub failed: u64,
    /// From when calls were due to their end, of those that succeeded.
    pub response: Distribution,
    /// From their real start to their end, of those that succeeded.
    pub service: Distribution,
    /// From when calls were due to their real start, of all.
    pub lag: Distribution,
    /// From when calls were due to their end, of those that failed.
    pub failed_response: Distribution,
}

/// The records of all threads.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Measured {
    /// Length of the measured part, until the last answer.
    pub seconds: f64,
    /// In an open loop, how long calls were due; of a number of calls, until one more would have been.
    #[serde(default)]
    pub due_s: Option<f64>,
    /// How much of it went by while calls of the warm-up were still to be begun. Rates leave it out: none of these calls
    /// could be answered then.
    #[serde(default)]
    pub backlog_s: f64,
    /// In the order in which the functions were named.
    pub functions: Vec<FunctionCalls>,
    /// Requests by operation and by how many keys they had.
    pub requests: Vec<RequestCount>,
    /// By kind.
    pub failures: Vec<FailureCount>,
    /// How many of the keys were distinct; none if no key was asked.
    pub distinct: Option<Distinct>,
    /// How it went over time.
    pub series: Series,
}

impl Observed {
    /// Empty notes for calls of these functions. `expected` is how long the measured part will probably take;
    /// the intervals of the series follow from it (zero: not known, they start short). Notes that are to be
    /// merged need the same.
    #[must_use]
    pub fn new(functions: &[String], expected: Duration) -> Observed {
        let function = |name: &String| FunctionNotes {
            name: name.clone(),
            calls: 0,
            failed: 0,
            prompt: Distribution::new(),
            response: Distribution::new(),
            service: Distribution::new(),
            lag: Distribution::new(),
            failed_response: Distribution::new(),
        };
        Observed {
            functions: functions.iter().map(function).collect(),
            series: Series::new(expected),
            requests: Requests::new(),
            failures: Failures::new(),
            distinct: DistinctKeys::new(),
        }
    }

    /// Notes a call of a function. `at` is when it was due, since the measured part began; `response` the
    /// time from then to its end, `service` that from its real start, and `lag` the difference. Latencies of
    /// failed calls are kept apart.
    #[inline]
    pub fn call(
        &mut self,
        function: usize,
        at: Duration,
        response: Duration,
        service: Duration,
        lag: Duration,
        failed: bool,
    ) {
        let (at_ns, response_ns) = (nanoseconds(at), nanoseconds(response));
        self.series.call(at_ns, response_ns, failed);
        let notes = &mut self.functions[function];
        notes.calls += 1;
        if failed {
            notes.failed += 1;
            notes.failed_response.record(response_ns);
            notes.lag.record(nanoseconds(lag));
        } else if lag.is_zero() && response == service {
            notes.prompt.record(response_ns);
        } else {
            notes.response.record(response_ns);
            notes.service.record(nanoseconds(service));
            notes.lag.record(nanoseconds(lag));
        }
    }

    /// Notes a request that ended at `at` since the measured part began, and its failure if it failed.
    pub fn request(&mut self, at: Duration, finished: &Finished) {
        self.requests.note(finished);
        match &finished.outcome {
            Ok(_) => self.series.keys(nanoseconds(at), finished.keys as u64),
            Err(failure) => self.failures.note(failure.kind, &failure.reason),
        }
    }

    /// Notes a failure that was not one of a request, such as an error in the script.
    pub fn failure(&mut self, kind: &str, message: &str) {
        self.failures.note(kind, message);
    }

    /// Adds failures that were counted elsewhere.
    pub fn failures_of(&mut self, failures: &Failures) {
        self.failures.merge(failures);
    }

    /// Notes the keys of a request, for the share of distinct ones. Takes some 2 ns per key, 5 where all keys
    /// are few; the share is that of the keys which it was shown.
    pub fn unique(&mut self, keys: &[u64]) {
        self.distinct.note(keys);
    }

    /// Adds keys that were recorded elsewhere.
    pub fn unique_of(&mut self, keys: &DistinctKeys) {
        self.distinct.merge(keys);
    }

    /// Adds another thread's notes.
    ///
    /// # Panics
    /// When the other's were begun for other functions or another expected time.
    pub fn merge(&mut self, other: &Observed) {
        assert_eq!(self.functions.len(), other.functions.len(), "all threads have the same functions");
        for (mine, theirs) in self.functions.iter_mut().zip(&other.functions) {
            assert_eq!(mine.name, theirs.name, "all threads have the same functions");
            mine.calls += theirs.calls;
            mine.failed += theirs.failed;
            mine.prompt.merge(&theirs.prompt);
            mine.response.merge(&theirs.response);
            mine.service.merge(&theirs.service);
            mine.lag.merge(&theirs.lag);
            mine.failed_response.merge(&theirs.failed_response);
        }
        self.series.merge(&other.series);
        self.requests.merge(&other.requests);
        self.failures.merge(&other.failures);
        self.distinct.merge(&other.distinct);
    }

    /// Calls so far, failed ones too.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.functions.iter().map(|function| function.calls).sum()
    }

    /// Calls that failed so far.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.functions.iter().map(|function| function.failed).sum()
    }

    /// The result of the records; `measured` is the length of the measured part.
    #[must_use]
    pub fn measured(self, measured: Duration) -> Measured {
        let function = |notes: FunctionNotes| {
            let FunctionNotes { name, calls, failed, prompt, mut response, mut service, mut lag, .. } = notes;
            response.merge(&prompt);
            service.merge(&prompt);
            lag.record_many(0, prompt.count());
            FunctionCalls {
                name,
                calls,
                failed,
                response,
                service,
                lag,
                failed_response: notes.failed_response,
            }
        };
        Measured {
            seconds: measured.as_secs_f64(),
            due_s: None,
            backlog_s: 0.0,
            functions: self.functions.into_iter().map(function).collect(),
            requests: self.requests.counts(),
            failures: self.failures.counts(),
            distinct: self.distinct.summary(),
            series: self.series.until(measured),
        }
    }
}

impl Measured {
    /// Calls of all functions, failed ones too.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.functions.iter().map(|function| function.calls).sum()
    }

    /// Calls that failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.functions.iter().map(|function| function.failed).sum()
    }

    /// Response times of all functions.
    #[must_use]
    pub fn response(&self) -> Distribution {
        sum(self.functions.iter().map(|function| &function.response))
    }

    /// Service times of all functions.
    #[must_use]
    pub fn service(&self) -> Distribution {
        sum(self.functions.iter().map(|function| &function.service))
    }

    /// How late calls of all functions began.
    #[must_use]
    pub fn lag(&self) -> Distribution {
        sum(self.functions.iter().map(|function| &function.lag))
    }

    /// Keys of the requests that succeeded.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.requests.iter().map(|count| count.keys).sum()
    }

    /// Keys that had no row.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.requests.iter().map(|count| count.missing).sum()
    }

    /// Bytes asked and answered by the requests that succeeded.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.requests.iter().map(|count| count.bytes).sum()
    }

    /// The time that rates are of.
    fn rated_s(&self) -> f64 {
        self.seconds - self.backlog_s
    }

    /// Calls per second that succeeded.
    #[must_use]
    pub fn calls_per_s(&self) -> f64 {
        (self.calls() - self.failed()) as f64 / self.rated_s()
    }

    /// Keys per second of requests that succeeded.
    #[must_use]
    pub fn keys_per_s(&self) -> f64 {
        self.keys() as f64 / self.rated_s()
    }

    /// Bytes per second of requests that succeeded.
    #[must_use]
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes() as f64 / self.rated_s()
    }
}

fn sum<'a>(parts: impl Iterator<Item = &'a Distribution>) -> Distribution {
    let mut sum = Distribution::new();
    parts.for_each(|part| sum.merge(part));
    sum
}

/// Whole nanoseconds, at most those of 584 years.
#[inline]
fn nanoseconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(duration.subsec_nanos()))
}

#[cfg(test)]
mod tests;
