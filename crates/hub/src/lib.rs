//! Data loading: passes over the input, shuffling, minibatches, and the position to resume from.
//!
//! [`Pass`] is for threads of one process. [`service`] does the same for trainers that are processes of their own, which
//! take their minibatches through a [`Subscription`]. The crate knows no table and no model.

mod pass;
pub use pass::{Feed, Following, Pass, PassOptions};

mod decoding;
pub use decoding::STAGES;

mod ahead;

mod permute;

mod shuffle;

mod framing;

mod description;
pub use description::{Description, FedFeature};

pub mod service;

mod subscription;
pub use sanderling_wire::Compression;
#[cfg(fuzzing)]
pub use subscription::Answers;
pub use subscription::{
    Acknowledger, Delivered, FedBatch, HubError, Next, Served, SubscribeOptions, Subscription, Wholes,
    hub_addresses,
};
