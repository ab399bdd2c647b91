//! Spans of distributed traces: what took how long within which request, over several processes. Threads put them into
//! a bounded queue, from which an exporter takes them. Knows no protocol of exporters and no request.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::unique;

/// Spans that wait for the exporter at most. Further ones are dropped and counted.
pub const SPANS_WAITING_MAX: usize = 8192;

/// A span's place: its trace and its own number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanContext {
    /// The number of the trace, not 0.
    pub trace: u128,
    /// The number of the span within the trace, not 0.
    pub span: u64,
}

impl SpanContext {
    /// The first span of a new trace.
    #[must_use]
    pub fn root() -> SpanContext {
        let trace = u128::from(unique()) << 64 | u128::from(unique());
        SpanContext { trace: trace.max(1), span: unique().max(1) }
    }

    /// A further span of this trace.
    #[must_use]
    pub fn child(self) -> SpanContext {
        SpanContext { trace: self.trace, span: unique().max(1) }
    }
}

/// The side of a request that a span shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// A part of the work within a process.
    Internal,
    /// The work of a process on a request of another one.
    Server,
    /// A request to another process, until its answer.
    Client,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribute {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
}

/// A part of a trace that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceSpan {
    /// Its place.
    pub context: SpanContext,
    /// The number of the span that it is a part of. None: it is the root.
    pub parent: Option<u64>,
    /// Name of the work, such as `pull`.
    pub name: String,
    /// The side of the request.
    pub kind: SpanKind,
    /// Begin, in nanoseconds since 1970.
    pub start_unix_ns: u64,
    /// Duration.
    pub took: Duration,
    /// Names and values, such as the table.
    pub attributes: Vec<(&'static str, Attribute)>,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// A moment of this process in nanoseconds since 1970.
#[must_use]
pub fn unix_ns(at: Instant) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.saturating_sub(at.elapsed()).as_nanos()).unwrap_or(u64::MAX)
}

/// Spans on the way to an exporter.
#[derive(Debug)]
pub struct SpanQueue {
    waiting: Mutex<VecDeque<TraceSpan>>,
    every: AtomicU32,
    exported: AtomicU64,
    dropped: AtomicU64,
}

impl SpanQueue {
    /// A queue whose [samplers](SpanQueue::sampler) take one in so many requests; 0: none.
    #[must_use]
    pub fn new(every: u32) -> Arc<SpanQueue> {
        let (exported, dropped) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(SpanQueue { waiting: Mutex::default(), every: AtomicU32::new(every), exported, dropped })
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<TraceSpan>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds spans. Those without room are dropped and counted: no caller waits for an exporter.
    pub fn add(&self, spans: impl IntoIterator<Item = TraceSpan>) {
        let mut waiting = self.waiting();
        for span in spans {
            match waiting.len() < SPANS_WAITING_MAX {
                true => waiting.push_back(span),
                false => _ = self.dropped.fetch_add(1, Ordering::Relaxed),
            }
        }
    }

    /// Takes up to so many spans, the oldest first.
    #[must_use]
    pub fn take(&self, spans_max: usize) -> Vec<TraceSpan> {
        let mut waiting = self.waiting();
        let count = waiting.len().min(spans_max);
        waiting.drain(..count).collect()
    }

    /// Notes that spans reached the collector.
    pub fn note_exported(&self, spans: usize) {
        self.exported.fetch_add(spans as u64, Ordering::Relaxed);
    }

    /// Notes that spans which were taken did not reach the collector.
    pub fn note_dropped(&self, spans: usize) {
        self.dropped.fetch_add(spans as u64, Ordering::Relaxed);
    }

    /// Spans that reached the collector, and spans that were dropped.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.exported.load(Ordering::Relaxed), self.dropped.load(Ordering::Relaxed))
    }

    /// Draws the requests of one thread that are traced.
    #[must_use]
    pub fn sampler(self: &Arc<SpanQueue>) -> SpanSampler {
        SpanSampler { queue: Arc::clone(self), gap: 0, random: unique().max(1) }
    }
}

/// Draws the requests of one thread that are traced. A request that is not costs a subtraction.
#[derive(Debug)]
pub struct SpanSampler {
    queue: Arc<SpanQueue>,
    gap: u32,
    random: u64,
}

impl SpanSampler {
    /// Whether the next request is traced. Gaps vary, so that requests that take turns are drawn alike.
    pub fn draw(&mut self) -> bool {
        if self.gap > 0 {
            self.gap -= 1;
            return false;
        }
        let every = self.queue.every.load(Ordering::Relaxed);
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let span = 2 * u64::from(every.max(1)) - 1;
        self.gap = (self.random % span).try_into().unwrap_or(u32::MAX);
        every > 0
    }

    /// The queue of the spans.
    #[must_use]
    pub fn queue(&self) -> &SpanQueue {
        &self.queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(name: usize) -> TraceSpan {
        TraceSpan {
            context: SpanContext::root(),
            parent: None,
            name: name.to_string(),
            kind: SpanKind::Internal,
            start_unix_ns: 0,
            took: Duration::ZERO,
            attributes: Vec::new(),
            failure: None,
        }
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let queue = SpanQueue::new(1);
        queue.add((0..SPANS_WAITING_MAX + 5).map(span));
        assert_eq!(queue.counts(), (0, 5));
        let taken = queue.take(2);
        assert_eq!(taken.iter().map(|span| &*span.name).collect::<Vec<_>>(), ["0", "1"]);
        queue.note_exported(1);
        queue.note_dropped(1);
        queue.add([span(7)]);
        assert_eq!((queue.counts(), queue.take(usize::MAX).len()), ((1, 6), SPANS_WAITING_MAX - 1));
    }

    #[test]
    fn one_in_so_many_requests_is_drawn() {
        for (every, expected) in [(0, 0..1), (1, 10_000..10_001), (100, 70..130)] {
            let mut sampler = SpanQueue::new(every).sampler();
            let drawn = (0..10_000).filter(|_| sampler.draw()).count();
            assert!(expected.contains(&drawn), "{drawn} with one in {every}");
        }
    }
}
