//! A server's identity, as its greeting states it. Knows no connection.

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
            host_id: identity.host_id,
            placement_version: identity.placement_version,
            in_flight_max: identity.in_flight_max,
            frame_bytes_max: identity.agreed.frame_bytes_max,
            name: identity.name.to_owned(),
            local_url: identity.local_url.to_owned(),
        }
    }
}
