//! The process in which connections were made. A forked child has its parent's connections but not its threads: if
//! both used them, each would receive the other's answers. The program reports forks.

use std::sync::atomic::{AtomicU32, Ordering};

/// How often there was a fork between the program's first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// To be called in the child, before anything else.
pub fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin(u32);

impl Origin {
    /// This one.
    #[must_use]
    pub fn here() -> Origin {
        Origin(FORKS.load(Ordering::Relaxed))
    }

    /// Is it this one?
    #[must_use]
    pub fn is_here(self) -> bool {
        self == Origin::here()
    }
}
