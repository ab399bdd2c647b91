//! Positions of the delimiters of a text: 64 bytes at a time with AVX-512 or AVX2 if the machine has them, otherwise
//! byte by byte.
//!
//! The choice is made at run time, so one binary runs fast everywhere. It knows nothing of formats beyond the bytes
//! to mark.

// Vector loads and stores have no safe form; each one accesses memory of a slice or of a reserved vector.
#![allow(unsafe_code)]

/// The instruction set to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// None beyond the baseline.
    Scalar,
    /// AVX2, BMI1, BMI2.
    Avx2,
    /// AVX-512 (F, BW, VL, CD) with byte compression (VBMI2): Ice Lake, Zen 4 and later.
    Avx512,
}

impl Isa {
    /// All sets, from plain to fast.
    pub const ALL: [Isa; 3] = [Isa::Scalar, Isa::Avx2, Isa::Avx512];

    /// The fastest that this machine has.
    #[must_use]
    pub fn detect() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Scalar)
    }

    /// Whether this machine has it.
    #[must_use]
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("popcnt");
            match self {
                Isa::Scalar => true,
                Isa::Avx2 => avx2,
                Isa::Avx512 => {
                    avx2 && is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512vl")
                        && is_x86_feature_detected!("avx512cd")
                        && is_x86_feature_detected!("avx512vbmi2")
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Isa::Scalar
        }
    }
}

/// The bytes to mark.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Marked {
    /// Colons, blanks and everything below a blank.
    Libsvm,
    /// These three.
    Bytes([u8; 3]),
}

impl Marked {
    #[inline(always)]
    fn has(self, byte: u8) -> bool {
        match self {
            Marked::Libsvm => byte <= b' ' || byte == b':',
            Marked::Bytes([a, b, c]) => byte == a || byte == b || byte == c,
        }
    }
}

/// Replaces `marks` with the positions in `text` (shorter than 4 GiB) of the bytes to mark, ascending.
pub(crate) fn find_marks(isa: Isa, text: &[u8], marked: Marked, marks: &mut Vec<u32>) {
    assert!(u32::try_from(text.len()).is_ok(), "blocks are far below 4 GiB");
    marks.clear();
    // Room for every byte, and for a whole last store of the vector forms.
    marks.reserve(text.len() + 64);
    match (isa, marked) {
        // SAFETY: an `Isa` other than `Scalar` is only passed on where `is_available` said so (`Decoder::with_isa`
        // asserts it); room for `text.len() + 64` marks was reserved above.
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512, Marked::Libsvm) => unsafe { x86::marks_avx512::<true>(text, [b':'; 3], marks) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512, Marked::Bytes(bytes)) => unsafe { x86::marks_avx512::<false>(text, bytes, marks) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, Marked::Libsvm) => unsafe { x86::marks_avx2::<true>(text, [b':'; 3], marks) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, Marked::Bytes(bytes)) => unsafe { x86::marks_avx2::<false>(text, bytes, marks) },
        _ => marks_scalar(text, marked, marks),
    }
}

fn marks_scalar(text: &[u8], marked: Marked, marks: &mut Vec<u32>) {
    for (chunk_index, chunk) in text.chunks(64).enumerate() {
        // A store per byte and a conditional step: no branch to predict.
        let mut found = [0; 64];
        let mut count = 0;
        for (at, &byte) in chunk.iter().enumerate() {
            found[count] = (chunk_index * 64 + at) as u32;
            count += usize::from(marked.has(byte));
        }
        marks.extend_from_slice(&found[..count]);
    }
}

/// Counts the line feeds of a text: the lower bound that every text reader is compared with.
#[must_use]
pub fn count_newlines(isa: Isa, text: &[u8]) -> usize {
    assert!(isa.is_available());
    match isa {
        // SAFETY: available, asserted above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { x86::count_avx512(text) },
        // SAFETY: available, asserted above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::count_avx2(text) },
        _ => count_scalar(text),
    }
}

fn count_scalar(text: &[u8]) -> usize {
    text.iter().filter(|&&byte| byte == b'\n').count()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, __m512i, _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_min_epu8, _mm256_movemask_epi8,
        _mm256_or_si256, _mm256_set1_epi8, _mm512_add_epi32, _mm512_castsi512_si128, _mm512_cmpeq_epi8_mask,
        _mm512_cmple_epu8_mask, _mm512_cvtepu8_epi32, _mm512_extracti32x4_epi32, _mm512_loadu_si512,
        _mm512_maskz_compress_epi8, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_storeu_si512,
    };

    /// 0, 1, .. 63.
    const COUNTING: [u8; 64] = {
        let mut bytes = [0; 64];
        let mut at = 0;
        while at < 64 {
            bytes[at] = at as u8;
            at += 1;
        }
        bytes
    };

    /// The 64 bytes from `at` on, with digits (never marked, never line feeds) past the end.
    fn tail(text: &[u8], at: usize) -> [u8; 64] {
        let mut chunk = [b'0'; 64];
        chunk[..text.len() - at].copy_from_slice(&text[at..]);
        chunk
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn load512(chunk: &[u8; 64]) -> __m512i {
        // SAFETY: 64 readable bytes, any alignment.
        unsafe { _mm512_loadu_si512(chunk.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load256(half: &[u8; 32]) -> __m256i {
        // SAFETY: 32 readable bytes, any alignment.
        unsafe { _mm256_loadu_si256(half.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn mask512<const BLANKS: bool>(chunk: &[u8; 64], [a, b, c]: [u8; 3]) -> u64 {
        let chunk = load512(chunk);
        let equal = |byte: u8| _mm512_cmpeq_epi8_mask(chunk, _mm512_set1_epi8(byte as i8));
        if BLANKS {
            _mm512_cmple_epu8_mask(chunk, _mm512_set1_epi8(b' ' as i8)) | equal(a)
        } else {
            equal(a) | equal(b) | equal(c)
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn mask256<const BLANKS: bool>(chunk: &[u8; 64], [a, b, c]: [u8; 3]) -> u64 {
        let mut mask = 0;
        for (half, bytes) in chunk.as_chunks::<32>().0.iter().enumerate() {
            let bytes = load256(bytes);
            let equal = |byte: u8| _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(byte as i8));
            let found = if BLANKS {
                let low = _mm256_min_epu8(bytes, _mm256_set1_epi8(b' ' as i8));
                _mm256_or_si256(_mm256_cmpeq_epi8(low, bytes), equal(a))
            } else {
                _mm256_or_si256(_mm256_or_si256(equal(a), equal(b)), equal(c))
            };
            mask |= u64::from(_mm256_movemask_epi8(found) as u32) << (32 * half);
        }
        mask
    }

    /// # Safety
    /// `marks` has room for `text.len() + 64` more.
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512vbmi2")]
    pub(super) unsafe fn marks_avx512<const BLANKS: bool>(text: &[u8], bytes: [u8; 3], marks: &mut Vec<u32>) {
        debug_assert!(marks.capacity() - marks.len() >= text.len() + 64);
        let counting = load512(&COUNTING);
        let mut end = marks.len();
        let mut chunk_marks = |base: usize, chunk: &[u8; 64]| {
            let mask = mask512::<BLANKS>(chunk, bytes);
            let count = mask.count_ones() as usize;
            // The positions of the set bits, side by side; then 16 at a time as 32-bit numbers.
            let positions = _mm512_maskz_compress_epi8(mask, counting);
            let base = _mm512_set1_epi32(base as i32);
            let mut store = |offset: usize, sixteen| {
                let wide = _mm512_add_epi32(_mm512_cvtepu8_epi32(sixteen), base);
                // SAFETY: marks before this chunk are at most one per byte, and 64 more have room.
                unsafe { _mm512_storeu_si512(marks.as_mut_ptr().add(end + offset).cast(), wide) };
            };
            store(0, _mm512_castsi512_si128(positions));
            if count > 16 {
                store(16, _mm512_extracti32x4_epi32::<1>(positions));
                if count > 32 {
                    store(32, _mm512_extracti32x4_epi32::<2>(positions));
                    store(48, _mm512_extracti32x4_epi32::<3>(positions));
                }
            }
            end += count;
        };
        let (chunks, rest) = text.as_chunks::<64>();
        for (index, chunk) in chunks.iter().enumerate() {
            chunk_marks(index * 64, chunk);
        }
        if !rest.is_empty() {
            let base = text.len() - rest.len();
            chunk_marks(base, &tail(text, base));
        }
        // SAFETY: `end` marks were written, one per marked byte, within the reserved room.
        unsafe { marks.set_len(end) };
    }

    /// # Safety
    /// `marks` has room for `text.len() + 64` more.
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) unsafe fn marks_avx2<const BLANKS: bool>(text: &[u8], bytes: [u8; 3], marks: &mut Vec<u32>) {
        debug_assert!(marks.capacity() - marks.len() >= text.len() + 64);
        let mut end = marks.len();
        let mut chunk_marks = |base: usize, chunk: &[u8; 64]| {
            let mut mask = mask256::<BLANKS>(chunk, bytes);
            let count = mask.count_ones() as usize;
            // Eight at a time whether there are eight or not (simdjson's flatten): one branch per eight marks.
            let mut written = 0;
            while written < count {
                for slot in 0..8 {
                    let position = base as u32 + mask.trailing_zeros();
                    // SAFETY: marks before this chunk are at most one per byte, and 64 more have room.
                    unsafe { marks.as_mut_ptr().add(end + written + slot).write(position) };
                    mask &= mask.wrapping_sub(1);
                }
                written += 8;
            }
            end += count;
        };
        let (chunks, rest) = text.as_chunks::<64>();
        for (index, chunk) in chunks.iter().enumerate() {
            chunk_marks(index * 64, chunk);
        }
        if !rest.is_empty() {
            let base = text.len() - rest.len();
            chunk_marks(base, &tail(text, base));
        }
        // SAFETY: `end` marks were written, one per marked byte, within the reserved room.
        unsafe { marks.set_len(end) };
    }

    #[target_feature(enable = "popcnt,avx512f,avx512bw")]
    pub(super) fn count_avx512(text: &[u8]) -> usize {
        let (chunks, rest) = text.as_chunks::<64>();
        let count = |chunk: &[u8; 64]| mask512::<false>(chunk, [b'\n'; 3]).count_ones() as usize;
        chunks.iter().map(count).sum::<usize>() + super::count_scalar(rest)
    }

    #[target_feature(enable = "popcnt,avx2")]
    pub(super) fn count_avx2(text: &[u8]) -> usize {
        let (chunks, rest) = text.as_chunks::<64>();
        let count = |chunk: &[u8; 64]| mask256::<false>(chunk, [b'\n'; 3]).count_ones() as usize;
        chunks.iter().map(count).sum::<usize>() + super::count_scalar(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &[u8]) {
        for marked in [Marked::Libsvm, Marked::Bytes([b',', b'\n', b'"'])] {
            let expected: Vec<u32> =
                (0..text.len() as u32).filter(|&at| marked.has(text[at as usize])).collect();
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                let mut marks = vec![7];
                find_marks(isa, text, marked, &mut marks);
                assert_eq!(marks, expected, "{isa:?} {marked:?}");
                assert_eq!(count_newlines(isa, text), count_scalar(text));
            }
        }
    }

    #[test]
    fn full_and_empty_chunks() {
        for len in [0, 1, 31, 63, 64, 65, 127, 128, 200] {
            check(&vec![b'\n'; len]);
            check(&vec![b'0'; len]);
            check(&(0..len as u32).map(|at| (at * 37) as u8).collect::<Vec<_>>());
        }
    }

    proptest! {
        #[test]
        fn every_way_finds_the_same(text in proptest::collection::vec(prop_oneof![
            proptest::sample::select(b" \n\r:,\"10\t".to_vec()), any::<u8>()], 0..400)) {
            check(&text);
        }
    }
}
