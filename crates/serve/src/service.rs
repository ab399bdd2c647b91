//! The state that all requests share: models, scoring threads, metrics, limits, and whether the server drains.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use axum::http::{HeaderMap, Method};
use sanderling_wire::same_token;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::access_log::{AccessLog, Line, now_s};
use crate::batch::Batching;
use crate::catalog::ModelTable;
use crate::config::Config;
use crate::dense::Engines;
use crate::error::{Kind, ServeError};
use crate::limit::BODIES_BYTES_MAX;
use crate::metrics::{Metrics, Present};
use crate::replica::Replica;
use crate::repository::Repository;
use crate::scoring::ScoringThreads;
use crate::shadow::Shadow;
use crate::slow::{self, SlowRequest, SlowRequests};
use crate::traced::{Ended, RequestTrace, Traces};
use crate::work::{Answered, Asked};

/// Bytes of one permit of the memory for bodies.
const PERMIT_BYTES: usize = 1 << 10;

/// The shared state of a server.
pub(crate) struct Service {
    pub(crate) models: Arc<ModelTable>,
    pub(crate) threads: Arc<ScoringThreads>,
    pub(crate) batching: Batching,
    pub(crate) engines: Engines,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) timeout: Duration,
    pub(crate) batch_max: usize,
    pub(crate) body_bytes_max: usize,
    /// Memory for the bodies of all requests under way.
    bodies: Arc<Semaphore>,
    token: Option<String>,
    hosts: Vec<String>,
    draining: AtomicBool,
    /// Whether the first models are being loaded.
    loading: AtomicBool,
    /// Whether other machines may reach it.
    is_exposed: bool,
    /// The folder of models, if it follows one.
    pub(crate) repository: OnceLock<Repository>,
    /// Time from which on a request is slow.
    slow_from: Duration,
    pub(crate) slow: SlowRequests,
    traces: Option<Traces>,
    pub(crate) shadow: Shadow,
    pub(crate) access_log: Option<AccessLog>,
    /// The replica, if the rows of a model follow servers or checkpoints.
    pub(crate) replica: OnceLock<Replica>,
}

impl Service {
    pub(crate) fn new(
        config: &Config,
        threads: ScoringThreads,
        access_log: Option<AccessLog>,
        shadow: Shadow,
    ) -> Service {
        let hosts = config.hosts.iter().cloned().chain(["localhost".to_owned()]).collect();
        Service {
            models: Arc::default(),
            threads: Arc::new(threads),
            batching: Batching { window: config.batch_window, rows_max: config.batch_rows_max },
            engines: config.engines.clone(),
            metrics: Arc::default(),
            timeout: config.timeout,
            batch_max: config.batch_max,
            body_bytes_max: config.body_bytes_max,
            bodies: Arc::new(Semaphore::new(BODIES_BYTES_MAX / PERMIT_BYTES)),
            token: config.token.clone(),
            hosts,
            draining: AtomicBool::new(false),
            loading: AtomicBool::new(false),
            is_exposed: config.expose,
            repository: OnceLock::new(),
            slow_from: config.slow,
            slow: SlowRequests::default(),
            traces: config.spans.as_ref().map(Traces::new),
            shadow,
            access_log,
            replica: OnceLock::new(),
        }
    }

    /// Whether a request with these headers is traced.
    pub(crate) fn trace_of(&self, is_work: bool, headers: &HeaderMap) -> RequestTrace {
        let traces = self.traces.as_ref().filter(|_| is_work);
        traces.map_or(RequestTrace::Refused, |traces| traces.begin(headers))
    }

    /// Counts an answered request, lists it if it was slow, adds it to the access log, and exports its spans.
    pub(crate) fn note(&self, request: &Answered, asked: &Asked, took: Duration) {
        let Answered { protocol, endpoint, code, .. } = request;
        self.metrics.record(protocol, endpoint, asked, code.clone(), took);
        let is_slow = took >= self.slow_from && !self.slow_from.is_zero();
        let trace = self.traces.as_ref().and_then(|traces| {
            let (model, rows, times) = (asked.model(), asked.rows(), &asked.times);
            let ended = Ended { endpoint, protocol, model, code, rows, took, times };
            traces.end(request.trace, is_slow, &ended)
        });
        if !is_slow && self.access_log.is_none() {
            return;
        }
        let (model, version) =
            asked.model().map(|(model, version)| (model.clone(), version.to_string())).unwrap_or_default();
        let (time, rows, ms) = (now_s(), asked.rows(), slow::ms(took));
        if is_slow {
            let (model, version, code) = (model.clone(), version.clone(), code.clone());
            let stages = asked.times.to_json();
            let trace = trace.map(|trace| format!("{trace:032x}"));
            let of = SlowRequest { time, protocol, endpoint, model, version, code, rows, ms, trace, stages };
            self.slow.add(of);
        }
        if let Some(log) = &self.access_log {
            let Answered { protocol, peer, method, path, code, .. } = request;
            let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
            let (method, path, code) = (method.clone(), path.clone(), code.clone());
            log.write(Line { time, peer, protocol, method, path, code, model, version, rows, ms });
        }
    }

    /// All metrics.
    pub(crate) fn metrics_text(&self) -> String {
        let models = self.models.current();
        let mut text = self.metrics.text(&Present {
            models: &models,
            is_ready: self.is_ready(),
            waiting: self.threads.waiting(),
            limit: self.threads.limit(),
            log_dropped: self.access_log.as_ref().map(AccessLog::dropped),
            shadow: &self.shadow,
            spans: self.traces.as_ref().map(Traces::counts),
        });
        if let Some(replica) = self.replica.get() {
            text.push_str(&replica.metrics());
        }
        text
    }

    /// Rows of a request up to which they join a batch of several requests.
    pub(crate) fn joins_max(&self) -> usize {
        if self.batching.window.is_zero() { 0 } else { self.batching.rows_max }
    }

    /// Reports "not ready" from now on.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Whether requests are answered.
    pub(crate) fn is_ready(&self) -> bool {
        !self.is_draining() && !self.loading.load(Ordering::Relaxed) && !self.models.current().is_empty()
    }

    pub(crate) fn set_loading(&self, is_loading: bool) {
        self.loading.store(is_loading, Ordering::Relaxed);
    }

    /// Whether requests may change versions: the server is for this host only, or asks for a token.
    pub(crate) fn takes_changes(&self) -> bool {
        self.has_token() || !self.is_exposed
    }

    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether a request with this token may be answered.
    pub(crate) fn admits(&self, token: Option<&str>) -> bool {
        self.token.as_ref().is_none_or(|secret| same_token(secret, token.unwrap_or_default()))
    }

    pub(crate) fn knows_host(&self, host: &str) -> bool {
        self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host))
    }

    /// Reserves memory for the body of a request, as long as it says or as long as it may be.
    pub(crate) fn reserve(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<OwnedSemaphorePermit, ServeError> {
        let said = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let bytes = said.unwrap_or(if method == Method::GET { 0 } else { self.body_bytes_max });
        if bytes > self.body_bytes_max {
            return Err(self.too_long());
        }
        let permits = (bytes / PERMIT_BYTES + 1) as u32;
        Arc::clone(&self.bodies).try_acquire_many_owned(permits).map_err(|_| {
            let text = "the server is overloaded: too many bytes of requests are under way; try again later";
            ServeError::new(Kind::Overloaded, text)
        })
    }

    /// Reads the body of a request.
    pub(crate) async fn body(&self, headers: &HeaderMap, body: Body) -> Result<Bytes, ServeError> {
        let encoding = headers.get(CONTENT_ENCODING).map(|name| name.to_str().unwrap_or("?"));
        if let Some(encoding) = encoding.filter(|name| !name.eq_ignore_ascii_case("identity")) {
            let text = format!("content-encoding {encoding:?} is not supported; send the body as it is");
            return Err(ServeError::new(Kind::Unsupported, text));
        }
        // The other failure is a client that has gone, which reads no answer.
        axum::body::to_bytes(body, self.body_bytes_max).await.map_err(|_| self.too_long())
    }

    fn too_long(&self) -> ServeError {
        let max = self.body_bytes_max;
        ServeError::new(Kind::TooLarge, format!("a request has at most {max} bytes: send several requests"))
    }
}
