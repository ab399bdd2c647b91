//! Counts the pushes of others that a worker missed between its pull and its push. A worker counts its own pushes in
//! a counter that the other workers of this process read; processes elsewhere report theirs. Knows no table and no
//! connection.

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
    /// Of all workers, and which this one is, if they are in this process.
    here: Option<(&'a [Pushes], usize)>,
    /// Pushes of the others when this worker began to pull.
    seen: u64,
    /// At each place, how many of this worker's pushes missed so many.
    counts: Vec<u64>,
}

impl<'a> Staleness<'a> {
    /// Of workers of this process.
    pub(super) fn here(pushes: &'a [Pushes], rank: usize) -> Self {
        Staleness { here: Some((pushes, rank)), seen: 0, counts: Vec::new() }
    }

    /// Of workers elsewhere.
    pub(super) fn told() -> Self {
        Staleness { here: None, seen: 0, counts: Vec::new() }
    }

    fn others(&self, told: u64) -> u64 {
        let Some((pushes, own)) = self.here else { return told };
        let others = pushes.iter().enumerate().filter(|(rank, _)| *rank != own);
        others.map(|(_, pushes)| pushes.0.load(Ordering::Acquire)).sum()
    }

    /// This worker begins to pull. Those elsewhere have pushed so often in this pass, as far as it was told.
    pub(super) fn pulls(&mut self, told: u64) {
        self.seen = self.others(told);
    }

    /// It pushes what it computed from what it pulled.
    pub(super) fn pushes(&mut self, told: u64) {
        let missed = self.others(told).saturating_sub(self.seen).min(STALENESS_MAX);
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
        if let Some((all, own)) = self.here {
            let own = &all[own].0;
            // This thread is the only writer.
            own.store(own.load(Ordering::Relaxed) + pushes, Ordering::Release);
        }
    }

    /// The counts since the last call.
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
        let [mut one, mut other, mut third] = [0, 1, 2].map(|rank| Staleness::here(&pushes, rank));
        one.pulls(0);
        third.pushed_alone(5);
        other.pulls(0);
        other.pushes(0);
        one.pushes(0);
        other.pulls(0);
        other.pushes(0);
        third.pulls(0);
        (0..300).for_each(|_| one.pushes(0));
        third.pushes(0);
        assert_eq!((one.take()[..7].to_vec(), other.take()), (vec![0, 0, 0, 0, 0, 0, 1], vec![2]));
        let third = third.take();
        assert_eq!((third.len(), third[0], third[255]), (256, 5, 1));
        let mut far = Staleness::told();
        for (before, after) in [(0, 2), (2, 2), (7, 9)] {
            far.pulls(before);
            far.pushes(after);
        }
        assert_eq!(far.take(), [1, 0, 2]);
    }
}
