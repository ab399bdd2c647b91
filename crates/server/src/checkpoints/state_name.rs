//! Names of the states of a checkpoint: `NAME`, or `NAME@DELTAS` for the state after its first deltas.

use std::path::Path;

use sanderling_store::{Checkpoint, StoreError};

use crate::refusal::Refusal;

/// Splits `NAME@DELTAS`: the state after the first deltas of a checkpoint; without `@` the last one.
pub(super) fn parse_state(text: &str) -> Result<(&str, Option<usize>), Refusal> {
    let Some((name, deltas)) = text.split_once('@') else { return Ok((text, None)) };
    let deltas = deltas.parse().map_err(|_| {
        Refusal::bad(format!("checkpoint {text:?}: after '@' comes a number of deltas, such as latest@3"))
    })?;
    Ok((name, Some(deltas)))
}

/// Opens a checkpoint with all its deltas, or the first ones.
pub(super) fn open(folder: &Path, deltas: Option<usize>) -> Result<Checkpoint, StoreError> {
    deltas.map_or_else(|| Checkpoint::open(folder), |deltas| Checkpoint::open_through(folder, deltas))
}
