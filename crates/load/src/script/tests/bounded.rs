//! Cost of compiling hostile scripts: a child process with little address space compiles each of these.

#![allow(clippy::print_stdout)] // a child says what it found to the test

use std::process::Command;

use super::super::{Program, SOURCE_BYTES_MAX};

/// Memory limit of the child, with code, threads and the stack of the compiler.
const LIMIT_KIB: u64 = 900_000;

const FILE: &str = "SANDERLING_BOUNDED_SCRIPT";

/// Not a test of its own: what the child does.
#[test]
fn child() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let source = std::fs::read_to_string(path).expect("a script");
    match Program::new("hostile", &source).describe() {
        Ok(about) => println!("compiled {} functions", about.workloads.len()),
        Err(error) => println!("refused: {}", error.to_string().chars().take(200).collect::<String>()),
    }
}

/// The child must say this of a script, and live.
fn check(what: &str, source: &str, expected: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("hostile.rn");
    std::fs::write(&path, source).expect("written");
    let child =
        format!("ulimit -v {LIMIT_KIB}; exec \"$0\" --exact script::tests::bounded::child --nocapture");
    let test = std::env::current_exe().expect("this test");
    let output =
        Command::new("sh").args(["-c", &child]).arg(test).env(FILE, &path).output().expect("a child");
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let of = source.len();
    assert!(said.contains("compiled ") || said.contains("refused: "), "{what} of {of} bytes: {said}{errors}");
    assert!(output.status.success() && said.contains(expected), "{what} of {of} bytes: {said}{errors}");
}

/// As much of it as a script may have.
fn filled(begin: &str, part: &str, end: &str) -> String {
    let parts = (SOURCE_BYTES_MAX - begin.len() - end.len()) / part.len();
    format!("{begin}{}{end}", part.repeat(parts))
}

#[test]
fn a_script_costs_a_bounded_amount_of_memory_when_it_is_compiled() {
    check(
        "more than there may be",
        &" ".repeat(SOURCE_BYTES_MAX + 1),
        "it is longer than 256 KiB; make it shorter",
    );
    let deep = "brackets, operators or calls within each other";
    check("brackets", &filled("pub async fn f() { ", "[", ""), deep);
    check("operators", &filled("pub async fn f() { 1", "+1", " }"), deep);
    check("blocks", &filled("pub async fn f() ", "{", ""), deep);
    // Not deep, but long: what takes too much memory is refused, and what does not is compiled.
    check("functions", &filled("pub async fn f() {}\n", "fn g(){}\n", ""), "it has more functions");
    check("a list", &filled("pub async fn f() { [", "1,", "] }"), "");
    check("calls", &filled("pub async fn f() { ", "f();", " }"), "");
    check("texts", &filled("pub async fn f() { ", "`${1}`;", " }"), "");
    check("printing", &filled("pub async fn f() { ", "println!(\"{}\",1);", " }"), "");
    check("closures", &filled("pub async fn f() { ", "||1;", " }"), "");
    check("one text", &filled("pub async fn f() { \"", "a", "\" }"), "compiled 1 functions");
}
