//! The groups of all jobs that meet at one place. Knows no clock: who asks says what time it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::budget::Budget;
use crate::group::Group;
use crate::limit::{BYTES_MAX, GROUP_IDLE_MAX, GROUPS_MAX};
use crate::refused::Refused;

/// All groups, by the numbers that their jobs have chosen.
#[derive(Debug)]
pub struct Place<F> {
    groups: Mutex<HashMap<u64, Known<F>>>,
    budget: Budget,
}

#[derive(Debug)]
struct Known<F> {
    group: Arc<Mutex<Group<F>>>,
    used: Instant,
}

impl<F> Default for Place<F> {
    fn default() -> Place<F> {
        Place { groups: Mutex::default(), budget: Budget::new(BYTES_MAX) }
    }
}

impl<F: Clone> Place<F> {
    // Each change of the map is one step.
    fn groups(&self) -> MutexGuard<'_, HashMap<u64, Known<F>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The group of this number; a new one for its first worker.
    pub fn group(&self, number: u64, workers: u32, now: Instant) -> Result<Arc<Mutex<Group<F>>>, Refused<F>> {
        let mut groups = self.groups();
        if let Some(known) = groups.get_mut(&number) {
            known.used = now;
            return Ok(Arc::clone(&known.group));
        }
        // Each start of a job makes new ones, and what groups keep to sum up with is in no budget.
        for known in groups.values().filter(|known| is_idle(known, now)) {
            if let Ok(mut group) = known.group.try_lock() {
                group.release_spare();
            }
        }
        if groups.len() >= GROUPS_MAX {
            forget(&mut groups, now);
        }
        if groups.len() >= GROUPS_MAX {
            return Err(Refused::Full { what: format!("{GROUPS_MAX} groups of workers meet here") });
        }
        let group = Arc::new(Mutex::new(Group::new(workers, self.budget.clone())?));
        groups.insert(number, Known { group: Arc::clone(&group), used: now });
        Ok(group)
    }

    /// Makes room when something was refused for want of it.
    pub fn forget_idle(&self, now: Instant) {
        forget(&mut self.groups(), now);
    }

    /// Groups, and bytes that are kept for them.
    pub fn sizes(&self) -> (usize, usize) {
        (self.groups().len(), self.budget.held())
    }
}

fn is_idle<F>(known: &Known<F>, now: Instant) -> bool {
    now.saturating_duration_since(known.used) >= GROUP_IDLE_MAX
}

fn forget<F>(groups: &mut HashMap<u64, Known<F>>, now: Instant) {
    groups.retain(|_, known| !is_idle(known, now));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As while a job validates for long, and another one begins.
    #[test]
    fn an_idle_group_is_kept_while_there_is_room() {
        let (place, start) = (Place::<String>::default(), Instant::now());
        let group = place.group(1, 1, start).expect("there is room");
        place.group(2, 1, start + 2 * GROUP_IDLE_MAX).expect("there is room");
        let again = place.group(1, 1, start + 2 * GROUP_IDLE_MAX).expect("it is known");
        assert!(Arc::ptr_eq(&group, &again));
    }

    #[test]
    fn groups_are_bounded_and_idle_ones_make_room() {
        let (place, start) = (Place::<String>::default(), Instant::now());
        for number in 0..GROUPS_MAX as u64 {
            place.group(number, 1, start).expect("there is room");
        }
        assert!(matches!(place.group(u64::MAX, 1, start), Err(Refused::Full { .. })));
        let later = start + GROUP_IDLE_MAX;
        let kept = place.group(7, 1, later).expect("it is known");
        let new = place.group(u64::MAX, 1, later).expect("the others are idle");
        assert!(!Arc::ptr_eq(&kept, &new));
        assert_eq!(place.sizes(), (2, 0));
        assert!(matches!(place.group(1, 0, later), Err(Refused::TooLarge { .. })));
    }
}
