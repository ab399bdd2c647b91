//! Flags that end the waits of a worker. Knows no step and no meeting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Flags any of which ends the waits of a worker once it is set.
#[derive(Debug, Clone, Default)]
pub struct CancelFlags(Vec<Arc<AtomicBool>>);

impl CancelFlags {
    /// Adds a flag.
    pub fn add(&mut self, flag: &Arc<AtomicBool>) {
        self.0.push(Arc::clone(flag));
    }

    /// Whether a flag is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.iter().any(|flag| flag.load(Ordering::Relaxed))
    }
}
