//! A connection that leads to the primary of a group, wherever that is, or for pulls to any of its replicas. Knows no
//! frame.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_observe::unique;
use sanderling_transport::Address;

use super::{ConnectionSet, is_reached};
use crate::locations::Locations;
use crate::reach::faster_way;

/// How often it is looked whether a group has another primary, while one is waited for.
const LOOK: Duration = Duration::from_millis(50);
/// A replica that says nothing for so long is left for another one; after each such change, for twice as long.
const SILENT: Duration = Duration::from_millis(500);
const SILENT_DOUBLED_MAX: u32 = 4;
/// After so long a replica that was left is tried again; after each failure, after twice as long.
const RETURN: Duration = Duration::from_secs(5);
const RETURN_DOUBLED_MAX: u32 = 4;

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
    /// For pulls from any replica.
    reader: Option<Reader>,
}

/// The replica that a connection pulls from.
#[derive(Debug)]
struct Reader {
    /// Its place among the replicas, drawn at random.
    place: usize,
    /// When the last attempt to connect began, and whether it was to this replica.
    since: Instant,
    is_there: bool,
    /// Changes because of silence since the last answer, and attempts at this replica that came to nothing.
    silences: u32,
    failures: u32,
}

impl Reader {
    /// The replica at the `tries`-th attempt: the own one, then the primary, which is the first, then the others.
    fn replica(&self, tries: usize) -> usize {
        if tries == 0 { self.place } else { tries - 1 }
    }
}

impl GroupLink {
    pub(super) fn new(locations: Arc<Locations>, number: usize) -> GroupLink {
        GroupLink { locations, number, version: 0, tries: 0, is_looked_for: false, reader: None }
    }

    /// A connection for pulls from any replica.
    pub(super) fn reader(locations: Arc<Locations>, number: usize) -> GroupLink {
        let place = unique() as usize % locations.replicas(number).max(1);
        let reader = Reader { place, since: Instant::now(), is_there: false, silences: 0, failures: 0 };
        GroupLink { reader: Some(reader), ..GroupLink::new(locations, number) }
    }

    pub(super) fn is_reader(&self) -> bool {
        self.reader.is_some()
    }

    /// Where to connect to next: to the primary, and then to the others in turn, one of which may be the primary before
    /// the registry says so.
    pub(super) fn next(&mut self) -> Option<Address> {
        let version = self.locations.version();
        if version != self.version {
            (self.version, self.tries) = (version, 0);
        }
        let replica = match &mut self.reader {
            Some(reader) => {
                (reader.since, reader.is_there) = (Instant::now(), self.tries == 0);
                reader.failures += u32::from(reader.is_there);
                reader.replica(self.tries)
            }
            None => self.tries,
        };
        let address = self.locations.of(self.number, replica);
        self.tries += 1;
        self.is_looked_for = false;
        address
    }

    /// The primary has answered, or a replica.
    pub(super) fn found(&mut self) {
        self.tries = 0;
        if let Some(reader) = &mut self.reader {
            reader.silences = 0;
            if reader.is_there {
                reader.failures = 0;
            }
        }
    }

    /// Whether the replica that was drawn is to be tried again.
    fn returns(&self) -> bool {
        self.reader.as_ref().is_some_and(|reader| {
            let doubled = reader.failures.min(RETURN_DOUBLED_MAX);
            !reader.is_there && reader.since.elapsed() >= RETURN * 2_u32.pow(doubled)
        })
    }

    /// Chooses another replica than the one that is silent. False: it has not been silent for long enough.
    fn leaves_silent(&mut self, asked: Option<Instant>) -> bool {
        let Some(reader) = &mut self.reader else { return false };
        let silent = asked.map_or(reader.since, |asked| asked.max(reader.since)).elapsed();
        if silent < SILENT * 2_u32.pow(reader.silences.min(SILENT_DOUBLED_MAX)) {
            return false;
        }
        reader.silences += 1;
        // `tries` is 0 once the replica has answered.
        let is_primary = !reader.is_there || reader.place == 0;
        self.tries = self.tries.max(if is_primary { 2 } else { 1 });
        true
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
            if group.is_reader() {
                self.follow_replica(at);
                continue;
            }
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

    /// The connection for pulls from a server.
    pub(super) fn puller(&self, server: usize) -> usize {
        let second = self.links.get(server + self.servers).and_then(|link| link.group.as_ref());
        if second.is_some_and(GroupLink::is_reader) { server + self.servers } else { server }
    }

    /// Whether a connection is for pulls from any replica, which says nothing about the primary.
    pub(super) fn is_reader(&self, at: usize) -> bool {
        self.links[at].group.as_ref().is_some_and(GroupLink::is_reader)
    }

    /// Leaves a replica that is silent, and returns to the one that was drawn.
    fn follow_replica(&mut self, at: usize) {
        let link = &mut self.links[at];
        let Some(group) = link.group.as_mut().filter(|_| link.connection.is_some()) else { return };
        let is_up = link.rpc.peer_when_up().is_some();
        let silent = link.rpc.waits().filter(|(_, is_silent, _)| *is_silent || !is_up);
        let asked = silent.map(|(asked_us, ..)| self.start + Duration::from_micros(asked_us));
        if silent.is_some() && group.leaves_silent(asked.filter(|_| is_up)) {
            self.lost(at, "it is silent, and another replica is asked".to_owned());
        } else if group.returns() {
            link.rpc.leave();
        }
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
