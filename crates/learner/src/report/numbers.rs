//! Numbers as a reader wants them: thousands apart, units, few digits, and a dash for what is not a number.
//! Knows no HTML.

pub(super) use sanderling_observe::numbers::{bytes, count, date};

const NONE: &str = "–";
const MINUTE_S: f64 = 60.0;

/// A number with so many digits after the point.
pub(super) fn decimal(number: f64, digits: usize) -> String {
    if number.is_finite() { format!("{number:.digits$}") } else { NONE.to_owned() }
}

/// A number of unknown size, about four digits.
pub(super) fn figure(number: f64) -> String {
    match number.abs() {
        size if !size.is_finite() => NONE.to_owned(),
        0.0 => "0".to_owned(),
        size if !(1e-4..1e7).contains(&size) => format!("{number:.2e}"),
        size if size >= 1000.0 => {
            let sign = if number < 0.0 { "−" } else { "" };
            format!("{sign}{}", count(size.round() as u64))
        }
        size => {
            let digits = (3.0 - size.log10().floor()).clamp(0.0, 6.0) as usize;
            format!("{number:.digits$}")
        }
    }
}

/// 0.123 as "12.3 %".
pub(super) fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.1} %", share * 100.0) } else { NONE.to_owned() }
}

/// A span of time.
pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        s if !s.is_finite() || s < 0.0 => NONE.to_owned(),
        0.0 => "0 s".to_owned(),
        s if s < 0.001 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 10.0 => format!("{s:.2} s"),
        s if s < MINUTE_S => format!("{s:.1} s"),
        s => {
            let (minutes, rest) = ((s / MINUTE_S) as u64, s as u64 % MINUTE_S as u64);
            if minutes < 60 {
                format!("{minutes} min {rest:02} s")
            } else {
                format!("{} h {:02} min", count(minutes / 60), minutes % 60)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        fn check(text: impl AsRef<str>, expected: &str) {
            assert_eq!(text.as_ref(), expected);
        }
        check(decimal(0.98765, 4), "0.9877");
        check(decimal(f64::NAN, 4), "–");
        check(figure(0.012_345_6), "0.01235");
        check(figure(-1234.5), "−1,235");
        check(figure(12.345), "12.35");
        check(figure(1e12), "1.00e12");
        check(figure(f64::INFINITY), "–");
        check(percent(0.1234), "12.3 %");
        check(duration(0.000_5), "500 µs");
        check(duration(5.0), "5.00 s");
        check(duration(65.0), "1 min 05 s");
        check(duration(7260.0), "2 h 01 min");
        check(duration(f64::NAN), "–");
        check(date(0), "1970-01-01 00:00 UTC");
        check(date(951_782_400), "2000-02-29 00:00 UTC");
        check(date(1_785_333_780), "2026-07-29 14:03 UTC");
    }
}
