//! The list of open connections, for people, and who of them has a place. Knows nothing of what goes over them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::limit::{CONNECTIONS_MAX, SILENCE_KEPT, SURPLUS_MAX};

/// One connection as its worker sees it. A cache line of its own, since only its worker writes to it.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Presence {
    id: u64,
    peer: String,
    since: Instant,
    /// There was no place for it: it is only to be told so.
    pub(crate) surplus: bool,
    /// Its place is another's: it is to be closed unless it has said hello meanwhile.
    makes_room: AtomicBool,
    /// Set with its hello.
    pub(crate) client: OnceLock<String>,
    pub(crate) requests: AtomicU64,
}

impl Presence {
    /// Is its place another's?
    pub(crate) fn makes_room(&self) -> bool {
        self.makes_room.load(Ordering::Relaxed)
    }

    fn has_place(&self) -> bool {
        !self.surplus && !self.makes_room()
    }
}

/// One connection, for a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// Number of the connection since the server's start.
    pub id: u64,
    /// Address of the peer, or its process.
    pub peer: String,
    /// How the client calls itself; empty before its hello.
    pub client: String,
    /// How long it has been there.
    pub age: Duration,
    /// Requests so far.
    pub requests: u64,
}

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    open: Mutex<Open>,
    accepted: AtomicU64,
}

#[derive(Debug, Default)]
struct Open {
    by_id: BTreeMap<u64, Arc<Presence>>,
    /// How many of them have a place.
    placed: usize,
}

impl Open {
    /// The place of the oldest one that has not said hello is another's from now on, if it has had the time to say it.
    fn make_room(&mut self, now: Instant) {
        let is_silent = |presence: &&Arc<Presence>| presence.has_place() && presence.client.get().is_none();
        let Some(oldest) = self.by_id.values().find(is_silent) else { return };
        if now.saturating_duration_since(oldest.since) >= SILENCE_KEPT {
            oldest.makes_room.store(true, Ordering::Relaxed);
            self.placed -= 1;
        }
    }
}

impl Connections {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new one; if there is no place for it, the one that has been silent for longest is asked to make room. `None`: there
    /// are so many that not even that is to be told.
    pub(crate) fn enter(&self, peer: &str, now: Instant) -> Option<Arc<Presence>> {
        let id = self.accepted.fetch_add(1, Ordering::Relaxed) + 1;
        let mut open = self.open();
        // Whoever makes room has its descriptor until its worker has closed it.
        if open.by_id.len() >= CONNECTIONS_MAX + SURPLUS_MAX {
            return None;
        }
        if open.placed >= CONNECTIONS_MAX {
            open.make_room(now);
        }
        let presence = Arc::new(Presence {
            id,
            peer: peer.to_owned(),
            since: now,
            surplus: open.placed >= CONNECTIONS_MAX,
            makes_room: AtomicBool::new(false),
            client: OnceLock::new(),
            requests: AtomicU64::new(0),
        });
        open.placed += usize::from(presence.has_place());
        open.by_id.insert(id, Arc::clone(&presence));
        Some(presence)
    }

    pub(crate) fn leave(&self, presence: &Presence) {
        let mut open = self.open();
        if open.by_id.remove(&presence.id).is_some() && presence.has_place() {
            open.placed -= 1;
        }
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    pub(crate) fn len(&self) -> usize {
        self.open().by_id.len()
    }

    /// Those that are there, oldest first.
    pub(crate) fn list(&self) -> Vec<ConnectionStatus> {
        let now = Instant::now();
        let status = |presence: &Arc<Presence>| ConnectionStatus {
            id: presence.id,
            peer: presence.peer.clone(),
            client: presence.client.get().cloned().unwrap_or_default(),
            age: now - presence.since,
            requests: presence.requests.load(Ordering::Relaxed),
        };
        self.open().by_id.values().map(status).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many as there are places.
    fn full(connections: &Connections, now: Instant) -> Vec<Arc<Presence>> {
        let placed: Vec<_> =
            (0..CONNECTIONS_MAX).map(|_| connections.enter("silent", now).expect("a place")).collect();
        assert!(placed.iter().all(|presence| presence.has_place()));
        placed
    }

    #[test]
    fn beyond_the_maximum_a_few_are_told_and_the_others_are_not() {
        let (connections, now) = (Connections::default(), Instant::now());
        let mut placed = full(&connections, now);
        let told: Vec<_> =
            (0..SURPLUS_MAX).map(|_| connections.enter("surplus", now).expect("a few")).collect();
        assert!(told.iter().all(|presence| presence.surplus));
        for _ in 0..100 {
            assert!(connections.enter("too many", now).is_none());
        }
        assert_eq!(connections.len(), CONNECTIONS_MAX + SURPLUS_MAX);
        // Nobody has been silent for long.
        assert!(!placed.iter().any(|presence| presence.makes_room()));
        // A place is given back by who had one, and by nobody else.
        told.iter().for_each(|presence| connections.leave(presence));
        assert!(connections.enter("surplus", now).expect("a few").surplus);
        connections.leave(&placed.pop().expect("one"));
        assert!(!connections.enter("placed", now).expect("a place").surplus);
    }

    #[test]
    fn who_is_silent_for_longest_makes_room_and_who_has_said_hello_does_not() {
        let (connections, start) = (Connections::default(), Instant::now());
        let placed = full(&connections, start);
        placed[0].client.set(String::new()).expect("once");
        let later = start + SILENCE_KEPT;
        let newcomers: Vec<_> =
            (0..SURPLUS_MAX).map(|_| connections.enter("newcomer", later).expect("a place")).collect();
        assert!(newcomers.iter().all(|presence| presence.has_place()));
        for (at, presence) in placed.iter().enumerate() {
            assert_eq!(presence.makes_room(), (1..=SURPLUS_MAX).contains(&at), "{at}");
        }
        // They are there until they are closed.
        assert!(connections.enter("too many", later).is_none());
        placed.iter().for_each(|presence| connections.leave(presence));
        newcomers.iter().for_each(|presence| connections.leave(presence));
        assert_eq!(connections.open().placed, 0);
        assert_eq!(connections.len(), 0);
    }
}
