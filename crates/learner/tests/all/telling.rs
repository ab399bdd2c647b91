//! What a run tells of its own numbers: on which rows they were measured, which features they come from, and what is wrong.

use std::cell::RefCell;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::runs::{self, Place, Random, close, row};
use sanderling_client::CONSTANT_KEY;
use sanderling_formats::{BadRows, DataConfig, Reader};
use sanderling_learner::distributed::JobOptions;
use sanderling_learner::{
    BIAS_TABLE, Config, Evaluation, Event, Importance, KnownKeys, MeasuredOn, Model, Purpose, RunOptions,
    evaluate, predict, train,
};

fn evaluated(model: &Model, file: &str) -> Evaluation {
    let reading = &model.config().data.reading;
    let bad_rows = Arc::new(BadRows::new(reading.on_bad_row));
    let files = [file.trim_matches('"').to_string()];
    evaluate(model, &files, reading, &bad_rows, 2, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

/// Coin flips, two for each user.
fn coins(place: &Place, name: &str, seed: u64) -> String {
    let mut random = Random(seed);
    let text = (0..2000)
        .fold("label,user\n".to_string(), |text, i| format!("{text}{},u{}\n", random.below(2), i / 2));
    place.file(name, &text)
}

#[test]
fn later_passes_are_over_seen_rows() {
    let place = Place::new();
    let (train, valid) = (coins(&place, "train.csv", 1), coins(&place, "valid.csv", 2));
    let toml = |rest: &str, passes: u64| {
        format!(
            "data = {{ train = {train}{rest} }}\ntrain = {{ batch_size = 16, passes = {passes}, print_every_steps = 50 }}\n\
             [[feature]]\nname = \"user\""
        )
    };
    let lines = RefCell::new(Vec::new());
    let watch = |event: &Event<'_>| {
        if let Event::Step(line) = event {
            lines.borrow_mut().push((line.pass, line.measured_on));
        }
        false
    };
    let (summary, _) = place.run_with(&toml("", 10), false, watch).unwrap();
    // Nothing can be learned, and the AUC that is told says so; that of the last pass would not.
    assert_eq!(summary.measured_on, "train");
    close(summary.auc.unwrap(), 0.5, 0.1, "AUC of the first pass");
    let seen = summary.seen.unwrap();
    assert!(seen.pass == 10 && seen.metrics.auc > 0.7, "{seen:?}");
    let expected = |pass| if pass == 1 { MeasuredOn::Train } else { MeasuredOn::TrainSeen };
    assert!(lines.borrow().iter().all(|&(pass, on)| on == expected(pass)), "{lines:?}");
    assert!(summary.timing.passes.iter().all(|pass| pass.measured_on == expected(pass.pass)));
    let log = std::fs::read_to_string(place.run_dir("run").join("metrics.jsonl")).unwrap();
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["measured_on"], if line["pass"] == 1 { "train" } else { "train_seen" });
    }
    let report = std::fs::read_to_string(&summary.report).unwrap();
    assert!(report.contains("Of pass 10 over training (seen) data"));
    // A run that goes on remembers its first pass.
    place.run(&toml("", 1)).unwrap();
    let resumed = place.resume(&toml("", 10)).unwrap();
    assert_eq!((resumed.auc, resumed.measured_on), (summary.auc, "train"));
    assert_eq!(resumed.seen.map(|seen| seen.pass), Some(10));
    // One pass has seen nothing, and validation rows are none of these.
    assert_eq!(place.run(&toml("", 1)).unwrap().seen, None);
    let valid = place.run(&toml(&format!(", valid = {valid}"), 3)).unwrap();
    assert_eq!((valid.measured_on, valid.seen), ("valid", None));
}

#[test]
fn later_passes_of_a_job_are_over_seen_rows() {
    let place = Place::new();
    let train = coins(&place, "train.csv", 1);
    let toml = format!(
        "data = {{ train = {train} }}\ntrain = {{ batch_size = 16, passes = 5 }}\n[[feature]]\nname = \"user\""
    );
    let job = JobOptions {
        algorithm: "ftrl-sync".parse().unwrap(),
        staleness: None,
        job: sanderling_job::Options { workers: 2, ..sanderling_job::Options::default() },
    };
    let lines = RefCell::new(Vec::new());
    let watch = |event: &Event<'_>| {
        if let Event::Pass(line) = event {
            lines.borrow_mut().push(line.measured_on);
        }
        false
    };
    let (summary, _) = place.run_as(&toml, &RunOptions { job: Some(job), ..place.options() }, watch).unwrap();
    close(summary.auc.unwrap(), 0.5, 0.1, "AUC of the first pass");
    assert_eq!(summary.seen.map(|seen| seen.pass), Some(5));
    let [first, rest @ ..] = &lines.borrow()[..] else { panic!("no pass") };
    assert_eq!((*first, rest), (MeasuredOn::Train, &[MeasuredOn::TrainSeen; 4][..]));
}

/// Mean absolute contributions over the rows of a file, in float64 and pair by pair: the weight of each key, and for two keys
/// half of their interaction to the feature of each.
fn contributions(model: &Model, file: &str) -> Vec<(String, f64)> {
    let encoder = model.encoder(Purpose::Score).unwrap();
    let files = [file.trim_matches('"').to_string()];
    let mut reader = Reader::open(&files, &model.config().data.reading, &encoder).unwrap();
    let mut batch = encoder.new_batch();
    while reader.next(&mut batch).unwrap() {}
    let features = &model.config().feature;
    let mut sums = vec![0.0; features.len()];
    for sample in 0..batch.len() {
        let mut keys = Vec::new();
        for (at, feature) in features.iter().enumerate() {
            let column = &batch.columns[at];
            for place in column.offsets[sample] as usize..column.offsets[sample + 1] as usize {
                let value = column.values.get(place).map_or(1.0, |&value| f64::from(value));
                let stored = model.table(feature.table()).unwrap().get(column.keys[place]);
                let weights: Vec<f64> =
                    stored.iter().flat_map(|row| row.weights.iter().map(|&w| f64::from(w))).collect();
                // A key without a row counts as zero.
                if !weights.is_empty() {
                    keys.push((at, value, weights));
                }
            }
        }
        let mut own = vec![0.0; features.len()];
        for (at, (feature, x, weights)) in keys.iter().enumerate() {
            own[*feature] += weights[0] * x;
            for (other_feature, other_x, other) in &keys[..at] {
                let dot: f64 = weights[1..].iter().zip(&other[1..]).map(|(a, b)| a * b).sum();
                own[*feature] += dot * x * other_x / 2.0;
                own[*other_feature] += dot * x * other_x / 2.0;
            }
        }
        sums.iter_mut().zip(&own).for_each(|(sum, own)| *sum += own.abs());
    }
    let names = features.iter().map(|feature| feature.name.clone());
    names.zip(sums).map(|(name, sum)| (name, sum / batch.len() as f64)).collect()
}

fn check_importance(found: &Importance, expected: &[(String, f64)], what: &str) {
    assert_eq!(found.features.len(), expected.len(), "{what}");
    assert!(
        found.features.is_sorted_by(|a, b| a.mean_abs_contribution >= b.mean_abs_contribution),
        "{what}: {found:?}"
    );
    for (name, expected) in expected {
        let found = found.features.iter().find(|feature| feature.feature == *name).unwrap();
        assert!(*expected > 0.0, "{what}: {name} contributes nothing");
        close(found.mean_abs_contribution, *expected, 1e-4, &format!("{what}: {name}"));
    }
}

#[test]
fn importance_is_the_mean_absolute_contribution_to_the_logit() {
    let place = Place::new();
    let mut random = Random(3);
    let mut rows = |count: u64| {
        (0..count).fold("label,user,tags,price\n".to_string(), |mut text, _| {
            let user = random.below(30);
            let tags: Vec<String> =
                (0..1 + random.below(4)).map(|_| format!("t{}", random.below(9))).collect();
            let label = u64::from(random.below(30) < user);
            writeln!(text, "{label},u{user},{},0.{}", tags.join("|"), random.below(100)).unwrap();
            text
        })
    };
    let (train, valid) = (place.file("train.csv", &rows(600)), place.file("valid.csv", &rows(300)));
    let features = "[[feature]]\nname = \"user\"\n[[feature]]\nname = \"tags\"\ntype = \"multi\"\npooling = \"mean\"\n\
                    [[feature]]\nname = \"price\"\ntype = \"numeric\"";
    for model in ["type = \"lr\"", "type = \"fm\", rank = 5, init_std = 0.3"] {
        for (valid_too, file) in [(true, &valid), (false, &train)] {
            let inputs = if valid_too { format!(", valid = {valid}") } else { String::new() };
            let toml = format!(
                "data = {{ train = {train}{inputs} }}\nmodel = {{ {model} }}\ntrain = {{ batch_size = 8, passes = 3 }}\n{features}"
            );
            let summary = place.run(&toml).unwrap();
            let what = format!("{model}, validates: {valid_too}");
            let found = summary.importance.unwrap();
            assert_eq!(found.rows, if valid_too { 300 } else { 600 }, "{what}");
            check_importance(&found, &contributions(&place.model("run"), file), &what);
        }
    }
}

/// The contributions and the constant add up to the logit: one row, whose contributions are all of one sign.
#[test]
fn contributions_add_up_to_the_logit() {
    let place = Place::new();
    let train = place.file("train.svm", "1 1:1 2:2\n1 1:1 2:2\n");
    let toml = format!(
        "data = {{ train = {train}, valid = {train} }}\nmodel = {{ type = \"fm\", rank = 2, init_std = 0.5 }}\n\
         train = {{ batch_size = 2 }}"
    );
    let summary = place.run(&toml).unwrap();
    let model = place.model("run");
    let logit = {
        let p = summary.prob_mean.unwrap();
        (p / (1.0 - p)).ln()
    };
    let constant = row(&model, BIAS_TABLE, CONSTANT_KEY)[0];
    let found = summary.importance.unwrap().features[0].mean_abs_contribution;
    close(found, (logit - constant).abs(), 1e-4, "one feature contributes all but the constant");
}

#[test]
fn features_whose_values_swamp_the_model_are_named() {
    let place = Place::new();
    let csv = (0..600).fold("label,ts,u,x\n".to_string(), |text, i| {
        format!(
            "{text}{},{},u{},0.{}\n",
            u8::from(i * 7 % 3 == 0),
            1_414_000_000 + (i % 50) * 3600,
            i % 5,
            i % 10
        )
    });
    let train = place.file("train.csv", &csv);
    let job = |name: &str| JobOptions {
        algorithm: name.parse().unwrap(),
        staleness: None,
        job: sanderling_job::Options { workers: 2, ..sanderling_job::Options::default() },
    };
    let jobs = [None, None, None, Some(job("ftrl")), Some(job("ftrl-sync"))];
    for (job, train_section) in jobs.into_iter().zip([
        "batch_size = 16",
        "batch_size = 1",
        "batch_size = 16, threads = 2",
        "batch_size = 16",
        "batch_size = 16",
    ]) {
        for kind in ["numeric", "log"] {
            let toml = format!(
                "data = {{ train = {train} }}\ntrain = {{ {train_section} }}\n[[feature]]\nname = \"ts\"\n\
                 type = \"{kind}\"\n[[feature]]\nname = \"u\"\n[[feature]]\nname = \"x\"\ntype = \"numeric\""
            );
            let told = RefCell::new(Vec::new());
            let watch = |event: &Event<'_>| {
                if let Event::LargeValues { features } = event {
                    told.borrow_mut().extend(features.iter().map(ToString::to_string));
                }
                false
            };
            let done = place.run_as(&toml, &RunOptions { job: job.clone(), ..place.options() }, watch);
            let told = told.into_inner();
            if kind == "log" {
                assert!(told.is_empty(), "{train_section}: {told:?}");
                continue;
            }
            // It may diverge as well; then the error names the feature.
            let words = match &done {
                Ok((summary, _)) => {
                    assert!(!summary.warnings.is_empty(), "{train_section}: {summary:?}");
                    told.join("\n")
                }
                Err(error) => error.to_string(),
            };
            let is_named = words.contains("\"ts\"") && words.contains("1.4e9") && words.contains("quantile");
            assert!(is_named && !words.contains("\"x\""), "{train_section}: {words}");
            assert!(told.len() <= 1, "it is told once: {told:?}");
        }
    }
}

#[test]
fn a_step_that_goes_wrong_names_the_feature_and_its_value() {
    let place = Place::new();
    let train = place.file("train.csv", "label,x,y,w\n1,9e14,1e14,1e11\n0,8e14,1e14,1e11\n");
    for (weight, expected) in
        [("", "feature \"x\" has the value "), ("[weight]\ncolumn = \"w\"", "weight 1.0e11")]
    {
        for batch in [1, 2] {
            let toml = format!(
                "data = {{ train = {train} }}\ntrain = {{ batch_size = {batch}, passes = 9 }}\n\
                 model = {{ type = \"fm\", init_std = 1.0 }}\n{weight}\n[[feature]]\neach = [\"x\", \"y\"]\ntype = \"numeric\""
            );
            let error = match place.run(&toml) {
                Err(error) => error.to_string(),
                Ok(summary) => panic!("{toml}\ntrained: {summary:?}"),
            };
            assert!(error.contains("diverged") && error.contains(expected), "{error}");
            assert!(!error.contains("key") && !error.contains("clip"), "{error}");
        }
    }
}

#[test]
fn values_and_weights_that_no_table_takes_name_file_line_and_column() {
    let place = Place::new();
    let csv = place.file("bad.csv", "label,x,w\n1,1,1\n0,5e19,1\n");
    let heavy = place.file("heavy.csv", "label,x,w\n1,1,1\n0,1,1e30\n");
    let svm = place.file("bad.svm", "1 3:1\n0 3:1 4:5e19\n");
    let features = "[weight]\ncolumn = \"w\"\n[[feature]]\nname = \"x\"\ntype = \"numeric\"";
    for (file, rest, expected) in [
        (&csv, features, "bad.csv:3: column x: expected a number below 1e15 in size"),
        (&heavy, features, "heavy.csv:3: column w: expected a weight: a number from 0 to 1e12"),
        (&svm, "", "bad.svm:2: column 3: expected a number below 1e15 in size"),
    ] {
        let error = place.run(&format!("data = {{ train = {file} }}\n{rest}")).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    // As a logarithm or a quantile the value is as good as any.
    for kind in ["log", "quantile"] {
        let toml =
            format!("data = {{ train = {csv} }}\n[[feature]]\nname = \"x\"\ntype = \"{kind}\"\nbuckets = 2");
        let toml = if kind == "log" { toml.replace("\nbuckets = 2", "") } else { toml };
        place.run(&toml).unwrap();
    }
}

#[test]
fn keys_that_the_model_does_not_know_are_counted_by_feature() {
    let place = Place::new();
    let line = |i: u64, item: &str, extra: &str| format!("{},{},{item}{extra}\n", i % 2, i % 7);
    let rows = |extra: &str| {
        (0..100).fold("label,user,item\n".to_string(), |text, i| text + &line(i, &(i % 9).to_string(), extra))
    };
    let (train, same, other) = (
        place.file("train.csv", &rows("")),
        place.file("same.csv", &rows("")),
        place.file("other.csv", &rows(".0")),
    );
    let shared = "[[feature]]\nname = \"user\"\ntable = \"ids\"\n[[feature]]\nname = \"item\"\ntable = \"ids\"\n\
                  salt = \"item\"\n";
    let own = "[[feature]]\neach = [\"user\", \"item\"]\n";
    for features in [own, shared] {
        let told = RefCell::new(0);
        let toml = format!("data = {{ train = {train}, valid = {other} }}\n{features}");
        let (summary, _) = place
            .run_with(&toml, false, |event| {
                *told.borrow_mut() += u32::from(matches!(event, Event::UnknownKeys { .. }));
                false
            })
            .unwrap();
        let keys = |feature: &str, known| KnownKeys { feature: feature.into(), occurrences: 100, known };
        assert_eq!(summary.known, [keys("user", 100), keys("item", 0)]);
        assert_eq!(told.into_inner(), 1);
        assert!(summary.warnings.iter().any(|warning| warning.contains("0 of 100 ids of \"item\"")));
        let model = place.model("run");
        assert_eq!(evaluated(&model, &same).known, [keys("user", 100), keys("item", 100)]);
        let found = evaluated(&model, &other);
        assert_eq!((&found.known, found.positives), (&summary.known, 50));
        let bad_rows = Arc::new(BadRows::new(DataConfig::default().on_bad_row));
        let files = [other.trim_matches('"').to_string()];
        let predicted =
            predict(&model, &files, &DataConfig::default(), &bad_rows, &Arc::default(), |_, _| Ok(()))
                .unwrap();
        assert_eq!((&predicted.known, predicted.rows), (&summary.known, 100));
    }
}

#[test]
fn a_name_that_nobody_gave_keeps_the_earlier_run() {
    let place = Place::new();
    let data = place.synth("train.svm", 0, 200);
    let told = RefCell::new(Vec::new());
    let run = |toml: &str, resume: bool, keeps_earlier: bool| {
        let config =
            Config::parse(&format!("data = {{ train = {data} }}\n{toml}"), "c.toml".as_ref(), "c").unwrap();
        let options = RunOptions { resume, keeps_earlier, ..place.options() };
        let summary = train(config, &options, &AtomicBool::new(false), &mut |event| match event {
            Event::Renamed { to, replaces, .. } => {
                let how = if *replaces { "replaced" } else { "new" };
                told.borrow_mut().push(format!("{to} {how}"));
            }
            Event::Replacing { .. } => told.borrow_mut().push("replaced".to_owned()),
            _ => {}
        });
        summary.map(|summary| summary.name)
    };
    assert_eq!(run("seed = 1", false, true).unwrap(), "c");
    let first = runs::contents(&place.model("c"));
    // The same configuration is the same run, another one is not.
    assert_eq!(run("seed = 1", false, true).unwrap(), "c");
    assert_eq!(run("train = { batch_size = 7 }", false, true).unwrap(), "c-2");
    assert_eq!(run("train = { batch_size = 9 }", false, true).unwrap(), "c-3");
    assert_eq!(run("train = { batch_size = 7 }", false, true).unwrap(), "c-2");
    // Each run tells one of the two.
    assert_eq!(told.take(), ["replaced", "c-2 new", "c-3 new", "c-2 replaced"]);
    assert!(runs::contents(&place.model("c")) == first, "the first run is as it was");
    // What can be resumed is found under its number, and what cannot is refused under the name.
    assert_eq!(run("train = { batch_size = 9, passes = 2 }", true, true).unwrap(), "c-3");
    assert!(
        run("train = { batch_size = 11 }", true, true).unwrap_err().to_string().contains("cannot resume")
    );
    // A name that was given on purpose is replaced.
    assert_eq!(run("train = { batch_size = 7 }", false, false).unwrap(), "c");
    assert!(runs::contents(&place.model("c")) != first);
}
