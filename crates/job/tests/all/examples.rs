//! The examples run, on a little data, and say what is so.
#![allow(clippy::print_stderr)] // a panic is a failed test

use std::ffi::OsStr;
use std::process::Command;

/// What an example prints; None if it is not there.
fn printed(example: &str, argument: &OsStr) -> Option<String> {
    // Cargo builds examples beside the tests, unless only one test program was asked for.
    let path = std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples").join(example);
    if !path.exists() {
        eprintln!("skipped: {} is not built; cargo test --examples builds it", path.display());
        return None;
    }
    let run = Command::new(path).arg(argument).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    Some(String::from_utf8(run.stdout).unwrap())
}

/// Runs an example on a file of this text, and looks at what it prints.
fn check(example: &str, text: &str, expected: &str) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.libsvm");
    std::fs::write(&file, text).unwrap();
    if let Some(printed) = printed(example, file.as_os_str()) {
        assert_eq!(printed, expected);
    }
}

#[test]
fn features_are_counted() {
    // Key n occurs in the rows from n on.
    let row = |row: u64| {
        let keys: String = (1..=row.min(20)).map(|key| format!(" {key}:1")).collect();
        format!("0{keys}\n")
    };
    let expected: String = (1..=10).map(|key| format!("{key} {}\n", 1001 - key)).collect();
    check("feature_count", &(1..=1000).map(row).collect::<String>(), &expected);
}

#[test]
fn embeddings_are_clustered() {
    let text: String = (0..30_000).map(|key| format!("0 {key}:1\n")).collect();
    // The mean of 10,000 rows with noise in [-.5, .5) is within .015 of its point: five standard deviations.
    let expected =
        ["[1.0, 1.0]", "[5.0, 1.0]", "[1.0, 5.0]"].map(|point| format!("10000 keys around {point}\n"));
    check("kmeans", &text, &expected.concat());
}

#[test]
fn the_measurement_runs() {
    // What it measures then means nothing.
    if let Some(printed) = printed("exchange_speed", OsStr::new("--tiny")) {
        assert_eq!(printed.lines().count(), 7, "{printed}");
    }
}
