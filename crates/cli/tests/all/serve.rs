//! `sanderling serve` as a process of its own: scores equal to `sanderling predict`, readiness, signals, exit codes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sanderling_testkit::http;
use serde_json::{Value, json};

use crate::process::Process;

mod traced;

const ADULT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/adult");

fn sanderling(folder: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sanderling"));
    command.args(line.split_whitespace()).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command to its end: exit code, standard output and standard error.
pub(crate) fn run(folder: &Path, line: &str) -> (Option<i32>, String, String) {
    let done = sanderling(folder, line).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (done.status.code(), text(done.stdout), text(done.stderr))
}

/// A running server; it is killed if a test forgets it.
pub(crate) struct Serve {
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Serve {
    fn start(folder: &Path, options: &str) -> Serve {
        Serve::start_with(folder, options, &[])
    }

    /// A server with variables in its environment.
    pub(crate) fn start_with(folder: &Path, options: &str, environment: &[(String, String)]) -> Serve {
        let mut command = sanderling(folder, &format!("serve --listen 127.0.0.1:0 {options}"));
        let mut child = command.envs(environment.iter().cloned()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Some(address) = line.trim().strip_prefix("listening at http://") else {
            let mut errors = String::new();
            child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
            panic!("{line:?}: {errors}");
        };
        Serve { address: address.to_owned(), child }
    }

    pub(crate) fn json(&self, path: &str, body: &Value) -> Value {
        let reply = http(&self.address, "POST", path, &[], body.to_string().as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.text());
        serde_json::from_str(reply.text()).unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([format!("-{name}"), pid]).status().unwrap().success());
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Rows of the test file, as JSON objects of texts.
fn adult_rows(columns: &[&str]) -> Vec<Value> {
    let mut text = String::new();
    let file = std::fs::File::open(format!("{ADULT}/adult.test.gz")).unwrap();
    flate2::read::MultiGzDecoder::new(file).read_to_string(&mut text).unwrap();
    let row = |line: &str| {
        let fields = line.split(',').map(str::trim);
        let row = columns.iter().zip(fields).map(|(column, field)| ((*column).to_owned(), json!(field)));
        Value::Object(row.filter(|(column, _)| column != "fnlwgt").collect())
    };
    text.lines().filter(|line| line.contains(',')).map(row).collect()
}

const COLUMNS: [&str; 15] = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
    "native_country",
    "income",
];

#[test]
fn scores_of_the_bundled_data_equal_those_of_predict() {
    let folder = tempfile::tempdir().unwrap();
    let rows = adult_rows(&COLUMNS);
    for kind in ["lr", "fm", "ffm"] {
        let config = std::fs::read_to_string(format!("{ADULT}/../../examples/adult_{kind}.toml")).unwrap();
        std::fs::write(folder.path().join("adult.toml"), config.replace("data/adult", ADULT)).unwrap();
        let (code, _, errors) = run(folder.path(), &format!("train adult.toml --passes 1 -q --name {kind}"));
        assert_eq!(code, Some(0), "{errors}");
        let (code, scores, errors) =
            run(folder.path(), &format!("predict runs/{kind}/model {ADULT}/adult.test.gz"));
        assert_eq!(code, Some(0), "{errors}");
        let expected: Vec<f64> = scores.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(expected.len(), rows.len());
        let serve = Serve::start(folder.path(), &format!("runs/{kind}/model --name adult@3"));
        let mut found = Vec::new();
        for rows in rows.chunks(4000) {
            let answer = serve.json("/predict", &json!({ "rows": rows, "model": "adult", "version": 3 }));
            found.extend(answer["scores"].as_array().unwrap().iter().map(|score| score.as_f64().unwrap()));
        }
        assert_eq!(found.len(), expected.len());
        for (row, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!((found - expected).abs() <= 1e-6, "{kind}, row {row}: {found} is not {expected}");
        }
    }
}

pub(crate) fn trained() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..200).map(|at| format!("u{},g{},{}\n", at % 9, at % 5, at % 2)).collect();
    std::fs::write(folder.path().join("clicks.csv"), format!("user,genres,label\n{rows}")).unwrap();
    let config = "data = { train = \"clicks.csv\" }\n[[feature]]\nname = \"user\"\n[[feature]]\nname = \"genres\"\ntype = \"multi\"\n";
    std::fs::write(folder.path().join("clicks.toml"), config).unwrap();
    let (code, _, errors) = run(folder.path(), "train clicks.toml -q");
    assert_eq!(code, Some(0), "{errors}");
    folder
}

/// The words of each `curl` command in a text, quotes removed.
fn curl_commands(text: &str) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    for (at, _) in text.match_indices("curl -s ") {
        let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
        let mut rest = text[at..].chars();
        while let Some(c) = rest.next() {
            match c {
                '\'' => is_quoted = !is_quoted,
                '\n' if !is_quoted => break,
                // A backslash before the end of a line.
                '\\' if !is_quoted => drop(rest.next()),
                ' ' if !is_quoted => words.push(std::mem::take(&mut word)),
                c => word.push(c),
            }
        }
        words.push(word);
        commands.push(words.into_iter().filter(|word| !word.is_empty()).collect());
    }
    commands
}

#[test]
fn the_curl_commands_of_the_page_and_the_help_are_answered() {
    let folder = trained();
    let serve = Serve::start(folder.path(), "runs/clicks/model");
    let page = include_str!("../../../../docs/serving.md");
    let (_, help, _) = run(folder.path(), "serve --help");
    for (text, count) in [(page, 8), (&help, 5)] {
        let commands = curl_commands(text);
        assert_eq!(commands.len(), count, "{commands:?}");
        for words in commands {
            let path = words[2].strip_prefix("http://127.0.0.1:8500").unwrap();
            let body = words.iter().position(|word| word == "-d").map(|at| words[at + 1].as_bytes());
            // As curl sends it.
            let headers = ["content-type: application/x-www-form-urlencoded"];
            let method = if body.is_some() { "POST" } else { "GET" };
            let reply = http(&serve.address, method, path, &headers, body.unwrap_or_default());
            assert_eq!(reply.status, 200, "{words:?}: {}", reply.text());
            let answer: Value = serde_json::from_str(reply.text()).unwrap();
            let scores = answer["scores"].as_array().or_else(|| answer["outputs"][0]["data"].as_array());
            let count = scores.map(Vec::len).or_else(|| answer["rows"].as_array().map(Vec::len));
            assert!(count.is_none_or(|count| count > 0), "{words:?}: {answer}");
        }
    }
}

#[test]
fn a_signal_drains_the_server() {
    let folder = trained();
    for signal in ["TERM", "INT"] {
        let mut serve = Serve::start(folder.path(), "runs/clicks/model");
        assert_eq!(http(&serve.address, "GET", "/v2/health/ready", &[], b"").status, 200);
        let body = r#"{"rows":[{"user":"u17","genres":["a","b"]}]}"#;
        let mut stream = TcpStream::connect(&serve.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST /predict HTTP/1.1\r\nhost: {}\r\ncontent-length: {length}\r\n\r\n",
            serve.address
        )
        .unwrap();
        // One thread reads both connections: when it has answered the second, it has the beginning of the first.
        assert_eq!(http(&serve.address, "GET", "/healthz", &[], b"").text(), "serving\n");
        serve.signal(signal);
        while TcpStream::connect(&serve.address).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        write!(stream, "{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"scores\":["), "{answer}");
        assert_eq!(serve.child.wait().unwrap().code(), Some(0), "{signal}");
    }
}

#[test]
fn a_folder_of_models_is_followed() {
    let folder = trained();
    let clicks = folder.path().join("models/clicks");
    std::fs::create_dir_all(&clicks).unwrap();
    for version in ["1", "2"] {
        std::os::unix::fs::symlink(folder.path().join("runs/clicks/model"), clicks.join(version)).unwrap();
    }
    std::os::unix::fs::symlink("1", clicks.join("live")).unwrap();
    let serve = Serve::start(folder.path(), "--models models --look-every 20ms --memory 1GiB");
    let body = json!({ "rows": [{ "user": "u1", "genres": "g1" }] });
    let version = || serve.json("/predict", &body)["version"].clone();
    assert_eq!(version(), "1");
    // A person moves the link, as ln -sfn does.
    std::os::unix::fs::symlink("2", clicks.join(".new")).unwrap();
    std::fs::rename(clicks.join(".new"), clicks.join("live")).unwrap();
    while version() != "2" {
        std::thread::sleep(Duration::from_millis(1));
    }
    // A request moves it back.
    let answer =
        serve.json("/v2/repository/models/clicks/load", &json!({ "parameters": { "version": "1" } }));
    assert_eq!((&answer["aliases"]["live"], version()), (&json!("1"), json!("1")));
    assert_eq!(std::fs::read_link(clicks.join("live")).unwrap(), Path::new("1"));
}

/// Rows come from running servers, and stay when these are killed.
#[test]
fn a_replica_has_the_rows_of_servers_and_outlives_them() {
    let folder = trained();
    let mut ps = Process::start_at(folder.path(), "127.0.0.1:0", 1, "", "--no-local");
    let address = ps.addresses[0].to_string();
    let config = std::fs::read_to_string(folder.path().join("clicks.toml")).unwrap();
    std::fs::write(folder.path().join("other.toml"), format!("name = \"other\"\n{config}")).unwrap();
    let (code, _, errors) = run(folder.path(), &format!("train other.toml -q --ps {address}"));
    assert_eq!(code, Some(0), "{errors}");
    let from = address.replace("tcp://", "ps://");
    let options = format!("--from {from} --fresh 20ms --stale-after 500ms --ps-timeout 1s");
    let replica = Serve::start(folder.path(), &format!("runs/other/model {options}"));
    let plain = Serve::start(folder.path(), "runs/other/model");
    let rows: Vec<Value> =
        (0..11).map(|at| json!({ "user": format!("u{at}"), "genres": ["g1", "g3"] })).collect();
    let body = json!({ "rows": rows });
    let scores = |serve: &Serve| -> Vec<f64> {
        let json = serve.json("/predict", &body);
        json["scores"].as_array().unwrap().iter().map(|score| score.as_f64().unwrap()).collect()
    };
    let expected = scores(&plain);
    let check = || {
        for (found, expected) in scores(&replica).iter().zip(&expected) {
            assert!((found - expected).abs() <= 1e-6, "{found} is not {expected}");
        }
    };
    check();
    ps.signal("KILL");
    ps.wait_unread();
    loop {
        let health = http(&replica.address, "GET", "/health", &[], b"");
        assert_eq!(health.status, 200);
        let health: Value = serde_json::from_str(health.text()).unwrap();
        if health["replica"]["stale"] == true && health["replica"]["sources"][0]["error"].is_string() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    check();
}

#[test]
fn wrong_options_and_models_have_their_exit_code() {
    let folder = trained();
    for (options, code, reason) in [
        ("nowhere", 4, "nowhere"),
        ("runs/clicks/model --name a/b", 2, "--name: \"a/b\" is not a name"),
        ("runs/clicks/model --models models", 2, "cannot be used with"),
        ("--models nowhere", 2, "nowhere: "),
        ("runs/clicks/model --from 127.0.0.1:7000", 2, "write ps://host:port"),
        ("runs/clicks/model --from s3://bucket/*/latest", 2, "--from: s3://bucket/*/latest: '*'"),
        ("runs/clicks/model --from runs --fresh 2h", 2, "--fresh: of checkpoints must be 50ms to 1h"),
        ("runs/clicks/model --from runs --ps-no-local", 2, "need --from ps://"),
        ("runs/clicks/model --from runs --start runs", 2, "--start: needs --from ps://"),
        ("--models models --from runs", 2, "cannot be used with"),
        ("runs/clicks/model --fresh 1s", 2, "--from"),
        ("runs/clicks/model --ps-no-local", 2, "need --from"),
        ("runs/clicks/model --memory 1GiB", 2, "--memory"),
        ("runs/clicks/model --timeout 0s", 2, "--timeout: must be more than 0"),
        ("runs/clicks/model --batch-max 0", 2, "batch_max = 0: must be 1 to"),
        ("runs/clicks/model --body-max 1GiB", 2, "body_max"),
        ("runs/clicks/model --token-file /nowhere", 2, "--token-file: /nowhere"),
        (
            "runs/clicks/model --listen 0.0.0.0:0",
            2,
            "give --expose, --cert-file, --key-file and --token-file",
        ),
        ("runs/clicks/model --listen 0.0.0.0:0 --expose", 2, "exposed without TLS and a token"),
    ] {
        let listen = if options.contains("--listen") { "" } else { "--listen 127.0.0.1:0" };
        let (found, _, errors) = run(folder.path(), &format!("serve {options} {listen}"));
        assert!(found == Some(code) && errors.contains(reason), "{options}: {found:?} {errors}");
    }
}
