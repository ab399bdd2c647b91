//! The spans of pushes on their way to the followers. Knows no exporter.

use std::collections::VecDeque;
use std::time::Instant;

use sanderling_observe::spans::{Attribute, SpanKind, unix_ns};
use sanderling_observe::{SpanContext, TraceSpan};
use sanderling_replica::Push;

/// Traced pushes without an answer at most. Followers do not learn the spans of earlier ones.
const TRACED_MAX: usize = 64;

/// The traced pushes that followers have not acknowledged yet.
#[derive(Debug, Default)]
pub(super) struct TracedPushes(VecDeque<TracedPush>);

#[derive(Debug)]
struct TracedPush {
    request: u64,
    /// Client and sequence.
    push: (u64, u64),
    span: SpanContext,
}

impl TracedPushes {
    /// Keeps the span of a push, if it has one.
    pub(super) fn add(&mut self, request: u64, push: &Push, span: Option<SpanContext>) {
        let Some(span) = span else { return };
        if self.0.len() == TRACED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(TracedPush { request, push: (push.client, push.sequence), span });
    }

    /// The spans by client and sequence.
    pub(super) fn spans(&self) -> Vec<((u64, u64), SpanContext)> {
        self.0.iter().map(|traced| (traced.push, traced.span)).collect()
    }

    /// A request was answered.
    pub(super) fn end(&mut self, request: u64) {
        if !self.0.is_empty() {
            self.0.retain(|traced| traced.request != request);
        }
    }
}

/// The span of a follower that has taken a push of this span of the primary.
pub(super) fn replica_span(of: SpanContext, came: Instant, server: u32, primary: u32) -> TraceSpan {
    TraceSpan {
        context: of.child(),
        parent: Some(of.span),
        name: "replicate".to_owned(),
        kind: SpanKind::Server,
        start_unix_ns: unix_ns(came),
        took: came.elapsed(),
        attributes: vec![
            ("rpc.system", Attribute::Text("sanderling".to_owned())),
            ("sanderling.server", Attribute::Number(server.into())),
            ("sanderling.primary", Attribute::Number(primary.into())),
        ],
        failure: None,
    }
}
