//! FTRL on copies of rows, eight coordinates at a time: a division and a root for all of them take as long as for one.
//! Rows of one coordinate, [w, z, n, root of n], are taken eight together. Knows nothing of where rows come from.
#![allow(unsafe_code)] // vector loads and stores of rows, and code that is compiled for instructions that were detected

use super::{NearBlock, PARTS};
use crate::RowHandle;
use crate::kernel::FtrlStep;
use crate::words::Width;

/// Coordinates that are updated together.
pub(super) const LANES: usize = 8;

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

/// Updates rows of `dim` coordinates, [`PARTS`] values each, by a gradient per handle, in their order.
#[inline]
pub(super) fn update_rows(
    width: Width,
    blocks: &[NearBlock],
    dim: usize,
    rows: &mut [f32],
    handles: &[RowHandle],
    gradients: &[f32],
) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if width == Width::Sixteen {
        // SAFETY: detected; it stands for the others.
        return unsafe { x86::update_rows(blocks, dim, rows, handles, gradients) };
    }
    let _ = width;
    for (handle, gradient) in handles.iter().zip(gradients.chunks_exact(dim)) {
        let row = &mut rows[handle.0 as usize * PARTS * dim..][..PARTS * dim];
        for block in blocks {
            update_coordinates(block.step, row, dim, block.first..block.first + block.dims, gradient);
        }
    }
}

/// Some coordinates of one row, one by one.
#[inline(always)]
fn update_coordinates(
    step: FtrlStep,
    row: &mut [f32],
    dim: usize,
    coordinates: std::ops::Range<usize>,
    gradient: &[f32],
) {
    for at in coordinates {
        let (z, n, root) = (dim + at, 2 * dim + at, 3 * dim + at);
        (row[at], row[z], row[n], row[root]) =
            step.update_rooted(row[at], row[z], row[n], row[root], gradient[at]);
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LANES, NearBlock, One, PARTS, update_coordinates, update_each};
    use crate::RowHandle;
    use crate::kernel::FtrlStep;

    /// The operations of [`FtrlStep::update_rooted`], one by one: w, z, n and the root of n.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,lzcnt,fma")]
    fn update(step: FtrlStep, [w, z, n, root]: [__m256; PARTS], g: __m256) -> [__m256; PARTS] {
        let (alpha_inverse, sign) = (_mm256_set1_ps(step.alpha_inverse), _mm256_set1_ps(-0.0));
        let (l1, l2) = (_mm256_set1_ps(step.l1), _mm256_set1_ps(step.l2));
        let n_new = _mm256_add_ps(n, _mm256_mul_ps(g, g));
        let root_new = _mm256_sqrt_ps(n_new);
        let sigma = _mm256_mul_ps(_mm256_sub_ps(root_new, root), alpha_inverse);
        let z_new = _mm256_add_ps(z, _mm256_sub_ps(g, _mm256_mul_ps(sigma, w)));
        let shrunk = _mm256_sub_ps(z_new, _mm256_or_ps(_mm256_and_ps(z_new, sign), l1));
        let slope = _mm256_add_ps(_mm256_set1_ps(step.beta), root_new);
        let slope = _mm256_add_ps(_mm256_mul_ps(slope, alpha_inverse), l2);
        let is_zero = _mm256_cmp_ps_mask::<_CMP_LE_OQ>(_mm256_andnot_ps(sign, z_new), l1);
        let quotient = _mm256_div_ps(_mm256_xor_ps(shrunk, sign), slope);
        let w_new = _mm256_mask_mov_ps(quotient, is_zero, _mm256_setzero_ps());
        [w_new, z_new, n_new, root_new]
    }

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
        let [w, z, n, root] = update(step, [w, z, n, root], g);
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
        blocks: &[NearBlock],
        dim: usize,
        rows: &mut [f32],
        handles: &[RowHandle],
        gradients: &[f32],
    ) {
        for (handle, gradient) in handles.iter().zip(gradients.chunks_exact(dim)) {
            let row = &mut rows[handle.0 as usize * PARTS * dim..][..PARTS * dim];
            for block in blocks {
                let (mut at, end) = (block.first, block.first + block.dims);
                assert!(end <= dim);
                while at + LANES <= end {
                    let start = row.as_mut_ptr();
                    // SAFETY: the parts of a row have `dim` values each, and eight from `at` on are among them.
                    unsafe {
                        let parts = [0, 1, 2, 3].map(|part| start.add(part * dim + at));
                        let old = parts.map(|part| _mm256_loadu_ps(part));
                        let new = update(block.step, old, _mm256_loadu_ps(gradient.as_ptr().add(at)));
                        for (part, new) in parts.into_iter().zip(new) {
                            _mm256_storeu_ps(part, new);
                        }
                    }
                    at += LANES;
                }
                update_coordinates(block.step, row, dim, at..end, gradient);
            }
        }
    }
}
