//! Errors of the feed path. The causes keep their own words: file and line, or server and table.

use std::sync::Arc;

use sanderling_client::ClientError;
use sanderling_hub::HubError;
use sanderling_sample::SampleError;

/// An error of reading, looking up or pushing a minibatch.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// The input.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A table, or its server.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A push in the background.
    #[error(transparent)]
    Push(Arc<ClientError>),
    /// The gradients of a hub's minibatch are lost.
    #[error(
        "minibatch {number} of hub {hub} was not applied, or not wholly, and its hub does not count it as used: {cause}; start \
         the trainer anew, and it is handed out again"
    )]
    Unpushed {
        /// The hub's address.
        hub: String,
        /// The minibatch's number there.
        number: u64,
        /// Why.
        cause: String,
        /// The error of the table or its server, if it was one.
        refused: Option<Arc<ClientError>>,
    },
    /// A wait for pushes or for a minibatch was stopped.
    #[error("stopped while {0}")]
    Stopped(&'static str),
    /// A hub.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// A feature is looked up that the minibatch does not have.
    #[error("feature {feature:?} is to be looked up, but the data has no such column; it has {columns}")]
    UnknownFeature {
        /// The feature.
        feature: String,
        /// The available columns.
        columns: String,
    },
    /// A hub makes other rows than the configuration says.
    #[error(
        "hub {hub} reads its rows otherwise than the configuration says: {what} is {here} here and {there} there; start it with \
         this configuration (sanderling hub --config), or leave these sections out here"
    )]
    HubSpec {
        /// Its address.
        hub: String,
        /// The difference.
        what: String,
        /// How it is in the configuration.
        here: String,
        /// How the hub has it.
        there: String,
    },
    /// A hub feeds a feature's keys to parameter servers, and nothing here can do with its pooled rows.
    #[error(
        "hub {hub} feeds the keys of feature {feature:?} to table {table:?} on parameter servers: {reason}; or start the hub \
         without --feed {feature}={table}"
    )]
    FedByHub {
        /// Its address.
        hub: String,
        /// The feature.
        feature: String,
        /// Its table, as the hub has it.
        table: String,
        /// Why, and what to do here.
        reason: String,
    },
    /// The keys of a minibatch are needed that a hub has fed, and are not to be had any more.
    #[error(
        "minibatch {number} of hub {hub} is not this trainer's any more, or its queue was closed, and its keys are at servers: \
         leave it out and go on"
    )]
    Late {
        /// The hub's address.
        hub: String,
        /// The minibatch's number there.
        number: u64,
    },
    /// An option has an impossible value.
    #[error("{option}: {reason}")]
    Option {
        /// Its name.
        option: &'static str,
        /// The problem, and the remedy.
        reason: String,
    },
    /// Gradients do not fit the minibatch that they are for; nothing was added.
    #[error("gradients of {what}: expected {expected} values, found {found}")]
    Length {
        /// Of which feature.
        what: String,
        /// As many as the minibatch has.
        expected: usize,
        /// As many were given.
        found: usize,
    },
    /// A lookup is pushed twice, or gets gradients after its push.
    #[error("this lookup was pushed already; look the minibatch up again")]
    Pushed,
    /// A thread panicked, which is a bug; standard error says where.
    #[error("a thread of the feed path has died: {0}")]
    Died(&'static str),
    /// A queue or an embedding was used in the child of a fork.
    #[error(
        "this was made before the process was forked, and its threads and connections are the parent's: make it anew here, or \
         start processes by \"spawn\""
    )]
    Forked,
}
