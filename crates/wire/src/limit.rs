//! The limits of what a frame may say, each checked before anything is allocated or sliced. Knows no message.

/// Longest frame of all, header included. A connection may agree on less.
pub const FRAME_BYTES_MAX: usize = 64 << 20;
/// No side may offer to take less than this.
pub const FRAME_BYTES_MIN: usize = 64 << 10;
/// Longest frame before the two sides have agreed on anything.
pub const HELLO_BYTES_MAX: usize = 16 << 10;
/// Most keys in one message.
pub const KEYS_MAX: usize = 1 << 20;
/// Most pooled rows in one message.
pub const SAMPLES_MAX: usize = 1 << 20;
/// Most bytes of the rows of the distinct keys of a fed batch, as f32: a server pools and spreads them at once.
pub const FED_ROWS_BYTES_MAX: usize = 128 << 20;
/// Bytes of a key of a push from one replica to another, beside its gradient: key, count, version, number of removals.
pub const REPLICATED_KEY_BYTES: usize = 8 + 4 + 4 + 8;
/// Most weights per row.
pub const DIM_MAX: usize = 1 << 16;
/// Most values of optimizer state per row.
pub const STATE_MAX: usize = 4 * DIM_MAX;
/// Longest name of a table, a client or a server.
pub const NAME_BYTES_MAX: usize = 256;
/// Longest bearer token.
pub const TOKEN_BYTES_MAX: usize = 4096;
/// Longest configuration of a table.
pub const CONFIG_BYTES_MAX: usize = 64 << 10;
/// Longest name of a checkpoint.
pub const PATH_BYTES_MAX: usize = 1024;
/// Longest address of a server.
pub const URL_BYTES_MAX: usize = 256;
/// Longest explanation of a failure; longer ones are cut when they are written.
pub const REASON_BYTES_MAX: usize = 1024;
/// Most bytes that a ping carries, there or back.
pub const PING_BYTES_MAX: usize = 1 << 20;
/// Most tables in one list.
pub const TABLES_MAX: usize = 4096;
/// Most servers in a placement.
pub const SERVERS_MAX: usize = 1024;
/// Slots of servers that have no placement, and of the placement that servers start with.
pub const SLOTS_DEFAULT: usize = 4096;
/// Most slots in a placement.
pub const SLOTS_MAX: usize = 1 << 16;
/// Most latencies, and most counters, in one reply.
pub const STATS_MAX: usize = 4096;
/// Most minibatches that a trainer may have and not have acknowledged, at one hub.
pub const UNACKNOWLEDGED_MAX: usize = 4096;
/// Most features of a minibatch.
pub const COLUMNS_MAX: usize = 1 << 16;
/// Longest description of what a hub's rows are made by.
pub const DESCRIPTION_BYTES_MAX: usize = 1 << 20;
/// Most workers of a group.
pub const WORKERS_MAX: usize = 1024;
/// Most bytes that a worker brings to a meeting.
pub const MEET_BYTES_MAX: usize = 1 << 20;
/// Most bytes in one message of an exchange between workers.
pub const EXCHANGE_BYTES_MAX: usize = 32 << 20;
/// Payloads below this are not worth compressing.
pub const PACK_BYTES_MIN: usize = 1024;
