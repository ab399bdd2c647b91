//! A connection that leads to the primary of a group, wherever that is. Knows no frame.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_transport::Address;

use super::{ConnectionSet, is_reached};
use crate::locations::Locations;
use crate::reach::faster_way;

/// How often it is looked whether a group has another primary, while one is waited for.
const LOOK: Duration = Duration::from_millis(50);

/// The group of a connection.
#[derive(Debug)]
pub(super) struct GroupLink {
    locations: Arc<Locations>,
    number: usize,
    /// The locations that the attempts are of.
    version: u64,
    /// Attempts that came to nothing.
    tries: usize,
    /// Whether it was looked for a faster way to the server.
    is_looked_for: bool,
}

impl GroupLink {
    pub(super) fn new(locations: Arc<Locations>, number: usize) -> GroupLink {
        GroupLink { locations, number, version: 0, tries: 0, is_looked_for: false }
    }

    /// Where to connect to next: to the primary, and then to the others in turn, one of which may be the primary before
    /// the registry says so.
    pub(super) fn next(&mut self) -> Option<Address> {
        let version = self.locations.version();
        if version != self.version {
            (self.version, self.tries) = (version, 0);
        }
        let address = self.locations.of(self.number, self.tries);
        self.tries += 1;
        self.is_looked_for = false;
        address
    }

    /// The primary has answered.
    pub(super) fn found(&mut self) {
        self.tries = 0;
    }

    /// No server was reached there.
    pub(super) fn not_reached(&self, address: &Address) {
        self.locations.forget_way(address);
    }
}

impl ConnectionSet {
    /// Leaves servers that are waited for and are no longer the primary: they may never answer. When to look again.
    pub(super) fn follow_primaries(&mut self) -> Option<Instant> {
        let mut is_waiting = false;
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            let Some(group) = link.group.as_mut().filter(|_| link.rpc.outstanding() > 0) else { continue };
            is_waiting = true;
            let version = group.locations.version();
            if version == group.version || link.connection.is_none() {
                continue;
            }
            (group.version, group.tries) = (version, 0);
            if !group.locations.is_primary(group.number, &link.address) {
                self.lost(at, "another replica is the primary now".to_owned());
            }
        }
        is_waiting.then(|| Instant::now() + LOOK)
    }

    /// Looks for a faster way to the server of a connection, and goes on over that.
    pub(super) fn look_for_way(&mut self, at: usize) {
        let link = &mut self.links[at];
        let Some(group) = link.group.as_mut().filter(|group| !group.is_looked_for) else { return };
        let Some(peer) = link.rpc.peer_when_up() else { return };
        group.is_looked_for = true;
        if group.locations.has_way(&link.address) {
            return;
        }
        let way = faster_way(&link.address, peer, &self.options).filter(|way| is_reached(way, &self.options));
        let is_found = way.is_some();
        group.locations.note_way(link.address.clone(), way.unwrap_or_else(|| link.address.clone()));
        if is_found {
            group.tries = group.tries.saturating_sub(1);
            link.rpc.leave();
        }
    }
}
