//! Recordings of asynchronous training and their replays: equal bits with several workers, and what is refused.

use std::collections::BTreeMap;

use sanderling_store::Checkpoint;

use super::Place;

/// Rows of a saved model by table and key: frequency, last use, version, and the bits of weights and state.
type Rows = BTreeMap<(String, u64), (u32, u32, u32, Vec<u32>)>;

const RUN: &str = "--workers 4 --batch-size 8 --passes 2";

/// A place with 6,000 rows over few keys, so that workers meet in them.
fn place() -> Place {
    let place = Place::new();
    for line in [
        "synth train.svm --rows 6000 --vocabulary 200",
        "synth valid.svm --rows 500 --first-row 6000 --vocabulary 200",
    ] {
        assert_eq!(place.run(line).code, Some(0));
    }
    place.write("c.toml", "data = { train = \"train.svm\", valid = \"valid.svm\" }\n");
    place
}

fn rows(place: &Place, run: &str) -> Rows {
    let checkpoint = Checkpoint::open(place.path(&format!("runs/{run}/model"))).unwrap();
    let mut rows = Rows::new();
    for entry in checkpoint.tables() {
        checkpoint.load_table(&entry.name).unwrap().for_each_row(|row| {
            let floats = row.weights.iter().chain(row.state).map(|value| value.to_bits()).collect();
            let key = (entry.name.clone(), row.key);
            rows.insert(key, (row.frequency, row.last_use, row.version, floats));
        });
    }
    rows
}

#[track_caller]
fn run(place: &Place, line: &str) -> String {
    let done = place.run(line);
    assert_eq!(done.code, Some(0), "{line}\n{}", done.err);
    done.err
}

#[test]
fn replays_of_four_workers_have_the_recorded_bits() {
    let place = place();
    place.write("half.toml", "data = { train = \"train.svm\" }\n[table.\"*\"]\ndtype = \"f16\"\n");
    for (config, algorithm, more) in [
        ("c.toml", "ftrl", ""),
        ("c.toml", "fm", ""),
        ("c.toml", "fm", "--staleness 2"),
        ("half.toml", "fm", ""),
    ] {
        let mut others = 0;
        for seed in [1, 2, 3] {
            let line = format!("train {config} --algorithm {algorithm} {RUN} --seed {seed} {more}");
            let recorded = run(&place, &format!("{line} --record r.play --name recorded"));
            assert!(recorded.contains("minibatches in r.play"), "{recorded}");
            let expected = rows(&place, "recorded");
            assert!(expected.len() > 200, "{} rows", expected.len());
            let names = if seed == 1 { &["one", "two"][..] } else { &["one"] };
            for name in names {
                let replayed = run(&place, &format!("{line} --replay r.play --name {name}"));
                assert!(replayed.contains("the tables have the recorded bits"), "{replayed}");
                assert!(rows(&place, name) == expected, "{line}: {name} has other bits");
            }
            // A replay can be recorded as little as a free run repeats it.
            run(&place, &format!("{line} --record other.play --name other"));
            others += usize::from(rows(&place, "other") != expected);
        }
        assert!(others > 0, "{config} {algorithm} {more}: three pairs of recordings have equal bits");
    }
}

#[test]
fn a_replay_continues_the_model_of_its_recording_only() {
    let place = place();
    let line = format!("train c.toml --algorithm fm {RUN}");
    run(&place, &format!("{line} --name first"));
    run(&place, &format!("{line} --name second"));
    run(&place, &format!("{line} --from runs/first/model --record r.play --name recorded"));
    run(&place, &format!("{line} --from runs/first/model --replay r.play --name replayed"));
    assert!(rows(&place, "recorded") == rows(&place, "replayed"));
    for from in ["--from runs/second/model", ""] {
        let done = place.run(&format!("{line} {from} --replay r.play --name other"));
        assert_eq!(done.code, Some(2), "{}", done.err);
        assert!(done.err.contains("the model at the start"), "{}", done.err);
    }
}

#[test]
fn other_runs_and_damaged_recordings_are_refused() {
    let place = place();
    let line = "train c.toml --algorithm fm --workers 2 --batch-size 64 --name r";
    run(&place, &format!("{line} --record r.play"));
    let whole = std::fs::read(place.path("r.play")).unwrap();
    std::fs::write(place.path("torn.play"), &whole[..whole.len() / 2]).unwrap();
    let mut bytes = whole.clone();
    bytes[whole.len() / 2] ^= 1;
    std::fs::write(place.path("damaged.play"), bytes).unwrap();
    place.write(
        "admission.toml",
        "data = { train = \"train.svm\" }\n[table.\"*\"]\nadmission = { after = 2 }\n",
    );
    let text = std::fs::read_to_string(place.path("train.svm")).unwrap();
    place.write("longer.svm", &format!("{text}{text}"));
    // Another label in the last row, and as many bytes.
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let last = lines.last_mut().unwrap();
    let label = if last.starts_with('0') { "1" } else { "0" };
    last.replace_range(..1, label);
    let changed = lines.join("\n") + "\n";
    assert_eq!(changed.len(), text.len());

    let two = "train c.toml --algorithm fm --workers 2 --name r";
    for (line, code, part) in [
        (format!("{two} --batch-size 32 --replay r.play"), 2, "train.batch_size is 32, and was 64"),
        (format!("{line} --seed 7 --replay r.play"), 2, "seed is 7, and was 42"),
        (format!("{line} --train longer.svm --replay r.play"), 2, "data.train"),
        (
            "train c.toml --algorithm fm --workers 3 --batch-size 64 --replay r.play".to_owned(),
            2,
            "--workers is 3, and was 2",
        ),
        (
            "train c.toml --algorithm ftrl --workers 2 --batch-size 64 --replay r.play".to_owned(),
            2,
            "--algorithm is ftrl, and was fm",
        ),
        (format!("{line} --staleness 1 --replay r.play"), 2, "--staleness is 1, and was none"),
        (format!("{line} --replay torn.play"), 1, "torn.play: it is torn"),
        (format!("{line} --replay damaged.play"), 1, "is damaged"),
        (format!("{line} --replay train.svm"), 1, "it is no recording"),
        (format!("{line} --replay none.play"), 1, "none.play"),
        (format!("{line} --record r.play --replay r.play"), 2, "cannot be used with"),
        (format!("{line} --resume --record r.play"), 2, "leave --resume out"),
        ("train c.toml --record r.play".to_owned(), 2, "needs --algorithm"),
        ("train c.toml --algorithm fm-sync --workers 2 --record r.play".to_owned(), 2, "needs --algorithm"),
        (format!("{two} --batch-size 1 --record r.play"), 2, "batch_size = 1"),
        (format!("{line} --record none/r.play"), 1, "none/r.play"),
        (
            "train admission.toml --algorithm fm --workers 2 --batch-size 64 --record r.play".to_owned(),
            2,
            "has admission",
        ),
    ] {
        let done = place.run(&line);
        assert_eq!(done.code, Some(code), "{line}\n{}", done.err);
        assert!(done.err.contains(part), "{line}: {part} in\n{}", done.err);
    }
    // The header has the size of the data; a changed row shows in its minibatch.
    place.write("train.svm", &changed);
    let done = place.run(&format!("{line} --replay r.play"));
    assert_eq!(done.code, Some(1), "{}", done.err);
    assert!(done.err.contains("has other rows than in the recording"), "{}", done.err);
    assert_eq!(std::fs::read(place.path("r.play")).unwrap(), whole, "a refused run leaves the recording");
}
