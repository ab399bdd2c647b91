//! What the algorithms of jobs promise: the same bits however many workers share a step, the arithmetic of the paper, what
//! shuffling is for, and how near workers come to each other that go their own ways.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;

use crate::runs::{Place, Random, close, contents, row};
use sanderling_client::CONSTANT_KEY;
use sanderling_job::Options;
use sanderling_learner::distributed::{Algorithm, GLOBAL_BATCH_MAX, JobOptions};
use sanderling_learner::{BIAS_TABLE, Event, LearnError, RunOptions, Summary};

fn job(algorithm: &str, workers: u32) -> JobOptions {
    let algorithm: Algorithm = algorithm.parse().unwrap();
    JobOptions { algorithm, staleness: None, job: Options { workers, ..Options::default() } }
}

fn try_run(place: &Place, toml: &str, job: JobOptions) -> Result<Summary, LearnError> {
    let options = RunOptions { job: Some(job), ..place.options() };
    place.run_as(toml, &options, |_| false).map(|(summary, _)| summary)
}

fn run(place: &Place, toml: &str, job: JobOptions) -> Summary {
    try_run(place, toml, job).unwrap()
}

/// Who is alone adds nothing up and misses nothing: in step or not, a minibatch of one row is one row of the paper.
#[test]
fn alone_with_minibatches_of_one_all_ways_are_the_same() {
    let place = Place::new();
    let train = place.synth("train.svm", 0, 700);
    for (model, rest, algorithms) in [
        (
            "lr",
            "optimizer = { type = \"ftrl\", alpha = 0.2, l1 = 0.1, l2 = 0.5 }",
            ["ftrl", "ftrl-sync-no-shuffle"],
        ),
        (
            "fm",
            "model = { type = \"fm\", rank = 3 }\nfactor_optimizer = { type = \"adagrad\", lr = 0.1 }",
            ["fm", "fm-sync-no-shuffle"],
        ),
    ] {
        let toml = |name: &str| {
            format!(
                "name = {name:?}\ndata = {{ train = {train} }}\n{rest}\n\
                 train = {{ batch_size = 1, shuffle_rows = 0, passes = 2, class_weight = 1.5 }}"
            )
        };
        let expected = place.run(&toml("plain")).unwrap();
        let rows = contents(&place.model("plain"));
        for algorithm in algorithms {
            let summary = run(&place, &toml(algorithm), job(algorithm, 1));
            assert!(contents(&place.model(algorithm)) == rows, "{model}: {algorithm} gives another model");
            assert_eq!((summary.steps, summary.examples), (1400, 1400));
            close(summary.logloss.unwrap(), expected.logloss.unwrap(), 1e-12, algorithm);
        }
    }
}

#[test]
fn the_number_of_workers_cannot_be_seen_in_what_is_trained_in_step() {
    let place = Place::new();
    let train = place.synth("train.svm", 0, 3000);
    let fm =
        "model = { type = \"fm\", rank = 4, init_std = 0.1 }\noptimizer = { type = \"adagrad\", lr = 0.1 }";
    let mut seen: Vec<(String, Vec<_>)> = Vec::new();
    for (algorithm, rest) in [
        ("ftrl-sync", "optimizer = { type = \"ftrl\", alpha = 0.2, l1 = 0.01 }"),
        ("ftrl-sync-no-shuffle", "optimizer = { type = \"ftrl\", alpha = 0.2, l1 = 0.01 }"),
        ("fm-sync", fm),
        ("fm-sync-no-shuffle", fm),
    ] {
        let toml = format!("data = {{ train = {train} }}\n{rest}\ntrain = {{ batch_size = 96, passes = 2 }}");
        let mut first = None;
        for workers in [1, 2, 4] {
            let summary = run(&place, &toml, job(algorithm, workers));
            let found =
                (contents(&place.model("run")), (summary.auc, summary.steps), summary.logloss.unwrap());
            assert_eq!((summary.examples, summary.timing.workers), (6000, workers));
            assert_eq!(summary.steps, 2 * 3000_u64.div_ceil(96), "{algorithm}, {workers} workers");
            let expected = first.get_or_insert_with(|| found.clone());
            assert!(found.0 == expected.0, "{algorithm}: {workers} workers give other bits");
            assert_eq!(found.1, expected.1, "{algorithm}, {workers} workers");
            close(found.2, expected.2, 1e-12, algorithm);
        }
        let (rows, ..) = first.unwrap();
        assert!(seen.iter().all(|(_, other)| *other != rows), "{algorithm} is another one");
        seen.push((algorithm.to_owned(), rows));
    }
}

/// Rows of numbers: the label, then (key, value) pairs, keys distinct.
type Example = (f64, Vec<(u64, f64)>);

fn examples(rows: usize, keys: u64) -> (Vec<Example>, String) {
    let mut random = Random(7);
    let (mut all, mut text) = (Vec::new(), String::new());
    for _ in 0..rows {
        let mut pairs = BTreeMap::new();
        for _ in 0..2 + random.below(5) {
            // Multiples of 1/8 are the same in f32.
            pairs.insert(1 + random.below(keys), (1 + random.below(16)) as f64 / 8.0);
        }
        let score: f64 = pairs.iter().map(|(key, value)| ((key % 5) as f64 - 2.0) * value).sum();
        let label = f64::from(u8::from(score + random.below(100) as f64 / 50.0 > 1.0));
        write!(text, "{label}").unwrap();
        pairs.iter().for_each(|(key, value)| write!(text, " {key}:{value}").unwrap());
        text += "\n";
        all.push((label, pairs.into_iter().collect()));
    }
    (all, text)
}

/// McMahan et al. 2013, algorithm 1, in 64 bits: z and n of each coordinate; key 0 is the constant.
#[derive(Default)]
struct Reference {
    coordinates: BTreeMap<u64, [f64; 2]>,
    settings: [f64; 4],
    /// Whether n grows by the square of a step's sum, or by the sum of its squares.
    squares_the_sum: bool,
}

impl Reference {
    fn weight(&self, key: u64) -> f64 {
        let [alpha, beta, l1, l2] = self.settings;
        let [z, n] = self.coordinates.get(&key).copied().unwrap_or_default();
        if z.abs() <= l1 { 0.0 } else { -(z - z.signum() * l1) / ((beta + n.sqrt()) / alpha + l2) }
    }

    fn step(&mut self, rows: &[Example]) {
        let mut sums = BTreeMap::<u64, [f64; 2]>::new();
        for (label, pairs) in rows {
            let pairs = || pairs.iter().copied().chain([(0, 1.0)]);
            let logit: f64 = pairs().map(|(key, value)| value * self.weight(key)).sum();
            let error = 1.0 / (1.0 + (-logit).exp()) - label;
            for (key, value) in pairs() {
                let [sum, squares] = sums.entry(key).or_default();
                (*sum, *squares) = (*sum + error * value, *squares + (error * value).powi(2));
            }
        }
        for (key, [sum, squares]) in sums {
            let weight = self.weight(key);
            let [z, n] = self.coordinates.entry(key).or_default();
            let grown = *n + if self.squares_the_sum { sum * sum } else { squares };
            *z += sum - (grown.sqrt() - n.sqrt()) / self.settings[0] * weight;
            *n = grown;
        }
    }
}

#[test]
fn coordinates_are_those_of_the_paper_and_a_step_squares_its_sum() {
    let place = Place::new();
    let (data, text) = examples(600, 30);
    let train = place.file("train.svm", &text);
    // All rows are one step where that has room for 1024 rows of each of 64 lanes.
    let whole = GLOBAL_BATCH_MAX;
    for (algorithm, workers, batch, [alpha, beta, l1, l2]) in [
        ("ftrl", 1, 1, [0.5, 0.5, 0.25, 0.125]),
        ("ftrl", 1, 100, [0.05, 1.0, 0.0, 1.0]),
        ("ftrl-sync-no-shuffle", 1, 1, [0.1, 1.0, 0.0, 0.0]),
        ("ftrl-sync", 2, whole, [0.5, 1.0, 2.0, 0.0]),
        ("ftrl-sync-no-shuffle", 4, whole, [0.1, 1.0, 0.5, 0.5]),
    ] {
        let what = format!("{algorithm}, {workers} workers, batch {batch}");
        let toml = format!(
            "data = {{ train = {train} }}\ntrain = {{ batch_size = {batch}, passes = 5 }}\n\
             optimizer = {{ type = \"ftrl\", alpha = {alpha}, beta = {beta}, l1 = {l1}, l2 = {l2} }}"
        );
        run(&place, &toml, job(algorithm, workers));
        let trained = place.model("run");
        let settings = [alpha, beta, l1, l2];
        let mut off = [0.0_f64; 2];
        for squares_the_sum in [true, false] {
            let mut reference = Reference { settings, squares_the_sum, ..Reference::default() };
            (0..5).for_each(|_| data.chunks(batch).for_each(|rows| reference.step(rows)));
            assert_eq!(trained.rows(), reference.coordinates.len() as u64, "{what}");
            for (key, [z, n]) in &reference.coordinates {
                let place = if *key == 0 { (BIAS_TABLE, CONSTANT_KEY) } else { ("features", *key) };
                let got = row(&trained, place.0, place.1);
                for (got, expected) in got.iter().zip([reference.weight(*key), *z, *n]) {
                    let error = (got - expected).abs() / expected.abs().max(1.0);
                    off[usize::from(squares_the_sum)] = off[usize::from(squares_the_sum)].max(error);
                }
            }
        }
        // Thousands of f32 updates, each off by up to 6e-8 of the largest intermediate value.
        assert!(off[1] < 5e-4, "{what}: off by {}", off[1]);
        assert!(batch == 1 || off[0] > 0.05, "{what}: the sum of squares is off by {} only", off[0]);
    }
}

#[test]
fn input_that_is_sorted_by_label_must_be_shuffled() {
    let place = Place::new();
    place.synth("train.svm", 0, 6000);
    let valid = place.synth("valid.svm", 6000, 2000);
    let text = std::fs::read_to_string(place.path("train.svm")).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_by_key(|line| line.starts_with('1'));
    let train = place.file("sorted.svm", &(lines.join("\n") + "\n"));
    let toml = format!(
        "data = {{ train = {train}, valid = {valid} }}\noptimizer = {{ type = \"ftrl\", alpha = 0.2 }}\n\
         train = {{ batch_size = 64 }}"
    );
    let logloss = |algorithm| run(&place, &toml, job(algorithm, 2)).logloss.unwrap();
    let (shuffled, in_order) = (logloss("ftrl-sync"), logloss("ftrl-sync-no-shuffle"));
    assert!(shuffled < 0.6 && in_order > 1.0, "shuffled {shuffled}, in order {in_order}");
}

#[test]
fn workers_that_go_their_own_ways_come_near_to_one() {
    let place = Place::new();
    let (train, valid) = (place.synth("train.svm", 0, 20_000), place.synth("valid.svm", 20_000, 5000));
    for (algorithm, batch, rest) in [
        ("ftrl", 16, "optimizer = { type = \"ftrl\", alpha = 0.03 }"),
        ("ftrl", 1, "optimizer = { type = \"ftrl\", alpha = 0.03 }"),
        ("fm", 16, "model = { rank = 4 }\noptimizer = { type = \"ftrl\", alpha = 0.03 }"),
    ] {
        let toml = format!(
            "data = {{ train = {train}, valid = {valid} }}\n{rest}\n\
             train = {{ batch_size = {batch}, passes = 3, monitor = \"logloss\" }}"
        );
        let mut alone = None;
        let mut occurrences = None;
        for workers in [1, 2, 4] {
            // Bounded, so that a busy machine, which stops some of them for long, cannot be seen in the result.
            let summary = run(&place, &toml, JobOptions { staleness: Some(1), ..job(algorithm, workers) });
            // Progressively, in the last pass, since in the first one the order of rows shows; and of the best
            // model, in which the last hundred rows can be seen, whichever these were.
            let logloss = [summary.timing.passes[2].metrics.logloss, summary.logloss.unwrap()];
            let expected = *alone.get_or_insert(logloss);
            let what = format!("{algorithm}, batch {batch}, {workers} workers");
            let mut seen: Vec<(u64, u32)> = Vec::new();
            place
                .model("run")
                .table("features")
                .unwrap()
                .for_each_row(|row| seen.push((row.key, row.frequency)));
            seen.sort_unstable();
            assert!(
                *occurrences.get_or_insert_with(|| seen.clone()) == seen,
                "{what}: rows were learned not once"
            );
            let off = [0, 1].map(|at| (logloss[at] - expected[at]).abs());
            // Which way factors go is decided by the first rows, in whatever order these come. One by one, each worker learns
            // 128 rows at a time from what was lent to it.
            let near = match (algorithm, batch) {
                ("fm", _) => 8.0,
                (_, 1) => 3.0,
                _ => 1.0,
            };
            assert!(off[0] < 0.001 * near && off[1] < 0.006, "{what}: {logloss:?}, alone {expected:?}");
            let staleness = summary.timing.staleness.unwrap();
            assert_eq!(staleness.iter().sum::<u64>(), summary.steps, "{what}: {staleness:?}");
            // Of rows that are lent nobody counts what they miss.
            let missed_nothing = workers == 1 || batch == 1;
            assert!(!missed_nothing || staleness.len() == 1, "{what}: {staleness:?}");
            assert_eq!(summary.examples, 60_000, "{what}");
        }
    }
}

#[test]
fn nobody_is_further_ahead_than_the_bound() {
    let place = Place::new();
    let train = place.synth("train.svm", 0, 4000);
    let toml = format!("data = {{ train = {train} }}\ntrain = {{ batch_size = 8, passes = 2 }}");
    for (workers, bound) in [(1, 0), (3, 0), (4, 2)] {
        let summary = run(&place, &toml, JobOptions { staleness: Some(bound), ..job("ftrl", workers) });
        let staleness = summary.timing.staleness.unwrap();
        assert_eq!(staleness.iter().sum::<u64>(), summary.steps);
        // While one is at a step, each other one does that step, at most so many before it and as many after it.
        let most = u64::from(workers - 1) * (2 * bound + 1);
        assert!(staleness.len() as u64 <= most + 1, "{workers} workers, bound {bound}: {staleness:?}");
        assert_eq!(summary.examples, 8000);
    }
}

#[test]
fn zeros_are_counted_where_weights_come_from() {
    let place = Place::new();
    let train = place.synth("train.svm", 0, 3000);
    for (algorithm, l1) in [("ftrl", 0.0), ("ftrl", 3.0), ("ftrl-sync", 3.0)] {
        let toml = format!(
            "data = {{ train = {train} }}\ntrain = {{ batch_size = 32 }}\noptimizer = {{ type = \"ftrl\", l1 = {l1} }}"
        );
        let summary = run(&place, &toml, job(algorithm, 2));
        let mut counts = [0; 3];
        place.model("run").client().tables().iter().for_each(|table| {
            table.for_each_row(|row| {
                counts[0] += u64::from(f64::from(row.state[0].abs()) <= l1);
                counts[1] += u64::from(row.weights[0] == 0.0);
                counts[2] += 1;
            });
        });
        let [by_state, by_weight, rows] = counts;
        assert_eq!((summary.zero_weights, summary.rows), (by_state, rows));
        assert_eq!(by_weight, by_state, "a weight is made again whenever z and n change");
        assert!(if l1 > 0.0 { by_state > rows / 10 && by_state < rows } else { by_state < rows / 10 });
    }
}

#[test]
fn a_job_that_was_stopped_goes_on_from_the_last_pass_with_any_number_of_workers() {
    let place = Place::new();
    let train = place.synth("train.svm", 0, 2000);
    for valid in [None, Some(place.synth("valid.svm", 2000, 500))] {
        let toml = |name: &str| {
            let valid = valid.as_ref().map_or(String::new(), |valid| format!(", valid = {valid}"));
            format!(
                "name = {name:?}\ndata = {{ train = {train}{valid} }}\n\
                 train = {{ batch_size = 32, passes = 3, print_every_steps = 1 }}"
            )
        };
        let cut_at = |at: usize| format!("cut-{at}-{}", valid.is_some());
        let whole = run(&place, &toml("whole"), job("ftrl-sync", 2));
        assert!(!whole.stopped && whole.timing.passes.len() == 3);
        let stop_at = |event: &Event<'_>, at: usize| match (event, at) {
            (Event::Step(line), 0) => line.pass == 1,
            (Event::Step(line), 1) => line.pass == 2,
            (Event::Pass(line), 2) => line.pass == 2,
            (Event::Validating { .. }, 3) => true,
            _ => false,
        };
        for at in 0..4 {
            let options = |workers, resume| RunOptions {
                job: Some(job("ftrl-sync", workers)),
                resume,
                ..place.options()
            };
            // Stopped in its first pass, a run over an earlier one would save nothing.
            let name = cut_at(at);
            let cut = place.run_as(&toml(&name), &options(2, false), |event| stop_at(event, at)).unwrap().0;
            assert!(cut.stopped || (at == 3 && valid.is_none()), "{at}");
            assert!(cut.model.join("manifest.json").exists() && cut.report.exists());
            if cut.stopped {
                let (resumed, _) = place.run_as(&toml(&name), &options(4, true), |_| false).unwrap();
                assert_eq!((resumed.steps, resumed.stopped), (whole.steps, false), "{at}");
                assert_eq!(resumed.auc, whole.auc, "{at}");
                close(resumed.logloss.unwrap(), whole.logloss.unwrap(), 1e-12, "resumed");
            }
            assert!(contents(&place.model(&name)) == contents(&place.model("whole")), "cut at {at}");
        }
        // What was begun by one algorithm is not continued by another.
        let other = RunOptions { job: Some(job("ftrl", 1)), resume: true, ..place.options() };
        for options in [other, RunOptions { resume: true, ..place.options() }] {
            let error = place.run_as(&toml(&cut_at(0)), &options, |_| false).unwrap_err().to_string();
            assert!(error.contains("the algorithm"), "{error}");
        }
    }
}

/// Progress by rows: all of a pass by its end, with the total once a pass has told it.
#[test]
fn a_job_tells_its_progress() {
    let place = Place::new();
    let train = place.synth("train.svm", 0, 3000);
    for (algorithm, batch_size) in [("ftrl", 1), ("ftrl", 16), ("ftrl-sync", 96), ("fm-sync-no-shuffle", 96)]
    {
        let toml = format!(
            "name = \"{algorithm}-{batch_size}\"\ndata = {{ train = {train} }}\n\
             train = {{ batch_size = {batch_size}, passes = 2 }}"
        );
        let told = RefCell::new(Vec::new());
        let watch = |event: &Event<'_>| {
            if let Event::TrainingRows { pass, passes, rows, rows_total } = *event {
                assert_eq!(passes, 2);
                let mut told = told.borrow_mut();
                let before = told.last().map_or((1, 0, None), |last: &(u64, u64, Option<u64>)| *last);
                assert!(pass > before.0 || (pass, rows) >= (before.0, before.1), "{before:?} {event:?}");
                if pass > before.0 || told.is_empty() {
                    told.push((pass, rows, rows_total));
                } else {
                    *told.last_mut().unwrap() = (pass, rows, rows_total);
                }
            }
            false
        };
        let options = RunOptions { job: Some(job(algorithm, 2)), ..place.options() };
        place.run_as(&toml, &options, watch).unwrap();
        assert_eq!(told.into_inner(), [(1, 3000, None), (2, 3000, Some(3000))], "{algorithm} {batch_size}");
    }
}

#[test]
fn jobs_that_cannot_be() {
    let place = Place::new();
    let (train, empty) = (place.synth("train.svm", 0, 100), place.file("empty.svm", ""));
    for (toml, job, part) in [
        (format!("train = {{ batch_size = {} }}", GLOBAL_BATCH_MAX + 1), job("ftrl-sync", 1), "65536"),
        ("train = { batch_size = 1 }".to_owned(), job("ftrl-sync", 2), "cannot be shared"),
        ("train = { batch_size = 96 }".to_owned(), job("fm-sync", 64), "cannot be shared"),
        ("optimizer = { type = \"sgd\" }".to_owned(), job("ftrl-sync", 1), "[optimizer]"),
        ("train = { threads = 3 }".to_owned(), job("ftrl", 2), "train.threads"),
        ("train = { save_every_steps = 3 }".to_owned(), job("ftrl", 2), "save_every_steps"),
        (String::new(), JobOptions { staleness: Some(1), ..job("fm-sync", 2) }, "--staleness"),
        ("name = \"run\"".to_owned(), job("ftrl", 0), "workers"),
    ] {
        let error = try_run(&place, &format!("data = {{ train = {train} }}\n{toml}"), job).unwrap_err();
        assert!(error.to_string().contains(part), "{toml}\n{error}");
        assert!(!place.run_dir("run").join("model").exists(), "{toml}: left a model");
    }
    for algorithm in ["ftrl", "ftrl-sync", "ftrl-sync-no-shuffle"] {
        let error = try_run(&place, &format!("data = {{ train = {empty} }}"), job(algorithm, 2)).unwrap_err();
        assert!(error.to_string().contains("no rows"), "{algorithm}: {error}");
    }
}
