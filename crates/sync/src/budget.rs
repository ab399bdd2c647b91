//! Bytes that are kept for somebody, counted and bounded. Knows not what they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many bytes may be kept, and how many are.
#[derive(Debug, Clone)]
pub struct Budget {
    max: usize,
    held: Arc<AtomicUsize>,
}

/// The right to keep some bytes, until it is dropped.
#[derive(Debug)]
pub struct Held {
    bytes: usize,
    held: Arc<AtomicUsize>,
}

impl Budget {
    /// Room for so many bytes.
    #[must_use]
    pub fn new(max: usize) -> Budget {
        Budget { max, held: Arc::default() }
    }

    /// Takes room; `None` if there is not so much.
    #[must_use]
    pub fn hold(&self, bytes: usize) -> Option<Held> {
        let held = Held { bytes, held: Arc::clone(&self.held) };
        let before = self.held.fetch_add(bytes, Ordering::Relaxed);
        // Dropping it gives back what was added.
        (before.saturating_add(bytes) <= self.max).then_some(held)
    }

    /// Bytes that are kept.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_makes_room() {
        let budget = Budget::new(10);
        let six = budget.hold(6).expect("there is room");
        assert!(budget.hold(5).is_none() && budget.hold(usize::MAX - 6).is_none());
        let four = budget.hold(4).expect("there is room");
        drop(six);
        assert_eq!(budget.held(), 4);
        drop(four);
        assert_eq!(budget.held(), 0);
    }
}
