//! HTTP `/metrics`, `/healthz` and status pages for a process without a control plane, such as a hub or a trainer.
//!
//! The port answers on this machine only, unless it is exposed by the rules of all servers.

use std::net::{SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sanderling_http::status_pages::StatusPages;
use sanderling_http::{
    SocketHandle, TlsAcceptor, acceptor, ask_for_token, refuse, sent_token, serve, web_page,
};
use sanderling_observe::EXPOSITION_CONTENT_TYPE;
use sanderling_server::same_token;
use sanderling_transport::{Address, ListenOptions, Listener, TlsServer};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::Code;
use tonic::service::Routes;

use crate::limit::PORT;

type Text = Arc<dyn Fn() -> String + Send + Sync>;

/// Why the page does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The address is invalid, or the system lacks resources.
    #[error("metrics at {address}: {source}")]
    Io {
        /// The given address.
        address: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Other machines could reach the address.
    #[error("metrics at {address}: not a loopback address; use one, such as 127.0.0.1:9100")]
    NotLoopback {
        /// The given address.
        address: String,
    },
    /// The address is taken, or may not be exposed.
    #[error(transparent)]
    Transport(#[from] sanderling_transport::Error),
    /// The certificate or the key is invalid.
    #[error("{0}")]
    Tls(String),
}

/// Access to a page.
#[derive(Debug, Clone, Default)]
pub struct PageAccess {
    /// The token that a request must bring.
    pub token: Option<String>,
    /// Certificate and key (PEM), for TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Whether other machines may reach the address.
    pub expose: bool,
    /// Whether that may be so without TLS and token.
    pub insecure: bool,
}

/// A page that answers until it is dropped.
#[derive(Debug)]
pub struct MetricsPage {
    /// Such as `http://127.0.0.1:9100`.
    url: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsPage {
    /// Starts the page at `host:port` of this machine; port 0 picks a free one. Its thread calls `text` for each
    /// request.
    ///
    /// # Errors
    /// The address is invalid, taken or not a loopback address, or the system lacks resources.
    pub fn start(
        address: &str,
        text: impl Fn() -> String + Send + Sync + 'static,
    ) -> Result<MetricsPage, PageError> {
        MetricsPage::start_with(address, text, None)
    }

    /// [`MetricsPage::start`] with status pages beside the metrics.
    ///
    /// # Errors
    /// As those of [`MetricsPage::start`].
    pub fn start_with(
        address: &str,
        text: impl Fn() -> String + Send + Sync + 'static,
        pages: Option<StatusPages>,
    ) -> Result<MetricsPage, PageError> {
        let io = |source| PageError::Io { address: address.to_owned(), source };
        let found: Vec<SocketAddr> = address.to_socket_addrs().map_err(io)?.collect();
        if !found.iter().all(|found| found.ip().is_loopback()) {
            return Err(PageError::NotLoopback { address: address.to_owned() });
        }
        let listener = StdListener::bind(&found[..]).map_err(io)?;
        listener.set_nonblocking(true).map_err(io)?;
        let url = format!("http://{}", listener.local_addr().map_err(io)?);
        let routes = routes(Arc::new(text), pages, None);
        MetricsPage::run(listener, None, url, routes).map_err(io)
    }

    /// [`MetricsPage::start_with`] at an address that is exposed, with TLS and a token, as servers are.
    ///
    /// # Errors
    /// The address is taken or may not be exposed, certificate and key do not fit, or the system lacks resources.
    pub fn start_for(
        address: &Address,
        access: &PageAccess,
        text: impl Fn() -> String + Send + Sync + 'static,
        pages: Option<StatusPages>,
    ) -> Result<MetricsPage, PageError> {
        let tls = access.tls.as_ref().map(acceptor).transpose().map_err(PageError::Tls)?;
        let mut options = ListenOptions::for_http();
        (options.expose, options.insecure) = (access.expose, access.insecure);
        options.token = access.token.is_some();
        options.tls = match &access.tls {
            Some((certificate, key)) => Some(TlsServer::from_files(certificate, key)?),
            None => None,
        };
        let io = |source| PageError::Io { address: address.to_string(), source };
        let (listener, bound) = Listener::bind(address, &options)?.port().map_err(io)?;
        let url = format!("{}://{bound}", if tls.is_some() { "https" } else { "http" });
        MetricsPage::run(listener, tls, url, routes(Arc::new(text), pages, access.token.clone())).map_err(io)
    }

    fn run(
        listener: StdListener,
        tls: Option<TlsAcceptor>,
        url: String,
        routes: Routes,
    ) -> std::io::Result<MetricsPage> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("metrics".to_owned());
        let thread = thread.spawn(move || {
            runtime.block_on(serve(listener, tls, routes, PORT, async {
                // Nothing is ever sent. The wait ends when the other side is dropped.
                let _ = stopped.await;
            }));
            // A profile under way must not delay the end of the process.
            runtime.shutdown_background();
        })?;
        Ok(MetricsPage { url, stop: Some(stop), thread: Some(thread) })
    }

    /// The URL of the metrics, such as `http://127.0.0.1:9100/metrics`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}/metrics", self.url)
    }

    /// The URL of the status pages, such as `http://127.0.0.1:9100`.
    #[must_use]
    pub fn pages_url(&self) -> &str {
        &self.url
    }
}

impl Drop for MetricsPage {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }
}

fn routes(text: Text, pages: Option<StatusPages>, token: Option<String>) -> Routes {
    let token: Arc<Option<String>> = Arc::new(token);
    let router = Router::new()
        .route("/metrics", get(answer))
        .route("/healthz", get(|| async { "serving\n" }))
        .with_state(text)
        .fallback(move |request| answer_page(pages.clone(), request))
        .layer(axum::middleware::from_fn_with_state(token, admit));
    Routes::from(router)
}

/// Admits requests with the token, and never those that a web page may have sent.
async fn admit(State(token): State<Arc<Option<String>>>, request: Request, next: Next) -> Response {
    // Probes have no token.
    if request.uri().path() == "/healthz" {
        return next.run(request).await;
    }
    let headers = request.headers();
    if let Some((code, reason)) = web_page::refusal(request.method(), headers) {
        return (code, reason).into_response();
    }
    let host = web_page::host(request.uri(), headers).unwrap_or_default();
    let is_host = web_page::is_address(host) || host.eq_ignore_ascii_case("localhost");
    let Some(token) = &*token else {
        return match is_host {
            true => next.run(request).await,
            false => (StatusCode::MISDIRECTED_REQUEST, "ask for it by its address\n").into_response(),
        };
    };
    let given = sent_token(request.method(), headers).unwrap_or_default();
    if !same_token(token, &given) {
        let reason = "the token is missing or wrong; say it as \"authorization: Bearer TOKEN\"";
        let mut refused = refuse(headers, StatusCode::UNAUTHORIZED, Code::Unauthenticated, reason);
        ask_for_token(headers, &mut refused);
        return refused;
    }
    if let Some(socket) = request.extensions().get::<SocketHandle>() {
        socket.admit();
    }
    next.run(request).await
}

/// A status page, or nothing.
async fn answer_page(pages: Option<StatusPages>, request: Request) -> Response {
    let (request, _) = request.into_parts();
    if let Some(pages) = pages
        && let Some(page) = pages.respond(&request.method, &request.uri, &request.headers).await
    {
        return page;
    }
    (StatusCode::NOT_FOUND, "nothing here; there are /metrics and /healthz\n").into_response()
}

async fn answer(State(text): State<Text>) -> impl IntoResponse {
    ([(CONTENT_TYPE, EXPOSITION_CONTENT_TYPE)], text())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    fn ask(page: &MetricsPage, path: &str) -> String {
        ask_with(page, path, "Host: localhost\r\n")
    }

    fn ask_with(page: &MetricsPage, path: &str, headers: &str) -> String {
        let address = page.url.split_once("//").expect("a URL").1;
        let mut stream = TcpStream::connect(address).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer
    }

    #[test]
    fn a_page_says_what_it_is_given_and_nothing_to_other_machines() {
        let page = MetricsPage::start("127.0.0.1:0", || "queue_rows 3\n".to_owned()).expect("it starts");
        let answer = ask(&page, "/metrics");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains(EXPOSITION_CONTENT_TYPE) && answer.contains("queue_rows 3\n"), "{answer}");
        assert!(ask(&page, "/healthz").starts_with("HTTP/1.1 200"));
        assert!(ask(&page, "/other").starts_with("HTTP/1.1 404"));
        let taken = page.url.split_once("//").expect("a URL").1.to_owned();
        assert!(matches!(MetricsPage::start(&taken, String::new), Err(PageError::Io { .. })));
        drop(page);
        for (address, is_io) in [("0.0.0.0:0", false), ("[::]:0", false), ("nowhere", true)] {
            let error = MetricsPage::start(address, String::new).expect_err(address);
            assert_eq!(matches!(error, PageError::Io { .. }), is_io, "{error}");
        }
    }
    #[test]
    fn a_page_with_a_token_asks_for_it() {
        let access = |token: Option<&str>, expose, insecure| PageAccess {
            token: token.map(str::to_owned),
            tls: None,
            expose,
            insecure,
        };
        let here: Address = "127.0.0.1:0".parse().expect("an address");
        let start = |address: &Address, access: &PageAccess| {
            MetricsPage::start_for(address, access, || "rows 3\n".to_owned(), None)
        };
        let page = start(&here, &access(Some("secret"), false, false)).expect("it starts");
        for (path, headers, expected) in [
            ("/metrics", "Host: localhost\r\n", "401"),
            ("/metrics", "Host: localhost\r\nAuthorization: Bearer wrong\r\n", "401"),
            ("/metrics", "Host: any\r\nAuthorization: Bearer secret\r\n", "200"),
            ("/metrics", "Host: any\r\nAuthorization: Basic OnNlY3JldA==\r\n", "200"),
            ("/metrics", "Host: any\r\nOrigin: http://evil\r\nAuthorization: Bearer secret\r\n", "403"),
            ("/healthz", "Host: any\r\n", "200"),
        ] {
            let answer = ask_with(&page, path, headers);
            assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{path} {headers}: {answer}");
        }
        let open = start(&here, &access(None, false, false)).expect("it starts");
        assert!(ask_with(&open, "/metrics", "Host: evil.example\r\n").starts_with("HTTP/1.1 421"));
        let everywhere: Address = "0.0.0.0:0".parse().expect("an address");
        for (access, is_started) in [
            (access(None, false, false), false),
            (access(Some("secret"), true, false), false),
            (access(None, true, true), true),
        ] {
            assert_eq!(start(&everywhere, &access).is_ok(), is_started, "{access:?}");
        }
    }
}
