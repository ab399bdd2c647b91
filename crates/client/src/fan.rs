//! How the keys of one request are shared out to servers, and where each came from. Knows no rows.

use sanderling_wire::Home;

use crate::placement::Placement;

/// The keys of one request by server; reused from request to request.
#[derive(Debug, Default)]
pub(crate) struct Fan {
    pub(crate) shares: Vec<Share>,
    /// The table's home at the last assignment.
    home: Option<Home>,
}

/// What goes to one server, in the order of the request.
#[derive(Debug, Default)]
pub(crate) struct Share {
    pub(crate) keys: Vec<u64>,
    /// Of each key, where it stood in the request.
    pub(crate) positions: Vec<u32>,
}

impl Fan {
    /// Shares the keys out.
    pub(crate) fn assign(&mut self, placement: &Placement, home: Home, keys: &[u64]) {
        self.home = Some(home);
        self.clear(placement.servers);
        for (position, &key) in keys.iter().enumerate() {
            let share = &mut self.shares[placement.server_of(home, key)];
            share.keys.push(key);
            share.positions.push(position as u32);
        }
    }

    /// Shares other keys of the same table out; nothing if there was no table yet.
    pub(crate) fn assign_again(&mut self, placement: &Placement, keys: &[u64]) {
        if let Some(home) = self.home {
            self.assign(placement, home, keys);
        }
    }

    pub(crate) fn clear(&mut self, servers: usize) {
        self.shares.resize_with(servers, Share::default);
        for share in &mut self.shares {
            share.keys.clear();
            share.positions.clear();
        }
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
    pub(crate) share: Share,
    pub(crate) values: Vec<f32>,
    pub(crate) offsets: Vec<u32>,
}

impl RaggedFan {
    pub(crate) fn clear(&mut self, servers: usize) {
        self.shares.resize_with(servers, RaggedShare::default);
        for RaggedShare { share, values, offsets } in &mut self.shares {
            share.keys.clear();
            share.positions.clear();
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
        let firsts: Vec<usize> = self.shares.iter().map(|share| share.share.keys.len()).collect();
        self.shares.iter_mut().for_each(|share| share.offsets.push(0));
        for span in offsets.windows(2) {
            for at in span[0] as usize..span[1] as usize {
                let to = &mut self.shares[placement.server_of(home, keys[at])];
                to.share.keys.push(keys[at]);
                to.share.positions.push(at as u32);
                to.values.extend(values.map(|values| values[at]));
            }
            for (share, first) in self.shares.iter_mut().zip(&firsts) {
                share.offsets.push((share.share.keys.len() - first) as u32);
            }
        }
    }
}
