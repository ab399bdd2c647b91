//! How servers are reached and how long they are waited for. Opens nothing.

use std::time::Duration;

use sanderling_transport::{Framing, SPIN_US_DEFAULT, TlsClient};
use sanderling_wire::Compression;

use crate::exchange::Hedge;
use crate::outage::OnWait;
use crate::stop::Stop;

/// A request that has no answer by then has failed, and a server that is away for so long is given up.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(20);
/// A server that cannot be reached by then, at the start, is not there.
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// How servers are reached.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Bearer token, or empty: the one that a server of this user and host has made for itself, if there is one.
    pub token: String,
    /// How this client is called in the servers' lists.
    pub name: String,
    /// Within which a request must be answered, all attempts together. A server that is away for so long is given up: what is
    /// asked of it afterwards gets one attempt of at most two seconds, until it answers again.
    pub timeout: Duration,
    /// Within which a server must be reached at the start.
    pub connect_timeout: Duration,
    /// Whether servers of the same host are talked to over the fastest way that they offer, whatever their address.
    pub prefer_local: bool,
    /// Whom to trust, for TLS on TCP.
    pub tls: Option<TlsClient>,
    /// How long waits stay awake at most before they sleep, in microseconds.
    pub spin_us: u32,
    /// Whether pulled rows travel in half precision: half the bytes, each value rounded to the nearest, with a relative
    /// error of at most 2^-11 (absolute 2^-25 below 2^-14; beyond 65504 it becomes 65504). For links that are slower
    /// than memory.
    pub f16_rows: bool,
    /// How requests and answers of 1 KiB and more are compressed, for slow links; never where bytes stay in memory.
    pub compression: Option<Compression>,
    /// When a pull is asked for again over a second connection to the same server; the first answer is taken. At most 5 %
    /// of the pulls, each once. Pushes are never sent twice for this.
    pub hedge: Option<Hedge>,
    /// Who waits for servers asks this now and then; none: only deadlines end a wait.
    pub stop: Option<Stop>,
    /// Who is told when a server has been waited for, after a second and then more and more rarely.
    pub on_wait: Option<OnWait>,
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
            f16_rows: false,
            compression: None,
            hedge: None,
            stop: None,
            on_wait: None,
        }
    }
}

impl ConnectOptions {
    /// The part that is the transport's, for who can wait so long.
    pub(crate) fn transport(
        &self,
        framing: Framing,
        within: Duration,
    ) -> sanderling_transport::ConnectOptions {
        let mut options = sanderling_transport::ConnectOptions::new(framing);
        options.timeout = self.connect_timeout.min(self.timeout).min(within);
        if let Some(left) = self.stop.as_ref().and_then(Stop::told) {
            options.timeout = options.timeout.min(left);
        }
        options.write_timeout = self.timeout;
        options.tls.clone_from(&self.tls);
        options.spin_us = self.spin_us;
        options
    }
}

/// The compression of this name: `lz4` or `zstd`.
pub fn compression(name: &str) -> Result<Compression, String> {
    match name {
        "lz4" => Ok(Compression::Lz4),
        "zstd" => Ok(Compression::Zstd),
        _ => Err(format!("{name:?} is no compression; 'lz4', 'zstd' are")),
    }
}
