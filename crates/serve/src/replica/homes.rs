//! Which server has each key, while slots of keys move between the groups of a cluster.
//!
//! The streams of two groups tell of a moving row: of its copies at the new group, and of its removal at the former one.
//! A page is applied by one placement: a row counts only at the server that has its slot. When a newer placement is taken,
//! all pages by the former one have been applied. A server that gained slots then exports all of its rows anew: rows of
//! these slots in earlier pages were left out.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use sanderling_client::{Cluster, Placement, TablePart};

/// See the top of this file.
#[derive(Debug)]
pub(super) struct Homes {
    /// Where the placement comes from; `None`: it stays, and servers tell of their own rows only.
    cluster: Option<Arc<Cluster>>,
    known: RwLock<Known>,
}

/// A placement, and what came of those before.
#[derive(Debug)]
pub(super) struct Known {
    placement: Arc<Placement>,
    /// By server, the version with which it has gained slots last.
    gained: Vec<u64>,
    filters: bool,
}

impl Homes {
    pub(super) fn new(cluster: &Arc<Cluster>) -> Homes {
        let placement = cluster.placement();
        let cluster = cluster.registry().map(|_| Arc::clone(cluster));
        let known = Known { placement, gained: Vec::new(), filters: cluster.is_some() };
        Homes { cluster, known: RwLock::new(known) }
    }

    /// Takes a newer placement, if there is one.
    pub(super) fn follow(&self) {
        let Some(cluster) = &self.cluster else { return };
        let newest = cluster.placement();
        if newest.version() > self.read().version() {
            self.known.write().unwrap_or_else(PoisonError::into_inner).take(newest);
        }
    }

    /// The present placement. None is taken while this is held.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn take(&mut self, newest: Arc<Placement>) {
        if newest.version() <= self.version() {
            return;
        }
        for server in newest.with_rows() {
            if newest.has_gained(&self.placement, server) {
                self.gained.resize(self.gained.len().max(server + 1), 0);
                self.gained[server] = newest.version();
            }
        }
        self.placement = newest;
    }

    pub(super) fn version(&self) -> u64 {
        self.placement.version()
    }

    /// The servers that have rows.
    pub(super) fn servers(&self) -> Vec<usize> {
        self.placement.with_rows()
    }

    /// Whether a server has gained slots since a version.
    pub(super) fn has_gained(&self, server: usize, since: u64) -> bool {
        self.gained.get(server).is_some_and(|version| *version > since)
    }

    /// Whether a row counts that the server of a part has told of.
    pub(super) fn has(&self, part: TablePart, key: u64) -> bool {
        !self.filters || part.has(&self.placement, key)
    }

    /// Whether a key is of a part.
    pub(super) fn is_of(&self, part: TablePart, key: u64) -> bool {
        part.has(&self.placement, key)
    }

    /// Whether the placement has changed since the cluster was made.
    pub(super) fn has_changed(&self) -> bool {
        self.filters && self.version() > 1
    }
}
