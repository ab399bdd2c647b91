//! A run that was stopped and resumed ends as one that was not: the same tables, bit for bit, and the same metrics.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::runs::{Place, RowBits, contents};
use sanderling_job::Options;
use sanderling_learner::distributed::JobOptions;
use sanderling_learner::{Event, LearnError, RunOptions, Summary, ValidLine};

const ROWS: u64 = 900;
const PASSES: u64 = 4;

/// The results of a run.
#[derive(Debug, PartialEq)]
struct End {
    numbers: String,
    valid: Vec<String>,
    tables: Vec<(String, Vec<RowBits>)>,
}

fn end(place: &Place, name: &str, summary: &Summary, valid: &[ValidLine]) -> End {
    let s = summary;
    assert!(!s.stopped && s.model.join("manifest.json").exists() && s.report.exists());
    let valid =
        valid.iter().map(|line| format!("{} {} {:?} {}", line.step, line.pass, line.metrics, line.best));
    let metrics = (s.auc, s.logloss, s.prob_mean, s.real_mean, s.measured_on);
    let counts = (s.examples, s.steps, s.passes, s.best_pass, s.rows);
    End {
        numbers: format!("{metrics:?} {counts:?}"),
        valid: valid.collect(),
        tables: contents(&place.model(name)),
    }
}

fn assert_same(got: &End, expected: &End, what: &str) {
    assert_eq!(got.numbers, expected.numbers, "{what}");
    assert_eq!(got.valid, expected.valid, "{what}");
    assert!(got.tables == expected.tables, "{what}: the tables differ");
}

/// Settings that together reach every part of the state.
const PLAIN: &str = "";
const JUDGED: &str =
    "early_stop = 1, monitor = \"logloss\", schedule = { type = \"plateau\", factor = 0.5 },";
const DECAYED: &str = "schedule = { type = \"exponential\", factor = 0.7 }, warmup_steps = 50,";

fn check(batch: usize, shuffle: usize, settings: &str, model: &str, cuts: &[u64]) {
    let place = Place::new();
    let train = place.synth("train.svm", 0, ROWS);
    let valid = place.synth("valid.svm", ROWS, 300);
    let valid = if settings == JUDGED { format!(", valid = {valid}") } else { String::new() };
    // A few times a pass, and not where the passes end.
    let save_every = 7 * 64 / batch;
    let toml = |name: &str, max_steps: u64| {
        format!(
            "name = {name:?}\ndata = {{ train = {train}{valid} }}\n{model}\n\
             train = {{ {settings} save_every_steps = {save_every}, batch_size = {batch}, shuffle_rows = {shuffle}, passes = {PASSES}, max_steps = {max_steps} }}"
        )
    };
    let (whole, lines) = place.run_with(&toml("whole", 0), false, |_| false).unwrap();
    let expected = end(&place, "whole", &whole, &lines);
    if settings == JUDGED {
        assert!(whole.passes > whole.best_pass, "this run is to see a pass that does not improve");
    }
    // Once more, uncut: one thread and a seed give one result.
    let (again, lines) = place.run_with(&toml("again", 0), false, |_| false).unwrap();
    assert_same(&end(&place, "again", &again, &lines), &expected, "the same run again");
    // Each cut alone, then all of them in one run.
    let cuts: Vec<u64> = cuts.iter().copied().filter(|cut| *cut < whole.steps).collect();
    for several in cuts.iter().map(std::slice::from_ref).chain([&cuts[..]]) {
        let what = format!("batch {batch}, shuffle {shuffle}, {settings} cut after {several:?}");
        let mut lines = Vec::new();
        for (number, cut) in several.iter().enumerate() {
            let (part, more) = place.run_with(&toml("cut", *cut), number > 0, |_| false).unwrap();
            assert_eq!((part.steps, part.stopped), (*cut, true), "{what}");
            lines.extend(more);
            // What was saved so far is a model.
            place.model("cut");
        }
        let (last, more) = place.run_with(&toml("cut", 0), true, |_| false).unwrap();
        lines.extend(more);
        assert_same(&end(&place, "cut", &last, &lines), &expected, &what);
    }
    // A run that has ended has nothing to go on with.
    let (idle, lines) = place.run_with(&toml("cut", 0), true, |_| false).unwrap();
    assert_eq!((idle.steps, idle.auc, lines.len()), (whole.steps, whole.auc, 0));
}

const FM: &str = "model = { type = \"fm\", rank = 3 }\nfactor_optimizer = { type = \"adagrad\", lr = 0.05 }";

/// Steps of 64 rows: 15 in order, and with a shuffle buffer of 250 rows 4 + 4 + 4 + 3 a pass.
const BATCH_CUTS: [u64; 8] = [1, 4, 6, 15, 16, 29, 30, 47];
/// Steps of one row, which are looked up 256 at a time.
const ONLINE_CUTS: [u64; 8] = [1, 250, 255, 257, 900, 901, 1800, 2999];

#[test]
fn minibatches_in_order() {
    check(64, 0, PLAIN, "", &BATCH_CUTS);
}

#[test]
fn minibatches_shuffled() {
    check(64, 250, DECAYED, FM, &BATCH_CUTS);
}

#[test]
fn minibatches_judged() {
    check(64, 250, JUDGED, "optimizer = { type = \"adagrad\", lr = 1.0 }", &BATCH_CUTS);
}

#[test]
fn online_in_order() {
    check(1, 0, DECAYED, FM, &ONLINE_CUTS);
}

#[test]
fn online_shuffled() {
    check(1, 250, PLAIN, "", &ONLINE_CUTS);
}

#[test]
fn online_judged() {
    check(1, 1000, JUDGED, "optimizer = { type = \"adagrad\", lr = 1.0 }", &ONLINE_CUTS);
}

/// Stopped from outside, at whatever step that is, during training and during validation.
#[test]
fn asked_to_stop() {
    let place = Place::new();
    let train = place.synth("train.svm", 0, ROWS);
    let valid = place.synth("valid.svm", ROWS, 300);
    for threads in [1, 3] {
        let toml = |name: &str| {
            format!(
                "name = {name:?}\ndata = {{ train = {train}, valid = {valid} }}\n\
                 train = {{ batch_size = 16, shuffle_rows = 250, passes = 2, print_every_steps = 5, threads = {threads} }}"
            )
        };
        let (whole, lines) = place.run_with(&toml("whole"), false, |_| false).unwrap();
        let expected = end(&place, "whole", &whole, &lines);
        let training: fn(&Event<'_>) -> bool = |event| matches!(event, Event::Step(_));
        let validating: fn(&Event<'_>) -> bool = |event| matches!(event, Event::Validating { .. });
        for (at, stop_at) in [("training", training), ("validating", validating)] {
            let what = format!("{threads} threads, stopped while {at}");
            let (mut last, mut lines) = place.run_with(&toml("cut"), false, stop_at).unwrap();
            assert!(last.stopped, "{what}");
            place.model("cut");
            for _ in 0..1000 {
                if !last.stopped {
                    break;
                }
                // Stopped again and again while training; the validation must be let through once.
                let again = if at == "training" { stop_at } else { |_: &Event<'_>| false };
                let (next, more) = place.run_with(&toml("cut"), true, again).unwrap();
                lines.extend(more);
                last = next;
            }
            assert_eq!(last.examples, 2 * ROWS, "{what}: every row once a pass");
            if threads == 1 {
                assert_same(&end(&place, "cut", &last, &lines), &expected, &what);
            }
        }
    }
}

#[test]
fn what_may_not_change_between_sessions() {
    let place = Place::new();
    let (train, other) = (place.synth("train.svm", 0, 300), place.synth("other.svm", 300, 300));
    let toml = |train: &str, rest: &str| {
        format!(
            "data = {{ train = {train} }}\ntrain = {{ batch_size = 10, max_steps = 7, passes = 3 }}\n{rest}"
        )
    };
    place.run(&toml(&train, "")).unwrap();
    let changed = |old: &str, new: &str| toml(&train, "").replace(old, new);
    for (toml, reason) in [
        (toml(&train, "optimizer = { type = \"ftrl\", alpha = 0.2 }"), "optimizer"),
        (toml(&train, "optimizer = { type = \"sgd\" }"), "optimizer"),
        (toml(&train, "model = { type = \"fm\" }"), "model"),
        (toml(&train, "seed = 1"), "seed"),
        (toml(&train, "label = { threshold = 0.5 }"), "label"),
        (toml(&other, ""), "data.train"),
        (changed("batch_size = 10", "batch_size = 11"), "train.batch_size"),
        (changed("batch_size = 10", "batch_size = 10, shuffle_rows = 7"), "train.shuffle_rows"),
        (changed("batch_size = 10", "batch_size = 10, threads = 2"), "train.threads"),
        (changed("batch_size = 10", "batch_size = 10, class_weight = 2.0"), "class_weight"),
        (changed("batch_size = 10", "batch_size = 10, reduction = \"mean\""), "reduction"),
    ] {
        let error = place.resume(&toml).unwrap_err().to_string();
        assert!(error.contains("cannot resume") && error.contains(reason), "{toml}\n{error}");
    }
    let more = changed("max_steps = 7, passes = 3", "passes = 4, print_every_steps = 3");
    assert_eq!(place.resume(&more).unwrap().examples, 1200);
    // Validations are compared with the best one before.
    let valid = |valid: &str, max_steps: u64| {
        toml(&format!("{train}, valid = {valid}"), "")
            .replace("max_steps = 7", &format!("max_steps = {max_steps}"))
    };
    place.run(&valid(&other, 35)).unwrap();
    let error = place.resume(&valid(&train, 0)).unwrap_err().to_string();
    assert!(error.contains("cannot resume") && error.contains("data.valid"), "{error}");
    let error = place
        .resume(&valid(&other, 0).replace("batch_size = 10", "batch_size = 10, monitor = \"logloss\""))
        .unwrap_err();
    assert!(error.to_string().contains("train.monitor"), "{error}");
}

/// Checkpoints of an earlier run of the same name are not what a new run goes on from.
#[test]
fn a_new_run_forgets_the_one_before() {
    let place = Place::new();
    let (train, valid) = (place.synth("train.svm", 0, 300), place.synth("valid.svm", 300, 100));
    let toml = |valid: &str, seed: u64, max_steps: u64| {
        format!(
            "seed = {seed}\ndata = {{ train = {train}{valid} }}\n\
             train = {{ batch_size = 10, passes = 3, max_steps = {max_steps} }}"
        )
    };
    let valid = format!(", valid = {valid}");
    place.run(&toml(&valid, 1, 0)).unwrap();
    let first = contents(&place.model("run"));
    // Without validation nothing is saved beside the model.
    assert_eq!(place.run(&toml("", 2, 40)).unwrap().steps, 40);
    assert_eq!(place.resume(&toml("", 2, 0)).unwrap().steps, 90);
    // Stopped before its first validation, the model is what was trained so far.
    assert_eq!(place.run(&toml(&valid, 1, 5)).unwrap().steps, 5);
    assert!(contents(&place.model("run")) != first);
    assert_eq!(place.resume(&toml(&valid, 1, 0)).unwrap().steps, 90);
    assert!(contents(&place.model("run")) == first);
}

/// Nor what it takes for its own after it died, before or after it had saved something.
#[test]
fn what_an_earlier_run_saved_is_not_resumed() {
    let place = Place::new();
    let (train, valid) = (place.synth("train.svm", 0, 300), place.synth("valid.svm", 300, 100));
    let toml = format!(
        "data = {{ train = {train}, valid = {valid} }}\ntrain = {{ batch_size = 10, passes = 3, save_every_steps = 7 }}"
    );
    let whole = place.run(&toml).unwrap();
    let dies = |at: &dyn Fn(&Event<'_>) -> bool| {
        let dying = || place.run_with(&toml, false, |event| at(event) && panic!("dies here"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(dying)).is_err());
    };
    dies(&|event| matches!(event, Event::Started { .. }));
    let error = place.resume(&toml).unwrap_err().to_string();
    assert!(error.contains("has saved nothing") && error.contains("earlier one"), "{error}");
    // The model of the whole run is further, but not of this one.
    dies(&|event| matches!(event, Event::Saved { .. }));
    let from = std::cell::Cell::new(0);
    let watch = |event: &Event<'_>| {
        if let Event::Started { resumed_step, .. } = event {
            from.set(*resumed_step);
        }
        false
    };
    let (resumed, _) = place.run_with(&toml, true, watch).unwrap();
    assert_eq!((from.get(), resumed.steps, resumed.auc), (7, whole.steps, whole.auc));
}

/// A folder without a save in it, which a process leaves that is killed in the first one, is no obstacle.
#[test]
fn a_save_that_was_never_made_is_passed_over() {
    let place = Place::new();
    let (train, valid) = (place.synth("train.svm", 0, 300), place.synth("valid.svm", 300, 100));
    let toml = |passes: u64| {
        format!("data={{train={train}, valid={valid}}}\ntrain = {{ batch_size = 10, passes = {passes} }}")
    };
    let cut = |dir: &str| {
        std::fs::create_dir_all(place.run_dir("run").join(dir)).unwrap();
        std::fs::write(place.run_dir("run").join(dir).join("half a file"), "").unwrap();
    };
    cut("model");
    cut("last");
    let error = place.resume(&toml(1)).unwrap_err().to_string();
    assert!(error.contains("nothing was saved here to resume; start the run without --resume"), "{error}");
    place.run(&toml(1)).unwrap();
    cut("last");
    let resumed = place.resume(&toml(2)).unwrap();
    assert_eq!(resumed.steps, 60);
}

/// Files that change while they are trained on are told of once, with what they had and have.
#[test]
fn files_that_change_under_a_run_are_told_of() {
    for algorithm in [None, Some("ftrl-sync")] {
        let place = Place::new();
        let rows: String = (0..3000).map(|row| format!("{} {}:1\n", row % 2, 1 + row % 9)).collect();
        let train = place.file("train.svm", &rows);
        let toml = format!("data = {{ train = {train} }}\ntrain = {{ batch_size = 10, passes = 4 }}");
        for change in [None, Some(rows.len() / 2), Some(rows.len() * 2)] {
            std::fs::write(place.path("train.svm"), &rows).unwrap();
            let job = algorithm.map(|name| {
                let job = Options { workers: 2, ..Options::default() };
                JobOptions { algorithm: name.parse().unwrap(), staleness: None, job }
            });
            let (saves, told) = (std::cell::Cell::new(0), std::cell::RefCell::new(Vec::new()));
            let watch = |event: &Event<'_>| {
                match event {
                    Event::Saved { .. } => saves.set(saves.get() + 1),
                    Event::InputChanged { before, now } => told.borrow_mut().push((*before, *now)),
                    _ => {}
                }
                if let (Event::Saved { .. }, 1, Some(bytes)) = (event, saves.get(), change) {
                    let changed: String = rows.chars().cycle().take(bytes).collect();
                    std::fs::write(place.path("train.svm"), changed).unwrap();
                }
                false
            };
            place.run_as(&toml, &RunOptions { job, ..place.options() }, watch).unwrap();
            let expected: Vec<(u64, u64)> =
                change.iter().map(|&bytes| (rows.len() as u64, bytes as u64)).collect();
            assert_eq!(*told.borrow(), expected, "{algorithm:?}");
        }
    }
}

/// A pass that cannot be validated is not lost: resumed, it is validated, and the run ends as one that was not cut.
#[test]
fn a_pass_that_cannot_be_validated_is_kept() {
    let place = Place::new();
    let (train, valid) = (place.synth("train.svm", 0, 300), place.synth("valid.svm", 300, 100));
    let (there, away) = (place.path("valid.svm"), place.path("away.svm"));
    for algorithm in [None, Some("ftrl"), Some("ftrl-sync")] {
        let options = |resume: bool| {
            let job = algorithm.map(|name| {
                let job = Options { workers: 1, ..Options::default() };
                JobOptions { algorithm: name.parse().unwrap(), staleness: None, job }
            });
            RunOptions { job, resume, ..place.options() }
        };
        let toml = |name: &str| {
            format!(
                "name = {name:?}\ndata = {{ train = {train}, valid = {valid} }}\ntrain = {{ batch_size = 10, passes = 3 }}"
            )
        };
        let cut = format!("cut-{}", algorithm.unwrap_or("plain"));
        let whole = cut.replace("cut", "whole");
        let (summary, lines) = place.run_as(&toml(&whole), &options(false), |_| false).unwrap();
        let expected = end(&place, &whole, &summary, &lines);
        let lines = std::cell::RefCell::new(Vec::new());
        for (number, pass) in (0..).zip([1, 2]) {
            // It goes when the pass before it is saved, or when the run begins.
            let is_time = |event: &Event<'_>| match event {
                Event::Valid(line) => line.pass + 1 == pass,
                Event::Started { .. } => pass == 1,
                _ => false,
            };
            let said = std::cell::Cell::new(0);
            let failed = place.run_as(&toml(&cut), &options(number > 0), |event| {
                if is_time(event) {
                    std::fs::rename(&there, &away).unwrap();
                }
                match event {
                    Event::Unvalidated { pass } => said.set(*pass),
                    Event::Valid(line) => lines.borrow_mut().push(**line),
                    _ => {}
                }
                false
            });
            let error = failed.unwrap_err().to_string();
            assert!(error.contains("valid.svm") && said.get() == pass, "{algorithm:?}: {error}");
            std::fs::rename(&away, &there).unwrap();
        }
        let (summary, more) = place.run_as(&toml(&cut), &options(true), |_| false).unwrap();
        let mut lines = lines.into_inner();
        lines.extend(more);
        assert_same(&end(&place, &cut, &summary, &lines), &expected, &cut);
    }
}

/// What is in the files of a folder and those below it.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => drop(found.insert(path.clone(), std::fs::read(path).unwrap())),
        }
    }
    found
}

/// What a start that comes to nothing leaves of the run before it: all of it.
#[test]
fn a_start_that_saves_nothing_takes_nothing() {
    let place = Place::new();
    let (train, valid) = (place.synth("train.svm", 0, 300), place.synth("valid.svm", 300, 100));
    // So many that the first ones are read before the last.
    let rows: String = (0..100_000).map(|row| format!("{} {}:1\n", row % 2, 1 + row % 9)).collect();
    let bad_last = place.file("bad_last.svm", &format!("{rows}1 x\n"));
    let sync = || {
        let job = Options { workers: 2, ..Options::default() };
        let job = JobOptions { algorithm: "ftrl-sync".parse().unwrap(), staleness: None, job };
        RunOptions { job: Some(job), ..place.options() }
    };
    let goes_on = RunOptions { resume: true, ..place.options() };
    type At = fn(&Event<'_>) -> bool;
    let at_start: At = |event| matches!(event, Event::Started { .. });
    let at_step: At = |event| matches!(event, Event::Step(_));
    let never: At = |_| false;
    for valid in [String::new(), format!(", valid = {valid}")] {
        for (what, options, train_there, rest, stop_at) in [
            ("stopped", place.options(), &train, "", at_start),
            ("several threads, stopped", place.options(), &train, "threads = 3", at_start),
            ("a job, stopped", sync(), &train, "", at_start),
            ("a job, stopped in its first pass", sync(), &train, "print_every_steps = 1", at_step),
            ("a bad row", place.options(), &bad_last, "print_every_steps = 1000", never),
            ("a bad row for a job", sync(), &bad_last, "print_every_steps = 1000", never),
        ] {
            let toml = |train: &str, max_steps: u64, rest: &str| {
                format!(
                    "data = {{ train = {train}{valid} }}\n\
                     train = {{ batch_size = 10, passes = 3, max_steps = {max_steps}, {rest} }}"
                )
            };
            let run = |toml: &str, options: &RunOptions, stop_at: At| {
                place.run_as(toml, options, stop_at).map(|(summary, _)| summary)
            };
            // One and a half passes, so that with validation there is something beside the model.
            let half = run(&toml(&train, 45, ""), &place.options(), |_| false).unwrap();
            assert_eq!((half.steps, place.run_dir("run").join("last").exists()), (45, !valid.is_empty()));
            let there = files(&place.run_dir("run"));
            let error = run(&toml(train_there, 0, rest), &options, stop_at).unwrap_err();
            let is_stop = matches!(error, LearnError::Stopped | LearnError::JobUnsaved { .. });
            assert_eq!(is_stop, train_there == &train, "{what}{valid}: {error}");
            assert!(files(&place.run_dir("run")) == there, "{what}{valid}");
            let whole = run(&toml(&train, 0, ""), &goes_on, |_| false);
            assert_eq!(whole.unwrap_or_else(|error| panic!("{what}{valid}: {error}")).steps, 90);
        }
    }
}

/// With and without validation, stopped, resumed, and with nothing left to do.
#[test]
fn every_report_has_its_plots() {
    let place = Place::new();
    let (train, valid) = (place.synth("train.svm", 0, 300), place.synth("valid.svm", 300, 100));
    for valid in [String::new(), format!(", valid = {valid}")] {
        let toml = |max_steps: u64| {
            format!(
                "data = {{ train = {train}{valid} }}\ntrain = {{ batch_size = 10, passes = 2, max_steps = {max_steps} }}"
            )
        };
        let check = |what: &str| {
            let page = std::fs::read_to_string(place.run_dir("run").join("report.html")).unwrap();
            assert!(!page.contains("No curve was measured"), "{what}{valid}");
        };
        place.run(&toml(5)).unwrap();
        check("stopped");
        place.resume(&toml(40)).unwrap();
        check("stopped again");
        place.resume(&toml(0)).unwrap();
        check("ended");
        let page = std::fs::read_to_string(place.run_dir("run").join("report.html")).unwrap();
        assert_eq!(
            page.contains("the plots are of training (seen) data"),
            valid.is_empty(),
            "resumed in pass 2{valid}"
        );
        if !valid.is_empty() {
            place.resume(&toml(0)).unwrap();
            check("with nothing left to do");
            // For its plots it is validated again, which can be watched and stopped.
            let validating = |event: &Event<'_>| matches!(event, Event::Validating { .. });
            let page = place.run_dir("run").join("report.html");
            let (_, lines) = place.run_with(&toml(0), true, validating).unwrap();
            assert!(lines.is_empty());
            assert!(std::fs::read_to_string(page).unwrap().contains("No curve was measured"));
        }
    }
}

/// A run that cannot begin takes nothing from the one before it.
#[test]
fn a_missing_file_is_found_before_anything_is_touched() {
    let place = Place::new();
    let (train, valid) = (place.synth("train.svm", 0, 300), place.synth("valid.svm", 300, 100));
    let toml = |train: &str, valid: &str, max_steps: u64| {
        format!(
            "data = {{ train = {train}, valid = {valid} }}\ntrain = {{ batch_size = 10, passes = 2, max_steps = {max_steps} }}"
        )
    };
    place.run(&toml(&train, &valid, 35)).unwrap();
    let before = std::fs::read(place.run_dir("run").join("metrics.jsonl")).unwrap();
    for (train, valid) in [("\"nowhere.svm\"", valid.as_str()), (train.as_str(), "\"nowhere.svm\"")] {
        let error = place.run(&toml(train, valid, 0)).unwrap_err().to_string();
        assert!(error.contains("nowhere.svm"), "{error}");
    }
    assert_eq!(std::fs::read(place.run_dir("run").join("metrics.jsonl")).unwrap(), before);
    assert_eq!(place.resume(&toml(&train, &valid, 0)).unwrap().steps, 60);
}
