//! Events of a running hub, for its operator. Prints nothing.

use std::fmt;

use sanderling_formats::all_bad;

/// An event of a running hub.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A trainer expired, and its leases go to the others.
    TrainerGone {
        /// Its name.
        trainer: String,
        /// The number of its leases.
        minibatches: usize,
    },
    /// A connection could not be accepted.
    NotAccepted {
        /// The reason.
        reason: String,
    },
    /// The input cannot be read any further; trainers are told.
    Failed {
        /// The reason.
        reason: String,
    },
    /// This hub's share has no rows and it serves nothing; other hubs have some.
    NoRows {
        /// This hub's index, and the number of hubs.
        share: (u64, u64),
        /// The files of the input.
        input: String,
        /// How many rows were skipped as bad.
        bad_rows: u64,
        /// The error of the first of them.
        first_bad: Option<String>,
    },
    /// The position could not be saved. Saving is retried; trainers are answered meanwhile.
    NotSaved {
        /// The reason.
        reason: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::TrainerGone { trainer, minibatches } => {
                write!(out, "trainer {trainer} expired: its {minibatches} minibatches go to others")
            }
            Event::NotAccepted { reason } => write!(out, "a connection was not accepted: {reason}"),
            Event::Failed { reason } => write!(out, "cannot go on: {reason}"),
            Event::NoRows { share: (index, of), input, bad_rows, first_bad } => write!(
                out,
                "warning: share {index}/{of} of {input}: no rows to work on{}; this hub serves nothing, the other hubs have all rows: start fewer hubs, or name more files",
                all_bad(*bad_rows, first_bad.as_deref())
            ),
            Event::NotSaved { reason } => write!(
                out,
                "the position was not saved: {reason}; it is retried; a hub that is killed before would repeat minibatches that were acknowledged since"
            ),
        }
    }
}
