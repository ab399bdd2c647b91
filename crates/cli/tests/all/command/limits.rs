//! Commands on a full disk, with little address space, and with nobody who reads what they say.

use std::process::Command;
use std::time::{Duration, Instant};

use super::{Place, has_metrics};

/// No fault of the model's.
#[test]
fn a_full_disk_is_no_bad_model() {
    let place = Place::with_synth();
    // Files of more than 16 blocks, of 512 or 1024 bytes as the shell counts, cannot be written.
    let line = format!("ulimit -f 16; exec '{}' train c.toml", env!("CARGO_BIN_EXE_sanderling"));
    let output = Command::new("sh").args(["-c", &line]).current_dir(place.path("")).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("File too large"), "{err}");
}

/// Tables take a part of what there is: threads, the heap and other tables need some, too.
#[test]
fn little_address_space_is_shared() {
    let place = Place::with_synth();
    assert_eq!(place.run("synth rows.csv --rows 2000 --vocabulary 500").code, Some(0));
    let suggested = place.run("inspect rows.csv --suggest");
    assert!(suggested.out.contains("\"I13\"") && suggested.out.contains("\"C26\""), "{}", suggested.out);
    place.write("wide.toml", &suggested.out);
    for (limit_kib, line) in [
        (3_000_000, "train c.toml"),
        (8_000_000, "train c.toml"),
        (8_000_000, "eval runs/c/model valid.svm"),
        (20_000_000, "train wide.toml --passes 1"),
        (20_000_000, "inspect runs/rows/model"),
    ] {
        let limited = format!("ulimit -v {limit_kib}; exec '{}' {line}", env!("CARGO_BIN_EXE_sanderling"));
        let output = Command::new("sh").args(["-c", &limited]).current_dir(place.path("")).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{limit_kib} KiB: {line}: {err}");
    }
}

/// As when the terminal is gone, or `2>&1 | head` has seen enough.
#[test]
fn nobody_need_read_what_is_said() {
    let place = Place::with_synth();
    let mut child = place.spawn("train c.toml --passes 3 --json");
    drop(child.stderr.take());
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    has_metrics(&serde_json::from_slice(&output.stdout).unwrap(), 9000);
}
