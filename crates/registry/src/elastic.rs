//! Changes of a cluster while it runs: more groups, fewer groups, and moves that begin and end. Knows no server.

use std::time::Duration;

use sanderling_replica::{Move, MoveState, Placement, SlotSpan};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cluster::{CONFIG, ClusterConfig, PLACEMENT};
use crate::limit::GROUPS_MAX;
use crate::membership::{parse, to_value};
use crate::plan::{PlannedMove, is_moving};
use crate::registry::{Edit, Outcome, Registry, RegistryError};

/// Attempts to be faster than others who change a record.
const ATTEMPTS: usize = 64;
/// Time for one question to the registry.
const WITHIN: Duration = Duration::from_secs(5);

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

/// Begins moves: their slots and pinned tables must be where the plan says, and not be moving. Returns the placement with
/// them.
///
/// # Errors
/// The placement has changed since it was planned, or the registry does not answer.
pub fn begin_moves(registry: &dyn Registry, planned: &[PlannedMove]) -> Result<Placement, RegistryError> {
    change(registry, PLACEMENT, |placement: &Placement| {
        let groups = placement.groups();
        let changed = |one: &PlannedMove| {
            let are_elsewhere = one.pinned.iter().any(|&home| placement.pinned_to(home) != one.from);
            let are_moving =
                placement.moves.iter().any(|other| other.pinned.iter().any(|home| one.pinned.contains(home)));
            one.slots.iter().any(|&slot| groups[slot as usize] != one.from || is_moving(placement, slot))
                || are_elsewhere
                || are_moving
        };
        if planned.iter().any(changed) {
            return Err(RegistryError::Invalid("the placement has changed since; plan anew".to_owned()));
        }
        let last = placement.moves.iter().map(|one| one.id).max().unwrap_or(0);
        Ok(placement.changed(|next| {
            let first = last.max(placement.version << 10) + 1;
            for (id, one) in (first..).zip(planned) {
                let (slots, pinned) = (SlotSpan::of_slots(&one.slots), one.pinned.clone());
                next.moves.push(Move::new(id, (one.from, one.to), slots, pinned));
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
    use crate::plan::{SLOTS_PER_MOVE, Sharing, Weights, plan, settled};

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
        let planned = plan(&placement, &Sharing::of(&active), &Weights::equal(4096));
        // No slot moves between the old groups.
        assert!(planned.iter().all(|one| one.to == 2 && one.slots.len() <= SLOTS_PER_MOVE));
        let moved: usize = planned.iter().map(|one| one.slots.len()).sum();
        let begun = begin_moves(&registry, &planned).unwrap();
        assert_eq!(begun.check(3), Ok(()));
        assert_eq!((shares(&begun, 3), moved), (vec![1366, 1365, 1365], 1365));
        let error = begin_moves(&registry, &planned).unwrap_err().to_string();
        assert!(error.contains("plan anew"), "{error}");
        assert_eq!(plan(&begun, &Sharing::of(&active), &Weights::equal(4096)), []);
        assert_eq!(cancel_moves(&registry).unwrap(), planned.len());

        let config = drain_group(&registry, 0).unwrap();
        assert_eq!(config.active().collect::<Vec<_>>(), [1, 2]);
        let placement = Placement::even(4096, 3);
        let planned = plan(&placement, &Sharing::of(&[1, 2]), &Weights::equal(4096));
        let moved: usize = planned.iter().map(|one| one.slots.len()).sum();
        assert!(planned.iter().all(|one| one.from == 0) && moved == 1366, "{planned:?}");
        drain_group(&registry, 1).unwrap();
        assert!(drain_group(&registry, 2).unwrap_err().to_string().contains("the only group"));
        assert!(drain_group(&registry, 7).unwrap_err().to_string().contains("no group 7"));
        // A drained group is taken up again before a new one is made.
        assert_eq!((add_group(&registry).unwrap(), add_group(&registry).unwrap()), (0, 1));
    }
}
