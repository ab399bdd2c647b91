//! Vector copies between packed 16-bit weights of a row, whose words are atomics, and plain slices.
//!
//! Two halves lie in a word, the first in the lower bits. Loads widen them in registers, with F16C or AVX-512 where
//! available; `rows/half.rs` defines their values.
#![allow(unsafe_code)] // inline assembly

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use super::{PAD, Vector, Width, load, load_padded};
use crate::rows::half::Half;

/// Instructions that load and widen halves.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! widen {
    (F16, $to:expr) => {
        concat!("vcvtph2ps ", $to, ", [{from}]")
    };
    (Bf16, $to:expr) => {
        concat!("vpmovzxwd ", $to, ", [{from}]\nvpslld ", $to, ", ", $to, ", 16")
    };
}

/// Moves as many halves as fit into a register of f32: `x` or `y` for AVX2, or a register by its name for AVX-512.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! move_halves {
    ($half:tt, x, $from:expr, $to:expr) => {
        move_halves!(@any $half, "{r:x}", $from, $to)
    };
    ($half:tt, y, $from:expr, $to:expr) => {
        move_halves!(@any $half, "{r:y}", $from, $to)
    };
    (@any $half:tt, $register:literal, $from:expr, $to:expr) => {
        std::arch::asm!(widen!($half, $register), concat!("vmovups [{to}], ", $register), from = in(reg) $from,
            to = in(reg) $to, r = out(xmm_reg) _, options(nostack, preserves_flags))
    };
    ($half:tt, $register:literal, $from:expr, $to:expr) => {
        // zmm16 and above do not slow down surrounding SSE code.
        std::arch::asm!(widen!($half, $register), concat!("vmovups [{to}], ", $register), from = in(reg) $from,
            to = in(reg) $to, out("xmm16") _, options(nostack, preserves_flags))
    };
}

/// Moves the masked halves with AVX-512 and zeros the others, like [`move_padded`]. `$load` is the narrowest
/// register with room for them.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! move_halves_padded {
    ($load:literal, $widen:literal, $from:expr, $to:expr, $mask:expr) => {
        std::arch::asm!("kmovw k1, {mask:e}", concat!("vmovdqu16 ", $load, "{{k1}}{{z}}, [{from}]"), $widen,
            "vmovups [{to}], zmm16", from = in(reg) $from, to = in(reg) $to, mask = in(reg) $mask,
            out("xmm16") _, out("k1") _, options(nostack, preserves_flags))
    };
}

/// Storage format of a row's weights. Loops over rows are compiled once per format.
pub(crate) trait Format: Copy {
    /// Loads the first `out.len()` weights of a row as f32.
    fn load(self, vector: impl Vector, words: &[AtomicU32], out: &mut [f32]);
    /// Loads `len` weights, padded like [`load_padded`].
    fn load_padded(self, vector: impl Vector, words: &[AtomicU32], len: usize, out: &mut [f32]);
    /// The only weight of a row of one.
    fn one(self, word: u32) -> f32;
    /// The 16-bit format; `None` for f32.
    fn half(self) -> Option<Half>;
}

/// Weights of f32, one per word.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Singles;

impl Format for Singles {
    #[inline(always)]
    fn load(self, vector: impl Vector, words: &[AtomicU32], out: &mut [f32]) {
        load(vector, words, out);
    }

    #[inline(always)]
    fn load_padded(self, vector: impl Vector, words: &[AtomicU32], len: usize, out: &mut [f32]) {
        load_padded(vector, &words[..len], out);
    }

    #[inline(always)]
    fn one(self, word: u32) -> f32 {
        f32::from_bits(word)
    }

    #[inline(always)]
    fn half(self) -> Option<Half> {
        None
    }
}

impl Format for Half {
    #[inline(always)]
    fn load(self, vector: impl Vector, words: &[AtomicU32], out: &mut [f32]) {
        load_halves(vector, self, words, 0, out);
    }

    #[inline(always)]
    fn load_padded(self, vector: impl Vector, words: &[AtomicU32], len: usize, out: &mut [f32]) {
        load_halves_padded(vector, self, words, 0, len, out);
    }

    #[inline(always)]
    fn one(self, word: u32) -> f32 {
        self.widen(word as u16)
    }

    #[inline(always)]
    fn half(self) -> Option<Half> {
        Some(self)
    }
}

/// Loads a half.
#[inline(always)]
fn half_at(words: &[AtomicU32], at: usize) -> u16 {
    (words[at / 2].load(Relaxed) >> (at % 2 * 16)) as u16
}

/// Loads `out.len()` halves from number `first` on.
#[inline(always)]
pub(crate) fn load_halves(
    vector: impl Vector,
    half: Half,
    words: &[AtomicU32],
    first: usize,
    out: &mut [f32],
) {
    let width = vector.width();
    let len = out.len();
    let words = &words[..(first + len).div_ceil(2)];
    #[allow(unused_mut)]
    let mut at = 0;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: half number `first` lies in `words` or directly after it.
        let (from, to) = unsafe { (words.as_ptr().cast::<u16>().add(first), out.as_mut_ptr()) };
        macro_rules! move_while_left {
            ($count:literal, $half:tt, $register:tt) => {
                while at + $count <= len {
                    // SAFETY: that many halves from `at` on lie within `words`, and values within `out`; the
                    // instructions were detected. The assembly is equivalent to relaxed loads of the words, and
                    // plain stores to a mutably borrowed slice.
                    unsafe { move_halves!($half, $register, from.add(at), to.add(at)) };
                    at += $count;
                }
            };
        }
        // The remainder with narrower registers, because masked moves across a cache line are slow.
        match (width, half) {
            (Width::Sixteen, Half::F16) => {
                move_while_left!(16, F16, "zmm16");
                move_while_left!(8, F16, "ymm16");
                move_while_left!(4, F16, "xmm16");
            }
            (Width::Sixteen, Half::Bf16) => {
                move_while_left!(16, Bf16, "zmm16");
                move_while_left!(8, Bf16, "ymm16");
                move_while_left!(4, Bf16, "xmm16");
            }
            (Width::Eight, Half::F16) => {
                move_while_left!(8, F16, y);
                move_while_left!(4, F16, x);
            }
            (Width::Eight, Half::Bf16) => {
                move_while_left!(8, Bf16, y);
                move_while_left!(4, Bf16, x);
            }
            (Width::One | Width::Four, _) => {}
        }
    }
    let _ = width;
    for (at, out) in out.iter_mut().enumerate().skip(at) {
        *out = half.widen(half_at(words, first + at));
    }
}

/// Loads `len` halves from number `first` on, padded like [`load_padded`].
#[inline(always)]
pub(crate) fn load_halves_padded(
    vector: impl Vector,
    half: Half,
    words: &[AtomicU32],
    first: usize,
    len: usize,
    out: &mut [f32],
) {
    let width = vector.width();
    assert!(out.len() == len.next_multiple_of(PAD));
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if width == Width::Sixteen {
        let words = &words[..(first + len).div_ceil(2)];
        let whole = len / PAD * PAD;
        load_halves(width, half, words, first, &mut out[..whole]);
        if whole < len {
            let to = &raw mut out[whole];
            let mask = (1_u32 << (len - whole)) - 1;
            // SAFETY: the `len - whole` masked halves lie in `words`, and all 16 stored values in `out`; both
            // lengths were checked. AVX-512 was detected.
            unsafe {
                let from = words.as_ptr().cast::<u16>().add(first + whole);
                match (half, len - whole) {
                    (Half::F16, 0..=8) => {
                        move_halves_padded!("xmm16", "vcvtph2ps zmm16, ymm16", from, to, mask);
                    }
                    (Half::F16, _) => move_halves_padded!("ymm16", "vcvtph2ps zmm16, ymm16", from, to, mask),
                    (Half::Bf16, 0..=8) => {
                        move_halves_padded!(
                            "xmm16",
                            "vpmovzxwd zmm16, ymm16\nvpslld zmm16, zmm16, 16",
                            from,
                            to,
                            mask
                        );
                    }
                    (Half::Bf16, _) => {
                        move_halves_padded!(
                            "ymm16",
                            "vpmovzxwd zmm16, ymm16\nvpslld zmm16, zmm16, 16",
                            from,
                            to,
                            mask
                        );
                    }
                }
            }
        }
        return;
    }
    load_halves(width, half, words, first, &mut out[..len]);
    out[len..].fill(0.0);
}

/// Stores `len` halves from number `first` on. The other half of a word at either end is kept, so no other thread
/// may store to these words meanwhile.
#[inline(always)]
pub(crate) fn store_halves<const N: usize>(
    vector: impl Vector,
    words: &[AtomicU32],
    first: usize,
    len: usize,
    halves: &[u16; N],
) {
    let mut words = words[first / 2..(first + len).div_ceil(2)].iter();
    let mut halves = &halves[..len];
    if first % 2 == 1 {
        // Up to a word boundary.
        if let (Some(word), Some((&half, rest))) = (words.next(), halves.split_first()) {
            word.store(word.load(Relaxed) & 0xFFFF | u32::from(half) << 16, Relaxed);
            halves = rest;
        }
    }
    let words = words.as_slice();
    let (pairs, last) = halves.as_chunks::<2>();
    #[allow(unused_mut)]
    let mut at = 0;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if matches!(vector.width(), Width::Eight | Width::Sixteen) {
        let words = &words[..pairs.len()];
        while at + 4 <= words.len() {
            // A pair has the memory layout of the word that it forms. SAFETY: 4 pairs and 4 words from `at` on lie
            // within both slices, and AVX2 was detected. The assembly is equivalent to plain loads and 4 relaxed
            // stores to atomics, which allow stores through shared references.
            unsafe { move_4!("vmovups", pairs.as_ptr().add(at), words.as_ptr().add(at)) };
            at += 4;
        }
    }
    for (word, [low, high]) in words.iter().zip(pairs).skip(at) {
        word.store(u32::from(*low) | (u32::from(*high) << 16), Relaxed);
    }
    if let (Some(word), [half]) = (words.get(pairs.len()), last) {
        word.store(word.load(Relaxed) & 0xFFFF_0000 | u32::from(*half), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All widths agree with the scalar code for every half.
    #[test]
    fn every_width_widens_every_half() {
        let words: Vec<AtomicU32> =
            (0..1 << 15).map(|at| AtomicU32::new((2 * at) | ((2 * at + 1) << 16))).collect();
        for (width, half) in Width::all().into_iter().flat_map(|w| [(w, Half::F16), (w, Half::Bf16)]) {
            let mut out = vec![0.0; 1 << 16];
            for (number, out) in out.chunks_mut(60).enumerate().step_by(if cfg!(miri) { 99 } else { 1 }) {
                load_halves(width, half, &words, number * 60, out);
                for (bits, out) in (number as u32 * 60..).zip(out) {
                    let expected = half.widen(bits as u16);
                    // Any NaN is right.
                    let same = out.to_bits() == expected.to_bits() || (out.is_nan() && expected.is_nan());
                    assert!(same, "{width:?} {half:?} {bits:04x}: {out}, not {expected}");
                }
            }
        }
    }

    #[test]
    fn every_width_moves_every_run_of_halves_and_nothing_beyond() {
        let halves: [u16; 40] = std::array::from_fn(|at| 0x3C00 + at as u16);
        for (width, half) in Width::all().into_iter().flat_map(|w| [(w, Half::F16), (w, Half::Bf16)]) {
            for (first, len) in (0..5).flat_map(|first| (0..40).map(move |len| (first, len))) {
                let words: Vec<AtomicU32> = (0..24).map(|_| AtomicU32::new(0x4001_4002)).collect();
                store_halves(width, &words, first, len, &halves);
                let expected: Vec<u16> = (0..48)
                    .map(|at| match at {
                        _ if (first..first + len).contains(&at) => halves[at - first],
                        _ if at % 2 == 0 => 0x4002,
                        _ => 0x4001,
                    })
                    .collect();
                let found: Vec<u16> = (0..48).map(|at| half_at(&words, at)).collect();
                assert_eq!(found, expected, "{width:?} {first} {len}");
                let expected: Vec<f32> = halves[..len].iter().map(|&bits| half.widen(bits)).collect();
                let mut out = vec![9.0; len + 2];
                load_halves(width, half, &words, first, &mut out[1..=len]);
                assert_eq!(out[1..=len], expected, "{width:?} {half:?} {first} {len}");
                assert_eq!((out[0], out[len + 1]), (9.0, 9.0));
                let mut padded = vec![9.0; len.next_multiple_of(PAD)];
                load_halves_padded(width, half, &words, first, len, &mut padded);
                assert_eq!(padded[..len], expected, "{width:?} {half:?} {first} {len}");
                assert!(padded[len..].iter().all(|&pad| pad == 0.0));
            }
        }
    }
}
