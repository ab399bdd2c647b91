//! A run that begins from a saved model goes on as if both were one run, and refuses what the model cannot continue.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sanderling_formats::BadRows;
use sanderling_learner::{Config, Event, LearnError, Model, RunOptions, Summary, evaluate, train};

use crate::runs::{Place, contents};

/// Rows of a day: a multiple of the minibatches below, or one run over both days would cut its own.
const ROWS: u64 = 640;

fn go_on(place: &Place, toml: &str, from: &str) -> Result<Summary, LearnError> {
    let options = RunOptions { from: Some(place.run_dir(from).join("model")), ..place.options() };
    place.run_as(toml, &options, |_| false).map(|(summary, _)| summary)
}

#[test]
fn two_days_are_one_run_over_both() {
    let optimizers = ["sgd", "momentum", "adagrad", "row_adagrad", "adam", "adamw", "ftrl"];
    for batch in [64, 1] {
        for (model, optimizer, factor_optimizer) in optimizers.into_iter().flat_map(|optimizer| {
            [("lr", optimizer, "ftrl"), ("fm", "ftrl", optimizer), ("fm", optimizer, optimizer)]
        }) {
            let place = Place::new();
            let (one, two) = (place.synth("1.svm", 0, ROWS), place.synth("2.svm", ROWS, ROWS));
            // With their default rates some diverge.
            let settings = |optimizer: &str| match optimizer {
                "ftrl" => "type = \"ftrl\"".to_owned(),
                optimizer => format!("type = {optimizer:?}, lr = 0.0005"),
            };
            let (linear, factors) = (settings(optimizer), settings(factor_optimizer));
            let toml = |name: &str, train: &str| {
                format!(
                    "name = {name:?}\ndata = {{ train = {train} }}\nmodel = {{ type = {model:?}, rank = 3 }}\n\
                     optimizer = {{ {linear} }}\nfactor_optimizer = {{ {factors} }}\n\
                     train = {{ batch_size = {batch}, shuffle_rows = 0 }}"
                )
            };
            place.run(&toml("both", &format!("[{one}, {two}]"))).unwrap();
            place.run(&toml("one", &one)).unwrap();
            let two = go_on(&place, &toml("two", &two), "one").unwrap();
            let what = format!("{model}, {optimizer}, {factor_optimizer}, batch {batch}");
            assert_eq!((two.examples, two.from), (ROWS, Some(place.run_dir("one").join("model"))), "{what}");
            assert!(contents(&place.model("two")) == contents(&place.model("both")), "{what}");
        }
    }
}

/// A file with a label and these columns, of small numbers.
fn csv(place: &Place, name: &str, columns: &[&str], seed: u64) -> String {
    let mut text = format!("label,{}\n", columns.join(","));
    let mut random = crate::runs::Random(seed);
    for _ in 0..200 {
        let fields: Vec<String> = columns.iter().map(|_| random.below(30).to_string()).collect();
        text += &format!("{},{}\n", random.below(2), fields.join(","));
    }
    place.file(name, &text)
}

#[test]
fn features_may_come_and_must_stay() {
    let place = Place::new();
    let one = csv(&place, "1.csv", &["user", "age"], 1);
    let two = csv(&place, "2.csv", &["user", "age", "ad"], 2);
    const FEATURES: &str =
        "[[feature]]\nname = \"user\"\n[[feature]]\nname = \"age\"\ntype = \"quantile\"\nbuckets = 4\n";
    let toml = |name: &str, train: &str, rest: &str| {
        format!("name = {name:?}\ndata = {{ train = {train} }}\n{rest}")
    };
    place.run(&toml("one", &one, FEATURES)).unwrap();
    let more = format!("{FEATURES}[[feature]]\nname = \"ad\"\n");
    go_on(&place, &toml("two", &two, &more), "one").unwrap();
    let (before, after) = (place.model("one"), place.model("two"));
    let boundaries = |model: &Model| model.config().feature[1].boundaries.clone();
    assert_eq!(boundaries(&after), boundaries(&before), "those that were fitted on the first day");
    assert_eq!(after.table("ad").unwrap().len(), 30, "a new table");
    let frequency = |model: &Model| {
        let mut sum = 0;
        model.table("user").unwrap().for_each_row(|row| sum += u64::from(row.frequency));
        sum
    };
    assert_eq!((frequency(&before), frequency(&after)), (200, 400));
    let changed = |old: &str, new: &str| FEATURES.replace(old, new);
    for (rest, expected) in [
        (
            changed("buckets = 4", "buckets = 5"),
            "feature \"age\" changed: buckets is 5 now, and was 4; put it back",
        ),
        (changed("\"quantile\"", "\"log\"").replace("buckets = 4\n", ""), "feature \"age\" changed"),
        (
            changed("name = \"user\"", "name = \"user\"\ntable = \"people\""),
            "feature \"user\" changed: table is \"people\" now, and was unset",
        ),
        (changed("name = \"user\"", "name = \"ad\""), "lacks feature \"user\", which the saved model has"),
        (
            format!("{FEATURES}[model]\ntype = \"fm\""),
            "model.type is \"fm\" now, and the saved model is \"lr\"",
        ),
        (format!("{FEATURES}[model]\nbias = false"), "model.bias is false now, and was true"),
        (format!("{FEATURES}[optimizer]\ntype = \"adam\""), "the type of an optimizer changed"),
        (format!("{FEATURES}[label]\nthreshold = 0.5"), "[label] differs"),
    ] {
        let error = go_on(&place, &toml("three", &two, &rest), "one").unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("/one/model: "), "{rest}\n{error}");
        assert!(!place.run_dir("three").exists(), "{rest}: nothing was begun");
    }
    // Rates may change.
    go_on(&place, &toml("three", &two, &format!("{FEATURES}[optimizer]\nalpha = 0.01")), "one").unwrap();
    for (from, expected) in [("none", "is not there"), ("three", "names the model of this run")] {
        let error = go_on(&place, &toml("three", &two, FEATURES), from).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // A name that was not given is numbered rather than that the model replaces itself.
    let from = Some(place.run_dir("three").join("model"));
    let options = RunOptions { from, keeps_earlier: true, ..place.options() };
    let (summary, _) = place.run_as(&toml("three", &two, FEATURES), &options, |_| false).unwrap();
    assert_eq!(summary.name, "three-2");
}

#[test]
fn ranks_must_stay() {
    let place = Place::new();
    let train = place.synth("1.svm", 0, 100);
    let toml = |name: &str, rank: usize| {
        format!("name = {name:?}\ndata = {{ train = {train} }}\nmodel = {{ type = \"fm\", rank = {rank} }}")
    };
    place.run(&toml("one", 3)).unwrap();
    let error = go_on(&place, &toml("two", 4), "one").unwrap_err().to_string();
    assert!(error.contains("model.rank is 4 now, and the saved rows have 3 factors"), "{error}");
}

#[test]
fn each_day_is_predicted_before_it_is_learned() {
    let place = Place::new();
    let toml = |day: u64| {
        let train = place.synth(&format!("{day}.svm"), day * ROWS, ROWS);
        let (name, train_settings) = (format!("day{day}"), "train = { predict_first = true, passes = 2 }");
        format!("name = {name:?}\ndata = {{ train = {train} }}\n{train_settings}")
    };
    let first = place.run(&toml(0)).unwrap();
    assert_eq!(first.progressive_curve, [], "an empty model predicts nothing");
    let mut expected = Vec::new();
    for day in 1..4 {
        // The independent reference: evaluation of the model of the day before.
        let before = place.model(&format!("day{}", day - 1));
        let file = place.path(&format!("{day}.svm"));
        let toml = toml(day);
        let bad_rows = Arc::new(BadRows::new(before.config().data.reading.on_bad_row));
        let found = evaluate(
            &before,
            &[file.display().to_string()],
            &before.config().data.reading,
            &bad_rows,
            1,
            &AtomicBool::new(false),
            &mut |_| (),
        );
        expected.push((format!("day{day}"), found.unwrap().scores.metrics()));
        let mut lines = Vec::new();
        let from = Some(place.run_dir(&format!("day{}", day - 1)).join("model"));
        let options = RunOptions { from, ..place.options() };
        let config = Config::parse(&toml, Path::new("c.toml"), "c").unwrap();
        let stop = AtomicBool::new(false);
        let summary = train(config, &options, &stop, &mut |event| {
            if let Event::PredictedFirst(line) = event {
                lines.push(line.metrics);
            }
        })
        .unwrap();
        let curve: Vec<_> =
            summary.progressive_curve.iter().map(|point| (point.run.clone(), point.metrics)).collect();
        assert_eq!(curve, expected);
        assert_eq!(lines, [expected[day as usize - 1].1]);
        let dir = place.run_dir(&format!("day{day}"));
        let log = std::fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
        assert!(log.starts_with("{\"kind\":\"predicted_first\",\"step\":0,\"pass\":0,"), "{log}");
        let report = std::fs::read_to_string(dir.join("report.html")).unwrap();
        assert!(report.contains("Progressive validation"));
        // A run that goes on has predicted already.
        let again = place.resume(&toml).unwrap();
        assert_eq!(again.progressive_curve.len(), day as usize);
    }
    let stream = "data = { train = \"-\", format = \"libsvm\" }\ntrain = { predict_first = true }";
    let error = place.run(stream).unwrap_err().to_string();
    assert!(error.contains("train.predict_first needs files"), "{error}");
}
