//! Options of connections to servers: transport, time-outs, compression. Opens nothing.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sanderling_observe::SpanQueue;
use sanderling_transport::{Framing, SPIN_US_DEFAULT, TlsClient};
use sanderling_wire::Compression;

use crate::error::ClientError;
use crate::outage::OnWait;
use crate::rpc_state::Hedge;
use crate::stop::Stop;

/// A request that has no answer by then has failed, and a server that is away for so long is given up.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(20);
/// A server that cannot be reached by then, at the start, is not there.
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// Which replicas of a cluster's groups answer pulls. Pushes go to the primaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PullFrom {
    /// The primary: a pull sees every acknowledged push.
    #[default]
    Primary,
    /// Each connection's replica, drawn at random; the primary, if that one is away, silent or too far behind.
    ///
    /// A pull may miss pushes of the last moments, also of its own thread.
    Any,
}

impl FromStr for PullFrom {
    type Err = String;

    fn from_str(text: &str) -> Result<PullFrom, String> {
        match text {
            "primary" => Ok(PullFrom::Primary),
            "any" => Ok(PullFrom::Any),
            _ => Err(format!("{text:?}: must be primary or any")),
        }
    }
}

impl PullFrom {
    /// Refuses what does not go with pulls from any replica.
    pub(crate) fn check(self, options: &ConnectOptions, has_groups: bool) -> Result<(), ClientError> {
        let reason = match self {
            PullFrom::Primary => return Ok(()),
            PullFrom::Any if !has_groups => {
                "pulls from any replica need a cluster: give the address of its registry, such as registry://ads"
            }
            PullFrom::Any if options.hedge.is_some() => {
                "hedged pulls use the primary's second connection: leave out hedging, or pulls from any replica"
            }
            PullFrom::Any => return Ok(()),
        };
        Err(ClientError::Cluster { reason: reason.to_owned() })
    }
}

/// How servers are reached.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Bearer token; empty for the token that a server of this user and host has made for itself.
    pub token: String,
    /// How this client is called in the servers' lists.
    pub name: String,
    /// Time limit of a request, over all attempts.
    ///
    /// A server that is away for this long is given up: each later request gets one attempt of at most two seconds,
    /// until the server answers again.
    pub timeout: Duration,
    /// Within which a server must be reached at the start.
    pub connect_timeout: Duration,
    /// Whether servers of the same host are reached by their fastest transport, whatever the address.
    pub prefer_local: bool,
    /// Whom to trust, for TLS on TCP.
    pub tls: Option<TlsClient>,
    /// How long waits stay awake at most before they sleep, in microseconds.
    pub spin_us: u32,
    /// Whether pulled rows are sent in half precision, for links slower than memory.
    ///
    /// Each value is rounded to the nearest half: the relative error is at most 2^-11 (absolute 2^-25 below 2^-14),
    /// and values beyond 65504 become 65504.
    pub f16_rows: bool,
    /// Compression of requests and answers of 1 KiB and more, for slow links.
    ///
    /// It is never used where bytes stay in memory.
    pub compression: Option<Compression>,
    /// Hedging: when to repeat a slow pull over a second connection to the same server.
    ///
    /// The first answer is taken. At most 5 % of the pulls are repeated, each once; pushes never are.
    pub hedge: Option<Hedge>,
    /// Which replicas of a cluster's groups answer pulls.
    pub pull_from: PullFrom,
    /// A check that waits for servers call now and then; without it only deadlines end a wait.
    pub stop: Option<Stop>,
    /// A callback for waits: after one second, then less and less often.
    pub on_wait: Option<OnWait>,
    /// Where spans of sampled requests go; without it none is traced.
    pub spans: Option<Arc<SpanQueue>>,
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
            pull_from: PullFrom::Primary,
            stop: None,
            on_wait: None,
            spans: None,
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
