//! Times and sizes as people write them. Knows no option.

use std::time::Duration;

/// A number, then its unit; how many of the smallest unit that is.
fn parse(text: &str, units: &[(&str, u64)]) -> Result<u64, String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim());
    let scale = units.iter().find(|(name, _)| *name == unit).map(|&(_, scale)| scale);
    let (false, Some(scale)) = (number.is_empty(), scale) else {
        let names: Vec<&str> = units.iter().map(|(name, _)| *name).filter(|name| !name.is_empty()).collect();
        return Err(format!("{text:?} is not a whole number with one of the units {}", names.join(", ")));
    };
    let value = number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale));
    value.ok_or_else(|| format!("{text:?} is too much"))
}

/// Such as `500ms`, `10s`, `10m`, `2h`.
pub(in crate::command) fn time(text: &str) -> Result<Duration, String> {
    parse(text, &[("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)]).map(Duration::from_millis)
}

/// Such as `4096`, `512MiB`, `4GiB`.
pub(in crate::command) fn bytes(text: &str) -> Result<u64, String> {
    parse(text, &[("", 1), ("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes() {
        for (text, expected_ms) in
            [("500ms", Some(500)), ("10 s", Some(10_000)), ("10m", Some(600_000)), ("2h", Some(7_200_000))]
        {
            assert_eq!(time(text).ok().map(|time| time.as_millis()), expected_ms, "{text}");
        }
        for (text, expected) in
            [("4096", Some(4096)), ("4GiB", Some(4 << 30)), ("1 KiB", Some(1024)), ("0", Some(0))]
        {
            assert_eq!(bytes(text).ok(), expected, "{text}");
        }
        for text in ["", "10", "-1s", "1.5h", "s", "99999999999999999999h", "9999999999999999999h"] {
            assert!(time(text).is_err(), "{text}");
        }
        assert_eq!(time("9999999999999999999h").unwrap_err(), "\"9999999999999999999h\" is too much");
        assert_eq!(
            bytes("4GB").unwrap_err(),
            "\"4GB\" is not a whole number with one of the units B, KiB, MiB, GiB, TiB"
        );
    }
}
