//! Waits for a condition under a lock until a stop check ends it. Knows no condition.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sanderling_client::Stop;

use crate::error::FeedError;

/// How often who waits looks whether to stop.
const LOOK: Duration = Duration::from_millis(200);

/// Waits until there is news, or it is time to look again. An error says what was waited for by whoever is to stop.
pub(crate) fn wait_or_stop<'a, T>(
    lock: &'a Mutex<T>,
    changed: &Condvar,
    held: MutexGuard<'a, T>,
    stop: Option<&Stop>,
    what: &'static str,
) -> Result<MutexGuard<'a, T>, FeedError> {
    let Some(stop) = stop else {
        return Ok(changed.wait(held).unwrap_or_else(PoisonError::into_inner));
    };
    let (held, waited) = changed.wait_timeout(held, LOOK).unwrap_or_else(PoisonError::into_inner);
    if !waited.timed_out() {
        return Ok(held);
    }
    // The stop check may run for long, so the lock is released.
    drop(held);
    if stop.is_at_once() {
        return Err(FeedError::Stopped(what));
    }
    Ok(lock.lock().unwrap_or_else(PoisonError::into_inner))
}
