//! Layout of a row: weights, header, then the optimizer state of each block.
//!
//! Weights are a part of their own, because a pull reads nothing else ([`crate::rows::placement`]). They may be 16-bit
//! halves, two per word; everything else is words. Outside the slab, weights are always f32, and the parts are
//! contiguous.

use crate::rows::access::RowMut;
use crate::rows::half::{Half, Noise};
use crate::rows::placement::{HEADER_WORDS, Placement};
use crate::rows::row::RowRef;
use crate::rows::slab::Slab;
use crate::simd::halves::{Format, Singles};
use crate::simd::{Vector, Work};
use crate::update::init;
use crate::update::kernel::{BlockSpan, Halves, Kernel, MaxMagnitude, OptimizerStep, Weights};
use crate::{Absent, Init, TableConfig};

/// Words of the header after the key.
pub(crate) const FREQUENCY: usize = 2;
pub(crate) const LAST_USE: usize = 3;
pub(crate) const VERSION: usize = 4;

/// A block of a row.
#[derive(Debug, Clone)]
pub(crate) struct BlockLayout {
    /// First coordinate of the block within the row's weights.
    pub(crate) first: usize,
    pub(crate) dims: usize,
    /// Range of the block's values within the row's state.
    pub(crate) state: std::ops::Range<usize>,
    pub(crate) init: Init,
    pub(crate) kernel: Kernel,
}

/// The layout of a table's rows.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) dim: usize,
    /// The 16-bit format of the weights; `None` for f32.
    pub(crate) half: Option<Half>,
    /// Words of the weights.
    pub(crate) weight_words: usize,
    /// Values of optimizer state.
    pub(crate) state: usize,
    /// Positions of the rows in the slab.
    pub(crate) placement: Placement,
    pub(crate) seed: u64,
    pub(crate) blocks: Vec<BlockLayout>,
    /// The whole row is computed before anything is stored, so that a rejected update needs no undo.
    is_one_piece: bool,
}

/// The header of a row, unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) key: u64,
    pub(crate) frequency: u32,
    pub(crate) last_use: u32,
    pub(crate) version: u32,
}

impl Header {
    /// Reads the words of a header.
    pub(crate) fn read(words: &[f32]) -> Header {
        Header {
            key: u64::from(words[0].to_bits()) | (u64::from(words[1].to_bits()) << 32),
            frequency: words[2].to_bits(),
            last_use: words[3].to_bits(),
            version: words[4].to_bits(),
        }
    }

    pub(crate) fn write(self, words: &mut [f32]) {
        words[0] = f32::from_bits(self.key as u32);
        words[1] = f32::from_bits((self.key >> 32) as u32);
        words[2] = f32::from_bits(self.frequency);
        words[3] = f32::from_bits(self.last_use);
        words[4] = f32::from_bits(self.version);
    }
}

impl Layout {
    /// The layout of a validated configuration.
    pub(crate) fn new(config: &TableConfig) -> Layout {
        let dim = config.dim();
        let (mut first, mut state) = (0, 0);
        let mut blocks = Vec::with_capacity(config.blocks.len());
        for block in &config.blocks {
            let kernel = Kernel::new(block.optimizer);
            let values = kernel.state_len(block.dims);
            blocks.push(BlockLayout {
                first,
                dims: block.dims,
                state: state..state + values,
                init: block.init,
                kernel,
            });
            first += block.dims;
            state += values;
        }
        let half = Half::of(config.dtype);
        let weight_words = if half.is_some() { dim.div_ceil(2) } else { dim };
        let placement = Placement::new(weight_words, HEADER_WORDS + state, config.packing);
        let is_one_piece = matches!(blocks.as_slice(), [block] if block.kernel.is_one_piece(block.dims));
        Layout { dim, half, weight_words, state, placement, seed: config.seed, blocks, is_one_piece }
    }

    /// Used words of a row.
    pub(crate) fn words(&self) -> usize {
        self.weight_words + HEADER_WORDS + self.state
    }

    /// Length of an unpacked row, whose weights are f32.
    pub(crate) fn unpacked(&self) -> usize {
        self.dim + HEADER_WORDS + self.state
    }

    /// Copies a row out of the slab and unpacks it.
    pub(crate) fn read_row(&self, slab: &Slab, row: u32, unpacked: &mut [f32]) {
        slab.read(row, &mut unpacked[self.dim - self.weight_words..]);
        if let Some(half) = self.half {
            half.unpack(&mut unpacked[..self.dim]);
        }
    }

    /// Packs an unpacked row in place; returns its words.
    fn pack<'a>(&self, unpacked: &'a mut [f32]) -> &'a [f32] {
        let first = self.half.map_or(0, |half| half.pack(&mut unpacked[..self.dim]));
        &unpacked[first..]
    }

    /// Splits an unpacked row into its parts.
    #[inline(always)]
    pub(crate) fn parts<'a>(&self, row: &'a [f32]) -> RowRef<'a> {
        let (weights, rest) = row.split_at(self.dim);
        let (header, state) = rest.split_at(HEADER_WORDS);
        let Header { key, frequency, last_use, version } = Header::read(header);
        RowRef { key, frequency, last_use, version, weights, state: &state[..self.state] }
    }

    /// Computes the initial weights of the key.
    pub(crate) fn init_weights(&self, key: u64, weights: &mut [f32]) {
        for block in &self.blocks {
            init::fill(block.init, self.seed, key, block.first, &mut weights[block.first..][..block.dims]);
        }
        if let Some(half) = self.half {
            for weight in weights {
                *weight = half.widen(half.nearest(*weight));
            }
        }
    }

    /// Computes the weights of a key without a row.
    #[inline]
    pub(crate) fn fill_absent(&self, absent: Absent, key: u64, weights: &mut [f32]) {
        match absent {
            Absent::Zero => weights.fill(0.0),
            Absent::Init => self.init_weights(key, weights),
        }
    }

    /// Builds a new row in `unpacked` (header, initial weights, initial state); returns its words.
    pub(crate) fn init_row<'a>(&self, key: u64, unpacked: &'a mut [f32]) -> &'a [f32] {
        let (weights, rest) = unpacked.split_at_mut(self.dim);
        let (header, state) = rest.split_at_mut(HEADER_WORDS);
        Header { key, frequency: 0, last_use: 0, version: 0 }.write(header);
        self.init_weights(key, weights);
        for block in &self.blocks {
            block.kernel.init_state(&weights[block.first..][..block.dims], &mut state[block.state.clone()]);
        }
        self.pack(unpacked)
    }

    /// Builds the header of a new row in `unpacked`. The caller stores weights and state before the row is
    /// published.
    pub(crate) fn blank_row<'a>(&self, key: u64, unpacked: &'a mut [f32]) -> &'a [f32] {
        Header { key, frequency: 0, last_use: 0, version: 0 }
            .write(&mut unpacked[self.dim..][..HEADER_WORDS]);
        &unpacked[self.dim - self.weight_words..]
    }

    /// Builds a row in `unpacked` from its header and its values (weights, then state); returns its words. 16-bit
    /// weights are rounded to nearest, which keeps values that were halves.
    pub(crate) fn join_row<'a>(&self, header: Header, values: &[f32], unpacked: &'a mut [f32]) -> &'a [f32] {
        let (weights, rest) = unpacked.split_at_mut(self.dim);
        let (words, state) = rest.split_at_mut(HEADER_WORDS);
        header.write(words);
        weights.copy_from_slice(&values[..self.dim]);
        state.copy_from_slice(&values[self.dim..]);
        self.pack(unpacked)
    }

    /// Updates a row in one pass: its header and all blocks.
    ///
    /// `gradient` has one value per weight, and `format` is the table's. Returns false and leaves the row unchanged
    /// if a weight or state value would not be finite. `before` is a buffer for a row.
    #[inline(always)]
    pub(crate) fn update(
        &self,
        steps: &[OptimizerStep],
        format: impl Format,
        row: RowMut<'_, impl Vector>,
        update: Update<'_>,
        before: &mut Vec<f32>,
    ) -> bool {
        let Update { count, clock, gradient } = update;
        let version = version_after(row.get(VERSION), 1);
        if let ([OptimizerStep::Ftrl(step)], [gradient], None) = (steps, gradient, format.half()) {
            // The row of logistic regression: w; header, z, n. No array `map()`: it is not inlined here, and then
            // costs more than the update.
            let w = f32::from_bits(row.weight(0));
            let z = f32::from_bits(row.get(HEADER_WORDS));
            let n = f32::from_bits(row.get(HEADER_WORDS + 1));
            let (w, z, n) = step.update(w, z, n, *gradient);
            // The sum of squares is always finite.
            if !(w.is_finite() & z.is_finite()) {
                return false;
            }
            row.set_weight(0, w.to_bits());
            row.set(HEADER_WORDS, z.to_bits());
            row.set(HEADER_WORDS + 1, n.to_bits());
        } else {
            if !self.is_one_piece {
                before.resize(self.words(), 0.0);
                row.load_row(before);
            }
            let is_finite = if let Some(half) = format.half() {
                let key = u64::from(row.get(0)) | u64::from(row.get(1)) << 32;
                let noise = Noise::new(self.seed, key, version);
                self.update_blocks(steps, row, Halves { half, noise }, version, gradient)
            } else {
                self.update_blocks(steps, row, Singles, version, gradient)
            };
            if !is_finite {
                if !self.is_one_piece {
                    row.store_row(before);
                }
                return false;
            }
        }
        row.set(FREQUENCY, row.get(FREQUENCY).saturating_add(count));
        row.set(LAST_USE, clock);
        row.set(VERSION, version);
        true
    }

    /// A row over test words: weights, header, state.
    #[cfg(test)]
    fn test_row<'a>(
        &self,
        words: &'a [std::sync::atomic::AtomicU32],
        width: crate::simd::Width,
    ) -> RowMut<'a> {
        RowMut::new(words, &words[self.weight_words..], false, width)
    }

    /// Updates the blocks; returns whether all results are finite.
    #[inline(always)]
    fn update_blocks(
        &self,
        steps: &[OptimizerStep],
        row: RowMut<'_, impl Vector>,
        weights: impl Weights,
        version: u32,
        gradient: &[f32],
    ) -> bool {
        let mut largest = MaxMagnitude::default();
        for (block, step) in self.blocks.iter().zip(steps) {
            let span = BlockSpan {
                first: block.first,
                state_at: HEADER_WORDS + block.state.start,
                dims: block.dims,
            };
            step.update(row, weights, span, version, &gradient[block.first..][..block.dims], &mut largest);
        }
        largest.is_finite()
    }
}

/// The row's number of updates after `updates` more. It is exact up to 2^32 - 1 and then wraps within its upper
/// half: optimizers keep treating it as large, and consecutive updates differ.
#[inline(always)]
pub(crate) fn version_after(version: u32, updates: u32) -> u32 {
    const UPPER_HALF: u32 = 1 << 31;
    match version.checked_add(updates) {
        Some(sum) => sum,
        None => version.wrapping_add(updates) | UPPER_HALF,
    }
}

/// An update of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Update<'a> {
    /// Occurrences of the key, added to its frequency.
    pub(crate) count: u32,
    /// The present reading of the use clock.
    pub(crate) clock: u32,
    pub(crate) gradient: &'a [f32],
}

/// [`Layout::update`] as a unit of vectorized work.
#[derive(Debug)]
pub(crate) struct RowUpdate<'a, F> {
    pub(crate) format: F,
    pub(crate) layout: &'a Layout,
    pub(crate) steps: &'a [OptimizerStep],
    pub(crate) row: RowMut<'a>,
    pub(crate) update: Update<'a>,
    pub(crate) before: &'a mut Vec<f32>,
}

impl<F: Format> Work for RowUpdate<'_, F> {
    type Output = bool;

    #[inline(always)]
    fn run(self, vector: impl Vector) -> bool {
        self.layout.update(self.steps, self.format, self.row.by(vector), self.update, self.before)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::simd::{self, Width};
    use crate::{Block, Dtype, Optimizer};

    #[test]
    fn header_keeps_every_bit() {
        let mut words = [0.0; HEADER_WORDS];
        for bits in [0, 1, u64::MAX, 0x7FA0_0001_FF80_0001, 0x7F80_0000_FFFF_FFFF] {
            let low = bits as u32;
            let header = Header { key: bits, frequency: low, last_use: !low, version: low ^ 0x7F80_0001 };
            header.write(&mut words);
            let copy = words;
            assert_eq!(Header::read(&copy), header);
        }
    }

    /// All widths give the same bits in every format, also for blocks that begin within a word.
    #[test]
    fn every_width_updates_alike() {
        let adagrad = Optimizer::Adagrad { lr: 0.1, eps: 1e-6, initial: 0.1, l2: 0.01 };
        let row_adagrad = Optimizer::RowAdagrad { lr: 0.1, eps: 1e-6, initial: 0.1, l2: 0.01 };
        let ftrl = Optimizer::Ftrl { alpha: 0.2, beta: 1.0, l1: 0.05, l2: 0.1 };
        let adam = Optimizer::Adam { lr: 0.01, beta1: 0.9, beta2: 0.99, eps: 1e-4, l2: 0.01 };
        let init = Init::Normal { std: 0.1 };
        let blocks = [(1, ftrl), (37, adagrad), (16, adam), (5, row_adagrad), (33, ftrl)]
            .map(|(dims, optimizer)| Block { dims, init, optimizer });
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let config = TableConfig { dtype, seed: 5, ..TableConfig::new("t", blocks.to_vec()) };
            let layout = Layout::new(&config);
            let steps: Vec<OptimizerStep> =
                blocks.iter().map(|block| Kernel::new(block.optimizer).step(1.0)).collect();
            let rows = Width::all().into_iter().map(|width| {
                let (mut unpacked, mut before) = (vec![0.0; layout.unpacked()], Vec::new());
                let words: Vec<AtomicU32> =
                    layout.init_row(77, &mut unpacked).iter().map(|word| word.to_bits().into()).collect();
                assert_eq!(words.len(), layout.words());
                for clock in 1..20_u32 {
                    let gradient: Vec<f32> =
                        (0..layout.dim).map(|at| (at as f32 + 7.3 * clock as f32).sin()).collect();
                    let update = Update { count: 1, clock, gradient: &gradient };
                    let row = layout.test_row(&words, width);
                    let (layout, steps) = (&layout, steps.as_slice());
                    let before = &mut before;
                    let is_finite = match layout.half {
                        None => simd::run(
                            width,
                            RowUpdate { format: Singles, layout, steps, row, update, before },
                        ),
                        Some(format) => {
                            simd::run(width, RowUpdate { format, layout, steps, row, update, before })
                        }
                    };
                    assert!(is_finite);
                }
                words.into_iter().map(AtomicU32::into_inner).collect::<Vec<u32>>()
            });
            let rows: Vec<Vec<u32>> = rows.collect();
            assert!(rows.iter().all(|row| *row == rows[0]), "{dtype:?}");
        }
    }

    /// Halves need half of the words, and half of the cache lines of a pull.
    #[test]
    fn half_rows_are_packed() {
        let layout = |dtype, dims| {
            let sgd = Optimizer::Sgd { lr: 0.1, l2: 0.0 };
            Layout::new(&TableConfig { dtype, ..TableConfig::single("t", dims, Init::Zero, sgd) })
        };
        for (dims, words, row_words) in [(64, 32, 48), (1, 1, 8), (5, 3, 8), (32, 16, 32)] {
            for dtype in [Dtype::F16, Dtype::Bf16] {
                let layout = layout(dtype, dims);
                assert_eq!((layout.weight_words, layout.placement.words()), (words, row_words), "{dims}");
                assert_eq!(layout.words(), words + HEADER_WORDS);
            }
            assert_eq!(layout(Dtype::F32, dims).weight_words, dims);
        }
    }
}
