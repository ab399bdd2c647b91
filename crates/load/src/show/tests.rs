//! Printed results as golden text: `golden/NAME.txt`.

use super::*;
use crate::compare::{Metric, compare_values};
use crate::result::tests::made_up;
use sanderling_observe::LatencySummary;

fn check(name: &str, found: &str, golden: &str) {
    assert_eq!(found, golden, "{name} is now:\n{found}");
    for line in found.lines() {
        assert!(line.chars().count() <= COLUMNS_MAX && line == line.trim_end(), "{name}: {line:?}");
    }
}

fn failing(mut run: RunResult) -> RunResult {
    let first =
        format!("table \"ads\" on {}: {}", "server-17.example".repeat(7), "no answer in time; ".repeat(9));
    run.measured.failures = vec![FailureCount { kind: "late".into(), count: 3, first }];
    run.measured.functions[0].failed = 3;
    run.validity.valid = false;
    let reason = "a thread of the client was busy for 97 % of the time, so that latencies are partly its own: add threads";
    run.validity.reasons = vec![reason.into()];
    run
}

#[test]
fn a_run() {
    let run = made_up("", 2000.0, 4.0, 500.0, 1);
    check("summary", &summary(&run), include_str!("golden/summary.txt"));
    check("one", &one(&run), include_str!("golden/one.txt"));
    let mut closed = run.clone();
    closed.asked.load = Load::Closed;
    check("closed", &summary(&closed), include_str!("golden/closed.txt"));
    check("failing", &one(&failing(run)), include_str!("golden/failing.txt"));
}

/// Failures are printed below the two lines, too, and a source excerpt keeps its layout.
#[test]
fn the_first_message_of_each_kind_is_shown() {
    let mut run = failing(made_up("", 2000.0, 4.0, 500.0, 1));
    let long = "a line\n".repeat(100);
    let drawn =
        "error: Missing item nothing\n  ┌─ mine.rn:2:5\n  │\n2 │     nothing(3)\n  │     ^^^^^^^ Missing";
    let kind = |kind: &str, first: &str| FailureCount { kind: kind.into(), count: 1, first: first.into() };
    run.measured.failures.extend([kind("script", drawn), kind("busy", &long), kind("lost", "not shown")]);
    let found = summary(&run);
    check("messages", &found, include_str!("golden/messages.txt"));
    let all = one(&run);
    for line in drawn.lines() {
        assert!(found.contains(&format!("    {line}\n")) && all.contains(&format!("    {line}\n")), "{all}");
    }
    assert_eq!(all.lines().filter(|line| *line == "    a line").count(), 100);
    // Of a run that gave up before it began.
    run.measured.functions.iter_mut().for_each(|function| (function.calls, function.failed) = (0, 0));
    assert!(summary(&run).contains("failed in the warm-up: 3 late, 1 script"), "{}", summary(&run));
}

/// Percentiles stand on ten samples beyond them, those of requests and servers, too.
#[test]
fn percentiles_of_few_samples_are_not_told() {
    let check = |count: u64, expected: &str, server: &str| {
        let mut run = made_up("", 20.0, 1.0, 500.0, 1);
        let summary = LatencySummary {
            count,
            sum_ns: 0,
            average_ns: 1_000,
            min_ns: 0,
            p50_ns: 2_000,
            p95_ns: 3_000,
            p99_ns: 4_000,
            p999_ns: 5_000,
            max_ns: 6_000,
        };
        run.measured.requests.truncate(1);
        run.measured.requests[0].service = summary;
        run.server[0].summary = summary;
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = one(&run).lines().map(words).collect();
        for expected in [expected, server] {
            assert!(lines.iter().any(|line| line.ends_with(expected)), "{count}: {expected} in {lines:?}");
        }
    };
    check(19, "1.00 us - - 6.00 us", "1.00 us - - - 6.00 us");
    check(20, "1.00 us 2.00 us - 6.00 us", "1.00 us 2.00 us - - 6.00 us");
    check(200, "1.00 us 2.00 us - 6.00 us", "1.00 us 2.00 us 3.00 us - 6.00 us");
    check(1000, "1.00 us 2.00 us 4.00 us 6.00 us", "1.00 us 2.00 us 3.00 us 4.00 us 6.00 us");
}

/// The measurements, whatever the options were.
#[test]
fn the_head_says_what_was_measured() {
    let mut run = made_up("", 2000.0, 4.0, 500.0, 1);
    let calls = run.measured.calls();
    for (limit, expected) in [
        (Limit::Seconds { seconds: 1.0 }, "4.00 s after".to_owned()),
        (Limit::Calls { calls }, format!("{} calls in 4.00 s after", count(calls))),
        (Limit::Calls { calls: 1_000_000 }, format!("{} of 1,000,000 calls in 4.00 s after", count(calls))),
    ] {
        run.asked.limit = limit;
        let head = heading(&run);
        assert!(head.lines().nth(1).unwrap_or_default().starts_with(&expected), "{head}");
    }
}

#[test]
fn two_runs_and_many() {
    let (a, b) = (made_up("20 k/s", 2000.0, 4.0, 500.0, 1), made_up("", 2000.0, 4.0, 530.0, 2));
    check("two", &two(&a, &b), include_str!("golden/two.txt"));
    let (mut late, mut plain) = (a.clone(), b.clone());
    late.asked.objectives.push(Objective { quantile: 0.5, below_ns: 100_000 });
    plain.asked.objectives.clear();
    let few = made_up("few", 20.0, 1.0, 500.0, 1);
    check("list", &list(&[a, failing(b), late, few, plain]), include_str!("golden/list.txt"));
}

/// Whatever many runs failed of is told below their list, or their comparison; not of all of them.
#[test]
fn doubts_are_told_of_many() {
    let valid = made_up("valid", 20.0, 1.0, 500.0, 1);
    assert_eq!(doubts(std::slice::from_ref(&valid)), "");
    let run = |label: &str, kind: &str| {
        let mut run = failing(made_up(label, 20.0, 1.0, 500.0, 1));
        run.measured.failures = vec![FailureCount { kind: kind.into(), count: 1, first: "of it".into() }];
        run
    };
    let runs = [run("A", "script"), valid, run("B", "lost"), run("C", "script"), run("D", "busy")];
    let found = doubts(&runs);
    let count = |part: &str| found.lines().filter(|line| line.contains(part)).count();
    let labels = ["A", "B", "C", "D", "valid"].map(|label| count(&format!("  {label}: NOT VALID: a thread")));
    assert_eq!(labels, [1, 1, 1, 0, 0], "{found}");
    let messages =
        ["script: of it", "lost: of it", "busy: of it", "and 1 more that are not valid"].map(count);
    assert_eq!(messages, [1, 1, 1, 1], "{found}");
}

#[test]
fn servers_count_the_warm_up() {
    let mut run = made_up("", 20.0, 1.0, 500.0, 1);
    let mut check = |warmup_s: f64, servers: bool, expected: bool| {
        run.asked.warmup_s = warmup_s;
        if !servers {
            run.server.clear();
        }
        assert_eq!(one(&run).contains("Servers count the warm-up"), expected, "{warmup_s}, {servers}");
    };
    check(1.0, true, true);
    check(0.0, true, false);
    check(1.0, false, false);
}

#[test]
fn a_comparison() {
    let a = [101.2e3, 99.8e3, 100.5e3, 102.1e3, 98.9e3, 100.0e3].to_vec();
    let b = [104.0e3, 102.9e3, 105.1e3, 103.3e3, 104.4e3, 102.2e3].to_vec();
    let values =
        [(Metric::KeysPerS, a.clone(), b.clone()), (Metric::P50, b.clone(), a), (Metric::P99, b.clone(), b)];
    let mut found = compare_values(&values, 6, 6).expect("enough runs");
    found.invalid = 1;
    check("comparison", &comparison(&found), include_str!("golden/comparison.txt"));
}

/// Two runs give no interval, and three that scatter much give one without a meaning.
#[test]
fn a_comparison_of_few_runs_says_so() {
    let of = |a: &[f64], b: &[f64]| {
        let values = [(Metric::KeysPerS, a.to_vec(), b.to_vec())];
        comparison(&compare_values(&values, a.len(), b.len()).expect("enough runs"))
    };
    check("few", &of(&[100e3, 300e3], &[104e3, 90e3]), include_str!("golden/few.txt"));
    let wild = of(&[1e3, 90e3, 10e3], &[104e3, 1e3, 5e3]);
    assert!(wild.contains(" to >999 %") && wild.lines().all(|line| line.len() <= COLUMNS_MAX), "{wild}");
}

#[test]
fn numbers_have_three_digits() {
    let found: Vec<String> = [0.0, 7.0, 999.4, 999.6, 12_345.0, 99_960.0, 1e9, 6e11].map(duration).into();
    assert_eq!(found, ["0 ns", "7 ns", "999 ns", "1.00 us", "12.3 us", "100 us", "1.00 s", "600 s"]);
    let found: Vec<String> = [0.0, 0.5, 17.0, 2_400.0, 1.234e6, 9.9999e9, f64::NAN].map(rate).into();
    assert_eq!(found, ["0", "0.50", "17", "2.40 k", "1.23 M", "10.0 G", "-"]);
    assert_eq!((count(7), count(1_234_567)), ("7".to_owned(), "1,234,567".to_owned()));
    assert_eq!(
        (numbers::percentile(0.999), numbers::percentile(0.5)),
        ("p99.9".to_owned(), "p50".to_owned())
    );
}
