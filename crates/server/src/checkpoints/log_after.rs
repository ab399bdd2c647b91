//! The log after a checkpoint: applied, or refused where it would be lost. Knows no file of a checkpoint.

use std::path::Path;

use sanderling_wire::Fault;

use super::OwnPart;
use super::record::ServerRecord;
use crate::delta_log::{LogPosition, replay};
use crate::refusal::Refusal;
use crate::tables::Tables;

/// Applies the log after a checkpoint.
pub(super) fn follow_log(
    log: &Path,
    position: &LogPosition,
    cut: bool,
    tables: &Tables,
    part: OwnPart,
) -> Result<OwnPart, Refusal> {
    let (candidates, pushes, followed, end) = replay(log, position, cut, tables, part.candidates)?;
    let pushes = pushes.or(part.pushes);
    Ok(OwnPart { candidates, pushes, replayed: Some((end, followed)), ..part })
}

/// Refuses a part of another number of shards whose changes go on in a log.
pub(super) fn check_log_ended(folder: &Path) -> Result<(), Refusal> {
    let Some(position) = ServerRecord::of(folder)?.log else { return Ok(()) };
    if !position.goes_on()? {
        return Ok(());
    }
    let reason = format!(
        "{}: its changes go on in the log {}: start once with the number of shards of before and --log, and end with SIGTERM",
        folder.display(),
        position.folder.display()
    );
    Err(Refusal::new(Fault::Damaged, reason))
}
