//! Rows held out of the training input, test sets, and options of tables: what a run makes of them.

use std::collections::BTreeSet;

use sanderling_learner::{Model, RunOptions};
use sanderling_sample::key;
use sanderling_store::{Admission, Dtype, Eviction};

use crate::runs::{Place, Random, contents};

/// 1000 rows of 100 users, in order of time.
fn rows(place: &Place) -> (String, Vec<String>) {
    let mut random = Random(3);
    let lines: Vec<String> = (0..1000)
        .map(|row| format!("{},u{},{}", random.below(2), random.below(100), 1_700_000_000 + 10 * row))
        .collect();
    let path = place.file("all.csv", &format!("label,user,ts\n{}\n", lines.join("\n")));
    (path, lines)
}

const FEATURES: &str = "[[feature]]\nname = \"user\"\n";

/// Users whose rows the model has.
fn users(model: &Model) -> BTreeSet<usize> {
    let key = |user: &usize| key::hash(format!("u{user}").as_bytes(), key::salt("user"));
    let table = model.table("user").unwrap();
    (0..100).filter(|user| table.get(key(user)).is_some()).collect()
}

#[test]
fn a_holdout_is_what_files_of_both_sides_are() {
    let place = Place::new();
    let (all, lines) = rows(&place);
    for (holdout, is_exact) in [
        ("{ fraction = 0.2, by = \"time\", column = \"ts\" }", true),
        ("{ fraction = 0.2, by = \"time\" }", true),
        ("{ fraction = 0.2, by = \"hash\", column = \"user\" }", false),
        ("{ fraction = 0.2, by = \"random\" }", false),
    ] {
        let toml = |name: &str, data: &str| {
            let train = "train = { passes = 3, early_stop = 1, shuffle_rows = 0 }";
            format!("name = {name:?}\n{train}\n{FEATURES}[data]\n{data}\n")
        };
        let held = place.run(&toml("held", &format!("train = {all}\nvalid = {holdout}"))).unwrap();
        let report = std::fs::read_to_string(place.run_dir("held").join("report.html")).unwrap();
        assert!(report.contains("20 % of ") && report.contains("held out by "), "{holdout}");
        assert_eq!(held.measured_on, "valid", "{holdout}");
        let valid = held.measured_examples as usize;
        assert_eq!(held.examples as usize / held.passes as usize + valid, 1000, "{holdout}");
        assert!((150..=250).contains(&valid), "{holdout}: {valid}");
        if is_exact {
            assert_eq!(valid, 200, "{holdout}");
            let head = "label,user,ts\n";
            let one = place.file("1.csv", &format!("{head}{}\n", lines[..800].join("\n")));
            let two = place.file("2.csv", &format!("{head}{}\n", lines[800..].join("\n")));
            let files = place.run(&toml("files", &format!("train = {one}\nvalid = {two}"))).unwrap();
            assert_eq!((held.auc, held.logloss), (files.auc, files.logloss), "{holdout}");
            assert!(contents(&place.model("held")) == contents(&place.model("files")), "{holdout}");
        }
        if holdout.contains("hash") {
            let known = users(&place.model("held"));
            let trained = held.examples / held.passes;
            let of_known = lines.iter().filter(|line| {
                let user = line.split(',').nth(1).unwrap().trim_start_matches('u').parse().unwrap();
                known.contains(&user)
            });
            assert_eq!(of_known.count() as u64, trained, "a user's rows are on one side");
        }
        // The split is saved, so that the run goes on with the same one.
        let more =
            toml("held", &format!("train = {all}\nvalid = {holdout}")).replace("passes = 3", "passes = 4");
        place.resume(&more).unwrap();
        let other = more.replace("fraction = 0.2", "fraction = 0.3");
        let error = place.resume(&other).unwrap_err().to_string();
        assert!(error.contains("data.valid changed"), "{error}");
    }
}

#[test]
fn holdouts_that_cannot_be() {
    let place = Place::new();
    let (all, _) = rows(&place);
    let svm = place.synth("a.svm", 0, 100);
    for (data, expected) in [
        (format!("train = {all}\nvalid = {{ by = \"hash\" }}"), "data.valid: by = \"hash\" needs a column"),
        (
            format!("train = {all}\nvalid = {{ by = \"x\" }}"),
            "data.valid: unknown variant `x`, expected one of",
        ),
        (
            format!("train = {all}\nvalid = {{ fraction = 1.5, by = \"random\" }}"),
            "data.valid: fraction = 1.5",
        ),
        (format!("train = {all}\nvalid = {{ by = \"hash\", column = \"nobody\" }}"), "nobody"),
        (format!("train = {all}\nvalid = {{ by = \"time\", column = \"user\" }}"), "a number or a time"),
        (
            format!("train = {svm}\nvalid = {{ by = \"hash\", column = \"user\" }}"),
            "which libsvm files do not have",
        ),
        (
            "train = \"-\"\nformat = \"libsvm\"\nvalid = { by = \"random\" }".to_owned(),
            "can be read only once",
        ),
        (format!("train = {all}\ntest = {{ late = [] }}"), "data.test: the set \"late\" needs"),
    ] {
        let features = if data.contains("svm") { "" } else { FEATURES };
        let error = place.run(&format!("{features}[data]\n{data}\n")).unwrap_err().to_string();
        assert!(error.contains(expected), "{data}\n{error}");
        assert!(error.len() < 400, "{error}");
    }
}

#[test]
fn test_sets_have_names() {
    let place = Place::new();
    let (all, lines) = rows(&place);
    let part = |name: &str, range: std::ops::Range<usize>| {
        place.file(name, &format!("label,user,ts\n{}\n", lines[range].join("\n")))
    };
    let (early, late) = (part("1.csv", 0..300), part("2.csv", 300..1000));
    let toml = format!(
        "{FEATURES}[data]\ntrain = {all}\nvalid = {early}\ntest = {{ late = {late}, all = [{early}, {late}] }}"
    );
    let summary = place.run(&toml).unwrap();
    let tests: Vec<_> = summary.tests.iter().map(|set| (set.name.as_str(), set.metrics.examples)).collect();
    assert_eq!(tests, [("all", 1000), ("late", 700)]);
    let log = std::fs::read_to_string(place.run_dir("run").join("metrics.jsonl")).unwrap();
    assert_eq!(log.lines().filter(|line| line.starts_with("{\"kind\":\"test\",")).count(), 2, "{log}");
    let report = std::fs::read_to_string(place.run_dir("run").join("report.html")).unwrap();
    assert!(report.contains("Test sets") && report.contains(">late<"));
}

#[test]
fn tables_have_options_of_their_own() {
    let place = Place::new();
    let mut text = String::from("label,user,ad\n");
    for row in 0..400 {
        // Users 0 to 9 occur often, the others once.
        let user = if row % 2 == 0 { row % 20 / 2 } else { 1000 + row };
        text += &format!("{},{user},{}\n", row % 3 % 2, row % 5);
    }
    let train = place.file("a.csv", &text);
    let toml = |rest: &str| {
        format!(
            "data = {{ train = {train} }}\ntrain = {{ batch_size = 2, shuffle_rows = 0 }}\n\
             [[feature]]\nname = \"user\"\n[[feature]]\nname = \"ad\"\n{rest}"
        )
    };
    for (rest, users) in [
        ("", 210),
        ("[table.user]\nadmission = { after = 3 }", 10),
        ("[table.\"*\"]\nadmission = { after = 3, filter = \"64KiB\" }", 10),
        ("[table.user]\nadmission = { type = \"sightings\", sightings = 3 }", 10),
        ("[table.user]\nadmission = \"always\"", 210),
    ] {
        place.run(&toml(rest)).unwrap();
        let model = place.model("run");
        assert_eq!(
            (model.table("user").unwrap().len(), model.table("ad").unwrap().len()),
            (users, 5),
            "{rest}"
        );
    }
    let counted = toml("").replace("name = \"user\"", "name = \"user\"\nmin_count = 3");
    place.run(&counted).unwrap();
    assert_eq!(place.model("run").table("user").unwrap().len(), 10);
    place.run(&toml("[table.user]\nbudget = \"64KiB\"\neviction = \"clock\"\ndtype = \"f16\"")).unwrap();
    let model = place.model("run");
    let config = model.table("user").unwrap().config().clone();
    assert_eq!(
        (config.budget_bytes, config.eviction, config.dtype),
        (Some(65536), Eviction::Clock, Dtype::F16)
    );
    assert_eq!(model.table("ad").unwrap().config().admission, Admission::Always);
    // A run goes on with the options that it began with, and a new one may begin from it with others.
    let error = place.resume(&toml("[table.user]\nbudget = \"128KiB\"")).unwrap_err().to_string();
    assert!(error.contains("[table] changed"), "{error}");
    let options = RunOptions { from: Some(place.run_dir("run").join("model")), ..place.options() };
    let next = toml("name = \"next\"\n").replace("name = \"next\"\n", "");
    place.run_as(&format!("name = \"next\"\n{next}"), &options, |_| false).unwrap();
    assert_eq!(place.model("next").table("user").unwrap().config().dtype, Dtype::F32);
    for (rest, expected) in [
        ("[table.usr]\ndtype = \"f16\"", "table.usr: no feature has this table; there are ad, user"),
        ("[table.user]\neviction = \"clock\"", "table.user: eviction acts on a full table: give a budget"),
        ("[table.user]\nadmission = { after = 1 }", "table.user: "),
        ("[table.user]\nadmission = { befor = 1 }", "admission"),
        ("[table.user]\ndtype = \"f8\"", "unknown variant `f8`"),
        ("[table.user]\nbudget = \"x\"", "budget"),
    ] {
        let error = place.run(&toml(rest)).unwrap_err().to_string();
        assert!(error.contains(expected), "{rest}\n{error}");
    }
    let shared = toml("").replace("name = \"ad\"", "name = \"ad\"\ntable = \"user\"\nmin_count = 2");
    let error = place.run(&shared).unwrap_err().to_string();
    assert!(error.contains("have one table, whose keys they count together"), "{error}");
}
