//! `sanderling load sweep`, `search` and `ab`: several runs with one purpose.

use std::path::PathBuf;
use std::time::Duration;

use sanderling_load::campaign::{self, Found, Made, Rates, Search, objectives};
use sanderling_load::compare::{Side, compare};
use sanderling_load::engine::Plan;
use sanderling_load::result::{Objective, RUNS_MAX, ResultFile, RunResult};
use sanderling_load::show;

use super::plan::{LoopArgs, WorkloadArgs, reach, target};
use super::run::{check, failed_too_often, prepare, save};
use super::{failed, watched};
use crate::failure::{FAILED, Failure, INTERRUPTED};
use crate::output;
use crate::progress::Bar;
use crate::quantity::time_above_0;
use crate::servers::{AskArgs, ServerArgs};

/// Run a workload at several rates: latency as a function of throughput
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  # 12 rates of 10 s each, at most
  sanderling load sweep --rates 5k..200k:log12 --ps 127.0.0.1:7000 --create \\
      -o sweep.json
  sanderling load plot sweep.json -o sweep.svg

A sweep ends at the first rate that the server cannot sustain.")]
pub(super) struct SweepArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten)]
    looped: LoopArgs,
    /// Arrival rates, in calls per second: a list (5k,10k,50k) or a range in 12 steps (5k..200k:log12 or :lin12)
    #[arg(long, help_heading = "Load")]
    rates: Rates,
    /// Latency objectives to show beside the results, such as 'p50<1ms,p99<5ms' [default: none]
    #[arg(long, value_name = "P<TIME,...", help_heading = "Result")]
    slo: Option<String>,
    /// Result file to write (JSON), for sanderling load show and plot [default: none]
    #[arg(short, long = "output", value_name = "FILE", help_heading = "Result")]
    out: Option<PathBuf>,
}

/// Find the highest rate that meets a latency objective
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sanderling load search --slo 'p99<5ms' --ps 127.0.0.1:7000 --create
  sanderling load search --slo 'p50<500us,p99.9<20ms' \\
      --ps 127.0.0.1:7000 --create -o search.json

The search starts at the rate of a closed loop, then bisects between a rate that meets the objective and one that does not. \
A run of full length confirms the answer or lowers it. A trial in which the client was late, or in which no call fell, \
is repeated; it says nothing about the server.")]
pub(super) struct SearchArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten)]
    looped: LoopArgs,
    /// Latency objectives, from the due time of a call to its end, such as 'p50<1ms,p99<5ms'
    #[arg(long, value_name = "P<TIME,...", default_value = "p99<5ms", help_heading = "Search")]
    slo: String,
    /// Measured time per trial rate; the answer is confirmed by a run of --duration
    #[arg(long, default_value = "3s", value_parser = time_above_0, help_heading = "Search")]
    trial: Duration,
    /// Relative precision of the found rate, in percent
    #[arg(long, default_value_t = 5.0, help_heading = "Search")]
    precision: f64,
    /// Result file to write (JSON), for sanderling load show and plot [default: none]
    #[arg(short, long = "output", value_name = "FILE", help_heading = "Result")]
    out: Option<PathBuf>,
}

/// Compare the speed of two targets, with a test of significance
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sanderling load ab 127.0.0.1:7000 127.0.0.1:7001 --create --runs 10
  # two transports to one server
  sanderling load ab shm:port-7000 tcp://127.0.0.1:7000 --ps-no-local \\
      --create --runs 6 -d 5s -o ab.json

Runs alternate (A B B A and so on), so that drift of the machine affects both alike.")]
pub(super) struct AbArgs {
    /// Addresses of target A, as for --ps of sanderling load run
    a: String,
    /// Addresses of target B
    b: String,
    #[command(flatten)]
    workload: AbWorkload,
    #[command(flatten)]
    ask: AskArgs,
    #[command(flatten)]
    looped: LoopArgs,
    /// Number of runs per target, at least 2; 3 or more also give intervals
    #[arg(long, default_value_t = 10, help_heading = "Load")]
    runs: usize,
    /// Arrival rate of an open loop, in calls per second, such as 20k [default: closed loop]
    #[arg(short, long, value_parser = campaign::rate, help_heading = "Load")]
    rate: Option<f64>,
    /// Result file to write (JSON), for sanderling load show and plot [default: none]
    #[arg(short, long = "output", value_name = "FILE", help_heading = "Result")]
    out: Option<PathBuf>,
}

/// The workload as an option, since the addresses are the arguments.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Workload")]
pub(super) struct AbWorkload {
    /// Built-in workload (see sanderling load list), or path of a script (.rn)
    #[arg(short, long, default_value = "serve")]
    workload: String,
    /// Parameter of the workload, such as keys=1e8; may be repeated (names: sanderling load list WORKLOAD)
    #[arg(short = 'P', long = "param", value_name = "NAME=VALUE")]
    params: Vec<String>,
    /// Mix of functions by weight, such as pull:98,push:2 [default: weights of the workload]
    #[arg(short, long, value_name = "NAME:WEIGHT,...")]
    functions: Option<String>,
    /// Random seed of keys, sizes and arrivals
    #[arg(long, default_value_t = 42)]
    seed: u64,
}

fn wanted(text: &str) -> Result<Vec<Objective>, Failure> {
    objectives(text).map_err(|error| Failure::Usage(format!("--slo: {error}")))
}

fn kept(command: &str, Made { runs, cut, .. }: Made, wanted: &[Objective]) -> ResultFile {
    let with = |mut run: RunResult| {
        run.asked.objectives = wanted.to_vec();
        run
    };
    ResultFile { cut, ..ResultFile::new(command, runs.into_iter().map(with).collect()) }
}

pub(super) fn sweep(args: &SweepArgs) -> Result<u8, Failure> {
    let wanted = args.slo.as_deref().map_or(Ok(Vec::new()), wanted)?;
    let (target, plan) = (target(&args.servers)?, args.looped.apply(args.workload.plan()?, None));
    let target = args.looped.creation.apply(target);
    check(args.out.as_ref(), &args.workload.workload)?;
    let created = args.looped.ask("sweep", &target, &plan)?;
    let bar = Bar::new(args.looped.quiet);
    let (rates, arrivals) = (&args.rates, args.looped.arrivals());
    let ran = prepare(&target, &plan, &args.looped, &bar).and_then(|()| {
        let watch = &mut |what: &str, progress| watched(&bar, what, progress);
        campaign::sweep(&target, &plan, rates, arrivals, watch).map_err(failed)
    });
    bar.finish();
    drop(created);
    let ran = ran?;
    let gone = ran.gone;
    let file = kept("sweep", ran, &wanted);
    save(&file, args.out.as_ref())?;
    if file.cut {
        return ended_early(&file, gone);
    }
    output::part(&show::list(&file.runs))?;
    let left = rates.all().len() - file.runs.len();
    if left > 0 {
        output::text(&format!("the last rate was not served; {left} higher ones were left out"))?;
    }
    Ok(exit_code(&file, &plan))
}

pub(super) fn search(args: &SearchArgs) -> Result<u8, Failure> {
    let wanted = wanted(&args.slo)?;
    if !(args.precision > 0.0 && args.precision <= 100.0) {
        return Err(Failure::Usage("--precision must be above 0 and at most 100".to_owned()));
    }
    let (target, plan) = (target(&args.servers)?, args.looped.apply(args.workload.plan()?, None));
    let target = args.looped.creation.apply(target);
    check(args.out.as_ref(), &args.workload.workload)?;
    let created = args.looped.ask("search", &target, &plan)?;
    let bar = Bar::new(args.looped.quiet);
    let how = Search {
        objectives: wanted.clone(),
        arrivals: args.looped.arrivals(),
        trial: args.trial,
        precision: args.precision / 100.0,
    };
    let searched = prepare(&target, &plan, &args.looped, &bar).and_then(|()| {
        let watch = &mut |what: &str, progress| watched(&bar, what, progress);
        campaign::search(&target, &plan, &how, watch).map_err(failed)
    });
    bar.finish();
    drop(created);
    let found = searched?;
    let Found { per_s, not_per_s, unknown_per_s, empty_per_s, gone, .. } = found;
    let file = kept("search", Made { runs: found.runs, cut: found.cut, gone }, &wanted);
    save(&file, args.out.as_ref())?;
    if file.cut {
        return ended_early(&file, gone);
    }
    output::part(&show::list(&file.runs))?;
    let slo = &args.slo;
    let mut beyond = unknown_per_s.map_or_else(String::new, |unknown| {
        format!("; the client could not find out above: at {unknown:.0} it was late by itself, more threads may help")
    });
    beyond += &empty_per_s.map_or_else(String::new, |empty| {
        format!("; at {empty:.0} no call fell into a trial: a longer --trial has some")
    });
    beyond += &not_per_s.map_or_else(String::new, |beyond| format!("; not at {beyond:.0}"));
    output::text(&match per_s {
        Some(per_s) => format!("{slo} holds up to {per_s:.0} calls/s{beyond}"),
        None => format!("{slo} holds at no rate that was tried{beyond}"),
    })?;
    Ok(if per_s.is_some() { 0 } else { FAILED })
}

pub(super) fn ab(args: &AbArgs) -> Result<u8, Failure> {
    args.looped.check(args.rate)?;
    let workload = WorkloadArgs::of(
        &args.workload.workload,
        &args.workload.params,
        args.workload.functions.as_deref(),
        args.workload.seed,
    );
    let plan = args.looped.apply(workload.plan()?, args.rate);
    if args.runs < 2 {
        return Err(Failure::Usage(
            "--runs: need at least 2 runs per side to estimate the variance; use 10".to_owned(),
        ));
    }
    if args.runs > RUNS_MAX / 2 {
        let most = RUNS_MAX / 2;
        return Err(Failure::Usage(format!("--runs: {} per side are too many; at most {most}", args.runs)));
    }
    let [a, b] = [reach("target A", &args.a, &args.ask)?, reach("target B", &args.b, &args.ask)?]
        .map(|target| args.looped.creation.apply(target));
    check(args.out.as_ref(), &args.workload.workload)?;
    let created = (args.looped.ask("ab", &a, &plan)?, args.looped.ask("ab", &b, &plan)?);
    let bar = Bar::new(args.looped.quiet);
    let ran = prepare(&a, &plan, &args.looped, &bar)
        .and_then(|()| prepare(&b, &plan, &args.looped, &bar))
        .and_then(|()| {
            let watch = &mut |what: &str, progress| watched(&bar, what, progress);
            campaign::ab(&a, &b, &plan, args.runs, watch).map_err(failed)
        });
    bar.finish();
    drop(created);
    let ran = ran?;
    let gone = ran.gone;
    let file = kept("ab", ran, &[]);
    save(&file, args.out.as_ref())?;
    if file.cut {
        return ended_early(&file, gone);
    }
    output::part(&compared(&file)?)?;
    output::part(&show::doubts(&file.runs))?;
    Ok(exit_code(&file, &plan))
}

/// Of runs that all were to count.
fn exit_code(file: &ResultFile, plan: &Plan) -> u8 {
    if file.runs.iter().any(|run| failed_too_often(run, plan)) { FAILED } else { 0 }
}

/// Note under the finished runs of a campaign that a person stopped.
pub(super) const CUT: &str = "it was stopped before all runs were made";
/// Note under the finished runs of a campaign whose servers stopped answering.
const GONE: &str = "the servers stopped answering: the other runs were not made";

/// After Ctrl-C, or because the servers are gone.
fn ended_early(file: &ResultFile, gone: bool) -> Result<u8, Failure> {
    if !file.runs.is_empty() {
        output::part(&show::list(&file.runs))?;
    }
    output::text(if gone { GONE } else { CUT })?;
    Ok(if gone { FAILED } else { INTERRUPTED })
}

/// Compares the runs of both sides.
pub(super) fn compared(file: &ResultFile) -> Result<String, Failure> {
    let of = |side: Side| -> Vec<&RunResult> {
        let label = if side == Side::A { "A" } else { "B" };
        file.runs.iter().filter(|run| run.label == label).collect()
    };
    let comparison = compare(&of(Side::A), &of(Side::B)).map_err(|error| Failure::Run(error.to_string()))?;
    Ok(show::comparison(&comparison))
}
