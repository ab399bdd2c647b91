//! The factors of a factorization machine, several of them side by side: sums over the keys of a sample, and gradients.
//! Every factor is added up for itself, in the order of the keys, so that results do not depend on how many are taken
//! together. Knows nothing of where rows come from.

use super::{LANES, sum};

/// Adds up, per factor, v x and its square over the keys of a sample in one column, whose rows are `[w, v_1 .. v_k]`. The
/// sum of w x.
#[inline(always)]
pub(super) fn add<'a>(
    keys: usize,
    row: impl Fn(usize) -> &'a [f32],
    value: impl Fn(usize) -> f32,
    sums: &mut [f32],
    squares: &mut [f32],
) -> f32 {
    let (sums, sums_rest) = sums.as_chunks_mut::<LANES>();
    let (squares, squares_rest) = squares.as_chunks_mut::<LANES>();
    for (number, (sums, squares)) in sums.iter_mut().zip(squares).enumerate() {
        add_some(keys, 1 + number * LANES, &row, &value, sums, squares);
    }
    let whole = sums.len() * LANES;
    let rest = sums_rest.as_chunks_mut::<1>().0.iter_mut().zip(squares_rest.as_chunks_mut::<1>().0);
    for (number, (sum, square)) in rest.enumerate() {
        add_some(keys, 1 + whole + number, &row, &value, sum, square);
    }
    sum(keys, |at| row(at)[0] * value(at))
}

/// [`pairs`] for `N` factors, from the weight `first` of a row on.
#[inline(always)]
fn add_some<'a, const N: usize>(
    keys: usize,
    first: usize,
    row: &impl Fn(usize) -> &'a [f32],
    value: &impl Fn(usize) -> f32,
    sums: &mut [f32; N],
    squares: &mut [f32; N],
) {
    // In registers while it lasts.
    let (mut all, mut all_squares) = (*sums, *squares);
    for at in 0..keys {
        let (x, factors) = (value(at), &row(at)[first..][..N]);
        for lane in 0..N {
            let vx = factors[lane] * x;
            all[lane] += vx;
            all_squares[lane] += vx * vx;
        }
    }
    (*sums, *squares) = (all, all_squares);
}

/// The sum over all pairs of a sample's keys, for its logit.
#[inline(always)]
pub(super) fn pairs(sums: &[f32], squares: &[f32]) -> f32 {
    0.5 * sum(sums.len(), |factor| sums[factor] * sums[factor] - squares[factor])
}

/// The gradient of a row, from the derivative by its linear weight, its value and the sums over the sample.
#[inline(always)]
pub(super) fn gradient(scale: f32, x: f32, weights: &[f32], sums: &[f32], gradient: &mut [f32]) {
    gradient[0] = scale;
    let (gradient, gradient_rest) = gradient[1..].as_chunks_mut::<LANES>();
    let (weights, weights_rest) = weights[1..].as_chunks::<LANES>();
    let (sums, sums_rest) = sums.as_chunks::<LANES>();
    for ((gradient, weights), sums) in gradient.iter_mut().zip(weights).zip(sums) {
        for lane in 0..LANES {
            gradient[lane] = scale * (sums[lane] - weights[lane] * x);
        }
    }
    for ((g, v), sum) in gradient_rest.iter_mut().zip(weights_rest).zip(sums_rest) {
        *g = scale * (sum - v * x);
    }
}
