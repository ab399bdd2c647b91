//! Traces of requests: which requests are traced, and their spans. A request that is not traced costs a look for a header and
//! a subtraction. Knows no exporter.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::HeaderMap;
use sanderling_observe::spans::{Attribute, SpanKind, unix_ns};
use sanderling_observe::{SpanContext, SpanQueue, SpanSampler, TraceSpan};

use crate::slow::StageTimes;

/// The header by which a client names its trace (W3C Trace Context), of HTTP and gRPC alike.
const TRACEPARENT: &str = "traceparent";

/// The traces of a server.
#[derive(Debug)]
pub(crate) struct Traces {
    sampler: Mutex<SpanSampler>,
    spans: Arc<SpanQueue>,
}

/// Whether a request is traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestTrace {
    /// Its client records no trace of it.
    Refused,
    /// Only if it turns out to be slow.
    IfSlow,
    /// With its own span, and that of its client.
    Yes(SpanContext, Option<u64>),
}

/// A request that has ended, as its span tells it.
#[derive(Debug)]
pub(crate) struct Ended<'a> {
    pub(crate) endpoint: &'static str,
    pub(crate) protocol: &'static str,
    pub(crate) model: Option<&'a (String, u64)>,
    pub(crate) code: &'a str,
    pub(crate) rows: u64,
    pub(crate) took: Duration,
    pub(crate) times: &'a StageTimes,
}

impl Traces {
    pub(crate) fn new(spans: &Arc<SpanQueue>) -> Traces {
        Traces { sampler: Mutex::new(spans.sampler()), spans: Arc::clone(spans) }
    }

    /// Spans that reached the collector, and spans that were dropped.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.spans.counts()
    }

    /// Whether a request that begins is traced: as its client says, else one in so many.
    pub(crate) fn begin(&self, headers: &HeaderMap) -> RequestTrace {
        let header = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
        match header.and_then(SpanContext::of_traceparent) {
            Some((client, true)) => RequestTrace::Yes(client.child(), Some(client.span)),
            Some((_, false)) => RequestTrace::Refused,
            None if self.sampler.lock().unwrap_or_else(PoisonError::into_inner).draw() => {
                RequestTrace::Yes(SpanContext::root(), None)
            }
            None => RequestTrace::IfSlow,
        }
    }

    /// Exports the spans of a request, if it is traced; returns its trace.
    pub(crate) fn end(&self, trace: RequestTrace, is_slow: bool, request: &Ended<'_>) -> Option<u128> {
        let (own, parent) = match trace {
            RequestTrace::Yes(own, parent) => (own, parent),
            RequestTrace::IfSlow if is_slow => (SpanContext::root(), None),
            RequestTrace::IfSlow | RequestTrace::Refused => return None,
        };
        let Ended { endpoint, protocol, model, code, rows, took, times } = *request;
        let stages = times.stages();
        let text = |text: &str| Attribute::Text(text.to_owned());
        let is_grpc = protocol == "grpc";
        let code_of = if is_grpc { "rpc.grpc.status_code" } else { "http.response.status_code" };
        let mut attributes = vec![("network.protocol.name", text(protocol)), (code_of, text(code))];
        if let Some((model, version)) = model {
            attributes.extend([
                ("sanderling.model", text(model)),
                ("sanderling.version", Attribute::Number(*version as i64)),
            ]);
        }
        attributes.push(("sanderling.rows", Attribute::Number(rows as i64)));
        let is_answered = if is_grpc { code == "Ok" } else { code.starts_with('2') };
        let root = TraceSpan {
            context: own,
            parent,
            name: endpoint.to_owned(),
            kind: SpanKind::Server,
            start_unix_ns: unix_ns(times.began()),
            took,
            attributes,
            failure: (!is_answered).then(|| code.to_owned()),
        };
        let stages = stages.into_iter().map(|(name, began, took)| TraceSpan::stage(own, name, began, took));
        self.spans.add(std::iter::once(root).chain(stages));
        Some(own.trace)
    }
}
