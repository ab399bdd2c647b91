//! How many pushes of others a worker missed between its pull and its push. A worker counts its own pushes where nobody else
//! writes; the others read them. Knows no table.

use std::sync::atomic::{AtomicU64, Ordering};

/// Pushes that missed so many of others, or more, are counted together.
const STALENESS_MAX: u64 = 255;

/// The pushes of one worker, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Pushes(AtomicU64);

/// One worker's account.
#[derive(Debug)]
pub(super) struct Staleness<'a> {
    /// Of all workers of this process.
    pushes: &'a [Pushes],
    rank: usize,
    /// Pushes of the others when this worker began to pull.
    seen: u64,
    /// At each place, how many of this worker's pushes missed so many.
    counts: Vec<u64>,
}

impl<'a> Staleness<'a> {
    pub(super) fn new(pushes: &'a [Pushes], rank: usize) -> Self {
        Staleness { pushes, rank, seen: 0, counts: Vec::new() }
    }

    fn others(&self) -> u64 {
        let others = self.pushes.iter().enumerate().filter(|(rank, _)| *rank != self.rank);
        others.map(|(_, pushes)| pushes.0.load(Ordering::Acquire)).sum()
    }

    /// This worker begins to pull.
    pub(super) fn pulls(&mut self) {
        self.seen = self.others();
    }

    /// It pushes what it computed from what it pulled.
    pub(super) fn pushes(&mut self) {
        let missed = (self.others() - self.seen).min(STALENESS_MAX);
        self.count(missed as usize, 1);
    }

    /// It has pushed so often while it kept the others out.
    pub(super) fn pushed_alone(&mut self, pushes: u64) {
        self.count(0, pushes);
    }

    fn count(&mut self, missed: usize, pushes: u64) {
        if self.counts.len() <= missed {
            self.counts.resize(missed + 1, 0);
        }
        self.counts[missed] += pushes;
        let own = &self.pushes[self.rank].0;
        // Nobody else writes it.
        own.store(own.load(Ordering::Relaxed) + pushes, Ordering::Release);
    }

    /// What was counted since the last call.
    pub(super) fn take(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushes_of_others_are_counted_and_own_ones_are_not() {
        let pushes: Vec<Pushes> = (0..3).map(|_| Pushes::default()).collect();
        let [mut one, mut other, mut third] = [0, 1, 2].map(|rank| Staleness::new(&pushes, rank));
        one.pulls();
        third.pushed_alone(5);
        other.pulls();
        other.pushes();
        one.pushes();
        other.pulls();
        other.pushes();
        third.pulls();
        (0..300).for_each(|_| one.pushes());
        third.pushes();
        assert_eq!((one.take()[..7].to_vec(), other.take()), (vec![0, 0, 0, 0, 0, 0, 1], vec![2]));
        let third = third.take();
        assert_eq!((third.len(), third[0], third[255]), (256, 5, 1));
    }
}
