//! What a running hub tells who runs it. Prints nothing.

use std::fmt;

use sanderling_formats::all_bad;

/// What a running hub tells who runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A trainer has been gone for too long, and what it had goes to the others.
    TrainerGone {
        /// Its name.
        trainer: String,
        /// How many minibatches it had.
        minibatches: usize,
    },
    /// A connection could not be accepted.
    NotAccepted {
        /// Why.
        reason: String,
    },
    /// The input cannot be read on; trainers are told.
    Failed {
        /// Why.
        reason: String,
    },
    /// This hub's share has no rows, and it hands nothing out; other hubs have some.
    NoRows {
        /// Which hub it is, and of how many.
        share: (u64, u64),
        /// The files that it reads.
        input: String,
        /// How many rows were skipped as bad.
        bad_rows: u64,
        /// What was wrong with the first of them.
        first_bad: Option<String>,
    },
    /// The position could not be saved. It is tried again; trainers are answered meanwhile.
    NotSaved {
        /// Why.
        reason: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::TrainerGone { trainer, minibatches } => {
                write!(
                    out,
                    "trainer {trainer} is gone for too long: its {minibatches} minibatches go to others"
                )
            }
            Event::NotAccepted { reason } => write!(out, "a connection was not accepted: {reason}"),
            Event::Failed { reason } => write!(out, "cannot go on: {reason}"),
            Event::NoRows { share: (index, of), input, bad_rows, first_bad } => write!(
                out,
                "warning: share {index}/{of} of {input}: no rows to work on{}; this hub hands nothing out, all rows are the \
                 others': start fewer hubs, or name more files",
                all_bad(*bad_rows, first_bad.as_deref())
            ),
            Event::NotSaved { reason } => write!(
                out,
                "the position was not saved: {reason}; it is tried again, and a hub that is killed before would hand out again \
                 what was acknowledged since"
            ),
        }
    }
}
