//! What one update does, against float64: FTRL against McMahan et al. 2013, factorization machines against finite
//! differences, schedules against plain gradient descent, and the online path against the one for minibatches.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::runs::{Place, Random, close, contents, row};
use sanderling_client::CONSTANT_KEY;
use sanderling_learner::{BIAS_TABLE, Config, Model};
use sanderling_store::Absent;

/// A row of numbers: the label, then (key, value) pairs, keys distinct.
pub(crate) type Example = (f64, Vec<(u64, f64)>);

fn examples(rows: usize, keys: u64) -> Vec<Example> {
    let mut random = Random(7);
    let mut example = || {
        let mut pairs = BTreeMap::new();
        for _ in 0..2 + random.below(5) {
            // Multiples of 1/8 are the same in f32.
            pairs.insert(1 + random.below(keys), (1 + random.below(16)) as f64 / 8.0);
        }
        let score: f64 = pairs.iter().map(|(key, value)| ((key % 5) as f64 - 2.0) * value).sum();
        let noise = random.below(100) as f64 / 50.0 - 1.0;
        (if score + noise > 0.0 { 1.0 } else { 0.0 }, pairs.into_iter().collect())
    };
    (0..rows).map(|_| example()).collect()
}

pub(crate) fn libsvm(examples: &[Example]) -> String {
    examples.iter().fold(String::new(), |mut text, (label, pairs)| {
        write!(text, "{label}").unwrap();
        pairs.iter().for_each(|(key, value)| write!(text, " {key}:{value}").unwrap());
        text + "\n"
    })
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// One coordinate of McMahan et al. 2013, algorithm 1.
#[derive(Default, Clone, Copy)]
struct Coordinate {
    z: f64,
    n: f64,
}

impl Coordinate {
    fn weight(self, [alpha, beta, l1, l2]: [f64; 4]) -> f64 {
        if self.z.abs() <= l1 {
            return 0.0;
        }
        -(self.z - self.z.signum() * l1) / ((beta + self.n.sqrt()) / alpha + l2)
    }

    fn update(&mut self, settings: [f64; 4], gradient: f64) {
        let sigma = ((self.n + gradient * gradient).sqrt() - self.n.sqrt()) / settings[0];
        self.z += gradient - sigma * self.weight(settings);
        self.n += gradient * gradient;
    }
}

#[test]
fn logistic_regression_follows_the_paper() {
    let place = Place::new();
    let data = examples(600, 30);
    let train = place.file("train.svm", &libsvm(&data));
    for (batch, [alpha, beta, l1, l2]) in [
        (1, [0.1, 1.0, 0.0, 0.0]),
        (1, [0.5, 0.5, 0.25, 0.125]),
        (64, [0.05, 1.0, 0.0, 1.0]),
        (64, [0.5, 1.0, 2.0, 0.0]),
        (1000, [0.1, 1.0, 0.5, 0.5]),
    ] {
        let settings = [alpha, beta, l1, l2];
        let what = format!("batch {batch}, {settings:?}");
        let summary = place.run(&format!(
            "data = {{ train = {train} }}\ntrain = {{ batch_size = {batch}, shuffle_rows = 0, passes = 2 }}\n\
             optimizer = {{ type = \"ftrl\", alpha = {alpha}, beta = {beta}, l1 = {l1}, l2 = {l2} }}"
        ));
        let summary = summary.unwrap();
        // Key 0 is the constant; libsvm keys begin with 1 here.
        let mut model = BTreeMap::<u64, Coordinate>::new();
        let mut loss = 0.0;
        for pass in 0..2 {
            for rows in data.chunks(batch) {
                let mut gradients = BTreeMap::<u64, f64>::new();
                for (label, pairs) in rows {
                    let pairs = || pairs.iter().copied().chain([(0, 1.0)]);
                    let weight = |key| model.get(&key).map_or(0.0, |c: &Coordinate| c.weight(settings));
                    let logit: f64 = pairs().map(|(key, value)| value * weight(key)).sum();
                    let error = sigmoid(logit) - label;
                    pairs().for_each(|(key, value)| *gradients.entry(key).or_default() += error * value);
                    // What is reported is of the first pass, whose rows were new.
                    if pass == 0 {
                        loss -= (label * sigmoid(logit) + (1.0 - label) * sigmoid(-logit)).ln();
                    }
                }
                for (key, gradient) in gradients {
                    model.entry(key).or_default().update(settings, gradient);
                }
            }
        }
        let trained = place.model("run");
        assert_eq!(trained.rows(), model.len() as u64, "{what}");
        let mut zeros = 0;
        for (key, coordinate) in &model {
            let (table, key) = if *key == 0 { (BIAS_TABLE, CONSTANT_KEY) } else { ("features", *key) };
            let got = row(&trained, table, key);
            let expected = [coordinate.weight(settings), coordinate.z, coordinate.n];
            // Hundreds of f32 updates, each off by up to 6e-8 of the largest intermediate value.
            got.iter().zip(expected).for_each(|(got, expected)| close(*got, expected, 2e-4, &what));
            zeros += usize::from(got[0] == 0.0);
        }
        assert!(
            if l1 > 0.0 { l1 < 2.0 || zeros > 0 } else { zeros == 0 },
            "{what}: {zeros} weights are zero"
        );
        close(summary.logloss.unwrap(), loss / data.len() as f64, 1e-5, &what);
    }
}

/// Loss of a factorization machine, summed over rows; `rows[key]` is `[w, v_1 .. v_k]`, key 0 the constant.
fn factorization_loss(rows: &BTreeMap<u64, Vec<f64>>, data: &[Example]) -> f64 {
    let loss = |(label, pairs): &Example| {
        let mut logit = rows[&0][0];
        for (at, (key, value)) in pairs.iter().enumerate() {
            logit += rows[key][0] * value;
            for (other, other_value) in &pairs[..at] {
                let dot: f64 = rows[key][1..].iter().zip(&rows[other][1..]).map(|(a, b)| a * b).sum();
                logit += dot * value * other_value;
            }
        }
        -(label * sigmoid(logit) + (1.0 - label) * sigmoid(-logit)).ln()
    };
    data.iter().map(loss).sum()
}

#[test]
fn factorization_gradients_equal_finite_differences() {
    let place = Place::new();
    let data = examples(40, 12);
    let train = place.file("train.svm", &libsvm(&data));
    for (batch, rank) in [(1, 1), (1, 5), (40, 1), (40, 8)] {
        // One step of gradient descent at rate 1 moves every weight by its gradient.
        let toml = format!(
            "data = {{ train = {train} }}\nmodel = {{ type = \"fm\", rank = {rank}, init_std = 0.3 }}\n\
             train = {{ batch_size = {batch}, shuffle_rows = 0, max_steps = 1, reduction = \"sum\" }}\n\
             optimizer = {{ type = \"sgd\", lr = 1.0 }}"
        );
        let config = Config::parse(&toml, "fm.toml".as_ref(), "run").unwrap();
        let untrained = Model::new(config).unwrap();
        let mut rows = BTreeMap::from([(0, vec![0.0])]);
        for key in data[..batch].iter().flat_map(|(_, pairs)| pairs).map(|(key, _)| *key) {
            let mut start = vec![0.0; rank + 1];
            untrained.table("features").unwrap().pull(&[key], Absent::Init, &mut start, None).unwrap();
            rows.insert(key, start.into_iter().map(f64::from).collect());
        }
        place.run(&toml).unwrap();
        let trained = place.model("run");
        for key in rows.keys().copied().collect::<Vec<_>>() {
            let (table, stored) = if key == 0 { (BIAS_TABLE, CONSTANT_KEY) } else { ("features", key) };
            let after = row(&trained, table, stored);
            for at in 0..rows[&key].len() {
                const H: f64 = 1e-5;
                let mut loss = |shift: f64| {
                    rows.get_mut(&key).unwrap()[at] += shift;
                    let loss = factorization_loss(&rows, &data[..batch]);
                    rows.get_mut(&key).unwrap()[at] -= shift;
                    loss
                };
                let slope = (loss(H) - loss(-H)) / (2.0 * H);
                let what = format!("batch {batch}, rank {rank}, key {key}, coordinate {at}");
                close(rows[&key][at] - after[at], slope, 5e-6, &what);
            }
        }
    }
}

#[test]
fn schedules_scale_the_step() {
    let place = Place::new();
    let data = examples(90, 10);
    let train = place.file("train.svm", &libsvm(&data));
    let (batch, passes, rate) = (30, 4, 0.05);
    for (settings, factor) in [
        ("", (|_, _| 1.0) as fn(f64, i32) -> f64),
        ("warmup_steps = 5", |step, _| ((step + 1.0) / 5.0).min(1.0)),
        ("schedule = { type = \"exponential\", factor = 0.5 }", |_, pass| 0.5_f64.powi(pass)),
        ("schedule = { type = \"inverse_sqrt\", steps = 4 }", |step, _| (4.0 / (4.0 + step)).sqrt()),
    ] {
        let comma = if settings.is_empty() { "" } else { "," };
        place
            .run(&format!(
                "data = {{ train = {train} }}\noptimizer = {{ type = \"sgd\", lr = {rate} }}\n\
                 train = {{ batch_size = {batch}, passes = {passes}, shuffle_rows = 0, reduction = \"sum\"{comma} {settings} }}"
            ))
            .unwrap();
        let mut weights = BTreeMap::<u64, f64>::new();
        let mut step = 0.0;
        for pass in 0..passes {
            for rows in data.chunks(batch) {
                let mut gradients = BTreeMap::<u64, f64>::new();
                for (label, pairs) in rows {
                    let pairs = || pairs.iter().copied().chain([(0, 1.0)]);
                    let weight = |key| weights.get(&key).copied().unwrap_or(0.0);
                    let error = sigmoid(pairs().map(|(key, x)| x * weight(key)).sum()) - label;
                    pairs().for_each(|(key, value)| *gradients.entry(key).or_default() += error * value);
                }
                let rate = rate * factor(step, pass);
                gradients.iter().for_each(|(key, g)| *weights.entry(*key).or_default() -= rate * g);
                step += 1.0;
            }
        }
        let trained = place.model("run");
        for (key, expected) in &weights {
            let (table, key) = if *key == 0 { (BIAS_TABLE, CONSTANT_KEY) } else { ("features", *key) };
            close(row(&trained, table, key)[0], *expected, 1e-5, settings);
        }
    }
}

/// The path for minibatches gets every row together with an empty one that weighs nothing; it must do to the tables
/// what the online path does with the rows alone, to the last bit.
#[test]
fn online_learning_equals_minibatches_of_one() {
    let place = Place::new();
    let mut random = Random(3);
    let (mut alone, mut paired) = ("label,w,user,tags\n".to_string(), "label,w,user,tags\n".to_string());
    for _ in 0..700 {
        let first = random.below(50);
        let line = format!(
            "{},{},{},t{first}|t{}|t{}\n",
            random.below(2),
            1 + random.below(3),
            random.below(90),
            first + 50,
            first + 100 + random.below(20)
        );
        alone += &line;
        paired += &(line + "0,0,,\n");
    }
    let (alone, paired) = (place.file("alone.csv", &alone), place.file("paired.csv", &paired));
    let ftrl = "type = \"ftrl\", alpha = 0.2, l1 = 0.1, l2 = 0.5";
    for (model, optimizer) in [
        ("type = \"lr\"", ftrl),
        ("type = \"lr\"", "type = \"adam\", lr = 0.01"),
        ("type = \"fm\", rank = 3", ftrl),
        ("type = \"fm\", rank = 8, init_std = 0.2", "type = \"adagrad\", lr = 0.1"),
        ("type = \"fm\", rank = 17, bias = false", "type = \"sgd\", lr = 0.05, l2 = 0.01"),
    ] {
        let run = |name: &str, train: &str, batch: usize| {
            let summary = place.run(&format!(
                "name = {name:?}\ndata = {{ train = {train} }}\nweight = {{ column = \"w\" }}\n\
                 model = {{ {model} }}\noptimizer = {{ {optimizer} }}\n\
                 train = {{ batch_size = {batch}, shuffle_rows = 0, passes = 2, reduction = \"sum\", class_weight = 1.5 }}\n\
                 [[feature]]\nname = \"user\"\nkey = \"raw\"\n\
                 [[feature]]\nname = \"tags\"\ntype = \"multi\"\npooling = \"mean\""
            ));
            (summary.unwrap(), contents(&place.model(name)))
        };
        let (online, online_rows) = run("online", &alone, 1);
        let (generic, generic_rows) = run("generic", &paired, 2);
        assert_eq!((online.steps, generic.steps), (1400, 1400));
        assert!(online_rows == generic_rows, "{model}, {optimizer}: the tables differ");
        close(online.logloss.unwrap(), generic.logloss.unwrap(), 1e-12, model);
        assert_eq!(online.auc, generic.auc);
    }
}
