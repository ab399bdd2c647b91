//! Servers that are started again during a run: it goes on where they have every acknowledged push, else from its last save.

use super::*;
use crate::process::counters;

/// One pass over many rows, so that a server ends within it, and the run saves only at its end.
const ONE_PASS: &str = r#"
name = "run"
model = { type = "fm", rank = 4, table_budget = "0" }
optimizer = { type = "ftrl", alpha = 0.1, l1 = 0.001 }
factor_optimizer = { type = "adagrad", lr = 0.05 }
data = { train = "long.svm" }
train = { batch_size = 32, threads = 1, shuffle_rows = 500, passes = 1 }
"#;

/// Longer than until a wait is told.
const AWAY: Duration = Duration::from_secs(2);
/// The options that make a server have every acknowledged push after `kill -9`.
const KEPT: &str = "--kept kept";
const LOGGED: &str = "--data data --log log --lose 0s";

const SURVIVED: &str = "it was started anew, and has every acknowledged change";
const RESTORED: &str =
    "the run puts its last save back on the servers and goes on from there (1 of at most 6 times an hour)";
const UNKNOWN: &str = "whether it was applied is unknown";

impl Place {
    /// In memory, where tables are kept without a word of the kernel's.
    fn of_restarts() -> Place {
        let place = Place(tempfile::tempdir_in("/dev/shm").unwrap());
        place.json("synth long.svm --rows 60000 --vocabulary 2000 --json");
        place.json("synth train.svm --rows 3000 --vocabulary 2000 --json");
        std::fs::write(place.path("one_pass.toml"), ONE_PASS).unwrap();
        std::fs::write(place.path("c.toml"), CONFIG).unwrap();
        std::fs::write(place.path("job.toml"), IN_STEP).unwrap();
        place
    }

    /// A server whose files are in a folder of its own.
    fn started(&self, name: &str, listen: &str, options: &str) -> Process {
        let folder = self.path(name);
        std::fs::create_dir_all(&folder).unwrap();
        let lines = if options.contains("--no-local") { 1 } else { 3 };
        Process::start_at(&folder, listen, lines, "", options)
    }
}

/// Waits until the run has pushed rows and, if asked to, saved something.
fn wait_until_under_way(server: &Process, model: Option<&Path>, training: &mut std::process::Child) {
    let start = Instant::now();
    let is_saved = || model.is_none_or(|model| model.join("manifest.json").exists());
    while !is_saved() || counters(&server.addresses[0])["rows"] < 500 {
        assert!(start.elapsed() < LONG && training.try_wait().unwrap().is_none(), "nothing is under way");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Trains while the server ends by a signal and is started again, with other options if so wanted; the exit code and what was said.
fn train(
    place: &Place,
    name: &str,
    (options, again): (&str, &str),
    signal: &str,
    line: &str,
) -> (Option<i32>, String, String) {
    let server = place.started(name, "127.0.0.1:0", options);
    let address = server.addresses[0].to_string();
    let line = format!("train {line} --quiet --name {name} --runs-dir there --ps {address}");
    let mut training = place.command(&line).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let model = place.path(&format!("there/{name}/model"));
    wait_until_under_way(&server, (!line.contains("one_pass")).then_some(&*model), &mut training);
    server.signal(signal);
    drop(server.end());
    std::thread::sleep(AWAY);
    let listen = address.strip_prefix("tcp://").unwrap();
    let _server = place.started(name, listen, again);
    let output = training.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap(), address)
}

/// Checks all cases at once, since most of their time is a wait.
fn at_once<T: Send, const N: usize>(cases: [T; N], check: impl Fn(T) + Sync) {
    std::thread::scope(|scope| cases.into_iter().for_each(|case| _ = scope.spawn(|| check(case))));
}

#[test]
fn a_server_that_comes_back_with_every_push_is_gone_on_with() {
    let place = Place::of_restarts();
    place.json("train one_pass.toml --quiet --json --runs-dir here");
    let cases = [
        ("kept-killed", KEPT, "KILL", false),
        ("kept-upgraded", KEPT, "TERM", false),
        ("kept-local", KEPT, "KILL", true),
        ("logged-killed", LOGGED, "KILL", false),
        ("logged-upgraded", "--data data --log log --lose 1s", "TERM", false),
        ("saved-upgraded", "--data data", "TERM", false),
    ];
    at_once(cases, |(name, options, signal, is_local)| {
        let options = if is_local { options.to_owned() } else { format!("--no-local {options}") };
        let (code, errors, address) = train(&place, name, (&options, &options), signal, "one_pass.toml");
        assert_eq!(code, Some(0), "{name}: {errors}");
        assert!(errors.contains(" s (limit 20 s): "), "{name}: {errors}");
        assert_eq!(errors.matches(SURVIVED).count(), 1, "{name}: {errors}");
        assert!(is_local || errors.contains(&format!("server {address} answers again")), "{name}: {errors}");
        assert!(!errors.contains("puts its last save back"), "{name}: {errors}");
        // Of a push that was under way when the server ended, rows may be without their update.
        let (found, expected) =
            (tables(&place.path(&format!("there/{name}/model"))), tables(&place.path("here/run/model")));
        if errors.contains(UNKNOWN) {
            assert!(signal == "KILL", "{name}: {errors}");
            let updates = |tables: &[(String, String, Vec<Row>)]| -> u64 {
                tables.iter().flat_map(|table| &table.2).map(|row| u64::from(row.version)).sum()
            };
            let missing = updates(&expected).checked_sub(updates(&found)).expect("none is applied twice");
            assert!(missing < updates(&expected) / 100, "{name}: {missing} updates are missing");
        } else {
            assert!(found == expected, "{name}: the tables differ");
        }
    });
}

#[test]
fn a_server_that_comes_back_without_the_rows_gets_the_last_save() {
    let place = Place::of_restarts();
    place.json("train c.toml --passes 8 --quiet --json --runs-dir here");
    let cases = [
        ("memory", "--no-local", "--no-local"),
        (
            "logged",
            "--no-local --data data --log log --lose 1s",
            "--no-local --data data --log log --lose 1s",
        ),
        ("forgotten", "--no-local --kept kept", "--no-local --kept kept --forget"),
    ];
    at_once(cases, |(name, options, again)| {
        let (code, errors, address) = train(&place, name, (options, again), "KILL", "c.toml --passes 8");
        assert_eq!(code, Some(0), "{name}: {errors}");
        let said = format!("server {address} was started anew without the rows of this run: {RESTORED}");
        assert_eq!(errors.matches(&said).count(), 1, "{name}: {errors}");
        assert!(!errors.contains(SURVIVED), "{name}: {errors}");
        let (found, expected) = (place.path(&format!("there/{name}/model")), place.path("here/run/model"));
        assert!(tables(&found) == tables(&expected), "{name}: the tables differ");
    });
    let line = "c.toml --passes 8 --on-lost-rows end";
    let (code, errors, _) = train(&place, "ends", ("--no-local", "--no-local"), "KILL", line);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("--resume goes on from what the run has saved"), "{errors}");
    assert!(errors.contains("was started anew") && !errors.contains(RESTORED), "{errors}");
}

#[test]
fn workers_of_one_process_go_on_too() {
    let place = Place::of_restarts();
    let cases = [
        ("threads", KEPT, "one_pass.toml --threads 2", SURVIVED),
        ("asynchronous", KEPT, "job.toml --train long.svm --algorithm ftrl --workers 2", SURVIVED),
        ("lost", "", "job.toml --passes 40 --algorithm ftrl --workers 2", RESTORED),
        ("in-step", "", "job.toml --passes 40 --algorithm ftrl-sync --workers 2", RESTORED),
    ];
    at_once(cases, |(name, options, job, expected)| {
        let options = format!("--no-local {options}");
        let (code, errors, _) = train(&place, name, (&options, &options), "KILL", job);
        assert_eq!(code, Some(0), "{name}: {errors}");
        assert!(errors.contains(expected), "{name}: {errors}");
    });
}
