//! Data loading in process: passes over the input, shuffling, minibatches, and the position to resume from.
//!
//! The service that loads data for other processes grows here; today its callers are threads. The crate knows no
//! table and no model.

mod pass;
pub use pass::{Feed, Pass, PassOptions};

mod decoding;
pub use decoding::STAGES;

mod ahead;

mod permute;

mod framing;

pub mod service;

mod subscription;
pub use subscription::{
    Acknowledger, Delivered, HubError, Next, SubscribeOptions, Subscription, hub_addresses,
};
