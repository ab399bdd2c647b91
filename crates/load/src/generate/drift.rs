//! Popularity that moves on: in every epoch a share of the ranks comes to mean other keys. Knows no law; an
//! epoch is a number that it is told.
//!
//! Ranks are dealt to groups, and each group turns by another amount whenever its version grows. The version
//! of a group in an epoch is `floor(epoch * share + phase)` with phases spread evenly over the groups, so in
//! every epoch the versions of `share` of them grow by one, each group is due once in `1 / share` epochs,
//! and nothing has to be remembered. Turning a group is a bijection of it, so at any time all ranks mean
//! different keys and the law stays what it was.

use sanderling_random::mix;

/// Most groups, and so the finest part of the ranks that moves at once.
const GROUPS_MAX: u64 = 4096;
/// Ranks that a group has at least, if there are as many: fewer could turn to where they were.
const GROUP_RANKS_MIN: u64 = 8;

/// Which rank a rank has become.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drift {
    ranks: u64,
    seed: u64,
    group_bits: u32,
    /// The share of groups that turn per epoch, times 2^64.
    share: u128,
}

/// A [`Drift`] in one epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Epoch<'a> {
    drift: &'a Drift,
    whole: u64,
    part: u64,
}

impl Drift {
    /// `share` is from 0 to 1; `seed` says which ranks move when, and where to.
    pub(super) fn new(ranks: u64, share: f64, seed: u64) -> Self {
        let groups = (ranks / GROUP_RANKS_MIN).clamp(1, GROUPS_MAX);
        Drift { ranks, seed, group_bits: groups.ilog2(), share: (share * 2f64.powi(64)) as u128 }
    }

    /// In epoch 0 every rank is what it was.
    pub(super) fn epoch(&self, epoch: u64) -> Epoch<'_> {
        let due = u128::from(epoch).wrapping_mul(self.share);
        Epoch { drift: self, whole: (due >> 64) as u64, part: due as u64 }
    }
}

impl Epoch<'_> {
    /// The rank, from 0, whose place `rank` has taken.
    #[inline]
    pub(super) fn rank(&self, rank: u64) -> u64 {
        let Drift { ranks, seed, group_bits, .. } = *self.drift;
        let mask = (1 << group_bits) - 1;
        let (group, index) = (rank & mask, rank >> group_bits);
        let size = (ranks - group + mask) >> group_bits;
        // An odd factor and a summand shuffle the phases among the groups. Two shifts, since one by 64 is
        // none.
        let phase = group.wrapping_mul(seed | 1).wrapping_add(seed >> 32) << (63 - group_bits) << 1;
        let version = self.whole.wrapping_add(u64::from(self.part.overflowing_add(phase).1));
        // A quarter to three quarters of a turn per version, so that no version leaves a rank where it was.
        let turn = (mix(seed ^ group) >> 1) + (1 << 62);
        let turned = index + ((u128::from(version.wrapping_mul(turn)) * u128::from(size)) >> 64) as u64;
        let index = if turned >= size { turned - size } else { turned };
        index << group_bits | group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(drift: &Drift, epoch: u64) -> Vec<u64> {
        let epoch = drift.epoch(epoch);
        (0..drift.ranks).map(|rank| epoch.rank(rank)).collect()
    }

    #[test]
    fn the_share_moves_and_all_ranks_stay_apart() {
        for (n, share) in [(1, 0.5), (7, 0.3), (20, 1.0), (1000, 0.25), (100_003, 0.01), (100_003, 0.5)] {
            for seed in [1, 77] {
                let drift = Drift::new(n, share, seed);
                let mut before = ranks(&drift, 0);
                assert!(before.iter().enumerate().all(|(rank, &now)| rank as u64 == now), "epoch 0 of {n}");
                for epoch in (1..6).chain([1_000_000_007]) {
                    if epoch > 6 {
                        before = ranks(&drift, epoch - 1);
                    }
                    let now = ranks(&drift, epoch);
                    let mut sorted = now.clone();
                    sorted.sort_unstable();
                    assert!(sorted.iter().enumerate().all(|(i, &rank)| i as u64 == rank), "{n} at {epoch}");
                    let moved = now.iter().zip(&before).filter(|(now, before)| now != before).count() as f64;
                    // Groups move as a whole, one of them more or less, and one rank longer or shorter.
                    let groups = (1u64 << drift.group_bits) as f64;
                    let off = (moved / n as f64 - share).abs();
                    let limit = 1.0 / groups + share * groups / n as f64 + 1e-9;
                    assert!(n < 8 || off <= limit, "{n}, {share}, epoch {epoch}: {moved} moved");
                    before = now;
                }
            }
        }
    }

    #[test]
    fn another_seed_moves_others() {
        let moved = |seed| {
            let drift = Drift::new(10_000, 0.1, seed);
            ranks(&drift, 1)
                .iter()
                .enumerate()
                .filter(|(i, now)| *i as u64 != **now)
                .map(|(i, _)| i)
                .collect()
        };
        let (some, others): (Vec<usize>, Vec<usize>) = (moved(1), moved(2));
        assert_ne!(some, others);
        assert_eq!(some, moved(1));
    }
}
