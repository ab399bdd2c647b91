//! Why a server does not start, or does not end well. Knows no server.

use sanderling_transport::Error;
use sanderling_wire::Fault;

use crate::refusal::Refusal;

/// Why a server does not start, or does not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(String),
    /// The folder for checkpoints is unusable.
    #[error("{0}")]
    Data(String),
    /// A listener failed, or the system lacks resources.
    #[error(transparent)]
    Transport(#[from] Error),
    /// The first checkpoint could not be restored.
    #[error("restoring: {0}")]
    Restore(Refusal),
    /// The first checkpoint of a shard without rows could not be saved.
    #[error("saving at the start: {0}")]
    Start(Refusal),
    /// The last checkpoint could not be saved.
    #[error("saving at the end: {0}")]
    Save(Refusal),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// A worker failed, so some requests have no reply.
    #[error("{0}")]
    Worker(String),
}

impl ServerError {
    /// Whether the configuration is wrong, whatever the state of the system.
    #[must_use]
    pub fn is_of_options(&self) -> bool {
        match self {
            ServerError::Config(_) => true,
            ServerError::Transport(error) => error.is_of_options(),
            // No checkpoint can have this name.
            ServerError::Restore(refusal) => refusal.fault == Fault::BadRequest,
            _ => false,
        }
    }
}
