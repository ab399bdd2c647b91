//! What commands tell a person: which rows metrics are of, what is wrong with data and predictions, and what to type instead.

use super::{Place, has_metrics};

#[test]
fn data_in_the_place_of_a_configuration_is_named() {
    let place = Place::new();
    place.write("clicks.csv", "label,user\n1,2\n0,3\n");
    let done = place.run("train clicks.csv");
    assert_eq!(done.code, Some(2), "{}", done.err);
    let typed = "clicks.csv is data (csv), and train takes a configuration; type: sanderling inspect clicks.csv --suggest > clicks.toml";
    assert!(done.err.contains(typed), "{}", done.err);
}

#[test]
fn errors_are_one_line_that_says_what_to_do() {
    let place = Place::with_synth();
    for name in ["stray/a.csv", "stray/older/b.csv"] {
        std::fs::create_dir_all(place.path(name).parent().unwrap()).unwrap();
        place.write(name, "label,user\n1,2\n");
    }
    place.write("spec.toml", "[[feature]]\nname = \"user\"\n");
    for (line, code, part) in [
        ("train c.toml --bat 3", 2, "a similar argument exists: '--batch-size'; see sanderling train --help"),
        ("train", 2, "were not provided: <CONFIG>; see sanderling train --help"),
        (
            "synth a.csv --rows 1.5",
            2,
            "not a whole number such as 250000, 1e6, 20k or 1.5M; see sanderling synth --help",
        ),
        ("train nothing.toml", 2, "nothing.toml: no such file or folder; check the path"),
        ("inspect nothing.csv", 1, "nothing.csv: no such file or folder; check the path"),
        ("hub --spec nothing.toml stray/a.csv", 2, "nothing.toml: no such file or folder; check the path"),
        ("inspect stray", 3, "stray/older: is a folder in a folder of data, and no partition"),
        (
            "train c.toml --train hub://127.0.0.1:1",
            2,
            "hub://127.0.0.1:1: hubs serve feed queues and deep models",
        ),
        ("train c.toml --train hub://127.0.0.1:1 --batch-size 7", 2, "hub://127.0.0.1:1: hubs serve"),
        ("ps --listen 127.0.0.1:0 --write-timeout 0s", 2, "--write-timeout: must be more than 0"),
        ("hub --write-timeout 0s train.svm", 2, "--write-timeout: must be more than 0"),
        ("ctl --ca-file nothing.pem status", 2, "--ca-file nothing.pem: no such file or folder"),
        (
            "eval runs/c/model valid.svm --ps 127.0.0.1:1 --ps-timeout 100ms",
            1,
            "tcp://127.0.0.1:1: no answer within 100ms: ",
        ),
    ] {
        let done = place.run(line);
        let errors: Vec<&str> = done.err.lines().filter(|line| !line.contains("has not answered")).collect();
        assert!(done.code == Some(code) && done.err.contains(part), "{line}: {:?} {}", done.code, done.err);
        assert!(errors.len() == 1 && errors[0].starts_with("error: "), "{line}: {}", done.err);
        // A server is named once.
        assert!(!line.contains("--ps ") || errors[0].matches("127.0.0.1:1").count() == 1, "{}", done.err);
    }
    assert_eq!(place.run("synth a.svm --rows 1e3 --quiet --json").json()["rows"], 1000);
}

#[test]
fn algorithms_are_listed_and_completed() {
    let place = Place::new();
    for (line, names) in [
        ("train --help", ["ftrl-sync-no-shuffle", "fm-sync"]),
        ("completions bash", ["ftrl-sync-no-shuffle", "fm-sync"]),
        ("completions zsh", ["ftrl-sync-no-shuffle", "fm-sync"]),
    ] {
        let done = place.run(line);
        names.iter().for_each(|name| assert!(done.out.contains(name), "{line}: {}", done.out));
    }
    let wrong = place.run("train c.toml --algorithm ftlr");
    assert!(wrong.code == Some(2) && wrong.err.contains("ftrl-sync"), "{}", wrong.err);
}

#[test]
fn evaluation_tells_positives_interval_and_known_keys() {
    let place = Place::with_synth();
    place.run("train c.toml -q --json").json();
    let eval = place.run("eval runs/c/model valid.svm --json").json();
    has_metrics(&eval, 1000);
    let [auc, low, high] = ["auc", "auc_low", "auc_high"].map(|key| eval[key].as_f64().unwrap());
    assert!(low < auc && auc < high && high - low < 0.15, "{eval}");
    let known = &eval["known"][0];
    assert_eq!(known["feature"], "features");
    assert!(known["known"].as_u64().unwrap() < known["occurrences"].as_u64().unwrap(), "{eval}");
    assert!(eval["positives"].as_u64().unwrap() < 1000 && eval["warnings"].as_array().unwrap().is_empty());
    let told = place.run("eval runs/c/model valid.svm");
    for part in ["AUC, 95 %", "positives", "known keys"] {
        assert!(told.out.contains(part), "{}", told.out);
    }
    let predicted = place.run("predict runs/c/model valid.svm -o s.csv --json").json();
    assert_eq!(predicted["known"], eval["known"]);
}

#[test]
fn an_earlier_run_is_kept_or_its_end_is_told() {
    let place = Place::with_synth();
    let named = |line: &str| {
        let done = place.run(line);
        (done.json()["name"].as_str().unwrap().to_string(), done.err)
    };
    assert_eq!(named("train c.toml --json").0, "c");
    let (name, told) = named("train c.toml --json");
    assert!(name == "c" && told.contains("this run replaces the earlier one in runs/c"), "{told}");
    let (name, told) = named("train c.toml --json --batch-size 7");
    assert!(name == "c-2" && told.contains("a run of another configuration is in c and is kept"), "{told}");
    assert_eq!(named("train c.toml --json --batch-size 7 --passes 2 --resume").0, "c-2");
    assert_eq!(named("train c.toml --json --batch-size 7 --name c").0, "c");
    // One line says both.
    let (name, told) = named("train c.toml --json --algorithm ftrl");
    assert!(name == "c-3" && told.contains("is kept") && !told.contains("replaces"), "{told}");
    let (name, told) = named("train c.toml --json --algorithm ftrl");
    let replaces = "this run replaces the earlier one of this configuration, c-3; c is of another one";
    assert!(name == "c-3" && told.contains(replaces) && !told.contains("is kept"), "{told}");
    // A deep model is another kind of run.
    std::fs::create_dir_all(place.path("runs/d/model")).unwrap();
    place.write("runs/d/model/manifest.json", "{\"format\": 1, \"generation\": 1, \"dense\": {}}");
    place.write("d.toml", &place.read("c.toml"));
    let (name, told) = named("train d.toml --json");
    assert!(name == "d-2" && told.contains("a run of another configuration is in d and is kept"), "{told}");
}

#[test]
fn predictions_that_are_far_off_are_told_even_by_a_quiet_run() {
    let place = Place::new();
    let rows: String = (0..400).fold("click,ts,u\n".to_string(), |text, i| {
        format!("{text}{},{},u{}\n", u8::from(i * 7 % 3 == 0), 1_414_000_000 + (i % 50) * 3600, i % 5)
    });
    place.write("a.csv", &rows);
    place.write(
        "c.toml",
        "data = { train = \"a.csv\" }\nlabel = { column = \"click\" }\ntrain = { batch_size = 16 }\n[[feature]]\nname = \"ts\"\n\
         type = \"numeric\"\n[[feature]]\nname = \"u\"\n",
    );
    let done = place.run("train c.toml --quiet --json");
    for part in ["values of \"ts\" are about 1.4e9", "logloss is ", "type = \"log\" or \"quantile\""] {
        assert!(done.err.contains(part), "{part} in {}", done.err);
    }
    assert!(!done.json()["warnings"].as_array().unwrap().is_empty());
    let suggested = place.run("inspect a.csv --suggest").out;
    assert!(
        suggested.contains("Unix times in s") && suggested.contains("type = \"quantile\""),
        "{suggested}"
    );
    assert!(suggested.contains("passes = 1\n"), "{suggested}");
}

#[test]
fn what_a_suggestion_offers_in_its_comments_trains() {
    let place = Place::new();
    let rows: String = (0..400).fold("click,user,item,site,ts\n".to_string(), |text, i| {
        let click = u8::from(i * 7 % 3 == 0);
        format!("{text}{click},u{},i{},s{},{}\n", i % 97, i % 7, i % 3, 1_400_000_000 + i)
    });
    place.write("a.csv", &rows);
    let suggested = place.run("inspect a.csv --suggest").out;
    // .4 by four features.
    assert!(suggested.contains("type = \"adagrad\"\nlr = 0.10\n"), "{suggested}");
    let offered = alternatives(&suggested);
    for (entry, changed) in &offered {
        place.write("other.toml", changed);
        let done = place.run("train other.toml --quiet --json");
        assert_eq!(done.code, Some(0), "{entry}: {}", done.err);
        let expected = if entry.starts_with("valid") { "valid" } else { "train" };
        assert_eq!(done.json()["measured_on"], expected, "{entry}");
    }
    let entries: Vec<&str> = offered.iter().map(|(entry, _)| entry.as_str()).collect();
    for expected in [
        "valid = { fraction = 0.1, by = \"random\" }",
        "valid = { fraction = 0.1, by = \"hash\", column = \"user\" }",
        "valid = { fraction = 0.1, by = \"time\", column = \"ts\" }",
        "type = \"lr\"",
        "passes = 5",
        "threads = 2",
    ] {
        assert!(entries.iter().any(|entry| entry.starts_with(expected)), "{expected} in {entries:?}");
    }
}

/// Each commented entry of a configuration, and the configuration with it in place of the entry of its name.
fn alternatives(config: &str) -> Vec<(String, String)> {
    fn entry(line: &str) -> Option<&str> {
        line.strip_prefix("# ")
            .filter(|text| text.parse::<toml::Table>().is_ok_and(|table| !table.is_empty()))
    }
    let lines: Vec<&str> = config.lines().collect();
    let name = |line: &str| line.split_once(" = ").map(|(name, _)| name.to_owned());
    let mut found = Vec::new();
    for (at, text) in lines.iter().enumerate().filter_map(|(at, line)| Some((at, entry(line)?))) {
        let mut changed: Vec<&str> = lines.clone();
        changed[at] = text;
        let section = (0..at).rev().take_while(|&other| !lines[other].starts_with('['));
        if let Some(same) = section.into_iter().find(|&other| name(lines[other]) == name(text)) {
            changed[same] = "";
        }
        found.push((text.to_owned(), changed.join("\n")));
    }
    found
}
