//! Which numbers a row may have, whether it comes from elsewhere or is to be saved. Knows no table and no file.

use std::ops::Range;

use crate::TableConfig;
use crate::update::kernel::Kernel;

/// The numbers of a table's rows: weights and optimizer state are finite, and no sum of squares in a state is below 0. From
/// other rows nothing but further such numbers can be learned.
#[derive(Debug)]
pub(crate) struct RowNumbers {
    /// Which state values are sums of squares.
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

    /// What is wrong with a row, which has the table's shape.
    #[inline]
    pub(crate) fn check(&self, weights: &[f32], state: &[f32]) -> Result<(), String> {
        // Without a branch per value, so that it vectorises.
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
