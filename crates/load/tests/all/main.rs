//! `sanderling load` end to end, tiny, against tables in the process and against a server of its own: what it prints where, what
//! its files promise, and what it says of mistakes. Judges no number.
#![allow(clippy::unwrap_used)] // In a test a panic is the report.

mod creation;
mod outputs;
mod served;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use served::Served;

/// The program with these words as its arguments, its output kept.
fn command(folder: &Path, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sanderling-load"));
    command.args(words.split_whitespace()).current_dir(folder).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(folder: &Path, words: &str) -> Output {
    command(folder, words).output().unwrap()
}

/// Standard output of a command that succeeds without a note.
fn said(folder: &Path, line: &str) -> String {
    let done = run(folder, line);
    let errors = String::from_utf8_lossy(&done.stderr);
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success() && errors.is_empty(), "{line}: {} {errors} {text}", done.status);
    text
}

/// A mistake is told in one go, with this in it.
fn check_wrong(folder: &Path, line: &str, code: i32, expected: &[&str]) {
    let done = run(folder, line);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(code), "{line}: {errors}");
    for part in expected {
        assert!(errors.contains(part), "{line}: {part} is not in {errors}");
    }
}

#[test]
fn help_has_an_example_and_fits_a_terminal() {
    let parts = ["", "schema", "load", "run", "sweep", "search", "ab", "show", "plot", "list", "selftest"];
    for part in parts {
        let mut command = command(Path::new("."), &format!("{part} --help"));
        let help = command.env("COLUMNS", "80").output().unwrap().stdout;
        let help = String::from_utf8(help).unwrap();
        assert!(help.contains("Example") && help.contains("Usage: sanderling load"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
    }
    let tree = command(Path::new("."), "--command-tree").output().unwrap().stdout;
    let tree: Value = serde_json::from_slice(&tree).unwrap();
    assert_eq!(tree["subcommands"].as_array().unwrap().len(), parts.len() - 1, "{tree}");
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A small serving workload.
const TINY: &str = "-P keys=5000 -P dim=4 -P batch=32 -P load_batch=500";

#[test]
fn a_run_is_two_lines_and_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = said(folder, &format!("run {TINY} -n 2000 -o one.json"));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(
        lines[0].contains("keys/s") && lines[0].contains("no failures") && lines[1].contains("p99"),
        "{text}"
    );
    let run = &json(&folder.join("one.json"))["runs"][0];
    assert_eq!(run["asked"]["script"]["name"], "serve");
    assert!(run["asked"]["script"]["source"].as_str().unwrap().contains("pub async fn pull"));
    assert_eq!((&run["asked"]["address"], &run["validity"]["valid"]), (&"embedded:".into(), &true.into()));
    // One seed gives the same calls, keys and missing rows on several threads.
    said(folder, &format!("run {TINY} -n 2000 --threads 3 -o two.json"));
    let count = |name: &str| -> Vec<(String, u64)> {
        let functions = json(&folder.join(name))["runs"][0]["measured"]["functions"].clone();
        let of = |one: &Value| (one["name"].as_str().unwrap().to_owned(), one["calls"].as_u64().unwrap());
        functions.as_array().unwrap().iter().map(of).collect()
    };
    assert_eq!(count("one.json"), count("two.json"));
    assert_eq!(count("one.json").iter().map(|(_, calls)| calls).sum::<u64>(), 2000);
    let shown = said(folder, "show one.json");
    assert!(shown.contains("pull") && shown.contains("p99.9"), "{shown}");
    assert!(said(folder, "show one.json two.json").contains('%'));
    check_wrong(folder, "show one.json --hdr-log ./one.json", 2, &["--hdr-log", "one of the input files"]);
    said(folder, "show one.json --hdr-log one.hlog");
    assert!(
        std::fs::read_to_string(folder.join("one.hlog")).unwrap().contains("HistogramLogWriter")
            || std::fs::read_to_string(folder.join("one.hlog")).unwrap().starts_with('#')
    );
    for (kind, out) in [("time", "a.svg"), ("percentiles", "b.svg"), ("curve", "c.svg")] {
        said(folder, &format!("plot one.json --kind {kind} -o {out}"));
        let drawn = std::fs::read(folder.join(out)).unwrap();
        assert!(drawn.starts_with(b"<svg"), "{out}");
    }
}

#[test]
fn a_server_is_loaded_swept_searched_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (one, other) = (Served::start(folder), Served::start(folder));
    let (a, b) = (one.address(), other.address());
    let made = run(folder, &format!("schema {TINY} --ps {a}"));
    assert_eq!(String::from_utf8_lossy(&made.stdout).trim(), "serve: 0 rows");
    let loaded = said(folder, &format!("load {TINY} --ps {a} --threads 2 --quiet"));
    assert!(loaded.starts_with("serve: 5,000 rows, 10 calls"), "{loaded}");
    let full = said(folder, &format!("run {TINY} --ps {a} --concurrency 3 -n 500 --full -o run.json"));
    assert!(full.contains("server"), "{full}");
    let server = json(&folder.join("run.json"))["runs"][0]["server"].clone();
    let pulls = server.as_array().unwrap().iter().find(|row| row["command"] == "pull").unwrap();
    assert!((450..=500).contains(&pulls["summary"]["count"].as_u64().unwrap()), "{server}");

    let short = "--warmup 50ms --quiet";
    let rates = "--rates 200..800:lin3 -d 300ms -o sweep.json --slo p99<50ms";
    let swept = said(folder, &format!("sweep {TINY} --ps {a} {short} {rates}"));
    assert!(swept.contains("200") && swept.contains("wanted: p99 < 50.0 ms"), "{swept}");
    said(folder, "plot sweep.json -o sweep.svg");
    check_wrong(folder, "plot sweep.json -o sweep.png", 2, &["sweep.png: figures are written as .svg"]);
    assert_eq!(json(&folder.join("sweep.json"))["command"], "sweep");

    let search = "search --slo p50<10s --trial 100ms --precision 100 -d 100ms";
    // On a busy machine the client may be late by itself at any rate.
    let done = run(folder, &format!("{search} {TINY} --ps {a} {short}"));
    let found = String::from_utf8_lossy(&done.stdout);
    let expected = if done.status.success() { "p50<10s holds up to" } else { "p50<10s holds at no rate" };
    assert!(found.contains("closed loop") && found.contains(expected), "{found}");

    let compared = said(folder, &format!("ab {a} {b} {TINY} --create --runs 2 -d 500ms {short} -o ab.json"));
    assert!(compared.contains('%'), "{compared}");
    let labels: Vec<String> = json(&folder.join("ab.json"))["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["label"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(labels, ["A", "B", "B", "A"]);
    assert!(said(folder, "show ab.json").contains('%'));
}

#[test]
fn every_workload_is_listed_and_runs() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let list = said(folder, "list");
    for name in ["ycsb_a", "ycsb_b", "ycsb_c", "ycsb_d", "ycsb_f", "serve", "train", "ctr", "churn", "drift"]
    {
        assert!(list.lines().any(|line| line.starts_with(name)), "{name} is not in {list}");
        assert!(said(folder, &format!("list {name}")).contains("parameters"));
    }
    std::fs::write(folder.join("mine.rn"), said(folder, "list serve --source")).unwrap();
    said(folder, &format!("run ./mine.rn {TINY} -n 50 -f pull:1,push:1"));
    let selftest = said(folder, "selftest --each 300ms --quiet --json");
    let selftest: Value = serde_json::from_str(&selftest).unwrap();
    assert!(selftest["empty_calls_per_s"].as_f64().unwrap() > 0.0);
    let requests = selftest["requests"].as_array().unwrap();
    assert!(
        requests.len() == 6 && requests.iter().all(|one| one["per_s"].as_f64().unwrap() > 0.0),
        "{selftest}"
    );
}

#[test]
fn mistakes_are_told_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("bad.rn"), "pub async fn pull(ctx, my) {\n    ctx.pull(my.rows,\n}\n")
        .unwrap();
    std::fs::write(folder.join("stop.rn"), "pub async fn pull(ctx, my) {\n    let x = [];\n    x[5]\n}\n")
        .unwrap();
    check_wrong(folder, "run nothing", 2, &["nothing", "serve"]);
    check_wrong(folder, "run missing.rn", 2, &["missing.rn"]);
    check_wrong(folder, "run ./bad.rn", 2, &["bad.rn:", "^"]);
    check_wrong(folder, "run serve -P kyes=5", 2, &["kyes", "keys"]);
    check_wrong(folder, "run serve -f pul:1", 2, &["pul", "pull"]);
    check_wrong(folder, "run --ps 127.0.0.1:1", 1, &["127.0.0.1:1"]);
    check_wrong(folder, "run --ps foo", 2, &["--ps: address \"foo\""]);
    check_wrong(folder, "ab embedded: foo --runs 2", 2, &["target B: address \"foo\""]);
    check_wrong(folder, "load", 2, &["--ps ADDR"]);
    check_wrong(folder, "run -d 0s", 2, &["--duration", "more than 0"]);
    check_wrong(folder, "run --deadline 0s", 2, &["--deadline"]);
    check_wrong(folder, "show missing.json", 1, &["missing.json: no such file or folder; check the path"]);
    check_wrong(folder, "search --slo 5ms", 2, &["p99<5ms"]);
    check_wrong(folder, "search --trial 0s", 2, &["--trial"]);
    check_wrong(folder, "selftest --each 0s", 2, &["--each"]);
    check_wrong(folder, "selftest --threads 0", 2, &["--threads: 1 to 1024 are possible"]);
    check_wrong(folder, "sweep --rates 5k..1k", 2, &["empty"]);
    check_wrong(folder, "ab embedded: embedded: --runs 1", 2, &["--runs"]);
    check_wrong(folder, "ab embedded: embedded: --runs 2049", 2, &["--runs: 2049", "at most 2048"]);
    check_wrong(folder, "run --arrivals uniform", 2, &["--arrivals", "--rate"]);
    check_wrong(folder, "ab embedded: embedded: --arrivals uniform", 2, &["--arrivals", "--rate"]);
    check_wrong(folder, "show bad.rn", 1, &["bad.rn"]);
    check_wrong(folder, "run ./stop.rn -o stop.rn", 2, &["--output stop.rn", "one of the input files"]);
    // Errors of the script fail the run, and it says so.
    let done = run(folder, "run ./stop.rn -n 20");
    let text = String::from_utf8_lossy(&done.stdout);
    assert_eq!(done.status.code(), Some(1), "{text}");
    assert!(text.contains("20 of 20 calls failed") && text.contains("script"), "{text}");
    // With the place, whatever the warm-up was.
    for (options, expected) in [("-n 20", "20 of 20"), ("", "failed in the warm-up")] {
        let text = String::from_utf8(run(folder, &format!("run ./stop.rn {options}")).stdout).unwrap();
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("stop.rn:3:5") && text.lines().any(|line| line.contains("^^^^")), "{text}");
    }
}

/// Runs that are several say what they failed of, too, as does what is kept of them.
#[test]
fn several_runs_that_fail_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("fails.rn"), "pub async fn go(ctx, my) {\n    let x = 1 + \"a\";\n}\n")
        .unwrap();
    let check = |line: &str, code: i32, expected: &[&str]| {
        let done = run(folder, line);
        let text = String::from_utf8_lossy(&done.stdout);
        assert_eq!(done.status.code(), Some(code), "{line}: {text}");
        for part in expected {
            assert!(text.contains(part), "{line}: {part} is not in {text}");
        }
    };
    let why = ["NOT VALID: ", "calls failed, 100.00 %", "script:", "fails.rn:2:13", "^^^^^^^"];
    let of = "--warmup 0s --quiet";
    check(&format!("sweep --rates 100,200 -d 300ms {of} ./fails.rn -o fails.json"), 1, &why);
    check("show fails.json", 0, &why);
    check(&format!("ab nowhere: nowhere: -w ./fails.rn --runs 2 -n 50 {of} -o ab.json"), 1, &why);
    check("show ab.json", 0, &why);
    check(&format!("sweep --rates 100 -d 300ms {of} --max-failures 100% ./fails.rn"), 0, &why[2..]);
    check(&format!("search --trial 300ms -d 300ms {of} ./fails.rn"), 1, &why);
    // A search without any success ends at the lowest rate, of which a trial of a microsecond has no call.
    let empty = ["at no rate", "no call fell into a trial: a longer --trial has some", "make it longer"];
    check(&format!("search --trial 1us -d 300ms {of} ./fails.rn"), 1, &empty);
}

/// Output of scripts stays apart from the result.
#[test]
fn scripts_print_to_standard_error() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let script = "pub async fn go(ctx, my) { print!(\"one \"); println!(\"two {}\", 3); dbg!(4, \"five\"); }";
    std::fs::write(folder.join("prints.rn"), script).unwrap();
    let done = run(folder, "run ./prints.rn -n 2 --quiet --json");
    let errors = String::from_utf8_lossy(&done.stderr);
    assert_eq!(errors, "one two 3\n4\n\"five\"\n".repeat(2));
    let json: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(json["runs"][0]["validity"]["valid"], true, "{json}");
}

/// Ends a command by a signal when something can have been measured: later and later, since machines are slow.
fn interrupted(folder: &Path, line: &str, has_begun: impl Fn(&Output) -> bool) -> Output {
    for wait_ms in [1500, 5000, 20_000] {
        let child = command(folder, line).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(wait_ms));
        // Not INT, which a command ignores until it hears signals if those who started it do.
        let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        assert!(killed.success(), "{line} is over");
        let done = child.wait_with_output().unwrap();
        if has_begun(&done) {
            return done;
        }
    }
    panic!("{line}: nothing was measured")
}

/// An interrupted command has its own exit code, says so, and replaces no whole result.
#[test]
fn what_is_interrupted_is_not_a_result() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let measured = |done: &Output| String::from_utf8_lossy(&done.stdout).contains("keys/s");
    let check = |line: &str, has_begun: &dyn Fn(&Output) -> bool, said: &str, noted: &str| {
        let done = interrupted(folder, line, has_begun);
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert_eq!(done.status.code(), Some(130), "{line}: {err}");
        assert!(out.contains(said) && err.contains(noted), "{line}: {out}{err}");
    };
    let run = format!("run {TINY} --warmup 100ms -d 600s -o run.json");
    check(&run, &measured, "NOT VALID: it was stopped before its end", "");
    let cut = json(&folder.join("run.json"));
    assert_eq!((&cut["cut"], &cut["runs"][0]["validity"]["valid"]), (&true.into(), &false.into()));
    said(folder, &format!("run {TINY} -n 100 -o run.json"));
    let whole = std::fs::read(folder.join("run.json")).unwrap();
    check(&run, &measured, "NOT VALID", "interrupted: run.json stays as it was");
    assert!(
        std::fs::read(folder.join("run.json")).unwrap() == whole
            && json(&folder.join("run.json"))["cut"] == false
    );

    // Runs that were over are kept; the one that was cut is none of them.
    let rates: Vec<String> = (1..=500).map(|rate| (100 + rate).to_string()).collect();
    let sweep = format!("sweep {TINY} --warmup 10ms -d 300ms -o sweep.json --rates {}", rates.join(","));
    let some = |done: &Output| String::from_utf8_lossy(&done.stdout).contains("101.0/s");
    check(&sweep, &some, "it was stopped before all runs were made", "");
    let swept = json(&folder.join("sweep.json"));
    let runs = swept["runs"].as_array().unwrap();
    assert!(swept["cut"] == true && !runs.is_empty() && runs.len() < 500, "{}", runs.len());
    for run in runs {
        assert!(run["measured"]["seconds"].as_f64().unwrap() >= 0.3, "{}", run["validity"]);
    }
    assert!(said(folder, "show sweep.json").contains("stopped before all"));

    let search = format!("search {TINY} --warmup 10ms --trial 600s -d 600s -o search.json");
    let begun = |done: &Output| done.status.code() == Some(130) && !done.stdout.is_empty();
    check(&search, &begun, "it was stopped before all runs were made", "search.json was not written");
    let ab = "ab embedded: embedded: -P keys=5000 -P dim=4 -d 600s --runs 2 -o ab.json";
    check(ab, &begun, "it was stopped before all runs were made", "ab.json was not written");
    let left: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}
