//! The requests under way that are traced, and their spans. A client that exports no traces pays a comparison per
//! request. Knows no connection.

use std::sync::Arc;
use std::time::Instant;

use sanderling_observe::spans::{self, Attribute, SpanKind, unix_ns};
use sanderling_observe::{SpanContext, SpanQueue, SpanSampler, TraceSpan};
use sanderling_wire::{Kind, Request, Trace};

/// See the top of this file.
#[derive(Debug)]
pub(super) struct Traced {
    sampler: Option<SpanSampler>,
    open: Vec<Open>,
}

/// A traced request without an answer.
#[derive(Debug)]
struct Open {
    tag: u64,
    server: usize,
    context: SpanContext,
    /// The span of the work that the request is a part of.
    parent: Option<u64>,
    kind: Kind,
    table: Option<u32>,
    keys: Option<usize>,
    began: Instant,
}

impl Traced {
    pub(super) fn new(spans: Option<&Arc<SpanQueue>>) -> Traced {
        Traced { sampler: spans.map(SpanQueue::sampler), open: Vec::new() }
    }

    /// A request to this server is begun.
    pub(super) fn begun(&mut self, server: usize, tag: u64, request: &Request<'_>) {
        let Some(sampler) = &mut self.sampler else { return };
        let parent = spans::parent();
        if parent.is_none() && !sampler.draw() {
            return;
        }
        let keys = match request {
            Request::Pull(pull) => Some(pull.keys.len()),
            Request::PullPooled(pull) => Some(pull.ragged.keys.len()),
            Request::Push(push) => Some(push.keys.len()),
            _ => None,
        };
        let context = parent.map_or_else(SpanContext::root, SpanContext::child);
        let (parent, kind, table) = (parent.map(|parent| parent.span), request.kind(), request.table());
        self.open.push(Open { tag, server, context, parent, kind, table, keys, began: Instant::now() });
    }

    /// The message that names the trace of a request, if it is traced.
    pub(super) fn message(&self, tag: u64) -> Option<Request<'static>> {
        let SpanContext { trace, span } = self.open.iter().find(|open| open.tag == tag)?.context;
        Some(Request::Trace(Trace { trace_high: (trace >> 64) as u64, trace_low: trace as u64, span }))
    }

    /// A request has its answer, or has failed for this reason.
    pub(super) fn ended(&mut self, tag: u64, servers: &[String], failure: impl FnOnce() -> Option<String>) {
        let Some(at) = self.open.iter().position(|open| open.tag == tag) else { return };
        let Open { server, context, parent, kind, table, keys, began, .. } = self.open.swap_remove(at);
        let Some(sampler) = &self.sampler else { return };
        let mut attributes = vec![
            ("rpc.system", Attribute::Text("sanderling".to_owned())),
            ("rpc.method", Attribute::Text(kind.name().to_owned())),
            ("server.address", Attribute::Text(servers.get(server).cloned().unwrap_or_default())),
        ];
        attributes.extend(table.map(|table| ("sanderling.table_number", Attribute::Number(table.into()))));
        attributes.extend(keys.map(|keys| ("sanderling.keys", Attribute::Number(keys as i64))));
        sampler.queue().add([TraceSpan {
            context,
            parent,
            name: kind.name().to_owned(),
            kind: SpanKind::Client,
            start_unix_ns: unix_ns(began),
            took: began.elapsed(),
            attributes,
            failure: failure(),
        }]);
    }
}
