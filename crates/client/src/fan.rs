//! How the keys of one request are shared out to servers, and where each came from. Knows no rows.

use sanderling_wire::Home;

use crate::placement::Placement;

/// The keys of one request by server; reused from request to request.
#[derive(Debug, Default)]
pub(crate) struct Fan {
    /// Those of the first server, in the order of the request, then those of the next.
    keys: Vec<u64>,
    /// Of each, where it stood in the request.
    positions: Vec<u32>,
    /// Per server, where its keys end.
    ends: Vec<usize>,
    /// Per key of the request, its server.
    servers: Vec<u16>,
    /// The table's home at the last assignment.
    home: Option<Home>,
}

/// What goes to one server, in the order of the request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share<'a> {
    pub(crate) keys: &'a [u64],
    /// Of each key, where it stood in the request.
    pub(crate) positions: &'a [u32],
}

impl Fan {
    /// Shares the keys out.
    pub(crate) fn assign(&mut self, placement: &Placement, home: Home, keys: &[u64]) {
        self.home = Some(home);
        let Fan { servers, ends, .. } = self;
        servers.clear();
        servers.extend(keys.iter().map(|&key| placement.server_of(home, key) as u16));
        // First how many each server has, then where its next one goes: where it ends once all are there.
        ends.clear();
        ends.resize(placement.servers, 0);
        servers.iter().for_each(|&server| ends[usize::from(server)] += 1);
        let mut before = 0;
        ends.iter_mut().for_each(|end| before += std::mem::replace(end, before));
        self.keys.resize(keys.len(), 0);
        self.positions.resize(keys.len(), 0);
        for ((position, &key), &server) in (0..).zip(keys).zip(&*servers) {
            let end = &mut ends[usize::from(server)];
            self.keys[*end] = key;
            self.positions[*end] = position;
            *end += 1;
        }
    }

    /// Shares other keys of the same table out; nothing if there was no table yet.
    pub(crate) fn assign_again(&mut self, placement: &Placement, keys: &[u64]) {
        if let Some(home) = self.home {
            self.assign(placement, home, keys);
        }
    }

    /// What goes to a server.
    pub(crate) fn share(&self, server: usize) -> Share<'_> {
        let range = server.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[server];
        Share { keys: &self.keys[range.clone()], positions: &self.positions[range] }
    }

    /// What goes to each server.
    pub(crate) fn shares(&self) -> impl Iterator<Item = Share<'_>> {
        (0..self.ends.len()).map(|server| self.share(server))
    }
}

/// The values of what stood at these positions, `dim` each, in place of what `into` held.
#[inline]
pub(crate) fn gather<T: Copy>(positions: &[u32], dim: usize, values: &[T], into: &mut Vec<T>) {
    into.clear();
    if dim == 1 {
        into.extend(positions.iter().map(|&at| values[at as usize]));
    } else {
        positions.iter().for_each(|&at| into.extend_from_slice(&values[at as usize * dim..][..dim]));
    }
}

/// The keys of a pooled request by server; reused.
#[derive(Debug, Default)]
pub(crate) struct RaggedFan {
    pub(crate) shares: Vec<RaggedShare>,
}

/// What goes to one server. Each run of samples that is added has offsets from 0 on, one more than samples.
#[derive(Debug, Default)]
pub(crate) struct RaggedShare {
    pub(crate) keys: Vec<u64>,
    /// Of each key, where it stood in the request.
    pub(crate) positions: Vec<u32>,
    pub(crate) values: Vec<f32>,
    pub(crate) offsets: Vec<u32>,
}

impl RaggedFan {
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
