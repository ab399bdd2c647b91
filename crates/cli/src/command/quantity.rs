//! Times and sizes as people write them. Knows no option.

use std::time::Duration;

/// A number and its unit, which is what follows the digits.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

fn scale<T: Copy>(unit: &str, units: &[(&str, T)]) -> Option<T> {
    units.iter().find(|(name, _)| *name == unit).map(|&(_, scale)| scale)
}

/// Such as `500ms`, `10s`, `1.5m`, `2h`.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let scale = scale(unit, &[("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)]);
    let (Ok(number), Some(scale)) = (number.parse::<f64>(), scale) else {
        return Err(format!("{text:?} is not a number with one of the units us, ms, s, m, h, as in 10s"));
    };
    Duration::try_from_secs_f64(number * scale).map_err(|_| format!("{text:?} is too much"))
}

/// Such as `4096`, `512MiB`, `4GiB`.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let units =
        [("", 1), ("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1_u64 << 40)];
    let is_whole = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    let (true, Some(scale)) = (is_whole, scale(unit, &units)) else {
        return Err(format!("{text:?} is not a whole number with one of the units B, KiB, MiB, GiB, TiB"));
    };
    let value = number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale));
    value.ok_or_else(|| format!("{text:?} is too much"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes() {
        for (text, expected_ms) in [
            ("500ms", Some(500)),
            ("1500us", Some(1)),
            ("0s", Some(0)),
            ("10 s", Some(10_000)),
            ("1.5m", Some(90_000)),
            ("2h", Some(7_200_000)),
        ] {
            assert_eq!(time(text).ok().map(|time| time.as_millis()), expected_ms, "{text}");
        }
        for (text, expected) in
            [("4096", Some(4096)), ("4GiB", Some(4 << 30)), ("1 KiB", Some(1024)), ("0", Some(0))]
        {
            assert_eq!(bytes(text).ok(), expected, "{text}");
        }
        for text in ["", "10", "-1s", "1.5.0h", "s", ".s", "10 parsecs", "9999999999999999999h"] {
            assert!(time(text).is_err(), "{text}");
        }
        for text in ["1.5KiB", "-1", "KiB", "1KiBs"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert_eq!(time("9999999999999999999h").unwrap_err(), "\"9999999999999999999h\" is too much");
        assert_eq!(
            bytes("4GB").unwrap_err(),
            "\"4GB\" is not a whole number with one of the units B, KiB, MiB, GiB, TiB"
        );
    }
}
