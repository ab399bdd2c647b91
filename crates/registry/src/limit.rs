//! The limits of a registry, each with the consequence of exceeding it.

use std::time::Duration;

/// Length of a record's name, and of a cluster's. A longer one is refused.
pub const NAME_BYTES_MAX: usize = 128;
/// Length of a record's value as compact JSON. A longer one is refused. A placement of 16,384 slots, each in another
/// group than the one before, has 250 KiB.
pub const VALUE_BYTES_MAX: usize = 256 << 10;
/// Lists and objects within each other in a value. A deeper one is refused: readers of JSON have limits of their own.
pub const VALUE_DEPTH_MAX: usize = 64;
/// Groups of a cluster: as many servers as a client connects to.
pub const GROUPS_MAX: u32 = 1024;
/// Servers of a group.
pub const REPLICAS_MAX: u32 = 16;
/// Records of a keeper. A further one is refused.
pub const RECORDS_MAX: usize = 1 << 16;
/// Names and values of a keeper together. A change that needs more is refused.
pub const TOTAL_BYTES_MAX: usize = 64 << 20;
/// Leases of a keeper. A further one is refused.
pub const LEASES_MAX: usize = 1 << 14;
/// Shortest and longest term of a lease. Another one is refused.
pub const TERM_MIN: Duration = Duration::from_secs(1);
/// See [`TERM_MIN`].
pub const TERM_MAX: Duration = Duration::from_secs(24 * 3600);
/// Past changes that are kept for watches. A watch from an older revision is told to begin again.
pub const HISTORY_CHANGES_MAX: usize = 1 << 14;
/// Bytes of past changes.
pub const HISTORY_BYTES_MAX: usize = 16 << 20;
/// Changes of an answer to a watch. Further ones come with the next.
pub const WATCHED_CHANGES_MAX: usize = 1 << 10;
/// Bytes of an answer to a watch, if it has more than one change.
pub const WATCHED_BYTES_MAX: usize = 4 << 20;
/// Longest wait of one request to a keeper. A client with more time asks again.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
/// Longest body of an answer that a client reads.
pub(crate) const ANSWER_BYTES_MAX: usize = 256 << 20;
