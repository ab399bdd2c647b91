//! Vector copies between rows, whose words are atomics, and slices of `f32`.
//!
//! Every word is loaded or stored on its own, relaxed. Compilers do not merge such accesses into vectors, so hot
//! ones are written in assembly, which moves 16 (AVX-512), 8 (AVX2) or 4 (SSE) words at once; aligned words never
//! tear. Version checks around a copy make it consistent.
#![allow(unsafe_code)] // inline assembly

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::sync::{self, AtomicU64};

/// [`load_padded`] pads to a multiple of this.
pub(crate) const PAD: usize = 16;

/// The number of words that an instruction moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    /// Word by word, the reference of the others.
    #[cfg_attr(all(target_arch = "x86_64", not(miri), not(scalar)), allow(dead_code))]
    // The tests compare with it.
    One,
    /// SSE, which every `x86_64` has.
    #[cfg_attr(not(all(target_arch = "x86_64", not(miri), not(scalar))), allow(dead_code))]
    Four,
    /// AVX2 and F16C. Only for work inside [`run`], which clears the registers afterwards so that other code does
    /// not slow down; see [`Width::elsewhere`].
    #[cfg_attr(not(all(target_arch = "x86_64", not(miri))), allow(dead_code))]
    Eight,
    /// AVX-512 (F, BW, DQ, VL).
    #[cfg_attr(not(all(target_arch = "x86_64", not(miri), not(scalar))), allow(dead_code))]
    Sixteen,
}

impl Width {
    /// The widest that this machine supports.
    #[inline(always)]
    pub(crate) fn detect() -> Width {
        #[cfg(all(target_arch = "x86_64", not(miri), not(scalar)))]
        {
            use std::arch::is_x86_feature_detected as has;
            let scalar = has!("bmi1") && has!("bmi2") && has!("lzcnt");
            let eight = scalar && has!("avx2") && has!("fma") && has!("f16c");
            let sixteen = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
            match (eight, sixteen) {
                (true, true) => Width::Sixteen,
                (true, false) => Width::Eight,
                (false, _) => Width::Four,
            }
        }
        // Sanitizers cannot see loads and stores of assembly: `--cfg scalar`.
        #[cfg(not(all(target_arch = "x86_64", not(miri), not(scalar))))]
        Width::One
    }

    /// The width to use outside [`run`].
    #[inline(always)]
    pub(crate) fn elsewhere(self) -> Width {
        if self == Width::Eight { Width::Four } else { self }
    }

    /// All widths that this machine supports.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Width> {
        let mut widths = vec![Width::One, Width::Four, Width::Eight, Width::Sixteen];
        widths.truncate(1 + widths.iter().position(|&width| width == Width::detect()).unwrap_or(0));
        widths
    }
}

/// Moves 16 words with AVX-512.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! move_16 {
    ($from:expr, $to:expr) => {
        // zmm16 and above do not slow down surrounding SSE code.
        std::arch::asm!("vmovups zmm16, [{from}]", "vmovups [{to}], zmm16", from = in(reg) $from, to = in(reg) $to,
            out("xmm16") _, options(nostack, preserves_flags))
    };
}

/// Moves the masked words with AVX-512 and zeros the others: 16 in all. `$load` is the narrowest register with room
/// for the words, because a load waits for every cache line that it could touch.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! move_padded {
    ($load:literal, $from:expr, $to:expr, $mask:expr) => {
        std::arch::asm!("kmovw k1, {mask:e}", concat!("vmovups ", $load, "{{k1}}{{z}}, [{from}]"),
            "vmovups [{to}], zmm16", from = in(reg) $from, to = in(reg) $to, mask = in(reg) $mask,
            out("xmm16") _, out("k1") _, options(nostack, preserves_flags))
    };
}

/// Moves 8 words with AVX2.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! move_8 {
    ($from:expr, $to:expr) => {
        std::arch::asm!("vmovups {x:y}, [{from}]", "vmovups [{to}], {x:y}", from = in(reg) $from, to = in(reg) $to,
            x = out(xmm_reg) _, options(nostack, preserves_flags))
    };
}

/// Moves 4 words: `movups` with SSE, `vmovups` where wider registers may be in use, which `movups` would wait for.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! move_4 {
    ($move:literal, $from:expr, $to:expr) => {
        std::arch::asm!(concat!($move, " {x}, [{from}]"), concat!($move, " [{to}], {x}"), from = in(reg) $from,
            to = in(reg) $to, x = out(xmm_reg) _, options(nostack, preserves_flags))
    };
}

// After the macros that it uses.
pub(crate) mod halves;

/// A vector width, known at run time or, within [`run`], at compile time.
pub(crate) trait Vector: Copy {
    fn width(self) -> Width;
}

impl Vector for Width {
    #[inline(always)]
    fn width(self) -> Width {
        self
    }
}

/// [`Width::Eight`].
#[derive(Debug, Clone, Copy)]
#[cfg(all(target_arch = "x86_64", not(miri)))]
struct Avx2;

#[cfg(all(target_arch = "x86_64", not(miri)))]
impl Vector for Avx2 {
    #[inline(always)]
    fn width(self) -> Width {
        Width::Eight
    }
}

/// [`Width::Sixteen`].
#[derive(Debug, Clone, Copy)]
#[cfg(all(target_arch = "x86_64", not(miri)))]
struct Avx512;

#[cfg(all(target_arch = "x86_64", not(miri)))]
impl Vector for Avx512 {
    #[inline(always)]
    fn width(self) -> Width {
        Width::Sixteen
    }
}

/// Work compiled for the widest registers. Only inlined code is, so `run` and its callees should be
/// `#[inline(always)]`.
pub(crate) trait Work {
    type Output;
    fn run(self, vector: impl Vector) -> Self::Output;
}

/// Runs the work, with AVX-512 or AVX2 if the width says so.
#[inline(always)]
pub(crate) fn run<W: Work>(width: Width, work: W) -> W::Output {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if width == Width::Sixteen {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,lzcnt,fma")]
        fn run_wide<W: Work>(work: W) -> W::Output {
            work.run(Avx512)
        }
        // SAFETY: `Width::Sixteen` exists only where these instructions were detected.
        return unsafe { run_wide(work) };
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if width == Width::Eight {
        #[target_feature(enable = "avx2,f16c,bmi1,bmi2,lzcnt,fma")]
        fn run_eight<W: Work>(work: W) -> W::Output {
            let output = work.run(Avx2);
            std::arch::x86_64::_mm256_zeroupper();
            output
        }
        // SAFETY: `Width::Eight` exists only where these instructions were detected.
        return unsafe { run_eight(work) };
    }
    work.run(width)
}

/// A cache line of five 64-bit and six 32-bit words.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) longs: [AtomicU64; 5],
    pub(crate) shorts: [sync::AtomicU32; 6],
}

/// Compares the 64-bit words with `value`; returns a bit for each equal one.
#[inline(always)]
pub(crate) fn equal(vector: impl Vector, line: &Line, value: &u64) -> u32 {
    let width = vector.width();
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    if width == Width::Sixteen {
        let mask: u32;
        // SAFETY: reads the line and the value; AVX-512 was detected. The assembly is equivalent to relaxed loads.
        unsafe {
            std::arch::asm!("vmovdqu64 zmm16, [{line}]", "vpcmpeqq k1, zmm16, qword ptr [{value}]{{1to8}}",
                "kmovw {mask:e}, k1", line = in(reg) line, value = in(reg) value, mask = out(reg) mask,
                out("xmm16") _, out("k1") _, options(nostack, preserves_flags, readonly));
        }
        return mask & 31;
    }
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    if width == Width::Eight {
        let mask: u32;
        // Keeps 32 bits of each 64-bit result, so that four results fit into one register. SAFETY: reads the line
        // and the value; AVX2 was detected. The assembly is equivalent to relaxed loads.
        unsafe {
            std::arch::asm!("vpbroadcastq {a:y}, [{value}]", "vpcmpeqq {b}, {a}, [{line} + 16]",
                "vpcmpeqq {a}, {a}, [{line}]", "vpackssdw {a}, {a}, {b}", "vmovmskps {mask:e}, {a}",
                line = in(reg) line, value = in(reg) value, mask = out(reg) mask,
                a = out(xmm_reg) _, b = out(xmm_reg) _, options(nostack, preserves_flags, readonly));
        }
        return mask | u32::from(line.longs[4].load(Relaxed) == *value) << 4;
    }
    let _ = width;
    let mut mask = 0;
    for (at, word) in line.longs.iter().enumerate() {
        mask |= u32::from(word.load(Relaxed) == *value) << at;
    }
    mask
}

/// Loads `out.len()` words.
#[inline(always)]
pub(crate) fn load(vector: impl Vector, words: &[AtomicU32], out: &mut [f32]) {
    let width = vector.width();
    let len = out.len();
    let words = &words[..len];
    #[allow(unused_mut)]
    let mut at = 0;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let (from, to) = (words.as_ptr(), out.as_mut_ptr());
        if width == Width::Sixteen {
            while at + 16 <= len {
                // SAFETY: 16 words from `at` on lie within both slices, and AVX-512 was detected. The assembly is
                // equivalent to 16 relaxed loads, and 16 plain stores to a mutably borrowed slice.
                unsafe { move_16!(from.add(at), to.add(at)) };
                at += 16;
            }
        }
        if width == Width::Eight {
            while at + 8 <= len {
                // SAFETY: as above, with 8 words and AVX2.
                unsafe { move_8!(from.add(at), to.add(at)) };
                at += 8;
            }
        }
        // Also for the remainder, because masked moves across a cache line are slow.
        if matches!(width, Width::Eight | Width::Sixteen) {
            while at + 4 <= len {
                // SAFETY: as above, with 4 words.
                unsafe { move_4!("vmovups", from.add(at), to.add(at)) };
                at += 4;
            }
        }
        if width == Width::Four {
            while at + 4 <= len {
                // SAFETY: as above, with 4 words and SSE.
                unsafe { move_4!("movups", from.add(at), to.add(at)) };
                at += 4;
            }
        }
    }
    let _ = width;
    for (out, word) in out[at..].iter_mut().zip(&words[at..]) {
        *out = f32::from_bits(word.load(Relaxed));
    }
}

/// Loads `words` and pads them with zeros to the next multiple of [`PAD`], the length of `out`. Each 16 values are
/// stored at once, so that the next load of them does not stall.
#[inline(always)]
pub(crate) fn load_padded(vector: impl Vector, words: &[AtomicU32], out: &mut [f32]) {
    let width = vector.width();
    let len = words.len();
    assert!(out.len() == len.next_multiple_of(PAD));
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if width == Width::Sixteen {
        let whole = len / PAD * PAD;
        load(width, &words[..whole], &mut out[..whole]);
        if whole < len {
            // SAFETY: the remaining words lie in `words`, and 16 in `out`, whose length was checked. AVX-512 was
            // detected.
            unsafe { move_rest(words[whole..].as_ptr().cast(), len - whole, out[whole..].as_mut_ptr()) };
        }
        return;
    }
    load(width, words, &mut out[..len]);
    out[len..].fill(0.0);
}

/// Pads a plain slice of at most [`PAD`] values like [`load_padded`].
#[inline(always)]
pub(crate) fn pad(vector: impl Vector, values: &[f32], out: &mut [f32; PAD]) {
    let (width, len) = (vector.width(), values.len());
    assert!(len <= PAD);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if width == Width::Sixteen {
        // SAFETY: `len` values lie in `values`, and 16 in `out`. AVX-512 was detected.
        return unsafe { move_rest(values.as_ptr(), len, out.as_mut_ptr()) };
    }
    let _ = width;
    out[..len].copy_from_slice(values);
    out[len..].fill(0.0);
}

/// Moves `len` words, at most 16, and zeros after them: 16 in all.
///
/// # Safety
///
/// `from` has `len` words, which other threads may store to. `to` has 16 words, which only the caller accesses. The
/// machine has AVX-512.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn move_rest(from: *const f32, len: usize, to: *mut f32) {
    let mask = (1_u32 << len) - 1;
    // SAFETY: the masked words lie in `from`, and all stored ones in `to`. The assembly is equivalent to `len`
    // relaxed loads and 16 plain stores.
    unsafe {
        match len {
            0..=4 => move_padded!("xmm16", from, to, mask),
            5..=8 => move_padded!("ymm16", from, to, mask),
            _ => move_padded!("zmm16", from, to, mask),
        }
    }
}

/// Stores all of `values`.
#[inline(always)]
pub(crate) fn store(vector: impl Vector, words: &[AtomicU32], values: &[f32]) {
    let width = vector.width();
    let len = values.len();
    let words = &words[..len];
    #[allow(unused_mut)]
    let mut at = 0;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let (from, to) = (values.as_ptr(), words.as_ptr());
        if width == Width::Sixteen {
            while at + 16 <= len {
                // SAFETY: 16 words from `at` on lie within both slices, and AVX-512 was detected. The assembly is
                // equivalent to 16 plain loads and 16 relaxed stores to atomics, which allow stores through shared
                // references.
                unsafe { move_16!(from.add(at), to.add(at)) };
                at += 16;
            }
        }
        if width == Width::Eight {
            while at + 8 <= len {
                // SAFETY: as above, with 8 words and AVX2.
                unsafe { move_8!(from.add(at), to.add(at)) };
                at += 8;
            }
        }
        // Also for the remainder, because masked moves across a cache line are slow.
        if matches!(width, Width::Eight | Width::Sixteen) {
            while at + 4 <= len {
                // SAFETY: as above, with 4 words.
                unsafe { move_4!("vmovups", from.add(at), to.add(at)) };
                at += 4;
            }
        }
        if width == Width::Four {
            while at + 4 <= len {
                // SAFETY: as above, with 4 words and SSE.
                unsafe { move_4!("movups", from.add(at), to.add(at)) };
                at += 4;
            }
        }
    }
    let _ = width;
    for (&value, word) in values[at..].iter().zip(&words[at..]) {
        word.store(value.to_bits(), Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_width_compares_five_words() {
        let longs = [7, 1 << 63, 7, 0, u64::MAX].map(AtomicU64::new);
        let line = Line { longs, shorts: [7, 0, 7, 0, 7, 0].map(AtomicU32::new) };
        for width in Width::all() {
            let found = [7, 1 << 63, 0, u64::MAX, 8].map(|value| equal(width, &line, &value));
            assert_eq!(found, [0b101, 0b10, 0b1000, 0b1_0000, 0]);
        }
    }

    #[test]
    fn every_width_copies_every_length_and_nothing_beyond() {
        for width in Width::all() {
            for len in 0..70 {
                let values: Vec<f32> = (0..len).map(|at| f32::from_bits(0x7FA0_0001 + at as u32)).collect();
                let words: Vec<AtomicU32> = (0..len + 2).map(|_| AtomicU32::new(9)).collect();
                store(width, &words[1..], &values);
                let mut out = vec![0.0; len + 2];
                load(width, &words[1..], &mut out[1..=len]);
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&out[1..=len]), bits(&values), "{width:?} {len}");
                assert_eq!((out[0], out[len + 1]), (0.0, 0.0));
                let mut padded = vec![5.0; len.next_multiple_of(PAD)];
                load_padded(width, &words[1..=len], &mut padded);
                assert_eq!(bits(&padded[..len]), bits(&values), "{width:?} {len}");
                assert!(padded[len..].iter().all(|&pad| pad == 0.0));
                if len <= PAD {
                    let mut lanes = [5.0; PAD];
                    pad(width, &values, &mut lanes);
                    assert_eq!(bits(&lanes[..len]), bits(&values), "{width:?} {len}");
                    assert!(lanes[len..].iter().all(|&pad| pad == 0.0));
                }
                assert_eq!((words[0].load(Relaxed), words[len + 1].load(Relaxed)), (9, 9));
            }
        }
    }
}
