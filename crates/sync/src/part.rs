//! What a worker hands in for a step, in one message. Knows no group.

use crate::budget::{Budget, Held};

/// Gradients, a row per key.
#[derive(Debug, Clone, PartialEq)]
pub enum Gradients {
    /// As they are.
    Single(Vec<f32>),
    /// Multiples of 2 to a power, see [`Fixed`](crate::Fixed).
    Fixed {
        /// That power.
        unit_log2: i8,
        /// How many of it.
        sums: Vec<i64>,
    },
}

impl Gradients {
    /// Values, of all rows.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Gradients::Single(values) => values.len(),
            Gradients::Fixed { sums, .. } => sums.len(),
        }
    }

    /// Are there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn bytes(&self) -> usize {
        match self {
            Gradients::Single(values) => size_of_val(&values[..]),
            Gradients::Fixed { sums, .. } => size_of_val(&sums[..]),
        }
    }
}

/// One message: gradients of some keys of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// Number of the table, whatever the place that applies it understands by it.
    pub table: u32,
    /// Multiplies the learning rate; all parts of a table and step have the same.
    pub lr_scale: f32,
    /// Weights per row, at least 1.
    pub dim: usize,
    /// Keys; gradients of one that occurs twice are summed.
    pub keys: Vec<u64>,
    /// How often each occurred.
    pub counts: Vec<u32>,
    /// A row of `dim` values per key.
    pub gradients: Gradients,
}

/// A message that is kept.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) part: Part,
    _held: Held,
}

impl Part {
    fn bytes(&self) -> usize {
        size_of::<Kept>()
            + size_of_val(&self.keys[..])
            + size_of_val(&self.counts[..])
            + self.gradients.bytes()
    }

    /// Keeps it if there is room.
    pub(crate) fn keep(self, budget: &Budget) -> Option<Kept> {
        assert_eq!(self.keys.len(), self.counts.len(), "a count per key");
        assert_eq!(self.keys.len() * self.dim, self.gradients.len(), "a row of gradients per key");
        budget.hold(self.bytes()).map(|held| Kept { part: self, _held: held })
    }
}
