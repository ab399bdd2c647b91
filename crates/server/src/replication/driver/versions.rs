//! The versions that other servers speak, as their connections say, and reports about those that do not fit.

use std::collections::{BTreeMap, BTreeSet};

use sanderling_replica::{Member, Placement};

use super::super::version::{REPLACES_TABLES, Spoken, needed};
use super::Driver;
use crate::event::Event;

/// Ticks after which a server that says nothing does not count any more.
const HEARD_WITHIN: u64 = 200;
/// Servers that are remembered.
const SERVERS_MAX: usize = 256;
/// Reports that are remembered, so that each is made once.
const REPORTS_MAX: usize = 64;

/// See the top of this file.
#[derive(Debug)]
pub(super) struct Versions {
    spoken: Spoken,
    heard: BTreeMap<u32, Heard>,
    reported: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy)]
struct Heard {
    boot: u64,
    version: u8,
    at: u64,
}

impl Versions {
    pub(super) fn new(spoken: Spoken) -> Versions {
        Versions { spoken, heard: BTreeMap::new(), reported: BTreeSet::new() }
    }

    fn note(&mut self, from: Member, version: u8, now: u64) {
        if self.heard.len() >= SERVERS_MAX {
            self.heard.retain(|_, heard| now - heard.at < HEARD_WITHIN);
        }
        if self.heard.len() < SERVERS_MAX {
            self.heard.insert(from.server, Heard { boot: from.boot, version, at: now });
        }
    }

    /// The version of messages to a server. One that was not heard yet may be an older one.
    pub(super) fn of(&self, to: Member) -> u8 {
        let known = self.heard.get(&to.server).filter(|heard| heard.boot == to.boot);
        known.map_or(self.spoken.oldest, |heard| heard.version)
    }

    /// A server that does not speak a version, and the one that it speaks: this server, or one that was heard lately.
    fn too_old(&self, needed: u8, me: Member, now: u64) -> Option<(u32, u8)> {
        let own = (me.server, self.spoken.newest);
        let lately = self.heard.iter().filter(|(_, heard)| now - heard.at < HEARD_WITHIN);
        let all = std::iter::once(own).chain(lately.map(|(&server, heard)| (server, heard.version)));
        all.into_iter().find(|(_, version)| *version < needed)
    }
}

impl Driver {
    /// Notes the version of a server that has sent a message. `false`: it cannot be in this group, and the message does not
    /// count.
    pub(super) fn reads(&mut self, from: Member, version: u8) -> bool {
        self.versions.note(from, version, self.tick);
        let Some(placement) = self.node.placement() else { return true };
        let needed = needed(placement);
        if version >= needed {
            return true;
        }
        self.report_version(format!(
            "server {} speaks version {version} of messages between servers, and its group needs {needed} since pinned tables \
             have moved: upgrade server {0}",
            from.server
        ));
        false
    }

    /// Whether all servers of the group can have this placement. If one cannot, its change waits.
    pub(super) fn can_have(&mut self, placement: &Placement) -> bool {
        let needed = needed(placement);
        let Some((server, version)) = self.versions.too_old(needed, self.me, self.tick) else { return true };
        self.report_version(format!(
            "moves of pinned tables wait: server {server} speaks version {version} of messages between servers, and they need \
             {needed}; upgrade it, or give the moves up by ctl rebalance --cancel"
        ));
        false
    }

    /// Why the group cannot replace its tables by those of a checkpoint: a server would not read the change.
    pub(super) fn lacks_replace(&self) -> Option<String> {
        let (server, version) = self.versions.too_old(REPLACES_TABLES, self.me, self.tick)?;
        Some(format!(
            "server {server} speaks version {version} of messages between servers, and a restore needs {REPLACES_TABLES}: \
             upgrade it first"
        ))
    }

    /// Reports a server of another version, once.
    pub(super) fn report_version(&mut self, reason: String) {
        let reported = &mut self.versions.reported;
        if reported.len() < REPORTS_MAX && reported.insert(reason.clone()) {
            self.log.report(Event::OtherVersion { reason });
        }
    }
}

#[cfg(test)]
mod tests {
    use sanderling_replica::PinnedPlace;

    use super::*;

    #[test]
    fn a_placement_waits_for_servers_that_were_heard_lately() {
        let member = |server| Member { server, boot: u64::from(server) + 1 };
        let mut versions = Versions::new(Spoken::up_to(None));
        let even = Placement::even(8, 2);
        let moved = Placement { pinned: vec![PinnedPlace { home: 0, group: 1 }], ..even.clone() };
        versions.note(member(1), 4, 10);
        versions.note(member(2), 3, 10);
        assert_eq!([1, 2, 3].map(|server| versions.of(member(server))), [4, 3, 3]);
        // Another process at the place of a server may speak less.
        assert_eq!(versions.of(Member { server: 1, boot: 77 }), 3);
        let too_old = |versions: &Versions, placement: &Placement, now| {
            versions.too_old(needed(placement), member(0), now)
        };
        assert_eq!(too_old(&versions, &even, 11), None);
        assert_eq!(too_old(&versions, &moved, 11), Some((2, 3)));
        assert_eq!(too_old(&versions, &moved, 10 + HEARD_WITHIN), None);
        versions.note(Member { server: 2, boot: 9 }, 4, 12);
        assert_eq!(too_old(&versions, &moved, 13), None);
        let own = Versions::new(Spoken::up_to(Some(3)));
        assert_eq!(too_old(&own, &moved, 13), Some((0, 3)));
        for server in 0..2 * SERVERS_MAX as u32 {
            versions.note(member(server), 4, 13);
        }
        assert_eq!(versions.heard.len(), SERVERS_MAX);
    }
}
