//! Partitions the keys of a request by server and remembers the position of each. Knows no rows.

use std::ops::Range;

use sanderling_store::{Scatter, gather};
use sanderling_wire::{Home, Ragged};

use crate::placement::Placement;

/// The keys of one request by server; reused from request to request.
#[derive(Debug, Default)]
pub(crate) struct KeyPartition {
    scatter: Scatter,
    keys: Vec<Vec<u64>>,
    /// The table's home at the last assignment.
    home: Option<Home>,
    /// Version of the placement at the last assignment.
    version: u64,
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
        (self.home, self.version) = (Some(home), placement.version);
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

    /// Shares the keys out by a newer placement; `None` if they are by this one already.
    pub(crate) fn renewed(&self, placement: &Placement) -> Option<KeyPartition> {
        let home = self.home.filter(|_| self.version != placement.version)?;
        let mut keys = vec![0; self.keys.iter().map(Vec::len).sum()];
        for Share { keys: share, positions } in self.shares() {
            share.iter().zip(positions).for_each(|(&key, &at)| keys[at as usize] = key);
        }
        let mut renewed = KeyPartition::default();
        renewed.assign(placement, home, &keys);
        Some(renewed)
    }

    /// Each server's keys. One server's are the given ones as they are.
    pub(crate) fn split<'a>(
        &'a mut self,
        placement: &Placement,
        home: Home,
        keys: &'a [u64],
    ) -> impl Iterator<Item = (usize, &'a [u64])> + use<'a> {
        let (servers, alone) = (placement.servers, placement.servers == 1);
        if !alone {
            self.assign(placement, home, keys);
        }
        let partition: &'a KeyPartition = self;
        (0..servers).map(move |server| (server, if alone { keys } else { partition.share(server).keys }))
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

/// The samples of a pooled request by server; reused.
#[derive(Debug, Default)]
pub(crate) struct RaggedPartition {
    pub(crate) shares: Vec<RaggedShare>,
}

/// One server's samples. The offsets of each added run start at 0 and are one more than its samples.
#[derive(Debug, Default)]
pub(crate) struct RaggedShare {
    runs: Vec<Run>,
    pub(crate) keys: Vec<u64>,
    /// Position of each key in the request.
    pub(crate) positions: Vec<u32>,
    pub(crate) values: Vec<f32>,
    pub(crate) offsets: Vec<u32>,
    /// Position of each sample in the request.
    pub(crate) samples: Vec<u32>,
}

/// One server's part of a run of samples, within its share.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) keys: Range<usize>,
    pub(crate) samples: Range<usize>,
    offsets: Range<usize>,
}

impl RaggedShare {
    /// A run as a message has it.
    pub(crate) fn ragged(&self, run: &Run) -> Ragged<'_> {
        let Run { keys, offsets, .. } = run.clone();
        // Without values there are none for its keys, of which it has some.
        let values = self.values.get(keys.clone());
        Ragged { keys: &self.keys[keys], offsets: &self.offsets[offsets], values }
    }
}

/// Which samples of a run a server gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunSamples {
    /// All of them: the server's rows are in the order of the run.
    All,
    /// The samples that have keys there; the pooled row of any other sample gets nothing from that server.
    WithKeys,
}

impl RaggedPartition {
    pub(crate) fn clear(&mut self, servers: usize) {
        self.shares.resize_with(servers, RaggedShare::default);
        for RaggedShare { runs, keys, positions, values, offsets, samples } in &mut self.shares {
            runs.clear();
            keys.clear();
            positions.clear();
            values.clear();
            offsets.clear();
            samples.clear();
        }
    }

    /// Adds a run of samples. `offsets` are the run's offsets into all keys; `first` is the run's first sample.
    #[expect(clippy::too_many_arguments, reason = "a ragged batch is keys, values and offsets")]
    pub(crate) fn add(
        &mut self,
        placement: &Placement,
        home: Home,
        keys: &[u64],
        values: Option<&[f32]>,
        offsets: &[u32],
        first: usize,
        which: RunSamples,
    ) {
        for share in &mut self.shares {
            let (keys, samples, offsets) = (share.keys.len(), share.samples.len(), share.offsets.len());
            share.runs.push(Run {
                keys: keys..keys,
                samples: samples..samples,
                offsets: offsets..offsets + 1,
            });
            share.offsets.push(0);
        }
        for (sample, span) in (first as u32..).zip(offsets.windows(2)) {
            for at in span[0] as usize..span[1] as usize {
                let to = &mut self.shares[placement.server_of(home, keys[at])];
                to.keys.push(keys[at]);
                to.positions.push(at as u32);
                to.values.extend(values.map(|values| values[at]));
            }
            for share in &mut self.shares {
                let Some(run) = share.runs.last_mut() else { continue };
                run.keys.end = share.keys.len();
                let end = run.keys.len() as u32;
                if which == RunSamples::All || share.offsets.last() != Some(&end) {
                    share.offsets.push(end);
                    share.samples.push(sample);
                    (run.samples.end, run.offsets.end) = (share.samples.len(), share.offsets.len());
                }
            }
        }
    }

    /// The runs that have keys, each with its server; run after run.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (usize, &Run)> {
        let count = self.shares.first().map_or(0, |share| share.runs.len());
        let of_run =
            |at| self.shares.iter().enumerate().map(move |(server, share)| (server, &share.runs[at]));
        (0..count).flat_map(of_run).filter(|(_, run)| !run.keys.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_gets_the_samples_that_have_keys_there() {
        let placement = Placement::even(2);
        // Of these keys server 1 has 1 and 42.
        let keys = [0, 1, 42, u64::MAX, 0];
        let offsets = [0, 1, 1, 3, 5];
        let mut ragged = RaggedPartition::default();
        for _ in 0..2 {
            ragged.clear(2);
            // Two runs of two samples.
            for first in [0, 2] {
                let run = &offsets[first..=first + 2];
                ragged.add(&placement, Home::Sharded, &keys, None, run, first, RunSamples::WithKeys);
            }
            let share = |server: usize| {
                let share: &RaggedShare = &ragged.shares[server];
                (share.keys.clone(), share.positions.clone(), share.offsets.clone(), share.samples.clone())
            };
            assert_eq!(share(0), (vec![0, u64::MAX, 0], vec![0, 3, 4], vec![0, 1, 0, 2], vec![0, 3]));
            assert_eq!(share(1), (vec![1, 42], vec![1, 2], vec![0, 0, 2], vec![2]));
        }
        ragged.clear(2);
        ragged.add(&placement, Home::Sharded, &keys, None, &offsets, 0, RunSamples::All);
        assert_eq!(ragged.shares[1].offsets, [0, 0, 0, 2, 2]);
        assert_eq!(ragged.shares[1].samples, [0, 1, 2, 3]);
    }

    #[test]
    fn keys_are_shared_out_anew_by_another_placement() {
        let keys = [0, 1, 42, u64::MAX];
        let mut partition = KeyPartition::default();
        assert!(partition.renewed(&Placement::even(2)).is_none());
        partition.assign(&Placement::even(2), Home::Sharded, &keys);
        assert!(partition.renewed(&Placement::even(2)).is_none());
        let all_at_third = Placement::new(1, 3, vec![2; 4096]);
        let renewed = partition.renewed(&all_at_third).unwrap();
        let found: Vec<(&[u64], &[u32])> =
            renewed.shares().map(|share| (share.keys, share.positions)).collect();
        assert_eq!(found, [(&[][..], &[][..]), (&[], &[]), (&keys, &[0, 1, 2, 3])]);
    }
}
