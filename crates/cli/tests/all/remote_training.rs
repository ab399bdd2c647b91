//! `sanderling train --ps` against servers that are processes of their own: the model is the one that is trained without
//! them, also when one of them is killed on the way and the run is resumed.

mod away;
mod restarts;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::{Process, wait_until_it_waits};
use sanderling_store::{Checkpoint, Row, RowRef, StoreError};
use serde_json::Value;

/// Far longer than anything takes that goes well.
const LONG: Duration = Duration::from_secs(120);

const CONFIG: &str = r#"
name = "run"
model = { type = "fm", rank = 4, table_budget = "0" }
optimizer = { type = "ftrl", alpha = 0.1, l1 = 0.001 }
factor_optimizer = { type = "adagrad", lr = 0.05 }
data = { train = "train.svm" }
train = { batch_size = 32, threads = 1, shuffle_rows = 500, passes = 60, save_every_steps = 50 }
"#;

/// Rows with a factor per field, and numbers as labels.
const FIELDS: &str = r#"
model = { type = "ffm", rank = 4 }
optimizer = { type = "adagrad", lr = 0.1 }
data = { train = "rows.ffm" }
train = { loss = "mse", batch_size = 32, shuffle_rows = 500 }
[[feature]]
each = ["field_0", "field_1", "field_2"]
type = "sparse"
"#;

fn server(place: &Place, shard: &str) -> Process {
    Process::start_at(place.0.path(), "127.0.0.1:0", 1, "", &format!("--no-local --shard {shard}"))
}

/// The option that names the servers.
fn ps(servers: &[Process]) -> String {
    let addresses: Vec<String> = servers.iter().map(|server| server.addresses[0].to_string()).collect();
    format!("--ps {}", addresses.join(","))
}

/// A directory with data, in which commands run.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        place.json("synth train.svm --rows 3000 --vocabulary 2000 --json");
        place.json("synth valid.svm --rows 500 --first-row 3000 --vocabulary 2000 --json");
        std::fs::write(place.path("c.toml"), CONFIG).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sanderling"));
        command.args(line.split_whitespace()).current_dir(self.0.path());
        command
    }

    /// What a command that succeeds prints.
    fn json(&self, line: &str) -> Value {
        let output = self.command(line).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// Everything that a model's directory says of its tables, but for the use clock, which may lag where threads take turns.
fn tables(model: &Path) -> Vec<(String, String, Vec<Row>)> {
    let checkpoint = Checkpoint::open(model).unwrap();
    let tables = checkpoint.tables().iter().map(|table| {
        let mut rows = Vec::new();
        let note = |row: RowRef<'_>| {
            let RowRef { key, frequency, version, weights, state, .. } = row;
            let (weights, state) = (weights.to_vec(), state.to_vec());
            rows.push(Row { key, frequency, last_use: 0, version, weights, state });
            Ok::<(), StoreError>(())
        };
        checkpoint.for_each_row(&table.name, note).unwrap();
        rows.sort_by_key(|row| row.key);
        (table.name.clone(), format!("{:?}", table.config), rows)
    });
    tables.collect()
}

pub(crate) fn assert_same(found: &Path, expected: &Path) {
    let (found_tables, expected_tables) = (tables(found), tables(expected));
    for (found, expected) in found_tables.iter().zip(&expected_tables) {
        assert_eq!((&found.0, &found.1), (&expected.0, &expected.1));
        assert!(found.2 == expected.2, "the rows of table {} differ", found.0);
    }
    assert_eq!(found_tables.len(), expected_tables.len());
    let config = |model| Checkpoint::open(model).unwrap().blob("config.toml").unwrap();
    assert_eq!(config(found), config(expected));
    let blobs =
        |model| Checkpoint::open(model).unwrap().blobs().iter().map(|blob| blob.name.clone()).collect();
    let (found, expected): (Vec<String>, Vec<String>) = (blobs(found), blobs(expected));
    assert_eq!(found, expected);
}

#[test]
fn a_model_that_was_trained_on_servers_is_the_same_model() {
    let place = Place::new();
    let servers = ["0/2", "1/2"].map(|shard| server(&place, shard));
    let ps = ps(&servers);
    let here = place.json("train c.toml --passes 2 --quiet --json --runs-dir here");
    let there =
        place.json(&format!("train c.toml --passes 2 --quiet --json --runs-dir there --profile {ps}"));
    // Signals of the profile disturb nobody who waits for an answer.
    assert!(place.path("there/run/profile.svg").exists());
    let timing = &there["timing"];
    assert_eq!((&timing["transport"], &here["timing"]["transport"]), (&"tcp".into(), &"embedded".into()));
    for of in ["single RPC call", "all RPC calls of one request"] {
        let calls = timing["calls"].as_array().unwrap();
        let found =
            calls.iter().any(|row| row["command"] == "pull" && row["of"] == of && row["p99_ns"].is_u64());
        assert!(found, "{of} in {timing}");
    }
    for number in ["auc", "logloss", "prob_mean", "examples", "steps", "rows"] {
        assert_eq!(here[number], there[number], "{number}");
    }
    assert_same(&place.path("there/run/model"), &place.path("here/run/model"));

    // Measured and predicted with the rows that are on the servers, it is the same, too.
    let evaluated = ["", &ps].map(|ps| place.json(&format!("eval there/run/model valid.svm --json {ps}")));
    for number in ["auc", "logloss", "prob_mean", "real_mean", "examples", "rows"] {
        assert_eq!(evaluated[0][number], evaluated[1][number], "{number}");
    }
    for (ps, output) in [("", "a.csv"), (&ps, "b.csv")] {
        place.json(&format!("predict there/run/model valid.svm --json --output {output} {ps}"));
    }
    let scores = ["a.csv", "b.csv"].map(|name| std::fs::read_to_string(place.path(name)).unwrap());
    assert!(scores[0] == scores[1] && scores[0].lines().count() == 500);

    // A run goes on wherever it is wanted: what was trained on servers in this process, and the reverse.
    place.json(&format!("train c.toml --passes 3 --resume --quiet --json --runs-dir here {ps}"));
    place.json("train c.toml --passes 3 --resume --quiet --json --runs-dir there");
    place.json("train c.toml --passes 3 --quiet --json --runs-dir whole");
    for runs in ["here", "there"] {
        assert_same(&place.path(runs).join("run/model"), &place.path("whole/run/model"));
    }
}

#[test]
fn a_model_is_continued_on_servers_as_in_this_process() {
    let place = Place::new();
    std::fs::write(place.path("step.toml"), IN_STEP).unwrap();
    place.json("synth day2.svm --rows 1500 --first-row 3000 --vocabulary 2000 --json");
    let servers = ["0/2", "1/2"].map(|shard| server(&place, shard));
    let ps = ps(&servers);
    for (config, job) in [("c", ""), ("step", "--algorithm ftrl-sync --workers 2")] {
        place.json(&format!("train {config}.toml --passes 1 --name {config}1 --quiet --json {job}"));
        let continued = |dir: &str, ps: &str| {
            let from = format!("--from runs/{config}1/model --train day2.svm --predict-first");
            let name = format!("--name {config}2 --runs-dir {dir}");
            place.json(&format!("train {config}.toml --passes 1 {from} {name} --quiet --json {job} {ps}"))
        };
        let (here, there) = (continued("here", ""), continued("there", &ps));
        for number in ["auc", "examples", "steps", "rows", "progressive_curve"] {
            assert_eq!(here[number], there[number], "{config}: {number}");
        }
        assert_eq!(here["progressive_curve"].as_array().map(Vec::len), Some(1), "{config}");
        let model = format!("{config}2/model");
        assert_same(&place.path("there").join(&model), &place.path("here").join(&model));
    }
}

#[test]
fn the_model_is_the_same_over_tcp() {
    let place = Place::new();
    let row =
        |at: u32| format!("{}.5 0:{}:1 1:{}:0.5 1:{}:2 2:{}:1\n", at % 7, at % 19, at % 23, at % 5, at % 29);
    std::fs::write(place.path("rows.ffm"), (0..2000).map(row).collect::<String>()).unwrap();
    std::fs::write(place.path("fields.toml"), FIELDS).unwrap();
    place.json("train c.toml --passes 1 --quiet --json --runs-dir here");
    let servers = ["0/2", "1/2"].map(|shard| {
        Process::start_at(place.0.path(), "127.0.0.1:0", 1, "", &format!("--no-local --shard {shard}"))
    });
    place.json(&format!("train c.toml --passes 1 --quiet --json --runs-dir tcp {}", ps(&servers)));
    assert_same(&place.path("tcp/run/model"), &place.path("here/run/model"));
    let summary = std::fs::read(place.path("tcp/run/summary.json")).unwrap();
    let summary: Value = serde_json::from_slice(&summary).unwrap();
    assert_eq!(summary["timing"]["transport"], "tcp");
    let here = place.json("train fields.toml --passes 1 --quiet --json --runs-dir here");
    let there =
        place.json(&format!("train fields.toml --passes 1 --quiet --json --runs-dir tcp {}", ps(&servers)));
    assert_eq!((&here["rmse"], here["rmse"].is_f64()), (&there["rmse"], true));
    assert_same(&place.path("tcp/fields/model"), &place.path("here/fields/model"));
}

#[test]
fn a_killed_server_ends_the_run_and_resuming_it_loses_nothing() {
    let place = Place::new();
    let mut servers = ["0/2", "1/2"].map(|shard| server(&place, shard));
    let line = format!("train c.toml --quiet --runs-dir there {}", ps(&servers));
    let mut training = place.command(&line).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let (model, start) = (place.path("there/run/model"), Instant::now());
    while !model.join("manifest.json").exists() {
        assert!(start.elapsed() < LONG && training.try_wait().unwrap().is_none(), "nothing was saved");
        std::thread::sleep(Duration::from_millis(1));
    }
    servers[1].signal("KILL");
    let output = training.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let named = [0, 1].map(|shard: usize| errors.contains(&servers[shard].addresses[0].to_string()));
    assert_eq!(named, [false, true], "{errors}");
    assert!(errors.contains("--resume goes on from what the run has saved"), "{errors}");

    // The server that is left has rows from after the save; they do not count.
    servers[1] = server(&place, "1/2");
    let state = Checkpoint::open(&model).unwrap().blob("run.json").unwrap();
    let state: Value = serde_json::from_slice(&state).unwrap();
    let steps = state["step"].as_u64().unwrap() + 120;
    let options = format!("--max-steps {steps} --quiet --json");
    let resumed = place.json(&format!("train c.toml --resume --runs-dir there {options} {}", ps(&servers)));
    assert_eq!(resumed["steps"], steps);
    place.json(&format!("train c.toml --runs-dir here {options}"));
    assert_same(&model, &place.path("here/run/model"));
}

/// What a command ends with that was interrupted.
const INTERRUPTED: i32 = 130;

/// None of these may wait for the deadline of a request: what they say tells which of the two ended the wait.
#[test]
fn the_first_signal_ends_a_run_whose_server_does_not_answer() {
    let place = Place::new();
    std::fs::write(place.path("job.toml"), IN_STEP).unwrap();
    for (name, config, options, signal) in [
        ("minibatches", "c", "", "INT"),
        ("threads", "c", "--threads 2", "TERM"),
        ("job", "job", "--algorithm ftrl --workers 2", "TERM"),
        ("in-step", "job", "--algorithm ftrl-sync --workers 2", "INT"),
    ] {
        let servers = ["0/2", "1/2"].map(|shard| server(&place, shard));
        let options = format!("--name {name} --passes 1000000 --runs-dir there {options} {}", ps(&servers));
        let line = format!("train {config}.toml {options}");
        let mut training = place.command(&line).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let (model, start) = (place.path(&format!("there/{name}/model")), Instant::now());
        while !model.join("manifest.json").exists() {
            assert!(start.elapsed() < LONG && training.try_wait().unwrap().is_none(), "nothing was saved");
            std::thread::sleep(Duration::from_millis(1));
        }
        servers[1].signal("STOP");
        // For that server.
        wait_until_it_waits(training.id());
        let told = Command::new("kill").args([format!("-{signal}"), training.id().to_string()]).status();
        assert!(told.unwrap().success());
        let output = training.wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!errors.contains("no answer within"), "{name} waited for the deadline: {errors}");
        assert_eq!(output.status.code(), Some(INTERRUPTED), "{name}: {errors}");
        // A job is back at the end of a pass, unless it was about to save one.
        let address = servers[1].addresses[0].to_string();
        let named = errors.contains("stopped while this server did not answer") && errors.contains(&address);
        let is_back = errors.contains("it is saved as it was after pass");
        assert!((named || config == "job" && is_back) && errors.contains("--resume"), "{name}: {errors}");
    }
}

pub(crate) const IN_STEP: &str = r#"
name = "run"
model = { rank = 4 }
optimizer = { type = "ftrl", alpha = 0.1, l1 = 0.001 }
data = { train = "train.svm" }
train = { batch_size = 64, passes = 2 }
"#;

#[test]
fn workers_in_step_over_servers_give_the_bits_of_one_in_this_process() {
    let place = Place::new();
    std::fs::write(place.path("step.toml"), IN_STEP).unwrap();
    let servers = ["0/2", "1/2"].map(|shard| server(&place, shard));
    let ps = ps(&servers);
    for algorithm in ["ftrl-sync", "fm-sync", "ftrl-sync-no-shuffle"] {
        let train = |dir: &str, workers: u32, ps: &str| {
            let job = format!("--algorithm {algorithm} --workers {workers}");
            place.json(&format!("train step.toml {job} --quiet --json --runs-dir {dir} {ps}"))
        };
        let here = train("here", 1, "");
        for workers in [1, 2, 4] {
            let there = train("there", workers, &ps);
            for number in ["auc", "examples", "steps", "rows"] {
                assert_eq!(here[number], there[number], "{algorithm}, {workers} workers: {number}");
            }
            assert_same(&place.path("there/run/model"), &place.path("here/run/model"));
        }
    }
    // Each on its own way, and batches of one row are no exception.
    for batch in [16, 1] {
        let line = format!(
            "train step.toml --algorithm ftrl --workers 2 --passes 1 --batch-size {batch} --quiet --json {ps}"
        );
        let alone = place.json(&line);
        assert_eq!(alone["examples"], 3000);
        let staleness = alone["timing"]["staleness"].as_array().unwrap();
        let pushes: u64 = staleness.iter().filter_map(Value::as_u64).sum();
        assert_eq!(pushes, alone["steps"].as_u64().unwrap());
    }
}
