//! The results of a subscription: minibatches, and the facts that hubs announce. Does nothing.

use std::time::Duration;

use sanderling_sample::PackedBatch;

/// A minibatch from a hub.
#[derive(Debug)]
pub struct Delivered {
    /// The index of the hub, in the order of the addresses.
    pub hub: usize,
    /// Its pass, from 0.
    pub pass: u64,
    /// Its number at that hub, counted over all passes.
    pub number: u64,
    /// Its rows.
    pub batch: PackedBatch,
    /// The keys that the hub fed to parameter servers, which `batch` lacks; only with
    /// [`SubscribeOptions::takes_fed`](crate::SubscribeOptions::takes_fed).
    pub fed: Option<Box<FedBatch>>,
}

/// The part of a minibatch that a hub fed to parameter servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FedBatch {
    /// The number by which the servers know the batch. A feature's number there is its column.
    pub batch: u64,
    /// The columns, ascending.
    pub columns: Vec<u32>,
    /// Version of the placement by which the keys were shared out.
    pub placement_version: u64,
    /// How many servers there are.
    pub servers: usize,
    /// Per column, how many keys each server got, repetitions included: [columns, servers].
    pub keys: Vec<u32>,
    /// Time since it was fed, when the hub sent the minibatch.
    pub age: Duration,
    /// The arrival time, on the subscription's clock.
    pub(super) received_us: u64,
}

impl FedBatch {
    /// Keys of a column per server; `None` if the column was not fed.
    #[must_use]
    pub fn keys_of(&self, column: usize) -> Option<&[u32]> {
        let at = self.columns.binary_search(&(column as u32)).ok()?;
        self.keys.get(at * self.servers..(at + 1) * self.servers)
    }
}

/// The facts that a hub announces about its minibatches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// Its address.
    pub hub: String,
    /// The id of the numbering of minibatches; it changes when a hub starts without its position.
    pub stream: u64,
    /// Passes over its input.
    pub passes: u64,
    /// Rows of a minibatch; the last one of a pass may have fewer.
    pub rows: u32,
    /// Minibatch `s` is for the trainer of rank `s % stride`; 0: for any trainer.
    pub stride: u32,
}

/// The result of [`Subscription::next`](crate::Subscription::next).
#[derive(Debug)]
pub enum Next {
    /// A minibatch, leased to this trainer until it is acknowledged.
    Batch(Delivered),
    /// No minibatch before the deadline: the hubs have none ready, or this trainer holds all it may without an
    /// acknowledgement.
    Wait,
    /// All passes of all hubs have ended, and every minibatch was acknowledged by some trainer.
    Over,
}
