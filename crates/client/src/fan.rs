//! How the keys of one request are shared out to servers, and where each came from. Knows no rows.

use sanderling_wire::Home;

use crate::placement::Placement;

/// The keys of one request by server; reused from request to request.
#[derive(Debug, Default)]
pub(crate) struct Fan {
    shares: Vec<Room>,
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

/// The share of a server, with room for all keys of the request, so that none of them asks whether there is room.
#[derive(Debug, Default)]
struct Room {
    keys: Vec<u64>,
    positions: Vec<u32>,
    len: usize,
}

/// So few servers have the counts of their keys in one word, a register: a count in memory that the next key may want is there
/// some cycles too late.
const COUNTED_TOGETHER: usize = (u64::BITS / COUNT_BITS) as usize;
const COUNT_BITS: u32 = 16;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

impl Room {
    fn push(&mut self, key: u64, position: u32) {
        self.put(0, key, position);
        self.len += 1;
    }

    /// Puts a key so far behind those that are counted.
    #[inline]
    fn put(&mut self, at: usize, key: u64, position: u32) {
        self.keys[self.len + at] = key;
        self.positions[self.len + at] = position;
    }
}

impl Fan {
    /// Shares the keys out.
    pub(crate) fn assign(&mut self, placement: &Placement, home: Home, keys: &[u64]) {
        self.home = Some(home);
        self.shares.resize_with(placement.servers, Room::default);
        for Room { keys: room, positions, len } in &mut self.shares {
            *len = 0;
            if room.len() < keys.len() {
                room.resize(keys.len(), 0);
                positions.resize(keys.len(), 0);
            }
        }
        if placement.servers > COUNTED_TOGETHER {
            for (position, &key) in (0..).zip(keys) {
                self.shares[placement.server_of(home, key)].push(key, position);
            }
            return;
        }
        let mut position = 0;
        for keys in keys.chunks(COUNT_MASK as usize) {
            let mut counts = 0_u64;
            for &key in keys {
                let server = placement.server_of(home, key);
                let at = counts >> (server as u32 * COUNT_BITS) & COUNT_MASK;
                self.shares[server].put(at as usize, key, position);
                counts += 1 << (server as u32 * COUNT_BITS);
                position += 1;
            }
            for share in &mut self.shares {
                share.len += (counts & COUNT_MASK) as usize;
                counts >>= COUNT_BITS;
            }
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
        let Room { keys, positions, len } = &self.shares[server];
        Share { keys: &keys[..*len], positions: &positions[..*len] }
    }

    /// What goes to each server.
    pub(crate) fn shares(&self) -> impl Iterator<Item = Share<'_>> {
        (0..self.shares.len()).map(|server| self.share(server))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_goes_to_its_server_in_the_order_of_the_request() {
        let mut fan = Fan::default();
        for servers in [1, 2, 3, 4, 5, 7] {
            let placement = Placement::even(servers);
            // More than are counted in one word, then fewer.
            for len in [200_000, 0, 9, 1000] {
                let keys: Vec<u64> = (0..len).map(|at| at * 31 % 1009).collect();
                for home in [Home::Sharded, Home::Pinned(servers as u32 - 1)] {
                    fan.assign(&placement, home, &keys);
                    let expected = |server: usize| {
                        let here = |at: &u32| placement.server_of(home, keys[*at as usize]) == server;
                        (0..len as u32).filter(here).collect::<Vec<u32>>()
                    };
                    assert_eq!(fan.shares().count(), servers);
                    for (server, share) in fan.shares().enumerate() {
                        assert_eq!(share.positions, expected(server), "{servers} servers, {len} keys");
                        assert!(
                            share
                                .positions
                                .iter()
                                .map(|&at| keys[at as usize])
                                .eq(share.keys.iter().copied())
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn values_of_a_share_stand_in_its_order() {
        let mut found = vec![9; 5];
        gather(&[2, 0], 1, &[10, 11, 12], &mut found);
        assert_eq!(found, [12, 10]);
        gather(&[2, 0], 2, &[10, 11, 20, 21, 30, 31], &mut found);
        assert_eq!(found, [30, 31, 10, 11]);
        gather(&[], 2, &[10, 11], &mut found);
        assert!(found.is_empty());
    }
}
