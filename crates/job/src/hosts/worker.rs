//! What a worker on a host of its own knows of the others, and how its group goes on without one that is lost. Knows no row.

use std::sync::Arc;

use sanderling_client::{SyncGroup, SyncOptions};

use super::owner::living;
use super::said::{Loss, Said};
use super::ways::Far;
use crate::error::JobError;
use crate::mesh::Mesh;
use crate::worker::Worker;

impl Worker {
    /// Its ways to others on other hosts, if there are such.
    pub(crate) fn far(&self) -> Option<&Far> {
        match &self.mesh {
            Mesh::Far(far) => Some(far),
            Mesh::Here(_) => None,
        }
    }

    /// Whether the job still goes on, as far as is known here.
    pub(crate) fn check_others(&self) -> Result<(), JobError> {
        self.far().map_or(Ok(()), |far| far.seen.check())
    }

    pub(crate) fn losses(&self) -> Vec<Loss> {
        self.far().map(|far| far.seen.losses()).unwrap_or_default()
    }

    pub(crate) fn say(&self, said: Said) {
        if let Some(far) = self.far() {
            far.seen.say(said);
        }
    }

    pub(crate) fn set_position(&self, turn: u64, settled: u64) {
        if let Some(far) = self.far() {
            far.seen.set_position(turn, settled);
        }
    }

    /// Waits until all have done a turn (`true`), or more than these are lost.
    pub(crate) fn await_turn(&self, turn: u64, losses: usize) -> Result<bool, JobError> {
        self.far().map_or(Ok(true), |far| far.seen.await_turn(turn, losses))
    }

    /// Makes the group anew of those who live, if somebody was lost in the turn that has ended.
    pub(crate) fn regroup(&mut self) -> Result<(), JobError> {
        let (Some(far), Some((cluster, tables))) = (self.far(), &self.tables) else { return Ok(()) };
        let Some((first, losses)) = far.seen.regroup() else { return Ok(()) };
        let living = living(self.workers(), &losses);
        let Some(place) = living.iter().position(|&worker| worker == self.rank()) else { return Ok(()) };
        // A number that all come to, and that no group has had.
        let number = first.wrapping_add((losses.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let sync = SyncOptions { attempt: 0, timeout: self.timeout };
        let group = SyncGroup::join(cluster, tables, number, place as u32, living.len() as u32, sync)?;
        let called_off = Arc::clone(far.seen.called_off());
        self.group = group.call_off_with(&called_off);
        Ok(())
    }
}
