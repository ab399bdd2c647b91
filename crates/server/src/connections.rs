//! The list of open connections, for people. Knows nothing of what goes over them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// One connection as its worker sees it. A cache line of its own, since only its worker writes to it.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Presence {
    id: u64,
    peer: String,
    since: Instant,
    /// Set with its hello.
    pub(crate) client: OnceLock<String>,
    pub(crate) requests: AtomicU64,
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
    open: Mutex<BTreeMap<u64, Arc<Presence>>>,
    accepted: AtomicU64,
}

impl Connections {
    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Presence>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new one; and how many there are with it.
    pub(crate) fn enter(&self, peer: &str) -> (Arc<Presence>, usize) {
        let id = self.accepted.fetch_add(1, Ordering::Relaxed) + 1;
        let (client, requests) = (OnceLock::new(), AtomicU64::new(0));
        let presence = Presence { id, peer: peer.to_owned(), since: Instant::now(), client, requests };
        let presence = Arc::new(presence);
        let mut open = self.open();
        open.insert(id, Arc::clone(&presence));
        (presence, open.len())
    }

    pub(crate) fn leave(&self, presence: &Presence) {
        self.open().remove(&presence.id);
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    pub(crate) fn len(&self) -> usize {
        self.open().len()
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
        self.open().values().map(status).collect()
    }
}
