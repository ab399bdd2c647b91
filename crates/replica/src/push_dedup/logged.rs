//! The push history as a log has it: each group adds the clients whose windows differ from those of the group before.

use std::collections::HashMap;

use super::SavedPushDedup;
use super::saved::SavedClient;
use crate::limit::PUSH_CLIENTS_PAST_MAX;

/// The push history of all groups so far.
#[derive(Debug, Default)]
pub struct LoggedPushes {
    /// Each with the time of its last change.
    clients: HashMap<u64, (u64, SavedClient)>,
    past: HashMap<u64, (u64, u64)>,
    time: u64,
}

impl LoggedPushes {
    /// The part of a history that differs; `None` if nothing does.
    pub fn difference(&self, now: &SavedPushDedup) -> Option<SavedPushDedup> {
        let is_new = |client: &&SavedClient| {
            self.clients.get(&client.client).is_none_or(|(_, logged)| logged != *client)
        };
        let clients: Vec<SavedClient> = now.clients.iter().filter(is_new).cloned().collect();
        let is_past = |(client, highest): &&(u64, u64)| {
            self.past.get(client).is_none_or(|(_, logged)| logged != highest)
        };
        let past: Vec<(u64, u64)> = now.past.iter().filter(is_past).copied().collect();
        (!clients.is_empty() || !past.is_empty()).then_some(SavedPushDedup { clients, past })
    }

    /// Adds the part of a group.
    pub fn add(&mut self, part: SavedPushDedup) {
        for (client, highest) in part.past {
            self.time += 1;
            self.clients.remove(&client);
            self.past.insert(client, (self.time, highest));
        }
        for client in part.clients {
            self.time += 1;
            self.past.remove(&client.client);
            self.clients.insert(client.client, (self.time, client));
        }
        if self.past.len() > 2 * PUSH_CLIENTS_PAST_MAX {
            let mut times: Vec<u64> = self.past.values().map(|(time, _)| *time).collect();
            times.sort_unstable();
            let oldest = times[times.len() - PUSH_CLIENTS_PAST_MAX];
            self.past.retain(|_, (time, _)| *time >= oldest);
        }
    }

    /// The whole history, in the order of the last changes.
    pub fn into_saved(self) -> SavedPushDedup {
        let mut clients: Vec<(u64, SavedClient)> = self.clients.into_values().collect();
        clients.sort_unstable_by_key(|(time, _)| *time);
        let mut past: Vec<(u64, (u64, u64))> =
            self.past.into_iter().map(|(client, (time, highest))| (time, (client, highest))).collect();
        past.sort_unstable_by_key(|(time, _)| *time);
        SavedPushDedup {
            clients: clients.into_iter().map(|(_, client)| client).collect(),
            past: past.into_iter().map(|(_, past)| past).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push_dedup::{Outcome, PushDedup, Verdict};

    fn push(pushes: &PushDedup, client: u64, sequence: u64) -> Verdict {
        let mut held = None;
        let verdict = pushes.begin(&mut held, client, sequence);
        if verdict == Verdict::Apply {
            held.unwrap().finish(sequence, Some(Outcome::Applied));
        }
        verdict
    }

    /// The parts of all groups give the history, and a group has the clients that pushed.
    #[test]
    fn the_parts_give_the_history() {
        let (pushes, mut logged) = (PushDedup::default(), LoggedPushes::default());
        let add = |logged: &mut LoggedPushes, expected: usize| {
            let now = pushes.copy();
            let part = logged.difference(&SavedPushDedup::around_rows(&now, pushes.copy()));
            assert_eq!(part.as_ref().map_or(0, |part| part.clients.len()), expected);
            part.into_iter().for_each(|part| logged.add(part));
        };
        for client in 1..=3 {
            push(&pushes, client, 10 * client);
        }
        add(&mut logged, 3);
        add(&mut logged, 0);
        push(&pushes, 2, 21);
        add(&mut logged, 1);
        let restored = PushDedup::default();
        restored.restore(logged.into_saved());
        for (client, sequence, expected) in [
            (1, 10, Verdict::Known(Outcome::Applied)),
            (2, 20, Verdict::Known(Outcome::Applied)),
            (2, 21, Verdict::Known(Outcome::Applied)),
            (2, 22, Verdict::Apply),
            (4, 1, Verdict::Apply),
        ] {
            assert_eq!(push(&restored, client, sequence), expected, "{client} {sequence}");
        }
    }
}
