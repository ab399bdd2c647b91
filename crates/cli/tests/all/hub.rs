//! `sanderling hub` as processes of their own, with trainers that are processes, too: every row once per pass though some are
//! killed, a position to go on from, and errors that say what is wrong where they are looked for.
#![allow(clippy::print_stdout, reason = "a trainer says on standard output where it is")]

mod bucket;
mod killed;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::Process;
use sanderling_hub::{Delivered, HubError, Next, SubscribeOptions, Subscription, hub_addresses};
use sanderling_transport::TlsClient;

/// In the environment of a process that is only a trainer: its hubs, its name, after how many minibatches it stops to go on,
/// and the file in which it notes what it has used.
const TRAINER_OF: &str = "SANDERLING_TEST_TRAINER_OF";
const NAME: &str = "SANDERLING_TEST_TRAINER_NAME";
const STOPS: &str = "SANDERLING_TEST_TRAINER_STOPS";
const NOTES: &str = "SANDERLING_TEST_TRAINER_NOTES";

const ROWS: u64 = 12_000;
/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// Lines of the rows, whose key is their number.
fn lines(rows: std::ops::Range<u64>) -> String {
    // A field that nobody asks for makes the lines long, and so the blocks many.
    let padding = "x".repeat(100);
    rows.map(|row| format!("{},{row},{padding}\n", row % 2)).collect()
}

const HEAD: &str = "label,id,padding\n";

/// A folder with the rows over so many files, and with a spec.
fn folder(files: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("spec.toml"), "[[feature]]\nname = \"id\"\nkey = \"raw\"").unwrap();
    for file in 0..files {
        let rows = ROWS * file / files..ROWS * (file + 1) / files;
        std::fs::write(dir.path().join(format!("day_{file}.csv")), HEAD.to_owned() + &lines(rows)).unwrap();
    }
    dir
}

fn hub(dir: &Path, options: &str) -> Process {
    let command = format!("hub --listen 127.0.0.1:0 --spec spec.toml --batch-size 100 {options}");
    Process::start_command(dir, "", &command, 1)
}

fn addresses(hubs: &[&Process]) -> String {
    let all: Vec<String> = hubs.iter().map(|hub| hub.addresses[0].to_string()).collect();
    format!("hub://{}", all.join(","))
}

fn open(hubs: &str, name: &str) -> Subscription {
    Subscription::open(&hub_addresses(hubs).unwrap(), name, &SubscribeOptions::default()).unwrap()
}

/// The next one; None when all is over.
fn next(subscription: &mut Subscription) -> Option<Delivered> {
    match subscription.next(soon()).unwrap() {
        Next::Batch(delivered) => Some(delivered),
        Next::Over => None,
        Next::Wait => panic!("nothing came for {PATIENCE:?}"),
    }
}

/// Pass and rows of a minibatch, as a line.
fn line_of(delivered: &Delivered) -> String {
    let ids: Vec<String> = delivered.batch.rows().keys(0).iter().map(u64::to_string).collect();
    format!("{} {}\n", delivered.pass, ids.join(" "))
}

/// Every row of every pass is in the lines once.
fn check_each_once(notes: &str, passes: u64) {
    let mut used: BTreeMap<(u64, u64), u32> = BTreeMap::new();
    for line in notes.lines() {
        let (pass, ids) = line.split_once(' ').unwrap();
        for id in ids.split(' ') {
            *used.entry((pass.parse().unwrap(), id.parse().unwrap())).or_default() += 1;
        }
    }
    let all = (0..passes).flat_map(|pass| (0..ROWS).map(move |row| ((pass, row), 1)));
    assert!(used.into_iter().eq(all), "some rows were not used once");
}

/// What the process of a trainer does; as a test, nothing.
#[test]
fn a_process_that_is_only_a_trainer() {
    let Ok(hubs) = std::env::var(TRAINER_OF) else { return };
    let (name, notes) = (std::env::var(NAME).unwrap(), std::env::var(NOTES).unwrap());
    let stops: usize = std::env::var(STOPS).unwrap().parse().unwrap();
    let mut notes = OpenOptions::new().create(true).append(true).open(notes).unwrap();
    let (mut subscription, mut seen) = (open(&hubs, &name), 0);
    while let Some(delivered) = next(&mut subscription) {
        if seen == stops {
            // What was noted so far the hubs know; this one, and those that wait behind it, are lost with the process.
            subscription.settle(soon()).unwrap();
            println!("\nstopped");
            std::thread::sleep(2 * PATIENCE);
        }
        notes.write_all(line_of(&delivered).as_bytes()).unwrap();
        subscription.acknowledge(delivered.hub, delivered.number);
        subscription.reuse(delivered.batch);
        seen += 1;
    }
}

/// A trainer; killed if a test forgets it.
struct Trainer(Child);

impl Trainer {
    fn start(dir: &Path, hubs: &str, name: &str, stops: usize) -> Trainer {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "hub::a_process_that_is_only_a_trainer", "--nocapture"])
            .envs([(TRAINER_OF, hubs), (NAME, name), (STOPS, &stops.to_string())])
            .env(NOTES, dir.join(format!("notes-{name}")))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Trainer(child)
    }

    fn wait_until_stopped(&mut self) {
        let said = BufReader::new(self.0.stdout.as_mut().unwrap()).lines();
        assert!(said.map_while(Result::ok).any(|line| line == "stopped"), "it ended before it stopped");
    }

    fn end(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn each_row_is_used_once_though_a_trainer_is_killed() {
    for (files, timeout) in [(4, "60s"), (1, "0s")] {
        let dir = folder(files);
        let options = |share| {
            format!(
                "--share {share}/2 --passes 2 --shuffle-rows 1000 --trainer-timeout {timeout} 'day_*.csv'"
            )
        };
        let hubs = [hub(dir.path(), &options(0)), hub(dir.path(), &options(1))];
        let at = addresses(&[&hubs[0], &hubs[1]]);
        let mut victim = Trainer::start(dir.path(), &at, "a", 7);
        victim.wait_until_stopped();
        let other = Trainer::start(dir.path(), &at, "b", usize::MAX);
        drop(victim);
        // It comes back for what it had; or the other gets it, as does whoever comes.
        let again = (timeout == "60s").then(|| Trainer::start(dir.path(), &at, "a", usize::MAX));
        other.end();
        if let Some(again) = again {
            again.end();
        }
        let notes = |name| std::fs::read_to_string(dir.path().join(name)).unwrap();
        check_each_once(&(notes("notes-a") + &notes("notes-b")), 2);
        for hub in hubs {
            let (status, said) = hub.end();
            assert!(status.success() && said.contains("all minibatches were used"), "{said}");
        }
    }
}

#[test]
fn a_hub_that_is_stopped_goes_on_from_its_position() {
    let dir = folder(3);
    let options = "--position position --passes 2 --threads 3 day_0.csv day_1.csv day_2.csv";
    let mut notes = String::new();
    for stop_after in [30, 100, usize::MAX] {
        let hub = hub(dir.path(), options);
        let mut subscription = open(&addresses(&[&hub]), "t");
        let mut seen = 0;
        while seen < stop_after {
            let Some(delivered) = next(&mut subscription) else { break };
            notes += &line_of(&delivered);
            subscription.acknowledge(delivered.hub, delivered.number);
            seen += 1;
        }
        subscription.settle(soon()).unwrap();
        if stop_after < usize::MAX {
            hub.signal("TERM");
        }
        let (status, said) = hub.end();
        assert!(status.success(), "{said}");
        assert!(said.contains("stopped before the end") == (stop_after < usize::MAX), "{said}");
    }
    check_each_once(&notes, 2);
    // A position of something else is not gone on from.
    let line = format!("hub --listen 127.0.0.1:0 --spec spec.toml --batch-size 50 {options}");
    let (code, said) = run(dir.path(), &line);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("position: it is a position with batch 100, and this is 50"), "{said}");
}

/// Exit code and standard error of a command that does not begin to serve.
fn run(dir: &Path, line: &str) -> (Option<i32>, String) {
    let line = format!("exec '{}' {line}", env!("CARGO_BIN_EXE_sanderling"));
    let done = Command::new("sh").args(["-c", &line]).current_dir(dir).output().unwrap();
    (done.status.code(), String::from_utf8(done.stderr).unwrap())
}

#[test]
fn input_that_cannot_be_read_is_said_by_hub_and_trainer() {
    let dir = folder(1);
    let path = dir.path().join("day_0.csv");
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"1,seven,x\n").unwrap();
    let hub = hub(dir.path(), "day_0.csv");
    let address = hub.addresses[0].to_string();
    let mut subscription = open(&address, "t");
    let error = loop {
        match subscription.next(soon()) {
            Ok(Next::Batch(delivered)) => subscription.acknowledge(delivered.hub, delivered.number),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    let expected = format!("day_0.csv:{}: column id", ROWS + 2);
    assert!(
        matches!(&error, HubError::Failed { hub, reason } if *hub == address && reason.contains(&expected))
    );
    // While it is there, the hub waits for it to go.
    drop(subscription);
    let (status, said) = hub.end();
    assert_eq!(status.code(), Some(3), "{said}");
    assert!(said.contains(&format!("cannot go on: {expected}")), "{said}");
    assert!(said.contains(&format!("error: {expected}")), "{said}");

    std::fs::write(dir.path().join("empty"), " \n").unwrap();
    std::fs::write(dir.path().join("no_rows.csv"), "label,id\n").unwrap();
    std::fs::write(dir.path().join("few.csv"), HEAD.to_owned() + &lines(0..10)).unwrap();
    std::fs::write(dir.path().join("bad_rows.csv"), "label,id\n1,x\n").unwrap();
    for (options, code, expected) in [
        ("day_7.csv", 1, "day_7.csv"),
        ("--share 2/2 day_0.csv", 2, "share: 2/2"),
        ("--assign turns day_0.csv", 2, "--assign"),
        ("--depth 0 day_0.csv", 2, "depth: 0"),
        ("--depth-bytes 0 day_0.csv", 2, "depth_bytes: 0"),
        ("--position nowhere/position day_0.csv", 1, "nowhere/position"),
        ("--token-file empty day_0.csv", 2, "--token-file: empty is empty"),
        ("--trainer-timeout 100ms no_rows.csv", 3, "no_rows.csv: no rows to work on"),
        (
            "--trainer-timeout 100ms bad_rows.csv --on-bad-row skip",
            3,
            "bad_rows.csv: no rows to work on: all 1 were bad, the first: ",
        ),
        // Nobody has a row: neither where each hub has files of its own, nor where they share one.
        ("--trainer-timeout 100ms --share 1/2 no_rows.csv no_rows.csv", 3, "no_rows.csv: no rows to work on"),
        ("--trainer-timeout 100ms --share 1/2 no_rows.csv", 3, "no_rows.csv: no rows to work on"),
        // Another hub has some.
        (
            "--trainer-timeout 100ms --share 1/2 few.csv no_rows.csv",
            0,
            "warning: share 1/2 of no_rows.csv: no rows to work on; this hub serves nothing",
        ),
        (
            "--trainer-timeout 100ms --share 1/2 few.csv bad_rows.csv --on-bad-row skip",
            0,
            "warning: share 1/2 of bad_rows.csv: no rows to work on: all 1 were bad, the first: ",
        ),
        (
            "--trainer-timeout 100ms --share 1/2 few.csv --passes 2",
            0,
            "warning: share 1/2 of few.csv: no rows",
        ),
        ("", 2, "no input: name files"),
        ("-", 2, "format: the name of - does not tell it; it is one of libsvm, libffm, csv"),
    ] {
        let (found, said) = run(dir.path(), &format!("hub --listen 127.0.0.1:0 --spec spec.toml {options}"));
        assert!(found == Some(code) && said.contains(expected), "{options}: {found:?} {said}");
        assert_eq!(said.matches("warning").count(), usize::from(code == 0), "{options}: {said}");
    }
    for (data, code, expected) in [("day_7.csv", 1, "day_7.csv: "), ("day_0.csv", 2, "name them with --spec")]
    {
        let (found, said) = run(dir.path(), &format!("hub --listen 127.0.0.1:0 {data}"));
        assert!(found == Some(code) && said.contains(expected), "{data}: {found:?} {said}");
    }
}

/// The counters of a hub.
fn counters(hub: &Process) -> BTreeMap<String, u64> {
    crate::process::counters(&hub.addresses[0])
}

/// What a hub says to Prometheus, at the page that it has named.
fn metrics(line: &str) -> String {
    let address = line.strip_prefix("metrics at http://").unwrap().strip_suffix("/metrics").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

#[test]
fn reading_waits_for_a_slow_trainer() {
    let dir = folder(2);
    let options = "--depth 5 --window 3 --print-every 10ms --metrics 127.0.0.1:0 'day_*.csv'";
    let mut hub = hub(dir.path(), options);
    let page = hub.line();
    let mut subscription = open(&addresses(&[&hub]), "slow");
    let mut notes = String::new();
    let mut looks = 0;
    while let Some(delivered) = next(&mut subscription) {
        notes += &line_of(&delivered);
        if looks < 10 {
            looks += 1;
            let counters = counters(&hub);
            assert!(counters["ready_max"] <= 5 && counters["unacknowledged"] <= 3, "{counters:?}");
            assert_eq!(counters["trainer slow here"], 1);
            let metrics = metrics(&page);
            let rows = "sanderling_hub_trainer_rows_total{trainer=\"slow\"} ";
            let rows = metrics.lines().find_map(|line| line.strip_prefix(rows)).expect(&metrics);
            let rows: u64 = rows.parse().unwrap();
            assert!((100 * looks..=100 * (looks + 2)).contains(&rows), "{rows} after {looks}");
        }
        subscription.acknowledge(delivered.hub, delivered.number);
    }
    check_each_once(&notes, 1);
    let (status, said) = hub.end();
    assert!(status.success(), "{said}");
    assert!(said.contains(&format!(": {} minibatches, {ROWS} rows", ROWS / 100)), "{said}");
}

/// Rows that come from hubs of which each is given so many rows at a time, through a pipe: what came after each time.
fn throttled(hubs: usize, times: u64) -> Vec<u64> {
    /// Given at a time; and what a hub may keep: it takes whole blocks of 256 KiB, and makes whole minibatches.
    const GIVEN: u64 = 10_000;
    const KEPT: u64 = 4_000;
    let dir = folder(0);
    let start = |index: usize| {
        let pipe = dir.path().join(format!("pipe_{index}.csv"));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let hub = hub(dir.path(), &format!("pipe_{index}.csv"));
        // Opens once the hub reads.
        let mut pipe = File::options().write(true).open(pipe).unwrap();
        pipe.write_all(HEAD.as_bytes()).unwrap();
        (hub, pipe)
    };
    let mut hubs: Vec<(Process, File)> = (0..hubs).map(start).collect();
    let at = addresses(&hubs.iter().map(|(hub, _)| hub).collect::<Vec<_>>());
    let mut came = vec![0; hubs.len()];
    let mut totals = Vec::new();
    // A hub says what its features are before it has rows.
    let mut subscription = open(&at, "t");
    let mut take = |came: &mut Vec<u64>| {
        let Some(delivered) = next(&mut subscription) else { return false };
        came[delivered.hub] += delivered.batch.len() as u64;
        subscription.acknowledge(delivered.hub, delivered.number);
        true
    };
    for time in 0..times {
        for (_, pipe) in &mut hubs {
            pipe.write_all(lines(time * GIVEN..(time + 1) * GIVEN).as_bytes()).unwrap();
        }
        while came.iter().any(|rows| rows + KEPT < (time + 1) * GIVEN) {
            assert!(take(&mut came), "it is over too early");
        }
        totals.push(came.iter().sum());
    }
    let hubs: Vec<Process> = hubs.into_iter().map(|(hub, _)| hub).collect();
    while take(&mut came) {}
    assert!(came.iter().all(|rows| *rows == times * GIVEN), "{came:?}");
    for hub in hubs {
        assert!(hub.end().0.success());
    }
    totals
}

#[test]
fn two_hubs_of_slow_sources_bring_twice_as_much() {
    let (one, two) = (throttled(1, 3), throttled(2, 3));
    for (one, two) in one.iter().zip(&two) {
        // Whatever is still on its way at either.
        assert!(two.abs_diff(2 * one) <= 2 * 4_000, "{one} {two}");
    }
    let (one, two) = (one[2] as f64, two[2] as f64);
    assert!((1.6..2.4).contains(&(two / one)), "{one} {two}");
}

#[test]
fn over_tls_only_those_with_the_token_are_served() {
    let dir = folder(1);
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    write("cert.pem", &made.cert.pem());
    write("key.pem", &made.signing_key.serialize_pem());
    write("token", "secret\n");
    std::fs::set_permissions(dir.path().join("token"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let hub = hub(dir.path(), "--cert-file cert.pem --key-file key.pem --token-file token day_0.csv");
    let at = hub_addresses(&addresses(&[&hub])).unwrap();
    let tls = TlsClient::from_ca_file(&dir.path().join("cert.pem")).unwrap();
    let good = SubscribeOptions { token: "secret".into(), tls: Some(tls), ..SubscribeOptions::default() };
    let wrong = SubscribeOptions { token: "secrets".into(), ..good.clone() };
    let error = Subscription::open(&at, "t", &wrong).unwrap_err();
    assert!(matches!(&error, HubError::Refused { reason, .. } if reason.contains("token")), "{error}");
    // What does not pass by itself is not waited for.
    let patience = Duration::from_secs(600);
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    write("other.pem", &other.cert.pem());
    let other = TlsClient::from_ca_file(&dir.path().join("other.pem")).unwrap();
    for (tls, expected) in [(None, "it talks TLS"), (Some(other), "TLS: invalid peer certificate")] {
        let unfit = SubscribeOptions { tls, patience, ..good.clone() };
        let error = Subscription::open(&at, "t", &unfit).unwrap_err();
        assert!(matches!(&error, HubError::Tls(reason) if reason.contains(expected)), "{error}");
    }
    let (mut subscription, mut notes) = (Subscription::open(&at, "t", &good).unwrap(), String::new());
    while let Some(delivered) = next(&mut subscription) {
        notes += &line_of(&delivered);
        subscription.acknowledge(delivered.hub, delivered.number);
    }
    check_each_once(&notes, 1);
    assert!(hub.end().0.success());

    let (code, said) = run(dir.path(), "hub --listen 0.0.0.0:0 --spec spec.toml --expose day_0.csv");
    assert!(code == Some(2) && said.contains("--token-file, or --insecure"), "{said}");
}
