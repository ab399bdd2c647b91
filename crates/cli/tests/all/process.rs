//! A `sanderling ps`, or another command that listens, as a process of its own, for the tests of this crate.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Lines, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use sanderling_transport::{Address, ConnectOptions, Framing, connect};
use sanderling_wire::{
    Agreed, Buffer, Features, Frame, HEADER_BYTES, Hello, Offer, Parsed, Reply, Request, StatsScope,
    body_bytes,
};

/// A running server; it is killed if a test forgets it.
pub(crate) struct Process {
    child: Child,
    pub(crate) addresses: Vec<Address>,
    /// Open, so that it may say more.
    said: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts it below a folder at a TCP port, with the shell's words before its own, and waits until it listens there and
    /// at the two local addresses.
    pub(crate) fn start(folder: &Path, before: &str, options: &str) -> Process {
        Process::start_at(folder, "127.0.0.1:0", 3, before, options)
    }

    /// The same at any address, for which it says that it listens at so many.
    pub(crate) fn start_at(
        folder: &Path,
        listen: &str,
        lines: usize,
        before: &str,
        options: &str,
    ) -> Process {
        let command = format!("ps --listen {listen} --runtime-dir run --threads 1 {options}");
        Process::start_command(folder, before, &command, lines)
    }

    /// Any command that says where it listens, on so many lines.
    pub(crate) fn start_command(folder: &Path, before: &str, command: &str, lines: usize) -> Process {
        let line = format!("{before} exec '{}' {command}", env!("CARGO_BIN_EXE_sanderling"));
        // Other shells redirect descriptors of one digit only.
        let mut child = Command::new("bash")
            .args(["-c", &line])
            .current_dir(folder)
            .env("NOTIFY_SOCKET", folder.join("notify"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let addresses = said.by_ref().take(lines);
        let addresses =
            addresses.map(|line| line.unwrap().strip_prefix("listening at ").unwrap().parse().unwrap());
        let addresses: Vec<Address> = addresses.collect();
        if addresses.len() < lines {
            let mut errors = String::new();
            child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
            panic!("it listens at {addresses:?}: {errors}");
        }
        Process { child, addresses, said }
    }

    /// The next line that it says.
    pub(crate) fn line(&mut self) -> String {
        self.said.next().expect("it says more").unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        let done =
            Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status().unwrap();
        assert!(done.success());
        if name == "STOP" {
            self.wait_until_stopped();
        }
    }

    /// The signal is sent before every thread has seen it: until then one of them may still answer.
    fn wait_until_stopped(&self) {
        let tasks = format!("/proc/{}/task", self.child.id());
        let stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            // The name, in brackets, may hold anything; the state comes after it.
            stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !std::fs::read_dir(&tasks).unwrap().all(stopped) {
            assert!(Instant::now() < deadline, "a thread goes on after SIGSTOP");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Files that it has open.
    pub(crate) fn files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// From now on it may map only so many bytes more than it has.
    pub(crate) fn limit_address_space(&self, more: u64) {
        let pid = self.child.id();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        let size: u64 = size.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        let limit = format!("--as={}", size * 1024 + more);
        let done = Command::new("prlimit").args(["--pid", &pid.to_string(), &limit]).status().unwrap();
        assert!(done.success());
    }

    /// Names of its threads.
    pub(crate) fn threads(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let name = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap().trim().to_owned()
        };
        let mut names: Vec<String> = tasks.map(name).collect();
        names.sort();
        names
    }

    /// Waits for its end, and reads nothing meanwhile.
    pub(crate) fn wait_unread(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// From now on nobody reads what it says on standard error.
    pub(crate) fn close_errors(&mut self) {
        self.child.stderr = None;
    }

    /// Waits for its end; what it said on standard error.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let mut errors = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut errors).unwrap();
        }
        (self.child.wait().unwrap(), errors)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says something to who looks into a failure, or asks for figures.
#[expect(clippy::print_stderr, reason = "it is for a person")]
pub(crate) fn show(text: &str) {
    eprintln!("{text}");
}

/// Waits until a process waits for others: in most of ten looks no thread of it runs or could run. It waits a minute at
/// most.
pub(crate) fn wait_until_it_waits(process: u32) {
    const LOOKS: usize = 10;
    const RUNNING_MAX: usize = 3;
    let runs = || {
        let mut tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().filter_map(Result::ok);
        tasks.any(|task| {
            // A thread may end meanwhile. Its state follows the name in parentheses.
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('R'))
        })
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut last = VecDeque::from([true; LOOKS]);
    // A machine can be too busy to tell: then this was a long sleep.
    while last.iter().filter(|runs| **runs).count() > RUNNING_MAX && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
        last.pop_front();
        last.push_back(runs());
    }
}

/// The counters of a server or a hub, asked for as any client would.
pub(crate) fn counters(address: &Address) -> BTreeMap<String, u64> {
    let framing = Framing {
        header_bytes: HEADER_BYTES,
        body_bytes: |header| body_bytes(header.try_into().unwrap()).map_err(|error| error.to_string()),
        frame_bytes_max: 1 << 20,
    };
    let mut connection = connect(address, &ConnectOptions::new(framing)).unwrap();
    let mut agreed = Agreed::BEFORE_HELLO;
    let hello = Hello { offer: Offer::of(Features::NONE), token: "", name: "looks" };
    for request in [Request::Hello(hello), Request::Stats(StatsScope::Commands)] {
        let mut frame = Buffer::new(1 << 20);
        frame.append(|out| request.encode(&agreed, 1, 0, out)).unwrap();
        connection.sender.frame(frame.len()).unwrap().write(frame.bytes());
        connection.sender.flush().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let bytes = connection.receiver.receive(Some(deadline)).unwrap().unwrap();
        let Ok(Parsed::Frame(frame)) = Frame::parse(bytes, &agreed) else { panic!("not a frame") };
        match Reply::decode(&frame).unwrap() {
            Reply::Hello(identity) => agreed = identity.agreed,
            Reply::Stats(statistics) => {
                return statistics.counters.iter().map(|it| (it.name.to_owned(), it.value)).collect();
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("no statistics");
}
