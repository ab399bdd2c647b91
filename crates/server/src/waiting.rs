//! How long requests waited before they were read, in sockets, rings and buffers of either side.
//!
//! The client sends its own clock with some requests; the clocks need not agree. The smallest clock difference belongs
//! to a request that did not wait. Any excess over it is waiting time, as in LEDBAT (RFC 6817).

use std::time::{Duration, Instant};

/// Assumed clock drift in parts per million: an old difference says less and less.
const DRIFT_PPM: i64 = 200;

/// An estimate of the client's clock.
#[derive(Debug)]
pub(crate) struct Waiting {
    epoch: Instant,
    /// Parts per million. 0: both processes read one clock.
    drift_ppm: i64,
    /// Smallest difference (server's clock less client's, in microseconds) and the time of its last update.
    least: Option<(i64, i64)>,
    /// Send time of the latest requests, by the client's clock.
    sent_us: i64,
}

impl Waiting {
    /// An estimate without data. `one_clock`: client and server are on one machine.
    pub(crate) fn new(one_clock: bool, now: Instant) -> Waiting {
        let drift_ppm = if one_clock { 0 } else { DRIFT_PPM };
        Waiting { epoch: now, drift_ppm, least: None, sent_us: 0 }
    }

    fn us(&self, now: Instant) -> i64 {
        now.saturating_duration_since(self.epoch).as_micros() as i64
    }

    /// Records the client's send time for the requests that are read now.
    pub(crate) fn note(&mut self, sent_us: u64, now: Instant) {
        let now_us = self.us(now);
        self.sent_us = sent_us as i64;
        let found = now_us.wrapping_sub(self.sent_us);
        let least = match self.least {
            Some((least, at_us)) => {
                found.min(least.saturating_add((now_us - at_us).saturating_mul(self.drift_ppm) / 1_000_000))
            }
            None => found,
        };
        self.least = Some((least, now_us));
    }

    /// Waiting time of a request that starts now. Zero while the client has sent no time.
    pub(crate) fn waited(&self, now: Instant) -> Duration {
        let Some((least, _)) = self.least else { return Duration::ZERO };
        let us = self.us(now).wrapping_sub(self.sent_us).saturating_sub(least);
        Duration::from_micros(us.max(0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1000;

    /// Requests as (send time by a clock that is `ahead` of ours, read time) in microseconds, and the expected waits.
    fn check(one_clock: bool, ahead: i64, requests: &[(i64, i64)], expected: &[i64]) {
        let start = Instant::now();
        let mut waiting = Waiting::new(one_clock, start);
        for (&(sent, read), &expected) in requests.iter().zip(expected) {
            let now = start + Duration::from_micros(read as u64);
            waiting.note(sent.wrapping_add(ahead) as u64, now);
            assert_eq!(waiting.waited(now).as_micros() as i64, expected, "{ahead}: {sent} {read}");
        }
    }

    #[test]
    fn waiting_is_what_exceeds_the_least_difference_of_the_clocks() {
        for ahead in [0, 5_000_000, -7, i64::MAX - 3, i64::MIN] {
            let requests = [(0, 50), (1000, 1050), (2000, 2250), (3000, 103_050), (4000, 104_030)];
            check(true, ahead, &requests, &[0, 0, 200, 100_000, 99_980]);
            // The first request was late itself. A later one that was not late shows it.
            check(
                true,
                ahead,
                &[(0, 300 * MS), (301 * MS, 302 * MS), (303 * MS, 403 * MS)],
                &[0, 0, 99 * MS],
            );
        }
    }

    /// A client's clock that is 100 ppm slow looks for a while as if its requests waited.
    #[test]
    fn a_clock_that_drifts_is_no_waiting() {
        let minute = 60 * 1000 * MS;
        let requests: Vec<(i64, i64)> =
            (0..120).map(|at| (at * minute, at * minute + at * minute / 10_000)).collect();
        check(false, 0, &requests, &[0; 120]);
    }
}
