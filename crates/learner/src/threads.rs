//! Threads that end with what started them. Knows nothing of what they do.

use std::thread::{Builder, Scope, ScopedJoinHandle};

use crate::error::LearnError;

/// Starts one; the system may refuse it.
pub(crate) fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, LearnError> {
    Builder::new().spawn_scoped(scope, work).map_err(LearnError::Thread)
}

/// The thread's result; its panic continues here.
pub(crate) fn join<T>(handle: ScopedJoinHandle<'_, T>) -> T {
    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
