//! The limits of a server, each with the consequence of exceeding it.

use std::time::Duration;

pub use sanderling_replica::limit::{PUSH_CLIENTS_MAX, PUSH_CLIENTS_PAST_MAX, PUSH_WINDOW};

/// Open connections. A further one takes the slot of one without a hello, or gets "busy".
pub const CONNECTIONS_MAX: usize = if cfg!(test) { 8 } else { 4096 };
/// Slots for connections, however low the open-file limit is.
pub const PLACES_MIN: usize = if cfg!(test) { 4 } else { 16 };
/// Open files reserved for saves, restores, exports, refused connections and the control plane (two per connection).
pub const DESCRIPTORS_RESERVED: usize = 512;
/// Connections without a hello get at most one slot in this many. A further one takes the slot of the oldest, or gets
/// "busy".
pub const SILENT_SHARE: usize = 2;
/// Connections beyond the limit that wait for "busy" or to be closed. A further one is closed at once.
pub const OVER_LIMIT_MAX: usize = if cfg!(test) { 4 } else { 64 };
/// Time for a hello when slots are scarce: connections over the limit are closed after it, others may lose their slot.
pub const SILENCE_KEPT: Duration = Duration::from_secs(1);
/// Default limit of a frame's length. The buffers of a connection grow up to it.
pub const FRAME_BYTES_MAX_DEFAULT: u32 = 16 << 20;
/// Memory of all receive buffers beyond 256 KiB each. A connection whose frame needs more is closed. Beyond half of
/// it, buffers shrink after each frame.
pub const RECEIVE_BYTES_MAX: usize = 2 << 30;
/// Requests in flight per connection, as the hello tells the client. The transport holds back further ones, because a
/// request is read only when there is room for its reply.
pub const IN_FLIGHT_MAX: u32 = 64;
/// Requests served in one turn of a connection, so that small ones of one minibatch are answered together.
pub const TURN_REQUESTS: usize = 64;
/// Time limit of one turn; the request under way is the last one.
pub const TURN_TIME: Duration = Duration::from_micros(500);
/// After this time in a round the worker looks for newly ready connections. The one with the fewest bytes is next.
pub const ROUND_TIME: Duration = Duration::from_millis(4);
/// Fixed cost of a request in bytes, beside its own length and that of its reply. Turns are shared by cost.
pub const REQUEST_COST_BYTES: u64 = 1024;
/// A request that waited longer is refused as busy: the worker is overloaded.
pub const WAIT_MAX: Duration = Duration::from_secs(1);
/// Requests with a short deadline are refused as busy only after this wait: send times are known to a millisecond.
pub const EARLY_WAIT_MIN: Duration = Duration::from_millis(2);
/// Retry delay that "busy" suggests.
pub const RETRY_AFTER: Duration = Duration::from_millis(10);
/// A connection without a hello is closed after this time.
pub const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Queued saves and restores, and as many queued exports and pages of changes. A further one is refused as busy.
pub const BACKGROUND_JOBS_MAX: usize = 64;
/// Background jobs of one connection.
pub const BACKGROUND_JOBS_PER_CONNECTION_MAX: usize = 4;
/// Fed features of batches. A further one is refused as busy.
pub const BATCHES_MAX: usize = 1 << 16;
/// Bytes of fed batches. A further one is refused as busy.
pub const BATCHES_BYTES_MAX: usize = 1 << 30;
/// A fed batch that is not pushed within this time is removed.
pub const BATCH_AGE_MAX: Duration = Duration::from_secs(300);
/// Peers with statistics of their own, per worker. Further peers are counted together.
pub const PEERS_MAX: usize = 64;
/// Slow requests, and as many sampled ones, that a worker keeps for the operator. A further one replaces the oldest.
pub const TRACES_MAX: usize = 64;
/// Keys of a sampled request that are counted. Of more keys, one in so many is.
pub const SAMPLED_KEYS_MAX: usize = 256;
/// Work on a key that is pushed, beside one that is pulled, as measured in docs/results.
pub const PUSHED_KEY_WORK: u64 = 3;
/// Counters of keys that are told apart, per worker. Of further keys, the rarest are forgotten.
pub const HOT_KEYS_MAX: usize = 1024;
/// Keys of a sampled pull that are looked up, to learn how many have no row.
pub const LOOKED_UP_KEYS_MAX: usize = 32;
/// Tables with samples of rows and keys. Further tables have none.
pub const SAMPLED_TABLES_MAX: usize = 1024;
/// Samples of rows that one look at all tables takes anew, each of 512 rows. Others are older.
pub const SAMPLES_PER_LOOK_MAX: usize = 32;
/// Interval in which the counts of keys are halved.
pub const HOT_HALVED_EVERY: Duration = Duration::from_secs(60);
/// Default of how many requests there are for each sampled one.
pub const SAMPLE_EVERY_DEFAULT: u32 = 1000;
/// Default of the time from which on a request is slow.
pub const SLOW_DEFAULT: Duration = Duration::from_millis(10);
/// Keys that one pass over a table collects for an export.
pub const EXPORT_KEYS_MAX: usize = 1 << 20;
/// Exports whose next keys are kept. Of further ones, the least recently used repeats its pass over the table.
pub const EXPORT_WINDOWS_MAX: usize = 8;
/// Scratch memory that a worker keeps between requests, per buffer.
pub const SCRATCH_BYTES_MAX: usize = 16 << 20;
/// Changed rows of a table, and as many removed keys, that a delta can have, of 8 bytes each in memory. A save with more is
/// a full one.
pub const CHANGE_KEYS_MAX: usize = 1 << 24;
/// Default of the time whose acknowledged pushes may be lost with the machine, with a log.
pub const LOSE_DEFAULT: Duration = Duration::from_secs(1);
/// Longest such time.
pub const LOSE_MAX: Duration = Duration::from_secs(3600);
/// Size of a segment of the log. The group that exceeds it is the last one of its segment.
pub const LOG_SEGMENT_BYTES_MAX: u64 = 256 << 20;
/// Interval of attempts to write a log that cannot be written. Pushes are refused meanwhile.
pub const LOG_RETRY: Duration = Duration::from_secs(1);
/// Default limit of named checkpoints, not counting `latest`. A further one is refused.
pub const CHECKPOINTS_MAX_DEFAULT: usize = 64;
/// Folders in the name of a checkpoint.
pub const CHECKPOINT_DEPTH_MAX: usize = 8;
/// A draining server without requests for this time has answered all that were under way.
pub const DRAIN_QUIET: Duration = Duration::from_millis(200);
/// Messages of other replicas that wait. Further ones are dropped, and sent again.
pub const PEER_MESSAGES_MAX: usize = 1 << 13;
/// Messages to another replica that wait. Further ones are dropped, and made again.
pub const PEER_FRAMES_MAX: usize = 1 << 12;
/// Time to connect to another replica, and for its greeting.
pub const PEER_CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// Interval of attempts to reach another replica.
pub const PEER_RETRY: Duration = Duration::from_millis(50);
/// The replicas' unit of time.
pub const TICK: Duration = Duration::from_millis(10);
/// Time for a task of a move: an answer of another group, or of this group's followers.
pub const MOVE_ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of rows that the replicas of a group get at once of a checkpoint that is restored.
pub const RESTORED_PAGE_BYTES: usize = 1 << 20;
/// Time for another replica to take over at the end of a primary.
pub const HAND_OVER_WITHIN: Duration = Duration::from_secs(2);
/// Length of the longest failure reply.
pub(crate) const FAILURE_BYTES_MAX: usize =
    sanderling_wire::HEADER_BYTES + 3 * 8 + 8 + sanderling_wire::limit::REASON_BYTES_MAX;
