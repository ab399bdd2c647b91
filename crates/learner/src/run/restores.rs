//! How often a run puts its last save back on servers that have lost its rows. Knows no server and no save.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Restores within [`WITHIN`]. Servers that end more often need an operator.
pub const RESTORES_MAX: usize = 6;
/// The time in which so many restores may be.
const WITHIN: Duration = Duration::from_secs(3600);

/// The last restores of a run.
#[derive(Debug, Default)]
pub(super) struct Restores(VecDeque<Instant>);

impl Restores {
    /// Counts a restore, unless there were too many; returns how many there were within the last hour, with this one.
    pub(super) fn count(&mut self, now: Instant) -> Option<usize> {
        self.0.retain(|&restored| now.saturating_duration_since(restored) < WITHIN);
        if self.0.len() >= RESTORES_MAX {
            return None;
        }
        self.0.push_back(now);
        Some(self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_has_few_restores() {
        let (start, mut restores) = (Instant::now(), Restores::default());
        let at = |minutes: u64| start + Duration::from_secs(60 * minutes);
        for (minutes, expected) in [
            (0, Some(1)),
            (1, Some(2)),
            (2, Some(3)),
            (3, Some(4)),
            (58, Some(5)),
            (59, Some(6)),
            (59, None),
            (61, Some(5)),
            (61, Some(6)),
            (61, None),
        ] {
            assert_eq!(restores.count(at(minutes)), expected, "minute {minutes}");
        }
    }
}
