//! The trainer's span of a minibatch of a hub, from its arrival until it is used up and pushed, with its stages. Knows no
//! hub and no table.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sanderling_observe::spans::{Attribute, SpanKind, unix_ns};
use sanderling_observe::{SpanContext, SpanQueue, TraceSpan};

/// The span of a minibatch that was drawn.
#[derive(Debug)]
pub(crate) struct Step {
    context: SpanContext,
    spans: Arc<SpanQueue>,
    began: Instant,
    /// The stages that have ended.
    ends: Mutex<Vec<(&'static str, Instant)>>,
}

impl Step {
    /// Begins now.
    pub(crate) fn begin(spans: &Arc<SpanQueue>) -> Step {
        let (began, ends) = (Instant::now(), Mutex::default());
        Step { context: SpanContext::root(), spans: Arc::clone(spans), began, ends }
    }

    /// The span, below which others belong.
    pub(crate) fn context(&self) -> SpanContext {
        self.context
    }

    /// A stage ends, and the next begins.
    pub(crate) fn end_stage(&self, name: &'static str) {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).push((name, Instant::now()));
    }

    /// Exports the span. `numbers` say which minibatch it was.
    pub(crate) fn end(&self, hub: &str, numbers: &[(&'static str, u64)]) {
        let Step { context, spans, began, ends } = self;
        let numbers = numbers.iter().map(|(name, number)| (*name, Attribute::Number(*number as i64)));
        let attributes = std::iter::once(("server.address", Attribute::Text(hub.to_owned()))).chain(numbers);
        let root = TraceSpan {
            context: *context,
            parent: None,
            name: "step".to_owned(),
            kind: SpanKind::Internal,
            start_unix_ns: unix_ns(*began),
            took: began.elapsed(),
            attributes: attributes.collect(),
            failure: None,
        };
        let mut since = *began;
        let ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
        let stages = ends.iter().map(|(name, end)| {
            let began = std::mem::replace(&mut since, *end);
            let took: Duration = end.saturating_duration_since(began);
            TraceSpan::stage(*context, name, began, took)
        });
        spans.add(std::iter::once(root).chain(stages));
    }
}
