//! Two servers and a trainer on hosts of their own, as far as the network goes: namespaces, between which packets are
//! delayed, lost and cut off. Training over TLS gives the model that it gives in one process, or says why it does not.
//!
//! It needs root, `ip`, `python3` and `/dev/net/tun`; where one is not to be had it prints SKIPPED and why. The cable is
//! a program (`hosts/wire.py`), so that it needs nothing of the kernel's traffic control and is cut at a packet, not at a
//! time.
#![allow(clippy::print_stderr, reason = "a skipped test is to be seen")]

mod cluster;

use std::io::{BufRead, BufReader, Lines, Read};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

const WIRE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/hosts/wire.py");
const ADULT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/adult");
const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/adult_fm.toml");
const TOKEN: &str = "not to be told";

/// A command line's result, or why there is none.
fn tried(line: &str) -> Result<(), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let done = Command::new(words[0]).args(&words[1..]).output();
    match done.map_err(|error| format!("{line}: {error}"))? {
        Output { status, .. } if status.success() => Ok(()),
        Output { stderr, .. } => Err(format!("{line}: {}", String::from_utf8_lossy(&stderr).trim())),
    }
}

fn must(line: &str) {
    tried(line).unwrap();
}

/// A network namespace; it goes with the last process in it.
struct Host(String);

impl Host {
    fn new(what: &str) -> Result<Host, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("sanderling-{}-{}-{what}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        tried(&format!("ip netns add {name}")).map(|()| Host(name))
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).arg(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn sanderling(&self, folder: &Path, line: &str) -> Child {
        let mut command = self.command(env!("CARGO_BIN_EXE_sanderling"));
        command.args(line.split_whitespace()).current_dir(folder).spawn().unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = tried(&format!("ip netns delete {}", self.0));
    }
}

/// A process that ends with the test.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    stdin: Option<ChildStdin>,
}

impl Process {
    fn new(mut child: Child) -> Process {
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let stdin = child.stdin.take();
        Process { child, lines, stdin }
    }

    /// The next line of its output; what it says instead if there is none.
    fn line(&mut self) -> Result<String, String> {
        if let Some(line) = self.lines.next() {
            return Ok(line.unwrap());
        }
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        Err(errors)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// When a cable is cut, and for how long.
#[derive(Clone, Copy)]
struct Cut {
    at_packet: u32,
    /// 0: for ever.
    for_ms: u32,
}

/// Lays a cable between two hosts; the addresses of its ends.
fn lay(number: u8, from: &Host, to: &Host, cut: Cut) -> Result<(Process, Ipv4Addr), String> {
    let (first, second) = (format!("near{number}"), format!("far{number}"));
    let Cut { at_packet, for_ms } = cut;
    let words = format!("{WIRE} {first} {second} 2 0.005 {number} {at_packet} {for_ms}");
    let mut wire = Process::new(from.command("python3").args(words.split(' ')).spawn().unwrap());
    if wire.line()? != "ready" {
        return Err("the cable is not ready".to_owned());
    }
    let far = Ipv4Addr::new(10, 77, number, 2);
    must(&format!("ip -n {} link set {second} netns {}", from.0, to.0));
    must(&format!("ip -n {} addr add 10.77.{number}.1/24 dev {first}", from.0));
    must(&format!("ip -n {} addr add {far}/24 dev {second}", to.0));
    must(&format!("ip -n {} link set {first} up", from.0));
    must(&format!("ip -n {} link set {second} up", to.0));
    Ok((wire, far))
}

/// What the trainer said, and what became of the first cable.
struct Run {
    done: Output,
    cable: Vec<String>,
}

impl Run {
    fn errors(&self) -> String {
        String::from_utf8_lossy(&self.done.stderr).into_owned()
    }

    /// What follows from the data and the model alone.
    fn result(&self) -> Value {
        assert!(self.done.status.success(), "{}", self.errors());
        result(&self.done)
    }
}

fn result(done: &Output) -> Value {
    let text = String::from_utf8_lossy(&done.stdout);
    let all: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let same = ["auc", "logloss", "prob_mean", "real_mean", "examples", "rows"];
    same.iter().map(|&name| (name.to_owned(), all[name].clone())).collect::<serde_json::Map<_, _>>().into()
}

/// Few large steps: each takes as long as the network does.
fn train_line() -> String {
    let data = format!("--train {ADULT}/adult.data.gz --valid {ADULT}/adult.test.gz");
    format!("train {CONFIG} {data} --name run --passes 1 --batch-size 512 --json --quiet")
}

/// Trains from one host on the servers of two others. `Err`: there can be no such hosts here.
fn train(cut: Cut, options: &str) -> Result<Run, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let hosts = [Host::new("server")?, Host::new("server")?];
    let trainer = Host::new("trainer")?;
    let never = Cut { at_packet: u32::MAX, for_ms: 0 };
    let wires = [lay(0, &trainer, &hosts[0], cut)?, lay(1, &trainer, &hosts[1], never)?];
    let names: Vec<String> = wires.iter().map(|(_, far)| far.to_string()).collect();
    let made = rcgen::generate_simple_self_signed(names.clone()).unwrap();
    std::fs::write(path("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).unwrap();
    std::fs::write(path("token"), TOKEN).unwrap();
    std::fs::set_permissions(path("token"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut servers = Vec::new();
    let mut addresses = Vec::new();
    for (shard, (host, name)) in hosts.iter().zip(&names).enumerate() {
        let line = format!(
            "ps --listen {name}:0 --shard {shard}/2 --expose --cert-file cert.pem --key-file key.pem --token-file token \
             --no-local --threads 1"
        );
        let mut server = Process::new(host.sanderling(folder.path(), &line));
        let said = server.line().unwrap();
        addresses.push(said.strip_prefix("listening at ").unwrap().to_owned());
        servers.push(server);
    }
    let servers_line =
        format!("--ps {} --ps-ca-file cert.pem --ps-token-file token --ps-no-local", addresses.join(","));
    let child = trainer.sanderling(folder.path(), &format!("{} {servers_line} {options}", train_line()));
    let done = child.wait_with_output().unwrap();
    let [(mut wire, _), _] = wires;
    // It ends with its input, and then has said all.
    drop(wire.stdin.take());
    let cable = std::iter::from_fn(|| wire.line().ok()).collect();
    Ok(Run { done, cable })
}

/// Says that a test could not be made here, and why.
fn skip(part: &str, reason: &str) {
    eprintln!("SKIPPED {part}: {reason}");
}

#[test]
fn a_cut_that_heals_in_time_changes_nothing() {
    // TCP tries again after twice the time each time: of a longer cut it may learn too late, if a packet is lost after it.
    let run = match train(Cut { at_packet: 400, for_ms: 1000 }, "") {
        Ok(run) => run,
        Err(reason) => return skip("several hosts, cut and healed", &reason),
    };
    let found = run.result();
    assert_eq!(run.cable, ["cut", "healed", "more"], "in the middle of training");
    let folder = tempfile::tempdir().unwrap();
    let embedded = Command::new(env!("CARGO_BIN_EXE_sanderling"))
        .args(train_line().split_whitespace())
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(found, result(&embedded), "as in one process");
}

#[test]
fn a_cut_that_lasts_is_said() {
    // Without the limit it would take 20 seconds.
    let run = match train(Cut { at_packet: 400, for_ms: 0 }, "--ps-timeout 4s") {
        Ok(run) => run,
        Err(reason) => return skip("several hosts, cut for good", &reason),
    };
    assert_eq!(run.cable, ["cut"]);
    assert_eq!(run.done.status.code(), Some(1), "{}", run.errors());
    for part in ["tcp://10.77.0.2:", "no answer within 4s"] {
        assert!(run.errors().contains(part), "{part} in {}", run.errors());
    }
}
