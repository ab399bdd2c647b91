//! `sanderling train --rank`, each worker a command: the model is the one that one command trains alone, and a worker that is
//! killed is named. Knows not how the workers find each other.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use sanderling_store::{Checkpoint, RowRef, StoreError};
use sanderling_transport::Address;

use super::{LONG, ROWS, Site};

/// Table, key, and weights and state.
pub(crate) type RowBits = (String, u64, Vec<u32>);

/// Commands of one job at a site, by rank.
impl Site {
    /// What the commands read.
    pub(crate) fn write_config(&self) {
        let text = "data = { train = \"rows.svm\" }\ntrain = { batch_size = 64, passes = 2, threads = 1 }\n";
        std::fs::write(self.folder.path().join("c.toml"), text).unwrap();
    }

    pub(crate) fn train(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sanderling"));
        command.args(["train", "c.toml"]).args(arguments.split_whitespace()).current_dir(self.folder.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn train_together(&self, arguments: &str, workers: u32) -> Vec<Child> {
        (0..workers).map(|rank| self.train_as(arguments, rank, workers)).collect()
    }

    /// One of the workers.
    pub(crate) fn train_as(&self, arguments: &str, rank: u32, workers: u32) -> Child {
        let join = |texts: Vec<String>| texts.join(",");
        let servers = join(self.addresses.iter().map(Address::to_string).collect());
        let host = |rank| format!("unix:{}/host-{rank}", self.folder.path().display());
        let hosts = join((0..workers).map(host).collect());
        self.train(&format!("{arguments} --ps {servers} --hosts {hosts} --rank {rank}")).spawn().unwrap()
    }

    /// Waits until a worker listens for others, and so waits for them.
    fn wait_until_it_listens(&self, rank: u32) {
        let socket = self.folder.path().join(format!("host-{rank}"));
        let until = Instant::now() + LONG;
        while UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < until, "nobody listens at {}", socket.display());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Every row that was saved, by table and key, to the bit.
    pub(crate) fn model(&self, name: &str) -> Vec<RowBits> {
        let checkpoint = Checkpoint::open(self.folder.path().join(format!("runs/{name}/model"))).unwrap();
        let mut rows = Vec::new();
        for table in checkpoint.tables() {
            let note = |row: RowRef<'_>| {
                let bits = row.weights.iter().chain(row.state).map(|value| value.to_bits()).collect();
                rows.push((table.name.clone(), row.key, bits));
                Ok::<(), StoreError>(())
            };
            checkpoint.for_each_row(&table.name, note).unwrap();
        }
        rows.sort();
        rows
    }
}

pub(crate) fn ended_well(child: Child) -> String {
    let overdue = Overdue::of(&child);
    let output = child.wait_with_output().unwrap();
    // Its number is another's from here on.
    drop(overdue);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    errors
}

/// Kills a command that takes far too long, or whose test fails, unless this is dropped before: whoever waits for its end fails.
pub(crate) struct Overdue {
    id: u32,
    _over: Sender<()>,
}

impl Overdue {
    pub(crate) fn of(child: &Child) -> Overdue {
        let (over, is_over) = channel();
        let id = child.id();
        std::thread::spawn(move || {
            if is_over.recv_timeout(2 * LONG) == Err(RecvTimeoutError::Timeout) {
                kill(id);
            }
        });
        Overdue { id, _over: over }
    }
}

impl Drop for Overdue {
    fn drop(&mut self) {
        if std::thread::panicking() {
            kill(self.id);
        }
    }
}

/// It may have ended.
fn kill(id: u32) {
    drop(Command::new("kill").args(["-KILL", &id.to_string()]).status());
}

/// What a command says on standard error, as it says it. The command is killed if it takes far too long.
pub(crate) struct Said {
    lines: std::io::Lines<BufReader<ChildStderr>>,
    _overdue: Overdue,
}

impl Said {
    pub(crate) fn of(child: &mut Child) -> Said {
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Said { lines, _overdue: Overdue::of(child) }
    }

    /// The first line with these words. That a worker is lost is none that anybody waits for: the others may go on without end.
    pub(crate) fn wait_for(&mut self, part: &str) -> String {
        let mut others = Vec::new();
        for line in self.lines.by_ref().map_while(Result::ok) {
            assert!(!line.contains(" is lost in "), "{line}");
            if line.contains(part) {
                return line;
            }
            others.push(line);
        }
        panic!("it ended without saying {part:?}, but {others:?}")
    }
}

/// Sends a signal to a command that waits for others; it ends, saying so.
fn interrupt(signal: &str, mut child: Child, mut said: Said, words: &str) {
    super::stops::signal(signal, child.id());
    said.wait_for(words);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn one_signal_ends_a_worker_that_waits_for_others_and_another_one_may_come_in_its_place() {
    let site = Site::new(ROWS / 16);
    site.write_config();
    let arguments = "--algorithm ftrl-sync --name together";
    let mut first = site.train_as(arguments, 0, 3);
    let said = Said::of(&mut first);
    site.wait_until_it_listens(0);
    interrupt("-TERM", first, said, "worker 0 was stopped while it waited for workers [1, 2] of 3");
    assert!(!site.folder.path().join("runs/together/model").exists());

    let mut first = site.train_as(arguments, 0, 3);
    let mut last = site.train_as(arguments, 2, 3);
    let (mut said, mut last_said) = (Said::of(&mut first), Said::of(&mut last));
    // So it has reached the first one.
    last_said.wait_for("worker 1 at unix:");
    interrupt("-INT", last, last_said, "worker 2 was stopped while it waited for workers [1] of 3");
    said.wait_for("it was there and has gone; it is waited for");
    let others = [1, 2].map(|rank| site.train_as(arguments, rank, 3));
    others.into_iter().for_each(|child| drop(ended_well(child)));
    said.wait_for("pass 2 trained");
    assert!(first.wait().unwrap().success());
    ended_well(site.train("--algorithm ftrl-sync --quiet --name alone").spawn().unwrap());
    assert!(site.model("alone") == site.model("together"), "the models differ");
}

/// Nothing that keeps workers from meeting takes an earlier run from them.
#[test]
fn an_earlier_run_goes_on_after_a_start_that_comes_to_nothing() {
    let site = Site::new(ROWS / 16);
    site.write_config();
    let arguments = "--algorithm ftrl-sync --name again";
    site.train_together(arguments, 2).into_iter().for_each(|child| drop(ended_well(child)));

    let mut first = site.train_as(arguments, 0, 2);
    let said = Said::of(&mut first);
    site.wait_until_it_listens(0);
    interrupt("-INT", first, said, "worker 0 was stopped while it waited for workers [1] of 2");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    for (host, part) in [(taken.as_str(), "already in use"), ("0.0.0.0:7399", "not a loopback address")] {
        let servers: Vec<String> = site.addresses.iter().map(Address::to_string).collect();
        let hosts = format!("--ps {} --hosts {host},127.0.0.1:1 --rank 0", servers.join(","));
        let output = site.train(&format!("{arguments} {hosts}")).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(part), "{host}: {errors}");
    }

    let resumed = format!("{arguments} --resume --passes 3");
    for child in site.train_together(&resumed, 2) {
        let said = ended_well(child);
        assert!(said.contains("pass 3 trained") && !said.contains("pass 1 trained"), "{said}");
    }
}

#[test]
fn commands_train_together_what_one_trains_alone_and_name_one_that_is_killed() {
    let site = Site::new(ROWS / 8);
    site.write_config();
    for algorithm in ["ftrl-sync", "fm-sync-no-shuffle"] {
        let arguments = format!("--algorithm {algorithm} --quiet");
        ended_well(site.train(&format!("{arguments} --name alone")).spawn().unwrap());
        let together = site.train_together(&format!("{arguments} --name together"), 2);
        together.into_iter().for_each(|child| drop(ended_well(child)));
        let (alone, together) = (site.model("alone"), site.model("together"));
        assert!(alone.len() > 1000 && alone == together, "{algorithm}: the models differ");
    }
    for child in site.train_together("--algorithm ftrl --quiet --name own-ways", 2) {
        ended_well(child);
    }
    assert!(site.model("own-ways").len() > 1000);

    // Nobody is further ahead than the bound, and how far is in the summary of the first one.
    let bounded = "--algorithm ftrl --staleness 1 --batch-size 16 --name bounded";
    let said: Vec<String> = site.train_together(bounded, 3).into_iter().map(ended_well).collect();
    assert!(
        said[0].contains("at most 1 minibatches ahead") && said[0].contains("pushes missed"),
        "{}",
        said[0]
    );
    let summary = std::fs::read(site.folder.path().join("runs/bounded/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
    let staleness = summary["timing"]["staleness"].as_array().unwrap();
    let pushes: u64 = staleness.iter().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(Some(pushes), summary["steps"].as_u64());
    // Of two others, each is at most so many minibatches behind, ahead or at the same one.
    assert!(pushes > 100 && staleness.len() <= 2 * (2 + 1) + 1, "{staleness:?}");

    // So many passes that nobody comes to their end.
    let endless = "--algorithm ftrl-sync --passes 1000000 --name stopped --on-worker-loss stop";
    let mut children = site.train_together(endless, 2);
    let _overdue: Vec<Overdue> = children.iter().map(Overdue::of).collect();
    let mut second = children.pop().unwrap();
    let mut said = BufReader::new(second.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains("pass 1")), "it ended before");
    second.kill().unwrap();
    second.wait().unwrap();
    let output = children.pop().unwrap().wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("worker 1 at unix:"), "{errors}");

    for (arguments, part) in [
        ("--algorithm ftrl --hosts 127.0.0.1:1,127.0.0.1:2 --rank 0", "--ps"),
        ("--ps 127.0.0.1:1 --hosts 127.0.0.1:1,127.0.0.1:2 --rank 0", "--algorithm"),
        ("--algorithm ftrl --ps 127.0.0.1:1 --hosts 127.0.0.1:1,127.0.0.1:2 --rank 2", "--rank"),
        ("--algorithm ftrl --ps 127.0.0.1:1 --hosts shm:a,shm:b --rank 0", "--hosts"),
        ("--algorithm ftrl --ps 127.0.0.1:1 --hosts unix:a,unix:b --rank 0 --workers 3", "--workers"),
    ] {
        let output = site.train(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && errors.contains(part), "{arguments}: {errors}");
    }
}

#[test]
fn workers_on_hosts_go_on_where_the_run_stands() {
    let site = Site::new(ROWS / 16);
    site.write_config();
    let arguments = "--algorithm ftrl-sync --name together";
    let all = |more: &str| -> Vec<String> {
        site.train_together(&format!("{arguments} {more}"), 2).into_iter().map(ended_well).collect()
    };
    all("");
    for (rank, said) in all("--passes 3 --resume").iter().enumerate() {
        let counts_on = said.contains("pass 3 trained") && !said.contains("pass 1 trained");
        assert!(counts_on, "worker {rank}: {said}");
    }
    let ended = site.model("together");
    ended_well(site.train("--algorithm ftrl-sync --quiet --passes 3 --name alone").spawn().unwrap());
    assert!(site.model("alone") == ended, "the models differ");
    // With nothing left to do, nobody waits for the first worker in vain.
    for (rank, said) in all("--passes 3 --resume").iter().enumerate() {
        assert!(!said.contains("trained:"), "worker {rank}: {said}");
    }
    assert!(site.model("together") == ended);
}

#[test]
fn why_the_first_worker_could_not_start_those_that_wait_for_it_hear() {
    let site = Site::new(ROWS / 16);
    let text = "data = { train = \"rows.svm\", valid = \"nowhere.svm\" }\ntrain = { batch_size = 64 }\n";
    std::fs::write(site.folder.path().join("c.toml"), text).unwrap();
    let start = |rank| {
        let mut child = site.train_as("--algorithm ftrl-sync --quiet", rank, 3);
        let said = Said::of(&mut child);
        (child, said)
    };
    let mut others = [1, 2].map(start);
    for (_, said) in &mut others {
        said.wait_for("worker 0 at unix:");
    }
    for (rank, (mut child, mut said)) in std::iter::once(start(0)).chain(others).enumerate() {
        let line = said.wait_for("nowhere.svm");
        assert_eq!(
            line.contains("worker 0 at unix:") && line.contains("could not start"),
            rank > 0,
            "{line}"
        );
        assert!(!child.wait().unwrap().success());
    }
}

#[test]
fn what_the_first_worker_cannot_judge_all_hear() {
    let site = Site::new(ROWS / 16);
    let rows = std::fs::read_to_string(site.folder.path().join("rows.svm")).unwrap();
    // So far behind that what is read of it before the first pass is whole.
    let valid = rows.repeat((1 << 20) / rows.len()) + "1 no:key\n";
    std::fs::write(site.folder.path().join("valid.svm"), valid).unwrap();
    let text = "data = { train = \"rows.svm\", valid = \"valid.svm\" }\ntrain = { batch_size = 64 }\n";
    std::fs::write(site.folder.path().join("c.toml"), text).unwrap();
    let children = site.train_together("--algorithm ftrl-sync --quiet", 2);
    let _overdue: Vec<Overdue> = children.iter().map(Overdue::of).collect();
    for (rank, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains("valid.svm"), "worker {rank}: {errors}");
        let told = errors.contains("after pass 1 worker 0 could not go on");
        assert_eq!(told, rank == 1, "worker {rank}: {errors}");
    }
}
