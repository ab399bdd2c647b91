//! Options for the workload, the loop and the target. Runs nothing.

use std::ops::Range;
use std::time::Duration;

use sanderling_client::check_servers;
use sanderling_load::campaign::rate;
use sanderling_load::engine::{Length, Plan, Schedule};
use sanderling_load::generate::{Arrivals, Seeds};
use sanderling_load::script::{Mix, Program};
use sanderling_load::target::{EMBEDDED, NOWHERE, Target};

use super::creation::{Created, CreationArgs};
use super::{failed, unreached};
use crate::failure::Failure;
use crate::quantity::{count, time, time_above_0};
use crate::servers::{AskArgs, ServerArgs};

/// Options of the workload.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Workload")]
pub(super) struct WorkloadArgs {
    /// Built-in workload (see sanderling load list), or path of a script (.rn)
    #[arg(default_value = "serve")]
    pub(super) workload: String,
    /// Parameter of the workload, such as keys=1e8; may be repeated (names: sanderling load list WORKLOAD)
    #[arg(short = 'P', long = "param", value_name = "NAME=VALUE")]
    params: Vec<String>,
    /// Mix of functions by weight, such as pull:98,push:2 [default: weights of the workload]
    #[arg(short, long, value_name = "NAME:WEIGHT,...")]
    functions: Option<String>,
    /// Random seed; equal seeds give equal requests, whatever the number of threads
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Random seed of keys [default: --seed]
    #[arg(long)]
    seed_keys: Option<u64>,
    /// Random seed of batch sizes and keys per sample [default: --seed]
    #[arg(long)]
    seed_sizes: Option<u64>,
    /// Random seed of arrivals and of the choice of functions [default: --seed]
    #[arg(long)]
    seed_arrivals: Option<u64>,
}

/// Options of the loop.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub(super) struct LoopArgs {
    /// Number of client threads, each with its own connections
    #[arg(short, long, default_value_t = 1)]
    threads: usize,
    /// Maximum concurrent calls per thread [default: 1 in a closed loop, 64 in an open loop]
    #[arg(short, long)]
    concurrency: Option<usize>,
    /// Measured time per run, after the warm-up, such as 60s
    #[arg(short, long, default_value = "10s", value_parser = time_above_0)]
    duration: Duration,
    /// Number of measured calls per run, instead of --duration [default: none]
    #[arg(short = 'n', long, conflicts_with = "duration", value_parser = count)]
    count: Option<u64>,
    /// Warm-up time per run, not measured, such as 5s [default: 1s; 0s with --count]
    #[arg(long, value_parser = time)]
    warmup: Option<Duration>,
    /// Arrivals of an open loop: poisson, uniform, burst:FACTOR:PERIOD, sine:AMPLITUDE:PERIOD [default: poisson]
    #[arg(long)]
    arrivals: Option<Arrivals>,
    /// Range of cycles (call numbers) of this client, such as 0..1M, to split a load by client [default: all]
    #[arg(long, value_name = "FROM..TO", value_parser = cycles)]
    cycles: Option<Range<u64>>,
    /// Maximum fraction of failed calls, such as 1% or 0.01; above it the exit code is 1
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = share)]
    max_failures: f64,
    /// Deadline of a call, from its due time, such as 50ms; late ones are refused and fail [default: none]
    #[arg(long, value_name = "TIME", value_parser = time_above_0)]
    deadline: Option<Duration>,
    /// Leave tables with too few rows as they are, do not fill them
    #[arg(long)]
    pub(super) no_load: bool,
    /// Suppress progress output
    #[arg(long, short)]
    pub(super) quiet: bool,
    #[command(flatten)]
    pub(super) creation: CreationArgs,
}

impl WorkloadArgs {
    /// Options as if they had been given on the command line.
    pub(super) fn of(workload: &str, params: &[String], functions: Option<&str>, seed: u64) -> WorkloadArgs {
        WorkloadArgs {
            workload: workload.to_owned(),
            params: params.to_vec(),
            functions: functions.map(str::to_owned),
            seed,
            seed_keys: None,
            seed_sizes: None,
            seed_arrivals: None,
        }
    }

    fn program(&self) -> Result<Program, Failure> {
        let wrong = |error: sanderling_load::script::ScriptError| failed(error.into());
        let mut program = Program::find(&self.workload).map_err(wrong)?;
        for given in &self.params {
            program.set(given).map_err(wrong)?;
        }
        Ok(program)
    }

    fn seeds(&self) -> Seeds {
        let all = Seeds::new(self.seed);
        Seeds {
            keys: self.seed_keys.unwrap_or(all.keys),
            sizes: self.seed_sizes.unwrap_or(all.sizes),
            arrivals: self.seed_arrivals.unwrap_or(all.arrivals),
        }
    }

    /// A plan of this workload: one thread, ten seconds.
    pub(super) fn plan(&self) -> Result<Plan, Failure> {
        let program = self.program()?;
        let about = program.describe().map_err(|error| failed(error.into()))?;
        let mix = match (&self.functions, about.mix.clone()) {
            (Some(text), _) => Mix::parse(text, &about.functions()).map_err(|error| failed(error.into()))?,
            (None, Some(mix)) => mix,
            (None, None) => {
                let name = &program.name;
                return Err(Failure::Usage(format!("{name}: there is no `pub async fn` to call; write one")));
            }
        };
        Ok(Plan { seeds: self.seeds(), ..Plan::new(program, mix) })
    }
}

impl LoopArgs {
    pub(super) fn arrivals(&self) -> Arrivals {
        self.arrivals.unwrap_or(Arrivals::Poisson)
    }

    /// Refuses options of an open loop without a rate.
    pub(super) fn check(&self, per_s: Option<f64>) -> Result<(), Failure> {
        match (self.arrivals, per_s) {
            (Some(_), None) => {
                Err(Failure::Usage("--arrivals applies to an open loop; add --rate".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Asks whether tables may be created on the target's servers; they are dropped with what this returns.
    pub(super) fn ask(&self, command: &str, target: &Target, plan: &Plan) -> Result<Created, Failure> {
        self.creation.ask(command, target, plan, !self.no_load, self.quiet)
    }

    /// The plan with its loop.
    pub(super) fn apply(&self, plan: Plan, per_s: Option<f64>) -> Plan {
        let arrivals = self.arrivals();
        let schedule = per_s.map_or(Schedule::Closed, |per_s| Schedule::Open { per_s, arrivals });
        let warmup = if self.count.is_some() { Duration::ZERO } else { Duration::from_secs(1) };
        Plan {
            threads: self.threads,
            concurrency: self.concurrency,
            schedule,
            warmup: self.warmup.unwrap_or(warmup),
            length: self.count.map_or(Length::Time(self.duration), Length::Calls),
            cycles: self.cycles.clone().unwrap_or(0..u64::MAX),
            failures_max: self.max_failures,
            deadline: self.deadline,
            ..plan
        }
    }
}

/// The target: the named servers, or tables in this process.
pub(super) fn target(servers: &ServerArgs) -> Result<Target, Failure> {
    reach("--ps", servers.address()?.unwrap_or(EMBEDDED), servers.ask())
}

/// The target at an address, which `option` names in errors.
pub(super) fn reach(option: &str, address: &str, ask: &AskArgs) -> Result<Target, Failure> {
    if ![EMBEDDED, NOWHERE].contains(&address) {
        check_servers(address).map_err(|error| Failure::Usage(format!("{option}: {error}")))?;
    }
    Target::connect(address, ask.options_until_told()?).map_err(unreached)
}

fn cycles(text: &str) -> Result<Range<u64>, String> {
    let read = |part: &str| rate_or_zero(part).ok_or_else(|| format!("{part:?} is not a number"));
    let (from, to) = text.split_once("..").ok_or_else(|| "write FROM..TO, as in 0..1M".to_owned())?;
    Ok(read(from)?..read(to)?)
}

fn rate_or_zero(text: &str) -> Option<u64> {
    if text.trim() == "0" { Some(0) } else { rate(text).ok().map(|number| number as u64) }
}

fn share(text: &str) -> Result<f64, String> {
    let (digits, unit) = text.strip_suffix('%').map_or((text, 1.0), |digits| (digits, 0.01));
    let share = digits.trim().parse::<f64>().ok().map(|number| number * unit);
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "a share is 0 to 1, or 0% to 100%".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        for (text, expected) in
            [("0..1M", Some(0..1_000_000)), ("5..9", Some(5..9)), ("9", None), ("a..b", None)]
        {
            assert_eq!(cycles(text).ok(), expected, "{text}");
        }
        for (text, expected) in [("1%", Some(0.01)), ("0.5", Some(0.5)), ("0", Some(0.0)), ("200%", None)] {
            assert_eq!(share(text).ok(), expected, "{text}");
        }
    }
}
