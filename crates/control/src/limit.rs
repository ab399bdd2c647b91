//! The limits of the control plane, each with the consequence of exceeding it.

use std::time::Duration;

use sanderling_http::Limits;

/// Open connections. A further one takes the slot of the oldest connection that never authenticated. If all have
/// authenticated, it waits.
pub const CONNECTIONS_MAX: usize = 64;
/// Limits of the port.
pub const PORT: Limits = Limits {
    connections: CONNECTIONS_MAX,
    streams: 16,
    slot_kept: if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(1) },
    handshake: if cfg!(test) { Duration::from_secs(2) } else { Duration::from_secs(10) },
    linger: Duration::from_millis(500),
};
/// Length of a request, such as one with a table's configuration. A longer one is refused.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Length of a reply, such as one with the configurations of all tables. A longer one becomes an error.
pub const REPLY_BYTES_MAX: usize = 64 << 20;
/// Concurrent quick requests. Further ones wait.
pub const QUERIES_MAX: usize = 2;
/// Concurrent saves and restores, of which all but one wait for the folder. A further one is refused.
pub const SLOW_MAX: usize = 4;
/// Threads of the control plane besides its own.
pub const THREADS_MAX: usize = QUERIES_MAX + SLOW_MAX;
/// Interval of a client's HTTP/2 keepalive pings.
pub const KEEPALIVE_EVERY: Duration = Duration::from_secs(30);
/// Time to answer a keepalive ping.
pub const KEEPALIVE_WITHIN: Duration = Duration::from_secs(10);
/// Connect timeout of a client, including TLS.
pub const CONNECT_WITHIN: Duration = if cfg!(test) { Duration::from_secs(2) } else { Duration::from_secs(5) };
/// Reply timeout of a client's quick calls.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(30);
