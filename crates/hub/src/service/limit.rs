//! The bounds of a hub, each with what happens beyond it. Knows no code.

use std::time::Duration;

/// Trainers that are known; a further one is refused, unless one of them has been gone for too long.
pub const TRAINERS_MAX: usize = 1024;
/// Open connections; a further one is closed at once.
pub const CONNECTIONS_MAX: usize = 4096;
/// Most minibatches that a trainer may have and not have acknowledged, unless configured otherwise; it is granted no more.
pub const WINDOW_DEFAULT: u32 = 64;
/// Most minibatches that may be ready, unless configured otherwise; then reading waits.
pub const QUEUE_BATCHES_DEFAULT: usize = 64;
/// Most bytes of them, unless configured otherwise; then reading waits.
pub const QUEUE_BYTES_DEFAULT: usize = 256 << 20;
/// Most bytes of minibatches that were handed out and not acknowledged, unless configured otherwise; beyond it a trainer
/// that has one must acknowledge it before it gets another.
pub const UNACKNOWLEDGED_BYTES_DEFAULT: usize = 1 << 30;
/// A trainer that has been gone for longer loses what it has to the others, unless configured otherwise.
pub const TRAINER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// A trainer that takes nothing for so long, though answers wait for it, is closed, unless configured otherwise. Longer than a
/// step of training takes; a host that vanished is noticed as late.
pub const WRITE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(300);
/// Longest frame unless configured otherwise; a minibatch must fit into one.
pub const FRAME_BYTES_MAX_DEFAULT: u32 = 16 << 20;
/// When a trainer that found none ready should ask again.
pub const RETRY_AFTER: Duration = Duration::from_millis(2);
/// Requests that a trainer may have under way on one connection, as it is told.
pub const IN_FLIGHT_MAX: u32 = 64;
/// Requests that a connection is served before the others have their turn.
pub const TURN_REQUESTS: usize = 16;
/// A connection that has not said hello by then is closed.
pub const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Longest file that says a position.
pub const POSITION_BYTES_MAX: u64 = 64 << 20;
/// Longest part of it that says what happened since it was written as a whole; then it is written anew.
pub const JOURNAL_BYTES_MAX: u64 = 8 << 20;
/// Answers of one connection that wait for the position's file; then no more of its requests are read.
pub const WAITING_MAX: usize = IN_FLIGHT_MAX as usize;
/// Most rows of a minibatch.
pub const BATCH_MAX: usize = 1 << 20;
/// Most rows that are shuffled at a time.
pub const SHUFFLE_MAX: usize = 1 << 28;
/// Most threads that decode.
pub const THREADS_MAX: usize = 256;
/// How often the position is saved, unless configured otherwise.
pub const SAVE_EVERY_DEFAULT: Duration = Duration::from_secs(10);
/// How long a hub waits for trainers that know that it is over to close their connections, unless configured otherwise.
pub const LINGER_DEFAULT: Duration = Duration::from_secs(10);
