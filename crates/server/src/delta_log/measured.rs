//! Numbers of the delta log for metrics. Knows no file.

use std::time::{Duration, Instant};

use sanderling_observe::Latency;

use crate::clock::unix_ms;

/// A group that was written.
#[derive(Debug, Clone, Copy)]
pub(super) struct WrittenGroup {
    pub(super) bytes: u64,
    /// The time of writing its end and syncing it.
    pub(super) sync: Duration,
}

/// The numbers of a log since the start.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) groups: u64,
    pub(super) bytes: u64,
    pub(super) sync: Latency,
    /// Changes before this moment are on disk.
    pub(super) synced: Instant,
    /// The time at which the log failed first, of a log that fails now; otherwise 0.
    pub(super) refused_since_unix_ms: u64,
}

impl Measured {
    pub(super) fn new() -> Measured {
        Measured {
            groups: 0,
            bytes: 0,
            sync: Latency::default(),
            synced: Instant::now(),
            refused_since_unix_ms: 0,
        }
    }

    pub(super) fn add(&mut self, group: WrittenGroup) {
        self.groups += 1;
        self.bytes += group.bytes;
        self.sync.record(group.sync);
    }

    /// Notes an attempt that began at `start`.
    pub(super) fn note(&mut self, start: Instant, has_failed: bool) {
        if !has_failed {
            (self.synced, self.refused_since_unix_ms) = (start, 0);
        } else if self.refused_since_unix_ms == 0 {
            self.refused_since_unix_ms = unix_ms();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log that fails again goes on to refuse; one that works has every change from before the attempt on disk.
    #[test]
    fn a_refusal_has_the_time_of_its_first_failure() {
        let mut measured = Measured::new();
        let (before, start) = (measured.synced, Instant::now());
        measured.note(start, true);
        let since = measured.refused_since_unix_ms;
        assert!(since > 0 && measured.synced == before);
        measured.refused_since_unix_ms = 7;
        measured.note(start, true);
        assert_eq!(measured.refused_since_unix_ms, 7);
        measured.note(start, false);
        assert_eq!((measured.refused_since_unix_ms, measured.synced), (0, start));
        measured.add(WrittenGroup { bytes: 40, sync: Duration::from_millis(3) });
        measured.add(WrittenGroup { bytes: 2, sync: Duration::from_millis(1) });
        assert_eq!((measured.groups, measured.bytes, measured.sync.summary().count), (2, 42, 2));
    }
}
