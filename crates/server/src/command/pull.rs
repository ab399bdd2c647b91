//! Pulls: the rows are gathered into the frame that is sent.

use std::sync::Arc;

use sanderling_wire::{
    Kind, Pull, PullAreas, PullPooled, PullReply, PullShape, RowFormat, RowsMut, narrow, seal, set_bit,
};

use super::check_dim;
use crate::call::{Call, Scratch, unwritten, zeros};
use crate::refusal::Refusal;
use crate::tables::Entry;

fn shape(pull: &Pull<'_>) -> PullShape {
    PullShape { keys: pull.keys.len(), rows: pull.keys.len(), dim: pull.dim, format: pull.format }
}

fn shape_pooled(pull: &PullPooled<'_>) -> PullShape {
    let rows = pull.ragged.offsets.len() - 1;
    PullShape { keys: pull.ragged.keys.len(), rows, dim: pull.dim, format: pull.format }
}

fn find<'a>(call: &Call<'a>, table: u32, dim: u32, keys: &[u64]) -> Result<&'a Arc<Entry>, Refusal> {
    let entry = call.view.table(table)?;
    check_dim(entry, dim)?;
    call.check_keys(entry.home, keys)?;
    Ok(entry)
}

/// Checks a pull and returns the length of its reply.
pub(crate) fn layout(call: &Call<'_>, pull: &Pull<'_>) -> Result<usize, Refusal> {
    find(call, pull.table, pull.dim, pull.keys)?;
    shape(pull).frame_bytes().map_err(unwritten)
}

/// Checks a pooled pull and returns the length of its reply.
pub(crate) fn layout_pooled(call: &Call<'_>, pull: &PullPooled<'_>) -> Result<usize, Refusal> {
    find(call, pull.table, pull.dim, pull.ragged.keys)?;
    shape_pooled(pull).frame_bytes().map_err(unwritten)
}

/// Executes a pull that `layout` has checked.
pub(crate) fn fill(call: &mut Call<'_>, pull: &Pull<'_>, slot: &mut [u8]) -> Result<usize, Refusal> {
    let table = &call.view.table(pull.table)?.table;
    write(call, shape(pull), slot, |out, missing| {
        table.pull(pull.keys, pull.absent, out, Some(missing))?;
        Ok(())
    })
}

/// Executes a pooled pull that `layout_pooled` has checked.
pub(crate) fn fill_pooled(
    call: &mut Call<'_>,
    pull: &PullPooled<'_>,
    slot: &mut [u8],
) -> Result<usize, Refusal> {
    let table = &call.view.table(pull.table)?.table;
    let (ragged, pooling, absent) = (&pull.ragged, pull.pooling, pull.absent);
    write(call, shape_pooled(pull), slot, |out, missing| {
        table.pull_pooled(ragged.keys, ragged.values, ragged.offsets, pooling, absent, out, Some(missing))?;
        Ok(())
    })
}

/// Encodes a reply whose rows and missing positions come from `gather`.
fn write(
    call: &mut Call<'_>,
    shape: PullShape,
    slot: &mut [u8],
    gather: impl FnOnce(&mut [f32], &mut Vec<u32>) -> Result<(), Refusal>,
) -> Result<usize, Refusal> {
    let Scratch { missing, rows, .. } = &mut *call.scratch;
    compose(call.kind, call.agreed, call.id, shape, slot, rows, |out, bits| {
        gather(out, missing)?;
        missing.iter().for_each(|&at| set_bit(bits, at as usize));
        Ok(())
    })
}

/// Encodes a reply whose rows and absent bits come from `gather`. Half-precision rows are gathered in `wide` first.
pub(super) fn compose(
    kind: Kind,
    agreed: &sanderling_wire::Agreed,
    id: u64,
    shape: PullShape,
    slot: &mut [u8],
    wide: &mut Vec<f32>,
    gather: impl FnOnce(&mut [f32], &mut [u64]) -> Result<(), Refusal>,
) -> Result<usize, Refusal> {
    let bytes = shape.frame_bytes().map_err(unwritten)?;
    let PullAreas { absent, rows } = PullReply::begin(kind, shape, agreed, id, slot).map_err(unwritten)?;
    match rows {
        RowsMut::F32(out) => gather(out, absent)?,
        RowsMut::F16(out) => {
            debug_assert_eq!(shape.format, RowFormat::F16);
            zeros(wide, out.len())?;
            gather(wide, absent)?;
            narrow(wide, out);
        }
    }
    seal(&mut slot[..bytes], agreed);
    Ok(bytes)
}
