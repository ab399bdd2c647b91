//! The optimizers' arithmetic on one block of one row: weights, state and gradient. Knows nothing of tables, keys or
//! locks.
//!
//! All state is `f32`, one value per coordinate and slot, slot after slot: momentum [v], Adagrad [a], Adam and AdamW
//! [m, v], FTRL [z, n]; row-wise Adagrad has one value [a] for the whole block. Blocks are updated sixteen coordinates at
//! a time, by operations that are the same one by one: results do not depend on the machine.

use crate::Optimizer;
use crate::rows::half::{Half, Noise};
use crate::rows::slab::RowMut;
use crate::simd::Vector;
use crate::simd::halves::Singles;

/// The least that is added to the root of a sum of squares that is divided by, where settings may say 0: the sum may be 0,
/// too, as the squares of gradients below 2.6e-23 are. Such gradients are not blown up by this, and all others not changed.
const ADDED_TO_ROOT_MIN: f32 = 1e-23;
/// The same where the root is of a mean, to which a square comes with a factor of .001, say.
const ADDED_TO_MEAN_MIN: f32 = 1e-21;
/// Coordinates that are updated together: a cache line, and a register of AVX-512.
const LANES: usize = 16;

/// Bits of an f32 without its sign, and those of infinity; NaNs are above.
const MAGNITUDE: u32 = 0x7FFF_FFFF;
const INFINITY: u32 = 0x7F80_0000;

/// On a cache line of its own, or storing and loading it as a whole is slow.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Lanes([f32; LANES]);

/// An optimizer, as a row's layout holds it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel(Optimizer);

/// An optimizer with the learning rate of one push multiplied in and what is constant over the push computed.
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

/// The magnitudes of all numbers that an update of a row has computed, as bits, the largest of each lane.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
pub(crate) struct MaxMagnitude([u32; LANES]);

impl MaxMagnitude {
    #[inline(always)]
    fn note(&mut self, lane: usize, value: f32) {
        self.0[lane] = self.0[lane].max(value.to_bits() & MAGNITUDE);
    }

    /// Are all of them numbers?
    #[inline(always)]
    pub(crate) fn is_finite(&self) -> bool {
        self.0.iter().fold(0, |largest, &bits| bits.max(largest)) < INFINITY
    }
}

/// Where a block lies in its row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockSpan {
    /// Number of its first weight.
    pub(crate) first: usize,
    /// Word of its first state value.
    pub(crate) state_at: usize,
    pub(crate) dims: usize,
}

/// How a row's weights are kept. The arithmetic is compiled once for each.
pub(crate) trait Weights: Copy {
    /// Loads `len` weights, at most [`LANES`], and pads them with zeros.
    fn load(self, row: RowMut<'_, impl Vector>, first: usize, len: usize, out: &mut [f32; LANES]);
    /// Stores `len` weights.
    fn store(self, row: RowMut<'_, impl Vector>, first: usize, len: usize, values: &[f32; LANES]);
}

impl Weights for Singles {
    #[inline(always)]
    fn load(self, row: RowMut<'_, impl Vector>, first: usize, len: usize, out: &mut [f32; LANES]) {
        row.load_padded(first, len, out);
    }

    #[inline(always)]
    fn store(self, row: RowMut<'_, impl Vector>, first: usize, len: usize, values: &[f32; LANES]) {
        row.store(first, &values[..len]);
    }
}

/// As halves, rounded by the noise of this update of this row.
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
        match self.0 {
            Optimizer::Sgd { .. } => 0,
            Optimizer::RowAdagrad { .. } => 1,
            Optimizer::Momentum { .. } | Optimizer::Adagrad { .. } => dims,
            Optimizer::Adam { .. } | Optimizer::AdamW { .. } | Optimizer::Ftrl { .. } => {
                dims.saturating_mul(2)
            }
        }
    }

    /// Is a block of so many coordinates computed at once, and stored after that?
    pub(crate) fn is_one_piece(self, dims: usize) -> bool {
        dims <= LANES && !matches!(self.0, Optimizer::RowAdagrad { .. })
    }

    /// Which state values of a block of `dims` coordinates are sums or means of squares, whose root is taken: never below 0.
    pub(crate) fn squares(self, dims: usize) -> std::ops::Range<usize> {
        match self.0 {
            Optimizer::Sgd { .. } | Optimizer::Momentum { .. } => 0..0,
            Optimizer::RowAdagrad { .. } => 0..1,
            Optimizer::Adagrad { .. } => 0..dims,
            Optimizer::Adam { .. } | Optimizer::AdamW { .. } | Optimizer::Ftrl { .. } => dims..2 * dims,
        }
    }

    /// State of a row that has just been created with these weights.
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
                // The inverse of the closed form at n = 0, so that it yields the first weight.
                let slope = beta / alpha + l2;
                for (z, &w) in z.iter_mut().zip(weights) {
                    *z = if w == 0.0 { 0.0 } else { -(w * slope + l1.copysign(w)) };
                }
            }
        }
    }

    /// Is the learning rate finite with this factor, which is?
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
                // No schedule: the rate is in the weight itself (w follows from z, n and alpha), and a smaller alpha
                // would shrink what was learned. FTRL lowers its rate per coordinate by itself.
                OptimizerStep::Ftrl(FtrlStep { alpha_inverse: 1.0 / alpha, beta, l1, l2 })
            }
        }
    }
}

impl FtrlStep {
    /// One coordinate: new (w, z, n). `sigma * w` uses the weight that the gradient was taken at, as in the paper.
    #[inline(always)]
    pub(crate) fn update(self, w: f32, z: f32, n: f32, g: f32) -> (f32, f32, f32) {
        let (w, z, n, _) = self.update_rooted(w, z, n, n.sqrt(), g);
        (w, z, n)
    }

    /// The same for who keeps the root of n beside it: new (w, z, n, root of n).
    #[inline(always)]
    pub(crate) fn update_rooted(self, w: f32, z: f32, n: f32, root: f32, g: f32) -> (f32, f32, f32, f32) {
        let n_new = finite(n + g * g);
        let root_new = n_new.sqrt();
        let sigma = (root_new - root) * self.alpha_inverse;
        let z_new = z + (g - sigma * w);
        (self.weight(z_new, root_new), z_new, n_new, root_new)
    }

    /// The weight that follows from z and the root of n.
    #[inline(always)]
    pub(crate) fn weight(self, z: f32, root: f32) -> f32 {
        let shrunk = z - self.l1.copysign(z);
        let slope = (self.beta + root) * self.alpha_inverse + self.l2;
        if z.abs() <= self.l1 { 0.0 } else { -shrunk / slope }
    }
}

/// A sum of squares that has become too large stays the largest there is: an infinite one is a state that no import takes.
#[inline(always)]
pub(crate) fn finite(sum: f32) -> f32 {
    // Not `f32::min`, which looks for NaN as well.
    if sum < f32::MAX { sum } else { f32::MAX }
}

impl OptimizerStep {
    /// Updates one block of a row. `version` is the row's number of updates, this one included; `gradient` has one value
    /// per coordinate. Nothing of a block of at most [`LANES`] coordinates is stored whose result is not finite; of a larger one,
    /// all of it is, and `largest` says so.
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
                // It is finite, and where a small block was not stored, this is put back like all of a larger one.
                row.set(span.state_at, a.to_bits());
            }
            OptimizerStep::Adam { lr, beta1, beta2, eps, l2, keep } => {
                // In f64: 1 - beta2 loses half of an f32's digits.
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

/// Applies a rule to every coordinate of a block: weight, state of each slot, gradient -> new weight and state.
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

/// The same for `len` coordinates, which lanes beyond do not disturb: they compute on zeros and are not stored.
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
        row.load_padded(span.state_at + slot * span.dims + first, len, &mut values.0);
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
    // Readers of one weight look at no version.
    if span.dims <= LANES && !largest.is_finite() {
        return;
    }
    format.store(row, span.first + first, len, &weights.0);
    for (slot, values) in state.iter().enumerate() {
        row.store(span.state_at + slot * span.dims + first, &values.0[..len]);
    }
}

/// Mean square of a block's gradient with weight decay.
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
    // A sum may be too large where the mean is not.
    if sum.is_finite() { sum / dims } else { sum_of_squares(row, weights, span, gradient, l2, 1.0 / dims) }
}

/// Sum of the squares, each times `share`, in sixteen lanes whatever the machine.
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
