//! Synchronous steps of a server that has other replicas: the sums of a step go to them as pushes, and the step ends when
//! they have them.
//!
//! The parts of workers are in the memory of the primary alone. If it ends, the workers go back to their last save.

use std::sync::{Arc, Mutex, PoisonError};

use sanderling_sync::{Complete, Group, Sums};
use sanderling_wire::Fault;

use super::replicated::{Applied, PushedRows};
use super::step::lock;
use crate::refusal::Refusal;
use crate::replication::{Replication, record_bytes};
use crate::state::State;

type Workers = Arc<Mutex<Group<Refusal>>>;

/// A step that is applied here, and on its way to the other replicas.
struct Ending {
    group: Workers,
    complete: Option<Complete>,
    /// Parts that they have not acknowledged.
    left: usize,
    result: Result<(), Refusal>,
}

/// A worker of the primary that may apply pushes.
pub(super) struct Primary<'a> {
    pub(super) state: &'a State,
    pub(super) replication: &'a Replication,
    pub(super) worker: usize,
    pub(super) epoch: u64,
}

impl Primary<'_> {
    /// Applies a step. The group learns of its end when the followers have it.
    pub(super) fn apply(&self, group: &Workers, mut complete: Complete) {
        let mut sent = Vec::new();
        let result = complete.each(|sums| self.push(sums, &mut sent));
        let mut ending =
            Ending { group: Arc::clone(group), complete: Some(complete), left: sent.len(), result };
        if sent.is_empty() {
            return ending.end();
        }
        let ending = Arc::new(Mutex::new(ending));
        for part in sent {
            let ending = Arc::clone(&ending);
            self.replication.hold(
                part,
                Box::new(move |refusal| {
                    let mut ending = ending.lock().unwrap_or_else(PoisonError::into_inner);
                    ending.left -= 1;
                    if let (Some(refusal), Ok(())) = (refusal, &ending.result) {
                        ending.result = Err(refusal.clone());
                    }
                    if ending.left == 0 {
                        ending.end();
                    }
                }),
            );
        }
    }

    /// Pushes the sums of one table, in parts that other replicas take. `sent` gets the number of each part.
    fn push(&self, sums: &Sums<'_>, sent: &mut Vec<u64>) -> Result<(), Refusal> {
        let Primary { state, replication, worker, epoch } = *self;
        let directory = state.tables.directory();
        let entry = directory.entries.iter().find(|entry| entry.number == sums.table);
        let entry = entry.ok_or_else(|| Refusal::no_table_number(sums.table))?;
        // Slots may have moved since the workers sent their parts.
        let slots = directory.slots.as_deref();
        state.check_keys(slots, entry.home, sums.keys).map_err(|refusal| match slots {
            // The step cannot wait for them: it is at its end on other servers.
            Some(slots) => {
                let placement_version = slots.record.version + 1;
                Refusal::new(Fault::NotHere { placement_version }, refusal.reason)
            }
            None => refusal,
        })?;
        let (table, dim) = (&entry.table, entry.table.dim());
        let clock = table.count_push();
        let keys_max = part_keys_max(dim, state.frame_bytes_max as usize);
        for first in (0..sums.keys.len().max(1)).step_by(keys_max) {
            let part = first..sums.keys.len().min(first + keys_max);
            let (keys, counts) = (&sums.keys[part.clone()], &sums.counts[part.clone()]);
            let grads = &sums.gradients[part.start * dim..part.end * dim];
            let number = replication.next_step();
            let rows = PushedRows {
                keys,
                counts,
                grads,
                lr_scale: sums.lr_scale,
                continues: first > 0,
                pulled: None,
            };
            // No other client has this number, and the push is sent once.
            let Applied { push, result } =
                rows.apply(state, entry, Some(clock), (state.boot_id(), number))?;
            replication.send(number, worker, epoch, push, None);
            sent.push(number);
            result?;
        }
        Ok(())
    }
}

impl Ending {
    fn end(&mut self) {
        if let Some(complete) = self.complete.take() {
            lock(&self.group).end(complete, std::mem::replace(&mut self.result, Ok(())));
        }
    }
}

/// Keys of the longest part that fits into a frame between replicas.
fn part_keys_max(dim: usize, bytes_max: usize) -> usize {
    let none = record_bytes(0, 0);
    let each = record_bytes(1, dim) - none;
    (bytes_max.saturating_sub(none) / each).max(1)
}
