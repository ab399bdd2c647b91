//! The measuring example runs, on a little data: so that it does not rot. What it measures then means nothing.
use std::process::Command;

#[test]
fn the_measurement_runs() {
    // Cargo builds examples beside the tests, unless only one test program was asked for.
    let path =
        std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples").join("format_speed");
    if !path.exists() {
        eprintln!("skipped: {} is not built; cargo test --examples builds it", path.display());
        return;
    }
    let run = Command::new(path).arg("--tiny").output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert!(!run.stdout.is_empty());
}
