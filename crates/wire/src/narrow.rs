//! Rows in half precision, for slow links.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

/// Values converted at a time. They stay in the first-level cache.
const CHUNK: usize = 256;

/// Rounds to the nearest IEEE 754 half-precision number. Larger values become 65504, because an infinite weight spoils
/// every sum. NaN stays NaN.
///
/// Panics if the lengths differ.
pub fn narrow(values: &[f32], out: &mut [u16]) {
    assert_eq!(values.len(), out.len());
    let (min, max) = (f16::MIN.to_f32(), f16::MAX.to_f32());
    let mut clamped = [0.0; CHUNK];
    for (values, out) in values.chunks(CHUNK).zip(out.chunks_mut(CHUNK)) {
        let clamped = &mut clamped[..values.len()];
        clamped.iter_mut().zip(values).for_each(|(to, value)| *to = value.clamp(min, max));
        out.reinterpret_cast_mut::<f16>().convert_from_f32_slice(clamped);
    }
}

/// The exact values of half-precision numbers. Panics if the lengths differ.
pub fn widen(values: &[u16], out: &mut [f32]) {
    assert_eq!(values.len(), out.len());
    values.reinterpret_cast::<f16>().convert_to_f32_slice(out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives_and_large_numbers_stay_finite() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let mut wide = vec![0.0; all.len()];
        widen(&all, &mut wide);
        let mut back = vec![0; all.len()];
        narrow(&wide, &mut back);
        for (&from, (&wide, &back)) in all.iter().zip(wide.iter().zip(&back)) {
            let expected = if wide.is_infinite() { from - 1 } else { from };
            assert!(back == expected || wide.is_nan(), "{from:#x}: {wide} became {back:#x}");
        }
        let mut out = [0; 3];
        narrow(&[1e30, -70000.0, 0.1], &mut out);
        let mut wide = [0.0; 3];
        widen(&out, &mut wide);
        assert_eq!(wide, [65504.0, -65504.0, 0.099_975_586]);
    }
}
