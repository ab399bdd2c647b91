//! Sampled requests whose replies wait, for other replicas or for the log. Knows no replica.

use std::time::{Duration, Instant};

use sanderling_wire::Kind;

use super::{Marks, Noted, Tracer};

/// A sampled request while its reply waits.
#[derive(Debug)]
pub(crate) struct HeldTrace {
    marks: Marks,
    bytes: usize,
    began: Instant,
    /// The stage that the reply waits in, and since when.
    stage: &'static str,
    since: Instant,
}

impl Tracer {
    /// The reply of the request under way begins to wait. None: the request is not sampled.
    pub(crate) fn hold(
        &mut self,
        bytes: usize,
        began: Instant,
        stage: &'static str,
        since: Instant,
    ) -> Option<Box<HeldTrace>> {
        let marks = self.marks.take()?;
        Some(Box::new(HeldTrace { marks, bytes, began, stage, since }))
    }

    /// Such a reply is on its way to the client. Of one that was not sampled it is noted if it is slow.
    pub(crate) fn end_held(&self, kind: Kind, peer: &str, took: Duration, held: Option<Box<HeldTrace>>) {
        let Some(held) = held else { return self.end_late(kind, peer, took) };
        let HeldTrace { marks, bytes, began, stage, since } = *held;
        let (ended, later) = (Instant::now(), Some((stage, since)));
        self.note(Noted { marks: Some(marks), kind, bytes, began, ended, later }, peer);
    }
}
