//! The limits of replication, each with the consequence of exceeding it. Times are in ticks of the driver.

/// Pushes of a client whose outcome is known. An older push is refused as stale.
pub const PUSH_WINDOW: u64 = 1024;
/// Clients with a dedup window. A new client replaces the one that was silent longest.
pub const PUSH_CLIENTS_MAX: usize = 4096;
/// Former clients whose highest push number is kept.
pub const PUSH_CLIENTS_PAST_MAX: usize = 1 << 16;

/// Updates of a follower that wait for others. With more, the follower begins anew.
pub(crate) const WAITING_MAX: usize = 1 << 20;
/// Removals of a table that the primary keeps for followers. A follower that needs older ones begins anew.
pub(crate) const REMOVALS_MAX: usize = 1 << 20;
/// Records of a stream that a follower has not acknowledged. With more, the primary is busy.
pub(crate) const BACKLOG_RECORDS_MAX: u64 = 1 << 12;
/// Records that are sent again together.
pub(crate) const RESENT_RECORDS: usize = 64;
/// Rows of a part of an export, at most.
pub(crate) const EXPORT_ROWS: usize = if cfg!(test) { 4 } else { 1 << 13 };
/// Bytes of such a part, if it has more than one row.
pub(crate) const EXPORT_BYTES: usize = 1 << 20;
/// Slices of keys whose rows a learner gets one after the other. Updates wait there for the rows of one slice at most.
pub(crate) const EXPORT_SLICES: usize = if cfg!(test) { 2 } else { 64 };
/// Ticks between two heartbeats, and before unacknowledged messages are sent again.
pub(crate) const HEARTBEAT: u64 = 5;
/// Ticks without a sign of life after which an in-sync follower makes itself the primary.
pub(crate) const PROMOTE_AFTER: u64 = 60;
/// Ticks for which a primary answers pulls after every in-sync follower has heard from it. Less than
/// [`PROMOTE_AFTER`], so that no pull misses a push that another primary has acknowledged.
pub(crate) const LEASE: u64 = 45;
/// Ticks without a sign of life after which the primary takes a follower out.
pub(crate) const DROP_AFTER: u64 = 80;
/// Ticks without a sign of life after which pushes no longer wait for a learner.
pub(crate) const JOIN_WITHIN: u64 = 20;
/// Ticks before a question to the registry is asked again.
pub(crate) const REGISTRY_WITHIN: u64 = 30;
/// Ticks after which a hand-over that did not happen is called off.
pub(crate) const HAND_OVER_WITHIN: u64 = 40;
/// Keys of a page of rows that move.
pub(crate) const MOVED_KEYS: usize = if cfg!(test) { 3 } else { 1 << 14 };
/// Bytes of the rows of such a page.
pub(crate) const PAGE_BYTES: usize = 8 << 20;
/// Keys of past changes that a giving group keeps for a move. With more, the move begins anew.
pub(crate) const MOVED_KEYS_KEPT: usize = 1 << 22;
/// Rows that are removed at once where slots have left: followers keep up.
pub(crate) const LEAVING_KEYS: usize = if cfg!(test) { 2 } else { 1 << 12 };
/// Rows that changed in a round, up to which the next round is the last, with the slots closed.
pub(crate) const FEW_ROWS: usize = if cfg!(test) { 2 } else { 1 << 11 };
/// Rounds after which the slots are closed though more rows change than that.
pub(crate) const ROUNDS_MAX: usize = 12;
/// Ticks after which a giving group takes slots back that are still closed.
pub(crate) const CLOSED_WITHIN: u64 = if cfg!(test) { 60 } else { 200 };
