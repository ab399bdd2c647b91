//! What a training leaves behind beside its model: what its time went to, its profile, and its comparison with another.

use std::process::Command;

use quick_xml::events::Event;
use serde_json::Value;

use super::{ADULT, Place};

/// The percentages of a line, before its words.
fn shares(line: &str) -> Vec<f64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.windows(2).filter(|pair| pair[1] == "%").map(|pair| pair[0].parse().unwrap()).collect()
}

/// The table of a profile: its parts, its functions.
fn check_text(text: &str) {
    let (parts, functions) = text.split_once("cumulative  function").unwrap();
    let check = |lines: &str, least: usize, rounding: f64| {
        let lines: Vec<&str> = lines.lines().filter(|line| line.contains(" %")).collect();
        assert!(lines.len() >= least, "{text}");
        let all: Vec<Vec<f64>> = lines.iter().map(|line| shares(line)).collect();
        assert!(all.iter().flatten().all(|share| (0.0..=100.0).contains(share)), "{text}");
        let flat: f64 = all.iter().map(|shares| shares[0]).sum();
        assert!((flat - 100.0).abs() <= rounding, "flat shares sum to {flat}:\n{text}");
    };
    check(parts, 5, 0.3);
    check(functions, 10, 2.5);
    assert!(parts.contains("\nrpc ") && functions.contains("sanderling_learner::"), "{text}");
}

fn check_svg(svg: &str) {
    let (mut reader, mut rectangles) = (quick_xml::Reader::from_str(svg), 0);
    loop {
        match reader.read_event().unwrap() {
            Event::Eof => break,
            Event::Empty(tag) if tag.name().as_ref() == b"rect" => rectangles += 1,
            _ => {}
        }
    }
    assert!(rectangles > 10 && svg.contains("sanderling_learner"), "{rectangles} rectangles");
}

fn check_timing(summary: &Value, passes: usize) {
    let timing = &summary["timing"];
    assert_eq!((&timing["transport"], &timing["calls"]), (&"embedded".into(), &Value::Array(Vec::new())));
    assert!(timing["total_s"].as_f64() >= summary["train_s"].as_f64(), "{timing}");
    let stages = timing["stages"].as_array().unwrap();
    let share: f64 = stages.iter().map(|stage| stage["share"].as_f64().unwrap()).sum();
    assert!((share - 1.0).abs() < 1e-6, "{timing}");
    for name in ["read", "pull", "compute", "push"] {
        assert!(stages.iter().any(|stage| stage["name"] == name), "{name} in {timing}");
    }
    let of_passes = timing["passes"].as_array().unwrap();
    assert_eq!(of_passes.len(), passes);
    for pass in of_passes {
        let entropy = pass["normalized_entropy"].as_f64().unwrap();
        assert!(entropy > 0.3 && entropy < 1.0 && pass["examples"] == 32_561, "{pass}");
    }
}

#[test]
fn a_run_is_timed_profiled_and_compared() {
    let place = Place::new();
    let config = std::fs::read_to_string(format!("{ADULT}/../../examples/adult_lr.toml")).unwrap();
    place.write("adult.toml", &config.replace("data/adult", ADULT));
    let first = place.run("train adult.toml --name first --passes 4 --profile");
    assert_eq!(first.code, Some(0), "{}", first.err);
    for part in ["s in all: ", "tables in this process", "time of", "compute   stage"] {
        assert!(first.err.contains(part), "{part} in\n{}", first.err);
    }
    assert!(first.out.contains("runs/first/profile.svg, rpc "), "{}", first.out);
    check_text(&place.read("runs/first/profile.txt"));
    check_svg(&place.read("runs/first/profile.svg"));
    let second = place.run("train adult.toml --name second --passes 2 --quiet");
    assert_eq!((second.code, &second.err[..]), (Some(0), ""));
    for (name, passes) in [("first", 4), ("second", 2)] {
        let summary = place.read(&format!("runs/{name}/summary.json"));
        check_timing(&serde_json::from_str(&summary).unwrap(), passes);
    }

    let compared = place.run("compare runs/first runs/second/summary.json --json");
    assert!(compared.err.contains("did not do the same work: examples 130,244 and 65,122; passes 4 and 2"));
    let json = compared.json();
    assert_eq!((&json["a"]["name"], &json["b"]["passes"]), (&"first".into(), &2.into()));
    let rows = json["rows"].as_array().unwrap();
    let total = rows.iter().find(|row| row["name"] == "run" && row["of"] == "total").unwrap();
    let [a, b, improvement] = ["a", "b", "improvement_percent"].map(|key| total[key].as_f64().unwrap());
    assert!((improvement - 100.0 * (a - b) / a).abs() < 1e-6, "{total}");
    assert!(rows.iter().any(|row| row["name"] == "compute" && row["of"] == "stage"), "{json}");
    let same = place.run("compare runs/first runs/first");
    assert_eq!((same.code, &same.err[..]), (Some(0), ""));
    assert!(same.out.contains("improvement") && same.out.contains("+0.0 %"), "{}", same.out);

    place.write("old.json", &place.read("runs/first/summary.json").replace("\"timing\"", "\"other\""));
    std::fs::create_dir(place.path("empty")).unwrap();
    for (other, code, expected) in [
        ("runs/third", 2, "runs/third: no such run"),
        ("empty", 1, "empty: there is no summary.json"),
        ("old.json", 1, "it has no timing"),
        ("adult.toml", 1, "not a run's summary"),
    ] {
        let failed = place.run(&format!("compare runs/first {other}"));
        assert_eq!(failed.code, Some(code), "{}", failed.err);
        assert!(failed.err.contains(expected), "{expected} in {}", failed.err);
    }
}

/// Else nobody would know before the run's end that no function has a name.
#[test]
fn a_program_without_symbols_profiles_nothing() {
    let place = Place::new();
    let config = std::fs::read_to_string(format!("{ADULT}/../../examples/adult_lr.toml")).unwrap();
    place.write("adult.toml", &config.replace("data/adult", ADULT));
    let program = place.path("stripped");
    let output = |command: &mut Command| command.output().unwrap();
    // A C compiler comes with it.
    let made = output(Command::new("strip").arg("-o").arg(&program).arg(env!("CARGO_BIN_EXE_sanderling")));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let train = ["train", "adult.toml", "--profile", "--quiet"];
    let refused = output(Command::new(&program).args(train).current_dir(place.path("")));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("stripped of its symbols"), "{said}");
    assert!(!place.path("runs").exists(), "a run was begun");
}
