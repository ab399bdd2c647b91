//! Routes and admission: plain HTTP, the REST and gRPC forms of the Open Inference Protocol, health, metrics, the page.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use sanderling_http::status_pages::StatusPages;
use sanderling_http::web_page::{self, is_grpc};
use sanderling_http::{SocketHandle, ask_for_token, refuse, sent_token};
use sanderling_observe::EXPOSITION_CONTENT_TYPE;
use tonic::Code;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};

use crate::batches::{self, Step};
use crate::catalog::Models;
use crate::error::{Kind, ServeError};
use crate::grpc::Inference;
use crate::lookup::{Form, LookupService};
use crate::lookup_proto::lookup_server::LookupServer;
use crate::proto::grpc_inference_service_server::GrpcInferenceServiceServer;
use crate::repository::Change;
use crate::service::Service;
use crate::slow::Stage;
use crate::work::{Answer, Answered, Asked, JSON_BYTES, refusal, refusal_as};
use crate::{lookup, pages, predict, rest, shadow, versions};

/// The page at `/`: no data of its own, and no files from elsewhere.
const PAGE: &str = include_str!("page.html");
const PAGE_POLICY: &str =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'";
/// The header with a client's time limit. gRPC has one of its own.
const TIMEOUT_MS: &str = "timeout-ms";
/// Longest request of health, metadata and reflection.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// Builds the routes.
///
/// # Errors
/// The service descriptor is invalid.
pub(crate) fn router(
    service: &Arc<Service>,
    pages: StatusPages,
    health: HealthServer<impl Health>,
) -> Result<Router, tonic_reflection::server::Error> {
    let inference = GrpcInferenceServiceServer::new(Inference(Arc::clone(service)))
        .max_decoding_message_size(service.body_bytes_max);
    let description = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(crate::DESCRIPTION)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let lookup = LookupServer::new(LookupService(Arc::clone(service)))
        .max_decoding_message_size(service.body_bytes_max);
    let grpc = Routes::new(inference)
        .add_service(lookup)
        .add_service(health.max_decoding_message_size(SMALL_BYTES_MAX))
        .add_service(description().build_v1()?.max_decoding_message_size(SMALL_BYTES_MAX))
        // Older tools use this version.
        .add_service(description().build_v1alpha()?.max_decoding_message_size(SMALL_BYTES_MAX));
    let plain = Router::new()
        .route("/", get(answer_page))
        .route("/healthz", get(answer_healthz))
        .route("/health", get(answer_health))
        .route("/metrics", get(answer_metrics))
        .route("/models", get(answer_models))
        .route("/slow", get(answer_slow))
        .route("/predict", post(answer_predict))
        .route("/tables/{table}/rows", get(answer_query).post(answer_rows))
        .route("/v2", get(answer_server))
        .route("/v2/health/live", get(answer_live))
        .route("/v2/health/ready", get(answer_ready))
        .route("/v2/repository/index", get(answer_index).post(answer_index))
        .route("/v2/repository/models/{model}/load", post(answer_load))
        .route("/v2/repository/models/{model}/unload", post(answer_unload))
        .route("/v2/models/{model}", get(answer_model))
        .route("/v2/models/{model}/ready", get(answer_model_ready))
        .route("/v2/models/{model}/infer", post(answer_infer))
        .route("/v2/models/{model}/versions/{version}", get(answer_version))
        .route("/v2/models/{model}/versions/{version}/ready", get(answer_version_ready))
        .route("/v2/models/{model}/versions/{version}/infer", post(answer_version_infer))
        .with_state(Arc::clone(service));
    Ok(grpc
        .into_axum_router()
        .merge(plain)
        .fallback(move |request| answer_status(pages.clone(), request))
        .method_not_allowed_fallback(answer_other_method)
        .layer(from_fn_with_state(Arc::clone(service), admit)))
}

/// Facts about a request that its path tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Endpoint {
    /// Its name in metrics.
    name: &'static str,
    /// Whether it needs no token: probes have none.
    is_open: bool,
    /// Whether it has a body, and a time limit.
    is_work: bool,
}

impl Endpoint {
    fn of(path: &str) -> Endpoint {
        let call = path.strip_prefix("/inference.GRPCInferenceService/");
        let name = match (path, call) {
            ("/", _) => "page",
            ("/health" | "/healthz" | "/v2/health/live" | "/v2/health/ready", _)
            | (_, Some("ServerLive" | "ServerReady")) => "health",
            ("/metrics", _) => "metrics",
            ("/predict", _) => "predict",
            (_, Some("ModelInfer")) => "infer",
            (path, _) if path.starts_with("/grpc.health.v1.Health/") => "health",
            (path, _) if path.starts_with("/v2/models/") && path.ends_with("/infer") => "infer",
            (path, _) if is_rows(path) => "rows",
            (path, _) if path.starts_with("/v2/repository/models/") => "change",
            ("/v2" | "/models" | "/slow", _) | (_, Some(_)) => "metadata",
            (path, _) if pages::NAMES.contains(&first_name(path)) => "status",
            (path, _) if path.starts_with("/v2/") => "metadata",
            _ => "other",
        };
        let is_work = matches!(name, "predict" | "infer" | "rows");
        Endpoint { name, is_open: matches!(name, "page" | "health"), is_work }
    }
}

fn is_rows(path: &str) -> bool {
    path.starts_with("/tables/") && path.ends_with("/rows") || path == "/sanderling.serve.Lookup/Rows"
}

fn first_name(path: &str) -> &str {
    path.split('/').nth(1).unwrap_or_default()
}

/// Admits requests with the token and never those of other sites' pages; limits their time and memory; counts them.
async fn admit(State(service): State<Arc<Service>>, mut request: Request, next: Next) -> Response {
    let start = Instant::now();
    let endpoint = Endpoint::of(request.uri().path());
    let protocol = if is_grpc(request.headers()) { "grpc" } else { "http" };
    let asked = Asked::new(service.batch_max, service.joins_max());
    request.extensions_mut().insert(asked.clone());
    let trace = service.trace_of(endpoint.is_work, request.headers());
    let logged = service.access_log.is_some();
    let peer = request.extensions().get::<SocketHandle>().filter(|_| logged).and_then(SocketHandle::peer);
    let (method, path) = match logged {
        true => (request.method().to_string(), request.uri().path().to_owned()),
        false => Default::default(),
    };
    let response = match refused(&service, endpoint, &request) {
        Some(refused) => refused,
        None if endpoint.is_work => work(&service, request, next).await,
        None => next.run(request).await,
    };
    let code = match protocol {
        "grpc" => {
            let said = response.headers().get("grpc-status").map(|code| Code::from_bytes(code.as_bytes()));
            format!("{:?}", said.unwrap_or(Code::Ok))
        }
        _ => response.status().as_str().to_owned(),
    };
    let answered = Answered { protocol, endpoint: endpoint.name, peer, method, path, code, trace };
    service.note(&answered, &asked, start.elapsed());
    response
}

/// Runs a request within its limits.
async fn work(service: &Service, request: Request, next: Next) -> Response {
    let headers =
        HeaderMap::from_iter(request.headers().get(CONTENT_TYPE).map(|kind| (CONTENT_TYPE, kind.clone())));
    let _memory = match service.reserve(request.method(), request.headers()) {
        Ok(memory) => memory,
        Err(error) => return refusal_as(&headers, &error),
    };
    let timeout = match timeout_of(request.headers()) {
        Ok(timeout) => timeout.map_or(service.timeout, |timeout| timeout.min(service.timeout)),
        Err(error) => return refusal_as(&headers, &error),
    };
    tokio::time::timeout(timeout, next.run(request)).await.unwrap_or_else(|_| {
        let text = format!("not answered within {} ms", timeout.as_millis());
        refusal_as(&headers, &ServeError::new(Kind::DeadlineExceeded, text))
    })
}

/// The time limit that a client gives its request.
fn timeout_of(headers: &HeaderMap) -> Result<Option<Duration>, ServeError> {
    let Some(value) = headers.get(TIMEOUT_MS) else { return Ok(None) };
    let ms = value.to_str().ok().and_then(|text| text.trim().parse().ok()).filter(|ms| *ms > 0);
    let wrong = || ServeError::invalid("timeout-ms: a whole number of milliseconds above 0 is expected");
    ms.ok_or_else(wrong).map(|ms| Some(Duration::from_millis(ms)))
}

/// Why a request is not admitted.
fn refused(service: &Service, endpoint: Endpoint, request: &Request) -> Option<Response> {
    let headers = request.headers();
    if endpoint.is_open {
        return None;
    }
    if web_page::is_from_other_site(headers) {
        let reason = "requests from pages of other sites are refused";
        return Some(refuse(headers, StatusCode::FORBIDDEN, Code::PermissionDenied, reason));
    }
    let host = web_page::host(request.uri(), headers).unwrap_or_default();
    // A page's host name may point to any address (DNS rebinding); a token protects from it.
    if !service.has_token() && !web_page::is_address(host) && !service.knows_host(host) {
        let reason = "the host that was asked for is none of this server's names: ask for it by its address, start the server \
                      with --allow-host NAME, or with a token";
        return Some(refuse(headers, StatusCode::MISDIRECTED_REQUEST, Code::PermissionDenied, reason));
    }
    if service.admits(sent_token(request.method(), headers).as_deref()) {
        if let Some(socket) = request.extensions().get::<SocketHandle>() {
            socket.admit();
        }
        return None;
    }
    let reason = "the token is missing or wrong; say it as \"authorization: Bearer TOKEN\"";
    let mut refused = refuse(headers, StatusCode::UNAUTHORIZED, Code::Unauthenticated, reason);
    if refused.status() == StatusCode::UNAUTHORIZED {
        ask_for_token(headers, &mut refused);
    }
    Some(refused)
}

type Shared = State<Arc<Service>>;

/// Reads the body of a request, and works on it on a scoring thread.
async fn on_body<S: Into<Step<Answer>>>(
    service: &Service,
    request: Request,
    work: impl Fn(&Models, &Asked, &HeaderMap, &[u8]) -> Result<S, ServeError> + Clone + Send + 'static,
) -> Response {
    let (parts, body) = request.into_parts();
    let asked = parts.extensions.get::<Asked>().cloned().unwrap_or_default();
    let reading = Instant::now();
    let body = match service.body(&parts.headers, body).await {
        Ok(body) => body,
        Err(error) => return refusal(&error),
    };
    asked.times.add_since(Stage::Read, reading);
    let (models, headers) = (service.models.current(), parts.headers);
    let copies = || (Arc::clone(&models), work.clone(), headers.clone(), body.clone());
    let repeat = shadow::is_wanted(&models).then(copies);
    if repeat.is_some() {
        asked.keep_scores();
    }
    let noted = asked.clone();
    let work = noted.queued(move || work(&models, &asked, &headers, &body).map(Into::into));
    let done = batches::run(&service.threads, service.batching, &noted.times, work).await;
    if let (Ok(_), Some((models, work, headers, body))) = (&done, repeat) {
        let again = move |models: &Models, asked: &Asked| work(models, asked, &headers, &body).map(drop);
        service.shadow.offer(service.threads.waiting() > 0, &models, &noted, again);
    }
    respond(done)
}

fn respond(done: Result<Answer, ServeError>) -> Response {
    done.map_or_else(|error| refusal(&error), Answer::into_response)
}

async fn answer_page() -> Response {
    let headers = [(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, PAGE_POLICY)];
    (headers, PAGE).into_response()
}

fn health_text(service: &Service) -> &'static str {
    match (service.is_draining(), service.is_ready()) {
        (true, _) => "draining",
        (false, true) => "serving",
        (false, false) => "loading",
    }
}

fn health_status(service: &Service) -> StatusCode {
    if service.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn answer_healthz(State(service): Shared) -> Response {
    (health_status(&service), format!("{}\n", health_text(&service))).into_response()
}

async fn answer_health(State(service): Shared) -> Response {
    let models = service.models.current();
    let model = |model: &Arc<crate::ServedModel>| serde_json::json!({ "name": model.name, "version": model.version.to_string(), "rows": model.rows() });
    let models: Vec<_> = models.iter().map(model).collect();
    let mut health = serde_json::json!({ "status": health_text(&service), "models": models });
    if let Some(replica) = service.replica.get() {
        health["replica"] = replica.health();
    }
    let mut response = respond(Answer::json(&health));
    *response.status_mut() = health_status(&service);
    response
}

async fn answer_live() -> Response {
    respond(Answer::json(&serde_json::json!({ "live": true })))
}

async fn answer_ready(State(service): Shared) -> Response {
    let mut response = respond(Answer::json(&serde_json::json!({ "ready": service.is_ready() })));
    *response.status_mut() = health_status(&service);
    response
}

async fn answer_metrics(State(service): Shared) -> Response {
    ([(CONTENT_TYPE, EXPOSITION_CONTENT_TYPE)], service.metrics_text()).into_response()
}

async fn answer_slow(State(service): Shared) -> Response {
    respond(Answer::json(&serde_json::json!({ "requests": service.slow.latest() })))
}

async fn answer_models(State(service): Shared) -> Response {
    respond(rest::list(&service.models.current()))
}

async fn answer_predict(State(service): Shared, request: Request) -> Response {
    on_body(&service, request, |models, asked, _, body| predict::answer(models, asked, body)).await
}

async fn answer_query(State(service): Shared, Path(table): Path<String>, request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let asked = request.extensions().get::<Asked>().cloned().unwrap_or_default();
    let (models, form) = (service.models.current(), Form::accepted(request.headers()));
    let noted = asked.clone();
    let work = noted.queued(move || lookup::answer_query(&models, &asked, &table, &query, form));
    respond(service.threads.run(work).await)
}

async fn answer_rows(State(service): Shared, Path(table): Path<String>, request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let work = move |models: &Models, asked: &Asked, headers: &HeaderMap, body: &[u8]| {
        let body = (Form::sent(headers), body);
        lookup::answer_body(models, asked, &table, &query, body, Form::accepted(headers))
    };
    on_body(&service, request, work).await
}

async fn answer_server() -> Response {
    respond(rest::server_metadata())
}

async fn answer_model(state: Shared, Path(model): Path<String>) -> Response {
    answer_version(state, Path((model, String::new()))).await
}

async fn answer_version(State(service): Shared, Path((name, version)): Path<(String, String)>) -> Response {
    let models = service.models.current();
    respond(models.find(&name, &version).and_then(|model| rest::model_metadata(&models, &model)))
}

async fn answer_model_ready(state: Shared, Path(model): Path<String>) -> Response {
    answer_version_ready(state, Path((model, String::new()))).await
}

async fn answer_version_ready(
    State(service): Shared,
    Path((name, version)): Path<(String, String)>,
) -> Response {
    match service.models.current().find(&name, &version) {
        Err(error) => refusal(&error),
        Ok(model) => {
            let ready = serde_json::json!({ "name": model.name, "ready": service.is_ready() });
            let mut response = respond(Answer::json(&ready));
            *response.status_mut() = health_status(&service);
            response
        }
    }
}

async fn answer_infer(state: Shared, Path(model): Path<String>, request: Request) -> Response {
    answer_version_infer(state, Path((model, String::new())), request).await
}

async fn answer_version_infer(
    State(service): Shared,
    Path((name, version)): Path<(String, String)>,
    request: Request,
) -> Response {
    let work = move |models: &Models, asked: &Asked, headers: &HeaderMap, body: &[u8]| {
        let model = models.find(&name, &version)?;
        asked.of(&model);
        let json_bytes = headers.get(JSON_BYTES).map(|length| {
            let length = length.to_str().ok().and_then(|length| length.parse().ok());
            length.ok_or_else(|| ServeError::invalid("Inference-Header-Content-Length is no number"))
        });
        rest::answer(&model, asked, body, json_bytes.transpose()?)
    };
    on_body(&service, request, work).await
}

async fn answer_index(State(service): Shared) -> Response {
    respond(versions::index(&service))
}

async fn answer_load(State(service): Shared, Path(name): Path<String>, request: Request) -> Response {
    respond(change(&service, name, request, versions::load_change).await)
}

async fn answer_unload(State(service): Shared, Path(name): Path<String>, request: Request) -> Response {
    respond(change(&service, name, request, versions::unload_change).await)
}

async fn change(
    service: &Service,
    name: String,
    request: Request,
    parse: impl Fn(&[u8]) -> Result<Change, ServeError>,
) -> Result<Answer, ServeError> {
    if !service.takes_changes() {
        return Err(versions::refused());
    }
    let body = axum::body::to_bytes(request.into_body(), SMALL_BYTES_MAX);
    let late = || ServeError::new(Kind::DeadlineExceeded, "the body did not arrive in time");
    let body = tokio::time::timeout(service.timeout, body).await.map_err(|_| late())?;
    let body = body.map_err(|_| ServeError::new(Kind::TooLarge, "the body is too long"))?;
    versions::change(service, name, parse(&body)?).await
}

/// A status page, or nothing.
async fn answer_status(pages: StatusPages, request: Request) -> Response {
    let (request, _) = request.into_parts();
    let page = pages.respond(&request.method, &request.uri, &request.headers).await;
    page.unwrap_or_else(|| answer_nothing(&request.headers))
}

fn answer_nothing(headers: &HeaderMap) -> Response {
    let text = "nothing here; there are /, /status, /predict, /tables/TABLE/rows, /v2, /models, /slow, /health, /metrics, and gRPC";
    let error = ServeError::new(Kind::NotFound, text);
    if is_grpc(headers) {
        return tonic::Status::unimplemented("this server has no such service").into_http();
    }
    refusal(&error)
}

async fn answer_other_method(request: Request) -> Response {
    let text = format!("{} is not for this path; see docs/serving.md", request.method());
    let mut response = refusal(&ServeError::invalid(text));
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_their_endpoint() {
        for (path, name, is_open, is_work) in [
            ("/", "page", true, false),
            ("/health", "health", true, false),
            ("/healthz", "health", true, false),
            ("/v2/health/ready", "health", true, false),
            ("/grpc.health.v1.Health/Check", "health", true, false),
            ("/inference.GRPCInferenceService/ServerReady", "health", true, false),
            ("/sanderling.serve.Lookup/Rows", "rows", false, true),
            ("/inference.GRPCInferenceService/ModelReady", "metadata", false, false),
            ("/inference.GRPCInferenceService/ModelInfer", "infer", false, true),
            ("/metrics", "metrics", false, false),
            ("/models", "metadata", false, false),
            ("/predict", "predict", false, true),
            ("/tables/user/rows", "rows", false, true),
            ("/v2", "metadata", false, false),
            ("/v2/models/m", "metadata", false, false),
            ("/v2/models/m/versions/1/infer", "infer", false, true),
            ("/v2/repository/index", "metadata", false, false),
            ("/v2/repository/models/m/load", "change", false, false),
            ("/tables/user", "status", false, false),
            ("/vars/a*", "status", false, false),
            ("/other", "other", false, false),
        ] {
            assert_eq!(Endpoint::of(path), Endpoint { name, is_open, is_work }, "{path}");
        }
    }
}
