//! The progress of drains whose subscribers ask for pages ([`super::pages`]).

use std::time::{Duration, Instant};

/// The progress of drains by pages.
#[derive(Debug)]
pub(super) struct Progress {
    /// Line of the marks at which an unfinished drain goes on.
    pub(super) line: usize,
    /// Start of the drain that is unfinished, or of the last one.
    pub(super) began: Instant,
    /// End of the marks that were taken last.
    pub(super) drained: Option<Instant>,
}

impl Progress {
    pub(super) fn new() -> Progress {
        Progress { line: 0, began: Instant::now(), drained: None }
    }

    /// Notes that a drain of all marks, which began then, has taken them.
    pub(super) fn note_whole(&mut self, began: Instant) {
        *self = Progress { line: 0, began, drained: Some(Instant::now()) };
    }

    /// Whether all marks of so long ago were taken.
    pub(super) fn is_fresh(&self, fresh: Duration) -> bool {
        self.line == 0 && self.drained.is_some() && self.began.elapsed() <= fresh
    }
}
