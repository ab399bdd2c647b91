//! A server's identity, as its greeting states it, and the state of a server that a request needs. Knows no connection.

use sanderling_wire::Identity;

/// A server's identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Which shard it is, from 0.
    pub shard: u32,
    /// How many shards there are.
    pub shards: u32,
    /// Number of the server, the same over restarts.
    pub server_id: u64,
    /// Another one with every start.
    pub boot_id: u64,
    /// The history of its tables, the same over starts that lose no acknowledged change; 0: the server tells none.
    pub history_id: u64,
    /// Number of the operating system that it runs under; 0 when unknown.
    pub host_id: u64,
    /// Version of the placement that it knows; 0 for none.
    pub placement_version: u64,
    /// Requests that it holds per connection.
    pub in_flight_max: u32,
    /// Longest frame that it takes and sends.
    pub frame_bytes_max: u32,
    /// Its name.
    pub name: String,
    /// Address on which clients of the same host reach it fastest, or empty.
    pub local_url: String,
}

impl Peer {
    pub(super) fn of(identity: &Identity<'_>) -> Peer {
        Peer {
            shard: identity.shard,
            shards: identity.shards,
            server_id: identity.server_id,
            boot_id: identity.boot_id,
            history_id: identity.history_id,
            host_id: identity.host_id,
            placement_version: identity.placement_version,
            in_flight_max: identity.in_flight_max,
            frame_bytes_max: identity.agreed.frame_bytes_max,
            name: identity.name.to_owned(),
            local_url: identity.local_url.to_owned(),
        }
    }
}

/// The state of a server that a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Needs {
    /// None: what the request says is enough.
    #[default]
    Nothing,
    /// The memory of the server since this start (its boot id).
    Start(u64),
    /// The tables of this history, and their numbers. They are there for the rest of the start, too: where a restore replaces
    /// them meanwhile, which begins another history, the server refuses the old numbers.
    History {
        /// The start in which the numbers were told.
        boot_id: u64,
        /// The history as it was then.
        history_id: u64,
    },
}

impl Needs {
    /// Whether a server has it.
    pub(crate) fn is_met_by(self, peer: &Peer) -> bool {
        match self {
            Needs::Nothing => true,
            Needs::Start(boot_id) => boot_id == peer.boot_id,
            Needs::History { boot_id, history_id } => {
                boot_id == peer.boot_id || history_id == peer.history_id
            }
        }
    }
}

impl Peer {
    /// The need of a request about its tables. The tables of a server that tells no history end with it.
    pub(crate) fn tables(&self) -> Needs {
        match self.history_id {
            0 => self.memory(),
            history_id => Needs::History { boot_id: self.boot_id, history_id },
        }
    }

    /// The need of a request about its memory.
    pub(crate) fn memory(&self) -> Needs {
        Needs::Start(self.boot_id)
    }
}

#[cfg(test)]
mod tests {
    use sanderling_wire::{Agreed, Features};

    use super::*;

    fn peer(boot_id: u64, history_id: u64) -> Peer {
        let agreed = Agreed { version: 1, features: Features::HISTORY, frame_bytes_max: 1 << 20 };
        Peer::of(&Identity {
            agreed,
            in_flight_max: 1,
            shard: 0,
            shards: 1,
            server_id: 0,
            boot_id,
            history_id,
            host_id: 0,
            placement_version: 0,
            name: "",
            local_url: "",
        })
    }

    #[test]
    fn tables_are_there_for_the_start_and_for_the_history() {
        let opened = peer(1, 7);
        for (boot_id, history_id, tables, memory) in [
            (1, 7, true, true),
            // A restore in a running server: its numbers of before are refused one by one.
            (1, 8, true, true),
            (2, 7, true, false),
            (2, 8, false, false),
        ] {
            let found = peer(boot_id, history_id);
            let met = (opened.tables().is_met_by(&found), opened.memory().is_met_by(&found));
            assert_eq!(met, (tables, memory), "{boot_id} {history_id}");
        }
        // A server that tells no history is bound by its start.
        assert!(peer(1, 0).tables().is_met_by(&peer(1, 0)));
        assert!(!peer(1, 0).tables().is_met_by(&peer(2, 0)));
    }
}
