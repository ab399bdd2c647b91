//! The limits of replication, each with the consequence of exceeding it. Times are in ticks of the driver.

/// Pushes of a client whose outcome is known. An older push is refused as stale.
pub const PUSH_WINDOW: u64 = 1024;
/// Clients with a dedup window. A new client replaces the one that was silent longest.
pub const PUSH_CLIENTS_MAX: usize = 4096;
/// Former clients whose highest push number is kept.
pub const PUSH_CLIENTS_PAST_MAX: usize = 1 << 16;
