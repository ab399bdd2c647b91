//! `sanderling train` with tables that outlive it: killed, resumed, begun anew.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sanderling_store::{Checkpoint, KeptTable, kept_table};
use sanderling_testkit::LONG;
use serde_json::Value;

const CONFIG: &str = r#"
name = "run"
model = { type = "fm", rank = 4 }
optimizer = { type = "ftrl", alpha = 0.1, l1 = 0.001 }
factor_optimizer = { type = "adagrad", lr = 0.05 }
data = { train = "train.svm" }
train = { batch_size = 16, threads = 1, shuffle_rows = 500, passes = 20, save_every_steps = 50 }
"#;

/// A table's name, and the weights of its rows by key.
type SavedTable = (String, Vec<(u64, Vec<f32>)>);

/// A directory with data and a folder for kept tables, in which commands run.
struct Place {
    folder: tempfile::TempDir,
    kept: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let kept = tempfile::tempdir_in("/dev/shm").unwrap();
        let place = Place { folder: tempfile::tempdir().unwrap(), kept };
        place.succeeds("synth train.svm --rows 3000 --vocabulary 2000");
        let memory = format!("\n[table.\"*\"]\nmemory = {{ kept = {:?} }}\n", place.kept.path());
        std::fs::write(place.folder.path().join("private.toml"), CONFIG).unwrap();
        std::fs::write(place.folder.path().join("kept.toml"), CONFIG.to_owned() + &memory).unwrap();
        place
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sanderling"));
        command.args(line.split_whitespace()).current_dir(self.folder.path());
        command
    }

    /// The standard error of a command that succeeds.
    fn succeeds(&self, line: &str) -> String {
        let output = self.command(line).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{line}: {errors}");
        errors
    }

    /// The standard error of a command that fails.
    fn fails(&self, line: &str) -> String {
        let output = self.command(line).output().unwrap();
        assert!(!output.status.success(), "{line}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn kept(&self) -> Option<KeptTable> {
        let entries = std::fs::read_dir(self.kept.path()).unwrap();
        let name = entries.flatten().next()?.file_name().into_string().unwrap();
        kept_table(self.kept.path(), &name).unwrap()
    }

    /// Trains, and kills the run some pushes after its first save. Returns whether there were such pushes.
    fn kill(&self, line: &str) -> bool {
        let mut child = self.command(line).stderr(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + LONG;
        // While it is created, the table has no head.
        while !self.kept().as_ref().is_some_and(has_later_pushes) {
            assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "{line}");
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        has_later_pushes(&self.kept().unwrap())
    }

    fn rows(&self, runs: &str) -> Vec<SavedTable> {
        rows(&self.folder.path().join(runs).join("run/model"))
    }
}

/// Whether pushes came after the save that the table notes.
fn has_later_pushes(kept: &KeptTable) -> bool {
    let note: Option<Value> = serde_json::from_str(&kept.note).ok();
    note.is_some_and(|note| note["pushes"].as_u64().unwrap() < kept.pushes)
}

/// Weights by table and key.
fn rows(model: &Path) -> Vec<SavedTable> {
    let checkpoint = Checkpoint::open(model).unwrap();
    let tables = checkpoint.tables().iter().map(|entry| {
        let table = checkpoint.load_table(&entry.name).unwrap();
        let mut rows = Vec::new();
        table.for_each_row(|row| rows.push((row.key, row.weights.to_vec())));
        rows.sort_by_key(|(key, _)| *key);
        (entry.name.clone(), rows)
    });
    tables.collect()
}

#[test]
fn a_run_goes_on_from_kept_tables_only_if_they_are_those_of_its_save() {
    let place = Place::new();
    place.succeeds("train private.toml --quiet --runs-dir whole");
    let whole = place.rows("whole");

    // Killed between two saves: the checkpoint counts.
    let has_later = place.kill("train kept.toml --runs-dir killed");
    let resumed = place.succeeds("train kept.toml --resume --runs-dir killed --max-steps 700");
    let expected = if has_later { "pushes came after the save" } else { "attached from" };
    assert!(resumed.contains(expected), "{resumed}");
    // Stopped after a save: the tables count, without reading.
    let resumed = place.succeeds("train kept.toml --resume --runs-dir killed --max-steps 900");
    assert!(resumed.contains(": attached from") && resumed.contains("nothing was interrupted"), "{resumed}");
    assert!(!resumed.contains("restored"), "{resumed}");

    // A new run does not take them for its own.
    let before = place.kept().unwrap();
    let refused = place.fails("train kept.toml --runs-dir other");
    for words in ["rows of table", "from an earlier run", "--resume", "--forget", "memory"] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    assert!(!place.folder.path().join("other").exists());
    assert_eq!(place.kept().unwrap(), before);

    // Another run in the folder: the first one restores its checkpoint, and ends as if nothing had happened.
    let begun = place.succeeds("train kept.toml --forget --runs-dir other --max-steps 100");
    assert!(begun.contains(": created in"), "{begun}");
    let resumed = place.succeeds("train kept.toml --resume --runs-dir killed");
    assert!(resumed.contains("the kept rows are not of this save"), "{resumed}");
    assert!(place.rows("killed") == whole, "the rows differ");
    // A folder that lost its content, and a run that moves to private memory.
    std::fs::remove_dir_all(place.kept.path()).unwrap();
    std::fs::create_dir(place.kept.path()).unwrap();
    let resumed = place.succeeds("train kept.toml --resume --runs-dir other --max-steps 200");
    assert!(resumed.contains("the folder has no such table"), "{resumed}");
    place.succeeds("train private.toml --resume --quiet --runs-dir other");
    assert!(place.rows("other") == whole, "the rows differ");
}
