//! Which cycles each run of a campaign takes: those behind the ones that are used, so that keys which no run has asked before
//! are new in every run, not in the first alone. Knows no run.

use std::ops::Range;

/// See the top of this file.
#[derive(Debug)]
pub(super) struct Cycles {
    all: Range<u64>,
    /// The first one that no run has taken.
    next: u64,
    /// The most that a run took.
    most: u64,
}

impl Cycles {
    /// The cycles of a plan.
    pub(super) fn new(all: &Range<u64>) -> Cycles {
        Cycles { all: all.clone(), next: all.start, most: 0 }
    }

    /// The cycles of the next run, which may leave some of them.
    pub(super) fn next(&self) -> Range<u64> {
        self.next..self.all.end
    }

    /// Runs that began at [`Cycles::next`] took the cycles before this one. Where fewer are left than a run took, the next one
    /// begins with the first again: else it would be a shorter one than the others.
    pub(super) fn used(&mut self, end: u64) {
        self.most = self.most.max(end.saturating_sub(self.next));
        self.next = end.clamp(self.next, self.all.end);
        if self.all.end - self.next < self.most.max(1) {
            self.next = self.all.start;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs that take so many cycles, and where each of them begins.
    fn check(all: Range<u64>, taken: &[u64], expected: &[u64]) {
        let mut cycles = Cycles::new(&all);
        let begins: Vec<u64> = taken
            .iter()
            .map(|taken| {
                let next = cycles.next();
                assert!(next.end == all.end && all.contains(&next.start), "{next:?}");
                cycles.used(next.start.saturating_add(*taken).min(all.end));
                next.start
            })
            .collect();
        assert_eq!(begins, expected, "{all:?}");
    }

    #[test]
    fn every_run_begins_behind_the_one_before() {
        check(0..u64::MAX, &[100, 7, 0, 50], &[0, 100, 107, 107]);
        check(1000..2000, &[100, 200], &[1000, 1100]);
        // Too few cycles are left for another such run.
        check(0..100, &[40, 40, 40, 10], &[0, 40, 0, 40]);
        check(5..6, &[1, 1], &[5, 5]);
    }
}
