//! What a running hub tells who runs it. Prints nothing.

use std::fmt;

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
    /// The position could not be saved; it is tried again.
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
            Event::NotSaved { reason } => write!(out, "the position was not saved: {reason}"),
        }
    }
}
