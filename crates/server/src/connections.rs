//! The list of open connections, for people, and who of them has a place. Knows nothing of what goes over them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::limit::{SILENCE_KEPT, SILENT_SHARE, SURPLUS_MAX};

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
#[derive(Debug)]
pub(crate) struct Connections {
    /// How many have a place.
    places: usize,
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
    /// How many have a place and have not said hello.
    fn silent(&self) -> usize {
        self.by_id.values().filter(|presence| is_silent(presence)).count()
    }

    /// The place of the oldest one that has not said hello is another's from now on, if it has had the time to say it.
    fn make_room(&mut self, now: Instant) {
        let Some(oldest) = self.by_id.values().find(|presence| is_silent(presence)) else { return };
        if now.saturating_duration_since(oldest.since) >= SILENCE_KEPT {
            oldest.makes_room.store(true, Ordering::Relaxed);
            self.placed -= 1;
        }
    }
}

fn is_silent(presence: &Presence) -> bool {
    presence.has_place() && presence.client.get().is_none()
}

impl Connections {
    /// None yet, and so many places.
    pub(crate) fn new(places: usize) -> Connections {
        Connections { places, open: Mutex::default(), accepted: AtomicU64::new(0) }
    }

    /// How many have a place.
    pub(crate) fn places(&self) -> usize {
        self.places
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new one; if there is no place for it, the one that has been silent for longest is asked to make room. `None`: there
    /// are so many that not even that is to be told.
    pub(crate) fn enter(&self, peer: &str, now: Instant) -> Option<Arc<Presence>> {
        let id = self.accepted.fetch_add(1, Ordering::Relaxed) + 1;
        let mut open = self.open();
        // Whoever makes room has its descriptor until its worker has closed it.
        if open.by_id.len() >= self.places + SURPLUS_MAX {
            return None;
        }
        // So that who is silent leaves places to who has something to say. They are counted only where they may be too many.
        let silent_max = self.places / SILENT_SHARE;
        let is_full = |open: &Open| {
            open.placed >= self.places || open.placed >= silent_max && open.silent() >= silent_max
        };
        let mut full = is_full(&open);
        if full {
            open.make_room(now);
            full = is_full(&open);
        }
        let presence = Arc::new(Presence {
            id,
            peer: peer.to_owned(),
            since: now,
            surplus: full,
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
    use crate::limit::CONNECTIONS_MAX;

    /// As many as there are places, of which those that may be are silent.
    fn full(connections: &Connections, now: Instant) -> Vec<Arc<Presence>> {
        let enter = |at: usize| {
            let presence = connections.enter("placed", now).expect("a place");
            if at < CONNECTIONS_MAX - CONNECTIONS_MAX / SILENT_SHARE {
                presence.client.set(String::new()).expect("once");
            }
            presence
        };
        let placed: Vec<_> = (0..CONNECTIONS_MAX).map(enter).collect();
        assert!(placed.iter().all(|presence| presence.has_place()));
        placed
    }

    #[test]
    fn who_is_silent_leaves_half_of_the_places_to_others() {
        let (connections, start) = (Connections::new(CONNECTIONS_MAX), Instant::now());
        let silent_max = CONNECTIONS_MAX / SILENT_SHARE;
        let silent: Vec<_> =
            (0..silent_max).map(|_| connections.enter("silent", start).expect("a place")).collect();
        assert!(silent.iter().all(|presence| presence.has_place()));
        // A further one is told, while none of them has been silent for long; then the oldest makes room.
        assert!(connections.enter("silent", start).expect("to be told").surplus);
        let later = start + SILENCE_KEPT;
        assert!(!connections.enter("newcomer", later).expect("a place").surplus);
        assert!(silent[0].makes_room() && !silent[1].makes_room());
        // Who says hello leaves its place among the silent.
        silent[1].client.set(String::new()).expect("once");
        assert!(!connections.enter("newcomer", start).expect("a place").surplus);
        assert!(connections.enter("silent", start).expect("to be told").surplus);
    }

    #[test]
    fn beyond_the_maximum_a_few_are_told_and_the_others_are_not() {
        let (connections, now) = (Connections::new(CONNECTIONS_MAX), Instant::now());
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
        let (connections, start) = (Connections::new(CONNECTIONS_MAX), Instant::now());
        let placed = full(&connections, start);
        let greeted = CONNECTIONS_MAX - CONNECTIONS_MAX / SILENT_SHARE;
        let later = start + SILENCE_KEPT;
        let newcomers: Vec<_> =
            (0..SURPLUS_MAX).map(|_| connections.enter("newcomer", later).expect("a place")).collect();
        assert!(newcomers.iter().all(|presence| presence.has_place()));
        for (at, presence) in placed.iter().enumerate() {
            assert_eq!(presence.makes_room(), (greeted..greeted + SURPLUS_MAX).contains(&at), "{at}");
        }
        // They are there until they are closed.
        assert!(connections.enter("too many", later).is_none());
        placed.iter().for_each(|presence| connections.leave(presence));
        newcomers.iter().for_each(|presence| connections.leave(presence));
        assert_eq!(connections.open().placed, 0);
        assert_eq!(connections.len(), 0);
    }
}
