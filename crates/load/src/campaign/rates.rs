//! Rates as a person gives them: one (`50k`), several (`5k,10k`) or a range (`5k..200k:log12`). Knows no run.

use std::str::FromStr;

/// Most rates of a sweep.
pub const RATES_MAX: usize = 1000;

/// Rates in calls per second, lowest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates(Vec<f64>);

impl Rates {
    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[f64] {
        &self.0
    }
}

/// A number above 0, with `k`, `M` or `G` for thousands, millions and thousands of millions.
pub fn rate(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let (digits, unit) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'M')) => (&text[..at], 1e6),
        Some((at, 'G')) => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    let number = digits.parse::<f64>().ok().map(|number| number * unit);
    number
        .filter(|number| number.is_finite() && *number > 0.0)
        .ok_or_else(|| format!("{text:?} is not a number above 0; write 200, 50k or 1.5M"))
}

impl FromStr for Rates {
    type Err = String;

    fn from_str(text: &str) -> Result<Rates, String> {
        let mut all = Vec::new();
        for part in text.split(',') {
            match part.split_once("..") {
                None => all.push(rate(part)?),
                Some((from, rest)) => all.append(&mut range(from, rest)?),
            }
        }
        if all.len() > RATES_MAX {
            return Err(format!("{} rates; at most {RATES_MAX} are possible", all.len()));
        }
        all.sort_by(f64::total_cmp);
        all.dedup();
        Ok(Rates(all))
    }
}

fn range(from: &str, rest: &str) -> Result<Vec<f64>, String> {
    let (to, steps) = rest.split_once(':').unwrap_or((rest, "log8"));
    let (from, to) = (rate(from)?, rate(to)?);
    if to <= from {
        return Err(format!("the range {from}..{to} is empty; write the lower rate first"));
    }
    let wrong = || format!("{steps:?} is not a number of rates; write log12 or lin10");
    let (is_log, count) = match (steps.strip_prefix("log"), steps.strip_prefix("lin")) {
        (Some(count), _) => (true, count),
        (_, Some(count)) => (false, count),
        _ => return Err(wrong()),
    };
    let count: usize = count.parse().map_err(|_| wrong())?;
    if !(2..=RATES_MAX).contains(&count) {
        return Err(format!("{count} rates; 2 to {RATES_MAX} are possible"));
    }
    let part = |at: usize| at as f64 / (count - 1) as f64;
    Ok((0..count)
        .map(|at| if is_log { from * (to / from).powf(part(at)) } else { from + (to - from) * part(at) })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&[f64], &str>) {
        match (text.parse::<Rates>(), expected) {
            (Ok(found), Ok(expected)) => {
                let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-6 * b;
                let all = found.all();
                assert!(
                    all.len() == expected.len() && all.iter().zip(expected).all(close),
                    "{text}: {all:?}"
                );
            }
            (Err(found), Err(expected)) => assert!(found.contains(expected), "{text}: {found}"),
            (found, expected) => panic!("{text}: {found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn rates_are_read() {
        check("50k", Ok(&[50_000.0]));
        check("2M,500,1.5k", Ok(&[500.0, 1500.0, 2e6]));
        check("1k..100k:log3", Ok(&[1000.0, 10_000.0, 100_000.0]));
        check("1k..2k:lin3,1500", Ok(&[1000.0, 1500.0, 2000.0]));
        check("0", Err("\"0\" is not a number above 0"));
        check("-5", Err("not a number above 0"));
        check("inf", Err("not a number above 0"));
        check("", Err("not a number"));
        check("2k..1k", Err("empty"));
        check("1k..2k:4", Err("write log12 or lin10"));
        check("1k..2k:log1", Err("2 to 1000"));
        check("1..2:lin800,1..3:lin900", Err("1700 rates"));
    }
}
