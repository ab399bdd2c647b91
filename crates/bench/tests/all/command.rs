//! `sanderling bench` end to end, tiny: what it prints where, and what its JSON promises. Judges no number.

use std::process::{Command, Output};

use sanderling_testkit::outputs::{check_output, check_refused_output, check_refused_url};
use serde_json::Value;

fn run(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sanderling-bench")).args(line.split_whitespace()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Checks the rows of `results`.
fn check_rows(json: &Value, ops: &[&str], dists: &[&str], threads: &[u64]) {
    let rows = json["results"].as_array().unwrap();
    assert_eq!(rows.len(), ops.len() * dists.len() * threads.len(), "{json}");
    for row in rows {
        assert!(ops.contains(&row["op"].as_str().unwrap()), "{row}");
        assert!(dists.contains(&row["dist"].as_str().unwrap()), "{row}");
        assert!(threads.contains(&row["threads"].as_u64().unwrap()), "{row}");
        for key in ["keys", "dim", "batch"] {
            assert!(row[key].as_u64().unwrap() > 0, "{key} of {row}");
        }
        for key in ["mkeys_per_s", "limit_mkeys_per_s", "ratio", "ns_per_key", "p50_us", "p99_us", "gb_per_s"]
        {
            assert!(row[key].as_f64().unwrap() > 0.0, "{key} of {row}");
        }
        assert_eq!(row["read_only_mkeys_per_s"].is_number(), row["op"] == "mix98", "{row}");
    }
}

const TINY: &str = "store --keys 2000 --dim 4 --batch-size 32 --samples 2 --rounds 1 --batches 50";

#[test]
fn json_on_standard_output_is_all_there_is() {
    let done = run(&format!("{TINY} --threads 1,2 --ids shifted --json -"));
    assert!(done.status.success() && done.stderr.is_empty(), "{}", text(&done.stderr));
    assert_eq!(text(&done.stdout).lines().count(), 1);
    let json: Value = serde_json::from_slice(&done.stdout).unwrap();
    let ops = ["pull", "pull_pooled", "push", "mix98"];
    check_rows(&json, &ops, &["uniform", "zipf0.9", "zipf0.99"], &[1, 2]);
    assert!(json["machine"]["cpu"].is_string() && json["options"]["ids"] == "shifted");
    let load = json["load"].as_array().unwrap();
    assert_eq!(load.iter().map(|row| row["threads"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);
    assert!(load.iter().all(|row| row["rows"] == 2000 && row["mrows_per_s"].as_f64().unwrap() > 0.0));
}

#[test]
fn the_json_file_is_written_whole_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("out")).unwrap();
    let run = |line: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sanderling-bench"));
        command.args(line.split_whitespace()).current_dir(dir.path()).output().unwrap()
    };
    let tiny = "store --keys 500 --dim 4 --batch-size 8 --rounds 1 --batches 2 --samples 1";
    let line = format!("{tiny} --ops pull --json OUT");
    check_output(dir.path(), &run, &line, "json");
    check_refused_output(dir.path(), &run, &line, "json");
    check_refused_url(dir.path(), &run, &line, "json");
}

#[test]
fn a_table_for_people_and_json_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.json");
    let options = "--threads 1 --ops pull,mix98 --dists zipf1.1 --optimizer sgd --sweep";
    let done = run(&format!("{TINY} {options} --json {}", path.display()));
    assert!(done.status.success() && done.stderr.is_empty(), "{}", text(&done.stderr));
    for part in [
        "2,000 keys, dim 4, sgd, f32",
        "M rows/s, 1 thread",
        "huge pages",
        "p99 us",
        "pulls only",
        "limit of",
        "best ",
    ] {
        assert!(text(&done.stdout).contains(part), "{part} in {}", text(&done.stdout));
    }
    let json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    check_rows(&json, &["pull", "mix98"], &["zipf1.1"], &[1]);
    let mut best = json["sweep"].as_array().unwrap().iter().filter(|row| row["op"] == "pull");
    let ahead = &json["results"][0]["limit_ahead"];
    assert!(best.any(|row| &row["ahead"] == ahead), "{json}");
}

const TRANSPORTS: [&str; 8] =
    ["in-process", "shm", "unix", "tcp", "tls", "grpc-unary", "grpc-bidi", "grpc-unary-untuned"];
const TINY_RPC: &str = "rpc --rows 3000 --dim 4 --batch-size 16 --rounds 2 --duration 20ms --calls 3";

/// That answers are right is checked by the benchmark itself, which ends otherwise.
#[test]
fn all_transports_are_measured_side_by_side() {
    let options = format!("--in-flight 1,4 --transports {}", TRANSPORTS.join(","));
    let done = run(&format!("{TINY_RPC} {options} --json -"));
    assert!(done.status.success() && done.stderr.is_empty(), "{}", text(&done.stderr));
    assert_eq!(text(&done.stdout).lines().count(), 1);
    let json: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert!(json["machine"]["cpu"].is_string() && json["options"]["calls"] == 3);
    // All of them, though the client is bound to some.
    let usable = std::thread::available_parallelism().unwrap().get() as u64;
    assert_eq!(json["machine"]["cpus_usable"], usable);
    assert!(json["malloc"].is_string(), "the rival's allocator was not tuned");
    let rows = json["results"].as_array().unwrap();
    for transport in TRANSPORTS {
        for pinning in ["unpinned", "pinned"] {
            for in_flight in [1, 4] {
                let same = |row: &&Value| {
                    row["transport"] == transport
                        && row["pinning"] == pinning
                        && row["in_flight"] == in_flight
                };
                // Without a transport nothing is in flight.
                let expected = usize::from(transport != "in-process" || in_flight == 1);
                assert_eq!(rows.iter().filter(same).count(), expected, "{transport} {pinning} {in_flight}");
            }
        }
    }
    for row in rows {
        let positive = |value: &Value| assert!(value.as_f64().unwrap() > 0.0, "{row}");
        positive(&row["requests_per_s"]);
        assert_eq!(row["rounds"].as_array().unwrap().len(), 2, "{row}");
        let has_constant = ["shm", "unix", "tcp", "tls"].contains(&row["transport"].as_str().unwrap());
        for name in ["constant_per_s", "ratio"] {
            assert_eq!(row[name].is_number(), has_constant, "{name} of {row}");
        }
        positive(&row["half_load"]["offered_per_s"]);
        positive(&row["half_load"]["p99_to_p50"]);
        for summary in [&row["call"], &row["request"], &row["half_load"]["call"]] {
            let names = ["min_ns", "p50_ns", "p95_ns", "p99_ns", "p999_ns", "max_ns"];
            let ns = names.map(|name| summary[name].as_u64().unwrap());
            assert!(ns.is_sorted() && ns[0] > 0, "{row}");
            positive(&summary["count"]);
            positive(&summary["average_ns"]);
        }
    }
}

#[test]
fn transports_for_people() {
    let done = run(&format!("{TINY_RPC} --transports shm,grpc-bidi --in-flight 2 --pinnings unpinned"));
    assert!(done.status.success() && done.stderr.is_empty(), "{}", text(&done.stderr));
    for part in
        ["16 rows of dim 4 from 3,000", "half load/s", "a single RPC call", "all 3 RPC calls of one request"]
    {
        assert!(text(&done.stdout).contains(part), "{part} in {}", text(&done.stdout));
    }
}

#[test]
fn what_cannot_be_measured_is_said() {
    for (line, code, part) in [
        ("", 2, "sanderling bench"),
        ("store --keys 0", 2, "keys = 0"),
        ("store --threads 0", 2, "threads = 0"),
        ("store --ops pul", 2, "pull_pooled"),
        ("store --dists zipf", 2, "zipf0.99"),
        ("store --ids odd", 2, "shifted"),
        ("store --keys 2000000000 --dim 4096", 1, "lower the keys or the dim"),
        ("rpc --transports telepathy", 2, "grpc-bidi"),
        ("rpc --in-flight 65 --transports tcp", 2, "in-flight = 65"),
        ("rpc --rows 2000000000 --dim 4096 --batch-size 8 --transports shm", 1, "lower the rows"),
        ("store --batch 32", 2, "`--batch` is now `--batch-size`"),
        ("rpc-server nonsense", 2, "expected"),
        (
            "store --keys 10 --rounds 1 --batches 1 --samples 1 --json /nonexistent/a.json",
            1,
            "/nonexistent/a.json",
        ),
    ] {
        let done = run(line);
        assert_eq!(done.status.code(), Some(code), "{line}: {}", text(&done.stderr));
        assert!(text(&done.stderr).contains(part), "{line}: {}", text(&done.stderr));
    }
    for line in ["--help", "rpc --help"] {
        assert!(text(&run(line).stdout).contains("Examples:\n"), "{line}");
    }
    let help = run("store --help");
    for part in ["Examples:\n", "\n  sanderling bench store\n"] {
        assert!(text(&help.stdout).contains(part), "{}", text(&help.stdout));
    }
}
