//! The reason for refusing a request: a fault for the client's code and a text for people. It maps errors of the store
//! to faults.

use std::io;
use std::time::Duration;

use sanderling_store::StoreError;
use sanderling_wire::Fault;

use crate::limit::RETRY_AFTER;

/// Sends a reply that was held, or a refusal in its place.
pub(crate) type SendReply = Box<dyn FnOnce(Option<&Refusal>) + Send>;

/// A fault with its reason.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// The fault, for the client's code.
    pub fault: Fault,
    /// The reason, for people.
    pub reason: String,
}

impl Refusal {
    pub(crate) fn new(fault: Fault, reason: impl Into<String>) -> Refusal {
        Refusal { fault, reason: reason.into() }
    }

    pub(crate) fn bad(reason: impl Into<String>) -> Refusal {
        Refusal::new(Fault::BadRequest, reason)
    }

    pub(crate) fn busy(reason: impl Into<String>) -> Refusal {
        Refusal::new(Fault::Busy { retry_after_us: RETRY_AFTER.as_micros() as u64 }, reason)
    }

    /// "Busy" for a request with a deadline: the suggested retry delay is short.
    pub(crate) fn busy_before(deadline: Duration, reason: impl Into<String>) -> Refusal {
        let retry_after = if deadline.is_zero() { RETRY_AFTER } else { RETRY_AFTER.min(deadline / 8) };
        Refusal::new(Fault::Busy { retry_after_us: retry_after.as_micros() as u64 }, reason)
    }

    /// The deadline has passed, so the client no longer waits for the reply.
    pub(crate) fn late(waited: Duration, within: Duration) -> Refusal {
        let reason = format!("waited for {} us of {}", waited.as_micros(), within.as_micros());
        Refusal::new(Fault::DeadlineExceeded, reason)
    }

    pub(crate) fn no_table(which: &str) -> Refusal {
        let reason = format!("there is no table {which}; create it, or look for a slip in its name");
        Refusal::new(Fault::UnknownTable, reason)
    }

    /// The number names no table, or one that was dropped.
    pub(crate) fn no_table_number(number: u32) -> Refusal {
        let reason = format!(
            "there is no table number {number}: it was dropped, or replaced by another of its name, since it was opened; open it \
             again"
        );
        Refusal::new(Fault::UnknownTable, reason)
    }

    /// A file operation failed.
    pub(crate) fn io(reason: impl Into<String>, source: &io::Error) -> Refusal {
        let os_error = source.raw_os_error().unwrap_or_default().unsigned_abs();
        Refusal::new(Fault::Io { os_error }, reason)
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Refusal {
        let reason = error.to_string();
        let fault = match error {
            StoreError::BadGradient { key, coordinate, value, .. } => {
                Fault::BadGradient { key, coordinate: coordinate as u32, value }
            }
            // The text says that the row would not be finite.
            StoreError::NotFinite { key, .. } => {
                Fault::BadGradient { key, coordinate: 0, value: f32::INFINITY }
            }
            StoreError::TableFull { rows, budget_bytes, rejected, .. } => {
                Fault::TableFull { rejected, rows, budget_bytes }
            }
            StoreError::Config { .. } => Fault::BadConfig,
            StoreError::StreamTooLate { oldest, .. } => Fault::StreamTooLate { oldest },
            StoreError::Io { source, .. } => return Refusal::io(reason, &source),
            StoreError::Damaged { .. } | StoreError::Version { .. } => Fault::Damaged,
            StoreError::NotFound { .. } => Fault::UnknownCheckpoint,
            StoreError::Length { .. }
            | StoreError::Offsets { .. }
            | StoreError::BadRow { .. }
            | StoreError::BadScale { .. } => Fault::BadRequest,
            _ => Fault::Internal,
        };
        Refusal { fault, reason }
    }
}
