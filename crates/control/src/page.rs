//! Plain HTTP `/metrics`, `/healthz` and status pages for a process without a control plane, such as a hub.
//!
//! The port has neither token nor TLS, so it answers on this machine only.

use std::net::{SocketAddr, TcpListener as StdListener, ToSocketAddrs};
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
use sanderling_http::{serve, web_page};
use sanderling_observe::EXPOSITION_CONTENT_TYPE;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
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
}

/// A page that answers until it is dropped.
#[derive(Debug)]
pub struct MetricsPage {
    address: SocketAddr,
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
        let bound = listener.local_addr().map_err(io)?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(io)?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener).map_err(io)?
        };
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("metrics".to_owned());
        let thread = thread
            .spawn(move || runtime.block_on(run(listener, Arc::new(text), pages, stopped)))
            .map_err(io)?;
        Ok(MetricsPage { address: bound, stop: Some(stop), thread: Some(thread) })
    }

    /// The URL, such as `http://127.0.0.1:9100/metrics`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
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

async fn run(listener: TcpListener, text: Text, pages: Option<StatusPages>, stopped: oneshot::Receiver<()>) {
    let router = Router::new()
        .route("/metrics", get(answer))
        .route("/healthz", get(|| async { "serving\n" }))
        .with_state(text)
        .fallback(move |request| answer_page(pages.clone(), request))
        .layer(axum::middleware::from_fn(no_page));
    serve(listener, None, Routes::from(router), PORT, async {
        // Nothing is ever sent. The wait ends when the other side is dropped.
        let _ = stopped.await;
    })
    .await;
}

/// Refuses requests that a web page may have sent.
async fn no_page(request: Request, next: Next) -> Response {
    let host = web_page::host(request.uri(), request.headers()).unwrap_or_default();
    let is_host = web_page::is_address(host) || host.eq_ignore_ascii_case("localhost");
    match web_page::refusal(request.method(), request.headers()) {
        Some((code, reason)) => (code, reason).into_response(),
        None if !is_host => (StatusCode::MISDIRECTED_REQUEST, "ask for it by its address\n").into_response(),
        None => next.run(request).await,
    }
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
        let mut stream = TcpStream::connect(page.address).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("sent");
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
        let taken = page.address.to_string();
        assert!(matches!(MetricsPage::start(&taken, String::new), Err(PageError::Io { .. })));
        drop(page);
        for (address, is_io) in [("0.0.0.0:0", false), ("[::]:0", false), ("nowhere", true)] {
            let error = MetricsPage::start(address, String::new).expect_err(address);
            assert_eq!(matches!(error, PageError::Io { .. }), is_io, "{error}");
        }
    }
}
