//! Facts that go with a request through its work, and its answer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use sanderling_http::web_page::is_grpc;
use serde::Serialize;
use tonic::Status;
use tonic::metadata::MetadataValue;

use crate::error::{Kind, ServeError};
use crate::limit::{RETRY_AFTER_MS, RETRY_AFTER_S};
use crate::models::ServedModel;
use crate::scores::Wanted;
use crate::slow::{Stage, StageTimes};
use crate::traced::RequestTrace;

/// The media type of JSON.
pub(crate) const JSON: &str = "application/json";
/// The media type of JSON with bytes after it.
pub(crate) const OCTETS: &str = "application/octet-stream";
/// Length of the JSON before the bytes, in the binary tensor extension.
pub(crate) const JSON_BYTES: &str = "inference-header-content-length";

/// A request that was answered, as metrics and logs name it.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) protocol: &'static str,
    pub(crate) endpoint: &'static str,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) code: String,
    pub(crate) trace: RequestTrace,
}

/// Facts about a request that its metrics name; copies share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    /// Rows or keys of a request at most.
    pub(crate) batch_max: usize,
    /// Rows of a request up to which they join a batch of several requests; 0: never.
    pub(crate) joins_max: usize,
    model: Arc<OnceLock<(String, u64)>>,
    rows: Arc<AtomicU64>,
    pub(crate) times: StageTimes,
    scores: Arc<KeptScores>,
}

/// The scores of a request that is repeated.
#[derive(Debug, Default)]
struct KeptScores {
    is_wanted: AtomicBool,
    scores: OnceLock<Vec<f32>>,
}

impl Asked {
    pub(crate) fn new(batch_max: usize, joins_max: usize) -> Asked {
        Asked { batch_max, joins_max, ..Asked::default() }
    }

    /// Notes the model that answers.
    pub(crate) fn of(&self, model: &ServedModel) {
        // A second model would be a bug; the metrics keep the first.
        let _ = self.model.set((model.name.clone(), model.version));
    }

    /// Work whose wait for a thread begins now.
    pub(crate) fn queued<T, W: FnOnce() -> T>(&self, work: W) -> impl FnOnce() -> T + use<T, W> {
        let (times, since) = (self.times.clone(), Instant::now());
        move || {
            times.add_since(Stage::Queue, since);
            work()
        }
    }

    /// Has the scores kept, for a comparison.
    pub(crate) fn keep_scores(&self) {
        self.scores.is_wanted.store(true, Ordering::Relaxed);
    }

    /// Counts the rows of an answer, and keeps its scores if they are wanted.
    pub(crate) fn note_scores(&self, scores: &[f32]) {
        self.count_rows(scores.len());
        if self.scores.is_wanted.load(Ordering::Relaxed) {
            let _ = self.scores.scores.set(scores.to_vec());
        }
    }

    /// The scores, if they were kept.
    pub(crate) fn scores(&self) -> Option<&[f32]> {
        self.scores.scores.get().map(Vec::as_slice)
    }

    /// The results to make, with explanations or without.
    pub(crate) fn wanted(&self, explains: bool) -> Wanted {
        // Explanations are made by one thread, for one request.
        Wanted { explains, joins_max: if explains { 0 } else { self.joins_max } }
    }

    pub(crate) fn count_rows(&self, rows: usize) {
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Fails if a request has more keys than one may have.
    pub(crate) fn check_keys(&self, keys: usize) -> Result<(), ServeError> {
        if keys > self.batch_max { Err(ServeError::too_many(keys, "keys", self.batch_max)) } else { Ok(()) }
    }

    pub(crate) fn model(&self) -> Option<&(String, u64)> {
        self.model.get()
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) struct Answer {
    body: Vec<u8>,
    kind: &'static str,
    /// Length of the JSON, if bytes come after it.
    json_bytes: Option<usize>,
}

impl Answer {
    /// An answer in JSON.
    pub(crate) fn json(value: &impl Serialize) -> Result<Answer, ServeError> {
        let body = serde_json::to_vec(value);
        let body = body.map_err(|error| ServeError::new(Kind::Internal, error.to_string()))?;
        Ok(Answer { body, kind: JSON, json_bytes: None })
    }

    /// An answer in bytes.
    pub(crate) fn octets(body: Vec<u8>) -> Answer {
        Answer { body, kind: OCTETS, json_bytes: None }
    }

    /// Appends bytes to the JSON.
    pub(crate) fn with_bytes(mut self, parts: &[Vec<u8>]) -> Answer {
        if !parts.is_empty() {
            (self.kind, self.json_bytes) = (OCTETS, Some(self.body.len()));
            parts.iter().for_each(|part| self.body.extend_from_slice(part));
        }
        self
    }

    pub(crate) fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(self.kind));
        if let Some(bytes) = self.json_bytes {
            response.headers_mut().insert(JSON_BYTES, bytes.into());
        }
        response
    }
}

/// An error as an answer in JSON, which is the form of the Open Inference Protocol.
pub(crate) fn refusal(error: &ServeError) -> Response {
    let body = serde_json::json!({ "error": error.to_string() });
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = error.kind.status();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    if matches!(error.kind, Kind::Overloaded | Kind::NotReady) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S));
    }
    response
}

/// An error as the client talks: a gRPC status or JSON.
pub(crate) fn refusal_as(headers: &HeaderMap, error: &ServeError) -> Response {
    if is_grpc(headers) { status(error).into_http() } else { refusal(error) }
}

/// An error as a gRPC status; overload says when to try again (gRFC A6).
pub(crate) fn status(error: &ServeError) -> Status {
    let mut status = Status::new(error.kind.code(), error.to_string());
    if matches!(error.kind, Kind::Overloaded | Kind::NotReady) {
        let after = MetadataValue::from_static(RETRY_AFTER_MS);
        status.metadata_mut().insert("grpc-retry-pushback-ms", after);
    }
    status
}
