//! Readiness, limits, tokens, pages of other sites, metrics and the drain.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use sanderling_serve::{Config, Models, Server};
use sanderling_testkit::http;
use serde_json::{Value, json};

use crate::fixture::{Served, Trained};

const ROW: &str = r#"{"rows":[{"user":"u1","genres":[],"age":1}]}"#;

#[test]
fn a_server_is_ready_when_it_has_a_model() {
    let trained = Trained::new("lr");
    let served = Served::new([]);
    let check = |live: u16, ready: u16, word: &str| {
        assert_eq!(served.get("/v2/health/live").status, live);
        for path in ["/v2/health/ready", "/healthz", "/health"] {
            assert_eq!(served.get(path).status, ready, "{path}");
        }
        assert_eq!(served.get("/healthz").text(), format!("{word}\n"));
    };
    check(200, 503, "loading");
    let reply = served.post("/predict", ROW);
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")), "{}", reply.text());
    assert_eq!(served.get("/v2/models/clicks/ready").status, 503);
    served.server.publish(Models::new([trained.model(1), trained.model(2)]));
    check(200, 200, "serving");
    assert_eq!(served.get("/v2/models/clicks/ready").status, 200);
    assert_eq!(served.get("/v2/models/clicks/versions/3/ready").status, 404);
    // Without a version, the latest.
    assert_eq!(served.json("/predict", Some(&serde_json::from_str(ROW).unwrap()))["version"], "2");
    served.server.publish(Models::new([trained.model(1)]));
    assert_eq!(served.json("/predict", Some(&serde_json::from_str(ROW).unwrap()))["version"], "1");
    let health: Value = served.json("/health", None);
    assert_eq!((&health["status"], &health["models"][0]["version"]), (&json!("serving"), &json!("1")));
}

#[test]
fn larger_and_slower_requests_than_allowed_are_refused() {
    let trained = Trained::new("lr");
    let adjust = |config: &mut Config| (config.batch_max, config.body_bytes_max) = (2, 1000);
    let served = Served::with(adjust, [trained.model(1)]);
    let row = r#"{"user":"u1","genres":[],"age":1}"#;
    served.refuses(
        "/predict",
        &format!(r#"{{"rows":[{row},{row},{row}]}}"#),
        413,
        "3 rows in one request, at most 2",
    );
    served.refuses("/tables/user/rows", r#"{"keys":[1,2,3]}"#, 413, "3 keys in one request, at most 2");
    served.refuses("/predict", &" ".repeat(1001), 413, "a request has at most 1000 bytes");
    let infer =
        r#"{"inputs":[{"name":"user","datatype":"BYTES","shape":[9223372036854775807,0],"data":[]}]}"#;
    served.refuses("/v2/models/clicks/infer", infer, 400, "0 values per row of a column that takes one");
    let reply = http(&served.address, "POST", "/predict", &["content-encoding: gzip"], b"x");
    assert_eq!(reply.status, 415, "{}", reply.text());
    assert_eq!(served.post("/predict", ROW).status, 200);
    let (other, nothing) = (served.get("/predict"), served.get("/nowhere"));
    assert_eq!((other.status, nothing.status), (405, 404));
    // A client that does not send its body.
    let served = Served::with(|config| config.timeout = Duration::from_millis(1), []);
    let mut stream = TcpStream::connect(&served.address).unwrap();
    write!(stream, "POST /predict HTTP/1.1\r\nhost: {}\r\ncontent-length: 9\r\n\r\nab", served.address)
        .unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 504");
}

#[test]
fn a_client_may_shorten_its_time_limit() {
    let served = Served::new([Trained::new("lr").model(1)]);
    for (value, status) in [("1", 504), ("0", 400), ("x", 400)] {
        // The body never comes whole.
        let mut stream = TcpStream::connect(&served.address).unwrap();
        let head = format!("host: {}\r\ntimeout-ms: {value}\r\ncontent-length: 9", served.address);
        write!(stream, "POST /predict HTTP/1.1\r\n{head}\r\n\r\nab").unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, format!("HTTP/1.1 {status}").as_bytes(), "{value}");
    }
    let reply = http(&served.address, "POST", "/predict", &["timeout-ms: 60000"], ROW.as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[test]
fn requests_are_logged_and_slow_ones_listed_with_their_stages() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let adjust = |config: &mut Config| {
        config.access_log = Some(log.clone());
        // All are slow.
        config.slow = Duration::from_nanos(1);
    };
    let served = Served::with(adjust, [Trained::new("lr").model(7)]);
    assert_eq!(served.post("/predict", ROW).status, 200);
    assert_eq!(served.get("/tables/nothing/rows?key=1").status, 404);
    let slow = served.json("/slow", None);
    let slow = slow["requests"].as_array().unwrap();
    assert_eq!((&slow[0]["endpoint"], &slow[0]["code"]), (&json!("rows"), &json!("404")));
    assert_eq!((&slow[1]["endpoint"], &slow[1]["version"]), (&json!("predict"), &json!("7")));
    let stages = slow[1]["stages"].as_object().unwrap();
    for stage in ["read", "queue", "parse", "encode", "score", "write"] {
        assert!(stages[stage].as_f64().unwrap() <= slow[1]["ms"].as_f64().unwrap(), "{stages:?}");
    }
    drop(served);
    // Its thread writes what waits.
    let lines = loop {
        let text = std::fs::read_to_string(&log).unwrap();
        if text.lines().count() == 3 {
            break text;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let fields = |line: &Value| {
        ["method", "path", "code", "model", "version", "rows"].map(|name| line[name].to_string()).join(" ")
    };
    assert_eq!(fields(&lines[0]), r#""POST" "/predict" "200" "clicks" "7" 1"#);
    assert_eq!(fields(&lines[1]), r#""GET" "/tables/nothing/rows" "404" "clicks" "7" 0"#);
    assert!(
        lines[0]["peer"].as_str().unwrap().starts_with("127.0.0.1:")
            && lines[0]["ms"].as_f64().unwrap() > 0.0
    );
}

#[test]
fn requests_bring_the_token_and_come_from_no_other_site() {
    let trained = Trained::new("lr");
    let token = "0123456789abcdef";
    let closed = Served::with(|config| config.token = Some(token.to_owned()), [trained.model(1)]);
    let open = Served::with(|config| config.hosts = vec!["db1".to_owned()], [trained.model(1)]);
    let right = format!("authorization: Bearer {token}");
    for (served, path, headers, expected) in [
        (&closed, "/metrics", &[][..], 401),
        (&closed, "/metrics", &["authorization: Bearer no"], 401),
        (&closed, "/metrics", &[&*right], 200),
        (&closed, "/metrics", &[&*right, "host: any.example"], 200),
        (&closed, "/", &[], 200),
        (&closed, "/health", &[], 200),
        (&closed, "/v2/health/live", &[], 200),
        (&closed, "/v2", &[], 401),
        (&open, "/models", &[], 200),
        (&open, "/models", &["host: localhost:8500"], 200),
        (&open, "/models", &["host: db1"], 200),
        (&open, "/models", &["host: evil.example"], 421),
        (&open, "/models", &["origin: http://evil.example"], 403),
        (&open, "/models", &["sec-fetch-site: cross-site"], 403),
        (&open, "/models", &["sec-fetch-site: same-origin"], 200),
        (&open, "/v2/health/live", &["host: evil.example"], 200),
    ] {
        let reply = http(&served.address, "GET", path, headers, b"");
        assert_eq!(reply.status, expected, "{path} {headers:?}: {}", reply.text());
    }
    let page = closed.get("/");
    assert!(page.text().contains("<title>sanderling serve</title>"));
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
}

#[test]
fn addresses_that_other_machines_reach_need_tls_and_a_token() {
    for (adjust, expected) in [
        ((|_| ()) as fn(&mut Config), Some("not a loopback address")),
        (|config| config.expose = true, Some("exposed without TLS and a token")),
        (|config| (config.expose, config.insecure) = (true, true), None),
        (|config| config.threads = 0, Some("threads = 0: must be 1 to 256")),
        (|config| config.listen = "unix:/tmp/x".parse().unwrap(), Some("a TCP address is needed")),
        (|config| config.tls = Some(("/nowhere".into(), "/nowhere".into())), Some("/nowhere")),
    ] {
        let mut config = Config::new("0.0.0.0:0".parse().unwrap());
        adjust(&mut config);
        match (Server::start(&config).map(|_| ()), expected) {
            (Ok(()), None) => {}
            (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (found, expected) => panic!("{found:?} is not {expected:?}"),
        }
    }
}

#[test]
fn requests_are_counted_by_model_version_and_code() {
    let served = Served::new([Trained::new("lr").model(7)]);
    for body in [ROW, ROW, "{}"] {
        drop(served.post("/predict", body));
    }
    drop(served.get("/tables/user/rows?key=1&key=2"));
    drop(served.post("/v2/models/other/infer", "{}"));
    let text = served.get("/metrics").text().to_owned();
    let labels = |endpoint: &str, model: &str, version: &str, code: u16| {
        format!(
            "{{protocol=\"http\",endpoint=\"{endpoint}\",model=\"{model}\",version=\"{version}\",code=\"{code}\"}}"
        )
    };
    for line in [
        "sanderling_serve_ready 1".to_owned(),
        format!("sanderling_serve_requests_total{} 2", labels("predict", "clicks", "7", 200)),
        format!("sanderling_serve_requests_total{} 1", labels("predict", "", "", 400)),
        format!("sanderling_serve_requests_total{} 1", labels("rows", "clicks", "7", 200)),
        format!("sanderling_serve_requests_total{} 1", labels("infer", "", "", 404)),
        format!("sanderling_serve_rows_total{} 2", labels("predict", "clicks", "7", 200)),
        format!("sanderling_serve_rows_total{} 2", labels("rows", "clicks", "7", 200)),
        format!("sanderling_serve_request_latency_seconds_count{} 2", labels("predict", "clicks", "7", 200)),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn a_request_under_way_is_answered_before_the_end() {
    let Served { server, address } = Served::new([Trained::new("lr").model(1)]);
    let mut stream = TcpStream::connect(&address).unwrap();
    let (first, last) = ROW.split_at(10);
    write!(
        stream,
        "POST /predict HTTP/1.1\r\nhost: {address}\r\ncontent-length: {}\r\n\r\n{first}",
        ROW.len()
    )
    .unwrap();
    // One thread reads both connections: when it has answered the second, it has the beginning of the first.
    assert_eq!(http(&address, "GET", "/healthz", &[], b"").status, 200);
    let ending = std::thread::spawn(move || server.stop());
    while TcpStream::connect(&address).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
    write!(stream, "{last}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"scores\":["), "{answer}");
    ending.join().unwrap();
}
