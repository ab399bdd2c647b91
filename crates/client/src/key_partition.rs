//! Partitions the keys of a request by server and remembers the position of each. Knows no rows.

use sanderling_wire::Home;

use crate::placement::Placement;
use sanderling_store::{Scatter, gather};

/// The keys of one request by server; reused from request to request.
#[derive(Debug, Default)]
pub(crate) struct KeyPartition {
    scatter: Scatter,
    keys: Vec<Vec<u64>>,
    /// The table's home at the last assignment.
    home: Option<Home>,
}

/// One server's keys, in the order of the request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share<'a> {
    pub(crate) keys: &'a [u64],
    /// Of each key, where it stood in the request.
    pub(crate) positions: &'a [u32],
}

impl KeyPartition {
    /// Shares the keys out.
    pub(crate) fn assign(&mut self, placement: &Placement, home: Home, keys: &[u64]) {
        self.home = Some(home);
        self.scatter.deal(placement.servers, keys, |key| placement.server_of(home, key));
        self.keys.resize_with(placement.servers, Vec::new);
        for (server, share) in self.keys.iter_mut().enumerate() {
            gather(self.scatter.part(server), 1, keys, share);
        }
    }

    /// Shares other keys of the same table out; nothing if there was no table yet.
    pub(crate) fn assign_again(&mut self, placement: &Placement, keys: &[u64]) {
        if let Some(home) = self.home {
            self.assign(placement, home, keys);
        }
    }

    /// A server's keys.
    pub(crate) fn share(&self, server: usize) -> Share<'_> {
        Share { keys: &self.keys[server], positions: self.scatter.part(server) }
    }

    /// Each server's keys.
    pub(crate) fn shares(&self) -> impl Iterator<Item = Share<'_>> {
        (0..self.keys.len()).map(|server| self.share(server))
    }
}

/// The keys of a pooled request by server; reused.
#[derive(Debug, Default)]
pub(crate) struct RaggedPartition {
    pub(crate) shares: Vec<RaggedShare>,
}

/// One server's samples. The offsets of each added run start at 0 and are one more than its samples.
#[derive(Debug, Default)]
pub(crate) struct RaggedShare {
    pub(crate) keys: Vec<u64>,
    /// Of each key, where it stood in the request.
    pub(crate) positions: Vec<u32>,
    pub(crate) values: Vec<f32>,
    pub(crate) offsets: Vec<u32>,
}

impl RaggedPartition {
    pub(crate) fn clear(&mut self, servers: usize) {
        self.shares.resize_with(servers, RaggedShare::default);
        for RaggedShare { keys, positions, values, offsets } in &mut self.shares {
            keys.clear();
            positions.clear();
            values.clear();
            offsets.clear();
        }
    }

    /// Adds a run of samples, of which `offsets` says where among all keys they are.
    pub(crate) fn add(
        &mut self,
        placement: &Placement,
        home: Home,
        keys: &[u64],
        values: Option<&[f32]>,
        offsets: &[u32],
    ) {
        let firsts: Vec<usize> = self.shares.iter().map(|share| share.keys.len()).collect();
        self.shares.iter_mut().for_each(|share| share.offsets.push(0));
        for span in offsets.windows(2) {
            for at in span[0] as usize..span[1] as usize {
                let to = &mut self.shares[placement.server_of(home, keys[at])];
                to.keys.push(keys[at]);
                to.positions.push(at as u32);
                to.values.extend(values.map(|values| values[at]));
            }
            for (share, first) in self.shares.iter_mut().zip(&firsts) {
                share.offsets.push((share.keys.len() - first) as u32);
            }
        }
    }
}
