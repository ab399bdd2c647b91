//! Waiting for news under a lock, for as long as nobody is told to stop. Knows not what is waited for.

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
    // What is asked may run for long, and others have things to say meanwhile.
    drop(held);
    if stop.is_at_once() {
        return Err(FeedError::Stopped(what));
    }
    Ok(lock.lock().unwrap_or_else(PoisonError::into_inner))
}
