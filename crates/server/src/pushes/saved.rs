//! What is remembered of pushes, as a checkpoint keeps it beside the rows. Knows neither files nor tables.
//!
//! Rows are saved while pushes go on. So the windows are copied twice, before the first row is read and after the last.
//! A push that was done by the first copy is in the rows, all of it: it is saved as applied. One that is not in the second
//! has touched none of them: nothing is saved of it, and it may come again. What began in between may be in some rows and
//! not in others: it is saved as unknown, and is refused as stale if it comes again. So no answer after a restore is wrong,
//! and a save in which nobody pushes (that at the server's end) knows every push.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::{Clients, Mark, Outcome, Pusher, Pushers, lock};
use crate::limit::{PUSH_WINDOW, PUSHERS_MAX, PUSHERS_PAST_MAX};

/// Words of a bit for each place of a window.
const WORDS: usize = (PUSH_WINDOW as usize).div_ceil(64);

/// The pushes of all clients.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct SavedPushers {
    /// Those that were silent for longest first.
    clients: Vec<SavedClient>,
    /// Clients that had to make room, and the highest number of each, the first to go first.
    past: Vec<(u64, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedClient {
    client: u64,
    floor: Option<u64>,
    highest: Option<u64>,
    /// A bit for each place of the window: the push there was applied.
    applied: Vec<u64>,
    /// The same: nobody knows whether it was.
    unknown: Vec<u64>,
    /// Number of a push, and how many of its keys found no room.
    full: Vec<(u64, u64)>,
}

fn is_set(words: &[u64], place: usize) -> bool {
    words.get(place / 64).is_some_and(|word| word >> (place % 64) & 1 == 1)
}

impl SavedClient {
    /// A copy of a window; what is under way is unknown.
    fn of(pusher: &Pusher) -> SavedClient {
        let window = lock(&pusher.window);
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
        SavedClient { client: pusher.client, floor, highest, applied, unknown, full }
    }

    /// Was the push of this number, which is at this place, applied?
    fn is_applied(&self, sequence: u64, place: usize) -> bool {
        let in_window = |highest: u64| sequence <= highest && highest - sequence < PUSH_WINDOW;
        self.highest.is_some_and(in_window) && is_set(&self.applied, place)
    }

    /// The window that it was; `None` if it was of another size.
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

/// The number of the push at a place of a window, whose highest is this.
fn sequence_at(place: usize, highest: u64) -> u64 {
    highest.wrapping_sub((highest % PUSH_WINDOW + PUSH_WINDOW - place as u64) % PUSH_WINDOW)
}

impl SavedPushers {
    /// What is to be saved, of copies from before and after the rows were.
    pub(crate) fn around_rows(before: &SavedPushers, mut after: SavedPushers) -> SavedPushers {
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

    /// What is known where the rows of several servers have come together: a push may have been applied by some of them, so
    /// that all the numbers that one has seen are unknown.
    pub(crate) fn together(parts: impl IntoIterator<Item = SavedPushers>) -> SavedPushers {
        let mut highest: HashMap<u64, u64> = HashMap::new();
        let mut order = Vec::new();
        for SavedPushers { clients, past } in parts {
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
        let surplus = order.len().saturating_sub(PUSHERS_PAST_MAX);
        let past = order.into_iter().skip(surplus).map(|client| (client, highest[&client])).collect();
        SavedPushers { clients: Vec::new(), past }
    }
}

impl Pushers {
    /// A copy of what is known at this moment.
    pub(crate) fn copy(&self) -> SavedPushers {
        let (mut pushers, past) = {
            let clients = lock(&self.clients);
            let past =
                clients.past_order.iter().filter_map(|client| Some((*client, *clients.past.get(client)?)));
            (clients.present.values().map(Arc::clone).collect::<Vec<_>>(), past.collect())
        };
        pushers.sort_by_key(|pusher| pusher.seen.load(Ordering::Relaxed));
        SavedPushers { clients: pushers.iter().map(|pusher| SavedClient::of(pusher)).collect(), past }
    }

    /// Knows this and nothing else from now on.
    pub(crate) fn restore(&self, saved: SavedPushers) {
        let mut restored = Clients::default();
        let surplus = saved.clients.len().saturating_sub(PUSHERS_MAX);
        let (mut past, now) = (saved.past, &self.time);
        for (at, client) in saved.clients.into_iter().enumerate() {
            let marks = client.marks().filter(|_| at >= surplus);
            let Some(marks) = marks else {
                past.extend(client.highest.max(client.floor).map(|highest| (client.client, highest)));
                continue;
            };
            let pusher = Pusher::new(client.client, client.floor, 0);
            {
                let mut window = lock(&pusher.window);
                (window.highest, window.marks) = (client.highest, marks);
            }
            let seen = AtomicU64::new(now.fetch_add(1, Ordering::Relaxed));
            restored.present.insert(client.client, Arc::new(Pusher { seen, ..pusher }));
        }
        let surplus = past.len().saturating_sub(PUSHERS_PAST_MAX);
        past.drain(..surplus);
        restored.past_order = past.iter().map(|&(client, _)| client).collect::<VecDeque<u64>>();
        restored.past = past.into_iter().collect();
        let mut clients = lock(&self.clients);
        // Who holds one of them looks it up again.
        clients.present.values().for_each(|pusher| lock(&pusher.window).left = true);
        *clients = restored;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pushes::Verdict;

    const APPLIED: Verdict = Verdict::Known(Outcome::Applied);

    /// As a checkpoint keeps it.
    fn through_json(saved: &SavedPushers) -> SavedPushers {
        serde_json::from_slice(&serde_json::to_vec(saved).unwrap()).unwrap()
    }

    fn push(pushers: &Pushers, client: u64, sequence: u64, outcome: Option<Outcome>) -> Verdict {
        let mut pusher = None;
        let verdict = pushers.begin(&mut pusher, client, sequence);
        if verdict == Verdict::Apply {
            pusher.unwrap().finish(sequence, outcome);
        }
        verdict
    }

    /// What is asked of pushes before, during and after the rows are saved, and asked again after a restore.
    #[test]
    fn no_answer_after_a_restore_is_wrong() {
        let (pushers, done, w) = (Pushers::default(), Some(Outcome::Applied), PUSH_WINDOW);
        let full = Outcome::Full { rejected: 3 };
        for sequence in [1, 2, w - 1, w, w + 1] {
            push(&pushers, 1, sequence, done);
        }
        push(&pushers, 1, 7, Some(full));
        push(&pushers, 1, 8, None);
        push(&pushers, 3, 5, done);
        let mut waiting = None;
        assert_eq!(pushers.begin(&mut waiting, 1, 9), Verdict::Apply);
        let before = pushers.copy();
        // Rows are read.
        waiting.unwrap().finish(9, done);
        push(&pushers, 1, 10, done);
        push(&pushers, 1, 11, Some(full));
        push(&pushers, 1, 12, None);
        push(&pushers, 2, 1, done);
        push(&pushers, 3, 5 + 2 * w, done);
        let mut under_way = None;
        assert_eq!(pushers.begin(&mut under_way, 1, 13), Verdict::Apply);
        let saved = through_json(&SavedPushers::around_rows(&before, pushers.copy()));
        push(&pushers, 1, 14, done);

        let restored = Pushers::default();
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
        let pushers = Pushers::default();
        for client in 0..PUSHERS_MAX as u64 + 5 {
            push(&pushers, client, client + 1, Some(Outcome::Applied));
        }
        let saved = through_json(&SavedPushers::around_rows(&pushers.copy(), pushers.copy()));
        let restored = Pushers::default();
        restored.restore(saved);
        assert_eq!(restored.len(), PUSHERS_MAX);
        for client in 5..PUSHERS_MAX as u64 + 5 {
            assert_eq!(push(&restored, client, client + 1, None), APPLIED, "{client}");
        }
        assert_eq!(push(&restored, 2, 3, None), Verdict::Stale, "it had to make room");
        assert_eq!(push(&restored, 2, 4, None), Verdict::Apply);
    }

    #[test]
    fn where_parts_come_together_all_that_was_seen_is_unknown() {
        let parts = [4_u64, 9].map(|sequence| {
            let pushers = Pushers::default();
            push(&pushers, 1, sequence, Some(Outcome::Applied));
            pushers.copy()
        });
        let restored = Pushers::default();
        restored.restore(through_json(&SavedPushers::together(parts)));
        assert_eq!(push(&restored, 1, 4, None), Verdict::Stale);
        assert_eq!(push(&restored, 1, 9, None), Verdict::Stale);
        assert_eq!(push(&restored, 1, 10, None), Verdict::Apply);
    }
}
