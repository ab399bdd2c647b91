//! Short numbers of a text, eight tokens at a time with AVX-512: the arithmetic of `sanderling_sample::parse_u64` and
//! `parse_f32` in vector lanes, for tokens whose ends are known. It decides the short ones and marks the rest.

// Vector loads, stores and gathers have no safe form.
#![allow(unsafe_code)]

use crate::blocks::PAD_BYTES;

/// In `Tokens::integers`: not a plain integer of one to eight digits. (Any plain one is far smaller.)
pub(crate) const UNDECIDED: u64 = u64::MAX;

/// The value of each token of a text, if it is a short number.
#[derive(Default)]
pub(crate) struct Tokens {
    /// The value of an integer of one to eight digits, or [`UNDECIDED`].
    pub(crate) integers: Vec<u64>,
    /// The value of a decimal of one to eight characters, digits and at most one dot, or NaN.
    pub(crate) decimals: Vec<f32>,
}

impl Tokens {
    /// Reads the tokens between marks: token `i` ends before `marks[i]` and starts behind `marks[i - 1]`; the first
    /// one starts with the text. All marks are before the last `PAD_BYTES` bytes of the text.
    ///
    /// # Safety
    /// The machine has what [`crate::Isa::Avx512`] promises.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512vl,avx512cd")]
    pub(crate) fn read_avx512(&mut self, text: &[u8], marks: &[u32]) {
        use std::arch::x86_64::*;

        assert!(i32::try_from(text.len()).is_ok() && text.len() >= PAD_BYTES);
        let groups = marks.len().div_ceil(8);
        self.integers.resize(groups * 8, 0);
        self.decimals.resize(groups * 8, 0.0);
        // By the digits after the dot (0 to 7; 8: no dot), in the low halves of 64-bit lanes.
        let scales =
            _mm512_setr_ps(1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e0, 1e0, 1e0, 1e0, 1e0, 1e0, 1e0, 1e0);
        let in_text = _mm256_set1_epi32((text.len() - PAD_BYTES) as i32);
        let (integers, _) = self.integers.as_chunks_mut::<8>();
        let (decimals, _) = self.decimals.as_chunks_mut::<8>();
        let mut before = _mm256_set1_epi32(-1);
        for ((group, integers), decimals) in marks.chunks(8).zip(integers).zip(decimals) {
            let mut padded = [0_u32; 8];
            let group = group.first_chunk::<8>().unwrap_or_else(|| {
                padded[..group.len()].copy_from_slice(group);
                &padded
            });
            // SAFETY: 32 readable bytes, any alignment.
            let ends = unsafe { _mm256_loadu_si256(group.as_ptr().cast()) };
            let one = _mm256_set1_epi32(1);
            let starts = _mm256_add_epi32(_mm256_alignr_epi32::<7>(ends, before), one);
            before = ends;
            let len = _mm512_cvtepi32_epi64(_mm256_sub_epi32(ends, starts));
            // Marks are in the text by contract; this keeps the gather there whatever they are.
            let starts = _mm256_min_epu32(starts, in_text);
            // SAFETY: each lane reads 8 bytes from at most `PAD_BYTES` before the end of the text on.
            let words = unsafe { _mm512_i32gather_epi64::<1>(starts, text.as_ptr().cast()) };

            // As in `number::align`; a shift of 64 or more (no character, or too many) gives 0.
            let shift = _mm512_sub_epi64(_mm512_set1_epi64(64), _mm512_slli_epi64::<3>(len));
            let aligned = _mm512_sllv_epi64(_mm512_xor_si512(words, _mm512_set1_epi8(b'0' as i8)), shift);
            let wrong_len =
                _mm512_cmpgt_epu64_mask(_mm512_sub_epi64(len, _mm512_set1_epi64(1)), _mm512_set1_epi64(7));
            let beyond_nine = |digits| {
                let above = _mm512_subs_epu8(digits, _mm512_set1_epi8(9));
                _mm512_test_epi64_mask(above, above)
            };
            let join = |digits| {
                let pairs = _mm512_maddubs_epi16(digits, _mm512_set1_epi16(0x010a));
                let fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x0001_0064));
                let high = _mm512_mul_epu32(fours, _mm512_set1_epi64(10_000));
                _mm512_add_epi64(high, _mm512_srli_epi64::<32>(fours))
            };

            let not_integer = beyond_nine(aligned) | wrong_len;
            let numbers = _mm512_mask_mov_epi64(join(aligned), not_integer, _mm512_set1_epi64(-1));
            // SAFETY: 64 writable bytes, any alignment.
            unsafe { _mm512_storeu_si512(integers.as_mut_ptr().cast(), numbers) };

            // As in `number::short_f32`: take the first dot out and move what is before it up by one byte.
            let other = _mm512_xor_si512(aligned, _mm512_set1_epi8(0x1e));
            let ones = _mm512_set1_epi8(1);
            let borrowed = _mm512_andnot_si512(other, _mm512_sub_epi64(other, ones));
            let dots = _mm512_and_si512(borrowed, _mm512_set1_epi8(-128));
            let has_dot = _mm512_test_epi64_mask(dots, dots);
            let lowest = _mm512_and_si512(dots, _mm512_sub_epi64(_mm512_setzero_si512(), dots));
            let dot = _mm512_srli_epi64::<7>(lowest);
            let one = _mm512_set1_epi64(1);
            let before_dot = _mm512_and_si512(aligned, _mm512_sub_epi64(dot, one));
            let up_to_dot = _mm512_sub_epi64(_mm512_slli_epi64::<8>(dot), one);
            let moved =
                _mm512_or_si512(_mm512_andnot_si512(up_to_dot, aligned), _mm512_slli_epi64::<8>(before_dot));
            let digits = _mm512_mask_mov_epi64(aligned, has_dot, moved);
            let lone_dot = has_dot & _mm512_cmpeq_epi64_mask(len, one);
            let not_decimal = beyond_nine(digits) | wrong_len | lone_dot;
            let mantissas = _mm256_cvtepi32_ps(_mm512_cvtepi64_epi32(join(digits)));
            let after_dot = _mm512_srli_epi64::<3>(_mm512_lzcnt_epi64(dot));
            let scale = _mm512_permutexvar_ps(after_dot, scales);
            let scale = _mm256_castsi256_ps(_mm512_cvtepi64_epi32(_mm512_castps_si512(scale)));
            let values = _mm256_div_ps(mantissas, scale);
            let values = _mm256_mask_mov_ps(values, not_decimal, _mm256_set1_ps(f32::NAN));
            // SAFETY: 32 writable bytes, any alignment.
            unsafe { _mm256_storeu_ps(decimals.as_mut_ptr(), values) };
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use proptest::prelude::*;
    use sanderling_sample::{parse_f32, parse_u64};

    use super::*;
    use crate::scan::Isa;

    fn check(texts: &[&str]) {
        if !Isa::Avx512.is_available() {
            return;
        }
        let (mut text, mut marks) = (Vec::new(), Vec::new());
        for token in texts {
            text.extend_from_slice(token.as_bytes());
            marks.push(text.len() as u32);
            text.push(b' ');
        }
        text.resize(text.len() + PAD_BYTES, b'7');
        let mut tokens = Tokens::default();
        // SAFETY: available, checked above.
        unsafe { tokens.read_avx512(&text, &marks) };
        for (at, token) in texts.iter().enumerate() {
            let bytes = token.as_bytes();
            let short = bytes.len() <= 8;
            assert_eq!(
                tokens.integers[at],
                parse_u64(bytes).filter(|_| short).unwrap_or(UNDECIDED),
                "{token:?}"
            );
            let plain = short && bytes.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
            let decimal = parse_f32(bytes).filter(|_| plain);
            let found = Some(tokens.decimals[at]).filter(|value| !value.is_nan());
            assert_eq!(found.map(f32::to_bits), decimal.map(f32::to_bits), "{token:?}");
        }
    }

    #[test]
    fn short_and_odd_tokens() {
        check(&[
            "",
            "0",
            "9",
            ".",
            "..",
            "1.",
            ".1",
            "12345678",
            "123456789",
            "1234567.",
            ".1234567",
            "0.333333",
            "1.2.3",
            "-1",
            "1e5",
            "/",
            ":",
            "\u{0}",
            "99999999",
            "0000000.",
            "1\u{e9}",
            "\u{e9}",
            "........",
        ]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn as_one_by_one(texts in proptest::collection::vec(
            prop_oneof![4 => "[0-9]{1,9}", 4 => "[0-9]{0,7}\\.[0-9]{0,7}", 1 => "[-+.0-9eE:/]{0,9}"], 0..40)) {
            check(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
}
