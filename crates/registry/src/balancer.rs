//! Decides when slots should move because of measured load. Knows no registry, clock or thread.
//!
//! It is slow to begin and rests afterwards, so that noise and short peaks move nothing, and moves are not undone by the
//! next ones.

use std::collections::BTreeMap;

use sanderling_replica::Placement;

use crate::group_load::{GroupLoad, weights};
use crate::plan::{PlannedMove, Sharing, Weights, costs, moved, plan};

/// A group costs too much above this multiple of an equal share,
const COST_MAX: f64 = 1.15;
/// for so long, unless another time is asked for.
pub const REBALANCE_AFTER_S: u64 = 60;
/// A group whose slots have moved is left alone for so long.
const REST_S: u64 = 300;
/// A group that takes more of its memory gets no slots.
const MEMORY_SHARE_MAX: f64 = 0.85;
/// Moves must take away at least this part of what is too much: a single hot slot is not carried about.
const GAIN_MIN: f64 = 0.25;
/// Moves that would even the load out.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// The moves.
    pub moves: Vec<PlannedMove>,
    /// The group that costs most, and its share of the load or the rows.
    pub most: (u32, f64),
    /// Its share afterwards, or that of the group which costs most then.
    pub after: f64,
}

/// See the top of this file.
#[derive(Debug)]
pub struct Balancer {
    /// Time for which a group costs too much before anything moves.
    lasts_s: u64,
    over_since_s: Option<u64>,
    moved_s: BTreeMap<u32, u64>,
}

impl Default for Balancer {
    fn default() -> Balancer {
        Balancer::after(REBALANCE_AFTER_S)
    }
}

impl Balancer {
    /// A balancer that moves slots once a group has cost too much for so long.
    #[must_use]
    pub fn after(lasts_s: u64) -> Balancer {
        Balancer { lasts_s, over_since_s: None, moved_s: BTreeMap::new() }
    }

    /// The moves that should begin now. `active` are the groups that may have slots, `ready` those of them all of whose replicas
    /// are in sync. `loads` has fresh ones only.
    pub fn step(
        &mut self,
        now_s: u64,
        placement: &Placement,
        active: &[u32],
        ready: &[u32],
        loads: &BTreeMap<u32, GroupLoad>,
    ) -> Option<Advice> {
        for one in &placement.moves {
            self.moved_s.extend([(one.from, now_s), (one.to, now_s)]);
        }
        // Not while a group is drained, nor while anything moves.
        let is_settled =
            placement.moves.is_empty() && placement.runs.iter().all(|run| active.contains(&run.group));
        let Some(weights) = weights(placement, loads).filter(|_| is_settled) else {
            self.over_since_s = None;
            return None;
        };
        let (group, most) = greatest(placement, active, &weights)?;
        let fair = 1.0 / active.len() as f64;
        if most <= fair * COST_MAX {
            self.over_since_s = None;
            return None;
        }
        if now_s.saturating_sub(*self.over_since_s.get_or_insert(now_s)) < self.lasts_s {
            return None;
        }
        let is_resting = |group: &u32| self.moved_s.get(group).is_some_and(|at| now_s - at < REST_S);
        let (groups, kept): (Vec<u32>, Vec<u32>) =
            active.iter().partition(|group| ready.contains(group) && !is_resting(group));
        let is_full =
            |group: &&u32| loads.get(group).is_some_and(|load| load.memory_share() > MEMORY_SHARE_MAX);
        let full: Vec<u32> = groups.iter().filter(is_full).copied().collect();
        let moves = plan(placement, &Sharing { groups: &groups, full: &full, kept: &kept }, &weights);
        let (_, after) = greatest(&moved(placement, &moves), active, &weights)?;
        let is_worth_it = most - after >= GAIN_MIN * (most - fair);
        (is_worth_it && !moves.is_empty()).then_some(Advice { moves, most: (group, most), after })
    }
}

/// The group that costs most.
fn greatest(placement: &Placement, active: &[u32], weights: &Weights) -> Option<(u32, f64)> {
    let costs = active.iter().copied().zip(costs(placement, active, weights));
    costs.max_by(|one, other| one.1.total_cmp(&other.1))
}

#[cfg(test)]
mod tests;
