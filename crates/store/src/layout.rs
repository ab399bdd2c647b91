//! Where the parts of a row lie: header, weights, then each block's optimizer state. Knows no row's values.

use crate::kernel::Kernel;
use crate::slab::{HEADER_WORDS, Header, stride_words};
use crate::{Init, TableConfig, init};

/// One block of a row, in words from the start of the row.
#[derive(Debug, Clone)]
pub(crate) struct BlockLayout {
    /// First coordinate of the block within the row's weights.
    pub(crate) first: usize,
    pub(crate) dims: usize,
    pub(crate) weights_at: usize,
    pub(crate) state_at: usize,
    pub(crate) init: Init,
    pub(crate) kernel: Kernel,
}

/// The rows of a table.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) dim: usize,
    /// Floats of optimizer state.
    pub(crate) state: usize,
    /// Words from row to row.
    pub(crate) stride: usize,
    pub(crate) seed: u64,
    pub(crate) blocks: Vec<BlockLayout>,
}

impl Layout {
    /// Layout of a configuration that has been checked.
    pub(crate) fn new(config: &TableConfig) -> Layout {
        let dim = config.dim();
        let (mut first, mut state) = (0, 0);
        let mut blocks = Vec::with_capacity(config.blocks.len());
        for block in &config.blocks {
            let kernel = Kernel::new(block.optimizer);
            blocks.push(BlockLayout {
                first,
                dims: block.dims,
                weights_at: HEADER_WORDS + first,
                state_at: HEADER_WORDS + dim + state,
                init: block.init,
                kernel,
            });
            first += block.dims;
            state += kernel.slots() * block.dims;
        }
        Layout { dim, state, stride: stride_words(HEADER_WORDS + dim + state), seed: config.seed, blocks }
    }

    /// Words of a row that are in use.
    pub(crate) fn words(&self) -> usize {
        HEADER_WORDS + self.dim + self.state
    }

    /// The weights that a row of this key starts with.
    pub(crate) fn init_weights(&self, key: u64, weights: &mut [f32]) {
        for block in &self.blocks {
            init::fill(block.init, self.seed, key, block.first, &mut weights[block.first..][..block.dims]);
        }
    }

    /// Writes a whole new row: header, first weights, first optimizer state.
    pub(crate) fn init_row(&self, key: u64, row: &mut [f32]) {
        Header { key, frequency: 0, last_use: 0, version: 0 }.write(row);
        let (front, state) = row.split_at_mut(HEADER_WORDS + self.dim);
        let weights = &mut front[HEADER_WORDS..];
        self.init_weights(key, weights);
        for block in &self.blocks {
            let state =
                &mut state[block.state_at - HEADER_WORDS - self.dim..][..block.kernel.slots() * block.dims];
            block.kernel.init_state(&weights[block.first..][..block.dims], state);
        }
    }
}
