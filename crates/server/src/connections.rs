//! The list of open connections, and the slots that bound their number. It knows nothing of their requests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::limit::{OVER_LIMIT_MAX, SILENCE_KEPT, SILENT_SHARE};

/// The list entry of one connection. It has a cache line of its own, because only its worker writes to it.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct ConnectionEntry {
    id: u64,
    peer: String,
    since: Instant,
    /// There was no slot for it: the server only tells the client that it is busy.
    pub(crate) over_limit: bool,
    /// A newer connection took its slot. The worker closes it unless it has sent its hello meanwhile.
    makes_room: AtomicBool,
    /// The client's name, set with its hello.
    pub(crate) client: OnceLock<String>,
    pub(crate) requests: AtomicU64,
    /// Bytes of requests.
    pub(crate) received_bytes: AtomicU64,
    /// Bytes of replies.
    pub(crate) sent_bytes: AtomicU64,
}

impl ConnectionEntry {
    /// Address of the client, or its process id.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    /// Whether a newer connection took its slot.
    pub(crate) fn makes_room(&self) -> bool {
        self.makes_room.load(Ordering::Relaxed)
    }

    fn has_place(&self) -> bool {
        !self.over_limit && !self.makes_room()
    }
}

/// One connection, for a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// Number of the connection since the server's start.
    pub id: u64,
    /// Address of the client, or its process id.
    pub peer: String,
    /// The client's own name. Empty before its hello.
    pub client: String,
    /// Time since it was accepted.
    pub age: Duration,
    /// Number of requests.
    pub requests: u64,
    /// Bytes of requests, with their headers.
    pub received_bytes: u64,
    /// Bytes of replies, with their headers.
    pub sent_bytes: u64,
}

/// All connections of a server.
#[derive(Debug)]
pub(crate) struct Connections {
    /// Maximum number of connections with a slot.
    places: usize,
    open: Mutex<Open>,
    accepted: AtomicU64,
}

#[derive(Debug, Default)]
struct Open {
    by_id: BTreeMap<u64, Arc<ConnectionEntry>>,
    /// Number of connections with a slot.
    placed: usize,
}

impl Open {
    /// Number of connections that have a slot and have not sent their hello.
    fn silent(&self) -> usize {
        self.by_id.values().filter(|entry| is_silent(entry)).count()
    }

    /// Takes the slot of the oldest connection without a hello, if it has had time to send one.
    fn make_room(&mut self, now: Instant) {
        let Some(oldest) = self.by_id.values().find(|entry| is_silent(entry)) else { return };
        if now.saturating_duration_since(oldest.since) >= SILENCE_KEPT {
            oldest.makes_room.store(true, Ordering::Relaxed);
            self.placed -= 1;
        }
    }
}

fn is_silent(entry: &ConnectionEntry) -> bool {
    entry.has_place() && entry.client.get().is_none()
}

impl Connections {
    /// An empty list with this many slots.
    pub(crate) fn new(places: usize) -> Connections {
        Connections { places, open: Mutex::default(), accepted: AtomicU64::new(0) }
    }

    /// Number of slots.
    pub(crate) fn places(&self) -> usize {
        self.places
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection. If no slot is free, the oldest connection without a hello loses its slot.
    ///
    /// `None`: the server has too many connections even to answer that it is busy.
    pub(crate) fn enter(&self, peer: &str, now: Instant) -> Option<Arc<ConnectionEntry>> {
        let id = self.accepted.fetch_add(1, Ordering::Relaxed) + 1;
        let mut open = self.open();
        // A connection that lost its slot keeps its descriptor until its worker closes it.
        if open.by_id.len() >= self.places + OVER_LIMIT_MAX {
            return None;
        }
        // Connections without a hello get at most a share of the slots. The scan runs only where they may be too many.
        let silent_max = self.places / SILENT_SHARE;
        let is_full = |open: &Open| {
            open.placed >= self.places || open.placed >= silent_max && open.silent() >= silent_max
        };
        let mut full = is_full(&open);
        if full {
            open.make_room(now);
            full = is_full(&open);
        }
        let entry = Arc::new(ConnectionEntry {
            id,
            peer: peer.to_owned(),
            since: now,
            over_limit: full,
            makes_room: AtomicBool::new(false),
            client: OnceLock::new(),
            requests: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
        });
        open.placed += usize::from(entry.has_place());
        open.by_id.insert(id, Arc::clone(&entry));
        Some(entry)
    }

    pub(crate) fn leave(&self, entry: &ConnectionEntry) {
        let mut open = self.open();
        if open.by_id.remove(&entry.id).is_some() && entry.has_place() {
            open.placed -= 1;
        }
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    pub(crate) fn len(&self) -> usize {
        self.open().by_id.len()
    }

    /// All connections, oldest first.
    pub(crate) fn list(&self) -> Vec<ConnectionStatus> {
        let now = Instant::now();
        let status = |entry: &Arc<ConnectionEntry>| ConnectionStatus {
            id: entry.id,
            peer: entry.peer.clone(),
            client: entry.client.get().cloned().unwrap_or_default(),
            age: now - entry.since,
            requests: entry.requests.load(Ordering::Relaxed),
            received_bytes: entry.received_bytes.load(Ordering::Relaxed),
            sent_bytes: entry.sent_bytes.load(Ordering::Relaxed),
        };
        self.open().by_id.values().map(status).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::CONNECTIONS_MAX;

    /// Takes all slots, as many as possible by connections without a hello.
    fn full(connections: &Connections, now: Instant) -> Vec<Arc<ConnectionEntry>> {
        let enter = |at: usize| {
            let entry = connections.enter("placed", now).expect("a place");
            if at < CONNECTIONS_MAX - CONNECTIONS_MAX / SILENT_SHARE {
                entry.client.set(String::new()).expect("once");
            }
            entry
        };
        let placed: Vec<_> = (0..CONNECTIONS_MAX).map(enter).collect();
        assert!(placed.iter().all(|entry| entry.has_place()));
        placed
    }

    #[test]
    fn who_is_silent_leaves_half_of_the_places_to_others() {
        let (connections, start) = (Connections::new(CONNECTIONS_MAX), Instant::now());
        let silent_max = CONNECTIONS_MAX / SILENT_SHARE;
        let silent: Vec<_> =
            (0..silent_max).map(|_| connections.enter("silent", start).expect("a place")).collect();
        assert!(silent.iter().all(|entry| entry.has_place()));
        // A further connection is over the limit while none has been silent for long. Then the oldest one loses its
        // slot.
        assert!(connections.enter("silent", start).expect("to be told").over_limit);
        let later = start + SILENCE_KEPT;
        assert!(!connections.enter("newcomer", later).expect("a place").over_limit);
        assert!(silent[0].makes_room() && !silent[1].makes_room());
        // A connection with a hello no longer counts as silent.
        silent[1].client.set(String::new()).expect("once");
        assert!(!connections.enter("newcomer", start).expect("a place").over_limit);
        assert!(connections.enter("silent", start).expect("to be told").over_limit);
    }

    #[test]
    fn beyond_the_maximum_a_few_are_told_and_the_others_are_not() {
        let (connections, now) = (Connections::new(CONNECTIONS_MAX), Instant::now());
        let mut placed = full(&connections, now);
        let told: Vec<_> =
            (0..OVER_LIMIT_MAX).map(|_| connections.enter("over_limit", now).expect("a few")).collect();
        assert!(told.iter().all(|entry| entry.over_limit));
        for _ in 0..100 {
            assert!(connections.enter("too many", now).is_none());
        }
        assert_eq!(connections.len(), CONNECTIONS_MAX + OVER_LIMIT_MAX);
        // No connection has been silent for long.
        assert!(!placed.iter().any(|entry| entry.makes_room()));
        // Only a connection with a slot frees one.
        told.iter().for_each(|entry| connections.leave(entry));
        assert!(connections.enter("over_limit", now).expect("a few").over_limit);
        connections.leave(&placed.pop().expect("one"));
        assert!(!connections.enter("placed", now).expect("a place").over_limit);
    }

    #[test]
    fn who_is_silent_for_longest_makes_room_and_who_has_said_hello_does_not() {
        let (connections, start) = (Connections::new(CONNECTIONS_MAX), Instant::now());
        let placed = full(&connections, start);
        let greeted = CONNECTIONS_MAX - CONNECTIONS_MAX / SILENT_SHARE;
        let later = start + SILENCE_KEPT;
        let newcomers: Vec<_> =
            (0..OVER_LIMIT_MAX).map(|_| connections.enter("newcomer", later).expect("a place")).collect();
        assert!(newcomers.iter().all(|entry| entry.has_place()));
        for (at, entry) in placed.iter().enumerate() {
            assert_eq!(entry.makes_room(), (greeted..greeted + OVER_LIMIT_MAX).contains(&at), "{at}");
        }
        // They stay in the list until their workers close them.
        assert!(connections.enter("too many", later).is_none());
        placed.iter().for_each(|entry| connections.leave(entry));
        newcomers.iter().for_each(|entry| connections.leave(entry));
        assert_eq!(connections.open().placed, 0);
        assert_eq!(connections.len(), 0);
    }
}
