//! Progress for a log: a line whenever a piece of work has said nothing for a while. Knows no terminal and no clock.

use std::time::Duration;

use indicatif::{BinaryBytes, HumanDuration};
use sanderling_observe::numbers::count;

/// Something is said at least so often.
pub(super) const LINE_EVERY: Duration = Duration::from_secs(10);

/// How far a piece of work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// Bytes that were read, and of how many if known.
    Bytes { read: u64, total: Option<u64> },
    /// Rows that were used, and of how many if known.
    Rows { used: u64, total: Option<u64> },
    /// Steps of about the same length.
    Steps { done: u64, of: u64 },
}

impl Done {
    /// Done, and in all if known.
    fn numbers(self) -> (u64, Option<u64>) {
        match self {
            Done::Bytes { read, total } => (read, total),
            Done::Rows { used, total } => (used, total),
            Done::Steps { done, of } => (done, Some(of)),
        }
    }
}

/// The piece of work under way, and when something was said last.
#[derive(Debug, Default)]
pub(super) struct Lines {
    what: String,
    /// Steps of what are counted; their names say where the piece is at.
    steps: Option<u64>,
    /// When it began, and what had been done of it by then.
    began: (Duration, u64),
    said: Duration,
}

impl Lines {
    /// Another line was printed.
    pub(super) fn note_line(&mut self, now: Duration) {
        self.said = now;
    }

    /// The line to print, if it is time for one. `now` is the time since any fixed moment.
    pub(super) fn next(&mut self, what: &str, done: Done, now: Duration) -> Option<String> {
        let steps = if let Done::Steps { of, .. } = done { Some(of) } else { None };
        if self.steps != steps || (steps.is_none() && self.what != what) {
            (self.steps, self.began) = (steps, (now, done.numbers().0));
        }
        if self.what != what {
            what.clone_into(&mut self.what);
        }
        if now.saturating_sub(self.said) < LINE_EVERY {
            return None;
        }
        self.said = now;
        Some(self.line(done, now))
    }

    fn line(&self, done: Done, now: Duration) -> String {
        let (at, total) = done.numbers();
        let (began, before) = self.began;
        let elapsed = now.saturating_sub(began).as_secs_f64();
        let per_s = if elapsed > 0.0 { at.saturating_sub(before) as f64 / elapsed } else { 0.0 };
        let share =
            total.filter(|total| *total > 0).map(|total| format!("{} %", at.min(total) * 100 / total));
        let left = total.filter(|_| per_s > 0.0).map(|total| {
            let left = Duration::try_from_secs_f64(total.saturating_sub(at) as f64 / per_s);
            format!("about {} left", HumanDuration(left.unwrap_or(Duration::MAX)))
        });
        let amount = match done {
            Done::Steps { .. } => None,
            Done::Bytes { read, total: None } => Some(format!("{} read", BinaryBytes(read))),
            Done::Bytes { read, total: Some(total) } => {
                Some(format!("{} of {}", BinaryBytes(read), BinaryBytes(total)))
            }
            Done::Rows { used, total: None } => Some(format!("{} rows", count(used))),
            Done::Rows { used, total: Some(total) } => {
                Some(format!("{} of {} rows", count(used), count(total)))
            }
        };
        let speed = match done {
            Done::Steps { .. } => None,
            Done::Bytes { .. } => Some(format!("{}/s", BinaryBytes(per_s as u64))),
            Done::Rows { .. } => Some(format!("{} rows/s", count(per_s as u64))),
        };
        let parts: Vec<String> = [share, amount, speed, left].into_iter().flatten().collect();
        format!("{}: {}", self.what, parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_log_hears_of_a_pass_at_least_every_ten_seconds() {
        let mut lines = Lines::default();
        let mib = |read: u64| Done::Bytes { read: read << 20, total: Some(400 << 20) };
        let said: Vec<(u64, String)> = (0..=100)
            .filter_map(|second| Some((second, lines.next("pass 1/2", mib(2 * second), at(second))?)))
            .collect();
        let seconds: Vec<u64> = said.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]);
        assert_eq!(said[9].1, "pass 1/2: 50 %, 200.00 MiB of 400.00 MiB, 2.00 MiB/s, about 2 minutes left");
    }

    #[test]
    fn a_line_of_metrics_counts() {
        let mut lines = Lines::default();
        let none = Done::Bytes { read: 0, total: None };
        assert_eq!(lines.next("pass 1/1", none, at(0)), None);
        lines.note_line(at(9));
        assert_eq!(lines.next("pass 1/1", none, at(18)), None);
        assert!(lines.next("pass 1/1", none, at(19)).is_some());
    }

    #[test]
    fn a_stream_has_no_share_and_no_end() {
        let mut lines = Lines::default();
        lines.next("pass 1/1", Done::Bytes { read: 0, total: None }, at(0));
        let line = lines.next("pass 1/1", Done::Bytes { read: 20 << 20, total: None }, at(20));
        assert_eq!(line.as_deref(), Some("pass 1/1: 20.00 MiB read, 1.00 MiB/s"));
    }

    #[test]
    fn rows_have_a_share_once_their_number_is_known() {
        let rows = |used, total| Done::Rows { used, total };
        let mut lines = Lines::default();
        lines.next("pass 1/2", rows(0, None), at(0));
        let line = lines.next("pass 1/2", rows(30_000, None), at(20));
        assert_eq!(line.as_deref(), Some("pass 1/2: 30,000 rows, 1,500 rows/s"));
        lines.next("pass 2/2", rows(0, Some(60_000)), at(21));
        let line = lines.next("pass 2/2", rows(20_000, Some(60_000)), at(31));
        let expected = "pass 2/2: 33 %, 20,000 of 60,000 rows, 2,000 rows/s, about 20 seconds left";
        assert_eq!(line.as_deref(), Some(expected));
    }

    /// A new input starts with a new pace.
    #[test]
    fn the_pace_is_that_of_the_piece_at_hand() {
        let mut lines = Lines::default();
        lines.next("pass 1/1", Done::Steps { done: 0, of: 4 }, at(0));
        lines.next("pass 1/1", Done::Steps { done: 4, of: 4 }, at(10));
        lines.next("validating", Done::Steps { done: 0, of: 10 }, at(11));
        let line = lines.next("validating", Done::Steps { done: 2, of: 10 }, at(21));
        assert_eq!(line.as_deref(), Some("validating: 20 %, about 40 seconds left"));
    }
}
