//! Commands that are interrupted or killed: what they leave, and how a run goes on.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Place, has_metrics, signal};
use crate::process::wait_until_it_waits;

/// The lines of metrics that a run has written.
fn lines_of(place: &Place, run: &str) -> usize {
    let path = place.path(&format!("runs/{run}/metrics.jsonl"));
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// Waits until three lines of metrics more than before show that training is under way.
fn wait_for_steps(place: &Place, run: &str, before: usize) {
    let start = Instant::now();
    while lines_of(place, run) < before + 3 {
        assert!(start.elapsed() < Duration::from_secs(60), "no step after a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What comes in by a pipe may stop to come for long.
#[test]
fn a_silent_standard_input_is_not_waited_for_once_interrupted() {
    let place = Place::with_synth();
    place.run("train c.toml -q");
    for line in [
        "eval runs/c/model - --format libsvm --threads 2",
        "predict runs/c/model - --format libsvm -o out.csv",
        "convert c.toml a.batch --input - --format libsvm",
    ] {
        let mut child = place.spawn(line);
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&b"1 5:1\n".repeat(200_000)).unwrap();
        // For more of it.
        wait_until_it_waits(child.id());
        signal(&child, "-INT");
        let deadline = Instant::now() + Duration::from_secs(60);
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "{line} does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{line}: {err}");
        assert!(!place.path("out.csv").exists() && !place.path("a.batch").exists(), "{line}");
        drop(stdin);
    }
}

#[test]
fn interrupted_and_killed() {
    let place = Place::with_synth();
    place.write(
        "long.toml",
        "data = { train = \"train.svm\", valid = \"valid.svm\" }\n\
         train = { batch_size = 1, passes = 100000, print_every_steps = 500, save_every_steps = 2000 }\n",
    );
    for valid in [true, false] {
        let name = if valid { "long" } else { "plain" };
        if !valid {
            place.write("plain.toml", &place.read("long.toml").replace(", valid = \"valid.svm\"", ""));
        }
        let child = place.spawn(&format!("train {name}.toml --json"));
        wait_for_steps(&place, name, 0);
        let second = place.run(&format!("train {name}.toml -q"));
        assert!(second.code == Some(1) && second.err.contains("another process trains"), "{}", second.err);
        signal(&child, "-INT");
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["stopped"], true);
        has_metrics(&place.run(&format!("eval runs/{name}/model valid.svm --json")).json(), 1000);
        // Killed on its way, a run leaves the model that was there, and can be resumed.
        let before = lines_of(&place, name);
        let mut child = place.spawn(&format!("train {name}.toml --resume"));
        wait_for_steps(&place, name, before);
        signal(&child, "-KILL");
        child.wait().unwrap();
        has_metrics(&place.run(&format!("eval runs/{name}/model valid.svm --json")).json(), 1000);
        let steps = json["steps"].as_u64().unwrap();
        let passes = steps / 3000 + 5000;
        let stop_at = steps + 200_000;
        let resumed = place
            .run(&format!("train {name}.toml --resume -q --json --passes {passes} --max-steps {stop_at}"));
        let resumed = resumed.json();
        assert!(resumed["steps"].as_u64().unwrap() >= stop_at, "{resumed}");
    }
}

/// A stream that stays open and says nothing more must not keep a run from stopping.
#[test]
fn interrupted_while_standard_input_is_silent() {
    let place = Place::with_synth();
    for (name, threads, options) in [("stream", 1, ""), ("two", 2, ""), ("job", 1, "--algorithm ftrl")] {
        let config = format!(
            "data = {{ train = \"-\", format = \"libsvm\" }}\n\
             train = {{ shuffle_rows = 0, print_every_steps = 1, threads = {threads} }}"
        );
        place.write(&format!("{name}.toml"), &config);
        let mut child = place.spawn(&format!("train {name}.toml {options}"));
        let mut input = child.stdin.take().unwrap();
        let rows = "1 1:1 2:1\n0 2:1 3:1\n".repeat(40_000);
        input.write_all(rows.as_bytes()).unwrap();
        input.flush().unwrap();
        wait_for_steps(&place, name, 0);
        signal(&child, "-INT");
        // The pipe is still open here.
        let deadline = Instant::now() + Duration::from_secs(60);
        let status = loop {
            assert!(Instant::now() < deadline, "{name} does not end");
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        assert_eq!(status.code(), Some(130), "{name}");
        drop(input);
        assert_eq!(place.run(&format!("inspect runs/{name}/model")).code, Some(0), "{name}");
    }
}
