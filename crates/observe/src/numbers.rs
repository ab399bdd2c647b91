//! Numbers as people read and write them: digits in groups of three, bytes and times with a unit. Knows nothing of what they
//! count.

use std::time::Duration;

/// 1234567 as "1,234,567".
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in binary units.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    while size >= 999.5 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    let digits = if size < 9.995 { 2 } else { usize::from(size < 99.95) };
    format!("{size:.digits$} {}", UNITS[unit])
}

/// Seconds of a day.
const DAY_S: u64 = 86_400;

/// Seconds since 1970 as "2026-07-29 14:03 UTC".
#[must_use]
pub fn date(unix_s: u64) -> String {
    let (days, second) = (unix_s / DAY_S, unix_s % DAY_S);
    // Howard Hinnant's civil_from_days: years begin in March, eras have 400 of them and 146097 days.
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day + 2) / 153;
    let day = day - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", second / 3600, second / 60 % 60)
}

/// Parses a duration such as `500ms`, `10s`, `1.5m` or `2h`; none if the text is no duration or too long.
#[must_use]
pub fn time(text: &str) -> Option<Duration> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.')?);
    let scale = match unit.trim_start() {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * scale).ok()
}

const SIZE_UNITS: [(&str, u64); 6] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1), ("", 1)];

/// Parses a size with a unit, such as `4096`, `512MiB` or `4GiB`; without a unit, bytes.
///
/// # Errors
/// The text is not a size, or too large.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let scale = SIZE_UNITS.iter().find(|(name, _)| *name == unit.trim()).map(|(_, scale)| scale);
    let (false, Some(scale)) = (number.is_empty(), scale) else {
        return Err(format!("{text:?} is not a whole number with one of the units B, KiB, MiB, GiB, TiB"));
    };
    let value = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*scale));
    value.ok_or_else(|| format!("{text:?} is too much"))
}

const COUNT_UNITS: [(char, u64); 5] =
    [('k', 1_000), ('K', 1_000), ('M', 1_000_000), ('G', 1_000_000_000), ('T', 1_000_000_000_000)];

/// Parses a count such as `250000`, `1_000_000`, `1e6`, `20k` or `1.5M`; it must be whole.
///
/// # Errors
/// The text is not a whole number, or too large.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let digits = text.trim().replace('_', "");
    let wrong = || format!("{text:?} is not a whole number such as 250000, 1e6, 20k or 1.5M");
    let too_much = || format!("{text:?} is too much");
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err(wrong());
    }
    let unit = COUNT_UNITS.iter().find(|(unit, _)| digits.ends_with(*unit));
    let (number, scale) = unit.map_or((&digits[..], 1), |(_, scale)| (&digits[..digits.len() - 1], *scale));
    let (mantissa, exponent) = match number.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<u32>().map_err(|_| wrong())?),
        None => (number, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let all = format!("{whole}{fraction}");
    if all.is_empty() || !all.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let value: u128 = all.parse().map_err(|_| too_much())?;
    let power = 10_u128.checked_pow(exponent).and_then(|power| power.checked_mul(scale.into()));
    let value = power.and_then(|power| value.checked_mul(power)).ok_or_else(too_much)?;
    // No number of 64 bits has more decimals than this.
    let decimals = 10_u128.checked_pow(fraction.len() as u32).ok_or_else(wrong)?;
    if !value.is_multiple_of(decimals) {
        return Err(wrong());
    }
    u64::try_from(value / decimals).map_err(|_| too_much())
}

/// Formats a size so that [`parse_bytes`] gives it back: `4GiB`, `40000B`.
#[must_use]
pub fn exact_bytes(bytes: u64) -> String {
    let fits = |(_, scale): &&(&str, u64)| bytes >= *scale && bytes.is_multiple_of(*scale);
    let (unit, scale) = SIZE_UNITS.iter().find(fits).unwrap_or(&("B", 1));
    format!("{}{unit}", bytes / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(count(number), text);
        }
        for (number, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.50 KiB"),
            (1 << 20, "1.00 MiB"),
            (123 << 20, "123 MiB"),
            (1000 << 20, "0.98 GiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(bytes(number), text);
        }
    }

    #[test]
    fn times_of_people() {
        for (text, us) in [
            ("500ms", Some(500_000)),
            ("1500us", Some(1500)),
            ("2µs", Some(2)),
            ("0s", Some(0)),
            ("10 s", Some(10_000_000)),
            ("1.5m", Some(90_000_000)),
            ("2h", Some(7_200_000_000)),
        ] {
            assert_eq!(time(text).map(|time| time.as_micros()), us, "{text}");
        }
        for text in ["", "10", "-1s", "1.5.0h", "s", ".s", "10 parsecs", "9999999999999999999h"] {
            assert_eq!(time(text), None, "{text}");
        }
    }

    #[test]
    fn counts_of_people() {
        for (text, expected) in [
            ("0", 0),
            ("250000", 250_000),
            (" 1_000_000 ", 1_000_000),
            ("1e6", 1_000_000),
            ("1E6", 1_000_000),
            ("2.5e3", 2500),
            (".5M", 500_000),
            ("1.50k", 1500),
            ("20K", 20_000),
            ("3G", 3_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_count(text), Ok(expected), "{text}");
        }
        for (text, expected) in [
            ("", "not a whole number"),
            ("-1", "not a whole number"),
            ("1.5", "not a whole number"),
            ("1.2345k", "not a whole number"),
            ("1e-3", "not a whole number"),
            ("inf", "not a whole number"),
            ("k", "not a whole number"),
            (".", "not a whole number"),
            ("1e", "not a whole number"),
            ("1KiB", "not a whole number"),
            ("18446744073709551616", "too much"),
            ("1e30", "too much"),
            ("1e99", "too much"),
            ("99999999999999999999999999999999999999999", "too much"),
        ] {
            let found = parse_count(text).unwrap_err();
            assert!(found.contains(expected), "{text}: {found}");
        }
    }

    #[test]
    fn sizes_of_people() {
        for (text, expected) in
            [("4096", Some(4096)), ("4GiB", Some(4 << 30)), ("1 KiB", Some(1024)), ("0", Some(0))]
        {
            assert_eq!(parse_bytes(text).ok(), expected, "{text}");
        }
        for text in ["1.5KiB", "-1", "KiB", "1KiBs"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        assert!(parse_bytes("99999999999999999999").unwrap_err().ends_with("is too much"));
        for (bytes, text) in [(0, "0B"), (40_000, "40000B"), (1 << 20, "1MiB"), (3 << 31, "6GiB")] {
            assert_eq!((exact_bytes(bytes).as_str(), parse_bytes(text)), (text, Ok(bytes)));
        }
    }
}
