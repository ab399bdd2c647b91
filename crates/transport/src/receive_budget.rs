//! Bytes that the receive buffers of many connections may hold together, beyond what each has anyway. Knows no frame and no
//! buffer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What many connections share; copies are of the same one.
#[derive(Debug, Clone)]
pub struct ReceiveBudget(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    bytes_max: usize,
    used: AtomicUsize,
}

impl ReceiveBudget {
    /// One of so many bytes, none of them in use.
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

    /// Is more than half of it in use? What is idle then keeps none of it.
    fn is_scarce(&self) -> bool {
        self.used() > self.0.bytes_max / 2
    }
}

/// What one buffer has of a budget, if there is one; given back with it.
#[derive(Debug, Default)]
pub(crate) struct Held {
    budget: Option<ReceiveBudget>,
    bytes: usize,
}

impl Held {
    /// Nothing yet, of this budget.
    pub(crate) fn of(budget: &ReceiveBudget) -> Held {
        Held { budget: Some(budget.clone()), bytes: 0 }
    }

    /// Takes what is lacking to so many bytes; the budget's size if it has not as much.
    pub(crate) fn raise(&mut self, bytes: usize) -> Result<(), usize> {
        let more = bytes.saturating_sub(self.bytes);
        let Some(budget) = self.budget.as_ref().filter(|_| more > 0) else { return Ok(()) };
        if !budget.take(more) {
            return Err(budget.0.bytes_max);
        }
        self.bytes += more;
        Ok(())
    }

    /// Has it something that others may need?
    pub(crate) fn is_wanted(&self) -> bool {
        self.bytes > 0 && self.budget.as_ref().is_some_and(ReceiveBudget::is_scarce)
    }

    /// Gives all of it back.
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
