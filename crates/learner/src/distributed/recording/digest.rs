//! Digests that tell whether two runs have equal minibatches and equal tables. They are no protection against forgery.

use std::sync::Arc;

use sanderling_sample::{Rows, key};
use sanderling_store::Table;

/// An odd number without pattern, the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// A digest of words in order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Digest(u64);

impl Digest {
    pub(super) fn new(seed: u64) -> Digest {
        Digest(seed)
    }

    #[inline]
    pub(super) fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(29) ^ word).wrapping_mul(FACTOR);
    }

    pub(super) fn add_floats(&mut self, values: &[f32]) {
        values.iter().for_each(|value| self.add(u64::from(value.to_bits())));
    }

    pub(super) fn value(self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// The digest of a minibatch's rows: labels, weights, keys and values.
pub(super) fn of_rows(rows: &Rows<'_>) -> u64 {
    let mut digest = Digest::new(rows.len() as u64);
    digest.add_floats(rows.labels());
    digest.add_floats(rows.weights());
    for column in 0..rows.columns() {
        let keys = rows.keys(column);
        digest.add(keys.len() as u64);
        keys.iter().for_each(|&key| digest.add(key));
        rows.values(column).into_iter().for_each(|values| digest.add_floats(values));
    }
    digest.value()
}

/// The digest of all rows of the tables, with versions, last uses and optimizer state. The order of rows does not matter.
pub(super) fn of_tables(tables: &[Arc<Table>]) -> u64 {
    let mut all = Digest::new(tables.len() as u64);
    for table in tables {
        let (mut sum, mut rows) = (0_u64, 0_u64);
        table.for_each_row(|row| {
            let mut digest = Digest::new(row.key);
            digest.add(u64::from(row.frequency));
            digest.add(u64::from(row.last_use) << 32 | u64::from(row.version));
            digest.add_floats(row.weights);
            digest.add_floats(row.state);
            sum = sum.wrapping_add(digest.value());
            rows += 1;
        });
        all.add(key::salt(table.name()));
        all.add(rows);
        all.add(sum);
    }
    all.value()
}
