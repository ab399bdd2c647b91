//! `sanderling keeper` as a process: killed under load, ended by a signal, on a full disk; and `ctl registry`.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sanderling_registry::{Edit, Options, Outcome, Registry, RegistryError, RegistryUrl, Watched};
use serde_json::{Value, json};

/// Time for what takes milliseconds. No test waits this long unless it fails.
const WITHIN: Duration = Duration::from_secs(30);

/// A keeper; it is killed if a test forgets it.
pub(crate) struct Keeper {
    child: Child,
    /// `127.0.0.1:PORT`.
    host: String,
}

impl Keeper {
    /// Starts it below a folder, with the shell's words before it.
    pub(crate) fn start(folder: &Path, before: &str, listen: &str) -> Keeper {
        let program = env!("CARGO_BIN_EXE_sanderling");
        let line = format!("{before} exec '{program}' keeper --data records --listen {listen}");
        let mut child = Command::new("sh")
            .args(["-c", &line])
            .current_dir(folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        match said.trim().strip_prefix("listening at http://") {
            Some(host) => Keeper { host: host.to_owned(), child },
            None => {
                let mut errors = String::new();
                child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
                panic!("{said:?}: {errors}");
            }
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("keeper://{}/ads", self.host)
    }

    pub(crate) fn open(&self) -> Arc<dyn Registry> {
        self.url().parse::<RegistryUrl>().unwrap().open(&Options::default()).unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn signal(&self, name: &str) {
        let done =
            Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The content of a writer's record: a half one would not fit together.
fn content(number: u64) -> Value {
    json!({ "number": number, "text": format!("{number} ").repeat(number as usize % 300) })
}

/// Counts in a record of its own until it is told to stop. No acknowledged change is ever missing. At most one further change
/// is there: that of the answer that did not come.
fn count(registry: &dyn Registry, name: &str, ended: &AtomicBool, acknowledged: &AtomicU64) -> u64 {
    let (mut number, mut revision) = (0, 0);
    let mut is_open = false;
    while !ended.load(Ordering::Relaxed) {
        if is_open {
            let Ok(present) = registry.get(name, WITHIN) else { continue };
            let found = present.as_ref().map_or(0, |record| record.value["number"].as_u64().unwrap());
            assert!(found == number || found == number + 1, "{name}: {found}, and {number} was acknowledged");
            assert_eq!(
                present.as_ref().map_or(&Value::Null, |record| &record.value),
                &match found {
                    0 => Value::Null,
                    found => content(found),
                }
            );
            (number, revision, is_open) = (found, present.map_or(0, |record| record.revision), false);
        }
        match registry.compare_and_set(name, revision, Edit::put(content(number + 1)), WITHIN) {
            Ok(Outcome::Done(next)) => {
                assert!(next > revision, "{name}: revision {next} after {revision}");
                (number, revision) = (number + 1, next);
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Outcome::Other(present)) => panic!("{name}: {present:?}, and {number} was acknowledged"),
            Err(RegistryError::Unknown { .. }) => is_open = true,
            // The next keeper has not started yet.
            Err(RegistryError::Unreachable { .. }) => std::thread::sleep(Duration::from_millis(5)),
            Err(other) => panic!("{other:?}"),
        }
    }
    number
}

#[test]
fn a_killed_keeper_has_all_that_it_acknowledged() {
    const WRITERS: usize = 4;
    const KILLS: u64 = 12;
    let folder = tempfile::tempdir().unwrap();
    let mut keeper = Keeper::start(folder.path(), "", "127.0.0.1:0");
    let (ended, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let host = keeper.host.clone();
    let numbers: Vec<(String, u64)> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (registry, ended, acknowledged) = (keeper.open(), &ended, &acknowledged);
                let name = format!("groups/{writer}");
                scope.spawn(move || {
                    let number = count(&*registry, &name, ended, acknowledged);
                    (name, number)
                })
            })
            .collect();
        for kill in 0..KILLS {
            let deadline = Instant::now() + WITHIN;
            // At another moment of the writes each time.
            let until = acknowledged.load(Ordering::Relaxed) + 20 + kill * 7;
            while acknowledged.load(Ordering::Relaxed) < until {
                assert!(Instant::now() < deadline, "no change is acknowledged");
                std::thread::yield_now();
            }
            keeper.kill();
            keeper = Keeper::start(folder.path(), "", &host);
        }
        ended.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let registry = keeper.open();
    for (name, number) in numbers {
        let found = registry.get(&name, WITHIN).unwrap().unwrap().value["number"].as_u64().unwrap();
        assert!(found == number || found == number + 1, "{name}: {found}, and {number} was acknowledged");
    }
}

#[test]
fn a_signal_ends_it_with_its_watches() {
    let folder = tempfile::tempdir().unwrap();
    let mut keeper = Keeper::start(folder.path(), "", "127.0.0.1:0");
    let registry = keeper.open();
    registry.compare_and_set("config", 0, Edit::put(json!({ "slots": 4096 })), WITHIN).unwrap();
    let watched = registry.watch("", 0, WITHIN).unwrap();
    assert!(matches!(watched, Watched::Changes { changes, .. } if changes.len() == 1));
    let waiting = std::thread::spawn(move || registry.watch("", 1, WITHIN));
    keeper.signal("TERM");
    let mut errors = String::new();
    keeper.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(keeper.child.wait().unwrap().code(), Some(0), "{errors}");
    // It got an answer without changes, or came too late.
    let watched = waiting.join().unwrap();
    assert!(!matches!(&watched, Ok(Watched::Changes { changes, .. }) if !changes.is_empty()), "{watched:?}");
    let second = Keeper::start(folder.path(), "", &keeper.host);
    assert_eq!(second.open().get("config", WITHIN).unwrap().unwrap().value, json!({ "slots": 4096 }));
    let refused = Command::new(env!("CARGO_BIN_EXE_sanderling"))
        .args(["keeper", "--data", "records", "--listen", "127.0.0.1:0"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(
        refused.status.code() == Some(1) && errors.contains("another keeper uses this folder"),
        "{errors}"
    );
}

#[test]
fn a_full_disk_refuses_changes_and_still_reads() {
    const VALUE_BYTES: usize = 20_000;
    let folder = tempfile::tempdir().unwrap();
    // A file that may not grow any more is as a full disk; units are 512 bytes.
    let mut keeper = Keeper::start(folder.path(), "trap '' XFSZ; ulimit -S -f 200;", "127.0.0.1:0");
    let registry = keeper.open();
    let put = |name: &str| {
        registry.compare_and_set(name, 0, Edit::put(Value::from("x".repeat(VALUE_BYTES))), WITHIN)
    };
    let mut written = 0;
    let error = loop {
        match put(&format!("groups/{written}")) {
            Ok(Outcome::Done(_)) => written += 1,
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, RegistryError::Refused { reason, .. } if reason.contains("disk")), "{error:?}");
    assert!(written >= 3, "{written} values of {VALUE_BYTES} bytes");
    assert_eq!(registry.list("groups/", WITHIN).unwrap().records.len(), written);
    assert!(put("small").is_err(), "it is refused again");
    let pid = keeper.child.id().to_string();
    assert!(Command::new("prlimit").args(["--pid", &pid, "--fsize=unlimited"]).status().unwrap().success());
    assert!(matches!(put("groups/after"), Ok(Outcome::Done(_))));
    let host = keeper.host.clone();
    keeper.kill();
    let keeper = Keeper::start(folder.path(), "", &host);
    assert_eq!(keeper.open().list("groups/", WITHIN).unwrap().records.len(), written + 1);
}

#[test]
fn ctl_shows_the_records() {
    let folder = tempfile::tempdir().unwrap();
    let keeper = Keeper::start(folder.path(), "", "127.0.0.1:0");
    let registry = keeper.open();
    for (name, value) in [("config", json!({ "slots": 4 })), ("groups/0", json!({ "epoch": 2 }))] {
        registry.compare_and_set(name, 0, Edit::put(value), WITHIN).unwrap();
    }
    let (url, without) = (keeper.url(), keeper.url().replace("/ads", ""));
    let ctl = |arguments: &str, environment: &str| -> Output {
        Command::new(env!("CARGO_BIN_EXE_sanderling"))
            .arg("ctl")
            .args(arguments.split(' '))
            .env("SANDERLING_REGISTRY", environment)
            .output()
            .unwrap()
    };
    for (arguments, environment, code, expected) in [
        (
            format!("registry list --registry {url}"),
            "",
            0,
            "config  1  {\"slots\":4}\ngroups/0  2  {\"epoch\":2}\n",
        ),
        ("registry list groups/".to_owned(), &*url, 0, "groups/0  2  {\"epoch\":2}\n"),
        ("registry get config --registry registry://ads".to_owned(), &*without, 0, "{\"slots\":4}\n"),
        (
            format!("--json registry get groups/0 --registry {url}"),
            "",
            0,
            "{\"name\":\"groups/0\",\"revision\":2,",
        ),
        (format!("registry get nothing --registry {url}"), "", 1, "there is no record nothing"),
        (format!("registry list --registry {without}"), "", 2, "it names no cluster"),
        ("registry list".to_owned(), "", 2, "Set SANDERLING_REGISTRY="),
        (
            "registry list --registry keeper://127.0.0.1:1/ads".to_owned(),
            "",
            1,
            "registry keeper://127.0.0.1:1/ads",
        ),
    ] {
        let output = ctl(&arguments, environment);
        let text = [&output.stdout[..], &output.stderr[..]].concat();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments}: {text}");
        assert!(text.contains(expected), "{arguments}: {text}");
    }
}
