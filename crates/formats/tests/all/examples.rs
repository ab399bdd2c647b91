//! The measuring examples run, on a little data: so that they do not rot. Their figures then mean nothing.
use std::process::Command;

fn check(example: &str) {
    // Cargo builds examples beside the tests, unless only one test program was asked for.
    let path = std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples").join(example);
    if !path.exists() {
        eprintln!("skipped: {} is not built; cargo test --examples builds it", path.display());
        return;
    }
    let run = Command::new(path).arg("--tiny").output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert!(!run.stdout.is_empty());
}

#[test]
fn the_measurements_run() {
    check("format_speed");
    check("parquet_speed");
}
