//! Traces of requests to a server of predictions: as a client's `traceparent` says, else one in so many.

use std::time::Instant;

use sanderling_testkit::{CollectedSpan, Collector};

use super::*;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// The request's own span, and the names of its stages.
fn tree(all: &[CollectedSpan], trace: &str) -> Option<(CollectedSpan, Vec<String>)> {
    let of: Vec<&CollectedSpan> = all.iter().filter(|span| span.text("traceId") == trace).collect();
    let root = of.iter().find(|span| span.span["kind"] == 2)?;
    let stages = of.iter().filter(|span| span.text("parentSpanId") == root.text("spanId"));
    let mut stages: Vec<_> = stages.map(|span| span.text("name").to_owned()).collect();
    stages.sort();
    Some(((*root).clone(), stages))
}

/// A folder with a trained model of one feature.
fn trained() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..60).map(|row| format!("{},u{}\n", row % 2, row % 7)).collect();
    std::fs::write(folder.path().join("d.csv"), format!("label,user\n{rows}")).unwrap();
    let config = "data.train = \"d.csv\"\nlabel.column = \"label\"\nmodel.type = \"lr\"\n\
                  feature = [{ column = \"user\", type = \"categorical\" }]";
    std::fs::write(folder.path().join("c.toml"), config).unwrap();
    let (code, _, said) = run(folder.path(), "train c.toml --name m --quiet");
    assert_eq!(code, Some(0), "{said}");
    folder
}

#[test]
fn requests_are_traced_as_their_clients_say() {
    let (folder, collector) = (trained(), Collector::start());
    // None but those that ask for it, since the first draw of one in so many is within twice as many.
    let options = format!("runs/m/model --otlp {} --otlp-every 1000000 --slow 0s", collector.url());
    let serve = Serve::start(folder.path(), &options);
    let predict = json!({"rows": [{"user": "u1"}, {"user": "u2"}]});
    let (predict, bad) = (predict.to_string(), json!({"rows": [{}]}).to_string());
    let traces: Vec<String> = (0..6).map(|at| format!("{at}{}", &TRACE[1..])).collect();
    let header = |at: usize, flags: &str| format!("traceparent: 00-{}-{SPAN}-{flags}", traces[at]);
    let infer = json!({"inputs": [{"name": "user", "shape": [1], "datatype": "BYTES", "data": ["u1"]}]});
    for (at, flags, method, path, body, status) in [
        (0, "00", "POST", "/predict", &predict, 200),
        (1, "01", "POST", "/predict", &predict, 200),
        (2, "01", "POST", "/predict", &bad, 400),
        (3, "01", "GET", "/tables/user/rows?value=u1&value=u9", &String::new(), 200),
        (4, "01", "POST", "/v2/models/m/infer", &infer.to_string(), 200),
        (5, "01", "GET", "/metrics", &String::new(), 200),
    ] {
        let headers = [&*header(at, flags)];
        let reply = http(&serve.address, method, path, &headers, body.as_bytes());
        assert_eq!(reply.status, status, "{path}: {}", reply.text());
    }
    let expected = [
        (1, "predict", "200", "2", &["encode", "parse", "queue", "read", "score", "write"][..]),
        (2, "predict", "400", "0", &["encode", "parse", "queue", "read"]),
        (3, "rows", "200", "2", &["queue", "rows", "write"]),
        (4, "infer", "200", "1", &["encode", "parse", "queue", "read", "score"]),
    ];
    let start = Instant::now();
    let all = loop {
        let all = collector.spans();
        if expected.iter().all(|(at, ..)| tree(&all, &traces[*at]).is_some()) {
            break all;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{all:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    for (at, name, code, rows, stages) in expected {
        let (root, found) = tree(&all, &traces[at]).unwrap();
        assert_eq!(
            (&*root.service, root.text("name"), root.text("parentSpanId")),
            ("sanderling-serve", name, SPAN)
        );
        assert_eq!(root.attribute("http.response.status_code"), Some(code));
        assert_eq!(
            (root.attribute("sanderling.model"), root.attribute("sanderling.rows")),
            (Some("m"), Some(rows))
        );
        assert_eq!(root.span["status"]["code"] == 2, code == "400", "{root:?}");
        assert_eq!(found, stages, "{name}");
    }
    for unwanted in [0, 5] {
        assert!(tree(&all, &traces[unwanted]).is_none(), "{unwanted}");
    }
    let metrics = http(&serve.address, "GET", "/metrics", &[], b"");
    assert!(metrics.text().contains("sanderling_spans_exported_total "), "{}", metrics.text());
}

/// Without a trace of its client, a slow request is one of its own.
#[test]
fn slow_requests_are_traced_and_listed_with_their_trace() {
    let (folder, collector) = (trained(), Collector::start());
    let options = format!("runs/m/model --otlp {} --otlp-every 1000000 --slow 1us", collector.url());
    let serve = Serve::start(folder.path(), &options);
    serve.json("/predict", &json!({"rows": [{"user": "u1"}]}));
    let start = Instant::now();
    while collector.spans().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(20));
    }
    let all = collector.spans();
    let root = all.iter().find(|span| span.text("name") == "predict").unwrap();
    assert_eq!(root.text("parentSpanId"), "");
    let page = http(&serve.address, "GET", "/requests", &[], b"");
    assert!(page.text().contains(root.text("traceId")), "{}", page.text());
}
