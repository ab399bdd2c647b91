//! The files that load commands write: whole or absent, and refused before any load.

use std::path::Path;
use std::process::Command;

use sanderling_testkit::outputs::{check_output, check_refused_output, check_refused_url};

use super::{run, said};

const RUN: &str = "run -P keys=500 -P dim=4 -P batch=8 -n 50";

#[test]
fn every_output_is_written_whole_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    said(folder, &format!("{RUN} -o run.json"));
    std::fs::create_dir(folder.join("out")).unwrap();
    let run = |line: &str| run(folder, line);
    for (line, ending) in [
        (&format!("{RUN} -o OUT")[..], "json"),
        ("show run.json --hdr-log OUT", "hlog"),
        ("plot run.json -o OUT", "svg"),
    ] {
        check_output(folder, &run, line, ending);
        check_refused_output(folder, &run, line, ending);
        check_refused_url(folder, &run, line, ending);
    }
    for command in ["run", "search"] {
        let done = run(&format!("{command} -d 600s -o out/none/a.json"));
        assert!(String::from_utf8_lossy(&done.stderr).contains("out/none/a."), "{command}");
    }
}

/// A standard output that is a file is appended to, not replaced.
#[test]
fn standard_output_can_be_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::os::unix::fs::symlink("/proc/self/fd/1", folder.join("stdout")).unwrap();
    let program = env!("CARGO_BIN_EXE_sanderling-load");
    let line = format!(
        "echo before > all.txt; '{program}' run -P keys=500 -n 50 -o stdout >> all.txt; echo after >> all.txt"
    );
    let done = Command::new("sh").args(["-c", &line]).current_dir(folder).output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    let all = std::fs::read_to_string(Path::new(folder).join("all.txt")).unwrap();
    assert!(all.starts_with("before\n{") && all.ends_with("after\n") && all.contains("keys/s"), "{all}");
    assert!(std::fs::symlink_metadata(folder.join("stdout")).unwrap().is_symlink());
}
