//! What is remembered of the pushes of every client, so that none is applied twice. Knows neither tables nor gradients.
//!
//! A client numbers its pushes. Of the last [`PUSH_WINDOW`] numbers the outcome is known; what is older is refused. Of a
//! client that had to make room for others, the highest number is known, and what is not above it is refused.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use saved::SavedPushers;

mod saved;

use crate::limit::{PUSH_WINDOW, PUSHERS_MAX, PUSHERS_PAST_MAX};

/// What happened to a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was applied.
    Applied,
    /// It was applied but for so many keys, for which there was no room.
    Full {
        /// How many.
        rejected: u64,
    },
    /// It was applied but for rows whose update would not have been finite. A checkpoint keeps it as applied.
    NotFinite {
        /// Key of the first.
        key: u64,
    },
}

/// What to do with a push that comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Apply it, then call [`Pusher::finish`].
    Apply,
    /// It was applied before.
    Known(Outcome),
    /// It is being applied at this moment, for another connection.
    UnderWay,
    /// Nobody knows any more whether it was applied.
    Stale,
}

/// The pushes of one client.
#[derive(Debug)]
pub(crate) struct Pusher {
    client: u64,
    /// When it last pushed; larger is later.
    seen: AtomicU64,
    window: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    /// Of sequences up to this nothing is known.
    floor: Option<u64>,
    highest: Option<u64>,
    /// That of sequence `s` is at `s % PUSH_WINDOW`, if `s` is not too old.
    marks: Box<[Mark]>,
    under_way: u32,
    /// It had to make room; who still holds it looks it up again.
    left: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// Never seen, or refused without a trace.
    None,
    UnderWay,
    /// Restored: it may have been applied.
    Unknown,
    Done(Outcome),
}

/// All clients.
#[derive(Debug, Default)]
pub(crate) struct Pushers {
    clients: Mutex<Clients>,
    time: AtomicU64,
}

#[derive(Debug, Default)]
struct Clients {
    present: HashMap<u64, Arc<Pusher>>,
    /// Highest sequence of those who had to make room, in the order in which they did.
    past: HashMap<u64, u64>,
    past_order: VecDeque<u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pushers {
    /// Asks about a push. `pusher` is what the caller found for this client before, or anything.
    pub(crate) fn begin(&self, pusher: &mut Option<Arc<Pusher>>, client: u64, sequence: u64) -> Verdict {
        let now = self.time.fetch_add(1, Ordering::Relaxed);
        loop {
            let known = pusher.take().filter(|known| known.client == client);
            let known = pusher.insert(known.unwrap_or_else(|| self.find(client, now)));
            known.seen.store(now, Ordering::Relaxed);
            if let Some(verdict) = lock(&known.window).begin(sequence) {
                return verdict;
            }
            *pusher = None;
        }
    }

    fn find(&self, client: u64, now: u64) -> Arc<Pusher> {
        let mut clients = lock(&self.clients);
        if let Some(pusher) = clients.present.get(&client) {
            return Arc::clone(pusher);
        }
        if clients.present.len() >= PUSHERS_MAX {
            clients.make_room();
        }
        let floor = clients.past.remove(&client);
        if floor.is_some() {
            clients.past_order.retain(|&past| past != client);
        }
        let pusher = Arc::new(Pusher::new(client, floor, now));
        clients.present.insert(client, Arc::clone(&pusher));
        pusher
    }

    /// How many clients are known.
    pub(crate) fn len(&self) -> usize {
        lock(&self.clients).present.len()
    }
}

impl Clients {
    /// Lets the client go that has been silent for longest, unless it is pushing at this moment.
    fn make_room(&mut self) {
        let mut by_age: Vec<_> = self
            .present
            .values()
            .map(|pusher| (pusher.seen.load(Ordering::Relaxed), pusher.client))
            .collect();
        by_age.sort_unstable();
        for (_, client) in by_age {
            let mut window = lock(&self.present[&client].window);
            if window.under_way > 0 {
                continue;
            }
            window.left = true;
            let highest = window.highest.max(window.floor);
            drop(window);
            self.present.remove(&client);
            if let Some(highest) = highest {
                self.past.insert(client, highest);
                self.past_order.push_back(client);
            }
            if self.past_order.len() > PUSHERS_PAST_MAX {
                self.past_order.pop_front().map(|oldest| self.past.remove(&oldest));
            }
            return;
        }
    }
}

impl Pusher {
    fn new(client: u64, floor: Option<u64>, now: u64) -> Pusher {
        let marks = vec![Mark::None; PUSH_WINDOW as usize].into();
        let window = Window { floor, highest: None, marks, under_way: 0, left: false };
        Pusher { client, seen: AtomicU64::new(now), window: Mutex::new(window) }
    }

    /// Notes what became of a push that was to be applied; `None`: nothing of it was.
    pub(crate) fn finish(&self, sequence: u64, outcome: Option<Outcome>) {
        let mut window = lock(&self.window);
        window.under_way -= 1;
        // It may have grown old meanwhile.
        if window.highest.is_some_and(|highest| highest - sequence < PUSH_WINDOW) {
            window.marks[(sequence % PUSH_WINDOW) as usize] = outcome.map_or(Mark::None, Mark::Done);
        }
    }
}

impl Window {
    /// `None`: this client must be looked up again.
    fn begin(&mut self, sequence: u64) -> Option<Verdict> {
        if self.left {
            return None;
        }
        if self.floor.is_some_and(|floor| sequence <= floor) {
            return Some(Verdict::Stale);
        }
        match self.highest {
            Some(highest) if sequence <= highest => {
                if highest - sequence >= PUSH_WINDOW {
                    return Some(Verdict::Stale);
                }
            }
            highest => {
                // The numbers from the highest so far to this one are new.
                let new = highest.map_or(PUSH_WINDOW, |highest| (sequence - highest).min(PUSH_WINDOW));
                for step in 0..new {
                    self.marks[(sequence.wrapping_sub(step) % PUSH_WINDOW) as usize] = Mark::None;
                }
                self.highest = Some(sequence);
            }
        }
        let mark = &mut self.marks[(sequence % PUSH_WINDOW) as usize];
        Some(match *mark {
            Mark::None => {
                *mark = Mark::UnderWay;
                self.under_way += 1;
                Verdict::Apply
            }
            Mark::UnderWay => Verdict::UnderWay,
            Mark::Unknown => Verdict::Stale,
            Mark::Done(outcome) => Verdict::Known(outcome),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const APPLIED: Verdict = Verdict::Known(Outcome::Applied);

    fn push(pushers: &Pushers, client: u64, sequence: u64) -> Verdict {
        let mut pusher = None;
        let verdict = pushers.begin(&mut pusher, client, sequence);
        if verdict == Verdict::Apply {
            pusher.expect("found").finish(sequence, Some(Outcome::Applied));
        }
        verdict
    }

    #[test]
    fn a_number_is_applied_once_whatever_the_order() {
        let pushers = Pushers::default();
        let w = PUSH_WINDOW;
        for (client, sequence, expected) in [
            (1, 100, Verdict::Apply),
            (1, 100, APPLIED),
            (1, 99, Verdict::Apply),
            (2, 100, Verdict::Apply),
            (1, 99 + w, Verdict::Apply),
            (1, 100, APPLIED),
            (1, 99, Verdict::Stale),
            (1, 100 + w, Verdict::Apply),
            (1, 100, Verdict::Stale),
            (1, 101, Verdict::Apply),
            (1, u64::MAX, Verdict::Apply),
            (1, u64::MAX, APPLIED),
            (1, 100 + w, Verdict::Stale),
            (3, 0, Verdict::Apply),
            (3, 0, APPLIED),
            (3, 5 * w, Verdict::Apply),
        ] {
            assert_eq!(push(&pushers, client, sequence), expected, "{client} {sequence}");
        }
    }

    #[test]
    fn what_is_under_way_waits_and_what_failed_may_come_again() {
        let pushers = Pushers::default();
        let mut pusher = None;
        assert_eq!(pushers.begin(&mut pusher, 1, 1), Verdict::Apply);
        assert_eq!(push(&pushers, 1, 1), Verdict::UnderWay);
        pusher.as_ref().expect("found").finish(1, None);
        assert_eq!(pushers.begin(&mut pusher, 1, 1), Verdict::Apply);
        let full = Outcome::Full { rejected: 3 };
        pusher.expect("found").finish(1, Some(full));
        assert_eq!(push(&pushers, 1, 1), Verdict::Known(full));
    }

    #[test]
    fn who_makes_room_applies_nothing_twice() {
        let pushers = Pushers::default();
        let mut held = None;
        assert_eq!(pushers.begin(&mut held, 0, 7), Verdict::Apply);
        held.as_ref().expect("found").finish(7, Some(Outcome::Applied));
        let (mut busy, busy_client) = (None, u64::MAX);
        assert_eq!(pushers.begin(&mut busy, busy_client, 1), Verdict::Apply);
        for client in 1..=PUSHERS_MAX as u64 + 10 {
            assert_eq!(push(&pushers, client, 1), Verdict::Apply);
        }
        assert_eq!(pushers.len(), PUSHERS_MAX);
        // Its state is gone, its highest number is not; neither here nor for who still holds it.
        assert_eq!(pushers.begin(&mut held, 0, 7), Verdict::Stale);
        assert_eq!(push(&pushers, 0, 6), Verdict::Stale);
        assert_eq!(push(&pushers, 0, 8), Verdict::Apply);
        assert_eq!(push(&pushers, busy_client, 1), Verdict::UnderWay);
    }

    proptest! {
        /// Against a model that forgets nothing.
        #[test]
        fn nothing_is_applied_twice(sequences in prop::collection::vec(prop_oneof![
            0_u64..50, 0_u64..3 * PUSH_WINDOW, PUSH_WINDOW - 3..PUSH_WINDOW + 3], 1..300)) {
            let pushers = Pushers::default();
            let mut applied = std::collections::HashSet::new();
            let mut highest = 0;
            for sequence in sequences {
                highest = highest.max(sequence);
                let expected = if highest - sequence >= PUSH_WINDOW {
                    Verdict::Stale
                } else if applied.insert(sequence) {
                    Verdict::Apply
                } else {
                    APPLIED
                };
                prop_assert_eq!(push(&pushers, 1, sequence), expected);
            }
        }
    }
}
