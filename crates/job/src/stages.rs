//! The stages of a worker, which its stopwatch counts, by number.

/// The stages of a worker, in the order of their numbers; a caller's list of stages begins with these.
///
/// Reading (decompression included) and skipping rows of others; parsing and encoding; packing, sending, storing and
/// sorting shuffled rows; copying rows into minibatches; waiting for other workers.
pub const STAGES: [&str; 5] = ["read", "parse", "shuffle", "assemble", "wait"];
pub(crate) const READ: usize = 0;
pub(crate) const PARSE: usize = 1;
pub(crate) const SHUFFLE: usize = 2;
pub(crate) const ASSEMBLE: usize = 3;
pub(crate) const WAIT: usize = 4;
