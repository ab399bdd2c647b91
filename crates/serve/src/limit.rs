//! The limits of the server, each with the consequence of exceeding it.

use std::time::Duration;

use sanderling_http::Limits;

/// Limits of the port; `linger` is the drain timeout of the configuration.
pub(crate) const PORT: Limits = Limits {
    connections: 1024,
    streams: 256,
    slot_kept: Duration::from_secs(1),
    handshake: Duration::from_secs(10),
    linger: Duration::ZERO,
};
/// Default time limit of a request, from its headers to its answer. A slower request fails with 504.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);
/// Default time limit for requests under way at the end.
pub const DRAIN_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Default number of requests that wait for a scoring thread. A further one is refused with 503.
pub const QUEUE_DEFAULT: usize = 256;
/// Default number of rows, or keys, of a request. A larger request is refused with 413.
pub const BATCH_MAX_DEFAULT: usize = 4096;
/// Default bytes of a request. A longer one is refused with 413. JSON may need 45 times this in memory.
pub const BODY_BYTES_MAX_DEFAULT: usize = 4 << 20;
/// Bytes of all requests under way. While they are used up, a further request is refused with 503.
pub const BODIES_BYTES_MAX: usize = 256 << 20;
/// Scoring threads at most.
pub const THREADS_MAX: usize = 256;
/// Requests that may wait at most.
pub const QUEUE_MAX: usize = 1 << 16;
/// Rows of a request at most.
pub const BATCH_MAX: usize = 1 << 20;
/// Bytes of a request at most.
pub const BODY_BYTES_MAX: usize = 64 << 20;
/// Tables of a request of the gRPC service of rows.
pub(crate) const LOOKUP_TABLES_MAX: usize = 256;
/// Connections of the RESP front. A further one gets an error.
pub(crate) const RESP_CONNECTIONS_MAX: usize = 256;
/// Bytes of a command of the RESP front. A longer one ends the connection.
pub(crate) const RESP_COMMAND_BYTES_MAX: usize = 1 << 20;
/// Words that a command of the RESP front may have in any case; a lookup has one more than its keys.
pub(crate) const RESP_WORDS: usize = 16;
/// Time for a client of the RESP front to take its answers. A slower one is closed.
pub(crate) const RESP_WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Rows scored at a time: few enough to stay in the cache.
pub(crate) const ROWS_AT_ONCE: usize = 512;
/// Characters of an error text.
pub(crate) const ERROR_CHARS_MAX: usize = 200;
/// Characters of a request's name or value in an error text.
pub(crate) const QUOTED_CHARS_MAX: usize = 40;
/// Seconds after which a refused client may try again.
pub(crate) const RETRY_AFTER_S: &str = "1";
