//! Number of rows of each lane in a step. Knows neither the rows nor the workers of lanes.

/// The rows of each lane that are known and not dealt yet, those of all workers included. So all workers deal the same.
pub(crate) struct Dealer {
    left: Vec<u64>,
    /// The units of the last round.
    last: Vec<u64>,
    batch: usize,
    /// Lanes by what they have left, and what each gave.
    order: Vec<usize>,
    dealt: Vec<usize>,
}

impl Dealer {
    /// Of steps of so many rows from so many lanes, by which they can be divided.
    pub(crate) fn new(lanes: u32, batch: usize) -> Dealer {
        let lanes = lanes as usize;
        debug_assert!(batch.is_multiple_of(lanes));
        let (left, last, order, dealt) =
            (vec![0; lanes], vec![0; lanes], (0..lanes).collect(), vec![0; lanes]);
        Dealer { left, last, batch, order, dealt }
    }

    /// Each lane has so many rows more.
    pub(crate) fn add(&mut self, rows: &[u64]) {
        self.last.copy_from_slice(rows);
        for (left, rows) in self.left.iter_mut().zip(rows) {
            *left += rows;
        }
    }

    /// Whether there are rows for another step.
    pub(crate) fn has_rows(&self) -> bool {
        self.left.iter().any(|&left| left > 0)
    }

    /// Whether the next step is to wait for more rows, if the input has more: it would not be whole; or a lane could not give
    /// its part, and no other has rows from before the last round, so that rows of two rounds at most are held.
    pub(crate) fn wants_more(&self) -> bool {
        let part = (self.batch / self.left.len()) as u64;
        self.left.iter().sum::<u64>() < self.batch as u64
            || (self.left.iter().any(|&left| left < part)
                && self.left.iter().zip(&self.last).all(|(left, last)| left <= last))
    }

    /// How many rows each lane gives to the next step: as many as each other lane, or all that it has left, and then the
    /// longer ones give more. Together they are a batch, or all that is left.
    pub(crate) fn deal(&mut self) -> &[usize] {
        let Dealer { left, order, dealt, .. } = self;
        order.sort_unstable_by_key(|&lane| (left[lane], lane));
        let mut wanted = self.batch;
        for (lanes_to_come, &lane) in (1..=order.len()).rev().zip(order.iter()) {
            let rows = left[lane].min((wanted / lanes_to_come) as u64);
            left[lane] -= rows;
            dealt[lane] = rows as usize;
            wanted -= rows as usize;
        }
        dealt
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(rows: &[u64], batch: usize, steps: &[&[usize]]) {
        let mut dealer = Dealer::new(rows.len() as u32, batch);
        dealer.add(rows);
        for &step in steps {
            assert!(dealer.has_rows());
            assert_eq!(dealer.deal(), step, "{rows:?}");
        }
        assert!(!dealer.has_rows(), "{rows:?}");
    }

    #[test]
    fn a_short_lane_gives_what_it_has_and_the_others_more() {
        check(&[4, 4], 4, &[&[2, 2], &[2, 2]]);
        check(&[3, 5], 4, &[&[2, 2], &[1, 3]]);
        check(&[0, 9], 4, &[&[0, 4], &[0, 4], &[0, 1]]);
        check(&[7, 0, 0, 6], 8, &[&[4, 0, 0, 4], &[3, 0, 0, 2]]);
        check(&[1, 1, 2, 2], 8, &[&[1, 1, 2, 2]]);
        check(&[3], 1, &[&[1], &[1], &[1]]);
        check(&[0, 0], 4, &[]);
    }

    proptest! {
        #[test]
        fn every_step_but_the_last_is_whole_and_all_rows_are_dealt(
            lanes in 0_u32..7, part in 1_usize..9, rows in proptest::collection::vec(0_u64..40, 64),
        ) {
            let (lanes, batch) = (1 << lanes, part << lanes);
            let mut dealer = Dealer::new(lanes, batch);
            dealer.add(&rows[..lanes as usize]);
            let mut left: u64 = rows[..lanes as usize].iter().sum();
            while dealer.has_rows() {
                let step: usize = dealer.deal().iter().sum();
                prop_assert_eq!(step as u64, left.min(batch as u64));
                left -= step as u64;
            }
            prop_assert_eq!(left, 0);
        }
    }
}
