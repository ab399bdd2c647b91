//! The placement of a cluster's slots and pinned tables: which group has them, and which are on their way to another one.
//!
//! It is one small record in a registry, changed by compare-and-set. Each group applies every version of it as a change
//! between pushes. So all replicas of a group agree on what they have.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Fields of a record that a later version of the program has written. They are kept when the record changes.
pub type LaterFields = BTreeMap<String, serde_json::Value>;

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
    /// The groups whose pinned tables are in another one, ascending. Those of all others are where they were made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<PinnedPlace>,
    /// Moves that are under way. A slot is in one of them at most, and so are the tables pinned to a group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<Move>,
    /// Fields that a later version of the program has written.
    #[serde(flatten)]
    pub later: LaterFields,
}

/// The place of the tables that are pinned to a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedPlace {
    /// The group that the tables name.
    pub home: u32,
    /// The group that has them.
    pub group: u32,
}

/// Slots in one group, up to the next run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotRun {
    /// The first slot.
    pub first: u32,
    /// The group.
    pub group: u32,
}

/// Slots and pinned tables on their way from one group to another.
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
    /// The groups whose pinned tables move.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<u32>,
    /// How far the move is.
    pub state: MoveState,
    /// Drawn by the primary of the receiving group that works on it; 0: none does yet.
    #[serde(default)]
    pub attempt: u64,
    /// Fields that a later version of the program has written.
    #[serde(flatten)]
    pub later: LaterFields,
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

/// Whether a group has a slot, or the tables that are pinned to a group.
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
        let (pinned, moves, later) = Default::default();
        Placement { version, slots: groups.len() as u32, runs, pinned, moves, later }
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

    /// The group that has the tables which are pinned to a group.
    #[must_use]
    pub fn pinned_to(&self, home: u32) -> u32 {
        self.pinned.iter().find(|place| place.home == home).map_or(home, |place| place.group)
    }

    /// Whether a group has the tables that are pinned to a group.
    #[must_use]
    pub fn pinned_owner(&self, group: u32, home: u32) -> SlotOwner {
        let is_closed = |one: &Move| {
            one.from == group && one.state == MoveState::HandingOver && one.pinned.contains(&home)
        };
        match self.pinned_to(home) {
            other if other != group => SlotOwner::Elsewhere(other),
            _ if self.moves.iter().any(is_closed) => SlotOwner::InHandOver,
            _ => SlotOwner::Here,
        }
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

    /// The next version, in which the receiving group of a move has its slots and pinned tables.
    #[must_use]
    pub fn committed(&self, id: u64) -> Placement {
        let Some(one) = self.moves.iter().find(|one| one.id == id) else { return self.clone() };
        let mut groups = self.groups();
        for slot in one.each_slot() {
            groups.get_mut(slot as usize).into_iter().for_each(|group| *group = one.to);
        }
        let runs = Placement::of_groups(0, &groups).runs;
        let mut pinned: Vec<PinnedPlace> =
            self.pinned.iter().filter(|place| !one.pinned.contains(&place.home)).copied().collect();
        pinned.extend(one.pinned.iter().map(|&home| PinnedPlace { home, group: one.to }));
        pinned.retain(|place| place.home != place.group);
        pinned.sort_unstable_by_key(|place| place.home);
        Placement { runs, pinned, ..self.with_move(id, Some(MoveState::Releasing)) }
    }

    /// Whether the record can be one: its runs are in order, and its moves are of distinct slots and pinned tables.
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
        let is_place = |place: &PinnedPlace| place.home < groups && place.group < groups;
        let in_order = self.pinned.is_sorted_by(|one, next| one.home < next.home);
        if !in_order || !self.pinned.iter().all(is_place) {
            return Err(format!(
                "its pinned tables are not in order, or in a group beyond the {groups} that there are"
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
        let mut pinned: Vec<u32> = self.moves.iter().flat_map(|one| one.pinned.iter().copied()).collect();
        pinned.sort_unstable();
        if pinned.windows(2).any(|pair| pair[0] == pair[1])
            || pinned.last().is_some_and(|&last| last >= groups)
        {
            return Err("the tables pinned to a group are in two moves, or there is no such group".to_owned());
        }
        Ok(())
    }
}

impl Move {
    /// A move that has yet to begin, of slots and of the tables that are pinned to groups.
    #[must_use]
    pub fn new(id: u64, (from, to): (u32, u32), slots: Vec<SlotSpan>, pinned: Vec<u32>) -> Move {
        Move { id, from, to, slots, pinned, state: MoveState::Copying, attempt: 0, later: LaterFields::new() }
    }

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
        Move { state, ..Move::new(7, (0, 1), slots, vec![0]) }
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
            assert_eq!([0, 1].map(|group| placement.pinned_owner(group, 0)), [giving, receiving]);
            assert_eq!([0, 1].map(|group| placement.pinned_owner(group, 1)), [Elsewhere(1), Here]);
            assert_eq!((placement.owners(0)[0], placement.owners(1)[3]), (Here, Here));
        }
        let committed = of(&groups, vec![moving(MoveState::HandingOver)]).committed(7);
        assert_eq!(committed.groups(), [0, 1, 1, 1, 1, 1]);
        assert_eq!((committed.moves[0].state, committed.moves[0].count()), (MoveState::Releasing, 3));
        assert_eq!((committed.owners(0)[1], committed.owners(1)[1]), (Elsewhere(1), Here));
        assert_eq!([0, 1].map(|group| committed.pinned_owner(group, 0)), [Elsewhere(1), Here]);
        assert_eq!(committed.with_move(7, None).moves, []);
    }

    #[test]
    fn pinned_tables_come_home_by_another_move() {
        let away = of(&[0, 1], vec![moving(MoveState::HandingOver)]).committed(7).with_move(7, None);
        assert_eq!(away.pinned, [PinnedPlace { home: 0, group: 1 }]);
        let back = away.changed(|next| next.moves.push(Move::new(8, (1, 0), Vec::new(), vec![0, 1])));
        assert_eq!(back.check(2), Ok(()));
        assert_eq!(back.committed(8).pinned, [PinnedPlace { home: 1, group: 0 }]);
    }

    #[test]
    fn records_of_other_versions_are_read_and_what_is_unknown_stays() {
        let before = r#"{"version":1,"slots":2,"runs":[{"first":0,"group":0}]}"#;
        let known: Placement = serde_json::from_str(before).expect("it is one");
        assert_eq!((known.pinned_to(1), known.later.len()), (1, 0));
        assert_eq!(serde_json::to_string(&known).expect("it is JSON"), before);
        let later = r#"{"version":1,"slots":2,"runs":[{"first":0,"group":0}],"moves":[{"id":3,"from":0,"to":1,"slots":[],"state":"copying","attempt":0,"why":"heat"}],"zones":["a"]}"#;
        let known: Placement = serde_json::from_str(later).expect("it is one");
        let next = serde_json::to_value(known.with_move(3, Some(MoveState::Cancelled))).expect("it is JSON");
        assert_eq!((&next["zones"][0], &next["moves"][0]["why"]), (&"a".into(), &"heat".into()));
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
        wrong(|it| it.pinned = vec![PinnedPlace { home: 0, group: 2 }], "in a group beyond the 2");
        wrong(|it| it.pinned = vec![PinnedPlace { home: 1, group: 0 }; 2], "not in order");
        wrong(|it| it.moves[0].pinned = vec![1, 1], "in two moves");
        wrong(|it| it.moves[0].pinned = vec![2], "no such group");
    }
}
