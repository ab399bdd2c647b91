//! The binary end to end: what it prints where, what it leaves behind, and which exit code says what.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

mod after_training;
mod convert;
mod daily;
mod external;
mod jobs;
mod limits;
mod old_names;
mod outputs;
mod records;
mod replays;
mod stops;
mod told;

const ADULT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/adult");
/// What `--json` of train and eval promises.
const METRICS: [&str; 8] =
    ["auc", "logloss", "prob_mean", "real_mean", "examples", "examples_per_s", "rows", "table_bytes"];

/// What a command did.
struct Done {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Done {
    /// The JSON object that is all of standard output.
    fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{}", self.err);
        assert_eq!(self.out.lines().count(), 1, "standard output:\n{}", self.out);
        serde_json::from_str(&self.out).unwrap()
    }
}

/// A directory in which commands run.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    fn spawn(&self, line: &str) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sanderling"));
        command.args(line.split_whitespace()).current_dir(self.0.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs a command line with a text on its standard input.
    fn run_with(&self, line: &str, input: &[u8]) -> Done {
        let mut child = self.spawn(line);
        let mut stdin = child.stdin.take().unwrap();
        std::thread::scope(|scope| {
            // A command that does not read closes its end.
            scope.spawn(move || drop(stdin.write_all(input)));
            let output = child.wait_with_output().unwrap();
            let text = |bytes| String::from_utf8(bytes).unwrap();
            Done { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
        })
    }

    fn run(&self, line: &str) -> Done {
        self.run_with(line, b"")
    }

    /// Synthetic rows in files of several kinds, and a configuration for libsvm.
    fn with_synth() -> Self {
        let place = Place::new();
        for line in [
            "synth train.svm --rows 3000 --vocabulary 2000",
            "synth valid.svm --rows 1000 --first-row 3000 --vocabulary 2000",
            "synth valid.svm.gz --rows 1000 --first-row 3000 --vocabulary 2000",
        ] {
            let synth = place.run(&format!("{line} --json")).json();
            assert!(synth["best_auc"].as_f64().unwrap() > 0.7, "{synth}");
        }
        place.write("c.toml", "data = { train = \"train.svm\" }\ntrain = { batch_size = 16 }\n");
        place
    }
}

fn has_metrics(json: &Value, examples: u64) {
    METRICS.iter().for_each(|key| assert!(json[key].is_number(), "{key} in {json}"));
    assert_eq!(json["examples"], examples, "{json}");
}

/// AUC by its definition, ties half.
fn auc(labels: &[bool], scores: &[f64]) -> f64 {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*a].total_cmp(&scores[*b]));
    let (mut below, mut wins, mut at) = (0.0, 0.0, 0);
    while at < order.len() {
        let tied = order[at..].iter().take_while(|i| scores[**i] == scores[order[at]]).count();
        let positives = order[at..at + tied].iter().filter(|i| labels[**i]).count() as f64;
        let negatives = tied as f64 - positives;
        wins += positives * (below + negatives / 2.0);
        below += negatives;
        at += tied;
    }
    wins / (below * (labels.len() as f64 - below))
}

#[test]
fn adult_from_train_to_predict() {
    let place = Place::new();
    let config = std::fs::read_to_string(format!("{ADULT}/../../examples/adult_lr.toml")).unwrap();
    place.write("adult.toml", &config.replace("data/adult", ADULT));
    let trained = place.run("train adult.toml --passes 2 --json");
    let json = trained.json();
    has_metrics(&json, 2 * 32_561);
    assert!(json["auc"].as_f64().unwrap() > 0.895, "{json}");
    for part in ["step ", ", auc 0.", "prob_mean", "real_mean", "it/s", "pass 2 validated"] {
        assert!(trained.err.contains(part), "{part} in\n{}", trained.err);
    }
    assert!(place.read("runs/adult/report.html").contains("<svg"));
    let lines: Vec<Value> = place
        .read("runs/adult/metrics.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(lines.iter().any(|line| line["kind"] == "step" && line["auc"].is_number()));
    let last = lines.iter().rfind(|line| line["kind"] == "step").unwrap();
    assert_eq!(last["trained_examples"], 2 * 32_561);
    assert!(last["examples"].as_u64().unwrap() < 2 * 32_561);
    assert_eq!(lines.iter().filter(|line| line["kind"] == "valid").count(), 2);
    // The same numbers from the model on disk, and from its predictions.
    let test = format!("{ADULT}/adult.test.gz");
    let eval = place.run(&format!("eval runs/adult/model {test} --json")).json();
    has_metrics(&eval, 16_281);
    assert_eq!((&eval["auc"], &eval["rows"]), (&json["auc"], &json["rows"]));
    let predicted = place.run(&format!("predict runs/adult/model {test}"));
    assert_eq!(predicted.code, Some(0), "{}", predicted.err);
    let scores: Vec<f64> = predicted.out.lines().map(|line| line.parse().unwrap()).collect();
    let mut text = String::new();
    let file = std::fs::File::open(test).unwrap();
    flate2::read::MultiGzDecoder::new(file).read_to_string(&mut text).unwrap();
    let labels: Vec<bool> =
        text.lines().filter(|line| line.contains(',')).map(|line| line.contains(">50K")).collect();
    assert_eq!(scores.len(), labels.len());
    let (by_scores, by_eval) = (auc(&labels, &scores), eval["auc"].as_f64().unwrap());
    // Scores are probabilities in f32: logits that round to the same one tie.
    assert!((by_scores - by_eval).abs() < 1e-6, "{by_scores} by the scores, {by_eval} by eval");
    let model = place.run("inspect runs/adult/model --json").json();
    assert_eq!(model["tables"].as_array().unwrap().len(), 14);
    assert!(place.run("inspect runs/adult/model").out.contains("marital_status"));
    // A first configuration from the bare file trains.
    let data = place.run(&format!("inspect {ADULT}/adult.data.gz --suggest"));
    place.write("first.toml", &data.out);
    has_metrics(&place.run("train first.toml --json -q --passes 1").json(), 32_561);
}

#[test]
fn standard_input_compression_and_bad_rows() {
    let place = Place::with_synth();
    let (train, valid) = (place.read("train.svm"), place.read("valid.svm"));
    let from_file = place.run("train c.toml --json --name file").json();
    let piped =
        place.run_with("train c.toml --train - --format libsvm --json --name piped", train.as_bytes());
    has_metrics(&piped.json(), 3000);
    assert_eq!(piped.json()["auc"], from_file["auc"]);
    let eval = place.run("eval runs/file/model valid.svm --json").json();
    has_metrics(&eval, 1000);
    for (line, input) in [
        ("eval runs/piped/model - --format libsvm --json", valid.as_bytes()),
        ("eval runs/file/model valid.svm.gz --json --threads 3", b"".as_slice()),
    ] {
        let again = place.run_with(line, input).json();
        assert_eq!((&again["auc"], &again["logloss"]), (&eval["auc"], &eval["logloss"]), "{line}");
    }
    let scores = place.run("predict runs/file/model valid.svm").out;
    assert_eq!(scores.lines().count(), 1000);
    let piped = place.run_with("predict runs/file/model - --format libsvm", valid.as_bytes());
    assert_eq!(piped.out, scores);
    // One line per line of input, also where a row cannot be read.
    let mut lines: Vec<&str> = valid.lines().collect();
    lines.insert(2, "nonsense");
    place.write("bad.svm", &lines.join("\n"));
    let failed = place.run("predict runs/file/model bad.svm -o out.csv");
    assert_eq!(failed.code, Some(3));
    assert!(failed.err.contains("bad.svm:3") && !place.path("out.csv").exists(), "{}", failed.err);
    let skipped = place.run("predict runs/file/model bad.svm -o out.csv --on-bad-row skip --json");
    assert_eq!((&skipped.json()["examples"], &skipped.json()["bad_rows"]), (&1001.into(), &1.into()));
    assert!(skipped.err.contains("bad.svm:3"), "{}", skipped.err);
    let written = place.read("out.csv");
    assert_eq!(written.lines().nth(2), Some(""));
    let rest: Vec<&str> =
        written.lines().enumerate().filter(|(at, _)| *at != 2).map(|(_, line)| line).collect();
    assert!(rest.into_iter().eq(scores.lines()));
    let parquet = place.run("predict runs/file/model bad.svm -o out.parquet --on-bad-row skip --json").json();
    assert_eq!(parquet["examples"], 1001);
    let found = place.run("inspect out.parquet --json").json();
    assert_eq!((&found["rows"], &found["columns"][0]["missing"]), (&1001.into(), &1.into()));
    for alone in ["", " --algorithm ftrl-sync --workers 2", " --algorithm ftrl"] {
        let train =
            place.run(&format!("train c.toml --name skips --train bad.svm --on-bad-row skip:1{alone}"));
        assert!(train.code == Some(0) && train.err.contains("bad.svm:3"), "{alone}: {}", train.err);
    }
    // Those of the validation have a count of their own, and without it no line.
    let data = |valid: &str| {
        format!("data = {{ train = \"train.svm\", valid = {valid:?}, on_bad_row = \"skip\" }}\n")
    };
    for (valid, count) in [("valid.svm", 0), ("bad.svm", 1)] {
        place.write("v.toml", &data(valid));
        let json = place.run("train v.toml --name v -q --json").json();
        assert_eq!((&json["bad_rows"], &json["valid_bad_rows"]), (&0.into(), &count.into()), "{valid}");
        let said = place.run("train v.toml --name v -q").out;
        assert_eq!(said.contains("bad valid rows"), count > 0, "{said}");
    }
    // Nothing but bad rows is said so, and nothing is measured on them.
    place.write("worse.svm", "1 x\n1 y\n0 z\n");
    for job in ["", " --algorithm ftrl-sync --workers 2", " --algorithm ftrl --workers 2"] {
        let none = place.run(&format!("train c.toml --name none --train worse.svm --on-bad-row skip{job}"));
        let told = "worse.svm: no rows to work on: all 3 were bad, the first: worse.svm:";
        assert!(none.code == Some(3) && none.err.contains(told), "{job}: {}", none.err);
        assert!(!none.err.contains("NaN"), "{job}: {}", none.err);
    }
    let eval = place.run("eval runs/file/model bad.svm --on-bad-row skip:1 --json").json();
    assert_eq!((&eval["examples"], &eval["bad_rows"]), (&1000.into(), &1.into()));
    // A reader that has seen enough is no failure.
    for line in
        ["predict runs/file/model train.svm train.svm train.svm", "synth - --format libsvm --rows 100000"]
    {
        let mut child = place.spawn(line);
        let mut first = [0; 1];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), err.as_str()), (Some(0), ""), "{line}");
    }
}

#[test]
fn criteo_without_labels() {
    let place = Place::new();
    place.run("synth clicks.tsv --rows 500 --vocabulary 2000");
    place.write("c.toml", "data = { train = \"clicks.tsv\", format = \"criteo\" }\n");
    has_metrics(&place.run("train c.toml --json").json(), 500);
    let unlabelled: String =
        place.read("clicks.tsv").lines().map(|line| line[2..].to_string() + "\n").collect();
    place.write("unlabelled.tsv", &unlabelled);
    let [with, without] =
        ["clicks", "unlabelled"].map(|name| place.run(&format!("predict runs/c/model {name}.tsv")));
    assert_eq!((with.code, without.code), (Some(0), Some(0)), "{}", without.err);
    assert!(with.out == without.out && with.out.lines().count() == 500);
    assert_eq!(place.run("eval runs/c/model unlabelled.tsv").code, Some(3));
}

#[test]
fn help_and_exit_codes() {
    let place = Place::with_synth();
    place.run("train c.toml -q");
    place.write("wrong.toml", "data = { train = \"train.svm\" }\nepochs = 3\n");
    place.write(
        "rate.toml",
        "data = { train = \"train.svm\" }\noptimizer = { type = \"ftrl\", alpha = 0.0 }\n",
    );
    place.write("single.toml", "data = { train = \"train.svm\" }\nlabel = { threshold = 7.5 }\n");
    place.write("deep.toml", "dense_optimizer = { type = \"adam\" }\nmodel = { type = \"deepfm\" }\n");
    place.write("bad.svm", "1 2:3\n1 x\n");
    place.write("empty.svm", "");
    place.write("taken", "");
    let early = "train = { batch_size = 16, passes = 50, early_stop = 1 }\n";
    place.write("early.toml", &format!("data = {{ train = \"train.svm\", valid = \"valid.svm\" }}\n{early}"));
    let of_before = ["valid.svm", "runs/c/metrics.jsonl"].map(|name| (name, place.read(name)));
    for command in ["train", "eval", "predict", "inspect", "convert", "synth", "completions"] {
        let help = place.run(&format!("{command} --help"));
        assert_eq!(help.code, Some(0));
        assert!(
            help.out.contains("Example") && help.out.contains(&format!("sanderling {command} ")),
            "{}",
            help.out
        );
    }
    // What a file brings is shown, and not obeyed.
    place.write("unnamed", &place.read("train.svm"));
    place.write("odd.csv", "click,a \u{1b}[31m\n1,\u{1b}]0;x\u{7}\n0,b\n");
    place.write("odd\u{1b}[2J.svm", "1 2:3\n1 x\n");
    for line in [
        "inspect odd.csv",
        "inspect odd.csv --suggest",
        "inspect odd.csv --json",
        "inspect odd\u{1b}[2J.svm",
        "eval runs/c/model odd\u{1b}[2J.svm",
    ] {
        let shown = place.run(line);
        let controls = |text: &str| text.contains(|c: char| c.is_control() && c != '\n');
        assert!(!controls(&shown.out) && !controls(&shown.err), "{line}: {:?} {:?}", shown.out, shown.err);
        assert!((shown.out + &shown.err).contains("\\u001b["), "{line}");
    }
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = place.run(&format!("completions {shell}"));
        assert!(script.code == Some(0) && script.out.contains("predict"), "{shell}");
    }
    for folder in ["damaged", "runs/new", "deep", "runs/deep/model"] {
        std::fs::create_dir_all(place.path(folder)).unwrap();
    }
    place.write("runs/new/metrics.jsonl", "");
    for folder in ["deep", "runs/deep/model"] {
        place.write(&format!("{folder}/manifest.json"), "{\"format\": 1, \"generation\": 1, \"dense\": {}}");
    }
    for file in std::fs::read_dir(place.path("runs/c/model")).unwrap() {
        let path = file.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(place.path("damaged").join(path.file_name().unwrap()), bytes).unwrap();
    }
    for (line, code, part) in [
        ("--version", 0, ""),
        ("", 2, "Usage"),
        ("trian c.toml", 2, "trian"),
        ("train c.toml --batch-size 0", 2, "train.batch_size"),
        ("train rate.toml", 2, "alpha"),
        ("train single.toml -q", 0, "every row is negative"),
        ("predict runs/c/model valid.svm -o scores.csv.gz", 2, "scores.csv.gz"),
        ("train wrong.toml", 2, "epochs"),
        ("train missing.toml", 2, "missing.toml"),
        ("train deep.toml", 2, "deepfm is a deep model"),
        ("train c.toml --model dcn", 2, "dcn is a deep model"),
        ("train c.toml --name deep", 4, "runs/deep/model: is a deep model, of an earlier run of this name"),
        ("train c.toml --model fm", 2, "chosen in the configuration"),
        ("train c.toml --runs-dir taken", 1, "taken/c: there is a file where the run's folder is to be"),
        ("train c.toml --seed 7 --resume", 4, "seed"),
        ("train c.toml --train missing.svm", 1, "missing.svm"),
        ("train c.toml --train bad.svm", 3, "bad.svm:2"),
        ("train c.toml --train empty.svm", 3, "no rows"),
        ("inspect empty.svm --suggest", 3, "empty.svm: no rows to work on"),
        ("inspect train.svm --suggest --json", 2, "cannot be used with"),
        ("inspect train.svm --columns a,b", 2, "--columns: only for CSV and TSV, and train.svm is libsvm"),
        // By its content.
        ("inspect unnamed --comment #", 2, "--comment: only for CSV and TSV, and unnamed is libsvm"),
        ("train c.toml --header true", 2, "--header: only for CSV and TSV, and train.svm is libsvm"),
        ("eval runs/c/model valid.svm --separator ;", 2, "--separator: only for CSV and TSV"),
        ("predict runs/c/model valid.svm --columns a", 2, "--columns: only for CSV and TSV"),
        // As `eval` below: without an ending it is more likely a model than data.
        ("inspect nowhere", 4, "nowhere: is not there; name the directory of a saved model"),
        ("key nowhere user u1", 4, "nowhere: is not there; name the directory of a saved model"),
        ("similar nowhere user u1", 4, "nowhere: is not there; name the directory of a saved model"),
        ("export nowhere -o x.npy", 4, "nowhere: is not there; name the directory of a saved model"),
        ("inspect none-*.svm", 1, "none-*.svm: no file matches this pattern"),
        ("train c.toml --train none-*.svm", 1, "none-*.svm: no file matches this pattern"),
        ("train c.toml --valid empty.svm", 3, "empty.svm: no rows"),
        ("train c.toml --valid bad.svm", 3, "bad.svm:2"),
        ("eval runs/c/model bad.svm", 3, "bad.svm:2"),
        ("eval damaged valid.svm", 4, "damaged"),
        ("eval nowhere valid.svm", 4, "nowhere: is not there; name the directory of a saved model"),
        ("eval c.toml valid.svm", 4, "c.toml: is a file; name the directory of a saved model"),
        ("predict runs/c/model/manifest.json valid.svm", 4, "manifest.json: is a file"),
        ("eval runs/c valid.svm", 4, "did you mean runs/c/model?"),
        (
            "inspect runs/new",
            4,
            "runs/new: is the directory of a run, which saves its model after its first pass",
        ),
        ("eval runs/new/model valid.svm", 4, "runs/new/model: is not there yet: runs/new is a run"),
        ("inspect runs", 4, "runs: holds no model; name the directory of a saved model"),
        ("inspect deep", 4, "deep/manifest.json: is damaged: missing field `bytes`"),
        ("eval deep valid.svm", 4, "deep: is a deep model, which the command of the Python package reads"),
        ("predict deep valid.svm", 4, "deep: is a deep model, which the command of the Python package reads"),
        ("inspect runs/c/model --top 0", 2, "--top"),
        ("train c.toml --name unknown --resume", 4, "nothing was saved here"),
        // The starts above that failed have taken nothing from it.
        ("train c.toml --resume", 0, "nothing is left to do after pass 1, the last one"),
        ("train early.toml", 0, "stopped early"),
        ("train early.toml --resume", 0, "nothing is left to do: the run stopped early after pass "),
        ("train c.toml --name=", 2, "a value is required for '--name <NAME>'"),
        ("predict runs/c/model valid.svm --json", 2, "--output"),
        ("predict runs/c/model valid.svm -o ./valid.svm", 2, "./valid.svm: it is one of the input files"),
        ("synth out.xls", 2, "format"),
        ("synth out.parquet.gz", 2, "compressed inside"),
        ("train c.toml --workers 2", 2, "--algorithm"),
        ("train c.toml --algorithm ftlr", 2, "ftrl-sync-no-shuffle"),
        ("train c.toml --algorithm ftrl-sync --batch-size 65537", 2, "global batch"),
        ("train c.toml --algorithm ftrl-sync --workers 32", 2, "workers"),
        ("train c.toml --algorithm ftrl-sync --staleness 2", 2, "--staleness"),
    ] {
        let done = place.run(line);
        assert_eq!(done.code, Some(code), "{line}\n{}", done.err);
        assert!(done.err.contains(part), "{line}\n{}", done.err);
        assert!(code == 0 || done.out.is_empty(), "{line} printed {}", done.out);
    }
    for (name, text) in of_before {
        assert_eq!(place.read(name), text, "{name} after commands that were refused");
    }
    assert!(!place.path("runs/unknown").exists());
    assert_eq!(place.run("train c.toml --name changed --quiet").code, Some(0));
    place.write("train.svm", &format!("1 7:1\n{}", place.read("train.svm")));
    let changed = place.run("train c.toml --name changed --passes 2 --resume");
    assert_eq!(changed.code, Some(4), "{}", changed.err);
    assert!(changed.err.contains("the size of the files of data.train changed"), "{}", changed.err);
}

/// As training reads it, but for the other files.
#[test]
fn of_a_pattern_the_first_file_is_inspected() {
    let place = Place::with_synth();
    let one = place.run("inspect train.svm --json").json();
    assert_eq!(place.run("inspect t*.svm --json").json(), one);
    let mut first = place.run("inspect *.svm --json").json();
    let note = first.as_object_mut().unwrap().remove("note").unwrap();
    assert_eq!(note, "the first of 2 files that match *.svm; the others were not looked at");
    assert_eq!(first, one);
    let suggested = place.run("inspect *.svm --suggest").out;
    assert!(suggested.contains("from the first 3000 rows of \"*.svm\""), "{suggested}");
    place.write("all.toml", &suggested);
    let trained = place.run("train all.toml --passes 1 -q --json").json();
    assert_eq!(trained["examples"], 4000);
}

fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
}

/// Terminals may be narrow, and wrapped text must not be wrapped again.
#[test]
fn help_fits_terminals() {
    let place = Place::new();
    let sub = |command: &'static str, parts: &[&'static str]| {
        parts.iter().map(|part| format!("{command} {part}")).collect::<Vec<_>>()
    };
    let orders = sub(
        "ctl",
        &["status", "tables", "connections", "stats", "save x", "restore x", "drop x", "drain", "registry"],
    );
    let commands = [
        "", "train", "eval", "predict", "inspect", "compare", "convert", "hub", "ps", "keeper", "ctl",
        "synth",
    ];
    for line in commands.map(str::to_owned).into_iter().chain(orders) {
        for width in [80, 100] {
            let help = Command::new(env!("CARGO_BIN_EXE_sanderling"))
                .args(line.split_whitespace())
                .arg("--help")
                .env("COLUMNS", width.to_string())
                .current_dir(place.path(""))
                .output()
                .unwrap();
            let help = String::from_utf8(help.stdout).unwrap();
            assert!(help.contains("Example"), "{line}: {help}");
            let words = |line: &str| !line.is_empty() && !line.starts_with(' ');
            let lines: Vec<&str> = help.lines().collect();
            for pair in lines.windows(2) {
                assert!(pair[0].chars().count() <= width, "{line}: {:?}", pair[0]);
                let next = pair[1].split(' ').next().unwrap_or_default().len();
                let is_filled = pair[0].chars().count() + 1 + next > width;
                assert!(!words(pair[0]) || !words(pair[1]) || is_filled, "{line} at {width}: {pair:?}");
            }
        }
    }
}
