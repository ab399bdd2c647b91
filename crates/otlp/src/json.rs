//! Spans as the JSON form of OTLP: ids as hexadecimal digits, 64-bit numbers as text. Knows no network.

use sanderling_observe::spans::{Attribute, SpanKind};
use sanderling_observe::{SpanContext, TraceSpan};
use serde_json::{Value, json};

use crate::Resource;

/// Code of the status of a span that failed.
const STATUS_ERROR: u32 = 2;

/// A request for some spans of a process.
pub(crate) fn request(resource: &Resource, spans: &[TraceSpan]) -> String {
    let attributes = [
        ("service.name", &resource.service),
        ("service.instance.id", &resource.instance),
        ("host.name", &resource.host),
    ];
    let attributes: Vec<Value> = attributes
        .into_iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(name, text)| attribute(name, &Attribute::Text(text.clone())))
        .collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": attributes},
        "scopeSpans": [{
            "scope": {"name": "sanderling", "version": env!("CARGO_PKG_VERSION")},
            "spans": spans.iter().map(span).collect::<Vec<_>>(),
        }],
    }]})
    .to_string()
}

fn span(span: &TraceSpan) -> Value {
    let SpanContext { trace, span: id } = span.context;
    let end_unix_ns = u128::from(span.start_unix_ns) + span.took.as_nanos();
    let kind = match span.kind {
        SpanKind::Internal => 1,
        SpanKind::Server => 2,
        SpanKind::Client => 3,
    };
    let attributes: Vec<Value> = span.attributes.iter().map(|(name, value)| attribute(name, value)).collect();
    let mut object = json!({
        "traceId": format!("{trace:032x}"),
        "spanId": format!("{id:016x}"),
        "name": span.name,
        "kind": kind,
        "startTimeUnixNano": span.start_unix_ns.to_string(),
        "endTimeUnixNano": end_unix_ns.to_string(),
        "attributes": attributes,
    });
    if let Some(parent) = span.parent {
        object["parentSpanId"] = format!("{parent:016x}").into();
    }
    if let Some(failure) = &span.failure {
        object["status"] = json!({"code": STATUS_ERROR, "message": failure});
    }
    object
}

fn attribute(name: &str, value: &Attribute) -> Value {
    let value = match value {
        Attribute::Text(text) => json!({"stringValue": text}),
        Attribute::Number(number) => json!({"intValue": number.to_string()}),
    };
    json!({"key": name, "value": value})
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_span_has_the_form_of_the_protocol() {
        let failed = TraceSpan {
            context: SpanContext { trace: 0xab << 64 | 7, span: 9 },
            parent: Some(3),
            name: "pull".to_owned(),
            kind: SpanKind::Client,
            start_unix_ns: 1_700_000_000_000_000_001,
            took: Duration::from_nanos(4),
            attributes: vec![("rpc.system", Attribute::Text("s".to_owned())), ("keys", Attribute::Number(5))],
            failure: Some("busy".to_owned()),
        };
        let resource =
            Resource { service: "ps".to_owned(), instance: "0/1".to_owned(), ..Resource::default() };
        let text = request(&resource, &[failed]);
        let found: Value = serde_json::from_str(&text).expect("JSON");
        let of = &found["resourceSpans"][0];
        assert_eq!(
            of["resource"]["attributes"],
            json!([
                {"key": "service.name", "value": {"stringValue": "ps"}},
                {"key": "service.instance.id", "value": {"stringValue": "0/1"}},
            ])
        );
        assert_eq!(
            of["scopeSpans"][0]["spans"],
            json!([{
                "traceId": "00000000000000ab0000000000000007",
                "spanId": "0000000000000009",
                "parentSpanId": "0000000000000003",
                "name": "pull",
                "kind": 3,
                "startTimeUnixNano": "1700000000000000001",
                "endTimeUnixNano": "1700000000000000005",
                "attributes": [
                    {"key": "rpc.system", "value": {"stringValue": "s"}},
                    {"key": "keys", "value": {"intValue": "5"}},
                ],
                "status": {"code": 2, "message": "busy"},
            }])
        );
    }
}
