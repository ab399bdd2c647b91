//! Copies between packed halves in a row, whose words are atomics, and plain slices. Knows nothing of rows, and what a half
//! means only through `half.rs`.
//!
//! Halves lie two to a word, the first in its lower bits. They are widened in registers on their way out, by F16C or
//! AVX-512 where there is one of them.
#![allow(unsafe_code)] // inline assembly

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use super::{PAD, Vector, Width, load, load_padded};
use crate::rows::half::Half;

/// Instructions that widen halves on their way from memory to a register.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! widen {
    (F16, $to:expr) => {
        concat!("vcvtph2ps ", $to, ", [{from}]")
    };
    (Bf16, $to:expr) => {
        concat!("vpmovzxwd ", $to, ", [{from}]\nvpslld ", $to, ", ", $to, ", 16")
    };
}

/// Moves as many halves as fit into a register of f32: of AVX2, x or y, or by its name, one of AVX-512.
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
        // zmm16 and above do not slow down the SSE code around.
        std::arch::asm!(widen!($half, $register), concat!("vmovups [{to}], ", $register), from = in(reg) $from,
            to = in(reg) $to, out("xmm16") _, options(nostack, preserves_flags))
    };
}

/// As [`move_padded`] for halves. `$load` is the narrowest register that has room for them.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! move_halves_padded {
    ($load:literal, $widen:literal, $from:expr, $to:expr, $mask:expr) => {
        std::arch::asm!("kmovw k1, {mask:e}", concat!("vmovdqu16 ", $load, "{{k1}}{{z}}, [{from}]"), $widen,
            "vmovups [{to}], zmm16", from = in(reg) $from, to = in(reg) $to, mask = in(reg) $mask,
            out("xmm16") _, out("k1") _, options(nostack, preserves_flags))
    };
}

/// How the words of a row's weights are to be read. Loops over rows are compiled once for each.
pub(crate) trait Format: Copy {
    /// Loads the first weights of a row, `out.len()` of them, as f32.
    fn load(self, vector: impl Vector, words: &[AtomicU32], out: &mut [f32]);
    /// The same for `len` weights, padded as by [`load_padded`].
    fn load_padded(self, vector: impl Vector, words: &[AtomicU32], len: usize, out: &mut [f32]);
    /// The only weight of a row of one.
    fn one(self, word: u32) -> f32;
    /// `None` for f32.
    fn half(self) -> Option<Half>;
}

/// A word is an f32.
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

/// One half.
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
        // SAFETY: half number `first` lies in `words` or directly behind.
        let (from, to) = unsafe { (words.as_ptr().cast::<u16>().add(first), out.as_mut_ptr()) };
        macro_rules! move_while_left {
            ($count:literal, $half:tt, $register:tt) => {
                while at + $count <= len {
                    // SAFETY: that many halves from `at` on lie within `words`, that many values within `out`, and the
                    // instructions were detected. The assembly stands for relaxed loads of the words around, and plain
                    // stores to a slice that is borrowed mutably.
                    unsafe { move_halves!($half, $register, from.add(at), to.add(at)) };
                    at += $count;
                }
            };
        }
        // What is left, in narrower ones: masked moves that cross a cache line are slow.
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

/// Loads `len` halves from number `first` on, and zeros after them, as [`load_padded`] does.
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
            // SAFETY: the `len - whole` halves that the mask selects lie in `words`, whose length was checked; all 16
            // values that are stored lie in `out`, whose length was, too. AVX-512 was detected.
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

/// Stores all of `halves`, from number `first` on. At the ends a word may hold another half, which stays: nobody else
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
        // Until they are on the boundary of a word.
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
            // A pair lies in memory as the word that it makes.
            // SAFETY: 4 pairs and 4 words from `at` on lie within both slices, and AVX2 was detected. The assembly stands
            // for plain loads and 4 relaxed stores to atomics, which allow stores behind shared references.
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

    /// Every half, by the instructions of every width, is what the plain code says.
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
                    // Which NaN does not matter.
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
