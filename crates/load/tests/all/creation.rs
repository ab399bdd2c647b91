//! Tables that a load creates on servers: none without consent, none that is saved, none that stays.
#![allow(clippy::unwrap_used)] // In a test a panic is the report.

use std::path::Path;
use std::time::{Duration, Instant};

use sanderling_server::SaveMode;

use super::served::Served;
use super::{TINY, command, run};

/// How a command ended, and what it printed.
#[derive(Debug)]
struct Ended {
    code: i32,
    errors: String,
}

impl Ended {
    #[track_caller]
    fn fails(&self, code: i32, expected: &str) {
        assert!(self.code == code && self.errors.contains(expected), "{expected}: {self:?}");
    }
}

fn load(folder: &Path, words: &str) -> Ended {
    let output = run(folder, words);
    Ended { code: output.status.code().unwrap(), errors: String::from_utf8(output.stderr).unwrap() }
}

#[test]
fn a_load_says_what_it_would_create_and_creates_nothing_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (one, other) = (Served::start(folder), Served::start(folder));
    let (a, b) = (one.address(), other.address());
    for words in [
        format!("run --ps {a} {TINY}"),
        format!("sweep --ps {a} {TINY} --rates 100"),
        format!("search --ps {a} {TINY}"),
        format!("ab {a} {b} {TINY}"),
    ] {
        let said = load(folder, &words);
        for part in ["--create", "\"serve\"", "5,000 rows", "KiB", &a, "1 server"] {
            said.fails(2, part);
        }
        let line = said.errors.trim_end();
        assert!(line.lines().count() == 1 && line.chars().count() <= 220, "{line}");
    }
    assert!(one.tables().is_empty() && other.tables().is_empty());

    // Told to, it says so in a line before, and in another after.
    let said = load(folder, &format!("run --ps {a} {TINY} -n 200 --create"));
    assert_eq!(said.code, 0, "{said:?}");
    let lines: Vec<&str> = said.errors.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("creates temporary table \"serve\""), "{said:?}");
    assert!(lines[1].contains("dropped table \"serve\""), "{said:?}");
    let said = load(folder, &format!("ab {a} {b} {TINY} --runs 2 -n 50 --create --quiet"));
    assert!(said.code == 0 && said.errors.is_empty(), "{said:?}");
    assert!(one.tables().is_empty() && other.tables().is_empty());
}

#[test]
fn what_is_kept_or_was_there_stays() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Served::start(folder);
    let run = format!("run --ps {} {TINY} -n 200 --quiet", server.address());
    assert_eq!(load(folder, &format!("{run} --create --keep")).code, 0);
    let kept = [("serve".to_owned(), 5000, false)];
    assert_eq!(server.tables(), kept);
    let said = load(folder, &run);
    assert!(said.code == 0 && said.errors.is_empty(), "{said:?}");
    assert_eq!(server.tables(), kept);
    // An existing table without rows is filled on request, and never dropped.
    server.control().drop_table("serve").unwrap();
    // The commands that are made for it say so, and do not ask.
    let address = server.address();
    for (command, expected) in [("schema", "creates"), ("load", "fills")] {
        let said = load(folder, &format!("{command} --ps {address} {TINY}"));
        let line = said.errors.lines().next().unwrap_or_default();
        let ends = line.ends_with("which stays until sanderling ctl drop serve");
        assert!(said.code == 0 && ends && line.contains(expected) && line.contains("5,000 rows"), "{said:?}");
    }
    assert_eq!(server.tables(), kept);
    server.control().drop_table("serve").unwrap();
    assert_eq!(load(folder, &format!("schema --ps {address} {TINY}")).code, 0);
    load(folder, &run).fails(2, "fills table \"serve\"");
    assert_eq!(load(folder, &format!("{run} --create")).code, 0);
    assert_eq!(server.tables(), kept);
}

#[test]
fn a_temporary_table_is_dropped_after_errors_and_signals_and_never_saved() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Served::start_with(folder, |config| config.data = Some(folder.join("data")));
    let script = "pub fn schema(ctx) { ctx.create(\"bad\", #{ dim: 4 }); }\n\
        pub fn load_cycles() { 5 }\npub async fn load(ctx, my) { let x = 1 + \"a\"; }\npub async fn go(ctx, my) {}\n";
    std::fs::write(folder.join("bad.rn"), script).unwrap();
    let said = load(folder, &format!("run ./bad.rn --ps {} --create", server.address()));
    said.fails(1, "loading stopped");
    said.fails(1, "dropped table \"bad\"");
    assert!(server.tables().is_empty());

    let words = format!("run --ps {} {TINY} -d 600s --create", server.address());
    let child = command(folder, &words).spawn().unwrap();
    let begun = Instant::now();
    while server.tables() != [("serve".to_owned(), 5000, true)] {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", server.tables());
        std::thread::sleep(Duration::from_millis(50));
    }
    let saved = server.control().save("meanwhile", 0, SaveMode::Full).unwrap().saved;
    assert_eq!(saved.rows, 0);
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let done = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(130) && errors.contains("dropped table"), "{errors}");
    assert!(server.tables().is_empty());
}

#[test]
fn tables_that_could_not_be_dropped_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Served::start(folder);
    let words = format!("run --ps {} {TINY} -d 2s --create --ps-timeout 1s", server.address());
    let child = command(folder, &words).spawn().unwrap();
    let begun = Instant::now();
    while server.tables() != [("serve".to_owned(), 5000, true)] {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", server.tables());
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(server);
    let killed = Instant::now();
    let done = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(1) && errors.contains("sanderling ctl drop serve"), "{errors}");
    assert!(killed.elapsed() < Duration::from_secs(30), "{:?}", killed.elapsed());
}
