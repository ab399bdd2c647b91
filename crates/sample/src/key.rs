//! Keys: how the text of a field becomes a 64-bit id. Knows no spec and no table.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The seed that keeps the keys of one feature apart from those of another.
#[must_use]
pub fn salt(text: &str) -> u64 {
    xxh3_64(text.as_bytes())
}

/// XXH3-64 of a field's text under a salt. Part of the model format: it never changes.
#[inline]
#[must_use]
pub fn hash(text: &[u8], salt: u64) -> u64 {
    xxh3_64_with_seed(text, salt)
}

/// A key from an unsigned integer's text: digits only, no sign, at most 2^64 - 1.
#[must_use]
pub fn raw(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    text.iter().try_fold(0u64, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { value.checked_mul(10)?.checked_add(u64::from(digit)) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_keys() {
        for (text, expected) in [
            ("0", Some(0)),
            ("007", Some(7)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("", None),
            ("-1", None),
            ("1.0", None),
            ("000000000000000000001", None),
        ] {
            assert_eq!(raw(text.as_bytes()), expected, "{text}");
        }
    }

    /// Golden values from the reference implementation (Python's `xxhash`): models on disk depend on them.
    #[test]
    fn hashes_never_change() {
        assert_eq!(salt("user"), 0x99e3_89d2_5c10_af32);
        assert_eq!(hash(b"42", salt("user")), 0x4c68_7293_37b3_a5cd);
    }
}
