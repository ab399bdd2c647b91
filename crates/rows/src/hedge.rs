//! When to ask a second replica, and whether the bounded share of such requests allows it. Knows no clock.

use std::str::FromStr;
use std::time::Duration;

use sanderling_observe::numbers;

/// Latencies that the quantile is taken of.
const SAMPLES: usize = 256;
/// Latencies before which no quantile is known.
const SAMPLES_MIN: usize = 32;
/// Requests after which the quantile is taken again.
const RENEW_EVERY: u64 = 32;
/// Second requests per request at most.
const SHARE: f64 = 0.05;
/// Second requests that may come at once after a quiet time.
const BURST: f64 = 10.0;

/// The time after which a second replica is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hedge {
    /// The time in which 95 % of the latest requests were answered.
    P95,
    /// A fixed time.
    After(Duration),
}

impl FromStr for Hedge {
    type Err = String;

    /// Parses `p95`, or a time such as `500us` or `2ms`.
    fn from_str(text: &str) -> Result<Hedge, String> {
        match numbers::time(text).filter(|time| !time.is_zero()) {
            _ if text == "p95" => Ok(Hedge::P95),
            Some(time) => Ok(Hedge::After(time)),
            None => Err(format!("{text:?}: must be p95, or a time with a unit, such as 500us")),
        }
    }
}

/// Decides about second requests.
#[derive(Debug)]
pub(crate) struct Hedger {
    hedge: Option<Hedge>,
    tokens: f64,
    /// The latest latencies, in no order.
    latencies: Vec<Duration>,
    count: u64,
    p95: Option<Duration>,
}

impl Hedger {
    pub(crate) fn new(hedge: Option<Hedge>) -> Hedger {
        Hedger { hedge, tokens: 0.0, latencies: Vec::new(), count: 0, p95: None }
    }

    /// Begins a request. Returns the time after which a second one is sent, if it may be.
    pub(crate) fn wait(&mut self) -> Option<Duration> {
        let wait = match self.hedge? {
            Hedge::P95 => self.p95,
            Hedge::After(time) => Some(time),
        };
        self.tokens = (self.tokens + SHARE).min(BURST);
        wait.filter(|_| self.tokens >= 1.0)
    }

    /// Notes that a second request was sent.
    pub(crate) fn spend(&mut self) {
        self.tokens -= 1.0;
    }

    /// Notes the time of an answer, from the first request on.
    pub(crate) fn note(&mut self, took: Duration) {
        if self.hedge != Some(Hedge::P95) {
            return;
        }
        match self.latencies.len() < SAMPLES {
            true => self.latencies.push(took),
            false => self.latencies[(self.count % SAMPLES as u64) as usize] = took,
        }
        self.count += 1;
        if self.latencies.len() >= SAMPLES_MIN && self.count.is_multiple_of(RENEW_EVERY) {
            let mut sorted = self.latencies.clone();
            sorted.sort_unstable();
            self.p95 = sorted.get(sorted.len() * 95 / 100).copied();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_a_quantile_and_second_requests_are_few() {
        let mut hedger = Hedger::new(Some(Hedge::P95));
        let mut second = 0;
        for request in 0..10_000_u64 {
            // Every request is slow, and would be repeated.
            if hedger.wait().is_some() {
                hedger.spend();
                second += 1;
            }
            hedger.note(Duration::from_millis(1 + request % 100));
        }
        assert!((480..=510).contains(&second), "{second}");
        let wait = hedger.p95.expect("enough samples");
        assert!((90..=99).contains(&wait.as_millis()), "{wait:?}");
        assert_eq!(Hedger::new(None).wait(), None);
    }

    #[test]
    fn times_are_read() {
        for (text, expected) in [
            ("p95", Some(Hedge::P95)),
            ("500us", Some(Hedge::After(Duration::from_micros(500)))),
            ("2ms", Some(Hedge::After(Duration::from_millis(2)))),
            ("0us", None),
            ("p99", None),
            ("5", None),
            ("", None),
        ] {
            assert_eq!(text.parse::<Hedge>().ok(), expected, "{text}");
        }
    }
}
