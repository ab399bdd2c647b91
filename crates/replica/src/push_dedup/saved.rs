//! The push history as a checkpoint stores it beside the rows.
//!
//! Pushes go on during a save, so the windows are copied before the first row is read and after the last one:
//!
//! * done in the first copy: the push is in the rows, and is saved as applied;
//! * absent from the second copy: the push is in no row, nothing is saved, and it may come again;
//! * anything else may be in some rows only: it is saved as unknown, and refused as stale if it comes again.
//!
//! So no answer after a restore is wrong, and a save without concurrent pushes knows the outcome of every push.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::{ClientPushes, Clients, Mark, Outcome, PushDedup, lock};
use crate::limit::{PUSH_CLIENTS_MAX, PUSH_CLIENTS_PAST_MAX, PUSH_WINDOW};

/// Words of a bit set over the window.
pub(super) const WORDS: usize = (PUSH_WINDOW as usize).div_ceil(64);

/// The push histories of all clients.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SavedPushDedup {
    /// Ordered by last push, the oldest first.
    pub(super) clients: Vec<SavedClient>,
    /// Evicted clients with the highest sequence of each, in order of eviction.
    pub(super) past: Vec<(u64, u64)>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SavedClient {
    pub(super) client: u64,
    pub(super) floor: Option<u64>,
    pub(super) highest: Option<u64>,
    /// Bits of the applied pushes in the window.
    pub(super) applied: Vec<u64>,
    /// Bits of the pushes with unknown outcome.
    pub(super) unknown: Vec<u64>,
    /// Sequence of a push and the number of its keys that found no room.
    pub(super) full: Vec<(u64, u64)>,
}

fn is_set(words: &[u64], place: usize) -> bool {
    words.get(place / 64).is_some_and(|word| word >> (place % 64) & 1 == 1)
}

impl SavedClient {
    /// Copies a window. Pushes under way become unknown.
    fn of(client_pushes: &ClientPushes) -> SavedClient {
        let window = lock(&client_pushes.window);
        let (floor, highest) = (window.floor, window.highest);
        let (mut applied, mut unknown, mut full) = (vec![0; WORDS], vec![0; WORDS], Vec::new());
        for (place, mark) in window.marks.iter().enumerate() {
            let words: &mut [u64] = match mark {
                Mark::None => continue,
                Mark::UnderWay | Mark::Unknown => &mut unknown,
                Mark::Done(outcome) => {
                    if let (Outcome::Full { rejected }, Some(highest)) = (outcome, highest) {
                        full.push((sequence_at(place, highest), *rejected));
                    }
                    &mut applied
                }
            };
            words[place / 64] |= 1 << (place % 64);
        }
        SavedClient { client: client_pushes.client, floor, highest, applied, unknown, full }
    }

    /// Whether the push at this index of the window was applied.
    fn is_applied(&self, sequence: u64, place: usize) -> bool {
        let in_window = |highest: u64| sequence <= highest && highest - sequence < PUSH_WINDOW;
        self.highest.is_some_and(in_window) && is_set(&self.applied, place)
    }

    /// The marks of the window. `None`: it has another size.
    fn marks(&self) -> Option<Box<[Mark]>> {
        if self.applied.len() != WORDS || self.unknown.len() != WORDS {
            return None;
        }
        let mut marks = vec![Mark::None; PUSH_WINDOW as usize];
        for (place, mark) in marks.iter_mut().enumerate() {
            *mark = match (is_set(&self.applied, place), is_set(&self.unknown, place)) {
                (_, true) => Mark::Unknown,
                (true, false) => Mark::Done(Outcome::Applied),
                (false, false) => Mark::None,
            };
        }
        for &(sequence, rejected) in &self.full {
            marks[(sequence % PUSH_WINDOW) as usize] = Mark::Done(Outcome::Full { rejected });
        }
        Some(marks.into())
    }
}

/// The sequence at an index of a window with this highest sequence.
fn sequence_at(place: usize, highest: u64) -> u64 {
    highest.wrapping_sub((highest % PUSH_WINDOW + PUSH_WINDOW - place as u64) % PUSH_WINDOW)
}

impl SavedPushDedup {
    /// Combines the copies from before and after reading the rows.
    pub fn around_rows(before: &SavedPushDedup, mut after: SavedPushDedup) -> SavedPushDedup {
        let earlier: HashMap<u64, &SavedClient> =
            before.clients.iter().map(|client| (client.client, client)).collect();
        for client in &mut after.clients {
            let Some(highest) = client.highest else { continue };
            let earlier = earlier.get(&client.client);
            for place in 0..PUSH_WINDOW as usize {
                let sequence = sequence_at(place, highest);
                let was_applied = earlier.is_some_and(|earlier| earlier.is_applied(sequence, place));
                if is_set(&client.applied, place) && !was_applied {
                    client.applied[place / 64] &= !(1 << (place % 64));
                    client.unknown[place / 64] |= 1 << (place % 64);
                }
            }
            let SavedClient { applied, full, .. } = client;
            full.retain(|(sequence, _)| is_set(applied, (sequence % PUSH_WINDOW) as usize));
        }
        after
    }

    /// Merges the histories of several servers' parts. A push may have been applied by some of them only, so all
    /// outcomes are unknown.
    pub fn merged(parts: impl IntoIterator<Item = SavedPushDedup>) -> SavedPushDedup {
        let mut highest: HashMap<u64, u64> = HashMap::new();
        let mut order = Vec::new();
        for SavedPushDedup { clients, past } in parts {
            let clients = clients.iter().filter_map(|client| {
                client.highest.max(client.floor).map(|highest| (client.client, highest))
            });
            for (client, sequence) in past.into_iter().chain(clients) {
                let known = highest.entry(client).or_insert_with(|| {
                    order.push(client);
                    sequence
                });
                *known = sequence.max(*known);
            }
        }
        let over_limit = order.len().saturating_sub(PUSH_CLIENTS_PAST_MAX);
        let past = order.into_iter().skip(over_limit).map(|client| (client, highest[&client])).collect();
        SavedPushDedup { clients: Vec::new(), past }
    }
}

impl PushDedup {
    /// Copies the present history.
    pub fn copy(&self) -> SavedPushDedup {
        let (mut push_dedup, past) = {
            let clients = lock(&self.clients);
            let past =
                clients.past_order.iter().filter_map(|client| Some((*client, *clients.past.get(client)?)));
            (clients.present.values().map(Arc::clone).collect::<Vec<_>>(), past.collect())
        };
        push_dedup.sort_by_key(|client_pushes| client_pushes.seen.load(Ordering::Relaxed));
        SavedPushDedup {
            clients: push_dedup.iter().map(|client_pushes| SavedClient::of(client_pushes)).collect(),
            past,
        }
    }

    /// Replaces the whole history.
    pub fn restore(&self, saved: SavedPushDedup) {
        let mut restored = Clients::default();
        let over_limit = saved.clients.len().saturating_sub(PUSH_CLIENTS_MAX);
        let (mut past, now) = (saved.past, &self.time);
        for (at, client) in saved.clients.into_iter().enumerate() {
            let marks = client.marks().filter(|_| at >= over_limit);
            let Some(marks) = marks else {
                past.extend(client.highest.max(client.floor).map(|highest| (client.client, highest)));
                continue;
            };
            let client_pushes = ClientPushes::new(client.client, client.floor, 0);
            {
                let mut window = lock(&client_pushes.window);
                (window.highest, window.marks) = (client.highest, marks);
            }
            let seen = AtomicU64::new(now.fetch_add(1, Ordering::Relaxed));
            restored.present.insert(client.client, Arc::new(ClientPushes { seen, ..client_pushes }));
        }
        let over_limit = past.len().saturating_sub(PUSH_CLIENTS_PAST_MAX);
        past.drain(..over_limit);
        restored.past_order = past.iter().map(|&(client, _)| client).collect::<VecDeque<u64>>();
        restored.past = past.into_iter().collect();
        if let Some(windows) = self.kept.get() {
            windows.replace(restored.present.values());
        }
        let mut clients = lock(&self.clients);
        // Holders of an old window look it up again.
        clients.present.values().for_each(|client_pushes| lock(&client_pushes.window).left = true);
        *clients = restored;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push_dedup::Verdict;

    const APPLIED: Verdict = Verdict::Known(Outcome::Applied);

    /// Round trip through the checkpoint's JSON.
    fn through_json(saved: &SavedPushDedup) -> SavedPushDedup {
        serde_json::from_slice(&serde_json::to_vec(saved).unwrap()).unwrap()
    }

    fn push(push_dedup: &PushDedup, client: u64, sequence: u64, outcome: Option<Outcome>) -> Verdict {
        let mut client_pushes = None;
        let verdict = push_dedup.begin(&mut client_pushes, client, sequence);
        if verdict == Verdict::Apply {
            client_pushes.unwrap().finish(sequence, outcome);
        }
        verdict
    }

    /// Pushes before, during and after reading the rows, repeated after a restore.
    #[test]
    fn no_answer_after_a_restore_is_wrong() {
        let (push_dedup, done, w) = (PushDedup::default(), Some(Outcome::Applied), PUSH_WINDOW);
        let full = Outcome::Full { rejected: 3 };
        for sequence in [1, 2, w - 1, w, w + 1] {
            push(&push_dedup, 1, sequence, done);
        }
        push(&push_dedup, 1, 7, Some(full));
        push(&push_dedup, 1, 8, None);
        push(&push_dedup, 3, 5, done);
        let mut waiting = None;
        assert_eq!(push_dedup.begin(&mut waiting, 1, 9), Verdict::Apply);
        let before = push_dedup.copy();
        // The rows are read here.
        waiting.unwrap().finish(9, done);
        push(&push_dedup, 1, 10, done);
        push(&push_dedup, 1, 11, Some(full));
        push(&push_dedup, 1, 12, None);
        push(&push_dedup, 2, 1, done);
        push(&push_dedup, 3, 5 + 2 * w, done);
        let mut under_way = None;
        assert_eq!(push_dedup.begin(&mut under_way, 1, 13), Verdict::Apply);
        let saved = through_json(&SavedPushDedup::around_rows(&before, push_dedup.copy()));
        push(&push_dedup, 1, 14, done);

        let restored = PushDedup::default();
        let mut held = None;
        restored.begin(&mut held, 1, 500);
        restored.restore(saved);
        for (client, sequence, expected) in [
            (1, 1, Verdict::Stale), // too old by then
            (1, 2, APPLIED),
            (1, w, APPLIED),
            (1, w + 1, APPLIED),
            (1, 7, Verdict::Known(full)),
            (1, 8, Verdict::Apply),
            (1, 9, Verdict::Stale),
            (1, 10, Verdict::Stale),
            (1, 11, Verdict::Stale),
            (1, 12, Verdict::Apply),
            (1, 13, Verdict::Stale),
            (1, 14, Verdict::Apply),
            (1, 500, Verdict::Apply),
            (1, w + 2, Verdict::Apply),
            (2, 1, Verdict::Stale),
            (2, 2, Verdict::Apply),
            (3, 5, Verdict::Stale),
            (3, 5 + 2 * w, Verdict::Stale),
            (3, 6 + 2 * w, Verdict::Apply),
        ] {
            let found = push(&restored, client, sequence, done);
            assert_eq!(found, expected, "{client} {sequence}");
        }
        assert_eq!(restored.begin(&mut held, 1, 500), APPLIED, "who held the old window looks it up again");
    }

    #[test]
    fn with_nobody_pushing_everything_is_known() {
        let push_dedup = PushDedup::default();
        for client in 0..PUSH_CLIENTS_MAX as u64 + 5 {
            push(&push_dedup, client, client + 1, Some(Outcome::Applied));
        }
        let saved = through_json(&SavedPushDedup::around_rows(&push_dedup.copy(), push_dedup.copy()));
        let restored = PushDedup::default();
        restored.restore(saved);
        assert_eq!(restored.client_count(), PUSH_CLIENTS_MAX);
        for client in 5..PUSH_CLIENTS_MAX as u64 + 5 {
            assert_eq!(push(&restored, client, client + 1, None), APPLIED, "{client}");
        }
        assert_eq!(push(&restored, 2, 3, None), Verdict::Stale, "it had to make room");
        assert_eq!(push(&restored, 2, 4, None), Verdict::Apply);
    }

    #[test]
    fn where_parts_come_together_all_that_was_seen_is_unknown() {
        let parts = [4_u64, 9].map(|sequence| {
            let push_dedup = PushDedup::default();
            push(&push_dedup, 1, sequence, Some(Outcome::Applied));
            push_dedup.copy()
        });
        let restored = PushDedup::default();
        restored.restore(through_json(&SavedPushDedup::merged(parts)));
        assert_eq!(push(&restored, 1, 4, None), Verdict::Stale);
        assert_eq!(push(&restored, 1, 9, None), Verdict::Stale);
        assert_eq!(push(&restored, 1, 10, None), Verdict::Apply);
    }
}
