//! Files that a command line names as outputs, of every command that has one: whole or not there, links stay links and pipes
//! pipes, what cannot be written is refused before there is any work. Looks at no content but that there is some.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use sanderling_testkit::outputs::{check_output, check_refused_output, check_refused_url, output_names};

use super::{Place, signal};

/// Every command with a file of its own to write: OUT stands for its name, which ends so.
const OUTPUTS: [(&str, &str); 5] = [
    ("predict runs/c/model valid.svm -o OUT", "csv"),
    ("predict runs/c/model valid.svm -o OUT", "parquet"),
    ("convert c.toml OUT --force", "batch"),
    ("synth OUT --rows 3000 --vocabulary 1000", "tsv"),
    ("synth OUT --rows 3000 --vocabulary 1000", "csv.gz"),
];

fn place() -> Place {
    let place = Place::with_synth();
    let done = place.run("train c.toml -q");
    assert_eq!(done.code, Some(0), "{}", done.err);
    std::fs::create_dir(place.path("out")).unwrap();
    place
}

fn run(place: &Place, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sanderling"))
        .args(line.split_whitespace())
        .current_dir(place.path(""))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn every_output_is_written_whole_or_refused() {
    let place = place();
    let (folder, run) = (place.path(""), |line: &str| run(&place, line));
    for (line, ending) in OUTPUTS {
        check_output(&folder, &run, line, ending);
        check_refused_output(&folder, &run, line, ending);
        check_refused_url(&folder, &run, line, ending);
    }
    check_refused_url(&folder, &run, "hub train.svm --position OUT", "position");
    // Before the model is opened.
    let done = place.run("predict nowhere valid.svm -o out/none/a.csv");
    assert!(done.err.contains("out/none/a."), "{}", done.err);
}

/// Waits until something was written that has no name yet.
fn wait_for_part(place: &Place) {
    let start = Instant::now();
    let is_begun = || {
        let files = std::fs::read_dir(place.path("out")).unwrap();
        files.flatten().any(|file| {
            let is_part = file.file_name().to_string_lossy().ends_with(".part");
            is_part && file.metadata().is_ok_and(|part| part.len() > 0)
        })
    };
    while !is_begun() {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing is written");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_is_interrupted_leaves_what_was_there() {
    let place = place();
    for (line, part) in [
        ("synth out/a.tsv --rows 1000000000 --vocabulary 1000", "out/a.tsv was not written"),
        ("predict runs/c/model - --format libsvm -o out/a.csv", "stopped before there was a result"),
    ] {
        let name = line.split_whitespace().find(|word| word.starts_with("out/")).unwrap();
        place.write(name, "old");
        let mut child = place.spawn(line);
        let (mut stdin, mut stderr) = (child.stdin.take().unwrap(), child.stderr.take().unwrap());
        // What it does not read stays in the pipe; synth reads nothing.
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || while stdin.write_all(&b"1 5:1\n".repeat(10_000)).is_ok() {});
            wait_for_part(&place);
            signal(&child, "-INT");
            assert_eq!(child.wait().unwrap().code(), Some(130), "{line}");
            writer.join().unwrap();
        });
        let mut said = String::new();
        stderr.read_to_string(&mut said).unwrap();
        assert!(said.contains(part), "{line}: {said}");
        assert_eq!(place.read(name), "old");
    }
    assert_eq!(output_names(&place.path("")), ["a.csv", "a.tsv"]);
}

/// The rows that came before are not all rows: Ctrl-C at a terminal ends what writes to the pipe, too.
#[test]
fn scores_of_a_pipe_that_was_interrupted_are_none() {
    let place = place();
    let mut child = place.spawn("predict runs/c/model - --format libsvm -o out/a.csv");
    let (mut stdin, stderr) = (child.stdin.take().unwrap(), child.stderr.take().unwrap());
    stdin.write_all(&b"1 5:1\n".repeat(400_000)).unwrap();
    wait_for_part(&place);
    signal(&child, "-INT");
    let mut said = BufReader::new(stderr).lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains("stopping; once more to stop at once")));
    drop(stdin);
    // Or it could not say anything more.
    said.for_each(drop);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(output_names(&place.path("")).is_empty(), "{:?}", output_names(&place.path("")));
}

/// A reader that has stopped reading standard error does not stop a command.
#[test]
fn a_command_ends_though_nobody_reads_its_errors() {
    let place = Place::with_synth();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut filling = writer.try_clone().unwrap();
    let filler = std::thread::spawn(move || filling.write_all(&[b'x'; 1 << 20]));
    let mut child = Command::new(env!("CARGO_BIN_EXE_sanderling"))
        .args(["train", "c.toml"])
        .current_dir(place.path(""))
        .stdout(Stdio::null())
        .stderr(writer)
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "it waits for its reader");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{status}");
    drop(reader);
    assert!(filler.join().unwrap().is_err(), "the pipe was full");
}
