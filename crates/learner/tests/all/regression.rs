//! Regression (`train.loss = "mse"`) against gradient descent in float64, and what it means for metrics, early stopping,
//! predictions, workers, and configurations.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::arithmetic::{Example, libsvm};
use crate::runs::{Place, Random, close, contents, row};
use sanderling_client::CONSTANT_KEY;
use sanderling_formats::BadRows;
use sanderling_job::Options;
use sanderling_learner::distributed::JobOptions;
use sanderling_learner::{BIAS_TABLE, Config, LearnError, NumberMetrics, RunOptions, evaluate, predict};

/// Labels are a sum of the keys' effects and a little noise; all are multiples of 1/8, which are the same in f32.
fn examples(rows: usize) -> Vec<Example> {
    let mut random = Random(5);
    let mut example = || {
        let mut pairs = BTreeMap::new();
        for _ in 0..2 + random.below(4) {
            pairs.insert(1 + random.below(15), (1 + random.below(16)) as f64 / 8.0);
        }
        let label: f64 = pairs.iter().map(|(key, value)| ((key % 5) as f64 - 1.5) * value).sum();
        let noise = random.below(9) as f64 / 8.0 - 0.5;
        (((label + noise) * 8.0).round() / 8.0 + 3.0, pairs.into_iter().collect())
    };
    (0..rows).map(|_| example()).collect()
}

/// Linear regression by gradient descent on the mean squared error; key 0 is the constant.
fn predicted(weights: &BTreeMap<u64, f64>, pairs: &[(u64, f64)]) -> f64 {
    let weight = |key: &u64| weights.get(key).copied().unwrap_or(0.0);
    weight(&0) + pairs.iter().map(|(key, value)| weight(key) * value).sum::<f64>()
}

fn errors(found: impl Iterator<Item = (f64, f64)>) -> [f64; 3] {
    let (mut squared, mut absolute, mut count) = (0.0, 0.0, 0.0);
    for (found, wanted) in found {
        squared += (found - wanted).powi(2);
        absolute += (found - wanted).abs();
        count += 1.0;
    }
    [squared / count, (squared / count).sqrt(), absolute / count]
}

fn check_numbers(found: Option<NumberMetrics>, expected: [f64; 3], what: &str) {
    let NumberMetrics { mse, rmse, mae } = found.unwrap_or_else(|| panic!("{what}: no errors"));
    for (found, expected) in [mse, rmse, mae].into_iter().zip(expected) {
        close(found, expected, 1e-5, what);
    }
}

#[test]
fn steps_are_those_of_gradient_descent() {
    let place = Place::new();
    let data = examples(300);
    let train = place.file("train.svm", &libsvm(&data));
    for (batch, rate, reduction) in [(1, 0.01, "sum"), (20, 0.05, "mean"), (300, 0.05, "mean")] {
        let what = format!("batch {batch}, {reduction}");
        let summary = place
            .run(&format!(
                "data = {{ train = {train} }}\noptimizer = {{ type = \"sgd\", lr = {rate} }}\n\
                 train = {{ loss = \"mse\", batch_size = {batch}, passes = 3, shuffle_rows = 0, reduction = \"{reduction}\" }}"
            ))
            .unwrap();
        let mut weights = BTreeMap::<u64, f64>::new();
        let mut first = Vec::new();
        for pass in 0..3 {
            for rows in data.chunks(batch) {
                let mut gradients = BTreeMap::<u64, f64>::new();
                for (label, pairs) in rows {
                    let found = predicted(&weights, pairs);
                    let error = 2.0 * (found - label);
                    let pairs = pairs.iter().copied().chain([(0, 1.0)]);
                    pairs.for_each(|(key, value)| *gradients.entry(key).or_default() += error * value);
                    if pass == 0 {
                        first.push((found, *label));
                    }
                }
                let scale = if reduction == "mean" { rate / rows.len() as f64 } else { rate };
                gradients.iter().for_each(|(key, g)| *weights.entry(*key).or_default() -= scale * g);
            }
        }
        let trained = place.model("run");
        for (key, expected) in &weights {
            let (table, key) = if *key == 0 { (BIAS_TABLE, CONSTANT_KEY) } else { ("features", *key) };
            close(row(&trained, table, key)[0], *expected, 1e-4, &what);
        }
        assert_eq!((summary.auc, summary.logloss, summary.normalized_entropy), (None, None, None));
        check_numbers(summary.numbers, errors(first.into_iter()), &what);
        let mean = data.iter().map(|(label, _)| label).sum::<f64>() / data.len() as f64;
        close(summary.real_mean.unwrap(), mean, 1e-9, &what);
    }
}

/// Every model learns the numbers, its errors stop it early, and its outputs are the predictions.
#[test]
fn models_learn_numbers_and_predict_them() {
    let place = Place::new();
    let mut random = Random(9);
    let mut csv = |rows: usize| {
        let mut text = "seconds,w,user,item\n".to_owned();
        for _ in 0..rows {
            let (user, item) = (random.below(12), random.below(9));
            // Users and items have effects, and some pairs of them, too.
            let pair = if user % 3 == item % 3 { 4 } else { 0 };
            let label = user as i64 - 2 * item as i64 + pair;
            writeln!(text, "{label}.5,{},u{user},i{item}", 1 + random.below(3)).unwrap();
        }
        text
    };
    let (train, valid) = (csv(2000), csv(300));
    let labelled: Vec<(f64, f64)> = valid
        .lines()
        .skip(1)
        .map(|line| line.split(',').map(|field| field.parse().unwrap_or(0.0)).collect::<Vec<f64>>())
        .map(|fields| (fields[0], fields[1]))
        .collect();
    let (train, valid) = (place.file("train.csv", &train), place.file("valid.csv", &valid));
    let toml = |model: &str, more: &str| {
        format!(
            "name = {model:?}\ndata = {{ train = {train}, valid = {valid} }}\nlabel = {{ column = \"seconds\" }}\n\
             weight = {{ column = \"w\" }}\nmodel = {{ type = \"{model}\", rank = 4, init_std = 0.1 }}\n\
             optimizer = {{ type = \"adagrad\", lr = 0.3 }}\n\
             train = {{ loss = \"mse\", batch_size = 8, passes = 60, early_stop = 2{more} }}\n\
             [[feature]]\neach = [\"user\", \"item\"]\n"
        )
    };
    let mut linear = f64::INFINITY;
    for model in ["lr", "fm", "ffm"] {
        let (summary, lines) = place.run_with(&toml(model, ""), false, |_| false).unwrap();
        let numbers = summary.numbers.unwrap();
        let rmse: Vec<f64> = lines.iter().map(|line| line.metrics.numbers.unwrap().rmse).collect();
        let least = rmse.iter().copied().fold(f64::INFINITY, f64::min);
        assert_eq!(numbers.rmse, least, "{model}: the best pass is that of the least error");
        assert_eq!(rmse[summary.best_pass as usize - 1], least, "{model}");
        match model {
            "lr" => linear = numbers.rmse,
            _ => assert!(numbers.rmse < linear / 2.0, "{model}: {numbers:?}, linear {linear}"),
        }
        let trained = place.model(model);
        let reading = &trained.config().data.reading;
        let bad_rows = Arc::new(BadRows::new(reading.on_bad_row));
        let files = [place.path("valid.csv").display().to_string()];
        let mut found = Vec::new();
        predict(&trained, &files, reading, &bad_rows, &Arc::default(), |some, _| {
            found.extend(some.iter().map(|&number| f64::from(number)));
            Ok(())
        })
        .unwrap();
        let weight: f64 = labelled.iter().map(|(_, weight)| weight).sum();
        let mean = |error: fn(f64) -> f64| {
            let sum =
                found.iter().zip(&labelled).map(|(found, (label, weight))| weight * error(found - label));
            sum.sum::<f64>() / weight
        };
        let (mse, mae) = (mean(|error| error * error), mean(f64::abs));
        check_numbers(summary.numbers, [mse, mse.sqrt(), mae], model);
        let evaluated =
            evaluate(&trained, &files, reading, &bad_rows, 2, &AtomicBool::new(false), &mut |_| {}).unwrap();
        check_numbers(evaluated.scores.metrics().numbers, [mse, mse.sqrt(), mae], model);
        let report = std::fs::read_to_string(place.run_dir(model).join("report.html")).unwrap();
        assert!(report.contains("RMSE") && report.contains("Mean absolute error") && !report.contains("AUC"));
        let lines = std::fs::read_to_string(place.run_dir(model).join("metrics.jsonl")).unwrap();
        assert!(
            lines.lines().all(|line| line.contains("\"auc\":null") && line.contains("\"rmse\":")),
            "{lines}"
        );
    }
    // By the mean absolute error, and stopped and resumed it is the same.
    let by_mae = toml("fm", ", monitor = \"mae\"").replace("passes = 60", "passes = 4");
    let whole = place.run(&by_mae.replace("\"fm\"\ndata", "\"whole\"\ndata")).unwrap();
    let parts = by_mae.replace("\"fm\"\ndata", "\"parts\"\ndata");
    place.run(&parts.replace("passes = 4", "passes = 2")).unwrap();
    let resumed = place.resume(&parts).unwrap();
    assert_eq!(whole.numbers, resumed.numbers);
    assert!(contents(&place.model("whole")) == contents(&place.model("parts")));
}

#[test]
fn workers_share_a_regression() {
    let place = Place::new();
    let data = examples(400);
    let train = place.file("train.svm", &libsvm(&data));
    let toml = |name: &str| {
        format!(
            "name = {name:?}\ndata = {{ train = {train} }}\nmodel = {{ rank = 3 }}\n\
             train = {{ loss = \"mse\", batch_size = 16, passes = 2 }}"
        )
    };
    let run = |name: &str, algorithm: &str, workers| {
        let job = Options { workers, ..Options::default() };
        let job = JobOptions { algorithm: algorithm.parse().unwrap(), staleness: None, job };
        place.run_as(&toml(name), &RunOptions { job: Some(job), ..place.options() }, |_| false).unwrap().0
    };
    for algorithm in ["ftrl-sync", "fm-sync"] {
        let (one, two) = (run("one", algorithm, 1), run("two", algorithm, 2));
        assert!(contents(&place.model("one")) == contents(&place.model("two")), "{algorithm}");
        let [one, two] = [one, two].map(|summary| summary.numbers.unwrap());
        close(two.rmse, one.rmse, 1e-12, algorithm);
        close(two.mae, one.mae, 1e-12, algorithm);
    }
    // Each on its own way.
    assert!(run("own", "ftrl", 2).numbers.unwrap().rmse.is_finite());
}

#[test]
fn what_has_no_meaning_for_numbers_is_refused() {
    let check = |rest: &str, expected: &str| {
        let toml = format!("data = {{ train = \"a.csv\" }}\n{rest}\n[[feature]]\nname = \"a\"");
        let error = Config::parse(&toml, Path::new("c.toml"), "c").unwrap_err().to_string();
        assert!(error.contains(expected) && error.chars().count() <= 200, "{rest}\n{error}");
    };
    let mse = "train = { loss = \"mse\" }";
    check("train = { loss = \"mse\", monitor = \"auc\" }", "train.monitor: rmse, mae or mse");
    check("train = { monitor = \"rmse\" }", "train.monitor: auc or logloss");
    check("train = { loss = \"mse\", class_weight = 2.0 }", "train.class_weight: ");
    check(&format!("label = {{ threshold = 3.0 }}\n{mse}"), "neither positive nor threshold");
    check(&format!("label = {{ positive = [\"y\"] }}\n{mse}"), "neither positive nor threshold");
    check(&format!("negatives = {{ keep = 0.5 }}\n{mse}"), "no row is negative");
    check("label = { number = true }", "label.number: only train.loss");
    check("train = { loss = \"hinge\" }", "expected `logloss` or `mse`");
    let place = Place::new();
    let train = place.file("train.csv", "label,a\n3.5,x\n1e20,y\n");
    let toml = format!("data = {{ train = {train} }}\n{mse}\n[[feature]]\nname = \"a\"");
    let error = place.run(&toml).unwrap_err().to_string();
    assert!(error.contains("train.csv:3: column label") && error.contains("a number below 1e15"), "{error}");
    // A saved model keeps its loss.
    let train = place.file("train.csv", "label,a\n3.5,x\n2.5,y\n");
    let toml = |name: &str, loss: &str| {
        format!(
            "name = {name:?}\ndata = {{ train = {train} }}\ntrain = {{ loss = {loss:?} }}\n[[feature]]\nname = \"a\""
        )
    };
    place.run(&toml("one", "mse")).unwrap();
    let from = RunOptions { from: Some(place.run_dir("one").join("model")), ..place.options() };
    let error = place.run_as(&toml("two", "logloss"), &from, |_| false).unwrap_err();
    assert!(
        matches!(&error, LearnError::Model { reason, .. } if reason.contains("train.loss differs")),
        "{error}"
    );
    let error = place.resume(&toml("one", "logloss")).unwrap_err().to_string();
    assert!(error.contains("cannot resume"), "{error}");
}
