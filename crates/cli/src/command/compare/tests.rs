//! Comparisons of two runs against figures worked out by hand.
#![allow(clippy::unwrap_used)] // In a test a panic is the report.

use serde_json::{Value, json};

use super::*;

fn summary() -> Value {
    let call = |command: &str, ns: u64| {
        json!({"command": command, "of": "single RPC call", "count": 10, "average_ns": ns, "max_ns": 4 * ns, "min_ns": 0,
               "p50_ns": ns, "p95_ns": 2 * ns, "p99_ns": 3 * ns, "p999_ns": 4 * ns})
    };
    let stage = |name: &str, seconds: f64, share: f64| json!({"name": name, "seconds": seconds, "share": share, "count": 7});
    json!({
        "name": "run", "auc": 0.8, "logloss": 0.4, "prob_mean": 0.5, "real_mean": 0.5, "measured_on": "valid",
        "measured_examples": 100,
        "examples": 1000, "examples_per_s": 500.0, "train_s": 2.0, "passes": 2, "stopped": false,
        "timing": {
            "algorithm": "ftrl", "workers": 2, "batch_size": 256, "transport": "tcp", "total_s": 4.0,
            "stages": [stage("read", 1.0, 0.5), stage("evaluate", 0.0, 0.0), stage("pull", 1.0, 0.5)],
            "calls": [call("pull", 20_000), call("push", 10_000)],
            "passes": [{"anything": 1}, {"anything": 2}],
        },
    })
}

fn run_of(summary: &Value) -> Run {
    parse(&serde_json::to_vec(summary).unwrap()).unwrap()
}

#[test]
fn models_that_runs_begin_from_are_a_difference() {
    let (a, mut b) = (summary(), summary());
    let config = |rank: u64| BTreeMap::from([("model.rank".to_owned(), json!(rank))]);
    let check = |b: &Value, rank: u64, expected: &[(&str, Value, Value)]| {
        let found = all_differences(&run_of(&a), &run_of(b), &config(8), &config(rank));
        let found: Vec<_> = found
            .into_iter()
            .map(|it| (it.entry, it.a.unwrap_or_default(), it.b.unwrap_or_default()))
            .collect();
        let expected: Vec<_> =
            expected.iter().map(|(entry, a, b)| ((*entry).to_owned(), a.clone(), b.clone())).collect();
        assert_eq!(found, expected);
    };
    check(&b, 8, &[]);
    b["from"] = json!("runs/day1/model");
    check(&b, 8, &[("--from", Value::Null, json!("runs/day1/model"))]);
    check(&b, 9, &[("--from", Value::Null, json!("runs/day1/model")), ("model.rank", json!(8), json!(9))]);
}

#[test]
fn better_is_positive_whichever_way_better_is() {
    let a = summary();
    let mut b = summary();
    b["timing"]["total_s"] = json!(3.0);
    b["examples_per_s"] = json!(1000.0);
    b["auc"] = json!(0.72);
    b["logloss"] = json!(0.5);
    b["timing"]["stages"][0]["seconds"] = json!(0.25);
    b["timing"]["stages"][2]["name"] = json!("shuffle");
    b["timing"]["calls"][0]["p99_ns"] = json!(15_000);
    b["timing"]["calls"][1]["command"] = json!("pull_pooled");
    let rows = rows::rows(&run_of(&a), &run_of(&b));
    let check = |name: &str, of: &str, number: &str, expected: (Option<f64>, Option<f64>, Option<f64>)| {
        let found =
            rows.iter().find(|row| (&row.name[..], &row.of[..], &row.number[..]) == (name, of, number));
        let found = found.unwrap_or_else(|| panic!("{name}, {of}, {number} in {rows:?}"));
        let near = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => (a - b).abs() < 1e-9,
            (a, b) => a == b,
        };
        let all = near(found.a, expected.0) && near(found.b, expected.1);
        assert!(all && near(found.improvement_percent, expected.2), "{found:?}, not {expected:?}");
    };
    check("run", "total", "seconds", (Some(4.0), Some(3.0), Some(25.0)));
    check("run", "", "examples/s", (Some(500.0), Some(1000.0), Some(100.0)));
    check("run", "", "auc", (Some(0.8), Some(0.72), Some(-10.0)));
    check("run", "", "logloss", (Some(0.4), Some(0.5), Some(-25.0)));
    check("read", "stage", "seconds", (Some(1.0), Some(0.25), Some(75.0)));
    check("pull", "stage", "seconds", (Some(1.0), None, None));
    check("shuffle", "stage", "share %", (None, Some(50.0), None));
    check("pull", "single RPC call", "p99 us", (Some(60.0), Some(15.0), Some(75.0)));
    check("pull", "single RPC call", "min us", (Some(0.0), Some(0.0), None));
    check("pull_pooled", "single RPC call", "count", (None, Some(10.0), None));
    // No calls.
    assert!(!rows.iter().any(|row| row.name == "evaluate"));
    let names: Vec<&str> = rows.iter().map(|row| &row.name[..]).collect();
    let of_calls: Vec<&str> = names.iter().copied().filter(|name| name.starts_with("pu")).collect();
    assert_eq!(of_calls.first(), Some(&"pull"));
    assert_eq!(of_calls.last(), Some(&"pull_pooled"));
}

#[test]
fn other_work_is_said() {
    let same = run_of(&summary());
    assert_eq!(warnings(&same, &same), Vec::<String>::new());
    let check = |pointer: &str, value: Value, expected: &str| {
        let mut other = summary();
        *other.pointer_mut(pointer).unwrap() = value;
        assert_eq!(warnings(&same, &run_of(&other)), [expected]);
    };
    let work = |what: &str| format!("the two runs did not do the same work: {what}");
    check("/examples", json!(2000), &work("examples 1,000 and 2,000"));
    check("/passes", json!(1), &work("passes 2 and 1"));
    let resumed = "B was resumed: its total, its stages and its calls are those of its last session, while training and examples/s are of all sessions";
    check("/timing/passes", json!([{"anything": 2}]), resumed);
    check("/train_s", json!(4.5), resumed);
    check("/timing/algorithm", Value::Null, &work("algorithm ftrl and none"));
    check("/timing/workers", json!(1), &work("workers 2 and 1"));
    check("/timing/batch_size", json!(1), &work("batch size 256 and 1"));
    check("/measured_on", json!("train"), "the metrics are not of the same rows: data.valid and data.train");
    let other_rows = |what: &str| format!("the metrics are not of the same rows: {what}");
    check("/measured_examples", json!(2000), &other_rows("100 and 2,000 in data.valid"));
    check("/real_mean", json!(0.25), &other_rows("0.500000 and 0.250000 are positive in data.valid"));
    check("/stopped", json!(true), "B was stopped before its end");
    // Another way to the same tables is what is to be compared.
    let mut other = summary();
    other["timing"]["transport"] = json!("shm");
    // And an older version did not say how many rows it had measured.
    other.as_object_mut().unwrap().remove("measured_examples");
    assert_eq!(warnings(&same, &run_of(&other)), Vec::<String>::new());
}

#[test]
fn what_is_no_summary_is_said() {
    let check = |text: &[u8], expected: &str| {
        let why = parse(text).unwrap_err();
        assert!(why.contains(expected), "{why}");
    };
    check(b"{", "not a run's summary");
    check(b"{\"name\": 1}", "not a run's summary");
    let mut old = summary();
    old.as_object_mut().unwrap().remove("timing");
    check(
        &serde_json::to_vec(&old).unwrap(),
        "it has no timing, because an earlier version of sanderling wrote it",
    );
    let folder = std::env::temp_dir().join("sanderling-no-such-run");
    let errors = read(&folder).unwrap_err().to_string();
    assert!(errors.contains("no such run"), "{errors}");
}

#[test]
fn people_see_both_side_by_side() {
    let (a, b) = (run_of(&summary()), run_of(&summary()));
    let comparison = Comparison {
        a: head(&a, Path::new("runs/a")),
        b: head(&b, Path::new("runs/b")),
        differences: Vec::new(),
        rows: rows::rows(&a, &b)[..4].to_vec(),
        warnings: Vec::new(),
    };
    let expected = "\
                            A         B  improvement
run                    runs/a    runs/b
algorithm                ftrl      ftrl
workers                     2         2
batch size                256       256
transport                 tcp       tcp
examples                1,000     1,000
passes                      2         2
run  total  seconds";
    let text = for_people(&comparison, None);
    let squeeze = |text: &str| {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(squeeze(&text)[..8], squeeze(expected)[..8]);
    assert_eq!(squeeze(&text)[8], "run total seconds 4.000 4.000 +0.0 %");
}

#[test]
fn a_comparison_is_folded_at_the_width_of_the_terminal() {
    let (a, b) = (run_of(&summary()), run_of(&summary()));
    let comparison = Comparison {
        a: head(&a, Path::new("runs/a")),
        b: head(&b, Path::new("runs/b")),
        differences: Vec::new(),
        rows: rows::rows(&a, &b),
        warnings: Vec::new(),
    };
    let (folded, whole) = (for_people(&comparison, Some(80)), for_people(&comparison, None));
    assert!(whole.lines().any(|line| line.len() > 80), "{whole}");
    assert!(folded.lines().all(|line| line.len() <= 80), "{folded}");
    for number in ["average us", "p999 us"] {
        assert!(folded.contains(number), "{folded}");
    }
}
