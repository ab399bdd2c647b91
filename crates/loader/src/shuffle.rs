//! The order in which the rows of a shuffle buffer are used, and how far that has gone. Knows not where the rows come from,
//! nor how many of them a minibatch has.

use sanderling_sample::Batch;

use crate::permute::permutation;

#[derive(Debug, Default)]
pub struct Shuffle {
    order: Vec<u32>,
    used: usize,
    /// Columns of the buffer that have one key per row.
    single: Vec<bool>,
}

impl Shuffle {
    /// Draws an order of the buffer's first `rows` rows.
    pub fn draw(&mut self, pool: &Batch, rows: usize, seed: u64) {
        pool.single_columns(&mut self.single);
        permutation(rows, seed, &mut self.order);
        self.used = 0;
    }

    /// Drops the rows that were drawn from the buffer, used or not.
    pub fn drop_drawn(&mut self, pool: &mut Batch) {
        pool.drop_front(self.order.len());
        self.order.clear();
        self.used = 0;
    }

    /// Rows that are still to be used.
    pub fn left(&self) -> usize {
        self.order.len() - self.used
    }

    /// Passes over rows, as far as there are so many.
    pub fn skip(&mut self, rows: usize) {
        self.used += rows.min(self.left());
    }

    /// The rows that were used last are to be used again.
    pub fn give_back(&mut self, rows: usize) {
        self.used -= rows;
    }

    /// Appends the next rows, as far as there are so many.
    pub fn gather(&mut self, pool: &Batch, rows: usize, into: &mut Batch) {
        let first = self.used;
        self.skip(rows);
        into.gather(pool, &self.order[first..self.used], &self.single);
    }
}
