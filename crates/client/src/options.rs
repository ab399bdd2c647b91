//! How servers are reached and how long they are waited for. Opens nothing.

use std::time::Duration;

use sanderling_transport::{Framing, SPIN_US_DEFAULT, TlsClient};

/// A request that has no answer by then has failed.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(20);
/// A server that cannot be reached by then, at the start, is not there.
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// How servers are reached.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Bearer token, or empty.
    pub token: String,
    /// How this client is called in the servers' lists.
    pub name: String,
    /// Within which a request must be answered, all attempts together.
    pub timeout: Duration,
    /// Within which a server must be reached at the start.
    pub connect_timeout: Duration,
    /// Whether servers of the same host are talked to over the fastest way that they offer, whatever their address.
    pub prefer_local: bool,
    /// Whom to trust, for TLS on TCP.
    pub tls: Option<TlsClient>,
    /// How long waits stay awake at most before they sleep, in microseconds.
    pub spin_us: u32,
}

impl Default for ConnectOptions {
    fn default() -> ConnectOptions {
        ConnectOptions {
            token: String::new(),
            name: format!("process {}", std::process::id()),
            timeout: TIMEOUT_DEFAULT,
            connect_timeout: CONNECT_TIMEOUT_DEFAULT,
            prefer_local: true,
            tls: None,
            spin_us: SPIN_US_DEFAULT,
        }
    }
}

impl ConnectOptions {
    /// The part that is the transport's.
    pub(crate) fn transport(&self, framing: Framing) -> sanderling_transport::ConnectOptions {
        let mut options = sanderling_transport::ConnectOptions::new(framing);
        options.timeout = self.connect_timeout.min(self.timeout);
        options.write_timeout = self.timeout;
        options.tls.clone_from(&self.tls);
        options.spin_us = self.spin_us;
        options
    }
}
