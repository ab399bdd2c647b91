//! Times and sizes as people write them. Knows no option.

use std::time::Duration;

use sanderling_observe::numbers;

/// Such as `500ms`, `10s`, `1.5m`, `2h`.
pub fn time(text: &str) -> Result<Duration, String> {
    numbers::time(text).ok_or_else(|| {
        format!("{text:?} is not a time: a number with one of the units us, ms, s, m, h, as in 10s")
    })
}

/// A busy-poll time in whole microseconds.
pub fn spin_us(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

/// Parses a size such as `4096`, `512MiB` or `4GiB`.
pub fn bytes(text: &str) -> Result<u64, String> {
    numbers::parse_bytes(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_units() {
        assert_eq!(time("90s").ok(), Some(Duration::from_secs(90)));
        assert_eq!(
            time("10").unwrap_err(),
            "\"10\" is not a time: a number with one of the units us, ms, s, m, h, as in 10s"
        );
        assert_eq!(
            bytes("4GB").unwrap_err(),
            "\"4GB\" is not a whole number with one of the units B, KiB, MiB, GiB, TiB"
        );
    }
}
