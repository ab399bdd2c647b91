//! A server in a process of its own: started, asked where it is, bound to processors, and ended with us. Knows not what it
//! serves.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::result::BenchError;
use crate::rpc::options::Pinning;
use crate::rpc::rival::MALLOC;
use crate::rpc::serve::{Place, Role, ServeOptions};

/// A running server. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    child: Child,
    /// It ends when this is closed, also if we are killed.
    _lifeline: Option<ChildStdin>,
    pub(crate) places: Vec<Place>,
}

impl ServerProcess {
    /// Starts `program` with what it is to serve, as JSON, behind its other arguments, and waits until it serves. Only a rival
    /// gets the allocator settings that this process runs with for the rival's sake.
    pub(crate) fn start(
        program: &Path,
        args: &[String],
        serve: &ServeOptions,
    ) -> Result<ServerProcess, BenchError> {
        let failed = |reason: String| BenchError::Server(format!("{}: {reason}", program.display()));
        let json = serde_json::to_string(serve).map_err(|error| failed(error.to_string()))?;
        let mut command = Command::new(program);
        if serve.role == Role::Grpc {
            command.env(MALLOC.0, MALLOC.1);
        } else if std::env::var(MALLOC.0).is_ok_and(|settings| settings == MALLOC.1) {
            command.env_remove(MALLOC.0);
        }
        let mut child = command
            .args(args)
            .arg(json)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let lifeline = child.stdin.take();
        let mut line = String::new();
        let stdout = child.stdout.take();
        let mut process = ServerProcess { child, _lifeline: lifeline, places: Vec::new() };
        if let Some(stdout) = stdout {
            BufReader::new(stdout).read_line(&mut line).map_err(|error| failed(error.to_string()))?;
        }
        process.places = serde_json::from_str(&line)
            .map_err(|_| failed("it did not start; see what it says on standard error".to_owned()))?;
        Ok(process)
    }

    /// Where its threads may run.
    pub(crate) fn pin(&self, pinning: Pinning) -> Result<(), BenchError> {
        bind(&self.child.id().to_string(), processors(pinning, Half::First)?)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the threads of this process may run.
pub(crate) fn pin_ourselves(pinning: Pinning) -> Result<(), BenchError> {
    bind("self", processors(pinning, Half::Second)?)
}

#[derive(Clone, Copy, PartialEq)]
enum Half {
    First,
    Second,
}

fn not_bound(error: impl std::fmt::Display) -> BenchError {
    BenchError::Server(format!("cannot bind threads to processors: {error}"))
}

/// The processors that this process could use when it was started.
fn usable() -> Result<&'static CpuSet, BenchError> {
    static USABLE: std::sync::OnceLock<CpuSet> = std::sync::OnceLock::new();
    if let Some(usable) = USABLE.get() {
        return Ok(usable);
    }
    let found = sched_getaffinity(None).map_err(not_bound)?;
    Ok(USABLE.get_or_init(|| found))
}

/// Of a machine with one processor, both get it.
fn processors(pinning: Pinning, half: Half) -> Result<CpuSet, BenchError> {
    let usable = usable()?;
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| usable.is_set(cpu)).collect();
    if pinning == Pinning::Unpinned || all.len() < 2 {
        return Ok(*usable);
    }
    let (first, second) = all.split_at(all.len() / 2);
    let mut some = CpuSet::new();
    for &cpu in if half == Half::First { first } else { second } {
        some.set(cpu);
    }
    Ok(some)
}

fn bind(process: &str, processors: CpuSet) -> Result<(), BenchError> {
    for task in std::fs::read_dir(format!("/proc/{process}/task")).map_err(not_bound)? {
        let name = task.map_err(not_bound)?.file_name();
        let thread = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        match sched_setaffinity(thread, &processors) {
            // A thread that has ended meanwhile needs no processor.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(not_bound(error)),
        }
    }
    Ok(())
}
