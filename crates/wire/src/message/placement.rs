//! The placement: the slot of a key, and the server of a slot.

use crate::WireError;
use crate::limit::{SERVERS_MAX, SLOTS_DEFAULT, SLOTS_MAX, URL_BYTES_MAX};
use crate::reader::Reader;
use crate::writer::Writer;

/// The slot of a key, of `slots` (at least 1): the finalizer of `MurmurHash3` (Appleby 2011), scaled. It is
/// independent of the index hash of a store, so that a server's keys fill its index evenly.
#[must_use]
#[inline]
pub fn slot_of(key: u64, slots: usize) -> usize {
    let mut hash = key;
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    hash ^= hash >> 33;
    ((u128::from(hash) * slots as u128) >> 64) as usize
}

/// The default placement: every server has the same number of slots. `servers` fits 16 bits.
#[must_use]
pub fn even_slots(servers: usize) -> Vec<u16> {
    (0..SLOTS_DEFAULT).map(|slot| (slot * servers / SLOTS_DEFAULT) as u16).collect()
}

/// The map from slots to servers, with a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementMap<'a> {
    /// Grows with every change. 0: no placement.
    pub version: u64,
    /// All servers, by index.
    pub servers: Vec<PlacementServer<'a>>,
    /// Per slot, the index of its server. At most [`SLOTS_MAX`] slots.
    pub slots: &'a [u16],
}

/// A server of a placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacementServer<'a> {
    /// Its number, as in [`Identity`](crate::Identity).
    pub server_id: u64,
    /// Its address.
    pub url: &'a str,
}

impl PlacementServer<'_> {
    /// Length with an empty address.
    const BYTES_MIN: usize = 16;
}

impl<'a> PlacementMap<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        self.check()?;
        out.u64(self.version);
        out.count("servers", self.servers.len(), SERVERS_MAX)?;
        out.count("slots", self.slots.len(), SLOTS_MAX)?;
        for server in &self.servers {
            out.u64(server.server_id);
            out.text("url", server.url, URL_BYTES_MAX)?;
        }
        out.slice(self.slots);
        Ok(())
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<PlacementMap<'a>, WireError> {
        let version = from.u64("version")?;
        let count = from.list("servers", SERVERS_MAX, PlacementServer::BYTES_MIN)?;
        let slots = from.count("slots", SLOTS_MAX)?;
        let mut servers = Vec::with_capacity(count);
        for _ in 0..count {
            let server_id = from.u64("server_id")?;
            servers.push(PlacementServer { server_id, url: from.text("url", URL_BYTES_MAX)? });
        }
        let map = PlacementMap { version, servers, slots: from.slice("slots", slots)? };
        map.check()?;
        Ok(map)
    }

    fn check(&self) -> Result<(), WireError> {
        match self.slots.iter().find(|&&server| usize::from(server) >= self.servers.len()) {
            None => Ok(()),
            Some(&server) => Err(WireError::Value { what: "server of a slot", found: server.into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_fixed_and_even() {
        // These values never change within a version, because processes must agree on them.
        for (key, slots, expected) in
            [(0, 1024, 0), (1, 1024, 721), (2, 1024, 234), (u64::MAX, 1024, 402), (77, 1, 0)]
        {
            assert_eq!(slot_of(key, slots), expected, "{key}");
        }
        let mut counts = [0_u32; 64];
        (0..1 << 16).for_each(|key| counts[slot_of(key, counts.len())] += 1);
        assert!(counts.iter().all(|&count| (850..1200).contains(&count)), "{counts:?}");
    }
}
