//! What the settings of a run do to its result, and how runs that cannot succeed say so.

use std::cell::Cell;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::runs::{Place, Random, close, row};
use sanderling_client::ClientError;
use sanderling_formats::{BadRows, DataConfig};
use sanderling_inspect::{ProfileOptions, profile, suggest};
use sanderling_learner::{Config, Event, LearnError, Metrics, Model, evaluate, predict};
use sanderling_store::StoreError;

/// Metrics of a model over a file whose path is quoted for TOML.
fn measure(model: &Model, file: &str, threads: usize) -> Metrics {
    let reading = &model.config().data.reading;
    let bad_rows = Arc::new(BadRows::new(reading.on_bad_row));
    let files = [file.trim_matches('"').to_string()];
    let stop = AtomicBool::new(false);
    evaluate(model, &files, reading, &bad_rows, threads, &stop, &mut |_| {}).unwrap().scores.metrics()
}

#[test]
fn early_stopping_keeps_the_best_pass() {
    let place = Place::new();
    let (train, valid) = (place.synth("train.svm", 0, 600), place.synth("valid.svm", 600, 600));
    for (monitor, patience) in [("auc", 2), ("logloss", 1)] {
        let toml = format!(
            "data = {{ train = {train}, valid = {valid} }}\noptimizer = {{ type = \"ftrl\", alpha = 0.5 }}\n\
             train = {{ batch_size = 8, passes = 30, early_stop = {patience}, monitor = \"{monitor}\" }}"
        );
        let (summary, lines) = place.run_with(&toml, false, |_| false).unwrap();
        let rank = |m: &Metrics| if monitor == "auc" { -m.auc } else { m.logloss };
        let best = lines.iter().min_by(|a, b| rank(&a.metrics).total_cmp(&rank(&b.metrics))).unwrap();
        assert!(!summary.stopped && summary.passes < 30 && summary.passes == best.pass + patience);
        assert_eq!((summary.best_pass, summary.measured_on), (best.pass, "valid"));
        assert_eq!(summary.auc, Some(best.metrics.auc));
        // What is on disk is the model of that pass, and so is what the summary counts.
        let model = place.model("run");
        for threads in [1, 3] {
            assert_eq!(measure(&model, &valid, threads), best.metrics, "{threads} threads");
        }
        assert_eq!((summary.rows, summary.table_bytes > 0), (model.rows(), true));
    }
}

#[test]
fn rates_are_of_training_alone() {
    let place = Place::new();
    let (train, valid) = (place.synth("train.svm", 0, 600), place.synth("valid.svm", 600, 600));
    let toml = format!(
        "data = {{ train = {train}, valid = {valid} }}\ntrain = {{ batch_size = 8, passes = 2, print_every_steps = 25, save_every_steps = 30 }}"
    );
    let (paused_s, lines_s) = (Cell::new(0.0), Cell::new(0.0));
    // After the last line, as far as is known: no part of what counts if another line comes.
    let paused_since_s = Cell::new(0.0);
    place
        .run_with(&toml, false, |event| {
            if let Event::Step(line) = event {
                lines_s.set(lines_s.get() + line.metrics.examples as f64 / line.examples_per_s);
                paused_s.set(paused_s.get() + paused_since_s.take());
            }
            if matches!(event, Event::Saved { .. } | Event::Valid(_)) {
                let pause = Instant::now();
                std::thread::sleep(Duration::from_millis(200));
                paused_since_s.set(paused_since_s.get() + pause.elapsed().as_secs_f64());
            }
            false
        })
        .unwrap();
    let (paused_s, lines_s) = (paused_s.get(), lines_s.get());
    // With the pauses in it, it would be more.
    assert!(paused_s > 0.7 && lines_s < paused_s, "{lines_s} s of training, {paused_s} s of pauses");
}

#[test]
fn class_weight_shifts_and_down_sampling_does_not() {
    let place = Place::new();
    let (train, valid) = (place.synth("train.svm", 0, 20_000), place.synth("valid.svm", 20_000, 5_000));
    let ratio = |rest: &str| {
        let summary = place.run(&format!(
            "data = {{ train = {train} }}\n{rest}\n\
             optimizer = {{ type = \"ftrl\", alpha = 0.05, l2 = 1.0 }}"
        ));
        let metrics = measure(&place.model("run"), &valid, 2);
        (metrics.prob_mean / metrics.real_mean, summary.unwrap())
    };
    let (plain, all) = ratio("train = { batch_size = 1 }");
    let (weighted, _) = ratio("train = { batch_size = 1, class_weight = 4.0 }");
    let (sampled, kept) = ratio("train = { batch_size = 1 }\nnegatives = { keep = 0.3 }");
    close(plain, 1.0, 0.05, "calibration of a plain run");
    close(sampled, 1.0, 0.05, "calibration with 0.3 of the negatives");
    assert!(weighted > 1.5, "positives of weight 4 give predictions of {weighted} times the truth");
    assert_eq!(all.examples, 20_000);
    let expected = 20_000.0 * (0.25 + 0.75 * 0.3);
    close(kept.examples as f64 / expected, 1.0, 0.05, "rows kept");
    close(kept.real_mean.unwrap(), all.real_mean.unwrap(), 0.02, "share of positives, sampled rows weighted");
}

#[test]
fn a_weight_is_so_many_rows() {
    let place = Place::new();
    let (mut random, head) = (Random(5), "label,w,f,x\n".to_string());
    let (mut weighted, mut repeated) = (head.clone(), head);
    for _ in 0..200 {
        let (weight, label, key) = (random.below(4), random.below(2), random.below(20));
        let rest = format!("{key},0.{}\n", random.below(100));
        write!(weighted, "{label},{weight},{rest}").unwrap();
        (0..weight).for_each(|_| write!(repeated, "{label},1,{rest}").unwrap());
    }
    let (weighted, repeated) = (place.file("w.csv", &weighted), place.file("r.csv", &repeated));
    for model in ["type = \"lr\"", "type = \"fm\", rank = 3"] {
        let run = |train: &str| {
            // One minibatch is the whole file: what counts is the sum.
            let summary = place.run(&format!(
                "data = {{ train = {train} }}\nweight = {{ column = \"w\" }}\nmodel = {{ {model} }}\n\
                 train = {{ batch_size = 1000, shuffle_rows = 0, passes = 5 }}\n\
                 [[feature]]\nname = \"f\"\nkey = \"raw\"\n[[feature]]\nname = \"x\"\ntype = \"numeric\""
            ));
            (summary.unwrap(), place.model("run"))
        };
        let (by_weight, a) = run(&weighted);
        let (by_rows, b) = run(&repeated);
        close(by_weight.logloss.unwrap(), by_rows.logloss.unwrap(), 1e-5, model);
        close(by_weight.auc.unwrap(), by_rows.auc.unwrap(), 1e-3, model);
        for key in 0..20 {
            for (a, b) in row(&a, "f", key).iter().zip(row(&b, "f", key)) {
                close(*a, b, 1e-4, model);
            }
        }
        // A prediction needs neither label nor weight.
        place.file("new.csv", "x,f\n0.5,3\n0.25,4\n");
        let files = [place.path("new.csv").to_string_lossy().into_owned()];
        let (reading, mut scores) = (DataConfig::default(), Vec::new());
        let bad_rows = Arc::new(BadRows::new(reading.on_bad_row));
        let rows = predict(&a, &files, &reading, &bad_rows, &Arc::default(), |some, _| {
            scores.extend_from_slice(some);
            Ok(())
        });
        assert_eq!(rows.unwrap().rows, 2);
        assert!(scores.iter().all(|p| (0.0..=1.0).contains(p)), "{scores:?}");
    }
}

#[test]
fn quantiles_are_fitted_once_and_kept() {
    let place = Place::new();
    let mut random = Random(9);
    let mut csv = |rows: u64, shift: u64| {
        let line = |random: &mut Random| {
            let x = random.below(1000);
            format!("{},{}\n", u64::from(x % 300 < 150), x + shift)
        };
        (0..rows).fold("label,x\n".to_string(), |text, _| text + &line(&mut random))
    };
    let (train, valid, shifted) = (
        place.file("train.csv", &csv(3000, 0)),
        place.file("valid.csv", &csv(1000, 0)),
        place.file("shifted.csv", &csv(1000, 300)),
    );
    let summary = place.run(&format!(
        "data = {{ train = {train}, valid = {valid} }}\ntrain = {{ batch_size = 16, passes = 3 }}\n\
         [[feature]]\nname = \"x\"\ntype = \"quantile\"\nbuckets = 40"
    ));
    let auc = summary.unwrap().auc.unwrap();
    let model = place.model("run");
    assert_eq!(model.config().feature[0].boundaries.as_ref().map(Vec::len), Some(39));
    assert_eq!(measure(&model, &valid, 1).auc, auc);
    // The period of the labels is the shift: the same boundaries still fit, newly fitted ones would as well, but at
    // the upper end all of the shifted rows fall into the last bucket.
    let moved = measure(&model, &shifted, 1).auc;
    assert!(auc > 0.9 && moved > 0.7 && moved < auc, "AUC {auc}, of shifted rows {moved}");
}

#[test]
fn threads_find_about_the_same_model() {
    let place = Place::new();
    let (train, valid) = (place.synth("train.svm", 0, 30_000), place.synth("valid.svm", 30_000, 10_000));
    for (model, batch) in [("type = \"lr\"", 1), ("type = \"lr\"", 16), ("type = \"fm\", rank = 4", 16)] {
        let auc = |threads: usize| {
            let summary = place.run(&format!(
                "data = {{ train = {train}, valid = {valid} }}\nmodel = {{ {model} }}\n\
                 train = {{ batch_size = {batch}, threads = {threads}, shuffle_rows = 5000 }}\n\
                 optimizer = {{ type = \"ftrl\", alpha = 0.05, l2 = 1.0 }}"
            ));
            let summary = summary.unwrap();
            assert_eq!(summary.examples, 30_000, "{threads} threads");
            summary.auc.unwrap()
        };
        let one = auc(1);
        assert!(one > 0.7, "{model}, batch {batch}: AUC {one}");
        for threads in [2, 4] {
            let several = auc(threads);
            assert!(
                (several - one).abs() < 0.01,
                "{model}, batch {batch}: {one}, {threads} threads {several}"
            );
        }
    }
}

#[test]
fn a_suggested_configuration_trains() {
    let place = Place::new();
    let adult = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/adult/adult.data.gz");
    let criteo_like = place.synth("clicks.csv", 0, 3000);
    for file in [adult, criteo_like.trim_matches('"')] {
        let found = profile(file.as_ref(), &DataConfig::default(), &ProfileOptions::default()).unwrap();
        let summary =
            place.run(&suggest(&found, file).unwrap()).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(summary.auc.unwrap() > 0.6, "{file}: AUC {:?}", summary.auc);
        assert!(summary.examples >= 3000);
        // By standard input there is one pass, and nothing to fit before it.
        Config::parse(&suggest(&found, "-").unwrap(), "suggested.toml".as_ref(), "run").unwrap();
    }
}

/// What a run fails with.
fn failure(place: &Place, toml: &str) -> LearnError {
    match place.run(toml) {
        Err(error) => error,
        Ok(summary) => panic!("{toml}\ntrained: {summary:?}"),
    }
}

#[test]
fn a_diverging_run_says_so() {
    let place = Place::new();
    let line = |i: u64| format!("{} {}:1e{} {}:3\n", i % 2, 1 + i % 7, 6 + i % 9, 9 + i % 3);
    let train = place.file("train.svm", &(0..400).map(line).collect::<String>());
    let mut diverged = 0;
    for batch in [1, 16] {
        for model in ["type = \"lr\"", "type = \"fm\", rank = 3, init_std = 0.5"] {
            for optimizer in
                ["type = \"sgd\", lr = 1e10", "type = \"ftrl\", alpha = 1e10", "type = \"adagrad\""]
            {
                let toml = format!(
                    "data = {{ train = {train} }}\nmodel = {{ {model} }}\noptimizer = {{ {optimizer} }}\n\
                     train = {{ batch_size = {batch}, passes = 5 }}"
                );
                match place.run(&toml) {
                    Err(LearnError::Diverged { .. }) => diverged += 1,
                    // The table refuses a gradient that is too large, or an update that is not finite.
                    Err(LearnError::Client(ClientError::Store(
                        StoreError::BadGradient { .. } | StoreError::NotFinite { .. },
                    ))) => {
                        diverged += 1;
                    }
                    Err(error) => panic!("{toml}\nfailed otherwise: {error}"),
                    // Who survives it has weights and a loss that are numbers.
                    Ok(summary) => {
                        assert!(summary.logloss.is_some(), "{toml}");
                        place.model("run").tables().for_each(|table| {
                            table.for_each_row(|row| {
                                assert!(row.weights.iter().all(|w| w.is_finite()), "{toml}");
                            });
                        });
                    }
                }
            }
        }
    }
    assert!(diverged >= 4, "{diverged} of 12 runs diverged");
    // One row that is wrong by far is enough; no later row may have to notice.
    for (model, class_weight) in [("type = \"lr\"", 1e6), ("type = \"fm\", init_std = 1.0", 1.0)] {
        let lines = [1, 0, 1].map(|label| format!("{label} 5:9e14 6:9e14\n"));
        let train = place.file("one.svm", &lines.concat());
        for batch in [1, 3] {
            let error = failure(
                &place,
                &format!(
                    "data = {{ train = {train} }}\nmodel = {{ {model} }}\ntrain = {{ batch_size = {batch}, shuffle_rows = 0, class_weight = {class_weight} }}"
                ),
            );
            let text = error.to_string();
            let says = ["diverged", "gradient of key", "is not finite"];
            assert!(says.iter().any(|part| text.contains(part)), "{text}");
        }
    }
}

#[test]
fn a_full_table_is_named() {
    let place = Place::new();
    let train = place.synth("train.csv", 0, 5000);
    for batch in [1, 64] {
        let error = failure(
            &place,
            &format!(
                "data = {{ train = {train} }}\nmodel = {{ table_budget = 40000 }}\n\
                 train = {{ batch_size = {batch} }}\n[[feature]]\nname = \"ids\"\ncolumns = [\"C3\", \"C4\", \"C10\", \"C12\", \"C16\", \"C21\"]\ntable = \"ids\""
            ),
        );
        let text = error.to_string();
        assert!(text.contains("\"ids\" is full") && text.contains("40000"), "{text}");
        let full = matches!(
            error,
            LearnError::Client(ClientError::Store(StoreError::TableFull { .. }))
                | LearnError::Store(StoreError::TableFull { .. })
        );
        assert!(full, "{error:?}");
    }
}

#[test]
fn runs_that_cannot_be() {
    let place = Place::new();
    let (empty, headed) = (place.file("empty.svm", ""), place.file("headed.csv", "label,f\n"));
    let good = place.synth("good.svm", 0, 100);
    let negatives = place.file("negatives.svm", "0 1:1\n0 2:1\n");
    for (toml, part) in [
        (format!("data = {{ train = {empty} }}"), "no rows"),
        (format!("data = {{ train = {headed} }}\n[[feature]]\nname = \"f\""), "no rows"),
        (format!("data = {{ train = {good}, valid = {empty} }}"), "no rows"),
        (format!("data = {{ train = {negatives} }}\nnegatives = {{ keep = 1e-9 }}"), "no rows"),
        (format!("data = {{ train = {good} }}\nepochs = 3"), "epochs"),
        (format!("data = {{ train = {good} }}\ntrain = {{ epochs = 3 }}"), "epochs"),
        (format!("data = {{ train = {good} }}\nmodel = {{ type = \"lr\", depth = 3 }}"), "depth"),
        (format!("data = {{ train = {good}, shuffle_rows = 3 }}"), "shuffle"),
        (format!("data = {{ train = {good} }}\nmodel = {{ table_budget = 10 }}"), "model.table_budget = 10"),
        (format!("data = {{ train = {good} }}\noptimizer = {{ type = \"sgd\", lr = -1.0 }}"), "lr"),
        ("data = { train = \"missing.svm\" }".to_string(), "missing.svm"),
        (
            "data = { train = \"-\", format = \"csv\" }\n[[feature]]\nname = \"x\"\ntype = \"quantile\""
                .into(),
            "quantile",
        ),
        (
            "data = { train = \"-\", format = \"libsvm\" }\ntrain = { threads = 2, save_every_steps = 9 }"
                .into(),
            "save_every_steps",
        ),
        (
            format!(
                "data = {{ train = {good}, valid = \"-\", format = \"libsvm\" }}\ntrain = {{ passes = 2 }}"
            ),
            "once",
        ),
        ("data = { train = \"-\", valid = \"-\", format = \"libsvm\" }".to_string(), "once"),
    ] {
        let error = failure(&place, &toml);
        assert!(error.to_string().contains(part), "{toml}\n{error}");
        assert!(!place.run_dir("run").join("model").exists(), "{toml}: left a model");
    }
    // What validates is not down-sampled.
    let sampled = place
        .run(&format!("data = {{ train = {good}, valid = {negatives} }}\nnegatives = {{ keep = 1e-9 }}"));
    assert_eq!(sampled.unwrap().measured_examples, 2);
    // One class only is odd but no failure: there is no AUC.
    let summary = place.run(&format!("data = {{ train = {negatives} }}")).unwrap();
    assert_eq!((summary.auc, summary.real_mean), (None, Some(0.0)));
    let config = Config::parse(&format!("data = {{ train = {good} }}"), "x.toml".as_ref(), "x");
    assert_eq!(config.unwrap().train.threads, 1);
}
