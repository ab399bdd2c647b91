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
/// Rows scored at a time: few enough to stay in the cache.
pub(crate) const ROWS_AT_ONCE: usize = 512;
/// Characters of an error text.
pub(crate) const ERROR_CHARS_MAX: usize = 200;
/// Characters of a request's name or value in an error text.
pub(crate) const QUOTED_CHARS_MAX: usize = 40;
/// Seconds after which a refused client may try again.
pub(crate) const RETRY_AFTER_S: &str = "1";
