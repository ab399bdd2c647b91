//! The order of the rows of a shuffle buffer, and how many of them are used. Knows neither their origin nor the size
//! of a minibatch.

use sanderling_sample::Batch;

use crate::permute::permutation;

/// The order of the rows of a shuffle buffer.
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

    /// Rows that are not used yet.
    pub fn left(&self) -> usize {
        self.order.len() - self.used
    }

    /// Skips rows, at most those that are left.
    pub fn skip(&mut self, rows: usize) {
        self.used += rows.min(self.left());
    }

    /// Marks the rows that were used last as unused.
    pub fn give_back(&mut self, rows: usize) {
        self.used -= rows;
    }

    /// Appends the next rows, at most those that are left.
    pub fn gather(&mut self, pool: &Batch, rows: usize, into: &mut Batch) {
        let first = self.used;
        self.skip(rows);
        into.gather(pool, &self.order[first..self.used], &self.single);
    }
}
