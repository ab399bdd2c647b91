//! Times and sizes as people write them. Knows no option.

use std::time::Duration;

use sanderling_observe::numbers;

/// Such as `500ms`, `10s`, `1.5m`, `2h`.
pub fn time(text: &str) -> Result<Duration, String> {
    numbers::time(text).ok_or_else(|| {
        format!("{text:?} is not a time: a number with one of the units us, ms, s, m, h, as in 10s")
    })
}

/// Parses a duration above zero.
pub fn time_above_0(text: &str) -> Result<Duration, String> {
    time(text).and_then(|time| if time.is_zero() { Err("must be more than 0".to_owned()) } else { Ok(time) })
}

/// Parses a count such as `250000`, `1_000_000`, `1e6`, `20k` or `1.5M`.
pub fn count(text: &str) -> Result<u64, String> {
    numbers::parse_count(text)
}

/// [`count`] for lengths in memory.
pub fn length(text: &str) -> Result<usize, String> {
    count(text).and_then(|count| usize::try_from(count).map_err(|error| error.to_string()))
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
        assert_eq!(time_above_0("0s").unwrap_err(), "must be more than 0");
        assert_eq!(
            (time_above_0("1ms").ok(), length("1e3").ok()),
            (Some(Duration::from_millis(1)), Some(1000))
        );
    }
}
