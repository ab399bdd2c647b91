//! The routes of a keeper: records, watches and leases as JSON, health and metrics; who may ask.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use sanderling_http::status_pages::StatusPages;
use sanderling_http::{SocketHandle, ask_for_token, sent_token, web_page};
use sanderling_observe::{EXPOSITION_CONTENT_TYPE, unique};
use sanderling_registry::limit::WAIT_MAX;
use sanderling_registry::protocol::{
    ChangeText, Granted, JsonText, KEEPER_HEADER, Kept, RecordText, Refusal, Term, check_delete, term_s,
};
use sanderling_registry::state_machine::{Held, PastChange, Reply, Request as Change};
use sanderling_registry::{RegistryError, check_cluster, check_prefix, check_record};
use sanderling_wire::same_token;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use crate::committer::{CommitError, Requests, Shared};
use crate::limit::{BODIES_MAX, BODY_BYTES_MAX, BODY_WITHIN, WATCHES_MAX};
use crate::metrics;

/// Numbers of leases stay exact in programs whose numbers are doubles.
const LEASE_BITS: u32 = 52;
const JSON: &str = "application/json";
const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// The state of the routes.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) shared: Arc<Shared>,
    pub(crate) requests: Requests,
    /// The number of the keeper's folder.
    pub(crate) keeper: String,
    pub(crate) token: Option<String>,
    /// Host names that a keeper without a token also accepts.
    pub(crate) hosts: Vec<String>,
    /// Whether the keeper ends, which ends watches.
    draining: AtomicBool,
    watches: Semaphore,
    bodies: Semaphore,
}

impl Service {
    pub(crate) fn new(
        shared: Arc<Shared>,
        requests: Requests,
        keeper: String,
        token: Option<String>,
        hosts: Vec<String>,
    ) -> Service {
        let (watches, bodies) = (Semaphore::new(WATCHES_MAX), Semaphore::new(BODIES_MAX));
        Service { shared, requests, keeper, token, hosts, draining: AtomicBool::new(false), watches, bodies }
    }

    /// Has all watches answered, and no longer says that the keeper serves.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.shared.wake();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// All metrics.
    pub(crate) fn metrics(&self) -> String {
        metrics::text(&self.shared, &self.keeper, WATCHES_MAX - self.watches.available_permits())
    }
}

type Shares = State<Arc<Service>>;

pub(crate) fn router(service: &Arc<Service>, pages: StatusPages) -> Router {
    Router::new()
        .route("/healthz", get(answer_health))
        .route("/health", get(answer_health))
        .route("/metrics", get(answer_metrics))
        .route("/v1/clusters/{cluster}/records", get(list))
        .route("/v1/clusters/{cluster}/records/{*name}", get(read).put(put).delete(remove))
        .route("/v1/clusters/{cluster}/changes", get(changes))
        .route("/v1/leases", post(grant))
        .route("/v1/leases/{lease}", delete(revoke))
        .route("/v1/leases/{lease}/keep-alive", post(keep_alive))
        .fallback(move |request| answer_page(pages.clone(), request))
        .layer(from_fn_with_state(Arc::clone(service), admit))
        .with_state(Arc::clone(service))
}

/// A refusal.
struct Refused(StatusCode, Refusal);

impl Refused {
    fn new(status: StatusCode, error: impl Into<String>) -> Refused {
        Refused(status, Refusal { error: error.into(), ..Refusal::default() })
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        answer_json(self.0, &self.1)
    }
}

impl From<RegistryError> for Refused {
    fn from(error: RegistryError) -> Refused {
        Refused::new(StatusCode::BAD_REQUEST, error.to_string())
    }
}

impl From<CommitError> for Refused {
    fn from(error: CommitError) -> Refused {
        let (error, unknown) = match error {
            CommitError::Refused(error) => (error, false),
            CommitError::Unknown(error) => (error, true),
        };
        Refused(StatusCode::SERVICE_UNAVAILABLE, Refusal { error, unknown, lease_ended: None })
    }
}

fn answer_json(status: StatusCode, content: &impl Serialize) -> Response {
    match serde_json::to_vec(content) {
        Ok(mut bytes) => {
            bytes.push(b'\n');
            (status, [(CONTENT_TYPE, JSON)], bytes).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Admits requests with the token, never those of web pages, and none that mean another keeper.
async fn admit(State(service): Shares, request: Request, next: Next) -> Response {
    let mut response = match refusal(&service, &request) {
        Some(refused) => {
            let is_for_token = refused.0 == StatusCode::UNAUTHORIZED;
            let mut response = refused.into_response();
            if is_for_token {
                ask_for_token(request.headers(), &mut response);
            }
            response
        }
        None => next.run(request).await,
    };
    if let Ok(keeper) = HeaderValue::from_str(&service.keeper) {
        response.headers_mut().insert(KEEPER_HEADER, keeper);
    }
    response
}

fn refusal(service: &Service, request: &Request) -> Option<Refused> {
    let headers = request.headers();
    // Probes have no token.
    if matches!(request.uri().path(), "/healthz" | "/health") {
        return None;
    }
    if web_page::is_from_page(headers) {
        let reason = "this is not for web pages: a request with Origin, or from another site, is refused";
        return Some(Refused::new(StatusCode::FORBIDDEN, reason));
    }
    let has_body = [Method::PUT, Method::POST].contains(request.method());
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if has_body && kind.split(';').next().map(str::trim) != Some(JSON) {
        let reason = "the content type must be application/json";
        return Some(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, reason));
    }
    // A page's host name may point to any address (DNS rebinding); a token protects from it.
    let host = web_page::host(request.uri(), headers).unwrap_or_default();
    let is_known = |host: &str| service.hosts.iter().any(|known| known.eq_ignore_ascii_case(host));
    if service.token.is_none() && !web_page::is_address(host) && !is_known(host) {
        let reason = "the host that was asked for is none of this keeper's names: ask for it by its address, start the \
                      keeper with --allow-host NAME, or with a token";
        return Some(Refused::new(StatusCode::MISDIRECTED_REQUEST, reason));
    }
    let given = sent_token(request.method(), headers).unwrap_or_default();
    if service.token.as_ref().is_some_and(|secret| !same_token(secret, &given)) {
        let reason = "the token is missing or wrong; say it as \"authorization: Bearer TOKEN\"";
        return Some(Refused::new(StatusCode::UNAUTHORIZED, reason));
    }
    if let Some(socket) = request.extensions().get::<SocketHandle>() {
        socket.admit();
    }
    let expected = headers.get(KEEPER_HEADER)?.to_str().unwrap_or_default();
    (expected != service.keeper).then(|| {
        let reason = format!("this is keeper {}, and not {expected}", service.keeper);
        Refused::new(StatusCode::MISDIRECTED_REQUEST, reason)
    })
}

/// The beginning of the names of a cluster's records.
fn root(cluster: &str) -> Result<String, Refused> {
    check_cluster(cluster)?;
    Ok(format!("{cluster}/"))
}

fn full_name(cluster: &str, name: &str) -> Result<Arc<str>, Refused> {
    check_record(name)?;
    Ok(Arc::from(format!("{}{name}", root(cluster)?)))
}

/// The values of a query. Names need no escapes.
fn query(request: &Request) -> HashMap<&str, &str> {
    let pairs = request.uri().query().unwrap_or_default().split('&');
    pairs.filter_map(|pair| pair.split_once('=')).collect()
}

/// The beginning of the names that a query asks for.
fn prefix(root: &str, query: &HashMap<&str, &str>) -> Result<String, Refused> {
    let prefix = query.get("prefix").copied().unwrap_or_default();
    check_prefix(prefix)?;
    Ok(format!("{root}{prefix}"))
}

fn number(query: &HashMap<&str, &str>, name: &str) -> Result<Option<u64>, Refused> {
    let parsed = query.get(name).map(|text| text.parse());
    parsed
        .transpose()
        .map_err(|_| Refused::new(StatusCode::BAD_REQUEST, format!("{name}: a whole number is expected")))
}

fn needed(query: &HashMap<&str, &str>, name: &str) -> Result<u64, Refused> {
    number(query, name)?
        .ok_or_else(|| Refused::new(StatusCode::BAD_REQUEST, format!("{name}=NUMBER is missing")))
}

fn record<'a>(root: &str, name: &'a str, held: &'a Held) -> RecordText<'a> {
    let name = name.strip_prefix(root).unwrap_or(name);
    RecordText { name, revision: held.revision, lease: held.lease, value: &held.value }
}

async fn body<T: serde::de::DeserializeOwned>(service: &Service, body: Body) -> Result<T, Refused> {
    let read = async {
        let _permit = service.bodies.acquire().await;
        to_bytes(body, BODY_BYTES_MAX).await
    };
    let bytes = timeout(BODY_WITHIN, read)
        .await
        .map_err(|_| Refused::new(StatusCode::REQUEST_TIMEOUT, "the body came too slowly"))?
        .map_err(|_| {
            let reason = format!("the body is incomplete, or has more than {BODY_BYTES_MAX} bytes");
            Refused::new(StatusCode::PAYLOAD_TOO_LARGE, reason)
        })?;
    serde_json::from_slice(&bytes).map_err(|error| {
        Refused::new(StatusCode::BAD_REQUEST, format!("the body is not the JSON that is expected: {error}"))
    })
}

async fn read(
    State(service): Shares,
    Path((cluster, name)): Path<(String, String)>,
) -> Result<Response, Refused> {
    let (root, full) = (root(&cluster)?, full_name(&cluster, &name)?);
    let held = service.shared.published().machine.get(&full).cloned();
    let found = held.as_ref().map(|held| record(&root, &full, held));
    Ok(answer_json(StatusCode::OK, &json!({ "record": found })))
}

async fn list(
    State(service): Shares,
    Path(cluster): Path<String>,
    request: Request,
) -> Result<Response, Refused> {
    let (root, query) = (root(&cluster)?, query(&request));
    let prefix = prefix(&root, &query)?;
    #[derive(Serialize)]
    struct List<'a> {
        revision: u64,
        records: Vec<RecordText<'a>>,
    }
    // Values are shared, so a copy is small.
    let (revision, found): (u64, Vec<_>) = {
        let published = service.shared.published();
        let found = published.machine.list(&prefix).map(|(name, held)| (Arc::clone(name), held.clone()));
        (published.machine.revision(), found.collect())
    };
    let records = found.iter().map(|(name, held)| record(&root, name, held)).collect();
    Ok(answer_json(StatusCode::OK, &List { revision, records }))
}

async fn put(
    State(service): Shares,
    Path((cluster, name)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Refused> {
    let full = full_name(&cluster, &name)?;
    let (expected, lease) = {
        let query = query(&request);
        (needed(&query, "revision")?, number(&query, "lease")?)
    };
    let value: Value = body(&service, request.into_body()).await?;
    let value = JsonText::new(&name, &value)?;
    set(&service, &cluster, Change::Put { name: full, expected, value, lease }).await
}

async fn remove(
    State(service): Shares,
    Path((cluster, name)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Refused> {
    let expected = needed(&query(&request), "revision")?;
    check_delete(&name, expected)?;
    set(&service, &cluster, Change::Delete { name: full_name(&cluster, &name)?, expected }).await
}

async fn set(service: &Service, cluster: &str, change: Change) -> Result<Response, Refused> {
    let (Change::Put { name, .. } | Change::Delete { name, .. }) = &change else {
        unreachable!("the others change no record by name")
    };
    let name = Arc::clone(name);
    match service.requests.ask(change).await? {
        Reply::Done(revision) => Ok(answer_json(StatusCode::OK, &json!({ "done": revision }))),
        Reply::Other(held) => {
            let root = root(cluster)?;
            let present = held.as_ref().map(|held| record(&root, &name, held));
            Ok(answer_json(StatusCode::CONFLICT, &json!({ "present": present })))
        }
        reply => Err(refused_by(reply)),
    }
}

/// The refusal that a reply is.
fn refused_by(reply: Reply) -> Refused {
    match reply {
        Reply::LeaseEnded(lease) => {
            let error = format!("lease {lease} has ended");
            let refusal = Refusal { error, unknown: false, lease_ended: Some(lease) };
            Refused(StatusCode::PRECONDITION_FAILED, refusal)
        }
        Reply::Full(reason) => Refused::new(StatusCode::INSUFFICIENT_STORAGE, reason),
        reply => unreachable!("{reply:?} is no answer to this request"),
    }
}

async fn changes(
    State(service): Shares,
    Path(cluster): Path<String>,
    request: Request,
) -> Result<Response, Refused> {
    let (root, query) = (root(&cluster)?, query(&request));
    let prefix = prefix(&root, &query)?;
    let after = needed(&query, "after")?;
    let wait = Duration::from_millis(number(&query, "wait_ms")?.unwrap_or_default()).min(WAIT_MAX);
    let Ok(_permit) = service.watches.try_acquire() else {
        let reason = format!("{WATCHES_MAX} watches wait; try again later");
        return Err(Refused::new(StatusCode::SERVICE_UNAVAILABLE, reason));
    };
    let deadline = Instant::now() + wait;
    let mut revision = service.shared.follow();
    loop {
        revision.borrow_and_update();
        let found = {
            let published = service.shared.published();
            let found = published.history.since(&prefix, after, published.machine.revision());
            found.map(|(changes, upto)| (changes.into_iter().cloned().collect::<Vec<PastChange>>(), upto))
        };
        let Some((found, upto)) = found else {
            return Ok(answer_json(
                StatusCode::GONE,
                &json!({ "error": "these changes are gone; list, and watch from there" }),
            ));
        };
        if !found.is_empty() || Instant::now() >= deadline || service.is_draining() {
            return Ok(answer_changes(&root, &found, upto));
        }
        // Late or woken, the changes are looked at once more.
        let _ = timeout_at(deadline, revision.changed()).await;
    }
}

fn answer_changes(root: &str, found: &[PastChange], after: u64) -> Response {
    #[derive(Serialize)]
    struct Changes<'a> {
        after: u64,
        changes: Vec<ChangeText<'a>>,
    }
    let changes = found
        .iter()
        .map(|change| ChangeText {
            name: change.name.strip_prefix(root).unwrap_or(&change.name),
            revision: change.revision,
            record: change.held.as_ref().map(|held| record(root, &change.name, held)),
        })
        .collect();
    answer_json(StatusCode::OK, &Changes { after, changes })
}

async fn grant(State(service): Shares, request: Request) -> Result<Response, Refused> {
    let Term { term_s: seconds } = body(&service, request.into_body()).await?;
    let term_s = term_s(Duration::from_secs(seconds))?;
    let lease = (unique() & ((1 << LEASE_BITS) - 1)).max(1);
    match service.requests.ask(Change::Grant { lease, term_s }).await? {
        Reply::Granted(lease) => Ok(answer_json(StatusCode::OK, &Granted { lease })),
        reply => Err(refused_by(reply)),
    }
}

async fn keep_alive(State(service): Shares, Path(lease): Path<u64>) -> Result<Response, Refused> {
    kept(&service, Change::KeepAlive { lease }).await
}

async fn revoke(State(service): Shares, Path(lease): Path<u64>) -> Result<Response, Refused> {
    kept(&service, Change::Revoke { lease }).await
}

async fn kept(service: &Service, change: Change) -> Result<Response, Refused> {
    match service.requests.ask(change).await? {
        Reply::Kept(kept) => Ok(answer_json(StatusCode::OK, &Kept { kept })),
        reply => Err(refused_by(reply)),
    }
}

async fn answer_health(State(service): Shares) -> Response {
    // Reads go on without the disk, so a probe must not have the keeper ended for it.
    let text = match (service.is_draining(), service.shared.trouble()) {
        (true, _) => {
            return (StatusCode::SERVICE_UNAVAILABLE, [(CONTENT_TYPE, PLAIN_TEXT)], "draining\n")
                .into_response();
        }
        (false, None) => "serving\n".to_owned(),
        (false, Some(reason)) => format!("serving reads only: {reason}\n"),
    };
    (StatusCode::OK, [(CONTENT_TYPE, PLAIN_TEXT)], text).into_response()
}

async fn answer_metrics(State(service): Shares) -> Response {
    ([(CONTENT_TYPE, EXPOSITION_CONTENT_TYPE)], service.metrics()).into_response()
}

/// A status page, or nothing.
async fn answer_page(pages: StatusPages, request: Request) -> Response {
    let (request, _) = request.into_parts();
    let page = pages.respond(&request.method, &request.uri, &request.headers).await;
    page.unwrap_or_else(answer_nothing)
}

fn answer_nothing() -> Response {
    let text = "nothing here; there are /v1/clusters/CLUSTER/records, /v1/clusters/CLUSTER/changes, /v1/leases, /status, \
                /metrics and /healthz";
    Refused::new(StatusCode::NOT_FOUND, text).into_response()
}
