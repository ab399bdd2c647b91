//! Changes of a cluster while it runs: more groups, fewer groups, and moves that share its slots out anew. Knows no
//! server.

use std::time::Duration;

use sanderling_replica::{Move, MoveState, Placement, SlotSpan};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cluster::{CONFIG, ClusterConfig, PLACEMENT};
use crate::limit::GROUPS_MAX;
use crate::membership::{parse, to_value};
use crate::registry::{Edit, Outcome, Registry, RegistryError};

/// Attempts to be faster than others who change a record.
const ATTEMPTS: usize = 64;
/// Time for one question to the registry.
const WITHIN: Duration = Duration::from_secs(5);
/// Slots of one move: requests for all of them wait while its last rows are copied.
const SLOTS_PER_MOVE: usize = 128;

/// Slots that are to leave a group for another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedMove {
    /// The group that has the slots.
    pub from: u32,
    /// The group that gets them.
    pub to: u32,
    /// The slots, ascending.
    pub slots: Vec<u32>,
}

/// The fewest moves by which these groups have equal shares of the slots' weights, as far as whole slots allow.
///
/// `weights` has the load of each slot. Slots of other groups all leave them. A slot that is under way already has the
/// group that it goes to.
#[must_use]
pub fn plan(placement: &Placement, groups: &[u32], weights: &[f64]) -> Vec<PlannedMove> {
    let Some(&any) = groups.first() else { return Vec::new() };
    let now = settled(placement);
    let mut wanted = now.clone();
    let weight = |slot: usize| weights.get(slot).copied().unwrap_or_default().max(0.0);
    let mut loads: Vec<(u32, f64)> = groups.iter().map(|&group| (group, 0.0)).collect();
    let mut homeless: Vec<usize> = Vec::new();
    for (slot, group) in now.iter().enumerate() {
        match loads.iter_mut().find(|(known, _)| known == group) {
            Some((_, load)) => *load += weight(slot),
            None => homeless.push(slot),
        }
    }
    // The heaviest first, each to the group with the least.
    homeless.sort_by(|&one, &other| weight(other).total_cmp(&weight(one)).then(one.cmp(&other)));
    for slot in homeless {
        let least = loads.iter_mut().min_by(|one, other| one.1.total_cmp(&other.1));
        if let Some((group, load)) = least {
            (wanted[slot], *load) = (*group, *load + weight(slot));
        }
    }
    // Each step lowers the greatest difference; there are at most as many as slots.
    for _ in 0..now.len() {
        let most = loads.iter().copied().max_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or((any, 0.0));
        let least =
            loads.iter().copied().min_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or((any, 0.0));
        let half = (most.1 - least.1) / 2.0;
        let fits = |&slot: &usize| wanted[slot] == most.0 && weight(slot) > 0.0 && weight(slot) < 2.0 * half;
        // One that was moved already goes on first: it moves once in any case.
        let off = |slot: usize| ((weight(slot) - half).abs(), wanted[slot] == now[slot]);
        let best = (0..now.len()).rev().filter(fits).min_by(|&one, &other| {
            let (one, other) = (off(one), off(other));
            one.0.total_cmp(&other.0).then(one.1.cmp(&other.1))
        });
        let Some(slot) = best else { break };
        wanted[slot] = least.0;
        for (group, load) in &mut loads {
            if *group == most.0 {
                *load -= weight(slot);
            } else if *group == least.0 {
                *load += weight(slot);
            }
        }
    }
    let mut moves: Vec<PlannedMove> = Vec::new();
    for (slot, (&from, &to)) in (0..).zip(now.iter().zip(&wanted)) {
        if from == to || is_moving(placement, slot) {
            continue;
        }
        let open = moves.iter_mut().rev().find(|known| (known.from, known.to) == (from, to));
        match open.filter(|known| known.slots.len() < SLOTS_PER_MOVE) {
            Some(known) => known.slots.push(slot),
            None => moves.push(PlannedMove { from, to, slots: vec![slot] }),
        }
    }
    moves
}

fn is_moving(placement: &Placement, slot: u32) -> bool {
    placement.moves.iter().any(|one| one.each_slot().any(|moving| moving == slot))
}

/// The group of each slot when all moves are done.
fn settled(placement: &Placement) -> Vec<u32> {
    let mut groups = placement.groups();
    for one in placement.moves.iter().filter(|one| one.state != MoveState::Cancelled) {
        one.each_slot().for_each(|slot| groups[slot as usize] = one.to);
    }
    groups
}

/// The configuration and the placement of a cluster.
///
/// # Errors
/// There is no such cluster, or the registry does not answer.
pub fn layout(registry: &dyn Registry) -> Result<(ClusterConfig, Placement), RegistryError> {
    let (_, config) = read(registry, CONFIG)?;
    let (_, placement) = read(registry, PLACEMENT)?;
    Ok((config, placement))
}

fn read<T: DeserializeOwned>(registry: &dyn Registry, name: &str) -> Result<(u64, T), RegistryError> {
    let record = registry.get(name, WITHIN)?.ok_or_else(|| {
        let reason =
            format!("{}: there is no such cluster: sanderling ps --cluster begins one", registry.url());
        RegistryError::Invalid(reason)
    })?;
    Ok((record.revision, parse(registry, name, record.value)?))
}

/// Changes a record; others may change it at the same time.
fn change<T: Serialize + DeserializeOwned>(
    registry: &dyn Registry,
    name: &str,
    mut edit: impl FnMut(&T) -> Result<T, RegistryError>,
) -> Result<T, RegistryError> {
    for _ in 0..ATTEMPTS {
        let (revision, present) = read(registry, name)?;
        let next = edit(&present)?;
        let put = Edit::put(to_value(name, &next)?);
        if let Outcome::Done(_) = registry.compare_and_set(name, revision, put, WITHIN)? {
            return Ok(next);
        }
    }
    Err(RegistryError::Invalid(format!("{}: {name} changes all the time; try again", registry.url())))
}

/// Adds a group without slots: one that was drained, or the next one. Returns its number.
///
/// # Errors
/// There are too many groups, or the registry does not answer.
pub fn add_group(registry: &dyn Registry) -> Result<u32, RegistryError> {
    let mut added = 0;
    change(registry, CONFIG, |config: &ClusterConfig| {
        let mut next = config.clone();
        added = match next.drained.iter().min().copied() {
            Some(drained) => {
                next.drained.retain(|group| *group != drained);
                drained
            }
            None if next.groups >= GROUPS_MAX => {
                return Err(RegistryError::Invalid(format!(
                    "there are {GROUPS_MAX} groups, and no more are possible"
                )));
            }
            None => {
                next.groups += 1;
                next.groups - 1
            }
        };
        Ok(next)
    })?;
    Ok(added)
}

/// Takes a group's right to slots away. It has to be the receiver of no move.
///
/// # Errors
/// It is the last group, or none, or the registry does not answer.
pub fn drain_group(registry: &dyn Registry, group: u32) -> Result<ClusterConfig, RegistryError> {
    change(registry, CONFIG, |config: &ClusterConfig| {
        if group >= config.groups {
            let reason = format!("there is no group {group}: the last is {}", config.groups - 1);
            return Err(RegistryError::Invalid(reason));
        }
        if config.active().all(|active| active == group) {
            return Err(RegistryError::Invalid("it is the only group that is left".to_owned()));
        }
        let mut next = config.clone();
        if !next.drained.contains(&group) {
            next.drained.push(group);
        }
        Ok(next)
    })
}

/// Begins moves: their slots must be where the plan says, and not be moving. Returns the placement with them.
///
/// # Errors
/// The placement has changed since it was planned, or the registry does not answer.
pub fn begin_moves(registry: &dyn Registry, planned: &[PlannedMove]) -> Result<Placement, RegistryError> {
    change(registry, PLACEMENT, |placement: &Placement| {
        let groups = placement.groups();
        let changed = |one: &PlannedMove| {
            one.slots.iter().any(|&slot| groups[slot as usize] != one.from || is_moving(placement, slot))
        };
        if planned.iter().any(changed) {
            return Err(RegistryError::Invalid("the placement has changed since; plan anew".to_owned()));
        }
        let last = placement.moves.iter().map(|one| one.id).max().unwrap_or(0);
        Ok(placement.changed(|next| {
            let first = last.max(placement.version << 10) + 1;
            for (id, one) in (first..).zip(planned) {
                let slots = SlotSpan::of_slots(&one.slots);
                let (from, to, state) = (one.from, one.to, MoveState::Copying);
                next.moves.push(Move { id, from, to, slots, state, attempt: 0 });
            }
        }))
    })
}

/// Gives up all moves that are not committed. Returns how many.
///
/// # Errors
/// The registry does not answer.
pub fn cancel_moves(registry: &dyn Registry) -> Result<usize, RegistryError> {
    let mut cancelled = 0;
    change(registry, PLACEMENT, |placement: &Placement| {
        let is_open = |one: &Move| matches!(one.state, MoveState::Copying | MoveState::HandingOver);
        cancelled = placement.moves.iter().filter(|one| is_open(one)).count();
        Ok(placement.changed(|next| {
            next.moves.iter_mut().filter(|one| is_open(one)).for_each(|one| one.state = MoveState::Cancelled);
        }))
    })?;
    Ok(cancelled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::{Wanted, agree};
    use crate::memory::MemoryRegistry;

    fn shares(placement: &Placement, groups: u32) -> Vec<usize> {
        let settled = settled(placement);
        (0..groups).map(|group| settled.iter().filter(|of| **of == group).count()).collect()
    }

    #[test]
    fn a_group_that_is_added_gets_its_share_and_a_drained_one_gives_all() {
        let registry = MemoryRegistry::default();
        agree(&registry, &Wanted { slots: 4096, groups: None, replicas: None }).unwrap();
        assert_eq!(add_group(&registry).unwrap(), 2);
        let (config, placement) = layout(&registry).unwrap();
        let active: Vec<u32> = config.active().collect();
        let planned = plan(&placement, &active, &[1.0; 4096]);
        // No slot moves between the old groups.
        assert!(planned.iter().all(|one| one.to == 2 && one.slots.len() <= SLOTS_PER_MOVE));
        let moved: usize = planned.iter().map(|one| one.slots.len()).sum();
        let begun = begin_moves(&registry, &planned).unwrap();
        assert_eq!(begun.check(3), Ok(()));
        assert_eq!((shares(&begun, 3), moved), (vec![1366, 1365, 1365], 1365));
        let error = begin_moves(&registry, &planned).unwrap_err().to_string();
        assert!(error.contains("plan anew"), "{error}");
        assert_eq!(plan(&begun, &active, &[1.0; 4096]), []);
        assert_eq!(cancel_moves(&registry).unwrap(), planned.len());

        let config = drain_group(&registry, 0).unwrap();
        assert_eq!(config.active().collect::<Vec<_>>(), [1, 2]);
        let placement = Placement::even(4096, 3);
        let planned = plan(&placement, &[1, 2], &[1.0; 4096]);
        let moved: usize = planned.iter().map(|one| one.slots.len()).sum();
        assert!(planned.iter().all(|one| one.from == 0) && moved == 1366, "{planned:?}");
        drain_group(&registry, 1).unwrap();
        assert!(drain_group(&registry, 2).unwrap_err().to_string().contains("the only group"));
        assert!(drain_group(&registry, 7).unwrap_err().to_string().contains("no group 7"));
        // A drained group is taken up again before a new one is made.
        assert_eq!((add_group(&registry).unwrap(), add_group(&registry).unwrap()), (0, 1));
    }

    #[test]
    fn heavy_slots_move_first_and_few_do() {
        let placement = Placement::even(8, 2);
        for (weights, expected) in [
            // Slots 0 to 3 are those of group 0.
            ([1.0; 8], vec![]),
            ([4.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0], vec![(0, vec![2, 3])]),
            // A single hot slot cannot be divided.
            ([9.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], vec![]),
            ([5.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], vec![(0, vec![1])]),
        ] {
            let found: Vec<_> =
                plan(&placement, &[0, 1], &weights).into_iter().map(|one| (one.from, one.slots)).collect();
            assert_eq!(found, expected, "{weights:?}");
        }
    }
}
