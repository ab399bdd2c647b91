//! Why a hub does not start or fails. Knows no exit code.

use std::path::PathBuf;

use sanderling_formats::all_bad;
use sanderling_sample::{PackedError, SampleError};
use sanderling_transport::Error;

/// Why a hub does not start or fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The options contradict each other.
    #[error("{0}")]
    Config(String),
    /// A listener failed, or system resources ran out.
    #[error(transparent)]
    Transport(#[from] Error),
    /// The input cannot be read.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A pass over the whole input found no row.
    #[error("{input}: no rows to work on{}", all_bad(*bad_rows, first_bad.as_deref()))]
    NoRows {
        /// The files.
        input: String,
        /// How many rows were skipped as bad.
        bad_rows: u64,
        /// The error of the first of them.
        first_bad: Option<String>,
    },
    /// A minibatch is too long to be sent.
    #[error("minibatch {number}: {reason}; take fewer rows with --batch")]
    Minibatch {
        /// Its number.
        number: u64,
        /// The problem.
        reason: String,
    },
    /// The position file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The position file does not fit this hub.
    #[error("{}: {reason}", path.display())]
    Position {
        /// The file.
        path: PathBuf,
        /// The problem, and what to do.
        reason: String,
    },
    /// Keys cannot be fed to the servers.
    #[error("cannot feed keys (--feed): {reason}")]
    Feed {
        /// The server, the table, and what to do.
        reason: String,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// A thread panicked.
    #[error("{0} panicked, which is a bug; see above")]
    Panicked(&'static str),
}

impl ServiceError {
    pub(crate) fn packed(number: u64, error: &PackedError) -> ServiceError {
        ServiceError::Minibatch { number, reason: error.to_string() }
    }
}
