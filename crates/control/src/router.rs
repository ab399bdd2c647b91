//! Routes and authentication: the gRPC services, and plain HTTP for scrapers and probes.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sanderling_http::status_pages::StatusPages;
use sanderling_http::web_page::{self, is_grpc};
use sanderling_http::{SocketHandle, ask_for_token, refuse, sent_token};
use sanderling_observe::EXPOSITION_CONTENT_TYPE;
use sanderling_server::StatsScope;
use tonic::service::Routes;
use tonic::{Code, Status};
use tonic_health::pb::health_server::{Health, HealthServer};

use crate::limit::{REPLY_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::metrics;
use crate::proto::control_server::ControlServer;
use crate::service::{self, Service};
use crate::table_samples::TableSamples;

/// Paths without authentication, because probes have no token: the health service and its plain counterparts.
const OPEN_TO_ALL: [&str; 3] = ["/grpc.health.v1.Health/", "/healthz", "/readyz"];
const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// Builds the routes.
///
/// # Errors
/// The service descriptor is invalid.
pub(crate) fn router(
    service: &Service,
    pages: StatusPages,
    health: HealthServer<impl Health>,
) -> Result<Router, tonic_reflection::server::Error> {
    let control = ControlServer::new(service.clone())
        .max_decoding_message_size(REQUEST_BYTES_MAX)
        .max_encoding_message_size(REPLY_BYTES_MAX);
    let description = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(crate::DESCRIPTION)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let grpc = Routes::new(control)
        .add_service(health.max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(description().build_v1()?.max_decoding_message_size(REQUEST_BYTES_MAX))
        // Older tools use this version.
        .add_service(description().build_v1alpha()?.max_decoding_message_size(REQUEST_BYTES_MAX));
    let plain = Router::new()
        .route("/metrics", get(answer_metrics))
        .route("/healthz", get(answer_healthz))
        .route("/readyz", get(answer_readyz))
        .with_state(service.clone());
    let asked = service.clone();
    Ok(grpc
        .into_axum_router()
        .merge(plain)
        .fallback(move |request| answer_page(asked.clone(), pages.clone(), request))
        .layer(from_fn_with_state(service.clone(), admit)))
}

/// Admits requests with the server's token, and never those of web pages.
///
/// A server without a token also requires one of its own host names, because a page's host name may point to any
/// address (DNS rebinding).
async fn admit(State(service): State<Service>, request: Request, next: Next) -> Response {
    let control = service.control();
    let path = request.uri().path();
    let open = OPEN_TO_ALL.iter().any(|open| path.starts_with(open));
    // Other sites' pages can send no PUT without being allowed to, so no content type is asked for.
    let is_setting = request.method() == Method::PUT && path.starts_with("/flags/");
    let method = if is_setting { &Method::GET } else { request.method() };
    if !open && let Some((code, reason)) = web_page::refusal(method, request.headers()) {
        return refuse(request.headers(), code, Code::PermissionDenied, reason);
    }
    let host = web_page::host(request.uri(), request.headers()).unwrap_or_default();
    let is_host = control.has_token() || web_page::is_address(host) || control.knows_host(host);
    if !open && !is_host {
        let reason = "the host that was asked for is none of this server's names: ask for it by its address, start the server \
                      with --allow-host NAME, or with a token";
        return refuse(request.headers(), StatusCode::MISDIRECTED_REQUEST, Code::PermissionDenied, reason);
    }
    let admitted = control.admits(sent_token(request.method(), request.headers()).as_deref());
    if admitted && let Some(socket) = request.extensions().get::<SocketHandle>() {
        socket.admit();
    }
    if open || admitted {
        return next.run(request).await;
    }
    let peer = request.extensions().get::<SocketHandle>().and_then(SocketHandle::peer);
    control.refused_login(&peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string()));
    let reason = "the token is missing or wrong; say it as \"authorization: Bearer TOKEN\"";
    let mut refused = refuse(request.headers(), StatusCode::UNAUTHORIZED, Code::Unauthenticated, reason);
    if refused.status() == StatusCode::UNAUTHORIZED {
        ask_for_token(request.headers(), &mut refused);
    }
    refused
}

async fn answer_metrics(State(service): State<Service>) -> Response {
    let text = service.query(|control| {
        let tables: Vec<_> = control.tables().into_iter().map(service::table).collect();
        let latencies = |scope| control.stats(scope).into_iter().map(service::latency).collect::<Vec<_>>();
        let (by_command, by_peer) = (latencies(StatsScope::Commands), latencies(StatsScope::Peers));
        let (status, samples) = (service::status(control), TableSamples::of_all(control));
        metrics::text(&status, &tables, &by_command, &by_peer, control.log_syncs(), &samples)
    });
    match text.await {
        Ok(text) => ([(CONTENT_TYPE, EXPOSITION_CONTENT_TYPE)], text).into_response(),
        Err(status) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{}\n", status.message())).into_response(),
    }
}

async fn answer_healthz(State(service): State<Service>) -> Response {
    let (code, text) = match service.control().is_ending() {
        true => (StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
        false => (StatusCode::OK, "serving\n"),
    };
    (code, [(CONTENT_TYPE, PLAIN_TEXT)], text).into_response()
}

/// Whether the server serves and, as a replica, has every acknowledged push: the next one may be restarted.
async fn answer_readyz(State(service): State<Service>) -> Response {
    let group = service.control().group();
    match group.map(|group| group.role).filter(|role| !matches!(*role, "primary" | "in sync")) {
        Some(role) => (StatusCode::SERVICE_UNAVAILABLE, [(CONTENT_TYPE, PLAIN_TEXT)], format!("{role}\n"))
            .into_response(),
        None => answer_healthz(State(service)).await,
    }
}

/// A status page, or nothing.
async fn answer_page(service: Service, pages: StatusPages, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    if !is_grpc(&parts.headers) {
        let (method, uri, headers) = (parts.method.clone(), parts.uri.clone(), parts.headers.clone());
        if let Some(profile) = pages.profile(&method, &uri, &headers).await {
            return profile;
        }
        match service.query(move |_| pages.answer(&method, &uri, &headers)).await {
            Ok(Some(page)) => return page,
            Ok(None) => {}
            Err(status) => {
                let reason = format!("{}\n", status.message());
                return (StatusCode::INTERNAL_SERVER_ERROR, reason).into_response();
            }
        }
    }
    answer_nothing(&parts)
}

fn answer_nothing(request: &Parts) -> Response {
    if is_grpc(&request.headers) {
        let path = request.uri.path();
        return Status::unimplemented(format!("{path}: this server has no such service")).into_http();
    }
    let text = "nothing here; there are /status, /metrics, /healthz, and gRPC (sanderling.control.Control)\n";
    (StatusCode::NOT_FOUND, [(CONTENT_TYPE, PLAIN_TEXT)], text).into_response()
}
