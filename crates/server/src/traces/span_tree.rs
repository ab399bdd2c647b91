//! The spans of a request: one for the server, and one for each stage below it. Knows no exporter.

use std::time::{Duration, Instant};

use sanderling_observe::spans::{Attribute, SpanKind, unix_ns};
use sanderling_observe::{SpanContext, TraceSpan};

use super::RequestTrace;

/// The spans of a request that ended then. `parent` is the span of its client.
pub(super) fn spans(
    request: &RequestTrace,
    own: SpanContext,
    parent: Option<u64>,
    table: Option<String>,
    ended: Instant,
) -> Vec<TraceSpan> {
    let start_unix_ns = unix_ns(ended.checked_sub(request.total()).unwrap_or(ended));
    let mut attributes = vec![
        ("rpc.system", Attribute::Text("sanderling".to_owned())),
        ("rpc.method", Attribute::Text(request.command.to_owned())),
        ("client.address", Attribute::Text(request.peer.clone())),
        ("sanderling.frame_bytes", Attribute::Number(request.bytes as i64)),
    ];
    attributes.extend(table.map(|table| ("sanderling.table", Attribute::Text(table))));
    attributes.extend(request.keys.map(|keys| ("sanderling.keys", Attribute::Number(keys as i64))));
    let mut spans = vec![TraceSpan {
        context: own,
        parent,
        name: request.command.to_owned(),
        kind: SpanKind::Server,
        start_unix_ns,
        took: request.total(),
        attributes,
        failure: None,
    }];
    let mut before = Duration::ZERO;
    for &(stage, took) in &request.stages {
        spans.push(TraceSpan {
            context: own.child(),
            parent: Some(own.span),
            name: stage.to_owned(),
            kind: SpanKind::Internal,
            start_unix_ns: start_unix_ns + before.as_nanos() as u64,
            took,
            attributes: Vec::new(),
            failure: None,
        });
        before += took;
    }
    spans
}
