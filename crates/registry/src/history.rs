//! The last changes of records, for watches. Knows no clock and no waiting.

use std::collections::VecDeque;

use crate::limit::{HISTORY_BYTES_MAX, HISTORY_CHANGES_MAX, WATCHED_BYTES_MAX, WATCHED_CHANGES_MAX};
use crate::state_machine::PastChange;

/// The last changes, oldest first; each has its own revision.
#[derive(Debug, Default)]
pub struct History {
    changes: VecDeque<PastChange>,
    bytes: usize,
    /// The revision after which all changes are here.
    complete_after: u64,
}

impl History {
    /// A history that begins after a revision.
    #[must_use]
    pub fn after(revision: u64) -> History {
        History { complete_after: revision, ..History::default() }
    }

    /// Adds the next change, and drops the oldest ones beyond the limits.
    pub fn push(&mut self, change: PastChange) {
        self.bytes += change.bytes();
        self.changes.push_back(change);
        while self.changes.len() > HISTORY_CHANGES_MAX || self.bytes > HISTORY_BYTES_MAX {
            let Some(dropped) = self.changes.pop_front() else { return };
            self.bytes -= dropped.bytes();
            self.complete_after = dropped.revision;
        }
    }

    /// The changes after a revision of names with this beginning, and the revision up to which these are all. `None`:
    /// not all are here.
    #[must_use]
    pub fn since(&self, prefix: &str, after: u64, present: u64) -> Option<(Vec<&PastChange>, u64)> {
        if after < self.complete_after || after > present {
            return None;
        }
        let from = self.changes.partition_point(|change| change.revision <= after);
        let (mut found, mut bytes) = (Vec::new(), 0);
        for change in self.changes.range(from..).filter(|change| change.name.starts_with(prefix)) {
            bytes += change.bytes();
            if found.len() >= WATCHED_CHANGES_MAX || bytes > WATCHED_BYTES_MAX && !found.is_empty() {
                let last = found.last().map_or(after, |change: &&PastChange| change.revision);
                return Some((found, last));
            }
            found.push(change);
        }
        Some((found, present))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::protocol::JsonText;
    use crate::state_machine::Held;

    fn change(revision: u64, name: &str, bytes: usize) -> PastChange {
        let value = JsonText::new(name, &Value::from("x".repeat(bytes))).expect("it is short");
        PastChange { name: name.into(), revision, held: Some(Held { revision, lease: None, value }) }
    }

    #[test]
    fn a_watch_gets_all_changes_or_none() {
        let mut history = History::after(10);
        (11..=20)
            .for_each(|revision| history.push(change(revision, ["a/1", "b/1"][revision as usize % 2], 10)));
        for (prefix, after, expected) in [
            ("", 10, Some((10, 20))),
            ("", 20, Some((0, 20))),
            ("a/", 10, Some((5, 20))),
            ("a/", 18, Some((1, 20))),
            ("c", 15, Some((0, 20))),
            ("", 9, None),
            ("", 21, None),
        ] {
            let found = history.since(prefix, after, 20).map(|(changes, upto)| (changes.len(), upto));
            assert_eq!(found, expected, "{prefix:?} after {after}");
        }
    }

    #[test]
    fn a_long_answer_is_cut_and_goes_on() {
        for (bytes, count) in [(0, 3 * WATCHED_CHANGES_MAX), (200 << 10, 60)] {
            let mut history = History::default();
            (1..=count as u64).for_each(|revision| history.push(change(revision, "a", bytes)));
            let (mut after, mut seen, mut answers) = (0, Vec::new(), 0);
            while after < count as u64 {
                let (found, upto) = history.since("", after, count as u64).expect("all are here");
                assert!(!found.is_empty() && upto > after);
                seen.extend(found.iter().map(|change| change.revision));
                (after, answers) = (upto, answers + 1);
            }
            assert!(answers > 2 && seen.iter().copied().eq(1..=count as u64), "{answers} answers");
        }
    }

    #[test]
    fn old_changes_are_dropped() {
        for (bytes, count) in [(0, HISTORY_CHANGES_MAX as u64 + 5), (200 << 10, 100)] {
            let mut history = History::default();
            (1..=count).for_each(|revision| history.push(change(revision, "a", bytes)));
            assert!(history.since("", 0, count).is_none());
            assert!(history.bytes <= HISTORY_BYTES_MAX && history.changes.len() <= HISTORY_CHANGES_MAX);
            assert!(history.since("", history.complete_after, count).is_some());
        }
    }
}
