//! Table of the time of a run, printed at the end of a training: one table of stages and calls, one of passes. Measures
//! and decides nothing.

use sanderling_learner::{MeasuredOn, Timing};
use sanderling_observe::{LatencySummary, StageTotal};

use crate::output;

/// Columns of stages, and those that only calls of servers have.
const COLUMNS: [&str; 5] = ["time of", "", "count", "seconds", "share"];
const CALL_COLUMNS: [&str; 7] = ["average us", "max us", "min us", "p50 us", "p95 us", "p99 us", "p999 us"];
/// Passes that are shown: the last ones.
const PASSES_MAX: usize = 20;
/// Places of the staleness that are shown.
const STALENESS_MAX: usize = 8;

/// All of it; no line break at the end. Tables that are wider than this terminal are folded.
pub(crate) fn for_people(timing: &Timing, width: Option<usize>) -> String {
    let mut parts = vec![head(timing), table(timing, width)];
    if timing.algorithm.is_some() && !timing.passes.is_empty() {
        parts.push(passes(timing, width));
    }
    if let Some(counts) = &timing.staleness {
        parts.push(staleness(counts));
    }
    parts.join("\n\n")
}

/// In one line what was timed.
fn head(timing: &Timing) -> String {
    let tables = match &timing.transport[..] {
        "embedded" => "tables in this process".to_owned(),
        transport => format!("tables over {transport}"),
    };
    let algorithm = timing.algorithm.as_ref().map_or(String::new(), |name| format!("{name}, "));
    let workers = if timing.workers == 1 { "worker" } else { "workers" };
    format!(
        "{:.2} s in all: {algorithm}{} {workers}, batch {}, {tables}",
        timing.total_s,
        timing.workers,
        output::count(timing.batch_size)
    )
}

fn table(timing: &Timing, width: Option<usize>) -> String {
    let has_calls = timing.calls.rows().next().is_some();
    let columns = if has_calls { COLUMNS.len() + CALL_COLUMNS.len() } else { COLUMNS.len() + 1 };
    let header: Vec<&str> = COLUMNS.into_iter().chain(CALL_COLUMNS).take(columns).collect();
    let rows = timing.stages.iter().filter(|stage| stage.count > 0).map(of_stage);
    let calls = timing.calls.rows().map(|(labels, summary)| of_calls(labels, summary));
    let rows: Vec<Vec<String>> = rows
        .chain(calls)
        .map(|mut row| {
            row.resize(columns, String::new());
            row
        })
        .collect();
    output::columns_within(&header, &rows, &[0, 1], width)
}

fn of_stage(stage: &StageTotal) -> Vec<String> {
    let average_us = stage.seconds * 1e6 / stage.count as f64;
    vec![
        stage.name.clone(),
        "stage".to_owned(),
        output::count(stage.count),
        seconds(stage.seconds),
        format!("{:.1} %", stage.share * 100.0),
        us(average_us),
    ]
}

fn of_calls(labels: &[String], summary: &LatencySummary) -> Vec<String> {
    let LatencySummary { count, sum_ns, average_ns, max_ns, min_ns, p50_ns, p95_ns, p99_ns, p999_ns } =
        *summary;
    let [command, of] = [0, 1].map(|at| labels.get(at).cloned().unwrap_or_default());
    let mut row = vec![command, of, output::count(count), seconds(sum_ns as f64 * 1e-9), String::new()];
    let times = [average_ns, max_ns, min_ns, p50_ns, p95_ns, p99_ns, p999_ns];
    row.extend(times.map(|ns| us(ns as f64 * 1e-3)));
    row
}

fn seconds(seconds: f64) -> String {
    format!("{seconds:.3}")
}

fn us(us: f64) -> String {
    format!("{us:.1}")
}

fn passes(timing: &Timing, width: Option<usize>) -> String {
    let of_numbers = ["rmse", "mae", "predicted", "real"];
    let of_classes = ["auc", "logloss", "calibration", "normalized entropy"];
    let is_regression = timing.passes.iter().any(|pass| pass.metrics.numbers.is_some());
    let metrics = if is_regression { of_numbers } else { of_classes };
    let header: Vec<&str> = ["pass", "rows", "seconds", "examples/s"].into_iter().chain(metrics).collect();
    let left_out = timing.passes.len().saturating_sub(PASSES_MAX);
    let rows: Vec<Vec<String>> = timing.passes[left_out..]
        .iter()
        .map(|pass| {
            let finite = |value: f64| value.is_finite().then_some(value);
            let metrics = &pass.metrics;
            let scores = match metrics.numbers {
                Some(numbers) => {
                    [numbers.rmse, numbers.mae, metrics.prob_mean, metrics.real_mean].map(finite)
                }
                None => {
                    let [auc, logloss, entropy] =
                        [metrics.auc, metrics.logloss, metrics.normalized_entropy].map(finite);
                    [auc, logloss, pass.calibration, entropy]
                }
            };
            let mut row = vec![
                pass.pass.to_string(),
                if pass.measured_on == MeasuredOn::TrainSeen { "seen" } else { "new" }.to_owned(),
                seconds(pass.seconds),
                output::per_s(pass.metrics.examples as f64 / pass.seconds.max(1e-9)),
            ];
            row.extend(scores.map(output::metric));
            row
        })
        .collect();
    output::columns_within(&header, &rows, &[], width)
}

fn staleness(counts: &[u64]) -> String {
    let all = counts.iter().sum::<u64>().max(1) as f64;
    let share = |count: u64| format!("{:.1} %", count as f64 * 100.0 / all);
    let mut parts: Vec<String> = counts
        .iter()
        .take(STALENESS_MAX)
        .enumerate()
        .map(|(at, &count)| format!("{at}: {}", share(count)))
        .collect();
    let beyond: u64 = counts.iter().skip(STALENESS_MAX).sum();
    if beyond > 0 {
        parts.push(format!("{STALENESS_MAX} to {}: {}", counts.len() - 1, share(beyond)));
    }
    format!("staleness in steps  {}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sanderling_learner::{Metrics, PassTotal};
    use sanderling_observe::LatencyTable;

    fn timing() -> Timing {
        let stage =
            |name: &str, seconds, count, share| StageTotal { name: name.into(), seconds, count, share };
        let stages = vec![
            stage("read", 0.5, 1000, 0.25),
            stage("shuffle", 0.0, 0, 0.0),
            stage("pull", 1.5, 2000, 0.75),
        ];
        Timing { total_s: 2.125, stages, ..Timing::new(1, 65_536, None) }
    }

    #[test]
    fn stages_alone_without_servers() {
        let expected = "\
2.12 s in all: 1 worker, batch 65,536, tables in this process

time of         count  seconds   share  average us
read     stage  1,000    0.500  25.0 %       500.0
pull     stage  2,000    1.500  75.0 %       750.0";
        assert_eq!(for_people(&timing(), None), expected);
    }

    #[test]
    fn calls_passes_and_staleness_below_them() {
        let mut timing = Timing {
            algorithm: Some("ftrl".to_owned()),
            workers: 2,
            transport: "shm".to_owned(),
            ..timing()
        };
        let mut calls = LatencyTable::new(&["command", "of"]);
        let summary = LatencySummary {
            count: 2000,
            sum_ns: 250_000_000,
            average_ns: 125_000,
            ..LatencySummary::default()
        };
        calls.row(&["pull", "single RPC call"], summary);
        timing.calls = calls;
        let metrics = Metrics {
            examples: 100,
            auc: f64::NAN,
            logloss: 0.5,
            prob_mean: 0.5,
            real_mean: 0.5,
            normalized_entropy: 0.5 / std::f64::consts::LN_2,
            auc_exact: true,
            numbers: None,
        };
        timing.passes = vec![PassTotal::new(1, 0.5, metrics)];
        timing.staleness = Some([vec![900], vec![0; 8], vec![100]].concat());
        let expected = "\
2.12 s in all: ftrl, 2 workers, batch 65,536, tables over shm

time of                   count  seconds   share  average us  max us  min us  p50 us  p95 us  p99 us  p999 us
read     stage            1,000    0.500  25.0 %       500.0
pull     stage            2,000    1.500  75.0 %       750.0
pull     single RPC call  2,000    0.250               125.0     0.0     0.0     0.0     0.0     0.0      0.0

pass  rows  seconds  examples/s        auc   logloss  calibration  normalized entropy
   1   new    0.500         200  undefined  0.500000     1.000000            0.721348

staleness in steps  0: 90.0 %, 1: 0.0 %, 2: 0.0 %, 3: 0.0 %, 4: 0.0 %, 5: 0.0 %, 6: 0.0 %, 7: 0.0 %, 8 to 9: 10.0 %";
        assert_eq!(for_people(&timing, None), expected);
        let folded = for_people(&timing, Some(80));
        let tables = folded.split("\n\nstaleness").next().unwrap_or_default();
        assert!(tables.lines().all(|line| line.len() <= 80), "{tables}");
        assert!(folded.contains("pull     single RPC call     0.0"), "{folded}");
    }
}
