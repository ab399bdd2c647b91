//! Files that a command line names as outputs, of every command that has one: whole or not there, links stay links and pipes
//! pipes, what cannot be written is refused before there is any work. Looks at no content but that there is some.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, symlink};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Place, signal};

/// Every command with a file of its own to write: OUT stands for its name, which ends so.
const OUTPUTS: [(&str, &str); 9] = [
    ("predict runs/c/model valid.svm -o OUT", "csv"),
    ("predict runs/c/model valid.svm -o OUT", "parquet"),
    ("convert c.toml OUT --force", "batch"),
    ("synth OUT --rows 3000 --vocabulary 1000", "tsv"),
    ("synth OUT --rows 3000 --vocabulary 1000", "csv.gz"),
    (
        "bench store --keys 500 --dim 4 --batch 8 --rounds 1 --batches 2 --samples 1 --ops pull --json OUT",
        "json",
    ),
    ("load run -P keys=500 -P dim=4 -P batch=8 -n 50 -o OUT", "json"),
    ("load show run.json --hdr-log OUT", "hlog"),
    ("load plot run.json -o OUT", "svg"),
];

fn place() -> Place {
    let place = Place::with_synth();
    for line in ["train c.toml -q", "load run -P keys=500 -P dim=4 -P batch=8 -n 50 -o run.json"] {
        let done = place.run(line);
        assert_eq!(done.code, Some(0), "{line}: {}", done.err);
    }
    std::fs::create_dir(place.path("out")).unwrap();
    place
}

/// What is in the folder for outputs.
fn names(place: &Place) -> Vec<String> {
    let files = std::fs::read_dir(place.path("out")).unwrap();
    let mut names: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A new file, one that was there, one behind a link, and a pipe; nothing is left beside.
fn check(place: &Place, line: &str, ending: &str) {
    let [plain, target, link, pipe] =
        ["plain", "target", "link", "pipe"].map(|name| format!("out/{name}.{ending}"));
    let run = |name: &str| {
        let line = line.replace("OUT", name);
        let done = place.run(&line);
        assert_eq!(done.code, Some(0), "{line}: {}", done.err);
    };
    run(&plain);
    assert!(std::fs::metadata(place.path(&plain)).unwrap().len() > 10, "{plain}");
    place.write(&target, "old");
    symlink(format!("target.{ending}"), place.path(&link)).unwrap();
    run(&link);
    assert!(std::fs::symlink_metadata(place.path(&link)).unwrap().is_symlink(), "{link}");
    assert!(std::fs::metadata(place.path(&target)).unwrap().len() > 10, "{target}");
    assert!(Command::new("mkfifo").arg(place.path(&pipe)).status().unwrap().success());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| std::fs::read(place.path(&pipe)).unwrap());
        run(&pipe);
        let kind = std::fs::symlink_metadata(place.path(&pipe)).unwrap().file_type();
        // Otherwise nobody would ever write to the pipe that the reader has open.
        assert!(kind.is_fifo(), "{pipe}");
        assert!(reader.join().unwrap().len() > 10, "{pipe}");
    });
    let mut expected = [plain, target, link, pipe].map(|name| name["out/".len()..].to_owned());
    expected.sort();
    assert_eq!(names(place), expected);
    names(place).iter().for_each(|name| std::fs::remove_file(place.path("out").join(name)).unwrap());
}

#[test]
fn outputs_are_what_they_were() {
    let place = place();
    for (line, ending) in OUTPUTS {
        check(&place, line, ending);
    }
}

#[test]
fn what_cannot_be_written_is_refused_by_name() {
    let place = place();
    for (line, ending) in OUTPUTS {
        std::fs::create_dir_all(place.path(&format!("out/folder.{ending}"))).unwrap();
        for (name, part) in [
            (format!("out/none/a.{ending}"), "there is no folder out/none; make it first"),
            (format!("out/folder.{ending}"), "it is a folder; name a file in it"),
        ] {
            let done = place.run(&line.replace("OUT", &name));
            assert_eq!(done.code, Some(1), "{line} to {name}: {}", done.err);
            assert!(done.err.contains(&format!("{name}: {part}")), "{line}: {}", done.err);
        }
    }
    assert!(names(&place).iter().all(|name| name.starts_with("folder.")), "{:?}", names(&place));
    std::fs::create_dir_all(place.path("s3:/bucket")).unwrap();
    for (line, ending) in OUTPUTS.into_iter().chain([("hub train.svm --position OUT", "position")]) {
        let done = place.run(&line.replace("OUT", &format!("s3://bucket/out.{ending}")));
        assert_eq!(done.code, Some(2), "{line}: {}", done.err);
        assert!(done.err.contains("only input is read by url"), "{line}: {}", done.err);
        assert_eq!(std::fs::read_dir(place.path("s3:/bucket")).unwrap().count(), 0, "{line}");
    }
    // Before the model is opened, and before there is any load.
    let long = "load run -d 600s -o out/none/a.json";
    for line in ["predict nowhere valid.svm -o out/none/a.csv", long, &long.replace("run", "search")] {
        let done = place.run(line);
        assert!(done.err.contains("out/none/a."), "{line}: {}", done.err);
    }
}

/// Standard output that is a file is gone on with, not replaced: what is printed beside is not lost, nor what was there.
#[test]
fn standard_output_by_a_name() {
    let place = place();
    symlink("/proc/self/fd/1", place.path("stdout")).unwrap();
    let program = env!("CARGO_BIN_EXE_sanderling");
    let line = format!(
        "echo before > all.txt; '{program}' load run -P keys=500 -n 50 -o stdout >> all.txt; echo after >> all.txt"
    );
    let done = Command::new("sh").args(["-c", &line]).current_dir(place.path("")).output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    let all = place.read("all.txt");
    assert!(all.starts_with("before\n{") && all.ends_with("after\n") && all.contains("keys/s"), "{all}");
    assert!(std::fs::symlink_metadata(place.path("stdout")).unwrap().is_symlink());
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
    assert_eq!(names(&place), ["a.csv", "a.tsv"]);
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
    assert!(names(&place).is_empty(), "{:?}", names(&place));
}
