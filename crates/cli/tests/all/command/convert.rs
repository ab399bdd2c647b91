//! `sanderling convert`: what is trained on a batch file is what is trained on its source, bit for bit.

use std::io::{BufRead, BufReader, Write};

use super::{Done, Place};

/// The tables of a model, of the first run of that name: how often a directory was written to is in its files.
fn model(place: &Place, run: &str) -> Vec<(String, Vec<u8>)> {
    let files = std::fs::read_dir(place.path(&format!("runs/{run}/model"))).unwrap();
    let mut files: Vec<_> = files
        .map(|file| file.unwrap())
        .map(|file| (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap()))
        .filter(|(name, _)| name.ends_with(".table"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

fn ok(done: Done) -> Done {
    assert_eq!(done.code, Some(0), "{}", done.err);
    done
}

#[test]
fn a_batch_file_trains_the_same_model() {
    let place = Place::with_synth();
    ok(place.run("synth train.csv --rows 2500 --vocabulary 500 --multi-valued 2"));
    let suggested = ok(place.run("inspect train.csv --suggest")).out;
    // The format of the source is not that of the batch file.
    let suggested = suggested
        .replace("type = \"log\"", "type = \"quantile\"")
        .replace("passes = 3", "passes = 2")
        .replace("[data]\n", "[data]\nformat = \"csv\"\n");
    assert!(suggested.contains("format = \"csv\""), "{suggested}");
    assert!(suggested.contains("quantile") && suggested.contains("multi"), "{suggested}");
    place.write("d.toml", &suggested);
    for (config, block_rows) in [("c.toml", 64), ("d.toml", 1000)] {
        ok(place.run(&format!("train {config} --name source_{config} -q")));
        let source = model(&place, &format!("source_{config}"));
        for compression in ["none", "lz4", "zstd"] {
            let convert = format!(
                "convert {config} a.batch --force --compression {compression} --block-rows {block_rows}"
            );
            let json = place.run(&format!("{convert} --json")).json();
            assert!(json["rows"].as_u64().unwrap() >= 2500 && json["bad_rows"] == 0, "{json}");
            assert_eq!(json["bytes"], place.path("a.batch").metadata().unwrap().len());
            assert_eq!(json["compression_ratio"].as_f64().unwrap() > 1.1, compression != "none", "{json}");
            let run = format!("{compression}_{config}");
            ok(place.run(&format!("train {config} --name {run} --train a.batch -q")));
            assert!(model(&place, &run) == source, "{config}, {compression}");
        }
    }
    // Without shuffling, minibatches are used where they lie; online learning takes what is at hand, and notes in a row the
    // piece in which it was used last: its tables differ in that, and its predictions do not.
    for batch in [50, 1] {
        let train = format!("train = {{ batch_size = {batch}, shuffle_rows = 0 }}");
        place.write("e.toml", &format!("data = {{ train = \"train.svm\" }}\n{train}\n"));
        ok(place.run(&format!("train e.toml --name source{batch} -q")));
        ok(place.run("convert e.toml a.batch --force -q"));
        ok(place.run(&format!("train e.toml --name batch{batch} --train a.batch -q")));
        let [source, batch_run] = ["source", "batch"].map(|run| format!("{run}{batch}"));
        assert!(batch == 1 || model(&place, &batch_run) == model(&place, &source), "{train}");
        let predict = |run: &str| ok(place.run(&format!("predict runs/{run}/model valid.svm"))).out;
        assert!(predict(&batch_run) == predict(&source), "{train}");
    }
    // A configuration without features has those of the file; so has what looks into it.
    place.write("f.toml", "data = { train = \"a.batch\" }\ntrain = { batch_size = 1, shuffle_rows = 0 }\n");
    ok(place.run("train f.toml --name plain -q"));
    assert!(model(&place, "plain") == model(&place, "batch1"));
    let shown = ok(place.run("inspect a.batch")).out;
    assert!(shown.contains("holds keys") && shown.contains("3,000"), "{shown}");
    place.write("g.toml", &ok(place.run("inspect a.batch --suggest")).out);
    ok(place.run("train g.toml -q --passes 1"));
    let [of_source, of_batch] = ["valid.svm", "valid.batch"].map(|file| {
        ok(place.run("convert c.toml valid.batch --force --input valid.svm"));
        place.run(&format!("eval runs/source1/model {file} --threads 1 --json")).json()
    });
    assert_eq!(of_source["auc"], of_batch["auc"]);
    assert_eq!(of_source["logloss"], of_batch["logloss"]);
}

#[test]
fn what_cannot_be_converted_or_read() {
    let place = Place::with_synth();
    ok(place.run("convert c.toml a.batch"));
    let whole = std::fs::read(place.path("a.batch")).unwrap();
    std::fs::write(place.path("torn.batch"), &whole[..whole.len() / 2]).unwrap();
    place.write("g.toml", "data = { train = \"train.svm\" }\nfeature = [{ name = \"x\" }]\n");
    place.write("bad.svm", "1 2:3\n1 x\n");
    place.write("worse.svm", "1 x\n1 y\n");
    place.write("empty.svm", "");
    for (line, code, part) in [
        ("convert c.toml a.batch", 2, "a.batch: exists already; replace it with --force"),
        ("convert c.toml a.batch --input a.batch --force", 2, "a.batch: it is one of the input files"),
        ("convert c.toml a.csv", 2, "a.csv: the output must end in .batch"),
        ("convert c.toml b.batch --valid", 2, "data.valid names no input"),
        ("convert c.toml b.batch --input bad.svm", 3, "bad.svm:2: column"),
        ("convert c.toml b.batch --input nothing.svm", 1, "nothing.svm"),
        (
            "convert c.toml a.batch --force --input a.batch",
            2,
            "OUT.batch a.batch: it is one of the input files",
        ),
        ("convert c.toml b.batch --header true", 2, "--header: only for CSV and TSV"),
        ("convert c.toml b.batch --input empty.svm", 3, "empty.svm: no rows to work on"),
        (
            "convert c.toml b.batch --input worse.svm --on-bad-row skip",
            3,
            "worse.svm: no rows to work on: all 2 were bad, the first: worse.svm:1: column",
        ),
        (
            "train c.toml --train worse.svm --on-bad-row skip -q",
            3,
            "worse.svm: no rows to work on: all 2 were bad, the first: worse.svm:1: column",
        ),
        (
            "convert c.toml b.batch --input hub://localhost:7200",
            2,
            "hub://localhost:7200: hubs serve feed queues",
        ),
        (
            "convert c.toml no/folder/b.batch",
            1,
            "no/folder/b.batch: there is no folder no/folder; make it first",
        ),
        ("train c.toml --train torn.batch -q", 3, "torn.batch: does not end as a batch file"),
        (
            "train g.toml --train a.batch -q",
            3,
            "has no feature \"x\", but features; convert the source again",
        ),
    ] {
        let done = place.run(line);
        assert_eq!(done.code, Some(code), "{line}: {}", done.err);
        assert!(done.err.contains(part), "{line}\n{}", done.err);
    }
    assert_eq!(std::fs::read(place.path("a.batch")).unwrap(), whole);
    let left: Vec<_> =
        std::fs::read_dir(place.path("")).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert!(
        !left.iter().any(|name| name.to_string_lossy().contains("part") || name == "b.batch"),
        "{left:?}"
    );
}

/// At a terminal Ctrl-C ends what writes to the pipe, too.
#[test]
fn rows_that_end_with_an_interruption_are_not_all_rows() {
    let place = Place::with_synth();
    let mut child = place.spawn("convert c.toml a.batch --input - --format libsvm");
    let (mut stdin, stderr) = (child.stdin.take().unwrap(), child.stderr.take().unwrap());
    stdin.write_all(place.read("train.svm").as_bytes()).unwrap();
    // It takes signals in its own way once it says what it does, or reads.
    stdin.write_all(&b"1 5:1\n".repeat(200_000)).unwrap();
    super::signal(&child, "-INT");
    let mut said = BufReader::new(stderr).lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains("stopping; once more to stop at once")));
    drop(stdin);
    let rest: Vec<String> = said.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("a.batch was not written")), "{rest:?}");
    assert!(!place.path("a.batch").exists());
}
