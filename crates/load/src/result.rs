//! The result of runs as a file of JSON: what was asked of what, where, with which versions, and all that was
//! measured, so that anybody can look at it again, compare and draw it. Knows neither the engine nor any
//! statistics of several runs.
//!
//! A file holds one run, or several: those of a sweep, a search or a comparison. Fields that a reader does
//! not know are passed over, since results are kept for longer than versions; what changes its meaning
//! changes [`SCHEMA`].

pub mod encoding;
pub mod estimate;
pub mod hdr_log;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use sanderling_files::OutputFile;
use sanderling_observe::numbers::bytes as in_units;
use sanderling_observe::{LatencySummary, Machine};
use serde::{Deserialize, Serialize};

use crate::observed::Measured;

/// The version of the format.
pub const SCHEMA: u32 = 1;
/// The largest file that is read.
pub const FILE_BYTES_MAX: u64 = 256 << 20;
/// The largest count, so that sums of them are numbers too: what a number of JSON holds exactly everywhere.
pub const COUNT_MAX: u64 = 1 << 53;
/// The most functions of a run, and lines of any other of its lists.
pub const ROWS_MAX: usize = 1000;
/// The most rows about servers: a cluster has up to 1024, each with some commands.
pub const SERVER_ROWS_MAX: usize = 1 << 16;
/// The most runs of a file.
pub const RUNS_MAX: usize = 4096;

/// All of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResultFile {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The command: `run`, `sweep`, `search` or `ab`.
    pub command: String,
    /// Whether it was told to stop before its end: then a single run is shorter than was asked, and of several those
    /// are here that were over.
    #[serde(default)]
    pub cut: bool,
    /// In the order in which they were made.
    pub runs: Vec<RunResult>,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Name among the runs of the file, such as `A`, `B` or `20 k/s`; empty if it is the only run.
    pub label: String,
    /// When the measured part began, in seconds since 1970.
    pub began_unix_s: f64,
    /// Workload, options and target.
    pub asked: Asked,
    /// Of the programs.
    pub versions: Versions,
    /// Where the load came from.
    pub machine: Machine,
    /// The result.
    pub measured: Measured,
    /// Processor time of the load generator.
    pub client: ClientCpu,
    /// Statistics of the server since the warm-up began; empty if it reported none.
    pub server: Vec<ServerLatency>,
    /// Whether it may be taken at its word.
    pub validity: Validity,
}

/// Options of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// Where the tables are.
    pub address: String,
    /// The script.
    pub script: Script,
    /// Functions and their weights.
    pub functions: Vec<(String, f64)>,
    /// Of keys, sizes and arrivals, by name.
    pub seeds: BTreeMap<String, u64>,
    /// Threads of the client.
    pub threads: usize,
    /// Calls that were under way at once, at most, in all threads together.
    pub concurrency: usize,
    /// When calls were due.
    pub load: Load,
    /// Length of the part before the measured one.
    pub warmup_s: f64,
    /// How long or how many calls; what was given.
    pub limit: Limit,
    /// Cycles that this client took, from and to (exclusive), if it took a part of them.
    pub cycles: Option<(u64, u64)>,
    /// The highest latencies that are wanted, such as `p99<5ms`, as they were given.
    pub objectives: Vec<Objective>,
}

/// A script, whole, so that its run can be repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    /// The name of a script that ships with the program, or a path.
    pub name: String,
    /// All of its text.
    pub source: String,
    /// Parameters that it was given or took by default, as text.
    pub params: BTreeMap<String, String>,
}

/// When calls were due.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Load {
    /// As soon as an earlier one had ended.
    Closed,
    /// By the clock, whether or not earlier ones had ended.
    Open {
        /// Calls per second.
        rate_per_s: f64,
        /// How they were spread, such as `poisson`.
        arrivals: String,
    },
}

/// How long a run was to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Limit {
    /// A time.
    Seconds {
        /// Of the measured part.
        seconds: f64,
    },
    /// A number of calls.
    Calls {
        /// In the measured part.
        calls: u64,
    },
}

/// A percentile of the response time that is to stay below a bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// Such as .99.
    pub quantile: f64,
    /// The bound.
    pub below_ns: u64,
}

/// Versions of what decides how fast the client is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// Of this program.
    pub sanderling: String,
    /// Of the language of scripts.
    pub rune: String,
}

/// Time of processors that the client used in the measured part.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ClientCpu {
    /// In the program.
    pub user_s: f64,
    /// In the system for the program.
    pub system_s: f64,
    /// The busiest thread's share of one core, from 0 to 1; none if threads were not looked at.
    pub busiest_thread: Option<f64>,
}

/// Latencies that a server has measured itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerLatency {
    /// By which transport, or from whom.
    pub peer: String,
    /// The workload.
    pub command: String,
    /// In the time of the run, its warm-up included.
    pub summary: LatencySummary,
}

/// Whether a run may be taken at its word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validity {
    /// False when the client itself was the bottleneck, too much failed, or it was told to stop before its end.
    pub valid: bool,
    /// Why not; or what a reader should know all the same.
    pub reasons: Vec<String>,
    /// Whether it is not valid for the client's own sake alone, so that it says nothing of the server. Not kept in files.
    #[serde(skip)]
    pub by_client: bool,
    /// Whether the target had stopped answering by its end, so that another run would measure nothing. Not kept in files.
    #[serde(skip)]
    pub gone: bool,
}

/// Why a file of results was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// From the system.
    #[error("{path}: {error}")]
    File {
        /// Which file.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
    /// Too large.
    #[error("{path}: larger than {}, which no result is", in_units(FILE_BYTES_MAX))]
    TooLarge {
        /// Which file.
        path: PathBuf,
    },
    /// Not a result, or a damaged one.
    #[error("{path}: not a result of the load generator: {error}")]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// Where, and what was expected there.
        error: serde_json::Error,
    },
    /// Of another version of the format.
    #[error("{path}: a result in format {found}; this version reads format {SCHEMA}")]
    Schema {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// A value of the file is impossible.
    #[error("{path}: {reason}")]
    Impossible {
        /// Which file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
}

/// The fields that are read first, since another version may have changed the rest.
#[derive(Deserialize)]
struct SchemaOnly {
    schema: u32,
}

impl ResultFile {
    /// A file of these runs.
    #[must_use]
    pub fn new(command: &str, runs: Vec<RunResult>) -> ResultFile {
        ResultFile { schema: SCHEMA, command: command.to_owned(), cut: false, runs }
    }

    /// Writes it: a file is whole or not there. What was cut replaces none.
    pub fn save(&self, path: &Path) -> Result<(), ResultError> {
        let written = OutputFile::create(path).and_then(|file| {
            let mut out = BufWriter::new(file);
            serde_json::to_writer_pretty(&mut out, self)?;
            out.write_all(b"\n")?;
            let file = out.into_inner()?;
            if self.cut { file.finish_new() } else { file.finish() }
        });
        written.map(drop).map_err(|error| ResultError::File { path: path.to_owned(), error })
    }

    /// Reads one.
    pub fn load(path: &Path) -> Result<ResultFile, ResultError> {
        let wrong = |error| ResultError::File { path: path.to_owned(), error };
        let mut text = Vec::new();
        let file = fs::File::open(path).map_err(wrong)?;
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(wrong)?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(ResultError::TooLarge { path: path.to_owned() });
        }
        ResultFile::parse(&text, path)
    }

    /// Reads the text of one; `path` is for errors.
    pub fn parse(text: &[u8], path: &Path) -> Result<ResultFile, ResultError> {
        let malformed = |error| ResultError::Malformed { path: path.to_owned(), error };
        let SchemaOnly { schema: found } = serde_json::from_slice(text).map_err(malformed)?;
        if found != SCHEMA {
            return Err(ResultError::Schema { path: path.to_owned(), found });
        }
        let file: ResultFile = serde_json::from_slice(text).map_err(malformed)?;
        let impossible = |reason| ResultError::Impossible { path: path.to_owned(), reason };
        if file.runs.is_empty() || file.runs.len() > RUNS_MAX {
            return Err(impossible(format!("{} runs; from 1 to {RUNS_MAX} are possible", file.runs.len())));
        }
        for (number, run) in file.runs.iter().enumerate() {
            run.check().map_err(|reason| impossible(format!("run {number} {:?}: {reason}", run.label)))?;
        }
        Ok(file)
    }
}

impl RunResult {
    /// Values that a file could hold and no run produces.
    fn check(&self) -> Result<(), String> {
        let measured = &self.measured;
        if !(measured.seconds > 0.0 && measured.seconds.is_finite()) {
            return Err(format!("a measured part of {} s", measured.seconds));
        }
        if !(measured.backlog_s >= 0.0 && measured.backlog_s < measured.seconds) {
            return Err(format!("{} s of {} s were the warm-up's", measured.backlog_s, measured.seconds));
        }
        let lists = [measured.functions.len(), measured.requests.len(), measured.failures.len()];
        if lists.iter().any(|&length| length > ROWS_MAX) {
            return Err(format!("more than {ROWS_MAX} functions, sizes of requests or kinds of failures"));
        }
        if self.server.len() > SERVER_ROWS_MAX {
            return Err(format!("more than {SERVER_ROWS_MAX} rows about servers"));
        }
        let calls = measured.functions.iter().flat_map(|function| [function.calls, function.failed]);
        let requests =
            measured.requests.iter().flat_map(|of| [of.requests, of.failed, of.keys, of.missing, of.bytes]);
        let intervals = measured.series.intervals().iter().flat_map(|of| [of.calls, of.failed, of.keys]);
        if calls.chain(requests).chain(intervals).any(|count| count > COUNT_MAX) {
            return Err(format!("a count of more than {COUNT_MAX}"));
        }
        for function in &measured.functions {
            if function.failed > function.calls || function.response.count() > function.calls {
                return Err(format!("function {}: more failures or latencies than calls", function.name));
            }
        }
        Ok(())
    }

    /// Seconds of processors that the client used, per second.
    #[must_use]
    pub fn client_cores(&self) -> f64 {
        (self.client.user_s + self.client.system_s) / self.measured.seconds
    }
}

#[cfg(test)]
pub(crate) mod tests;
