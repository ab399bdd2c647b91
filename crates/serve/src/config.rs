//! The configuration of a server: where it listens, for whom, and its limits.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sanderling_http::status_pages::PageOptions;
use sanderling_observe::SpanQueue;
use sanderling_transport::Address;

use crate::dense::Engines;
use crate::limit::{
    BATCH_MAX, BATCH_MAX_DEFAULT, BATCH_ROWS_MAX_DEFAULT, BATCH_WINDOW_MAX, BODY_BYTES_MAX,
    BODY_BYTES_MAX_DEFAULT, DRAIN_TIMEOUT_DEFAULT, QUEUE_DEFAULT, QUEUE_MAX, SLOW_DEFAULT, THREADS_MAX,
    TIMEOUT_DEFAULT,
};

/// The configuration of a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// A TCP address.
    pub listen: Address,
    /// A TCP address at which rows are read by the protocol of Redis.
    pub resp: Option<Address>,
    /// Whether other machines may reach the addresses.
    pub expose: bool,
    /// Whether they may reach it without TLS and a token.
    pub insecure: bool,
    /// The token that requests must bring.
    pub token: Option<String>,
    /// Certificate and key (PEM files), for TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Host names that a server without a token accepts besides addresses and localhost.
    pub hosts: Vec<String>,
    /// Scoring threads.
    pub threads: usize,
    /// Requests that may wait for a scoring thread.
    pub queue: usize,
    /// Time limit of a request.
    pub timeout: Duration,
    /// Wait for a thread that is accepted; while all wait longer, fewer requests are admitted. None: a tenth of the
    /// time limit.
    pub queue_time: Option<Duration>,
    /// Time from which on a request is listed as slow.
    pub slow: Duration,
    /// File of the access log; `-` is standard output.
    pub access_log: Option<PathBuf>,
    /// Time limit for requests under way at the end.
    pub drain_timeout: Duration,
    /// Rows, or keys, of a request.
    pub batch_max: usize,
    /// Bytes of a request.
    pub body_bytes_max: usize,
    /// Time for which the first request of a deep model waits for others, to run the dense part once; zero: none waits.
    pub batch_window: Duration,
    /// Rows of a batch of several requests; a request with more runs alone.
    pub batch_rows_max: usize,
    /// The engine of the dense part of deep models.
    pub engines: Engines,
    /// Settings of its status pages.
    pub pages: PageOptions,
    /// Where the spans of traced requests go; None: nowhere.
    pub spans: Option<Arc<SpanQueue>>,
}

impl Config {
    /// The defaults at an address: no token, no TLS, a scoring thread per processor.
    #[must_use]
    pub fn new(listen: Address) -> Config {
        Config {
            listen,
            resp: None,
            expose: false,
            insecure: false,
            token: None,
            tls: None,
            hosts: Vec::new(),
            threads: std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX),
            queue: QUEUE_DEFAULT,
            timeout: TIMEOUT_DEFAULT,
            queue_time: None,
            slow: SLOW_DEFAULT,
            access_log: None,
            drain_timeout: DRAIN_TIMEOUT_DEFAULT,
            batch_max: BATCH_MAX_DEFAULT,
            body_bytes_max: BODY_BYTES_MAX_DEFAULT,
            batch_window: Duration::ZERO,
            batch_rows_max: BATCH_ROWS_MAX_DEFAULT,
            engines: Engines::default(),
            pages: PageOptions::default(),
            spans: None,
        }
    }

    /// Checks the limits and the kind of the address.
    ///
    /// # Errors
    /// The setting that is wrong, and its bounds.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (what, value, max) in [
            ("threads", self.threads, THREADS_MAX),
            ("queue", self.queue, QUEUE_MAX),
            ("batch_max", self.batch_max, BATCH_MAX),
            ("body_max", self.body_bytes_max, BODY_BYTES_MAX),
            ("batch_rows_max", self.batch_rows_max, BATCH_MAX),
        ] {
            if !(1..=max).contains(&value) {
                return Err(format!("{what} = {value}: must be 1 to {max}"));
            }
        }
        if self.batch_window > BATCH_WINDOW_MAX {
            let max = BATCH_WINDOW_MAX.as_millis();
            return Err(format!("batch_window = {:?}: must be at most {max} ms", self.batch_window));
        }
        if self.timeout.is_zero() {
            return Err("timeout: must be more than 0".to_owned());
        }
        match std::iter::once(&self.listen).chain(&self.resp).find(|it| !matches!(it, Address::Tcp(_))) {
            None => Ok(()),
            Some(other) => Err(format!("{other}: a TCP address is needed; write host:port")),
        }
    }
}
