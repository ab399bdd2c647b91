//! The life of a model on the command line: the page about daily training, overrides, options of tables, lists of runs.

use std::process::Command;

use serde_json::json;

use super::Place;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/daily-training.md");

/// Every command of the page, with fewer rows.
#[test]
fn the_page_about_daily_training_runs() {
    let place = Place::new();
    let page = std::fs::read_to_string(PAGE).unwrap();
    let blocks: Vec<&str> =
        page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 1);
    let script = blocks[0].replace("100000", "2000");
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_sanderling")).parent().unwrap().to_owned();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let done = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &script])
        .env("PATH", path)
        .current_dir(place.0.path())
        .output()
        .unwrap();
    let out = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let configuration = out.find("configuration").unwrap();
    assert!(out[configuration..].starts_with("configuration") && out.contains("data.train"), "{out}");
    // Listed in the order of the days, with the model and the data of each.
    let listed: Vec<&str> =
        out.lines().filter(|line| line.starts_with("day") && line.contains(".csv")).collect();
    assert!(listed.len() == 7 && listed[6].contains("day7.csv") && listed[6].contains("fm, rank 8"), "{out}");
    let runs = place.run("runs --json").out;
    let runs: serde_json::Value = serde_json::from_str(&runs).unwrap();
    assert_eq!(runs[6]["from"], "runs/day6/model");
    let summary: serde_json::Value = serde_json::from_str(&place.read("runs/day7/summary.json")).unwrap();
    let curve = summary["progressive_curve"].as_array().unwrap();
    let days: Vec<_> = curve.iter().map(|point| point["run"].as_str().unwrap()).collect();
    assert_eq!(days, ["day2", "day3", "day4", "day5", "day6", "day7"]);
    // The page's point of day 7 is what eval says of the model of day 6.
    let eval = place.run("eval runs/day6/model day7.csv --json --quiet").json();
    assert_eq!(eval["auc"], curve[5]["auc"]);
}

#[test]
fn entries_are_set_from_the_command_line() {
    let place = Place::with_synth();
    let train = |set: &str| place.run(&format!("train c.toml --quiet --json {set}"));
    let done =
        train("--set model.type=fm --set model.rank=3 --set train.batch_size=32 --set data.valid=valid.svm");
    assert_eq!(done.json()["measured_on"], "valid");
    let inspected = place.run("inspect runs/c/model --json").json();
    assert_eq!(
        (&inspected["tables"][0]["dim"], &inspected["model"]),
        (&json!(4), &json!("factorization machine, rank 3"))
    );
    for (set, expected) in [
        ("--set model.rank=x --set seed=3", "error: c.toml: --set model.rank=x: "),
        ("--set model.rnak=3", "error: c.toml: --set model.rnak=3: unknown field `rnak`"),
        ("--set model.rank=0", "error: c.toml: model.rank = 0: must be 1 to 1024"),
        ("--set rank", "is not ENTRY=VALUE, such as model.rank=16"),
        ("--set data.train.x=1", "--set data.train.x=1: data.train is no table"),
    ] {
        let done = train(set);
        assert_eq!(done.code, Some(2), "{set}: {}", done.err);
        assert!(done.err.contains(expected), "{set}: {}", done.err);
    }
    // A saved model's way of reading, and nothing else of it.
    place.write("x.txt", "1 5:1\n0 6:1\n");
    for command in ["eval runs/c/model x.txt --json --quiet", "predict runs/c/model x.txt"] {
        let done = place.run(&format!("{command} --set data.format=libsvm"));
        assert_eq!(done.code, Some(0), "{}", done.err);
        let done = place.run(&format!("{command} --set model.rank=4"));
        assert_eq!(done.code, Some(2), "{}", done.err);
        assert!(done.err.contains("only entries of data can be set here"), "{}", done.err);
        let done = place.run(&format!("{command} --set data.format=nothing"));
        assert!(done.code == Some(2) && done.err.contains("--set data.format=nothing: "), "{}", done.err);
    }
}

#[test]
fn options_of_tables_are_shown_with_their_counts() {
    let place = Place::new();
    let rows: String = (0..300).fold("label,user\n".to_string(), |text, row| {
        format!("{text}{},{}\n", row % 3 % 2, if row % 2 == 0 { row % 10 } else { 1000 + row })
    });
    place.write("a.csv", &rows);
    place.write(
        "a.toml",
        "data = { train = \"a.csv\" }\ntrain = { batch_size = 2 }\n[[feature]]\nname = \"user\"\n[table.user]\n\
         admission = { after = 3 }\nbudget = \"4MiB\"\neviction = \"clock\"\ndtype = \"f16\"\n",
    );
    place.run("train a.toml --quiet --json").json();
    let shown = place.run("inspect runs/a/model --json").json();
    let table = shown["tables"].as_array().unwrap().iter().find(|table| table["name"] == "user").unwrap();
    assert_eq!(table["admission"], json!({"type": "sightings", "sightings": 3, "filter_bytes": 1_048_576}));
    assert_eq!((&table["dtype"], &table["budget_bytes"]), (&json!("f16"), &json!(4_194_304)));
    assert_eq!(table["eviction"], json!({"type": "clock"}));
    // Five users often, whose first two minibatches were rejected, and 150 once.
    assert_eq!(table["counters"], json!({"admitted": 5, "rejected": 160, "evicted": 0, "rejected_full": 0}));
    let text = place.run("inspect runs/a/model").out;
    for part in ["dtype f16", "budget 4.00 MiB", "5 admitted, 160 rejected", "eviction clock: 0 evicted"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn runs_are_listed() {
    let place = Place::with_synth();
    let done = place.run("runs");
    assert!(done.code == Some(2) && done.err.contains("runs: no such folder"), "{}", done.err);
    place.run("train c.toml --quiet --json --name one").json();
    place.run("train c.toml --quiet --json --name two --set optimizer.alpha=0.2 --valid valid.svm").json();
    std::fs::create_dir(place.path("runs/under-way")).unwrap();
    let listed = place.run("runs").out;
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["run", "one", "two"], "{listed}");
    let compared = place.run("compare runs/one runs/two").out;
    let first: Vec<&str> = compared.lines().take(4).collect();
    assert!(first[0].starts_with("configuration") && first[1].starts_with("data.valid"), "{compared}");
    assert!(compared.contains("optimizer.alpha  0.1") || compared.contains("optimizer.alpha"), "{compared}");
    let differences = &place.run("compare runs/one runs/two --json").json()["differences"];
    assert_eq!(differences[1], json!({"entry": "optimizer.alpha", "a": 0.1, "b": 0.2}));
}
