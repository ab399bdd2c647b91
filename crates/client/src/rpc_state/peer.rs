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
    /// The tables of this history, and their numbers.
    History(u64),
}

impl Needs {
    /// Whether a server has it.
    pub(crate) fn is_met_by(self, peer: &Peer) -> bool {
        match self {
            Needs::Nothing => true,
            Needs::Start(boot_id) => boot_id == peer.boot_id,
            Needs::History(history_id) => history_id == peer.history_id,
        }
    }
}

impl Peer {
    /// The need of a request about its tables. The tables of a server that tells no history end with it.
    pub(crate) fn tables(&self) -> Needs {
        match self.history_id {
            0 => self.memory(),
            history_id => Needs::History(history_id),
        }
    }

    /// The need of a request about its memory.
    pub(crate) fn memory(&self) -> Needs {
        Needs::Start(self.boot_id)
    }
}
