//! The thread that posts spans. Knows no span's content.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sanderling_observe::SpanQueue;
use tokio::runtime::{Builder, Runtime};

use crate::{Endpoint, endpoint, json};

/// Interval of posts.
const POST_EVERY: Duration = Duration::from_secs(1);
/// Spans of a post.
const POST_SPANS_MAX: usize = 512;
/// Longest wait for a connection, and for an answer.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Longest wait before the collector is tried again.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Time for the last spans when the process ends.
const LAST_WITHIN: Duration = Duration::from_secs(2);

/// The process that the spans are of.
#[derive(Debug, Clone, Default)]
pub struct Resource {
    /// Kind of the process, such as `sanderling-ps`.
    pub service: String,
    /// Which one of these, such as the shard or the name of a run.
    pub instance: String,
    /// Name of the host.
    pub host: String,
}

/// Posts spans until it is dropped, which posts those that wait.
#[derive(Debug)]
pub struct Exporter {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Starts to post the spans of a queue. `note` gets a line when the collector goes away, and when it is back.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(
        endpoint: Endpoint,
        resource: Resource,
        spans: Arc<SpanQueue>,
        note: impl Fn(&str) + Send + 'static,
    ) -> io::Result<Exporter> {
        // The HTTP client needs a process-wide provider; one that is installed already stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_WITHIN)
            .timeout(ANSWER_WITHIN)
            .build()
            .map_err(io::Error::other)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let post = Post { endpoint, headers: endpoint::headers(), resource, spans, client, runtime };
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("otlp".to_owned());
        let thread = thread.spawn(move || post.run(&stopped, &note))?;
        Ok(Exporter { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Post {
    endpoint: Endpoint,
    headers: Vec<(String, String)>,
    resource: Resource,
    spans: Arc<SpanQueue>,
    client: reqwest::Client,
    runtime: Runtime,
}

impl Post {
    fn run(&self, stopped: &Receiver<()>, note: &dyn Fn(&str)) {
        let mut wait = POST_EVERY;
        loop {
            let is_last = stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout);
            let was_away = wait > POST_EVERY;
            match self.post_waiting(is_last) {
                Ok(posted) => {
                    if was_away && posted > 0 {
                        note("traces are exported again");
                    }
                    if posted > 0 {
                        wait = POST_EVERY;
                    }
                }
                Err(reason) => {
                    if !was_away {
                        note(&format!("traces are dropped: {}: {reason}", self.endpoint.url));
                    }
                    wait = (wait * 2).min(RETRY_MAX);
                }
            }
            if is_last {
                let left = self.spans.take(usize::MAX).len();
                return self.spans.note_dropped(left);
            }
        }
    }

    /// Posts what waits; returns how many spans that were.
    fn post_waiting(&self, is_last: bool) -> Result<usize, String> {
        let (began, mut posted) = (Instant::now(), 0);
        loop {
            let spans = self.spans.take(POST_SPANS_MAX);
            if spans.is_empty() || is_last && began.elapsed() > LAST_WITHIN {
                self.spans.note_dropped(spans.len());
                return Ok(posted);
            }
            let within = if is_last { LAST_WITHIN } else { ANSWER_WITHIN };
            let body = json::request(&self.resource, &spans);
            match self.runtime.block_on(self.post(body, within)) {
                Ok(()) => self.spans.note_exported(spans.len()),
                Err(reason) => {
                    self.spans.note_dropped(spans.len());
                    return Err(reason);
                }
            }
            posted += spans.len();
        }
    }

    async fn post(&self, body: String, within: Duration) -> Result<(), String> {
        let mut request = self.client.post(self.endpoint.url.clone()).timeout(within);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.header("content-type", "application/json").body(body);
        let answer = request.send().await.map_err(|error| words(&error))?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("the collector answers {status}")),
        }
    }
}

/// The last cause of an error, without the url.
fn words(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(found) = cause.source() {
        cause = found;
    }
    cause.to_string()
}
