//! Rows as the public interface shows them.

/// A copy of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The key.
    pub key: u64,
    /// Occurrences of the key in pushes; saturates.
    pub frequency: u32,
    /// The table's use clock (number of pushes modulo 2^32) at the row's last push, at most 2^31 pushes ago.
    pub last_use: u32,
    /// Number of updates: exact up to 2^32 - 1, then cyclic from 2^31 to 2^32 - 1.
    pub version: u32,
    /// `dim` weights.
    pub weights: Vec<f32>,
    /// Optimizer state, block by block and slot by slot: momentum `v`, Adagrad `a`, Adam and AdamW `m v`, FTRL `z
    /// n`, with `dims` values each; row-wise Adagrad one `a` per block.
    pub state: Vec<f32>,
}

/// A borrowed row, as passed by [`Table::for_each_row`](crate::Table::for_each_row).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowRef<'a> {
    /// The key.
    pub key: u64,
    /// Occurrences of the key in pushes; saturates.
    pub frequency: u32,
    /// The table's use clock at the row's last push.
    pub last_use: u32,
    /// Number of updates, as in [`Row`].
    pub version: u32,
    /// Weights.
    pub weights: &'a [f32],
    /// Optimizer state, block by block and slot by slot, as in [`Row`].
    pub state: &'a [f32],
}

impl Row {
    /// Borrows the row.
    #[must_use]
    pub fn as_ref(&self) -> RowRef<'_> {
        let &Row { key, frequency, last_use, version, ref weights, ref state } = self;
        RowRef { key, frequency, last_use, version, weights, state }
    }
}
