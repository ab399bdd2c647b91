//! Passes over the input: sharing it between workers, shuffling, minibatches, and the position to resume from.
//!
//! [`Pass`] serves the threads of one process. The crate knows no table, no model and no network.

mod pass;
pub use pass::{Feed, Following, Pass, PassOptions};

mod decoding;
pub use decoding::STAGES;

mod ahead;

mod permute;
pub use permute::seed_of;

mod shuffle;
pub use shuffle::Shuffle;
