//! The bounds of a hub, each with what happens beyond it. Knows no code.

use std::time::Duration;

/// Most trainers known at a time; a further one is refused unless one has expired.
pub const TRAINERS_MAX: usize = 1024;
/// Most open connections; a further one is closed at once.
pub const CONNECTIONS_MAX: usize = 4096;
/// Default limit of a trainer's unacknowledged minibatches; it is granted no more.
pub const WINDOW_DEFAULT: u32 = 64;
/// Default limit of ready minibatches; then reading waits.
pub const QUEUE_BATCHES_DEFAULT: usize = 64;
/// Default limit of the bytes of ready minibatches; then reading waits.
pub const QUEUE_BYTES_DEFAULT: usize = 256 << 20;
/// Default limit of leased bytes; beyond it a trainer that holds a minibatch must acknowledge it before it gets
/// another.
pub const UNACKNOWLEDGED_BYTES_DEFAULT: usize = 1 << 30;
/// Default time after which a disconnected trainer loses its leases.
pub const TRAINER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// Default time after which a connection is closed whose trainer accepts no bytes. It exceeds a training step; a host
/// that vanished is noticed as late.
pub const WRITE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(300);
/// Default limit of a frame; a minibatch must fit into one.
pub const FRAME_BYTES_MAX_DEFAULT: u32 = 16 << 20;
/// Pause before a trainer that found none ready should ask again.
pub const RETRY_AFTER: Duration = Duration::from_millis(2);
/// Most requests of one connection under way, as the trainer is told.
pub const IN_FLIGHT_MAX: u32 = 64;
/// Requests of one connection that are served before the others have their turn.
pub const TURN_REQUESTS: usize = 16;
/// Time within which a connection must say hello.
pub const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Longest position file.
pub const POSITION_BYTES_MAX: u64 = 64 << 20;
/// Longest journal behind a position; then the position is rewritten.
pub const JOURNAL_BYTES_MAX: u64 = 8 << 20;
/// Most answers of one connection that wait for the journal; then no more of its requests are read.
pub const WAITING_MAX: usize = IN_FLIGHT_MAX as usize;
/// Most rows of a minibatch.
pub const BATCH_MAX: usize = 1 << 20;
/// Most rows that are shuffled at a time.
pub const SHUFFLE_MAX: usize = 1 << 28;
/// Most threads that decode.
pub const THREADS_MAX: usize = 256;
/// Default interval at which the position is saved.
pub const SAVE_EVERY_DEFAULT: Duration = Duration::from_secs(10);
/// Default time a hub waits at the end for informed trainers to disconnect.
pub const LINGER_DEFAULT: Duration = Duration::from_secs(10);
