//! FTRL on copies of rows, many coordinates at a time: a division and a root for all of them take as long as for one.
//! Of a row sixteen are taken together, each with its own block's constants; rows of one coordinate, [w, z, n, root of n],
//! are taken eight together. Knows nothing of where rows come from.
#![allow(unsafe_code)] // vector loads and stores of rows, and code that is compiled for instructions that were detected

use super::{NearBlock, PARTS};
use crate::RowHandle;
use crate::kernel::FtrlStep;
use crate::words::Width;

/// Rows of one coordinate that are updated together.
pub(super) const LANES: usize = 8;

/// Coordinates of a row that are updated together.
const WIDE: usize = 16;

/// A row of one coordinate.
type One = [f32; PARTS];

/// Updates the rows of one coordinate of every handle by its gradient, in their order. The last [`LANES`] rows are
/// nobody's.
#[inline]
pub(super) fn update_ones(
    width: Width,
    step: FtrlStep,
    rows: &mut [One],
    handles: &[RowHandle],
    gradients: &[f32],
) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if width == Width::Sixteen && handles.len() > 2 && std::arch::is_x86_feature_detected!("avx512cd") {
        // SAFETY: both were detected; the first stands for the others.
        return unsafe { x86::update_ones(step, rows, handles, gradients) };
    }
    let _ = width;
    update_each(step, rows, handles, gradients);
}

#[inline(always)]
fn update_each(step: FtrlStep, rows: &mut [One], handles: &[RowHandle], gradients: &[f32]) {
    for (handle, &g) in handles.iter().zip(gradients) {
        let row = &mut rows[handle.0 as usize];
        let [w, z, n, root] = *row;
        *row = step.update_rooted(w, z, n, root, g).into();
    }
}

/// The constants of [`WIDE`] coordinates of a row that follow one another, which may be of several blocks.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Constants {
    alpha_inverse: [f32; WIDE],
    beta: [f32; WIDE],
    l1: [f32; WIDE],
    l2: [f32; WIDE],
}

impl Constants {
    /// Those of all coordinates.
    pub(super) fn of_row(blocks: &[NearBlock], dim: usize) -> Vec<Constants> {
        let mut all = vec![Constants::default(); dim.div_ceil(WIDE)];
        for block in blocks {
            let FtrlStep { alpha_inverse, beta, l1, l2 } = block.step;
            for at in block.first..block.first + block.dims {
                let (some, lane) = (&mut all[at / WIDE], at % WIDE);
                some.alpha_inverse[lane] = alpha_inverse;
                some.beta[lane] = beta;
                some.l1[lane] = l1;
                some.l2[lane] = l2;
            }
        }
        all
    }
}

/// Updates rows of `dim` coordinates, [`PARTS`] values each, by a gradient per handle, in their order.
#[inline]
pub(super) fn update_rows(
    width: Width,
    (blocks, constants): (&[NearBlock], &[Constants]),
    dim: usize,
    rows: &mut [f32],
    handles: &[RowHandle],
    gradients: &[f32],
) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if width == Width::Sixteen {
        // SAFETY: detected; it stands for the others.
        return unsafe { x86::update_rows(constants, dim, rows, handles, gradients) };
    }
    let _ = (width, constants);
    for (handle, gradient) in handles.iter().zip(gradients.chunks_exact(dim)) {
        let row = &mut rows[handle.0 as usize * PARTS * dim..][..PARTS * dim];
        for block in blocks {
            for at in block.first..block.first + block.dims {
                let (z, n, root) = (dim + at, 2 * dim + at, 3 * dim + at);
                (row[at], row[z], row[n], row[root]) =
                    block.step.update_rooted(row[at], row[z], row[n], row[root], gradient[at]);
            }
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Constants, LANES, One, PARTS, WIDE, update_each};
    use crate::RowHandle;
    use crate::kernel::FtrlStep;

    /// The operations of [`FtrlStep::update_rooted`], one by one, on [w, z, n, root of n] with the constants [inverse of
    /// alpha, beta, l1, l2], in registers of one width.
    macro_rules! update {
        ($name:ident, $register:ty, $set:ident, $zero:ident, $add:ident, $sub:ident, $mul:ident, $div:ident, $sqrt:ident,
            $min:ident, $and:ident, $andnot:ident, $or:ident, $xor:ident, $cmp:ident, $mask_mov:ident) => {
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,lzcnt,fma")]
            fn $name(
                [alpha_inverse, beta, l1, l2]: [$register; 4],
                [w, z, n, root]: [$register; PARTS],
                g: $register,
            ) -> [$register; PARTS] {
                let sign = $set(-0.0);
                let n_new = $min($add(n, $mul(g, g)), $set(f32::MAX));
                let root_new = $sqrt(n_new);
                let sigma = $mul($sub(root_new, root), alpha_inverse);
                let z_new = $add(z, $sub(g, $mul(sigma, w)));
                let shrunk = $sub(z_new, $or($and(z_new, sign), l1));
                let slope = $add($mul($add(beta, root_new), alpha_inverse), l2);
                let is_zero = $cmp::<_CMP_LE_OQ>($andnot(sign, z_new), l1);
                let quotient = $div($xor(shrunk, sign), slope);
                [$mask_mov(quotient, is_zero, $zero()), z_new, n_new, root_new]
            }
        };
    }

    update!(
        update_8,
        __m256,
        _mm256_set1_ps,
        _mm256_setzero_ps,
        _mm256_add_ps,
        _mm256_sub_ps,
        _mm256_mul_ps,
        _mm256_div_ps,
        _mm256_sqrt_ps,
        _mm256_min_ps,
        _mm256_and_ps,
        _mm256_andnot_ps,
        _mm256_or_ps,
        _mm256_xor_ps,
        _mm256_cmp_ps_mask,
        _mm256_mask_mov_ps
    );
    update!(
        update_16,
        __m512,
        _mm512_set1_ps,
        _mm512_setzero_ps,
        _mm512_add_ps,
        _mm512_sub_ps,
        _mm512_mul_ps,
        _mm512_div_ps,
        _mm512_sqrt_ps,
        _mm512_min_ps,
        _mm512_and_ps,
        _mm512_andnot_ps,
        _mm512_or_ps,
        _mm512_xor_ps,
        _mm512_cmp_ps_mask,
        _mm512_mask_mov_ps
    );

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,bmi1,bmi2,lzcnt,fma")]
    pub(super) fn update_ones(step: FtrlStep, rows: &mut [One], handles: &[RowHandle], gradients: &[f32]) {
        let (whole, rest) = handles.as_chunks::<LANES>();
        let (whole_gradients, rest_gradients) = gradients.as_chunks::<LANES>();
        for (handles, gradients) in whole.iter().zip(whole_gradients) {
            update_eight(step, rows, handles, gradients);
        }
        if !rest.is_empty() {
            let spare = (rows.len() - LANES) as u32;
            let mut handles: [RowHandle; LANES] = std::array::from_fn(|lane| RowHandle(spare + lane as u32));
            let mut gradients = [0.0; LANES];
            handles[..rest.len()].copy_from_slice(rest);
            gradients[..rest.len()].copy_from_slice(rest_gradients);
            update_eight(step, rows, &handles, &gradients);
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,bmi1,bmi2,lzcnt,fma")]
    fn update_eight(
        step: FtrlStep,
        rows: &mut [One],
        handles: &[RowHandle; LANES],
        gradients: &[f32; LANES],
    ) {
        let numbers = handles.map(|handle| handle.0);
        // SAFETY: 32 readable bytes, any alignment.
        let (all, g) =
            unsafe { (_mm256_loadu_si256(numbers.as_ptr().cast()), _mm256_loadu_ps(gradients.as_ptr())) };
        let len = _mm256_set1_epi32(i32::try_from(rows.len()).unwrap_or(i32::MAX));
        assert!(_mm256_cmpge_epu32_mask(all, len) == 0, "a handle of this run");
        let conflicts = _mm256_conflict_epi32(all);
        if _mm256_test_epi32_mask(conflicts, conflicts) != 0 {
            return update_each(step, rows, handles, gradients);
        }
        let row = |lane: usize| {
            // SAFETY: all numbers are below the number of rows, which are 16 bytes each.
            unsafe { _mm_loadu_ps(rows.as_ptr().add(numbers[lane] as usize).cast()) }
        };
        let pair = |low, high| _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(row(low)), row(high));
        let (a, b, c, d) = (pair(0, 4), pair(1, 5), pair(2, 6), pair(3, 7));
        let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        let w = _mm256_shuffle_ps::<0x44>(ab_low, cd_low);
        let z = _mm256_shuffle_ps::<0xEE>(ab_low, cd_low);
        let n = _mm256_shuffle_ps::<0x44>(ab_high, cd_high);
        let root = _mm256_shuffle_ps::<0xEE>(ab_high, cd_high);
        let constants = [step.alpha_inverse, step.beta, step.l1, step.l2].map(|value| _mm256_set1_ps(value));
        let [w, z, n, root] = update_8(constants, [w, z, n, root], g);
        let (wz_low, wz_high) = (_mm256_unpacklo_ps(w, z), _mm256_unpackhi_ps(w, z));
        let (nr_low, nr_high) = (_mm256_unpacklo_ps(n, root), _mm256_unpackhi_ps(n, root));
        let pairs = [
            _mm256_shuffle_ps::<0x44>(wz_low, nr_low),
            _mm256_shuffle_ps::<0xEE>(wz_low, nr_low),
            _mm256_shuffle_ps::<0x44>(wz_high, nr_high),
            _mm256_shuffle_ps::<0xEE>(wz_high, nr_high),
        ];
        let rows = rows.as_mut_ptr();
        for (lane, pair) in pairs.into_iter().enumerate() {
            // SAFETY: as for the loads.
            unsafe {
                _mm_storeu_ps(rows.add(numbers[lane] as usize).cast(), _mm256_castps256_ps128(pair));
                _mm_storeu_ps(rows.add(numbers[lane + 4] as usize).cast(), _mm256_extractf128_ps::<1>(pair));
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,lzcnt,fma")]
    pub(super) fn update_rows(
        constants: &[Constants],
        dim: usize,
        rows: &mut [f32],
        handles: &[RowHandle],
        gradients: &[f32],
    ) {
        assert_eq!(constants.len(), dim.div_ceil(WIDE));
        for (number, some) in constants.iter().enumerate() {
            let first = number * WIDE;
            let mask = u16::MAX >> (WIDE - (dim - first).min(WIDE));
            // SAFETY: 16 readable values each, any alignment.
            let constants = [&some.alpha_inverse, &some.beta, &some.l1, &some.l2]
                .map(|values| unsafe { _mm512_loadu_ps(values.as_ptr()) });
            for (handle, gradient) in handles.iter().zip(gradients.chunks_exact(dim)) {
                let row = rows[handle.0 as usize * PARTS * dim..][..PARTS * dim].as_mut_ptr();
                // SAFETY: the parts of a row and its gradient have `dim` values each, and those of the mask from `first` on are
                // among them.
                unsafe {
                    let parts = [0, 1, 2, 3].map(|part| row.add(part * dim + first));
                    let old = parts.map(|part| _mm512_maskz_loadu_ps(mask, part));
                    let new =
                        update_16(constants, old, _mm512_maskz_loadu_ps(mask, gradient.as_ptr().add(first)));
                    for (part, new) in parts.into_iter().zip(new) {
                        _mm512_mask_storeu_ps(part, mask, new);
                    }
                }
            }
        }
    }
}
