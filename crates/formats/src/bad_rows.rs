//! The account of rows that could not be read: policy, count, and the first few error messages. Knows no format.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use sanderling_sample::{Batch, SampleError};

use crate::format::BadRowPolicy;

/// At most this many bad rows are kept with their message.
pub const BAD_ROW_MESSAGES_MAX: usize = 10;

/// Counts the bad rows of a run; all its decoders share one.
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

    /// Sets whether a skipped row keeps a place in the batch, with label and weight NaN and no keys. Prediction needs
    /// this, so that its output has one line per input line.
    #[must_use]
    pub fn placeholder(mut self, placeholder: bool) -> BadRows {
        self.placeholder = placeholder;
        self
    }

    /// Starts another pass over the same rows: the number of rows that may be skipped starts again.
    pub fn begin_pass(&self) {
        self.of_pass.store(0, Ordering::Relaxed);
    }

    /// Lines skipped so far, in all passes, because they repeat the header. They are no rows.
    #[must_use]
    pub fn headers(&self) -> u64 {
        self.headers.load(Ordering::Relaxed)
    }

    /// Counts a line that repeats the header.
    #[cold]
    pub(crate) fn count_header(&self) {
        self.headers.fetch_add(1, Ordering::Relaxed);
    }

    /// Bad rows so far, in all passes.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The messages of the first bad rows, at most [`BAD_ROW_MESSAGES_MAX`].
    #[must_use]
    pub fn messages(&self) -> Vec<String> {
        self.messages.lock().map(|messages| messages.clone()).unwrap_or_default()
    }

    /// Accounts for a bad row: returns the error if it ends the run, otherwise skips the row or keeps its place. The
    /// batch must have no row under construction.
    ///
    /// # Errors
    /// `error` under the policy `fail`; `TooManyBadRows` beyond the maximum of `skip`.
    pub fn reject(&self, error: SampleError, batch: &mut Batch) -> Result<(), SampleError> {
        if self.take(error)? {
            batch.close_row(f32::NAN, f32::NAN);
        }
        Ok(())
    }

    /// Accounts for a bad row like [`BadRows::reject`] and leaves the placeholder to the caller: true if one is
    /// needed.
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

/// The bad rows of one unit, counted apart.
#[derive(Debug)]
pub struct BadRowsOfUnit {
    count: u64,
    messages: Vec<String>,
    headers: u64,
}

impl BadRows {
    /// An empty account of the same policy for a decoder whose units are accounted for in another order, or never.
    #[must_use]
    pub fn apart(&self) -> BadRows {
        BadRows::new(self.policy).placeholder(self.placeholder)
    }

    /// Empties the account; its bad rows and repeated headers, if it had any.
    pub fn take_unit(&self) -> Option<BadRowsOfUnit> {
        let count = self.count.swap(0, Ordering::Relaxed);
        self.of_pass.store(0, Ordering::Relaxed);
        let headers = self.headers.swap(0, Ordering::Relaxed);
        let messages = self.messages.lock().map(|mut messages| std::mem::take(&mut *messages));
        (count + headers > 0).then(|| BadRowsOfUnit {
            count,
            messages: messages.unwrap_or_default(),
            headers,
        })
    }

    /// Adds the bad rows of a unit; false, and nothing is added, if they are too many.
    #[must_use]
    pub fn add(&self, unit: &BadRowsOfUnit) -> bool {
        let max = if let BadRowPolicy::Skip { max } = self.policy { max } else { 0 };
        let fits = |rows: u64| rows.checked_add(unit.count).filter(|rows| *rows <= max);
        if self.of_pass.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            return false;
        }
        self.count.fetch_add(unit.count, Ordering::Relaxed);
        self.headers.fetch_add(unit.headers, Ordering::Relaxed);
        if let Ok(mut messages) = self.messages.lock() {
            let room = BAD_ROW_MESSAGES_MAX - messages.len();
            messages.extend(unit.messages.iter().take(room).cloned());
        }
        true
    }
}

/// The end of an error about an input without usable rows: how many rows were bad, and the first message.
#[must_use]
pub fn all_bad(count: u64, first: Option<&str>) -> String {
    let first = first.map_or(String::new(), |first| format!(", the first: {first}"));
    if count == 0 { first } else { format!(": all {count} were bad{first}") }
}
