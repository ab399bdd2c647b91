//! Where the parts of a row lie: weights, header, then each block's optimizer state. Knows no row's values.
//!
//! Weights come first, on the boundary of a cache line where that matters, because a pull reads nothing else.

use crate::kernel::{Kernel, Place, Step};
use crate::slab::{Change, stride_words};
use crate::words::Work;
use crate::{Absent, Init, TableConfig, init};

/// Words of a row's header: key low, key high, frequency, last use, version, kept as the bits of f32 values.
pub(crate) const HEADER_WORDS: usize = 5;

/// One block of a row.
#[derive(Debug, Clone)]
pub(crate) struct BlockLayout {
    /// First coordinate of the block within the row's weights.
    pub(crate) first: usize,
    pub(crate) dims: usize,
    /// First value of the block within the row's state, and how many there are.
    pub(crate) state: std::ops::Range<usize>,
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

/// The header of a row, unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) key: u64,
    pub(crate) frequency: u32,
    pub(crate) last_use: u32,
    pub(crate) version: u32,
}

impl Header {
    /// From the words of a header.
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
    /// Layout of a configuration that has been checked.
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
        let stride = stride_words(dim + HEADER_WORDS + state, dim);
        Layout { dim, state, stride, seed: config.seed, blocks }
    }

    /// Words of a row that are in use.
    pub(crate) fn words(&self) -> usize {
        self.dim + HEADER_WORDS + self.state
    }

    /// A row's weights, header and state.
    #[inline(always)]
    pub(crate) fn parts<'a>(&self, row: &'a [f32]) -> (&'a [f32], Header, &'a [f32]) {
        let (weights, rest) = row.split_at(self.dim);
        let (header, state) = rest.split_at(HEADER_WORDS);
        (weights, Header::read(header), &state[..self.state])
    }

    /// The weights that a row of this key starts with.
    pub(crate) fn init_weights(&self, key: u64, weights: &mut [f32]) {
        for block in &self.blocks {
            init::fill(block.init, self.seed, key, block.first, &mut weights[block.first..][..block.dims]);
        }
    }

    /// Weights for a key without a row.
    #[inline]
    pub(crate) fn fill_absent(&self, absent: Absent, key: u64, weights: &mut [f32]) {
        match absent {
            Absent::Zero => weights.fill(0.0),
            Absent::Init => self.init_weights(key, weights),
        }
    }

    /// Fills the words of a new row: header, first weights, first optimizer state.
    pub(crate) fn init_row(&self, key: u64, row: &mut [f32]) {
        let (weights, rest) = row.split_at_mut(self.dim);
        let (header, state) = rest.split_at_mut(HEADER_WORDS);
        Header { key, frequency: 0, last_use: 0, version: 0 }.write(header);
        self.init_weights(key, weights);
        for block in &self.blocks {
            block.kernel.init_state(&weights[block.first..][..block.dims], &mut state[block.state.clone()]);
        }
    }

    /// Fills the words of a row from a header and its values: weights, then state.
    pub(crate) fn join_row(&self, header: Header, values: &[f32], row: &mut [f32]) {
        let (weights, rest) = row.split_at_mut(self.dim);
        let (words, state) = rest.split_at_mut(HEADER_WORDS);
        header.write(words);
        weights.copy_from_slice(&values[..self.dim]);
        state.copy_from_slice(&values[self.dim..]);
    }

    /// One update of one row, in one pass: its header and every block of it. `gradient` has one value per weight.
    #[inline(always)]
    pub(crate) fn update(&self, steps: &[Step], row: Change<'_>, update: Update<'_>) {
        let Update { count, clock, gradient } = update;
        let header = self.dim;
        let version = row.get(header + 4).saturating_add(1);
        row.set(header + 2, row.get(header + 2).saturating_add(count));
        row.set(header + 3, clock);
        row.set(header + 4, version);
        if let ([Step::Ftrl(step)], [gradient]) = (steps, gradient) {
            // The row of logistic regression: w, header, z, n.
            // Not an array's map(): it is not inlined here, and then costs more than the update.
            let w = f32::from_bits(row.get(0));
            let z = f32::from_bits(row.get(1 + HEADER_WORDS));
            let n = f32::from_bits(row.get(2 + HEADER_WORDS));
            let (w, z, n) = step.update(w, z, n, *gradient);
            row.set(0, w.to_bits());
            row.set(1 + HEADER_WORDS, z.to_bits());
            row.set(2 + HEADER_WORDS, n.to_bits());
            return;
        }
        for (block, step) in self.blocks.iter().zip(steps) {
            let place = Place {
                weights_at: block.first,
                state_at: self.dim + HEADER_WORDS + block.state.start,
                dims: block.dims,
            };
            step.update(row, place, version, &gradient[block.first..][..block.dims]);
        }
    }
}

/// What changes a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Update<'a> {
    /// Occurrences of the key, added to its frequency.
    pub(crate) count: u32,
    /// The table's use clock.
    pub(crate) clock: u32,
    pub(crate) gradient: &'a [f32],
}

/// [`Layout::update`] by itself, compiled for the machine.
#[derive(Debug)]
pub(crate) struct RowUpdate<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) steps: &'a [Step],
    pub(crate) row: Change<'a>,
    pub(crate) update: Update<'a>,
}

impl Work for RowUpdate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.layout.update(self.steps, self.row, self.update);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
