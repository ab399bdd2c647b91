//! The plan of moves: which slots leave which group, so that all groups cost as much. Knows no registry and no clock.

use sanderling_replica::{MoveState, Placement};

/// Slots of one move: requests for all of them wait while its last rows are copied.
pub(crate) const SLOTS_PER_MOVE: usize = 128;

/// Slots, or pinned tables, that are to leave a group for another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlannedMove {
    /// The group that has the slots.
    pub from: u32,
    /// The group that gets them.
    pub to: u32,
    /// The slots, ascending.
    pub slots: Vec<u32>,
    /// The groups whose pinned tables move, ascending.
    pub pinned: Vec<u32>,
}

/// The part of each slot in the cluster: shares that add up to 1, or zeros where nothing is known.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    /// Shares of the work of requests.
    pub load: Vec<f64>,
    /// Shares of the rows.
    pub rows: Vec<f64>,
    /// Groups that cost up to this multiple of an equal share are left as they are.
    pub alike: f64,
}

impl Weights {
    /// Every slot is like the others.
    #[must_use]
    pub fn equal(slots: u32) -> Weights {
        let shares = vec![1.0 / f64::from(slots.max(1)); slots as usize];
        Weights { load: shares.clone(), rows: shares, alike: 1.0 }
    }

    fn of(&self, slot: usize) -> Cost {
        let share = |shares: &[f64]| shares.get(slot).copied().unwrap_or_default().max(0.0);
        Cost { load: share(&self.load), rows: share(&self.rows) }
    }
}

/// Groups of a cluster by what they may do in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharing<'a> {
    /// Groups that share the slots.
    pub groups: &'a [u32],
    /// Groups among these that get no more slots.
    pub full: &'a [u32],
    /// Other groups, which stay as they are. All slots of groups that are in neither list leave them.
    pub kept: &'a [u32],
}

impl Sharing<'_> {
    /// All of these groups give and get.
    #[must_use]
    pub fn of(groups: &[u32]) -> Sharing<'_> {
        Sharing { groups, full: &[], kept: &[] }
    }
}

/// The shares that a group has.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Cost {
    load: f64,
    rows: f64,
}

impl Cost {
    /// The share of the scarcer resource.
    fn most(self) -> f64 {
        self.load.max(self.rows)
    }

    fn plus(self, other: Cost) -> Cost {
        Cost { load: self.load + other.load, rows: self.rows + other.rows }
    }

    fn minus(self, other: Cost) -> Cost {
        Cost { load: self.load - other.load, rows: self.rows - other.rows }
    }
}

/// The share of each group when all moves under way are done: the greater one of its share of the load and that of the
/// rows.
#[must_use]
pub fn costs(placement: &Placement, groups: &[u32], weights: &Weights) -> Vec<f64> {
    let settled = settled(placement);
    let of = |group: &u32| {
        let own = settled.iter().enumerate().filter(|(_, of)| *of == group);
        own.fold(Cost::default(), |sum, (slot, _)| sum.plus(weights.of(slot))).most()
    };
    groups.iter().map(of).collect()
}

/// The placement when these moves are done.
#[must_use]
pub fn moved(placement: &Placement, moves: &[PlannedMove]) -> Placement {
    let mut groups = placement.groups();
    for one in moves {
        one.slots.iter().for_each(|&slot| groups[slot as usize] = one.to);
    }
    Placement::of_groups(placement.version, &groups)
}

/// Few moves by which these groups cost as much as each other, as far as whole slots allow.
///
/// A group costs the greater one of its shares of the load and of the rows. A slot that is under way already has the
/// group that it goes to.
#[must_use]
pub fn plan(placement: &Placement, sharing: &Sharing<'_>, weights: &Weights) -> Vec<PlannedMove> {
    let Sharing { groups, full, kept } = *sharing;
    let now = settled(placement);
    let mut wanted = now.clone();
    let mut costs: Vec<(u32, Cost)> = groups.iter().map(|&group| (group, Cost::default())).collect();
    let mut homeless: Vec<usize> = Vec::new();
    for (slot, group) in now.iter().enumerate() {
        match costs.iter_mut().find(|(known, _)| known == group) {
            Some((_, cost)) => *cost = cost.plus(weights.of(slot)),
            None if kept.contains(group) => {}
            None => homeless.push(slot),
        }
    }
    // The heaviest first, each to the group with the least.
    homeless.sort_by(|&one, &other| {
        weights.of(other).most().total_cmp(&weights.of(one).most()).then(one.cmp(&other))
    });
    for slot in homeless {
        if let Some((group, cost)) = least(&mut costs, full) {
            (wanted[slot], *cost) = (*group, cost.plus(weights.of(slot)));
        }
    }
    let sum = costs.iter().fold(Cost::default(), |sum, (_, cost)| sum.plus(*cost));
    let enough = sum.most() / costs.len().max(1) as f64 * weights.alike;
    // Each step lowers the greatest cost of two groups; there are at most as many as slots.
    for _ in 0..now.len() {
        let (most, least) = (most(&costs), least(&mut costs, full).copied());
        let (Some(most), Some(least)) = (most, least) else { break };
        if most.1.most() <= enough {
            break;
        }
        let after = |slot: usize| {
            let weight = weights.of(slot);
            most.1.minus(weight).most().max(least.1.plus(weight).most())
        };
        let helps = |&slot: &usize| {
            wanted[slot] == most.0 && weights.of(slot).most() > 0.0 && after(slot) < most.1.most() - EPSILON
        };
        // One that was moved already goes on first: it moves once in any case.
        let best =
            (0..now.len()).rev().filter(helps).map(|slot| (after(slot), wanted[slot] == now[slot], slot));
        let best = best.min_by(|one, other| match (one.0 - other.0).abs() < EPSILON {
            true => one.1.cmp(&other.1),
            false => one.0.total_cmp(&other.0),
        });
        let Some((_, _, slot)) = best else { break };
        wanted[slot] = least.0;
        let weight = weights.of(slot);
        for (group, cost) in &mut costs {
            if *group == most.0 {
                *cost = cost.minus(weight);
            } else if *group == least.0 {
                *cost = cost.plus(weight);
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
            None => moves.push(PlannedMove { from, to, slots: vec![slot], ..PlannedMove::default() }),
        }
    }
    moves
}

/// The move of all pinned tables of a group to another group: the one that has slots and costs least. `None`: the group has
/// no pinned tables, or they move already.
#[must_use]
pub fn plan_pinned(
    placement: &Placement,
    (from, groups): (u32, u32),
    others: &[u32],
    weights: &Weights,
) -> Option<PlannedMove> {
    let is_moving = |home: &u32| placement.moves.iter().any(|one| one.pinned.contains(home));
    let is_here = |home: &u32| placement.pinned_to(*home) == from && !is_moving(home);
    let pinned: Vec<u32> = (0..groups).filter(is_here).collect();
    let costs = others.iter().copied().zip(costs(placement, others, weights));
    let with_slots = settled(placement);
    let able = costs.filter(|(group, _)| *group != from && with_slots.contains(group));
    let (to, _) = able.min_by(|one, other| one.1.total_cmp(&other.1))?;
    (!pinned.is_empty()).then_some(PlannedMove { from, to, slots: Vec::new(), pinned })
}

/// Differences of shares below this are none: far less than one of 65,536 equal slots.
const EPSILON: f64 = 1e-9;

fn most(costs: &[(u32, Cost)]) -> Option<(u32, Cost)> {
    costs.iter().copied().max_by(|one, other| one.1.most().total_cmp(&other.1.most()))
}

fn least<'a>(costs: &'a mut [(u32, Cost)], full: &[u32]) -> Option<&'a mut (u32, Cost)> {
    costs
        .iter_mut()
        .filter(|(group, _)| !full.contains(group))
        .min_by(|one, other| one.1.most().total_cmp(&other.1.most()))
}

pub(crate) fn is_moving(placement: &Placement, slot: u32) -> bool {
    placement.moves.iter().any(|one| one.each_slot().any(|moving| moving == slot))
}

/// The group of each slot when all moves are done.
pub(crate) fn settled(placement: &Placement) -> Vec<u32> {
    let mut groups = placement.groups();
    for one in placement.moves.iter().filter(|one| one.state != MoveState::Cancelled) {
        one.each_slot().for_each(|slot| groups[slot as usize] = one.to);
    }
    groups
}

#[cfg(test)]
mod tests {
    use sanderling_replica::{Move, PinnedPlace};

    use super::*;

    fn planned(weights: &Weights, groups: &[u32], kept: &[u32]) -> Vec<(u32, u32, Vec<u32>)> {
        let placement = Placement::even(8, 2);
        let planned = plan(&placement, &Sharing { groups, full: &[], kept }, weights);
        planned.into_iter().map(|one| (one.from, one.to, one.slots)).collect()
    }

    #[test]
    fn heavy_slots_move_first_and_few_do() {
        // Slots 0 to 3 are those of group 0.
        for (load, expected) in [
            ([1.0; 8], vec![]),
            ([4.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0], vec![(0, 1, vec![2, 3])]),
            // A single hot slot cannot be divided.
            ([9.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], vec![]),
            ([5.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], vec![(0, 1, vec![1])]),
        ] {
            let load = load.map(|weight| weight / 20.0).to_vec();
            assert_eq!(planned(&Weights { load, rows: Vec::new(), alike: 1.0 }, &[0, 1], &[]), expected);
        }
    }

    #[test]
    fn a_group_costs_the_scarcer_resource() {
        // Group 0 has most of the load, and group 1 as much of the rows: no move helps one without harm to the other.
        let load = vec![0.2, 0.2, 0.2, 0.2, 0.05, 0.05, 0.05, 0.05];
        let rows: Vec<f64> = load.iter().rev().copied().collect();
        let weights = Weights { load: load.clone(), rows, alike: 1.0 };
        assert_eq!(costs(&Placement::even(8, 2), &[0, 1], &weights), [0.8, 0.8]);
        assert_eq!(planned(&weights, &[0, 1], &[]), []);
        // Little is left as it is.
        let small =
            Weights { load: vec![0.13, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.12], ..weights.clone() };
        assert_eq!(planned(&Weights { rows: Vec::new(), alike: 1.02, ..small }, &[0, 1], &[]), []);
        // Rows without load do not stay where they are many.
        let weights = Weights { load: Vec::new(), rows: load, alike: 1.0 };
        assert_eq!(planned(&weights, &[0, 1], &[]), [(0, 1, vec![3])]);
    }

    #[test]
    fn pinned_tables_go_to_the_group_with_slots_that_costs_least() {
        let mut placement = Placement::of_groups(1, &[0, 0, 1, 1, 1, 2, 2]);
        let weights = Weights::equal(7);
        let planned = |placement: &Placement, from| plan_pinned(placement, (from, 4), &[1, 2, 3], &weights);
        let to_2 = |from, pinned| Some(PlannedMove { from, to: 2, slots: vec![], pinned });
        assert_eq!(planned(&placement, 0), to_2(0, vec![0]));
        // The tables of group 0 are in group 1 by now, and leave it together with its own.
        placement.pinned = vec![PinnedPlace { home: 0, group: 1 }];
        assert_eq!((planned(&placement, 0), planned(&placement, 1)), (None, to_2(1, vec![0, 1])));
        placement.moves = vec![Move::new(1, (1, 2), Vec::new(), vec![0, 1])];
        assert_eq!(planned(&placement, 1), None);
    }

    #[test]
    fn groups_that_are_kept_or_full_get_nothing() {
        let placement = Placement::even(12, 3);
        let weights = Weights::equal(12);
        for (groups, full, kept, expected) in [
            (&[1, 2][..], &[][..], &[][..], vec![(0, 1), (0, 2)]),
            (&[1, 2], &[1], &[], vec![(0, 2)]),
            (&[1, 2], &[1, 2], &[], vec![]),
            (&[1, 2], &[], &[0], vec![]),
            (&[2], &[], &[0], vec![(1, 2)]),
            (&[], &[], &[0, 1, 2], vec![]),
        ] {
            let sharing = Sharing { groups, full, kept };
            let mut found: Vec<_> =
                plan(&placement, &sharing, &weights).iter().map(|one| (one.from, one.to)).collect();
            found.sort_unstable();
            assert_eq!(found, expected, "{sharing:?}");
        }
    }
}
