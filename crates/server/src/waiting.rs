//! How long the requests of one connection waited before they were read, in sockets, rings and the buffers of either side. The
//! client says now and then when it sent what follows, by its own clock; clocks need not agree. Knows no request.
//!
//! The least difference between both clocks that was ever seen is that of a request that waited for nothing. What a later one
//! has more than that is its waiting, as LEDBAT (RFC 6817) measures delays.

use std::time::{Duration, Instant};

/// Two clocks drift apart by at most so much, in millionths: an old difference says less and less.
const DRIFT_PPM: i64 = 200;

/// What is known of the client's clock.
#[derive(Debug)]
pub(crate) struct Waiting {
    epoch: Instant,
    /// In millionths: 0 if both processes read one clock.
    drift_ppm: i64,
    /// Least difference, server's clock less client's, in microseconds, and when it was looked at.
    least: Option<(i64, i64)>,
    /// When the last requests were sent, by the client's clock.
    sent_us: i64,
}

impl Waiting {
    /// `one_clock`: client and server are on one machine.
    pub(crate) fn new(one_clock: bool, now: Instant) -> Waiting {
        let drift_ppm = if one_clock { 0 } else { DRIFT_PPM };
        Waiting { epoch: now, drift_ppm, least: None, sent_us: 0 }
    }

    fn us(&self, now: Instant) -> i64 {
        now.saturating_duration_since(self.epoch).as_micros() as i64
    }

    /// The client says by its clock when it sent what follows; that is read now.
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

    /// Waiting time of a request that is taken up now; zero while the client has said nothing.
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

    /// Requests as (sent by a clock that is `ahead` of ours, read), in microseconds; how long each waited.
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
            // The first was late itself: it is known once one is not.
            check(
                true,
                ahead,
                &[(0, 300 * MS), (301 * MS, 302 * MS), (303 * MS, 403 * MS)],
                &[0, 0, 99 * MS],
            );
        }
    }

    /// A client's clock that is slow by 100 millionths looks for a while as if its requests waited.
    #[test]
    fn a_clock_that_drifts_is_no_waiting() {
        let minute = 60 * 1000 * MS;
        let requests: Vec<(i64, i64)> =
            (0..120).map(|at| (at * minute, at * minute + at * minute / 10_000)).collect();
        check(false, 0, &requests, &[0; 120]);
    }
}
