//! Commands that are programs of their own: found beside this one or on PATH, with their arguments, exit codes and signals.

use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

/// Runs `sanderling` from a folder of its own, where no other program was built.
fn run(folder: &Path, args: &[&str], path: &Path) -> Output {
    let program = folder.join("sanderling");
    if !program.exists() {
        std::fs::hard_link(env!("CARGO_BIN_EXE_sanderling"), &program).unwrap();
    }
    Command::new(program).args(args).env("PATH", path).output().unwrap()
}

#[test]
fn a_command_that_is_a_program_is_started() {
    // On the file system of the build, so that the program can be linked.
    let [beside, elsewhere] = [(); 2].map(|()| tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let (beside, elsewhere) = (beside.path(), elsewhere.path());
    let missing = run(beside, &["load", "run"], elsewhere);
    let errors = String::from_utf8_lossy(&missing.stderr);
    assert_eq!(missing.status.code(), Some(1), "{errors}");
    for part in [
        "sanderling-load",
        "neither beside sanderling nor on PATH",
        "cargo install --locked --path crates/load",
    ] {
        assert!(errors.contains(part), "{errors}");
    }
    // The shell plays the program: its arguments say what it does.
    symlink("/bin/sh", elsewhere.join("sanderling-load")).unwrap();
    symlink("/bin/sh", beside.join("sanderling-bench")).unwrap();
    for name in ["load", "bench"] {
        let done = run(beside, &[name, "-c", "echo $0 $1; exit 7", "--help", "-x"], elsewhere);
        assert_eq!((done.status.code(), &done.stdout[..]), (Some(7), &b"--help -x\n"[..]), "{name}");
        let killed = run(beside, &[name, "-c", "kill -TERM $$"], elsewhere);
        assert_eq!(killed.status.signal(), Some(15), "{name}");
    }
    let help = run(beside, &["--help"], elsewhere);
    let help = String::from_utf8_lossy(&help.stdout);
    assert!(help.contains("\n  load ") && help.contains("\n  bench "), "{help}");
    let script = run(beside, &["completions", "bash"], elsewhere);
    assert!(script.status.success() && String::from_utf8_lossy(&script.stdout).contains("load"));
}
