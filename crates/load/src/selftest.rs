//! Speed of the load generator itself on this machine, part by part: calls of scripts, keys, and whole requests against
//! servers that look nothing up. A server that is loaded near to these numbers is not what was measured. Knows no real server.

use std::time::Duration;

use sanderling_client::ConnectOptions;
use sanderling_observe::Machine;
use sanderling_transport::{Address, SPIN_US_DEFAULT};
use serde::Serialize;

use crate::engine::{EngineError, Length, Plan, Progress, Schedule, run};
use crate::generate::{KeyLaw, keys_per_s};
use crate::null::NullServer;
use crate::request::Failure;
use crate::script::speed::{empty_calls_per_s, empty_calls_per_s_shared};
use crate::script::{Mix, Program};
use crate::target::{NOWHERE, Target};

/// Keys of the law whose speed is told.
const LAW_KEYS: u64 = 10_000_000;
/// Its skew.
const LAW_THETA: f64 = 0.99;
/// Keys per batch.
const BATCH: usize = 512;
/// Weights per row.
const DIM: u32 = 32;
/// Requests under way.
const IN_FLIGHT: usize = 4;
/// Rounds, of which medians are told.
const ROUNDS: usize = 3;

/// All that was measured: medians of some interleaved rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SelfTest {
    /// Where.
    pub machine: Machine,
    /// Threads of what says "all threads".
    pub threads: usize,
    /// Calls of an empty function per second, on one thread.
    pub empty_calls_per_s: f64,
    /// Rate of all threads together.
    pub empty_calls_per_s_all: f64,
    /// Rate of all threads with one shared script context, which no run uses.
    pub empty_calls_per_s_shared: f64,
    /// Keys of a scrambled zipf law per second, on one thread.
    pub zipf_keys_per_s: f64,
    /// Whole requests on one thread.
    pub requests: Vec<Requests>,
}

/// Requests of one thread against what answers without looking.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Requests {
    /// `nowhere`, `shm`, `unix` or `tcp`.
    pub transport: &'static str,
    /// Keys per request.
    pub batch: usize,
    /// Weights per row of the answer.
    pub dim: u32,
    /// Requests per second.
    pub per_s: f64,
    /// Whether the client had to wait for answers at times; if not, it is the client's own limit.
    pub waited: bool,
}

/// Measures each part for about so long, on one thread and on `threads`.
pub fn measure(
    threads: usize,
    each: Duration,
    watch: &mut dyn FnMut(&str, usize, usize),
) -> Result<SelfTest, EngineError> {
    let small = ["nowhere", "shm", "tcp"].map(|transport| (transport, 1, DIM));
    let large = ["nowhere", "shm", "tcp"].map(|transport| (transport, BATCH, DIM));
    let kinds: Vec<(&'static str, usize, u32)> = small.into_iter().chain(large).collect();
    let steps = 4 + kinds.len();
    let mut calls: [Vec<f64>; 4] = Default::default();
    let mut per_s: Vec<Vec<f64>> = vec![Vec::new(); kinds.len()];
    let mut waited = vec![true; kinds.len()];
    for round in 0..ROUNDS {
        let mut step = 0;
        let mut tell = |what: &str| {
            watch(what, round * steps + step, ROUNDS * steps);
            step += 1;
        };
        tell("empty calls");
        calls[0].push(empty_calls_per_s(1, each)?.iter().sum());
        tell("empty calls, all threads");
        calls[1].push(empty_calls_per_s(threads, each)?.iter().sum());
        tell("empty calls, a shared context");
        calls[2].push(empty_calls_per_s_shared(threads, each)?.iter().sum());
        tell("keys");
        calls[3].push(keys_per_s(&KeyLaw::Zipf { theta: LAW_THETA }, LAW_KEYS, BATCH, each)?);
        for (at, &(transport, batch, dim)) in kinds.iter().enumerate() {
            tell(transport);
            let (rate, idle) = requests(transport, batch, dim, each)?;
            per_s[at].push(rate);
            waited[at] &= idle;
        }
    }
    let of = |(at, (transport, batch, dim)): (usize, (&'static str, usize, u32))| Requests {
        transport,
        batch,
        dim,
        per_s: median(&mut per_s[at]),
        waited: waited[at],
    };
    let requests = kinds.into_iter().enumerate().map(of).collect();
    let [one, all, shared, keys] = &mut calls;
    Ok(SelfTest {
        machine: Machine::detect(),
        threads,
        empty_calls_per_s: median(one),
        empty_calls_per_s_all: median(all),
        empty_calls_per_s_shared: median(shared),
        zipf_keys_per_s: median(keys),
        requests,
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Pulls per second of one thread, and whether it ever waited for the server rather than the server for it.
fn requests(transport: &str, batch: usize, dim: u32, each: Duration) -> Result<(f64, bool), EngineError> {
    let wrong = |reason: String| EngineError::Target(Failure { kind: "selftest", reason });
    let address = match transport {
        "shm" => Some(format!("shm:selftest-{}", std::process::id())),
        "tcp" => Some("tcp://127.0.0.1:0".to_owned()),
        _ => None,
    };
    let server = match address {
        None => None,
        Some(address) => {
            let address: Address = address.parse().map_err(|error| wrong(format!("{error}")))?;
            Some(
                NullServer::start(&[address], dim, SPIN_US_DEFAULT)
                    .map_err(|error| wrong(error.to_string()))?,
            )
        }
    };
    let address =
        server.as_ref().map_or_else(|| NOWHERE.to_owned(), |server| server.addresses()[0].to_string());
    let target = Target::connect(&address, ConnectOptions::default()).map_err(EngineError::Target)?;
    let mut program = Program::builtin("serve")?;
    for given in [format!("batch={batch}"), format!("dim={dim}"), format!("keys={LAW_KEYS}")] {
        program.set(&given)?;
    }
    let mix = Mix::parse("pull", &program.describe()?.functions())?;
    let plan = Plan {
        concurrency: Some(IN_FLIGHT),
        schedule: Schedule::Closed,
        warmup: each / 10,
        length: Length::Time(each),
        ..Plan::new(program, mix)
    };
    crate::engine::schema(&target, &plan)?;
    let run = run(&target, &plan, &mut |_: Progress| true)?;
    if run.measured.failed() > 0 {
        return Err(wrong(format!("{transport}: {}", run.validity.reasons.join("; "))));
    }
    Ok((run.measured.calls() as f64 / run.measured.seconds, run.validity.valid))
}
