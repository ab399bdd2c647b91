//! The placement of a cluster's slots: which group has each slot, and which slots are on their way to another group.
//!
//! It is one small record in a registry, changed by compare-and-set. Each group applies every version of it as a change
//! between pushes. So all replicas of a group agree on the slots that they have.

use serde::{Deserialize, Serialize};

/// Slots of a cluster, as of servers without one: the least share of keys that can move.
pub const SLOTS_DEFAULT: u32 = sanderling_wire::limit::SLOTS_DEFAULT as u32;

/// The group of each slot, and the moves under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Counts changes, from 1.
    pub version: u64,
    /// Slots of keys.
    pub slots: u32,
    /// The first slots of runs in one group, ascending from 0.
    pub runs: Vec<SlotRun>,
    /// Moves that are under way. A slot is in one of them at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<Move>,
}

/// Slots in one group, up to the next run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotRun {
    /// The first slot.
    pub first: u32,
    /// The group.
    pub group: u32,
}

/// Slots on their way from one group to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Number of the move; none is used twice.
    pub id: u64,
    /// The group that has the slots, or had them.
    pub from: u32,
    /// The group that gets them.
    pub to: u32,
    /// The slots.
    pub slots: Vec<SlotSpan>,
    /// How far the move is.
    pub state: MoveState,
    /// Drawn by the primary of the receiving group that works on it; 0: none does yet.
    #[serde(default)]
    pub attempt: u64,
}

/// Consecutive slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotSpan {
    /// The first slot.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// How far a move is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MoveState {
    /// Rows are copied while the giving group goes on with the slots.
    Copying,
    /// No group takes requests for the slots, and the last rows are copied.
    HandingOver,
    /// The receiving group has the slots; the giving group removes its rows.
    Releasing,
    /// The move is void, and the receiving group removes its rows.
    Cancelled,
}

/// Whether a group has a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotOwner {
    /// The group has it.
    Here,
    /// It is handed over, and no group takes requests.
    InHandOver,
    /// Another group has it.
    Elsewhere(u32),
}

/// Requests of a server since its start, and the keys of those that were sampled, by slot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotWork {
    /// Requests.
    pub requests: u64,
    /// Requests that were sampled.
    pub sampled: u64,
    /// Keys of sampled requests by slot; empty: there are none yet. A pushed key counts as three that are pulled.
    pub keys: Vec<u64>,
}

impl SlotWork {
    /// Adds the counts of another worker.
    pub fn merge(&mut self, other: &SlotWork) {
        (self.requests, self.sampled) = (self.requests + other.requests, self.sampled + other.sampled);
        if self.keys.len() < other.keys.len() {
            self.keys.resize(other.keys.len(), 0);
        }
        self.keys.iter_mut().zip(&other.keys).for_each(|(keys, more)| *keys += more);
    }
}

impl Placement {
    /// The placement of slots by a list of groups, one per slot.
    #[must_use]
    pub fn of_groups(version: u64, groups: &[u32]) -> Placement {
        let mut runs: Vec<SlotRun> = Vec::new();
        for (first, &group) in (0..).zip(groups) {
            if runs.last().is_none_or(|run| run.group != group) {
                runs.push(SlotRun { first, group });
            }
        }
        Placement { version, slots: groups.len() as u32, runs, moves: Vec::new() }
    }

    /// The first placement of a cluster: every group has as many slots as the others, but for one.
    #[must_use]
    pub fn even(slots: u32, groups: u32) -> Placement {
        let group = |slot: u32| (u64::from(slot) * u64::from(groups) / u64::from(slots)) as u32;
        Placement::of_groups(1, &(0..slots).map(group).collect::<Vec<u32>>())
    }

    /// The group of a slot; `None` where the record is no placement.
    #[must_use]
    pub fn group_of(&self, slot: u32) -> Option<u32> {
        let after = self.runs.partition_point(|run| run.first <= slot);
        (slot < self.slots).then(|| self.runs.get(after.checked_sub(1)?)).flatten().map(|run| run.group)
    }

    /// The group of each slot.
    #[must_use]
    pub fn groups(&self) -> Vec<u32> {
        (0..self.slots).map(|slot| self.group_of(slot).unwrap_or_default()).collect()
    }

    /// For each slot, whether a group has it.
    #[must_use]
    pub fn owners(&self, group: u32) -> Vec<SlotOwner> {
        let owner = |other: u32| if other == group { SlotOwner::Here } else { SlotOwner::Elsewhere(other) };
        let mut owners: Vec<SlotOwner> = self.groups().into_iter().map(owner).collect();
        for one in &self.moves {
            if one.from == group && one.state == MoveState::HandingOver {
                for slot in one.each_slot() {
                    let owner = owners.get_mut(slot as usize).filter(|owner| **owner == SlotOwner::Here);
                    owner.into_iter().for_each(|owner| *owner = SlotOwner::InHandOver);
                }
            }
        }
        owners
    }

    /// The next version, with one change.
    #[must_use]
    pub fn changed(&self, change: impl FnOnce(&mut Placement)) -> Placement {
        let mut next = self.clone();
        change(&mut next);
        next.version = self.version + 1;
        next
    }

    /// The next version, in which a move has this state, or is gone.
    #[must_use]
    pub fn with_move(&self, id: u64, state: Option<MoveState>) -> Placement {
        self.changed(|next| match state {
            Some(state) => next.moves.iter_mut().filter(|one| one.id == id).for_each(|one| one.state = state),
            None => next.moves.retain(|one| one.id != id),
        })
    }

    /// The next version, in which the receiving group of a move has its slots.
    #[must_use]
    pub fn committed(&self, id: u64) -> Placement {
        let Some(one) = self.moves.iter().find(|one| one.id == id) else { return self.clone() };
        let mut groups = self.groups();
        for slot in one.each_slot() {
            groups.get_mut(slot as usize).into_iter().for_each(|group| *group = one.to);
        }
        let runs = Placement::of_groups(0, &groups).runs;
        Placement { runs, ..self.with_move(id, Some(MoveState::Releasing)) }
    }

    /// Whether the record can be one: its runs are in order, and its moves are of distinct slots.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn check(&self, groups: u32) -> Result<(), String> {
        let is_ordered = self.runs.first().is_some_and(|run| run.first == 0)
            && self.runs.is_sorted_by(|one, next| one.first < next.first)
            && self.runs.iter().all(|run| run.first < self.slots && run.group < groups);
        if !is_ordered {
            return Err(format!(
                "its runs are not in order, or name a group beyond the {groups} that there are"
            ));
        }
        let mut moving = vec![false; self.slots as usize];
        for one in &self.moves {
            if one.from == one.to || one.from >= groups || one.to >= groups {
                return Err(format!("move {} is from group {} to group {}", one.id, one.from, one.to));
            }
            for span in &one.slots {
                let is_within = span.first.checked_add(span.count).is_some_and(|end| end <= self.slots);
                let slots = span.first as usize..span.first as usize + span.count as usize;
                if !is_within || moving[slots.clone()].iter().any(|moving| *moving) {
                    return Err(format!("move {} has slots beyond the last, or of another move", one.id));
                }
                moving[slots].fill(true);
            }
        }
        Ok(())
    }
}

impl Move {
    /// Its slots, in order.
    pub fn each_slot(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().flat_map(|span| span.first..span.first.saturating_add(span.count))
    }

    /// How many slots it has.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.slots.iter().fold(0, |sum, span| sum.saturating_add(span.count))
    }
}

impl SlotSpan {
    /// The spans of ascending slots.
    #[must_use]
    pub fn of_slots(slots: &[u32]) -> Vec<SlotSpan> {
        let mut spans: Vec<SlotSpan> = Vec::new();
        for &slot in slots {
            match spans.last_mut() {
                Some(last) if last.first + last.count == slot => last.count += 1,
                _ => spans.push(SlotSpan { first: slot, count: 1 }),
            }
        }
        spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(groups: &[u32], moves: Vec<Move>) -> Placement {
        Placement { moves, ..Placement::of_groups(1, groups) }
    }

    fn moving(state: MoveState) -> Move {
        let slots = SlotSpan::of_slots(&[1, 2, 5]);
        Move { id: 7, from: 0, to: 1, slots, state, attempt: 0 }
    }

    #[test]
    fn a_placement_has_the_group_of_each_slot() {
        for groups in [&[][..], &[3], &[0, 0, 1, 1, 1, 0, 2], &[1, 2, 3]] {
            let placement = Placement::of_groups(1, groups);
            let found: Vec<u32> =
                (0..groups.len() as u32).filter_map(|slot| placement.group_of(slot)).collect();
            assert_eq!((&found[..], placement.groups()), (groups, groups.to_vec()));
            assert_eq!(placement.group_of(groups.len() as u32), None);
        }
        assert_eq!(Placement::even(7, 3).groups(), [0, 0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn a_group_has_the_slots_that_are_not_handed_over() {
        use SlotOwner::{Elsewhere, Here, InHandOver};
        let groups = [0, 0, 0, 1, 1, 0];
        for (state, giving, receiving) in [
            (MoveState::Copying, Here, Elsewhere(0)),
            (MoveState::HandingOver, InHandOver, Elsewhere(0)),
            (MoveState::Cancelled, Here, Elsewhere(0)),
        ] {
            let placement = of(&groups, vec![moving(state)]);
            for slot in [1, 2, 5] {
                assert_eq!((placement.owners(0)[slot], placement.owners(1)[slot]), (giving, receiving));
            }
            assert_eq!((placement.owners(0)[0], placement.owners(1)[3]), (Here, Here));
        }
        let committed = of(&groups, vec![moving(MoveState::HandingOver)]).committed(7);
        assert_eq!(committed.groups(), [0, 1, 1, 1, 1, 1]);
        assert_eq!((committed.moves[0].state, committed.moves[0].count()), (MoveState::Releasing, 3));
        assert_eq!((committed.owners(0)[1], committed.owners(1)[1]), (Elsewhere(1), Here));
        assert_eq!(committed.with_move(7, None).moves, []);
    }

    #[test]
    fn damage_is_named() {
        let fine = of(&[0, 0, 0, 1, 1, 0], vec![moving(MoveState::Copying)]);
        assert_eq!(fine.check(2), Ok(()));
        let wrong = |change: fn(&mut Placement), expected: &str| {
            let reason = fine.changed(change).check(2).expect_err(expected);
            assert!(reason.contains(expected), "{reason}");
        };
        wrong(|it| it.runs.clear(), "runs are not in order");
        wrong(|it| it.runs[1].group = 2, "beyond the 2");
        wrong(|it| it.moves[0].to = 0, "from group 0 to group 0");
        wrong(|it| it.moves.push(it.moves[0].clone()), "of another move");
        wrong(|it| it.moves[0].slots[0].count = u32::MAX, "beyond the last");
    }
}
