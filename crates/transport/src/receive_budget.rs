//! A common limit for the receive buffers of many connections, beyond the small buffer that each one has.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A byte budget that connections share. Copies share the budget.
#[derive(Debug, Clone)]
pub struct ReceiveBudget(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    bytes_max: usize,
    used: AtomicUsize,
}

impl ReceiveBudget {
    /// An unused budget of this many bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> ReceiveBudget {
        ReceiveBudget(Arc::new(Budget { bytes_max, used: AtomicUsize::new(0) }))
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let more = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.0.bytes_max);
        self.0.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether more than half is in use. Idle buffers give their share back then.
    fn is_scarce(&self) -> bool {
        self.used() > self.0.bytes_max / 2
    }
}

/// One buffer's share of a budget. Returned on drop.
#[derive(Debug, Default)]
pub(crate) struct Held {
    budget: Option<ReceiveBudget>,
    bytes: usize,
}

impl Held {
    /// An empty share of a budget.
    pub(crate) fn of(budget: &ReceiveBudget) -> Held {
        Held { budget: Some(budget.clone()), bytes: 0 }
    }

    /// Raises the share to this many bytes. The error is the size of the budget.
    pub(crate) fn raise(&mut self, bytes: usize) -> Result<(), usize> {
        let more = bytes.saturating_sub(self.bytes);
        let Some(budget) = self.budget.as_ref().filter(|_| more > 0) else { return Ok(()) };
        if !budget.take(more) {
            return Err(budget.0.bytes_max);
        }
        self.bytes += more;
        Ok(())
    }

    /// Whether the share should be returned because the budget is scarce.
    pub(crate) fn is_wanted(&self) -> bool {
        self.bytes > 0 && self.budget.as_ref().is_some_and(ReceiveBudget::is_scarce)
    }

    /// Returns the whole share.
    pub(crate) fn release(&mut self) {
        if let Some(budget) = &self.budget {
            budget.give_back(std::mem::take(&mut self.bytes));
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}
