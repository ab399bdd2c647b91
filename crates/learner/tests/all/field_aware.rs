//! Field-aware factorization machines against their definition, pair by pair, in float64; the ways to train one against
//! each other; and the limits of their configuration.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use crate::runs::{Place, Random, close, contents, row};
use sanderling_client::CONSTANT_KEY;
use sanderling_formats::BadRows;
use sanderling_job::Options;
use sanderling_learner::distributed::JobOptions;
use sanderling_learner::{BIAS_TABLE, Config, LearnError, Model, RunOptions, predict};
use sanderling_store::Absent;

/// The label, then (field, key, value); a field has any number of keys.
type Example = (f64, Vec<(usize, u64, f64)>);

fn examples(rows: usize, fields: usize) -> Vec<Example> {
    let mut random = Random(11);
    let mut example = || {
        let mut pairs = Vec::new();
        for field in 0..fields {
            let keys = [0, 1, 1, 1, 3][random.below(5) as usize];
            // Multiples of 1/8 are the same in f32.
            pairs.extend((0..keys).map(|_| (field, random.below(9), (1 + random.below(16)) as f64 / 8.0)));
        }
        pairs.sort_by_key(|&(field, key, _)| (field, key));
        pairs.dedup_by_key(|&mut (field, key, _)| (field, key));
        (f64::from(u8::from(random.below(3) == 0)), pairs)
    };
    (0..rows).map(|_| example()).collect()
}

fn libffm(examples: &[Example]) -> String {
    examples.iter().fold(String::new(), |mut text, (label, pairs)| {
        write!(text, "{label}").unwrap();
        pairs.iter().for_each(|(field, key, value)| write!(text, " {field}:{key}:{value}").unwrap());
        text + "\n"
    })
}

fn features(fields: usize) -> String {
    let names: Vec<String> = (0..fields).map(|field| format!("\"field_{field}\"")).collect();
    format!("[[feature]]\neach = [{}]\ntype = \"sparse\"\n", names.join(", "))
}

/// By field and key the row `[w, v_1 .. v_F]`, of which each factor has `rank` numbers.
struct Reference {
    rank: usize,
    normalizes: bool,
    bias: f64,
    rows: BTreeMap<(usize, u64), Vec<f64>>,
}

impl Reference {
    /// Equation 4 of the paper with a linear part: per field what belongs to it, half of an interaction of two fields.
    fn parts(&self, pairs: &[(usize, u64, f64)], fields: usize) -> Vec<f64> {
        let squares: f64 = pairs.iter().map(|(_, _, x)| x * x).sum();
        let scale = if self.normalizes && squares > 0.0 { squares.sqrt().recip() } else { 1.0 };
        let mut parts = vec![0.0; fields];
        for (at, &(field, key, x)) in pairs.iter().enumerate() {
            let row = &self.rows[&(field, key)];
            parts[field] += row[0] * x * scale;
            for &(other_field, other_key, other_x) in &pairs[..at] {
                let other = &self.rows[&(other_field, other_key)];
                let dot: f64 = (0..self.rank)
                    .map(|at| row[1 + other_field * self.rank + at] * other[1 + field * self.rank + at])
                    .sum();
                let pair = dot * x * other_x * scale * scale;
                parts[field] += pair / 2.0;
                parts[other_field] += pair / 2.0;
            }
        }
        parts
    }

    fn logit(&self, pairs: &[(usize, u64, f64)], fields: usize) -> f64 {
        self.bias + self.parts(pairs, fields).iter().sum::<f64>()
    }

    fn loss(&self, data: &[Example], fields: usize) -> f64 {
        let loss = |(label, pairs): &Example| {
            let logit = self.logit(pairs, fields);
            if *label > 0.5 { (-logit).exp().ln_1p() } else { logit.exp().ln_1p() }
        };
        data.iter().map(loss).sum()
    }
}

#[test]
fn gradients_equal_finite_differences() {
    let place = Place::new();
    for (fields, rank, batch, normalize) in [
        (2, 1, 1, false),
        (3, 4, 1, true),
        (4, 4, 30, true),
        (4, 5, 30, false),
        (5, 8, 30, true),
        (3, 16, 30, false),
        (3, 17, 30, true),
    ] {
        let what = format!("{fields} fields, rank {rank}, batch {batch}, normalize {normalize}");
        let data = examples(30, fields);
        let train = place.file("train.ffm", &libffm(&data));
        // One step of gradient descent at rate 1 moves every weight by its gradient.
        let toml = format!(
            "data = {{ train = {train} }}\n\
             model = {{ type = \"ffm\", rank = {rank}, init_std = 0.3, normalize = {normalize} }}\n\
             train = {{ batch_size = {batch}, shuffle_rows = 0, max_steps = 1, reduction = \"sum\" }}\n\
             optimizer = {{ type = \"sgd\", lr = 1.0 }}\n{}",
            features(fields)
        );
        let untrained = Model::new(Config::parse(&toml, Path::new("ffm.toml"), "run").unwrap()).unwrap();
        let mut before = Reference { rank, normalizes: normalize, bias: 0.0, rows: BTreeMap::new() };
        for &(field, key, _) in data[..batch].iter().flat_map(|(_, pairs)| pairs) {
            let mut start = vec![0.0; 1 + fields * rank];
            let table = untrained.table(&format!("field_{field}")).unwrap();
            table.pull(&[key], Absent::Init, &mut start, None).unwrap();
            before.rows.insert((field, key), start.into_iter().map(f64::from).collect());
        }
        place.run(&toml).unwrap();
        let trained = place.model("run");
        const H: f64 = 1e-5;
        for (field, key) in before.rows.keys().copied().collect::<Vec<_>>() {
            let after = row(&trained, &format!("field_{field}"), key);
            for (at, &after) in after.iter().enumerate() {
                let mut loss = |shift: f64| {
                    before.rows.get_mut(&(field, key)).unwrap()[at] += shift;
                    let loss = before.loss(&data[..batch], fields);
                    before.rows.get_mut(&(field, key)).unwrap()[at] -= shift;
                    loss
                };
                let slope = (loss(H) - loss(-H)) / (2.0 * H);
                let what = format!("{what}: field {field}, key {key}, coordinate {at}");
                close(before.rows[&(field, key)][at] - after, slope, 5e-6, &what);
            }
        }
        let mut loss = |shift| {
            before.bias = shift;
            before.loss(&data[..batch], fields)
        };
        let slope = (loss(H) - loss(-H)) / (2.0 * H);
        close(-row(&trained, BIAS_TABLE, CONSTANT_KEY)[0], slope, 5e-6, &what);
    }
}

/// Predictions, loss and importance of a trained model, from its rows.
#[test]
fn a_trained_model_scores_by_the_definition() {
    let place = Place::new();
    let (fields, rank) = (4, 3);
    let data = examples(300, fields);
    let (train, valid) =
        (place.file("train.ffm", &libffm(&data)), place.file("valid.ffm", &libffm(&data[..200])));
    let toml = format!(
        "data = {{ train = {train}, valid = {valid} }}\n\
         model = {{ type = \"ffm\", rank = {rank}, init_std = 0.3 }}\n\
         optimizer = {{ type = \"adagrad\", lr = 0.1 }}\ntrain = {{ batch_size = 10, passes = 3 }}\n{}",
        features(fields)
    );
    let summary = place.run(&toml).unwrap();
    let model = place.model("run");
    let mut reference = Reference { rank, normalizes: true, bias: 0.0, rows: BTreeMap::new() };
    reference.bias = row(&model, BIAS_TABLE, CONSTANT_KEY)[0];
    for field in 0..fields {
        model.table(&format!("field_{field}")).unwrap().for_each_row(|row| {
            let weights = row.weights.iter().map(|&w| f64::from(w)).collect();
            reference.rows.insert((field, row.key), weights);
        });
    }
    let mut found = Vec::new();
    let reading = &model.config().data.reading;
    let bad_rows = Arc::new(BadRows::new(reading.on_bad_row));
    let files = [place.path("valid.ffm").display().to_string()];
    predict(&model, &files, reading, &bad_rows, &Arc::default(), |some, _| {
        found.extend_from_slice(some);
        Ok(())
    })
    .unwrap();
    let mut importance = vec![0.0; fields];
    for ((_, pairs), found) in data[..200].iter().zip(&found) {
        let probability = 1.0 / (1.0 + (-reference.logit(pairs, fields)).exp());
        close(f64::from(*found), probability, 1e-6, "a prediction");
        let parts = reference.parts(pairs, fields);
        importance.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part.abs() / 200.0);
    }
    assert_eq!(found.len(), 200);
    close(summary.logloss.unwrap(), reference.loss(&data[..200], fields) / 200.0, 1e-6, "logloss");
    for it in summary.importance.unwrap().features {
        let field: usize = it.feature.trim_start_matches("field_").parse().unwrap();
        close(it.mean_abs_contribution, importance[field], 1e-6, &it.feature);
    }
}

const FEATURES: &str = "[[feature]]\nname = \"user\"\nkey = \"raw\"\n[[feature]]\nname = \"ad\"\nkey = \"raw\"\n\
                        [[feature]]\nname = \"tags\"\ntype = \"multi\"\npooling = \"mean\"";

/// Rows of several columns, some of them empty, and the same ones each with an empty one that weighs nothing.
fn csv() -> (String, String) {
    let mut random = Random(3);
    let (mut alone, mut paired) =
        ("label,w,user,ad,tags\n".to_string(), "label,w,user,ad,tags\n".to_string());
    for _ in 0..600 {
        let first = random.below(50);
        let tags = format!("t{first}|t{}|t{}", first + 50, first + 100 + random.below(20));
        let tags = if random.below(4) == 0 { "" } else { tags.as_str() };
        let (label, weight) = (random.below(2), 1 + random.below(3));
        let line = format!("{label},{weight},{},{},{tags}\n", random.below(90), random.below(60));
        alone += &line;
        paired += &(line + "0,0,,,\n");
    }
    (alone, paired)
}

/// As for the other models: online learning does to the tables what minibatches of one row do, to the last bit.
#[test]
fn online_learning_equals_minibatches_of_one() {
    let place = Place::new();
    let (alone, paired) = csv();
    let (alone, paired) = (place.file("alone.csv", &alone), place.file("paired.csv", &paired));
    for (model, optimizer) in [
        ("rank = 4", "type = \"ftrl\", alpha = 0.2, l1 = 0.1, l2 = 0.5"),
        ("rank = 4, init_std = 0.2", "type = \"row_adagrad\", lr = 0.1"),
        ("rank = 3, normalize = false", "type = \"adagrad\", lr = 0.1"),
        ("rank = 8, bias = false", "type = \"sgd\", lr = 0.05, l2 = 0.01"),
    ] {
        let run = |name: &str, train: &str, batch: usize| {
            let summary = place.run(&format!(
                "name = {name:?}\ndata = {{ train = {train} }}\nweight = {{ column = \"w\" }}\n\
                 model = {{ type = \"ffm\", {model} }}\noptimizer = {{ {optimizer} }}\n\
                 train = {{ batch_size = {batch}, shuffle_rows = 0, passes = 2, reduction = \"sum\", class_weight = 1.5 }}\n\
                 {FEATURES}"
            ));
            (summary.unwrap(), contents(&place.model(name)))
        };
        let (online, online_rows) = run("online", &alone, 1);
        let (generic, generic_rows) = run("generic", &paired, 2);
        assert_eq!((online.steps, generic.steps), (1200, 1200));
        assert!(online_rows == generic_rows, "{model}, {optimizer}: the tables differ");
        close(online.logloss.unwrap(), generic.logloss.unwrap(), 1e-12, model);
    }
}

#[test]
fn workers_in_step_and_on_their_own_ways() {
    let place = Place::new();
    let train = place.file("train.csv", &csv().0);
    let toml = |name: &str, threads: usize| {
        format!(
            "name = {name:?}\ndata = {{ train = {train} }}\nmodel = {{ type = \"ffm\", rank = 4 }}\n\
             optimizer = {{ type = \"adagrad\", lr = 0.1 }}\n\
             train = {{ batch_size = 16, passes = 2, threads = {threads} }}\n{FEATURES}"
        )
    };
    let job = |algorithm: &str, workers| {
        let job = Options { workers, ..Options::default() };
        let algorithm = algorithm.parse().unwrap();
        let job = Some(JobOptions { algorithm, staleness: None, job });
        RunOptions { job, ..place.options() }
    };
    let mut first = None;
    for workers in [1, 2] {
        let name = format!("sync-{workers}");
        place.run_as(&toml(&name, 1), &job("fm-sync", workers), |_| false).unwrap();
        let rows = contents(&place.model(&name));
        assert!(*first.get_or_insert_with(|| rows.clone()) == rows, "{workers} workers give other bits");
    }
    // Each way learns from every row.
    let (own, _) = place.run_as(&toml("own", 1), &job("fm", 2), |_| false).unwrap();
    let threads = place.run(&toml("threads", 2)).unwrap();
    let one = place.run(&toml("one", 1)).unwrap();
    for summary in [&own, &threads] {
        assert_eq!((summary.examples, summary.rows), (one.examples, one.rows));
        close(summary.logloss.unwrap(), one.logloss.unwrap(), 0.01, "logloss");
    }
}

#[test]
fn a_run_is_resumed_and_continued() {
    let place = Place::new();
    let train = place.file("train.csv", &csv().0);
    let toml = |name: &str, passes: u64, features: &str| {
        format!(
            "name = {name:?}\ndata = {{ train = {train} }}\nmodel = {{ type = \"ffm\", rank = 2 }}\n\
             train = {{ batch_size = 16, passes = {passes} }}\n{features}"
        )
    };
    place.run(&toml("whole", 2, FEATURES)).unwrap();
    place.run(&toml("parts", 1, FEATURES)).unwrap();
    place.resume(&toml("parts", 2, FEATURES)).unwrap();
    assert!(contents(&place.model("whole")) == contents(&place.model("parts")));
    let from = |toml: &str| -> Result<(), LearnError> {
        let from = Some(place.run_dir("whole").join("model"));
        place.run_as(toml, &RunOptions { from, ..place.options() }, |_| false).map(|_| ())
    };
    from(&toml("next", 1, FEATURES)).unwrap();
    let check = |toml: &str, expected: &str| {
        let error = from(toml).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let more = format!("{FEATURES}\n[[feature]]\nname = \"w\"");
    check(&toml("more", 1, &more), "features came or changed places");
    let (first, rest) = FEATURES.split_at(FEATURES.rfind("[[feature]]").unwrap());
    check(&toml("turned", 1, &format!("{rest}\n{first}")), "features came or changed places");
    check(&toml("rank", 1, FEATURES).replace("rank = 2", "rank = 3"), "model.rank is 3 now");
    check(
        &toml("norm", 1, FEATURES).replace("rank = 2", "rank = 2, normalize = false"),
        "model.normalize is false",
    );
}

#[test]
fn what_does_not_fit_is_refused() {
    let check = |model: &str, features: usize, expected: &str| {
        let names: Vec<String> = (0..features).map(|at| format!("\"f{at}\"")).collect();
        let toml = format!(
            "data = {{ train = \"a.csv\" }}\nmodel = {{ {model} }}\n[[feature]]\neach = [{}]",
            names.join(", ")
        );
        match Config::parse(&toml, Path::new("c.toml"), "c") {
            Ok(config) => {
                assert_eq!(expected, "", "{model}, {features} features");
                assert_eq!(config.factors(), features * config.model.rank);
            }
            Err(error) => {
                let error = error.to_string();
                assert!(!expected.is_empty() && error.contains(expected), "{error}");
                assert!(error.chars().count() <= 200, "{error}");
            }
        }
    };
    check("type = \"ffm\", rank = 4", 39, "");
    check("type = \"ffm\", rank = 4", 1, "the only feature, \"f0\", is one field");
    check("type = \"ffm\", rank = 15", 4096, "");
    check("type = \"ffm\", rank = 16", 4096, "4096 features x 16 = 65536 numbers per key");
    check("type = \"ffm\", rank = 1025", 2, "model.rank = 1025");
    check("type = \"fm\", normalize = true", 3, "model.normalize: only for model.type = \"ffm\"");
}
