//! The hub: minibatches made in one process and served to trainers in others.
//!
//! [`service`] reads the input and hands each minibatch to one trainer. A trainer takes its minibatches through a
//! [`Subscription`]. The crate knows no table and no model.

mod framing;

mod lock;

mod description;
pub use description::{Description, FedFeature};

pub mod service;

mod subscription;
pub use sanderling_wire::Compression;
#[cfg(fuzzing)]
pub use subscription::Answers;
pub use subscription::{
    Acknowledger, Delivered, FedBatch, FullBatches, HubError, Next, Served, SubscribeOptions, Subscription,
    hub_addresses,
};
