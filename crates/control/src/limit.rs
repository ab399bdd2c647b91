//! The bounds of the control plane, each with what happens beyond it. Knows no code.

use std::time::Duration;

/// Open connections; who comes then takes the place of the one that has been there for longest without the server's token
/// having been said over it, see [`PLACE_KEPT`]. If there is none, it waits until one is closed.
pub const CONNECTIONS_MAX: usize = 64;
/// For so long nobody's place is taken.
pub const PLACE_KEPT: Duration = if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(1) };
/// Requests under way on one connection; further ones wait.
pub const STREAMS_MAX: u32 = 16;
/// A connection is told to go when it is so old.
pub const CONNECTION_AGE_MAX: Duration = Duration::from_secs(3600);
/// TLS must be agreed on by then, and then once more so long later be known what is talked inside; who is silent is cut off.
pub const HANDSHAKE_WITHIN: Duration =
    if cfg!(test) { Duration::from_secs(2) } else { Duration::from_secs(10) };
/// A silent connection is asked so often whether its peer is still there.
pub const KEEPALIVE_EVERY: Duration = Duration::from_secs(30);
/// And given up when it has not answered by then.
pub const KEEPALIVE_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of all headers of a request; more is refused.
pub const HEADERS_BYTES_MAX: u32 = 16 << 10;
/// Longest request; a longer one is refused. The longest has the configuration of a table.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Longest reply: the configurations of all tables. A longer one is an error instead.
pub const REPLY_BYTES_MAX: usize = 64 << 20;
/// Requests that only look, at once; further ones wait.
pub const LOOKS_MAX: usize = 2;
/// Saves and restores at once, of which all but one wait for the folder; a further one is refused.
pub const SLOW_MAX: usize = 4;
/// Threads that the control plane has beside its own.
pub const THREADS_MAX: usize = LOOKS_MAX + SLOW_MAX;
/// After an attempt to accept that failed, as for want of descriptors, it is tried again after so long.
pub const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// At the end, connections whose requests are answered are given so long to go.
pub const LINGER: Duration = Duration::from_millis(500);
/// How long a client tries to connect, TLS included.
pub const CONNECT_WITHIN: Duration = if cfg!(test) { Duration::from_secs(2) } else { Duration::from_secs(5) };
/// How long it waits for an answer that only takes a look.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(30);
