//! Validates the numbers of rows that are imported, loaded or saved.

use std::ops::Range;

use crate::TableConfig;
use crate::update::kernel::Kernel;

/// The valid numbers of a table's rows: weights and state are finite, and sums of squares are not negative.
/// Training could not recover from others.
#[derive(Debug)]
pub(crate) struct RowNumbers {
    /// Ranges of the state that are sums of squares.
    squares: Vec<Range<usize>>,
}

impl RowNumbers {
    pub(crate) fn new(config: &TableConfig) -> RowNumbers {
        let mut first = 0;
        let squares = config.blocks.iter().map(|block| {
            let kernel = Kernel::new(block.optimizer);
            let squares = kernel.squares(block.dims);
            let squares = first + squares.start..first + squares.end;
            first += kernel.state_len(block.dims);
            squares
        });
        RowNumbers { squares: squares.filter(|squares| !squares.is_empty()).collect() }
    }

    /// Checks a row of the table's shape; describes the first invalid number.
    #[inline]
    pub(crate) fn check(&self, weights: &[f32], state: &[f32]) -> Result<(), String> {
        // No branch per value, so that it vectorizes.
        let finite = |values: &[f32]| values.iter().fold(true, |all, value| all & value.is_finite());
        let not_below = |values: &[f32]| values.iter().fold(true, |all, &value| all & (value >= 0.0));
        if finite(weights)
            && finite(state)
            && self.squares.iter().all(|squares| not_below(&state[squares.clone()]))
        {
            return Ok(());
        }
        Err(self.fault(weights, state))
    }

    #[cold]
    fn fault(&self, weights: &[f32], state: &[f32]) -> String {
        for (what, values) in [("weight", weights), ("state value", state)] {
            if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                return format!("{what} {at} is {}", values[at]);
            }
        }
        let below = self.squares.iter().flat_map(Range::clone).find(|&place| state[place] < 0.0);
        let place = below.unwrap_or_default();
        format!("state value {place} is {}, and a sum of squares is not below 0", state[place])
    }
}
