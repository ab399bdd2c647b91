//! Keys: hashes a field's text into a 64-bit id. Knows no spec and no table.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The hash seed that separates the keys of one feature from those of another.
#[must_use]
pub fn salt(text: &str) -> u64 {
    xxh3_64(text.as_bytes())
}

/// XXH3-64 of a field's text under a salt. It is part of the model format and never changes.
#[inline]
#[must_use]
pub fn hash(text: &[u8], salt: u64) -> u64 {
    xxh3_64_with_seed(text, salt)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden values from the reference implementation (Python's `xxhash`): models on disk depend on them.
    #[test]
    fn hashes_never_change() {
        assert_eq!(salt("user"), 0x99e3_89d2_5c10_af32);
        assert_eq!(hash(b"42", salt("user")), 0x4c68_7293_37b3_a5cd);
    }
}
