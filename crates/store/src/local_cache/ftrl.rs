//! FTRL on cached rows, vectorized over coordinates: a division and a root for a whole register take as long as for
//! one value. Wide rows are updated 16 coordinates at a time, each with the constants of its block; rows of one
//! coordinate, [w, z, n, root of n], eight rows at a time.
#![allow(unsafe_code)] // vector loads and stores of rows, and code that is compiled for instructions that were detected

use super::{CachedBlock, PARTS};
use crate::RowHandle;
use crate::simd::Width;
use crate::update::kernel::FtrlStep;

/// Rows of one coordinate that are updated together.
pub(super) const LANES: usize = 8;

/// Coordinates of a row that are updated together.
const WIDE: usize = 16;

/// A row of one coordinate.
type One = [f32; PARTS];

/// Updates one-coordinate rows, in the order of the handles. The last [`LANES`] rows are padding.
#[inline]
pub(super) fn update_ones(
    width: Width,
    step: FtrlStep,
    rows: &mut [One],
    handles: &[RowHandle],
    gradients: &[f32],
) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if matches!(width, Width::Eight | Width::Sixteen) && handles.len() > 2 {
        // SAFETY: both widths imply AVX2, which was detected.
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

/// The constants of [`WIDE`] consecutive coordinates, which may belong to several blocks.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Constants {
    alpha_inverse: [f32; WIDE],
    beta: [f32; WIDE],
    l1: [f32; WIDE],
    l2: [f32; WIDE],
}

impl Constants {
    /// The constants of one coordinate.
    fn of(&self, lane: usize) -> FtrlStep {
        let Constants { alpha_inverse, beta, l1, l2 } = self;
        FtrlStep { alpha_inverse: alpha_inverse[lane], beta: beta[lane], l1: l1[lane], l2: l2[lane] }
    }

    /// The constants of all coordinates of a row.
    pub(super) fn of_row(blocks: &[CachedBlock], dim: usize) -> Vec<Constants> {
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

/// Updates rows of `dim` coordinates, [`PARTS`] values each, in the order of the handles.
#[inline]
pub(super) fn update_rows(
    width: Width,
    (blocks, constants): (&[CachedBlock], &[Constants]),
    dim: usize,
    rows: &mut [f32],
    handles: &[RowHandle],
    gradients: &[f32],
) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    match width {
        // SAFETY: the width implies these instructions, which were detected.
        Width::Sixteen => return unsafe { x86::update_rows_16(constants, dim, rows, handles, gradients) },
        // SAFETY: the width implies these instructions, which were detected.
        Width::Eight => return unsafe { x86::update_rows_8(constants, dim, rows, handles, gradients) },
        Width::One | Width::Four => {}
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
    use crate::update::kernel::FtrlStep;

    /// The operations of [`FtrlStep::update_rooted`] in registers of one width, on [w, z, n, root of n] and the
    /// constants [inverse of alpha, beta, l1, l2].
    macro_rules! update {
        ($name:ident, $features:literal, $register:ty, $set:ident, $add:ident, $sub:ident, $mul:ident, $div:ident,
            $sqrt:ident, $min:ident, $and:ident, $andnot:ident, $or:ident, $xor:ident, $beyond:ident) => {
            #[inline]
            #[target_feature(enable = $features)]
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
                let quotient = $div($xor(shrunk, sign), slope);
                [$beyond(quotient, $andnot(sign, z_new), l1), z_new, n_new, root_new]
            }
        };
    }

    update!(
        update_8,
        "avx2,bmi1,bmi2,lzcnt,fma",
        __m256,
        _mm256_set1_ps,
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
        beyond_8
    );
    update!(
        update_16,
        "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,lzcnt,fma",
        __m512,
        _mm512_set1_ps,
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
        beyond_16
    );

    /// The weight, or 0 where the magnitude of z is at most l1.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,fma")]
    fn beyond_8(weight: __m256, size: __m256, l1: __m256) -> __m256 {
        _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LE_OQ>(size, l1), weight)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,lzcnt,fma")]
    fn beyond_16(weight: __m512, size: __m512, l1: __m512) -> __m512 {
        _mm512_mask_mov_ps(weight, _mm512_cmp_ps_mask::<_CMP_LE_OQ>(size, l1), _mm512_setzero_ps())
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,fma")]
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

    /// Returns whether a number occurs twice: compares each number with the four that follow it cyclically.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,fma")]
    fn has_twice(numbers: __m256i) -> bool {
        let halves = _mm256_permute2x128_si256::<0x01>(numbers, numbers);
        let same = |other| _mm256_cmpeq_epi32(numbers, other);
        let one = same(_mm256_alignr_epi8::<4>(halves, numbers));
        let two = same(_mm256_alignr_epi8::<8>(halves, numbers));
        let three = same(_mm256_alignr_epi8::<12>(halves, numbers));
        let any = _mm256_or_si256(_mm256_or_si256(one, two), _mm256_or_si256(three, same(halves)));
        _mm256_testz_si256(any, any) == 0
    }

    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,fma")]
    fn update_eight(
        step: FtrlStep,
        rows: &mut [One],
        handles: &[RowHandle; LANES],
        gradients: &[f32; LANES],
    ) {
        let numbers = handles.map(|handle| handle.0);
        // SAFETY: 32 readable bytes; any alignment is valid.
        let (all, g) =
            unsafe { (_mm256_loadu_si256(numbers.as_ptr().cast()), _mm256_loadu_ps(gradients.as_ptr())) };
        let len = _mm256_set1_epi32(i32::try_from(rows.len()).unwrap_or(i32::MAX));
        let is_beyond = _mm256_cmpeq_epi32(_mm256_max_epu32(all, len), all);
        assert!(_mm256_testz_si256(is_beyond, is_beyond) == 1, "a handle of this run");
        if has_twice(all) {
            return update_each(step, rows, handles, gradients);
        }
        let row = |lane: usize| {
            // SAFETY: all numbers are below the number of rows, which have 16 bytes each.
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
            // SAFETY: same rows as the loads above.
            unsafe {
                _mm_storeu_ps(rows.add(numbers[lane] as usize).cast(), _mm256_castps256_ps128(pair));
                _mm_storeu_ps(rows.add(numbers[lane + 4] as usize).cast(), _mm256_extractf128_ps::<1>(pair));
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,lzcnt,fma")]
    pub(super) fn update_rows_16(
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
            // SAFETY: 16 readable values each; any alignment is valid.
            let constants = [&some.alpha_inverse, &some.beta, &some.l1, &some.l2]
                .map(|values| unsafe { _mm512_loadu_ps(values.as_ptr()) });
            for (handle, gradient) in handles.iter().zip(gradients.chunks_exact(dim)) {
                let row = rows[handle.0 as usize * PARTS * dim..][..PARTS * dim].as_mut_ptr();
                // SAFETY: each part of a row and its gradient has `dim` values, and the mask selects only those
                // from `first` on.
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

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,fma")]
    pub(super) fn update_rows_8(
        constants: &[Constants],
        dim: usize,
        rows: &mut [f32],
        handles: &[RowHandle],
        gradients: &[f32],
    ) {
        assert_eq!(constants.len(), dim.div_ceil(WIDE));
        for first in (0..dim).step_by(LANES) {
            let (some, lane) = (&constants[first / WIDE], first % WIDE);
            let all = handles.iter().zip(gradients.chunks_exact(dim));
            if first + LANES > dim {
                // A masked store would take longer than single updates.
                for (handle, gradient) in all {
                    let row = &mut rows[handle.0 as usize * PARTS * dim..][..PARTS * dim];
                    for at in first..dim {
                        let (z, n, root) = (dim + at, 2 * dim + at, 3 * dim + at);
                        let step = some.of(at % WIDE);
                        (row[at], row[z], row[n], row[root]) =
                            step.update_rooted(row[at], row[z], row[n], row[root], gradient[at]);
                    }
                }
                break;
            }
            let constants = [&some.alpha_inverse, &some.beta, &some.l1, &some.l2];
            // SAFETY: 8 readable values each from `lane` on, which is 0 or 8 of 16; any alignment is valid.
            let constants = constants.map(|values| unsafe { _mm256_loadu_ps(values.as_ptr().add(lane)) });
            for (handle, gradient) in all {
                let row = rows[handle.0 as usize * PARTS * dim..][..PARTS * dim].as_mut_ptr();
                // SAFETY: each part of a row and its gradient has `dim` values, among them the 8 from `first` on.
                unsafe {
                    let parts = [0, 1, 2, 3].map(|part| row.add(part * dim + first));
                    let old = parts.map(|part| _mm256_loadu_ps(part));
                    let new = update_8(constants, old, _mm256_loadu_ps(gradient.as_ptr().add(first)));
                    for (part, new) in parts.into_iter().zip(new) {
                        _mm256_storeu_ps(part, new);
                    }
                }
            }
        }
    }
}
