//! Spans of distributed traces: what took how long within which request, over several processes. Threads put them into
//! a bounded queue, from which an exporter takes them. Knows no protocol of exporters and no request.

use std::cell::Cell;
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

    /// The context of a `traceparent` header (W3C Trace Context), and whether its sender records the trace.
    /// `None`: the header is not valid.
    #[must_use]
    pub fn of_traceparent(text: &str) -> Option<(SpanContext, bool)> {
        let mut parts = text.trim().split('-');
        let mut hex = |digits: usize| {
            let part = parts.next().filter(|part| part.len() == digits)?;
            let is_hex = part.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
            u128::from_str_radix(part, 16).ok().filter(|_| is_hex)
        };
        let (version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)? as u64, hex(2)?);
        // Later versions may have more parts.
        let is_known = version != 0xff && (version > 0 || parts.next().is_none());
        (is_known && trace != 0 && span != 0).then_some((SpanContext { trace, span }, flags & 1 == 1))
    }
}

thread_local! {
    static PARENT: Cell<Option<SpanContext>> = const { Cell::new(None) };
}

/// Does work that belongs to a span: requests that this thread begins meanwhile are traced below it.
pub fn within<T>(span: Option<SpanContext>, work: impl FnOnce() -> T) -> T {
    /// Restores the span of before, also when the work panics.
    struct Before(Option<SpanContext>);
    impl Drop for Before {
        fn drop(&mut self) {
            PARENT.set(self.0);
        }
    }
    let _before = Before(PARENT.replace(span));
    work()
}

/// The span that the present work of this thread [belongs to](within).
#[must_use]
pub fn parent() -> Option<SpanContext> {
    PARENT.get()
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

impl TraceSpan {
    /// A part of the work within a span of this process, from one moment to another.
    #[must_use]
    pub fn stage(of: SpanContext, name: &str, began: Instant, took: Duration) -> TraceSpan {
        TraceSpan {
            context: of.child(),
            parent: Some(of.span),
            name: name.to_owned(),
            kind: SpanKind::Internal,
            start_unix_ns: unix_ns(began),
            took,
            attributes: Vec::new(),
            failure: None,
        }
    }
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
    fn a_header_of_another_process_is_read() {
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        let context =
            SpanContext { trace: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, span: 0xb7ad_6b71_6920_3331 };
        for (text, expected) in [
            (format!("00-{trace}-{span}-01"), Some((context, true))),
            (format!(" 00-{trace}-{span}-00 "), Some((context, false))),
            (format!("cc-{trace}-{span}-03-more"), Some((context, true))),
            (format!("00-{trace}-{span}-01-more"), None),
            (format!("ff-{trace}-{span}-01"), None),
            (format!("00-{trace}-{span}"), None),
            (format!("00-{}-{span}-01", trace.to_uppercase()), None),
            (format!("00-{trace}-{span}-+1"), None),
            (format!("00-{}-{span}-01", "0".repeat(32)), None),
            (format!("00-{trace}-{}-01", "0".repeat(16)), None),
            (String::new(), None),
        ] {
            assert_eq!(SpanContext::of_traceparent(&text), expected, "{text}");
        }
    }

    #[test]
    fn work_within_a_span_knows_it() {
        let (outer, inner) = (SpanContext::root(), SpanContext::root());
        assert_eq!(parent(), None);
        within(Some(outer), || {
            assert_eq!(within(Some(inner), parent), Some(inner));
            assert_eq!(parent(), Some(outer));
            assert_eq!(within(None, parent), None);
        });
        assert_eq!(parent(), None);
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
