//! Optimizer arithmetic on one block of a row: weights, state and gradient.
//!
//! State is f32, one value per coordinate and slot, slot by slot: momentum [v], Adagrad [a], Adam and AdamW [m, v],
//! FTRL [z, n]; row-wise Adagrad has one value [a] per block. Blocks are updated 16 coordinates at a time, with the
//! operations of a single coordinate, so that results do not depend on the machine.

use crate::Optimizer;
use crate::rows::access::RowMut;
use crate::rows::half::{Half, Noise};
use crate::simd::Vector;
use crate::simd::halves::Singles;

/// The minimum of the constant added to the root of a sum of squares in a denominator. The squares of gradients
/// below 2.6e-23 underflow to 0, and a setting of 0 would divide by 0. The minimum does not change other updates.
const ADDED_TO_ROOT_MIN: f32 = 1e-23;
/// The minimum of the constant added to the root of a mean of squares, whose squares have small factors, such as
/// .001.
const ADDED_TO_MEAN_MIN: f32 = 1e-21;
/// Coordinates that are updated together: a cache line, and an AVX-512 register.
const LANES: usize = 16;

/// The bits of an f32 without its sign, and those of infinity; the bits of NaNs are larger.
const MAGNITUDE: u32 = 0x7FFF_FFFF;
const INFINITY: u32 = 0x7F80_0000;

/// On a cache line of its own, without which whole loads and stores are slow.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Lanes([f32; LANES]);

/// An optimizer, as part of a row's layout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel(Optimizer);

/// An optimizer with the constants of a push, such as the scaled learning rate.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OptimizerStep {
    Sgd { lr: f32, l2: f32 },
    Momentum { lr: f32, momentum: f32, l2: f32 },
    Adagrad { lr: f32, eps: f32, l2: f32 },
    RowAdagrad { lr: f32, eps: f32, l2: f32 },
    Adam { lr: f32, beta1: f32, beta2: f32, eps: f32, l2: f32, keep: f32 },
    Ftrl(FtrlStep),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct FtrlStep {
    pub(crate) alpha_inverse: f32,
    pub(crate) beta: f32,
    pub(crate) l1: f32,
    pub(crate) l2: f32,
}

/// The largest magnitude, as bits, that an update of a row has computed per lane.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
pub(crate) struct MaxMagnitude([u32; LANES]);

impl MaxMagnitude {
    #[inline(always)]
    fn note(&mut self, lane: usize, value: f32) {
        self.0[lane] = self.0[lane].max(value.to_bits() & MAGNITUDE);
    }

    /// Returns whether all values were finite.
    #[inline(always)]
    pub(crate) fn is_finite(&self) -> bool {
        self.0.iter().fold(0, |largest, &bits| bits.max(largest)) < INFINITY
    }
}

/// Position of a block in its row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockSpan {
    /// First weight.
    pub(crate) first: usize,
    /// Position of the first state value after the weights.
    pub(crate) state_at: usize,
    pub(crate) dims: usize,
}

/// Storage of a row's weights. The arithmetic is compiled once per format.
pub(crate) trait Weights: Copy {
    /// Loads `len` weights, at most [`LANES`], and pads them with zeros.
    fn load(self, row: RowMut<'_, impl Vector>, first: usize, len: usize, out: &mut [f32; LANES]);
    /// Stores `len` weights.
    fn store(self, row: RowMut<'_, impl Vector>, first: usize, len: usize, values: &[f32; LANES]);
}

impl Weights for Singles {
    #[inline(always)]
    fn load(self, row: RowMut<'_, impl Vector>, first: usize, len: usize, out: &mut [f32; LANES]) {
        row.load_weights(first, len, out);
    }

    #[inline(always)]
    fn store(self, row: RowMut<'_, impl Vector>, first: usize, len: usize, values: &[f32; LANES]) {
        row.store_weights(first, &values[..len]);
    }
}

/// 16-bit weights, rounded with the noise of this update of this row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Halves {
    pub(crate) half: Half,
    pub(crate) noise: Noise,
}

impl Weights for Halves {
    #[inline(always)]
    fn load(self, row: RowMut<'_, impl Vector>, first: usize, len: usize, out: &mut [f32; LANES]) {
        row.load_halves(self.half, first, len, out);
    }

    #[inline(always)]
    fn store(self, row: RowMut<'_, impl Vector>, first: usize, len: usize, values: &[f32; LANES]) {
        row.store_halves(first, len, &self.half.round_row(self.noise, first, values));
    }
}

impl Kernel {
    pub(crate) fn new(mut optimizer: Optimizer) -> Kernel {
        match &mut optimizer {
            Optimizer::Adagrad { eps: added, .. }
            | Optimizer::RowAdagrad { eps: added, .. }
            | Optimizer::Ftrl { beta: added, .. } => *added = added.max(ADDED_TO_ROOT_MIN),
            Optimizer::Adam { eps, .. } | Optimizer::AdamW { eps, .. } => *eps = eps.max(ADDED_TO_MEAN_MIN),
            Optimizer::Sgd { .. } | Optimizer::Momentum { .. } => {}
        }
        Kernel(optimizer)
    }

    /// State values of a block of `dims` coordinates.
    pub(crate) fn state_len(self, dims: usize) -> usize {
        self.0.state_len(dims)
    }

    /// Returns whether the block is computed completely before it is stored.
    pub(crate) fn is_one_piece(self, dims: usize) -> bool {
        dims <= LANES && !matches!(self.0, Optimizer::RowAdagrad { .. })
    }

    /// The state values that are sums or means of squares, and so never negative.
    pub(crate) fn squares(self, dims: usize) -> std::ops::Range<usize> {
        match self.0 {
            Optimizer::Sgd { .. } | Optimizer::Momentum { .. } => 0..0,
            Optimizer::RowAdagrad { .. } => 0..1,
            Optimizer::Adagrad { .. } => 0..dims,
            Optimizer::Adam { .. } | Optimizer::AdamW { .. } | Optimizer::Ftrl { .. } => dims..2 * dims,
        }
    }

    /// Initializes the state of a new row with these weights.
    pub(crate) fn init_state(self, weights: &[f32], state: &mut [f32]) {
        match self.0 {
            Optimizer::Adagrad { initial, .. } | Optimizer::RowAdagrad { initial, .. } => state.fill(initial),
            Optimizer::Sgd { .. }
            | Optimizer::Momentum { .. }
            | Optimizer::Adam { .. }
            | Optimizer::AdamW { .. } => state.fill(0.0),
            Optimizer::Ftrl { alpha, beta, l1, l2 } => {
                let (z, n) = state.split_at_mut(weights.len());
                n.fill(0.0);
                // The inverse of the closed form at n = 0, so that it yields the initial weight.
                let slope = beta / alpha + l2;
                for (z, &w) in z.iter_mut().zip(weights) {
                    *z = if w == 0.0 { 0.0 } else { -(w * slope + l1.copysign(w)) };
                }
            }
        }
    }

    /// Returns whether the learning rate times this finite factor is finite.
    pub(crate) fn scales(self, lr_scale: f32) -> bool {
        match self.step(lr_scale) {
            OptimizerStep::Sgd { lr, .. }
            | OptimizerStep::Momentum { lr, .. }
            | OptimizerStep::Adagrad { lr, .. }
            | OptimizerStep::RowAdagrad { lr, .. } => lr.is_finite(),
            OptimizerStep::Adam { lr, keep, .. } => lr.is_finite() && keep.is_finite(),
            OptimizerStep::Ftrl(_) => true,
        }
    }

    pub(crate) fn step(self, lr_scale: f32) -> OptimizerStep {
        match self.0 {
            Optimizer::Sgd { lr, l2 } => OptimizerStep::Sgd { lr: lr * lr_scale, l2 },
            Optimizer::Momentum { lr, momentum, l2 } => {
                OptimizerStep::Momentum { lr: lr * lr_scale, momentum, l2 }
            }
            Optimizer::Adagrad { lr, eps, l2, .. } => OptimizerStep::Adagrad { lr: lr * lr_scale, eps, l2 },
            Optimizer::RowAdagrad { lr, eps, l2, .. } => {
                OptimizerStep::RowAdagrad { lr: lr * lr_scale, eps, l2 }
            }
            Optimizer::Adam { lr, beta1, beta2, eps, l2 } => {
                OptimizerStep::Adam { lr: lr * lr_scale, beta1, beta2, eps, l2, keep: 1.0 }
            }
            Optimizer::AdamW { lr, beta1, beta2, eps, decay } => {
                let lr = lr * lr_scale;
                OptimizerStep::Adam { lr, beta1, beta2, eps, l2: 0.0, keep: 1.0 - lr * decay }
            }
            Optimizer::Ftrl { alpha, beta, l1, l2 } => {
                // Not scaled: the weight follows from z, n and alpha, so that a smaller alpha would shrink learned
                // weights. FTRL lowers its rate per coordinate by itself.
                OptimizerStep::Ftrl(FtrlStep { alpha_inverse: 1.0 / alpha, beta, l1, l2 })
            }
        }
    }
}

impl FtrlStep {
    /// Updates one coordinate; returns (w, z, n). `sigma * w` uses the weight at which the gradient was computed,
    /// as in the paper.
    #[inline(always)]
    pub(crate) fn update(self, w: f32, z: f32, n: f32, g: f32) -> (f32, f32, f32) {
        let (w, z, n, _) = self.update_rooted(w, z, n, n.sqrt(), g);
        (w, z, n)
    }

    /// Updates one coordinate with a stored root of n; returns (w, z, n, root of n).
    #[inline(always)]
    pub(crate) fn update_rooted(self, w: f32, z: f32, n: f32, root: f32, g: f32) -> (f32, f32, f32, f32) {
        let n_new = finite(n + g * g);
        let root_new = n_new.sqrt();
        let sigma = (root_new - root) * self.alpha_inverse;
        let z_new = z + (g - sigma * w);
        (self.weight(z_new, root_new), z_new, n_new, root_new)
    }

    /// The weight for z and the root of n.
    #[inline(always)]
    pub(crate) fn weight(self, z: f32, root: f32) -> f32 {
        let shrunk = z - self.l1.copysign(z);
        let slope = (self.beta + root) * self.alpha_inverse + self.l2;
        if z.abs() <= self.l1 { 0.0 } else { -shrunk / slope }
    }
}

/// Limits a sum of squares to the largest finite value, because imports reject infinite state.
#[inline(always)]
pub(crate) fn finite(sum: f32) -> f32 {
    // Not `f32::min`, which also checks for NaN.
    if sum < f32::MAX { sum } else { f32::MAX }
}

impl OptimizerStep {
    /// Updates a block of a row.
    ///
    /// `version` is the row's number of updates, including this one; `gradient` has one value per coordinate. A
    /// block of at most [`LANES`] coordinates is stored only if its results are finite. A larger block is always
    /// stored, and `largest` tells whether its results are finite.
    #[inline(always)]
    pub(crate) fn update(
        self,
        row: RowMut<'_, impl Vector>,
        weights: impl Weights,
        span: BlockSpan,
        version: u32,
        gradient: &[f32],
        largest: &mut MaxMagnitude,
    ) {
        match self {
            OptimizerStep::Sgd { lr, l2 } => {
                each(row, weights, span, gradient, largest, |w, [], g| (w - lr * (g + l2 * w), []));
            }
            OptimizerStep::Momentum { lr, momentum, l2 } => {
                each(row, weights, span, gradient, largest, |w, [v], g| {
                    let v = momentum * v + (g + l2 * w);
                    (w - lr * v, [v])
                });
            }
            OptimizerStep::Adagrad { lr, eps, l2 } => {
                each(row, weights, span, gradient, largest, |w, [a], g| {
                    let g = g + l2 * w;
                    let a = finite(a + g * g);
                    (w - lr * g / (a.sqrt() + eps), [a])
                });
            }
            OptimizerStep::RowAdagrad { lr, eps, l2 } => {
                let mean = mean_square(row, weights, span, gradient, l2);
                let a = finite(f32::from_bits(row.get(span.state_at)) + mean);
                let root = a.sqrt() + eps;
                each(row, weights, span, gradient, largest, |w, [], g| (w - lr * (g + l2 * w) / root, []));
                // The value is finite. If a small block was not stored, the caller restores this value, as for a
                // larger block.
                row.set(span.state_at, a.to_bits());
            }
            OptimizerStep::Adam { lr, beta1, beta2, eps, l2, keep } => {
                // In f64, because 1 - beta2 loses half of an f32's digits.
                let pushes = i32::try_from(version).unwrap_or(i32::MAX);
                let correct1 = (1.0 / (1.0 - f64::from(beta1).powi(pushes))) as f32;
                let correct2 = (1.0 / (1.0 - f64::from(beta2).powi(pushes))) as f32;
                each(row, weights, span, gradient, largest, |w, [m, v], g| {
                    let g = g + l2 * w;
                    let m = beta1 * m + (1.0 - beta1) * g;
                    let v = beta2 * v + (1.0 - beta2) * (g * g);
                    (keep * w - lr * (m * correct1) / ((v * correct2).sqrt() + eps), [m, v])
                });
            }
            OptimizerStep::Ftrl(step) => each(row, weights, span, gradient, largest, |w, [z, n], g| {
                let (w, z, n) = step.update(w, z, n, g);
                (w, [z, n])
            }),
        }
    }
}

/// Applies a rule to every coordinate of a block: (weight, state, gradient) -> (new weight, new state).
#[inline(always)]
fn each<const S: usize>(
    row: RowMut<'_, impl Vector>,
    weights: impl Weights,
    span: BlockSpan,
    gradient: &[f32],
    largest: &mut MaxMagnitude,
    rule: impl Fn(f32, [f32; S], f32) -> (f32, [f32; S]) + Copy,
) {
    let (whole, rest) = gradient.as_chunks::<LANES>();
    let mut first = 0;
    for gradient in whole {
        lanes(row, weights, span, first, LANES, gradient, largest, rule);
        first += LANES;
    }
    if !rest.is_empty() {
        let mut gradient = Lanes([0.0; LANES]);
        row.pad(rest, &mut gradient.0);
        lanes(row, weights, span, first, rest.len(), &gradient.0, largest, rule);
    }
}

/// Applies a rule to `len` coordinates. The other lanes compute on zeros and are not stored.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "one lane of several arrays at a time")]
#[expect(clippy::too_many_arguments, reason = "a part of a row, its gradient, and what is done")]
fn lanes<const S: usize>(
    row: RowMut<'_, impl Vector>,
    format: impl Weights,
    span: BlockSpan,
    first: usize,
    len: usize,
    gradient: &[f32; LANES],
    largest: &mut MaxMagnitude,
    rule: impl Fn(f32, [f32; S], f32) -> (f32, [f32; S]),
) {
    let mut weights = Lanes([0.0; LANES]);
    let mut state = [Lanes([0.0; LANES]); S];
    format.load(row, span.first + first, len, &mut weights.0);
    for (slot, values) in state.iter_mut().enumerate() {
        row.load_rest(span.state_at + slot * span.dims + first, len, &mut values.0);
    }
    for lane in 0..LANES {
        let old = std::array::from_fn(|slot| state[slot].0[lane]);
        let (weight, new) = rule(weights.0[lane], old, gradient[lane]);
        weights.0[lane] = weight;
        largest.note(lane, weight);
        for slot in 0..S {
            state[slot].0[lane] = new[slot];
            largest.note(lane, new[slot]);
        }
    }
    // Readers of a single weight check no version.
    if span.dims <= LANES && !largest.is_finite() {
        return;
    }
    format.store(row, span.first + first, len, &weights.0);
    for (slot, values) in state.iter().enumerate() {
        row.store_rest(span.state_at + slot * span.dims + first, &values.0[..len]);
    }
}

/// Mean square of a block's gradient, including weight decay.
#[inline(always)]
fn mean_square(
    row: RowMut<'_, impl Vector>,
    weights: impl Weights,
    span: BlockSpan,
    gradient: &[f32],
    l2: f32,
) -> f32 {
    let dims = span.dims as f32;
    let sum = sum_of_squares(row, weights, span, gradient, l2, 1.0);
    // The sum may overflow where the mean does not.
    if sum.is_finite() { sum / dims } else { sum_of_squares(row, weights, span, gradient, l2, 1.0 / dims) }
}

/// Sum of the squares, each times `share`, in 16 lanes on every machine.
#[inline(always)]
fn sum_of_squares(
    row: RowMut<'_, impl Vector>,
    format: impl Weights,
    span: BlockSpan,
    gradient: &[f32],
    l2: f32,
    share: f32,
) -> f32 {
    let mut sums = [0.0_f32; LANES];
    for (chunk, gradient) in gradient.chunks(LANES).enumerate() {
        let mut weights = Lanes([0.0; LANES]);
        format.load(row, span.first + chunk * LANES, gradient.len(), &mut weights.0);
        for ((sum, &w), &g) in sums.iter_mut().zip(&weights.0).zip(gradient) {
            let g = g + l2 * w;
            *sum += g * g * share;
        }
    }
    sums.iter().sum()
}
