//! Push deduplication: each client numbers its pushes, and the server applies a number once. It knows neither tables
//! nor gradients.
//!
//! The outcome of the last [`PUSH_WINDOW`] numbers is known; older ones are refused. Of a former client only the
//! highest number is kept, and numbers up to it are refused.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sanderling_store::StoreError;

pub use logged::LoggedPushes;
pub use saved::SavedPushDedup;

mod kept;
mod logged;
mod saved;

use kept::{KeptWindow, KeptWindows};

use crate::limit::{PUSH_CLIENTS_MAX, PUSH_CLIENTS_PAST_MAX, PUSH_WINDOW};

/// The outcome of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The push was applied.
    Applied,
    /// The push was applied except for keys that found no room.
    Full {
        /// Number of these keys.
        rejected: u64,
    },
    /// The push was applied except for rows whose update was not finite. A checkpoint records it as applied.
    NotFinite {
        /// The first of these keys.
        key: u64,
    },
}

impl Outcome {
    /// The outcome of a push to a table; `None`: it failed, and nothing was applied.
    #[must_use]
    pub fn of(applied: &Result<(), StoreError>) -> Option<Outcome> {
        match applied {
            Ok(()) => Some(Outcome::Applied),
            Err(StoreError::TableFull { rejected, .. }) => Some(Outcome::Full { rejected: *rejected }),
            Err(StoreError::NotFinite { key, .. }) => Some(Outcome::NotFinite { key: *key }),
            Err(_) => None,
        }
    }
}

/// The decision about an incoming push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The caller applies the push, then calls [`ClientPushes::finish`].
    Apply,
    /// The push was applied before.
    Known(Outcome),
    /// Another connection applies the push at this moment.
    UnderWay,
    /// The push is outside the window; its outcome is unknown.
    Stale,
}

/// The pushes of one client.
#[derive(Debug)]
pub struct ClientPushes {
    client: u64,
    /// Logical time of the last push.
    seen: AtomicU64,
    window: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    /// Outcomes of sequences up to this one are unknown.
    floor: Option<u64>,
    highest: Option<u64>,
    /// The mark of sequence `s` is at `s % PUSH_WINDOW`, while `s` is in the window.
    marks: Box<[Mark]>,
    under_way: u32,
    /// The client was evicted; holders of this window must look it up again.
    left: bool,
    /// The client's slot in a file, if the tables outlive the server.
    kept: Option<KeptWindow>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// Never seen, or refused without effect.
    None,
    UnderWay,
    /// Restored from a checkpoint: the push may have been applied.
    Unknown,
    Done(Outcome),
}

/// The dedup windows of all clients.
#[derive(Debug, Default)]
pub struct PushDedup {
    clients: Mutex<Clients>,
    time: AtomicU64,
    /// The file of the windows, if the tables outlive the server.
    kept: OnceLock<Arc<KeptWindows>>,
}

#[derive(Debug, Default)]
struct Clients {
    present: HashMap<u64, Arc<ClientPushes>>,
    /// Highest sequence of each evicted client.
    past: HashMap<u64, u64>,
    past_order: VecDeque<u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PushDedup {
    /// Decides about a push. `client_pushes` caches the client's window between calls.
    pub fn begin(
        &self,
        client_pushes: &mut Option<Arc<ClientPushes>>,
        client: u64,
        sequence: u64,
    ) -> Verdict {
        let now = self.time.fetch_add(1, Ordering::Relaxed);
        loop {
            let known = client_pushes.take().filter(|known| known.client == client);
            let known = client_pushes.insert(known.unwrap_or_else(|| self.find(client, now)));
            known.seen.store(now, Ordering::Relaxed);
            if let Some(verdict) = lock(&known.window).begin(sequence) {
                return verdict;
            }
            *client_pushes = None;
        }
    }

    fn find(&self, client: u64, now: u64) -> Arc<ClientPushes> {
        let mut clients = lock(&self.clients);
        if let Some(client_pushes) = clients.present.get(&client) {
            return Arc::clone(client_pushes);
        }
        if clients.present.len() >= PUSH_CLIENTS_MAX {
            clients.make_room();
        }
        let floor = clients.past.remove(&client);
        if floor.is_some() {
            clients.past_order.retain(|&past| past != client);
        }
        let client_pushes = Arc::new(ClientPushes::new(client, floor, now));
        lock(&client_pushes.window).kept = self.kept.get().and_then(|windows| windows.take(client, floor));
        clients.present.insert(client, Arc::clone(&client_pushes));
        client_pushes
    }

    /// Number of clients with a window.
    pub fn client_count(&self) -> usize {
        lock(&self.clients).present.len()
    }
}

impl Clients {
    /// Evicts the client that was silent longest and has no push under way.
    fn make_room(&mut self) {
        let mut by_age: Vec<_> = self
            .present
            .values()
            .map(|client_pushes| (client_pushes.seen.load(Ordering::Relaxed), client_pushes.client))
            .collect();
        by_age.sort_unstable();
        for (_, client) in by_age {
            let mut window = lock(&self.present[&client].window);
            if window.under_way > 0 {
                continue;
            }
            window.left = true;
            if let Some(kept) = window.kept.take() {
                kept.free();
            }
            let highest = window.highest.max(window.floor);
            drop(window);
            self.present.remove(&client);
            if let Some(highest) = highest {
                self.past.insert(client, highest);
                self.past_order.push_back(client);
            }
            if self.past_order.len() > PUSH_CLIENTS_PAST_MAX {
                self.past_order.pop_front().map(|oldest| self.past.remove(&oldest));
            }
            return;
        }
    }
}

impl ClientPushes {
    fn new(client: u64, floor: Option<u64>, now: u64) -> ClientPushes {
        let marks = vec![Mark::None; PUSH_WINDOW as usize].into();
        let window = Window { floor, highest: None, marks, under_way: 0, left: false, kept: None };
        ClientPushes { client, seen: AtomicU64::new(now), window: Mutex::new(window) }
    }

    /// Records the outcome of a push. `None`: nothing of it was applied.
    pub fn finish(&self, sequence: u64, outcome: Option<Outcome>) {
        let mut window = lock(&self.window);
        window.under_way -= 1;
        // The sequence may have left the window meanwhile.
        if window.highest.is_some_and(|highest| highest - sequence < PUSH_WINDOW) {
            window.marks[(sequence % PUSH_WINDOW) as usize] = outcome.map_or(Mark::None, Mark::Done);
            if let Some(kept) = &window.kept {
                kept.finish(sequence, outcome);
            }
        }
    }
}

impl Window {
    /// Decides about a sequence. `None`: the window was evicted.
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
                // The sequences above the highest one so far are new.
                let new = highest.map_or(PUSH_WINDOW, |highest| (sequence - highest).min(PUSH_WINDOW));
                for step in 0..new {
                    self.marks[(sequence.wrapping_sub(step) % PUSH_WINDOW) as usize] = Mark::None;
                }
                self.highest = Some(sequence);
                if let Some(kept) = &self.kept {
                    kept.advance(sequence, new);
                }
            }
        }
        let mark = &mut self.marks[(sequence % PUSH_WINDOW) as usize];
        Some(match *mark {
            Mark::None => {
                *mark = Mark::UnderWay;
                self.under_way += 1;
                if let Some(kept) = &self.kept {
                    kept.begin(sequence);
                }
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

    fn push(push_dedup: &PushDedup, client: u64, sequence: u64) -> Verdict {
        let mut client_pushes = None;
        let verdict = push_dedup.begin(&mut client_pushes, client, sequence);
        if verdict == Verdict::Apply {
            client_pushes.expect("found").finish(sequence, Some(Outcome::Applied));
        }
        verdict
    }

    #[test]
    fn a_number_is_applied_once_whatever_the_order() {
        let push_dedup = PushDedup::default();
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
            assert_eq!(push(&push_dedup, client, sequence), expected, "{client} {sequence}");
        }
    }

    #[test]
    fn what_is_under_way_waits_and_what_failed_may_come_again() {
        let push_dedup = PushDedup::default();
        let mut client_pushes = None;
        assert_eq!(push_dedup.begin(&mut client_pushes, 1, 1), Verdict::Apply);
        assert_eq!(push(&push_dedup, 1, 1), Verdict::UnderWay);
        client_pushes.as_ref().expect("found").finish(1, None);
        assert_eq!(push_dedup.begin(&mut client_pushes, 1, 1), Verdict::Apply);
        let full = Outcome::Full { rejected: 3 };
        client_pushes.expect("found").finish(1, Some(full));
        assert_eq!(push(&push_dedup, 1, 1), Verdict::Known(full));
    }

    #[test]
    fn who_makes_room_applies_nothing_twice() {
        let push_dedup = PushDedup::default();
        let mut held = None;
        assert_eq!(push_dedup.begin(&mut held, 0, 7), Verdict::Apply);
        held.as_ref().expect("found").finish(7, Some(Outcome::Applied));
        let (mut busy, busy_client) = (None, u64::MAX);
        assert_eq!(push_dedup.begin(&mut busy, busy_client, 1), Verdict::Apply);
        for client in 1..=PUSH_CLIENTS_MAX as u64 + 10 {
            assert_eq!(push(&push_dedup, client, 1), Verdict::Apply);
        }
        assert_eq!(push_dedup.client_count(), PUSH_CLIENTS_MAX);
        // Its window is gone. Its highest number is kept, also for holders of the old window.
        assert_eq!(push_dedup.begin(&mut held, 0, 7), Verdict::Stale);
        assert_eq!(push(&push_dedup, 0, 6), Verdict::Stale);
        assert_eq!(push(&push_dedup, 0, 8), Verdict::Apply);
        assert_eq!(push(&push_dedup, busy_client, 1), Verdict::UnderWay);
    }

    proptest! {
        /// Compares with a model that keeps everything.
        #[test]
        fn nothing_is_applied_twice(sequences in prop::collection::vec(prop_oneof![
            0_u64..50, 0_u64..3 * PUSH_WINDOW, PUSH_WINDOW - 3..PUSH_WINDOW + 3], 1..300)) {
            let push_dedup = PushDedup::default();
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
                prop_assert_eq!(push(&push_dedup, 1, sequence), expected);
            }
        }
    }
}
