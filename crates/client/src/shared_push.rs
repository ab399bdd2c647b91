//! A push to a table in this process that several threads share, each of some of its keys. Knows no lookup and no server.

use std::panic::resume_unwind;
use std::thread::{Builder, scope};

use sanderling_store::{CheckedPush, StoreError};

/// Keys that are worth another thread: starting it takes as long as a few hundred.
const PART_KEYS_MIN: usize = 4096;

/// Applies a push with up to `threads` threads. Each key belongs to one thread, so that rows end up as with one thread.
pub(crate) fn push_shared(push: &CheckedPush<'_>, threads: usize) -> Result<(), StoreError> {
    if push.is_empty() {
        return Ok(());
    }
    let parts = (push.len() / PART_KEYS_MIN).min(threads);
    if parts <= 1 {
        return push.apply();
    }
    let (clock, of_part) = (push.table().count_push(), push.len().div_ceil(parts));
    let all = (0..push.len()).step_by(of_part).map(|first| first..push.len().min(first + of_part));
    let last = all.len() - 1;
    scope(|scope| {
        let (mut pushed, mut others) = (Ok(()), Vec::new());
        for (number, part) in all.enumerate() {
            let apply = move || push.apply_part(part.clone(), clock);
            match (number < last).then(|| Builder::new().spawn_scoped(scope, apply.clone())) {
                Some(Ok(other)) => others.push(other),
                // The last one, and those for which the system gives no thread, are this thread's.
                _ => pushed = both(pushed, apply()),
            }
        }
        for other in others {
            pushed = both(pushed, other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        pushed
    })
}

/// What two parts came to: how many keys both have left out.
fn both(one: Result<(), StoreError>, other: Result<(), StoreError>) -> Result<(), StoreError> {
    match (one, other) {
        (
            Err(StoreError::TableFull { table, rows, budget_bytes, rejected }),
            Err(StoreError::TableFull { rejected: more, .. }),
        ) => Err(StoreError::TableFull { table, rows, budget_bytes, rejected: rejected + more }),
        (Err(StoreError::NotFinite { table, key, rows }), Err(StoreError::NotFinite { rows: more, .. })) => {
            Err(StoreError::NotFinite { table, key, rows: rows + more })
        }
        // What no row may be comes before what has no room.
        (one @ Err(StoreError::TableFull { .. }), other @ Err(_)) => other.or(one),
        (one, other) => one.and(other),
    }
}
