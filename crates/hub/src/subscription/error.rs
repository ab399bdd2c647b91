//! What can go wrong between a trainer and its hubs, each naming the hub. Knows no frame.

use std::time::Duration;

/// Why there are no more minibatches. It stays so: open another subscription once the cause is gone.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The addresses make no sense.
    #[error("{0}")]
    Address(String),
    /// The hub cannot read its input, or has failed otherwise.
    #[error("hub {hub} has failed: {reason}")]
    Failed {
        /// Its address.
        hub: String,
        /// What it says.
        reason: String,
    },
    /// The hub does not take this trainer: a wrong token, a rank that another has, another process of the same name.
    #[error("hub {hub} refuses: {reason}")]
    Refused {
        /// Its address.
        hub: String,
        /// What it says.
        reason: String,
    },
    /// Certificates do not fit, or one of the two talks TLS and the other does not. Names the hub.
    #[error("{0}")]
    Tls(String),
    /// The hub could not be reached for too long.
    #[error("hub {hub} is gone for more than {} s: {cause}", waited.as_secs())]
    Gone {
        /// Its address.
        hub: String,
        /// For how long it was waited for.
        waited: Duration,
        /// What the last attempt failed with.
        cause: String,
    },
    /// The hub was started anew and does not know where it was.
    #[error(
        "hub {hub} was started anew without its position (--position): rows would be used twice; start the trainers \
         anew, too"
    )]
    Restarted {
        /// Its address.
        hub: String,
    },
    /// The hubs do not serve the same.
    #[error("hubs {first} and {second} differ in {what}: they must have the same configuration")]
    Different {
        /// The address of one.
        first: String,
        /// The address of the other.
        second: String,
        /// In what.
        what: &'static str,
    },
    /// What came is no answer.
    #[error("hub {hub}: {reason}")]
    Protocol {
        /// Its address.
        hub: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Who waited for the hubs was told to stop.
    #[error("stopped while hubs were waited for")]
    Stopped,
    /// The system has no descriptors left.
    #[error("{0}")]
    System(String),
}
