//! Why a hub does not start, or cannot go on. Knows no exit code.

use std::path::PathBuf;

use sanderling_formats::all_bad;
use sanderling_sample::{PackedError, SampleError};
use sanderling_transport::Error;

/// Why a hub does not start, or cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The options contradict each other.
    #[error("{0}")]
    Config(String),
    /// A listener, or the system's resources.
    #[error(transparent)]
    Transport(#[from] Error),
    /// The input cannot be read as what it should be.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A pass over the whole input came to no row.
    #[error("{input}: no rows to work on{}", all_bad(*bad_rows, first_bad.as_deref()))]
    NoRows {
        /// The files.
        input: String,
        /// How many rows were skipped as bad.
        bad_rows: u64,
        /// What was wrong with the first of them.
        first_bad: Option<String>,
    },
    /// A minibatch cannot be sent.
    #[error("minibatch {number}: {reason}; take fewer rows with --batch")]
    Minibatch {
        /// Its number.
        number: u64,
        /// What is wrong.
        reason: String,
    },
    /// The file of the position cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is not a position to go on from.
    #[error("{}: {reason}", path.display())]
    Position {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// Keys cannot be fed to where they are pooled.
    #[error("cannot feed keys (--feed): {reason}")]
    Feed {
        /// Which server and table, and what to do.
        reason: String,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// A thread has ended that must not.
    #[error("{0} panicked, which is a bug; see above")]
    Panicked(&'static str),
}

impl ServiceError {
    pub(crate) fn packed(number: u64, error: &PackedError) -> ServiceError {
        ServiceError::Minibatch { number, reason: error.to_string() }
    }
}
