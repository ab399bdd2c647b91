//! The limits of a keeper, each with the consequence of exceeding it.

use std::time::Duration;

use sanderling_http::Limits;
use sanderling_registry::limit::VALUE_BYTES_MAX;

/// Changes that wait for the disk. A further one is refused.
pub(crate) const QUEUE_MAX: usize = 1 << 10;
/// Changes that one write to the disk takes.
pub(crate) const BATCH_CHANGES_MAX: usize = 256;
/// Bytes of changes that one write to the disk takes, if it has more than one.
pub(crate) const BATCH_BYTES_MAX: usize = 4 << 20;
/// Largest frame of the journal. A longer length is damage.
pub(crate) const FRAME_BYTES_MAX: usize = 32 << 20;
/// Bytes of the records that one frame of a new journal takes, if it has more than one.
pub(crate) const PIECE_BYTES: usize = 4 << 20;
/// Bytes that a journal grows, beside the size that it began with, until it is written anew.
pub(crate) const GROWTH_BYTES_MIN: u64 = if cfg!(test) { 700 } else { 4 << 20 };
/// Time between two looks at leases.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Time that passes for leases between two looks at most. A keeper that was paused took no renewals.
pub(crate) const LOOK_MAX: Duration = Duration::from_secs(1);
/// Watches that wait. A further one is refused.
pub(crate) const WATCHES_MAX: usize = 1 << 12;
/// Bodies of requests that are read at once. Further ones wait.
pub(crate) const BODIES_MAX: usize = 64;
/// Longest body of a request.
pub(crate) const BODY_BYTES_MAX: usize = 2 * VALUE_BYTES_MAX;
/// Longest time to read a body. A slower request is refused.
pub(crate) const BODY_WITHIN: Duration = Duration::from_secs(10);

/// The limits of the port.
pub(crate) const PORT: Limits = Limits {
    connections: 8192,
    streams: 256,
    slot_kept: Duration::from_secs(2),
    handshake: Duration::from_secs(10),
    linger: Duration::from_secs(5),
};
