//! A small collector of traces for tests: takes OTLP over HTTP as JSON, and keeps the spans.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

/// A span with the process that it is of.
#[derive(Debug, Clone)]
pub struct CollectedSpan {
    /// Name of the service.
    pub service: String,
    /// The span as it came.
    pub span: Value,
}

impl CollectedSpan {
    /// A member of the span that is a text.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        self.span[name].as_str().unwrap_or_default()
    }

    /// An attribute of the span, as a text.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let all = self.span["attributes"].as_array()?;
        let value = &all.iter().find(|one| one["key"] == name)?["value"];
        value["stringValue"].as_str().or_else(|| value["intValue"].as_str())
    }
}

/// A running collector. Its threads end with the process.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<CollectedSpan>>>,
}

impl Collector {
    /// Starts a collector at a free port.
    #[must_use]
    pub fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, spans) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<CollectedSpan>>>::default());
        let kept = Arc::clone(&spans);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || serve(stream, &kept));
            }
        });
        Collector { address, spans }
    }

    /// The address for exporters.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The spans so far.
    #[must_use]
    pub fn spans(&self) -> Vec<CollectedSpan> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Takes requests of a connection until its end.
fn serve(stream: TcpStream, kept: &Mutex<Vec<CollectedSpan>>) {
    let mut out = stream.try_clone().unwrap();
    let mut stream = BufReader::new(stream);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if stream.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            let line = line.trim_end().to_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(text) = line.strip_prefix("content-length: ") {
                length = text.parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        assert!(first.starts_with("POST /v1/traces "), "{first}");
        let request: Value = serde_json::from_slice(&body).unwrap();
        kept.lock().unwrap_or_else(PoisonError::into_inner).extend(spans(&request));
        out.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
    }
}

fn spans(request: &Value) -> Vec<CollectedSpan> {
    let mut all = Vec::new();
    for of in request["resourceSpans"].as_array().unwrap() {
        let attributes = of["resource"]["attributes"].as_array().unwrap();
        let service = attributes.iter().find(|one| one["key"] == "service.name").unwrap();
        let service = service["value"]["stringValue"].as_str().unwrap().to_owned();
        for scope in of["scopeSpans"].as_array().unwrap() {
            let found = scope["spans"].as_array().unwrap().iter();
            all.extend(found.map(|span| CollectedSpan { service: service.clone(), span: span.clone() }));
        }
    }
    all
}
