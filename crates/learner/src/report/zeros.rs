//! Weights that are exactly zero. Those of FTRL follow from z and n; they are counted there, so that the count cannot be that
//! of weights which were made from an older state. Knows no table.

use sanderling_store::{Block, Optimizer};

/// How many of a row's weights are zero, the row being made of these blocks.
pub(crate) fn zero_weights(blocks: &[Block], mut weights: &[f32], mut state: &[f32]) -> usize {
    let mut zeros = 0;
    for block in blocks {
        let (own, rest) = weights.split_at(block.dims);
        let (own_state, rest_state) = state.split_at(block.optimizer.state_len(block.dims));
        (weights, state) = (rest, rest_state);
        zeros += match block.optimizer {
            Optimizer::Ftrl { l1, .. } => own_state[..block.dims].iter().filter(|z| z.abs() <= l1).count(),
            _ => own.iter().filter(|&&weight| weight == 0.0).count(),
        };
    }
    zeros
}

#[cfg(test)]
mod tests {
    use super::*;
    use sanderling_store::Init;

    #[test]
    fn each_block_is_counted_by_its_own_optimizer() {
        let block = |dims, optimizer| Block { dims, init: Init::Zero, optimizer };
        let blocks = [
            block(2, Optimizer::Sgd { lr: 0.1, l2: 0.0 }),
            block(1, Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.5, l2: 0.0 }),
            block(2, Optimizer::Adagrad { lr: 0.1, eps: 1e-10, initial: 0.0, l2: 0.0 }),
            block(2, Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.0, l2: 0.0 }),
        ];
        // The second block's weight is an old one: its z says zero.
        let weights = [0.0, 1.0, 0.3, -0.0, 2.0, 0.0, 0.4];
        let state = [-0.5, 7.0, 1.0, 1.0, 0.0, -0.1, 3.0, 3.0];
        assert_eq!(zero_weights(&blocks, &weights, &state), 4);
        assert_eq!(zero_weights(&blocks[..1], &weights[..2], &[]), 1);
    }
}
