//! Latency objectives: `p99<5ms`. Knows only the response times of a run.

use crate::result::{Objective, RunResult};

/// Most objectives at once.
pub const OBJECTIVES_MAX: usize = 8;

/// Reads objectives, with commas between: `p99<5ms`, `p50<200us,p99.9<20ms`.
pub fn objectives(text: &str) -> Result<Vec<Objective>, String> {
    let all: Vec<Objective> = text.split(',').map(objective).collect::<Result<_, _>>()?;
    if all.len() > OBJECTIVES_MAX {
        return Err(format!("{} objectives; at most {OBJECTIVES_MAX} are possible", all.len()));
    }
    Ok(all)
}

fn objective(text: &str) -> Result<Objective, String> {
    let wrong = |what: &str| format!("{text:?}: {what}; write p99<5ms or p99.9<500us");
    let (percentile, bound) = text.trim().split_once('<').ok_or_else(|| wrong("there is no <"))?;
    let percentile =
        percentile.trim().strip_prefix('p').and_then(|percentile| percentile.parse::<f64>().ok());
    let percentile = percentile.filter(|percentile| (0.0..100.0).contains(percentile) && *percentile > 0.0);
    let quantile = percentile.ok_or_else(|| wrong("a percentile is above 0 and below 100"))? / 100.0;
    let bound = bound.trim_start_matches('=').trim();
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    let read = |(unit, ns): (&str, f64)| Some(bound.strip_suffix(unit)?.trim().parse::<f64>().ok()? * ns);
    let below_ns = units.into_iter().find_map(read).filter(|ns| ns.is_finite() && *ns >= 1.0);
    let below_ns = below_ns.ok_or_else(|| wrong("the bound is a time above 0 in ns, us, ms or s"))? as u64;
    Ok(Objective { quantile, below_ns })
}

/// Are all of them met? Percentiles of few calls are those of what there is: a slow call among ten is the p99, too.
#[must_use]
pub fn meets(run: &RunResult, objectives: &[Objective]) -> bool {
    let response = run.measured.response();
    let met = |one: &Objective| response.quantile_of_any_ns(one.quantile) < one.below_ns;
    run.measured.calls() > 0 && objectives.iter().all(met)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&[(f64, u64)], &str>) {
        match (objectives(text), expected) {
            (Ok(found), Ok(expected)) => {
                let found: Vec<(f64, u64)> = found.iter().map(|one| (one.quantile, one.below_ns)).collect();
                assert_eq!(found, expected, "{text}");
            }
            (Err(found), Err(expected)) => assert!(found.contains(expected), "{text}: {found}"),
            (found, expected) => panic!("{text}: {found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn objectives_are_read() {
        check("p99<5ms", Ok(&[(0.99, 5_000_000)]));
        check("p50 < 200us, p90<=1.5s", Ok(&[(0.5, 200_000), (0.9, 1_500_000_000)]));
        check("p99", Err("there is no <"));
        check("99<5ms", Err("a percentile is"));
        check("p100<5ms", Err("above 0 and below 100"));
        check("p99<5", Err("in ns, us, ms or s"));
        check("p99<-1ms", Err("a time above 0"));
        check("p1<1s,p2<1s,p3<1s,p4<1s,p5<1s,p6<1s,p7<1s,p8<1s,p9<1s", Err("9 objectives"));
    }
}
