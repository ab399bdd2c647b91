//! The account of rows that could not be read: policy, count, and the first few messages. Knows no format.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use sanderling_sample::{Batch, SampleError};

use crate::format::BadRowPolicy;

/// At most this many bad rows are remembered with their message.
pub const BAD_ROW_MESSAGES_MAX: usize = 10;

/// Shared by all decoders of a run.
#[derive(Debug)]
pub struct BadRows {
    policy: BadRowPolicy,
    placeholder: bool,
    count: AtomicU64,
    of_pass: AtomicU64,
    messages: Mutex<Vec<String>>,
    headers: AtomicU64,
}

impl BadRows {
    /// An empty account under a policy.
    #[must_use]
    pub fn new(policy: BadRowPolicy) -> BadRows {
        let (count, of_pass, messages, headers) = Default::default();
        BadRows { policy, placeholder: false, count, of_pass, messages, headers }
    }

    /// Whether a skipped row still takes a place in the batch: label and weight NaN, no keys. Prediction needs this,
    /// so that its output has a line per line of input.
    #[must_use]
    pub fn placeholder(mut self, placeholder: bool) -> BadRows {
        self.placeholder = placeholder;
        self
    }

    /// From here on the same rows are read once more: how many may be skipped begins anew.
    pub fn begin_pass(&self) {
        self.of_pass.store(0, Ordering::Relaxed);
    }

    /// How many lines were passed over so far, in all passes, because they repeat the header. They are no rows.
    #[must_use]
    pub fn headers(&self) -> u64 {
        self.headers.load(Ordering::Relaxed)
    }

    /// Counts a line that repeats the header.
    #[cold]
    pub(crate) fn count_header(&self) {
        self.headers.fetch_add(1, Ordering::Relaxed);
    }

    /// How many rows were bad so far, in all passes.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// What was wrong with the first of them ([`BAD_ROW_MESSAGES_MAX`]).
    #[must_use]
    pub fn messages(&self) -> Vec<String> {
        self.messages.lock().map(|messages| messages.clone()).unwrap_or_default()
    }

    /// Accounts for a bad row: the error itself if it ends the run, else the row is skipped, or held by a placeholder.
    /// The batch must have no row under construction.
    ///
    /// # Errors
    /// `error` under the policy `fail`; `TooManyBadRows` beyond the maximum of `skip`.
    pub fn reject(&self, error: SampleError, batch: &mut Batch) -> Result<(), SampleError> {
        if self.take(error)? {
            batch.close_row(f32::NAN, f32::NAN);
        }
        Ok(())
    }

    /// As [`BadRows::reject`], but leaves the placeholder to the caller: true if there is to be one.
    pub(crate) fn take(&self, error: SampleError) -> Result<bool, SampleError> {
        let BadRowPolicy::Skip { max } = self.policy else {
            return Err(error);
        };
        self.count.fetch_add(1, Ordering::Relaxed);
        if self.of_pass.fetch_add(1, Ordering::Relaxed) >= max {
            return Err(SampleError::TooManyBadRows { max, last: Box::new(error) });
        }
        if let Ok(mut messages) = self.messages.lock()
            && messages.len() < BAD_ROW_MESSAGES_MAX
        {
            messages.push(error.to_string());
        }
        Ok(self.placeholder)
    }
}

/// What an error about an input without rows adds: that rows were there, but none that could be used, and what was wrong with the
/// first.
#[must_use]
pub fn all_bad(count: u64, first: Option<&str>) -> String {
    let first = first.map_or(String::new(), |first| format!(", the first: {first}"));
    if count == 0 { first } else { format!(": all {count} were bad{first}") }
}
