//! Errors between a trainer and its hubs; each names the hub. Knows no frame.

use std::time::Duration;

/// The reason that a subscription has ended. Open another one once the cause is gone.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The addresses cannot be parsed.
    #[error("{0}")]
    Address(String),
    /// The hub cannot read its input, or has failed otherwise.
    #[error("hub {hub} has failed: {reason}")]
    Failed {
        /// Its address.
        hub: String,
        /// The hub's reason.
        reason: String,
    },
    /// The hub refuses this trainer: a wrong token, a rank that is taken, or another process of the same name.
    #[error("hub {hub} refuses: {reason}")]
    Refused {
        /// Its address.
        hub: String,
        /// The hub's reason.
        reason: String,
    },
    /// The certificates do not match, or only one side uses TLS. Names the hub.
    #[error("{0}")]
    Tls(String),
    /// The hub could not be reached for too long.
    #[error("hub {hub} has been unreachable for {} s: {cause}", waited.as_secs())]
    Gone {
        /// Its address.
        hub: String,
        /// How long the trainer tried.
        waited: Duration,
        /// The error of the last attempt.
        cause: String,
    },
    /// The hub was restarted without its position.
    #[error(
        "hub {hub} was restarted without its position (--position): rows would be used twice; restart the trainers, too"
    )]
    Restarted {
        /// Its address.
        hub: String,
    },
    /// The hubs serve different data.
    #[error("hubs {first} and {second} differ in {what}: they must have the same configuration")]
    Different {
        /// The address of one hub.
        first: String,
        /// The address of the other hub.
        second: String,
        /// The fact in which they differ.
        what: &'static str,
    },
    /// The hub sent something that is no valid answer.
    #[error("hub {hub}: {reason}")]
    Protocol {
        /// Its address.
        hub: String,
        /// The problem.
        reason: String,
    },
    /// The caller stopped the wait for the hubs.
    #[error("stopped while waiting for hubs")]
    Stopped,
    /// The system has no file descriptors left.
    #[error("{0}")]
    System(String),
}
