//! Times and sizes as people write them. Knows no option.

use std::time::Duration;

use sanderling_observe::numbers;

/// Such as `500ms`, `10s`, `1.5m`, `2h`.
pub fn time(text: &str) -> Result<Duration, String> {
    numbers::time(text).ok_or_else(|| {
        format!("{text:?} is not a time: a number with one of the units us, ms, s, m, h, as in 10s")
    })
}

/// Such as `4096`, `512MiB`, `4GiB`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let units =
        [("", 1), ("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1_u64 << 40)];
    let scale = units.iter().find(|(name, _)| *name == unit.trim()).map(|(_, scale)| scale);
    let (false, Some(scale)) = (number.is_empty(), scale) else {
        return Err(format!("{text:?} is not a whole number with one of the units B, KiB, MiB, GiB, TiB"));
    };
    let value = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*scale));
    value.ok_or_else(|| format!("{text:?} is too much"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes() {
        for (text, expected) in
            [("4096", Some(4096)), ("4GiB", Some(4 << 30)), ("1 KiB", Some(1024)), ("0", Some(0))]
        {
            assert_eq!(bytes(text).ok(), expected, "{text}");
        }
        for text in ["1.5KiB", "-1", "KiB", "1KiBs"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert!(bytes("99999999999999999999").unwrap_err().ends_with("is too much"));
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
