//! Numbers as people read them: three digits and a unit. Knows nothing of what they count.

/// A rate, or any size: `1.23 M`, `2.4 k`, `17`.
#[must_use]
pub(crate) fn rate(value: f64) -> String {
    with_unit(value, &[(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, "")])
}

/// Bytes: `1.23 GB`.
pub(crate) fn bytes(value: f64) -> String {
    with_unit(value, &[(1e12, " TB"), (1e9, " GB"), (1e6, " MB"), (1e3, " kB"), (1.0, " B")])
}

/// Nanoseconds: `1.23 ms`, `45.6 us`, `789 ns`, `12.3 s`, `600 s`.
#[must_use]
pub(crate) fn duration(ns: f64) -> String {
    with_unit(ns, &[(1e9, " s"), (1e6, " ms"), (1e3, " us"), (1.0, " ns")])
}

/// `p99`, `p99.9`.
pub(crate) fn percentile(quantile: f64) -> String {
    let text = format!("{:.4}", 100.0 * quantile);
    format!("p{}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// At most so many characters.
pub(crate) fn shortened(text: &str, characters: usize) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    if text.chars().count() <= characters {
        return clean.collect();
    }
    clean.take(characters.saturating_sub(1)).chain(['…']).collect()
}

/// Three significant digits in the largest unit of which there is at least one.
fn with_unit(value: f64, units: &[(f64, &str)]) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    // Rounding must not lead to 1000 of a unit.
    let rounded = |unit: f64| value.abs() / unit >= 0.999_5;
    let &(unit, name) = units.iter().find(|(unit, _)| rounded(*unit)).unwrap_or(&units[units.len() - 1]);
    let scaled = value / unit;
    let decimals = match scaled.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        _ => 2,
    };
    let whole = unit <= 1.0 && scaled.fract() == 0.0;
    format!("{scaled:.*}{name}", if whole { 0 } else { decimals })
}
