//! Batches whose keys are sent ahead: feeding, pulling and pushing them by number.

use std::sync::Arc;

use sanderling_observe::numbers::bytes as in_units;
use sanderling_replica::push_dedup::ClientPushes;
use sanderling_store::{PushScale, StoreError};
use sanderling_wire::{Fault, Feed, Forget, PullFed, PullShape, PushFed, Pushed, Reply, limit};

use super::check_dim;
use super::pull::compose;
use super::push::{Refused, once};
use super::replicated::check_record;
use crate::batches::{Batch, BatchId};
use crate::call::{Call, Scratch, unwritten, zeros};
use crate::refusal::Refusal;

/// Stores the distinct keys of a batch.
///
/// A batch of few samples may have very many keys. The rows of all keys are in memory during its pull and push, so
/// they are bounded here.
pub(crate) fn feed(call: &Call<'_>, feed: &Feed<'_>, slot: &mut [u8]) -> Result<usize, Refusal> {
    let entry = call.view.table(feed.table)?;
    call.check_keys(entry.home, feed.ragged.keys)?;
    let batch = Batch::new(feed, call.now);
    let (distinct, dim) = (batch.unique.len(), entry.table.dim());
    let row_bytes = distinct * dim * size_of::<f32>();
    if row_bytes > limit::FED_ROWS_BYTES_MAX {
        let name = entry.table.name();
        let reason = format!(
            "the rows of {distinct} distinct keys of table {name:?}, dim {dim}, have {}; pull and push rows, or feed fewer \
             keys at once",
            in_units(row_bytes as u64)
        );
        let (bytes, bytes_max) = (row_bytes as u64, limit::FED_ROWS_BYTES_MAX as u64);
        return Err(Refusal::new(Fault::TooLarge { bytes, bytes_max }, reason));
    }
    if call.state.replication.is_some() {
        // Its push goes to the other replicas by its keys.
        check_record(distinct, distinct * dim, call.state)?;
    }
    call.state.batches.feed((feed.table, feed.batch, feed.feature), batch)?;
    call.encode(&Reply::Feed, slot)
}

/// Removes a fed batch.
pub(crate) fn forget(call: &Call<'_>, forget: &Forget, slot: &mut [u8]) -> Result<usize, Refusal> {
    call.view.table(forget.table)?;
    call.state.batches.remove((forget.table, forget.batch, forget.feature));
    call.encode(&Reply::Forget, slot)
}

fn id(pull: &PullFed) -> BatchId {
    (pull.table, pull.batch, pull.feature)
}

/// The batch of a pull, all of whose keys are here.
fn find(call: &Call<'_>, pull: &PullFed) -> Result<Arc<Batch>, Refusal> {
    let (entry, batch) = (call.view.table(pull.table)?, call.state.batches.get(id(pull), call.now)?);
    if call.state.replication.is_some() {
        call.check_keys(entry.home, &batch.unique).map_err(|refusal| moved(id(pull), &refusal))?;
    }
    Ok(batch)
}

/// The refusal of a batch whose keys are elsewhere by now: whoever fed it knows them, or its hub does.
pub(super) fn moved((table, batch, feature): BatchId, refusal: &Refusal) -> Refusal {
    let reason = format!(
        "keys of batch {batch}, feature {feature} of table number {table} have moved: {}",
        refusal.reason
    );
    Refusal::new(Fault::UnknownBatch, reason)
}

/// The gradients of the distinct keys of a batch that is pushed.
pub(super) fn spread<'s>(
    call: &'s mut Call<'_>,
    batch: &Batch,
    push: &PushFed<'_>,
) -> Result<&'s [f32], Refusal> {
    let (dim, samples) = (push.dim as usize, batch.samples());
    if push.grads.len() != samples * dim {
        let found = push.grads.len() / dim;
        let reason = format!("batch {} has {samples} samples, the push {found}", push.batch);
        return Err(Refusal::bad(reason));
    }
    let gradients = &mut call.scratch.rows;
    zeros(gradients, batch.unique.len() * dim)?;
    batch.spread(push.grads, dim, gradients);
    Ok(gradients)
}

fn shape(pull: &PullFed, batch: &Batch) -> PullShape {
    PullShape { keys: batch.keys(), rows: batch.samples(), dim: pull.dim, format: pull.format }
}

/// Length of the reply to a pull.
pub(crate) fn layout(call: &Call<'_>, pull: &PullFed) -> Result<usize, Refusal> {
    check_dim(call.view.table(pull.table)?, pull.dim)?;
    let batch = find(call, pull)?;
    shape(pull, &batch).frame_bytes().map_err(unwritten)
}

/// Pools the rows of a fed batch.
pub(crate) fn pull(call: &mut Call<'_>, pull: &PullFed, slot: &mut [u8]) -> Result<usize, Refusal> {
    let table = &call.view.table(pull.table)?.table;
    let batch = find(call, pull)?;
    let shape = shape(pull, &batch);
    if shape.frame_bytes().map_err(unwritten)? > slot.len() {
        return Err(Refusal::busy("the batch was replaced by a longer one at this moment"));
    }
    let dim = table.dim();
    let Scratch { missing, rows, samples } = &mut *call.scratch;
    compose(call.kind, call.agreed, call.id, shape, slot, samples, |out, bits| {
        zeros(rows, batch.unique.len() * dim)?;
        let mut pulled = batch.pulled();
        pulled.clear();
        table.pull_for_push(&batch.unique, pull.absent, rows, Some(missing), &mut pulled)?;
        batch.pool(rows, dim, out);
        batch.mark(missing, bits);
        Ok(())
    })
}

/// Spreads sample gradients over the rows and removes the batch.
pub(crate) fn push(
    call: &mut Call<'_>,
    client_pushes: &mut Option<Arc<ClientPushes>>,
    push: &PushFed<'_>,
    slot: &mut [u8],
) -> Result<usize, Refusal> {
    if let Some(replication) = &call.state.replication {
        return super::replicated::push_fed(call, replication, client_pushes, push, slot);
    }
    let entry = call.view.table(push.table)?;
    check_dim(entry, push.dim)?;
    let id = (push.table, push.batch, push.feature);
    let repeated = once(call, client_pushes, entry, (push.client, push.sequence), |call| {
        let batch = call.state.batches.get(id, call.now)?;
        let gradients = spread(call, &batch, push)?;
        let scale = PushScale { lr_scale: push.lr_scale };
        let pulled = batch.pulled();
        let checked = entry.table.check_push(&batch.unique, &batch.counts, gradients, scale);
        let pushed = checked.and_then(|checked| checked.with_rows(&pulled).apply());
        if matches!(pushed, Ok(()) | Err(StoreError::TableFull { .. } | StoreError::NotFinite { .. })) {
            call.state.batches.remove(id);
        }
        pushed.map_err(Refused::from)
    })?;
    call.encode(&Reply::PushFed(Pushed { repeated }), slot)
}
