//! The bounds of a server, each with what happens beyond it. Knows no code.

use std::time::Duration;

/// Open connections; a further one takes the place of one that says nothing, or is told that the server is busy.
pub const CONNECTIONS_MAX: usize = if cfg!(test) { 8 } else { 4096 };
/// Places that a server has however few files the system lets it open.
pub const PLACES_MIN: usize = if cfg!(test) { 4 } else { 16 };
/// Open files that connections leave to saves, restores and exports, to those connections that are only told that there is no
/// place, and to the control plane, which has two for each of its connections.
pub const DESCRIPTORS_RESERVED: usize = 512;
/// Of the places, connections that have not said hello have at most one in so many; a further one takes the place of the one that
/// has been silent for longest, or is told that the server is busy.
pub const SILENT_SHARE: usize = 2;
/// Connections beyond those, until they have been told or have made room; a further one is closed at once.
pub const SURPLUS_MAX: usize = if cfg!(test) { 4 } else { 64 };
/// A connection beyond the maximum that has said nothing for so long is closed, and one within it makes room if it is the
/// oldest of its kind.
pub const SILENCE_KEPT: Duration = Duration::from_secs(1);
/// Longest frame unless configured otherwise; a connection's buffers grow up to it.
pub const FRAME_BYTES_MAX_DEFAULT: u32 = 16 << 20;
/// What the receive buffers of all connections hold beyond 256 KiB each; a connection whose frame needs more is closed. Beyond
/// half of it a buffer is short again once its frame was read.
pub const RECEIVE_BYTES_MAX: usize = 2 << 30;
/// Requests that a client may have under way on one connection, as it is told: what is beyond waits in the transport,
/// since a request is taken up only when there is room for its answer.
pub const IN_FLIGHT_MAX: u32 = 64;
/// Requests that a connection is served before the others of its worker have their turn, and how long that lasts before
/// the request at hand is its last one: small ones, such as those of one minibatch for its tables, are answered together.
pub const TURN_REQUESTS: usize = 64;
/// See [`TURN_REQUESTS`].
pub const TURN_TIME: Duration = Duration::from_micros(500);
/// After so long of a round, connections that became ready meanwhile are looked at before it goes on: the one that had least so
/// far is next.
pub const ROUND_TIME: Duration = Duration::from_millis(4);
/// What a request costs its connection beside its own bytes and those of the reply, in bytes: turns are shared out by them.
pub const REQUEST_COST_BYTES: u64 = 1024;
/// A request that has waited for longer is refused as busy: the worker is overloaded, and the client had better wait
/// elsewhere than in our buffers.
pub const WAIT_MAX: Duration = Duration::from_secs(1);
/// A request whose deadline is nearer than twice this is refused as busy only when it has waited so long: times at which
/// requests were sent are known to a millisecond.
pub const EARLY_WAIT_MIN: Duration = Duration::from_millis(2);
/// When those who are told "busy" should try again.
pub const RETRY_AFTER: Duration = Duration::from_millis(10);
/// A connection that has not said hello by then is closed.
pub const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Slow requests that wait for their turn, saves and restores, and as many exports; a further one is refused as busy.
pub const ERRANDS_MAX: usize = 64;
/// How many of them one connection may have.
pub const ERRANDS_PER_CONNECTION_MAX: usize = 4;
/// Pushes of a client whose outcome is known; an older one is refused as stale.
pub const PUSH_WINDOW: u64 = 1024;
/// Clients whose pushes are known; the one that was silent for longest makes room for a new one.
pub const PUSHERS_MAX: usize = 4096;
/// Clients that had to make room, of whom it is known which pushes may have been applied.
pub const PUSHERS_PAST_MAX: usize = 1 << 16;
/// Features of batches that are kept; a further one is refused as busy.
pub const BATCHES_MAX: usize = 1 << 16;
/// Bytes of them; a further one is refused as busy.
pub const BATCHES_BYTES_MAX: usize = 1 << 30;
/// A batch that nobody has pushed by then is forgotten.
pub const BATCH_AGE_MAX: Duration = Duration::from_secs(300);
/// Peers that have statistics of their own, per worker; the others are counted together.
pub const PEERS_MAX: usize = 64;
/// Keys that one pass over a table sets aside for exports.
pub const EXPORT_KEYS_MAX: usize = 1 << 20;
/// Exports whose next keys are set aside; of more at once, the one that was asked for longest ago looks anew.
pub const EXPORT_WINDOWS_MAX: usize = 8;
/// Memory that a worker keeps between requests, for each of its uses.
pub const SCRATCH_BYTES_MAX: usize = 16 << 20;
/// Checkpoints of other names than that which a server saves by itself, unless configured otherwise; one more is refused.
pub const CHECKPOINTS_MAX_DEFAULT: usize = 64;
/// Folders in the name of a checkpoint.
pub const CHECKPOINT_DEPTH_MAX: usize = 8;
/// While it drains, a server that has been asked nothing for so long has answered all that was under way.
pub const DRAIN_QUIET: Duration = Duration::from_millis(200);
/// The longest reply to a request that failed.
pub(crate) const FAILURE_BYTES_MAX: usize =
    sanderling_wire::HEADER_BYTES + 3 * 8 + 8 + sanderling_wire::limit::REASON_BYTES_MAX;
