//! Comparison of auth tokens.

use crate::limit::TOKEN_BYTES_MAX;

/// Compares in constant time, so that the duration does not tell the first difference.
#[must_use]
pub fn same_token(secret: &str, given: &str) -> bool {
    let (secret, given) = (secret.as_bytes(), given.as_bytes());
    let at = |bytes: &[u8], at: usize| bytes.get(at).copied().unwrap_or(0);
    let different = (0..TOKEN_BYTES_MAX).fold(0, |all, i| all | (at(secret, i) ^ at(given, i)));
    std::hint::black_box(different) == 0 && secret.len() == given.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_compared_whole() {
        for (secret, given, expected) in [
            ("abc", "abc", true),
            ("abc", "abd", false),
            ("abc", "abcd", false),
            ("abc", "ab\0", false),
            ("a", "a\0", false),
        ] {
            assert_eq!(same_token(secret, given), expected, "{secret} {given:?}");
        }
    }
}
