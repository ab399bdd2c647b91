//! A push to a table in this process that several threads share, each of some of its keys. Knows no lookup and no server.

use std::panic::resume_unwind;
use std::thread::{Builder, scope};

use sanderling_store::{PushScale, StoreError, Table};

/// Keys that are worth another thread: starting it takes as long as a few hundred.
const PART_KEYS_MIN: usize = 4096;

/// Pushes gradients of distinct keys, as [`Table::push_unique`], by up to so many threads. Each key is one thread's, so that
/// rows become what they become by one. Of more than one, each checks its part alone: [`Table::check_unique`] comes before.
pub(crate) fn push_shared(
    table: &Table,
    threads: usize,
    (keys, counts, grads): (&[u64], &[u32], &[f32]),
    scale: PushScale,
) -> Result<(), StoreError> {
    if keys.is_empty() {
        return Ok(());
    }
    let parts = (keys.len() / PART_KEYS_MIN).min(threads);
    if parts <= 1 {
        return table.push_unique(keys, counts, grads, scale);
    }
    let (clock, of_part) = (table.count_push(), keys.len().div_ceil(parts));
    let (keys, counts) = (keys.chunks(of_part), counts.chunks(of_part));
    let last = keys.len() - 1;
    let all = keys.zip(counts).zip(grads.chunks(of_part * table.dim()));
    scope(|scope| {
        let (mut pushed, mut others) = (Ok(()), Vec::new());
        for (part, ((keys, counts), grads)) in all.enumerate() {
            let push = move || table.push_part(keys, counts, grads, scale, clock);
            match (part < last).then(|| Builder::new().spawn_scoped(scope, push)) {
                Some(Ok(other)) => others.push(other),
                // The last one, and those for which the system gives no thread, are this thread's.
                _ => pushed = both(pushed, push()),
            }
        }
        for other in others {
            pushed = both(pushed, other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        pushed
    })
}

/// Combines the results of two parts, adding up the rejected keys.
fn both(one: Result<(), StoreError>, other: Result<(), StoreError>) -> Result<(), StoreError> {
    match (one, other) {
        (
            Err(StoreError::TableFull { table, rows, budget_bytes, rejected }),
            Err(StoreError::TableFull { rejected: more, .. }),
        ) => Err(StoreError::TableFull { table, rows, budget_bytes, rejected: rejected + more }),
        (Err(StoreError::NotFinite { table, key, rows }), Err(StoreError::NotFinite { rows: more, .. })) => {
            Err(StoreError::NotFinite { table, key, rows: rows + more })
        }
        // A bad value outranks a full table.
        (one @ Err(StoreError::TableFull { .. }), other @ Err(_)) => other.or(one),
        (one, other) => one.and(other),
    }
}
