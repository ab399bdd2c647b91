//! Names that have changed.

use std::path::Path;

use super::Place;

/// Old names are errors that say the new ones.
#[test]
fn old_names_say_the_new_ones() {
    let place = Place::new();
    place.write("train.svm", "1 1:1\n0 2:1\n");
    for (entry, expected) in [
        ("train = { batch = 16 }", "[train] `batch` is now `batch_size`"),
        ("train = { shuffle = 0 }", "[train] `shuffle` is now `shuffle_rows`"),
        ("train = { save_every = 3 }", "[train] `save_every` is now `save_every_steps`"),
        ("train = { print_every = 3 }", "[train] `print_every` is now `print_every_steps`"),
        ("train = { ps_timeout_s = 20 }", "`ps_timeout_s` is now `ps_timeout`, text with a unit: \"20s\""),
        (
            "model = { table_budget_bytes = 4 }",
            "`table_budget_bytes` is now `table_budget`, text with a unit",
        ),
    ] {
        place.write("old.toml", &format!("data = {{ train = \"train.svm\" }}\n{entry}\n"));
        for line in ["train old.toml", "hub --config old.toml"] {
            let done = place.run(line);
            assert!(done.code == Some(2) && done.err.contains(expected), "{entry} {line}: {}", done.err);
        }
    }
    place.write("ps.toml", "workers = 2\n");
    for (line, expected) in [
        ("train c.toml --batch 16", "`--batch` is now `--batch-size`"),
        ("train c.toml --ps h:1 --ps-ca ca.pem", "`--ps-ca` is now `--ps-ca-file`"),
        ("hub --shuffle=3 x.svm", "`--shuffle` is now `--shuffle-rows`"),
        ("ps --workers 2", "`--workers` is now `--threads`"),
        ("ps --config ps.toml", "ps.toml: `workers` is now `threads`"),
        ("ctl --tls-ca ca.pem status", "`--tls-ca` is now `--ca-file`"),
    ] {
        let done = place.run(line);
        assert!(done.code == Some(2) && done.err.contains(expected), "{line}: {}", done.err);
    }
}

/// A run that an earlier version saved, with old names in its configuration, goes on under the new ones.
#[test]
fn a_run_of_an_earlier_version_is_resumed() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../learner/tests/golden");
    let place = Place::new();
    std::fs::copy(golden.join("rows.svm"), place.path("rows.svm")).unwrap();
    for part in ["", "last", "model"] {
        std::fs::create_dir_all(place.path("runs/old").join(part)).unwrap();
        for entry in std::fs::read_dir(golden.join("old").join(part)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let copy = place.path("runs/old").join(part).join(path.file_name().unwrap());
                std::fs::copy(&path, copy).unwrap();
            }
        }
    }
    place.write(
        "old.toml",
        "name = \"old\"\ndata = { train = \"rows.svm\", valid = \"rows.svm\" }\n\
         model = { type = \"fm\", rank = 2, table_budget = \"1MiB\" }\n\
         train = { batch_size = 16, shuffle_rows = 50, passes = 3 }\n",
    );
    let summary = place.run("train old.toml --resume --quiet --json").json();
    assert_eq!((&summary["steps"], &summary["passes"]), (&39.into(), &3.into()));
}
