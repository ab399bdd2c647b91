//! Numbers as messages show them. Knows no message.

pub(crate) use sanderling_observe::numbers::count;

/// A number with three digits or so, as a person would say it.
pub(crate) fn about(number: f64) -> String {
    match number.abs() {
        size if !size.is_finite() => format!("{number}"),
        size if size >= 1e6 || (size > 0.0 && size < 1e-3) => format!("{number:.1e}"),
        size if size >= 100.0 => {
            format!("{}{}", if number < 0.0 { "-" } else { "" }, count(size.round() as u64))
        }
        _ => format!("{number:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (number, text) in
            [(1_414_000_000.0, "1.4e9"), (1234.4, "1,234"), (0.25, "0.250"), (0.0, "0.000"), (1e-7, "1.0e-7")]
        {
            assert_eq!(about(number), text);
        }
    }
}
