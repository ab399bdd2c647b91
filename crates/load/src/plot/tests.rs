//! Figures of made-up runs: their lines are there, their texts too, and no number is missing. With
//! `SANDERLING_FIGURES=FOLDER` they are also written there, to be looked at.

use std::time::Duration;

use super::*;
use crate::observed::Observed;
use crate::result::tests::made_up;

/// The SVG holds the words, and lines of these colours.
fn check(name: &str, figure: &Figure, words: &[&str], colors: &[&str]) {
    let text = svg(figure);
    for word in words {
        assert!(text.contains(word), "{name}: no {word:?}");
    }
    for color in colors {
        assert!(text.contains(&format!("stroke=\"{color}\"")), "{name}: nothing in {color}");
    }
    assert!(!text.contains("NaN") && !text.contains("inf") && !text.contains("not drawn"), "{name}");
    assert!(text.starts_with("<svg xmlns=") && text.trim_end().ends_with("</svg>"), "{name}");
    if let Some(folder) = std::env::var_os("SANDERLING_FIGURES") {
        let path = std::path::Path::new(&folder).join(name);
        std::fs::write(path.with_extension("svg"), text).expect("it is written");
    }
}

/// A sweep whose latencies rise towards 12 000 calls/s, with the last runs beyond what can be done.
fn sweep() -> Vec<RunResult> {
    let run = |number: u64| {
        let due = 1000.0 * 1.25f64.powi(number as i32);
        let busy = (due / 12_000.0).min(0.99);
        let mut run = made_up(&format!("{due:.0}/s"), due.min(11_500.0), 2.0, 80.0 / (1.0 - busy), number);
        run.asked.load = Load::Open { rate_per_s: due, arrivals: "poisson".into() };
        run.validity.valid = due < 12_500.0;
        run
    };
    (0..13).map(run).collect()
}

const BLUE: &str = "#0072B2";
const ORANGE: &str = "#D55E00";
const GREEN: &str = "#009E73";

#[test]
fn a_curve_shows_every_percentile_and_what_is_not_valid() {
    let mut runs = sweep();
    runs[3].asked.objectives.push(Objective { quantile: 0.5, below_ns: 500_000 });
    let words = [
        "p50",
        "p99",
        "p99.9",
        "not valid",
        "wanted: p99 below 5.00 ms",
        "wanted: p50 below 500 us",
        "calls per second",
        "response time, ms",
    ];
    check("curve", &curve(&runs), &words, &[BLUE, ORANGE, GREEN]);
}

#[test]
fn a_run_over_time_has_two_panels() {
    let run = made_up("", 9000.0, 14.0, 300.0, 7);
    let words = ["keys per second", "Response time in ms", "p50", "p99", "longest", "seconds since"];
    check("time", &time_series(&run), &words, &[BLUE, ORANGE]);
    let mut failing = run;
    for (number, interval) in failing.measured.series.intervals.iter_mut().enumerate() {
        interval.failed = (number % 7) as u64 * 40;
    }
    check("failing", &time_series(&failing), &["Failed calls per second"], &[BLUE, ORANGE]);
}

/// 3000 calls/s to a server that stands still for a second.
fn frozen() -> RunResult {
    let mut observed = Observed::new(&["pull".to_owned()], Duration::from_secs(20));
    let mut rng = sanderling_random::Rng::new(5, 0, 0);
    for number in 0..60_000 {
        let at = f64::from(number) / 3000.0;
        let began = if (8.0..9.0).contains(&at) { 9.0 + (at - 8.0) / 9.0 } else { at };
        let service = 2e-4 * (1.0 - (1.0 - rng.unit()).ln());
        let of = Duration::from_secs_f64;
        observed.call(0, of(at), of(began - at + service), of(service), of(began - at), false);
    }
    let mut run = made_up("", 10.0, 0.3, 300.0, 1);
    run.measured = observed.measured(Duration::from_secs(20));
    run
}

#[test]
fn a_server_that_stands_still_is_seen() {
    let run = frozen();
    let figure = time_series(&run);
    check("frozen", &figure, &["Throughput, calls per second", "longest"], &[BLUE, ORANGE]);
    let (throughput, latency) = (&figure.panels[0].0.series[0].points, &figure.panels[1].0.series[0].points);
    let between = |points: &[(f64, f64)], low: f64, high: f64| -> Vec<f64> {
        points.iter().filter(|(x, _)| (low..high).contains(x)).map(|&(_, y)| y).collect()
    };
    assert!(between(throughput, 8.1, 8.9).iter().all(|&rate| rate == 0.0), "nothing ends in that second");
    assert!(
        between(latency, 8.0, 8.5).iter().all(|&ms| ms > 500.0),
        "what was due then waits for most of it"
    );
    assert!(between(latency, 12.0, 20.0).iter().all(|&ms| ms < 1.0), "the rest does not");
    check("frozen-percentiles", &percentiles(&[run]), &[">\nresponse", ">\nservice"], &[BLUE]);
}

#[test]
fn percentiles_of_several_runs_lie_over_each_other() {
    let runs = [made_up("yesterday", 9000.0, 12.0, 300.0, 1), made_up("today", 9000.0, 12.0, 260.0, 2)];
    let words = ["yesterday, response", "today, service", ">\n90 %", ">\n99.9 %", "latency, "];
    check("percentiles", &percentiles(&runs), &words, &[BLUE, ORANGE]);
    check("percentiles-one", &percentiles(&runs[..1]), &[">\nresponse", ">\nservice"], &[BLUE]);
}

#[test]
fn runs_without_anything_are_drawn_as_empty_axes() {
    let mut empty = made_up("", 10.0, 0.3, 300.0, 1);
    empty.measured = Observed::new(&[], Duration::ZERO).measured(Duration::from_millis(50));
    let runs = [empty];
    for figure in [curve(&runs), time_series(&runs[0]), percentiles(&runs), percentiles(&[]), curve(&[])] {
        let text = svg(&figure);
        assert!(text.contains("no finite values") && !text.contains("NaN"));
    }
}
