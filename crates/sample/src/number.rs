//! Numbers from text, eight digits at a time in one 64-bit register (SWAR), and exactly rounded.
//!
//! The digit arithmetic follows Lemire's `parse_eight_digits_unrolled`. Short tokens take a path without branches;
//! all others go to the standard library, so that no result ever differs from it.

const ZEROS: u64 = 0x3030_3030_3030_3030;
const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;
/// The byte `b'.' ^ b'0'`.
const DOT: u64 = 0x1e1e_1e1e_1e1e_1e1e;

/// The power of ten to divide by, indexed by the byte of the dot (0 to 7; 8: no dot).
const SCALE_BY_DOT: [f32; 9] = [1e7, 1e6, 1e5, 1e4, 1e3, 1e2, 1e1, 1e0, 1e0];

/// Exactly representable powers of ten.
const POWERS_F64: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
    1e19, 1e20, 1e21, 1e22,
];

/// The `len` (1 to 8) first characters of a little-endian word as digit values, the last one in the top byte.
#[inline(always)]
fn align(word: u64, len: usize) -> u64 {
    debug_assert!((1..=8).contains(&len));
    (word ^ ZEROS).wrapping_shl(64 - 8 * len as u32)
}

/// Whether every byte is 0 to 9.
#[inline(always)]
fn is_digits(aligned: u64) -> bool {
    (((aligned & !HIGHS) + 0x7676_7676_7676_7676) | aligned) & HIGHS == 0
}

/// Eight digit values, the most significant one in the lowest byte, as a number.
#[inline(always)]
fn join(digits: u64) -> u64 {
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let low = (pairs & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let high = ((pairs >> 16) & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    low.wrapping_add(high) >> 32
}

/// An unsigned integer of `len` (1 to 8) digits at the start of a little-endian word.
#[inline(always)]
pub fn short_u64(word: u64, len: usize) -> Option<u64> {
    let digits = align(word, len);
    if is_digits(digits) { Some(join(digits)) } else { None }
}

/// A plain decimal (digits, at most one dot) of `len` (2 to 8) characters at the start of a little-endian word.
///
/// With a dot there are at most seven digits: below 2^24, so mantissa and power of ten are exact in `f32` and the one
/// division rounds correctly. Without a dot the conversion of the integer is the one rounding.
#[inline(always)]
pub fn short_f32(word: u64, len: usize) -> Option<f32> {
    debug_assert!(len >= 2, "a lone dot would pass for 0");
    let aligned = align(word, len);
    let other = aligned ^ DOT;
    // High bit of each zero byte; bytes above the first one may be wrong, so only the lowest bit is used.
    let dots = other.wrapping_sub(ONES) & !other & HIGHS;
    let dot_bit = dots.trailing_zeros();
    let dot = (dots & dots.wrapping_neg()) >> 7;
    let before = aligned & dot.wrapping_sub(1);
    let after = aligned & !(dot << 8).wrapping_sub(1);
    let digits = if dots == 0 { aligned } else { after | (before << 8) };
    if is_digits(digits) {
        Some(join(digits) as i64 as f32 / SCALE_BY_DOT[(dot_bit / 8) as usize])
    } else {
        None
    }
}

#[inline(always)]
fn load_short(text: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = text.len().min(8);
    word[..len].copy_from_slice(&text[..len]);
    u64::from_le_bytes(word)
}

/// An unsigned integer: digits only, no sign, at most `u64::MAX`.
#[must_use]
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    match text.len() {
        0 => None,
        1..=8 => short_u64(load_short(text), text.len()),
        9..=16 => {
            let (high, low) = text.split_at(text.len() - 8);
            Some(short_u64(load_short(high), high.len())? * 100_000_000 + short_u64(load_short(low), 8)?)
        }
        _ => {
            let text = &text[text.iter().take_while(|&&byte| byte == b'0').count()..];
            if text.len() > 20 {
                return None;
            }
            text.iter().try_fold(0_u64, |sum, &byte| {
                let digit = byte.wrapping_sub(b'0');
                if digit > 9 { None } else { sum.checked_mul(10)?.checked_add(u64::from(digit)) }
            })
        }
    }
}

/// Mantissa and number of digits after the dot of a plain decimal; `None` unless the mantissa is below 2^53.
#[inline]
fn plain_decimal(text: &[u8]) -> Option<(u64, usize)> {
    if text.len() > 20 {
        return None;
    }
    let mut mantissa = 0_u64;
    let mut dot = None;
    for (at, &byte) in text.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit <= 9 {
            mantissa = mantissa.checked_mul(10)?.checked_add(u64::from(digit))?;
        } else if byte == b'.' && dot.is_none() {
            dot = Some(at);
        } else {
            return None;
        }
    }
    let digits = text.len() - usize::from(dot.is_some());
    let exact = digits > 0 && mantissa < 1 << 53;
    exact.then_some((mantissa, dot.map_or(0, |dot| text.len() - 1 - dot)))
}

fn split_sign(text: &[u8]) -> (bool, &[u8]) {
    match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    }
}

/// A finite number, exactly rounded: the result of `str::parse::<f64>`, faster. Infinities and NaN are refused.
#[must_use]
pub fn parse_f64(text: &[u8]) -> Option<f64> {
    let (negative, magnitude) = split_sign(text);
    if let Some((mantissa, after_dot)) = plain_decimal(magnitude) {
        // Both operands are exact, so the division rounds once.
        let value = mantissa as f64 / POWERS_F64[after_dot];
        return Some(if negative { -value } else { value });
    }
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    value.is_finite().then_some(value)
}

/// A finite number, exactly rounded: the result of `str::parse::<f32>`, faster. Infinities and NaN are refused.
#[must_use]
pub fn parse_f32(text: &[u8]) -> Option<f32> {
    let (negative, magnitude) = split_sign(text);
    if let Some((mantissa, after_dot)) = plain_decimal(magnitude) {
        let value = mantissa as f64 / POWERS_F64[after_dot];
        // Rounding a second time, to f32, is harmless unless the first has landed on the midpoint of two f32, or the
        // result is subnormal and its midpoints lie elsewhere.
        let on_midpoint = value.to_bits() & 0x1fff_ffff == 0x1000_0000;
        let is_plain = mantissa == 0 || value >= f64::from(f32::MIN_POSITIVE);
        if is_plain && !on_midpoint {
            return Some(if negative { -(value as f32) } else { value as f32 });
        }
    }
    let value: f32 = std::str::from_utf8(text).ok()?.parse().ok()?;
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str) {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let integer = if digits { text.parse::<u64>().ok() } else { None };
        assert_eq!(parse_u64(text.as_bytes()), integer, "u64 {text:?}");
        let single = text.parse::<f32>().ok().filter(|value| value.is_finite());
        let bits = |value: Option<f32>| value.map(f32::to_bits);
        assert_eq!(bits(parse_f32(text.as_bytes())), bits(single), "f32 {text:?}");
        let double = text.parse::<f64>().ok().filter(|value| value.is_finite());
        assert_eq!(parse_f64(text.as_bytes()).map(f64::to_bits), double.map(f64::to_bits), "f64 {text:?}");
        if (2..=8).contains(&text.len()) {
            let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            let expected = single.filter(|_| plain);
            let mut word = *b"........";
            word[..text.len()].copy_from_slice(text.as_bytes());
            let found = short_f32(u64::from_le_bytes(word), text.len());
            assert_eq!(bits(found), bits(expected), "short f32 {text:?}");
        }
    }

    #[test]
    fn awkward_numbers_are_what_the_standard_library_says() {
        let rows = [
            "",
            "0",
            "1",
            ".",
            "..",
            ".5",
            "5.",
            "-",
            "+",
            "-.5",
            "+1",
            "-1",
            "--1",
            "1e5",
            "1E-5",
            "1e",
            "1e400",
            "inf",
            "nan",
            "-inf",
            "infinity",
            "NaN",
            "0x10",
            "1_000",
            " 1",
            "1 ",
            "1.2.3",
            "00000000",
            "00000001",
            "000000000000000000000000000001",
            "99999999",
            "9999999.",
            ".9999999",
            "123456789",
            "1234567890123456",
            "12345678901234567",
            "18446744073709551615",
            "18446744073709551616",
            "99999999999999999999",
            "-0",
            "-0.0",
            "16777217",
            "16777219",
            "0.000000001",
            "3.4028235e38",
            "3.5e38",
            "1e-45",
            "1e-46",
            "0.1000000014901161",
            "1.00000005960464477539",
            "1.000000059604645",
            "1.0000001788139343",
            "é",
            "1é",
            "\u{0}",
            "1\u{0}",
            "0.00000000000000000001",
            "9007199254740993",
            "9007199254740992.5",
            "/",
            ":",
            "1:",
            "1/",
        ];
        rows.iter().for_each(|text| check(text));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn every_integer_reads_back(value: u64, shift in 0_u32..64) {
            check(&(value >> shift).to_string());
        }

        #[test]
        fn every_decimal_is_rounded_once(text in "[0-9]{0,9}\\.?[0-9]{0,11}") {
            check(&text);
        }

        #[test]
        fn every_float_reads_back(bits: u32) {
            check(&f32::from_bits(bits).to_string());
            check(&format!("{:e}", f32::from_bits(bits)));
        }

        #[test]
        fn any_text_is_judged_as_the_standard_library_does(text in "[-+.0-9eE:/ x]{0,10}") {
            check(&text);
        }
    }
}
