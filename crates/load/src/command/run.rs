//! `sanderling load schema`, `load` and `run`: making tables, filling them, and one run.

use std::io::ErrorKind;
use std::path::PathBuf;

use sanderling_load::campaign::rate;
use sanderling_load::engine::{self, EngineError, Plan, Shortage};
use sanderling_load::result::{ResultError, ResultFile, RunResult};
use sanderling_load::script::Program;
use sanderling_load::show;
use sanderling_load::target::Target;

use super::creation::announce;
use super::plan::{LoopArgs, WorkloadArgs, target};
use super::{failed, unreached, watched};
use crate::failure::{FAILED, Failure, INTERRUPTED};
use crate::output;
use crate::progress::Bar;
use crate::servers::ServerArgs;

/// Create the tables of a workload, or check the configuration of existing ones
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  sanderling load schema ctr --ps 127.0.0.1:7000

The tables stay on the servers until sanderling ctl drop; a line says which are created. Without --ps the workload is only \
checked.")]
pub(super) struct SchemaArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    servers: ServerArgs,
}

/// Create the tables of a workload and fill them
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  sanderling load load serve -P keys=1e6 --threads 4 --ps 127.0.0.1:7000

The tables stay on the servers until sanderling ctl drop; a line says which are created or filled. load run, sweep, search \
and ab fill what they need themselves.")]
pub(super) struct LoadArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    servers: ServerArgs,
    /// Number of client threads, each with its own connections
    #[arg(short, long, default_value_t = 1, help_heading = "Load")]
    threads: usize,
    /// Maximum concurrent calls per thread
    #[arg(short, long, default_value_t = 4, help_heading = "Load")]
    concurrency: usize,
    /// Suppress progress output
    #[arg(long, short, help_heading = "Load")]
    quiet: bool,
}

/// Run a workload in a closed loop, or in an open loop with --rate
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  # 98 % pulls, 2 % pushes of 512 keys, in this process
  sanderling load run
  sanderling load run --ps 127.0.0.1:7000 --create --threads 4 --concurrency 8
  sanderling load run ctr --ps 127.0.0.1:7000 --create --rate 20k \\
      --arrivals poisson -d 60s -o run.json
  # a workload of your own
  sanderling load list serve --source > my.rn
  sanderling load run my.rn -P keys=1e6 -f pull:9,push:1

Missing tables are created, and filled if they have fewer rows than the workload has keys. On servers the command \
asks first (--create answers yes); it creates temporary tables, which are never saved, and drops them at the end \
unless --keep is given. In an open loop (--rate) calls are due at the times of --arrivals, and latency counts from \
the due time, so that queueing is included. A run is NOT VALID if the client was the bottleneck, if too many calls \
failed, or if Ctrl-C ended it. After Ctrl-C the exit code is 130, and no file is replaced.")]
pub(super) struct RunArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten)]
    looped: LoopArgs,
    /// Arrival rate of an open loop, in calls per second, such as 20k or 1.5M [default: closed loop]
    #[arg(short, long, value_parser = rate, help_heading = "Load")]
    rate: Option<f64>,
    /// Result file to write (JSON), for sanderling load show and plot [default: none]
    #[arg(short, long = "output", value_name = "FILE", help_heading = "Result")]
    out: Option<PathBuf>,
    /// Print the whole result instead of a summary of two lines
    #[arg(long, help_heading = "Result")]
    full: bool,
    /// Print the whole result as JSON
    #[arg(long, help_heading = "Result")]
    json: bool,
}

pub(super) fn schema(args: &SchemaArgs) -> Result<u8, Failure> {
    let (target, plan) = (target(&args.servers)?, args.workload.plan()?);
    announce(&target, &plan, false)?;
    let tables = engine::schema(&target, &plan).map_err(failed)?;
    for table in &tables {
        let rows = target.rows(table).map_err(unreached)?.unwrap_or(0);
        output::text(&format!("{table}: {} rows", output::count(rows)))?;
    }
    Ok(0)
}

pub(super) fn load(args: &LoadArgs) -> Result<u8, Failure> {
    let (target, plan) = (target(&args.servers)?, args.workload.plan()?);
    if target.cluster().is_none() {
        return Err(Failure::Usage(
            "load load fills tables on servers: name them with --ps ADDR; load run fills tables in this process itself"
                .to_owned(),
        ));
    }
    let plan = Plan { threads: args.threads, concurrency: Some(args.concurrency), ..plan };
    if !args.quiet {
        announce(&target, &plan, true)?;
    }
    let tables = engine::schema(&target, &plan).map_err(failed)?;
    let bar = Bar::new(args.quiet);
    let begun = std::time::Instant::now();
    let calls = engine::load(&target, &plan, &mut |progress| watched(&bar, "loading", progress));
    bar.finish();
    let calls = calls.map_err(failed)?;
    let mut rows = 0;
    for table in &tables {
        rows += target.rows(table).map_err(unreached)?.unwrap_or(0);
    }
    let (names, seconds) = (tables.join(", "), begun.elapsed().as_secs_f64());
    output::text(&format!("{names}: {} rows, {calls} calls in {seconds:.1} s", output::count(rows)))?;
    Ok(0)
}

/// Creates and fills missing tables, unless an option forbids it.
pub(super) fn prepare(target: &Target, plan: &Plan, looped: &LoopArgs, bar: &Bar) -> Result<(), Failure> {
    // Loading waits for answers more than for anything else.
    let loading = Plan { concurrency: Some(plan.under_way().max(4)), ..plan.clone() };
    let mut watch = |progress| watched(bar, "loading", progress);
    let shortage = if looped.no_load {
        engine::schema(target, &loading).and_then(|tables| engine::shortage(target, &loading, &tables))
    } else {
        engine::prepare(target, &loading, &mut watch).map(|prepared| prepared.shortage)
    };
    if let Some(Shortage { rows, keys }) = shortage.map_err(failed)? {
        let (rows, keys) = (output::count(rows), output::count(keys));
        note!("the largest table has {rows} rows for {keys} keys: other keys are answered without a row");
    }
    Ok(())
}

pub(super) fn run(args: &RunArgs) -> Result<u8, Failure> {
    args.looped.check(args.rate)?;
    let target = args.looped.creation.apply(target(&args.servers)?);
    let plan = args.looped.apply(args.workload.plan()?, args.rate);
    check(args.out.as_ref(), &args.workload.workload)?;
    let created = args.looped.ask("run", &target, &plan)?;
    let bar = Bar::new(args.looped.quiet);
    let ran = prepare(&target, &plan, &args.looped, &bar).and_then(|()| {
        match engine::run(&target, &plan, &mut |progress| watched(&bar, "running", progress)) {
            Err(EngineError::Stopped(Some(part))) => Ok((*part, true)),
            ran => ran.map(|run| (run, false)).map_err(failed),
        }
    });
    bar.finish();
    drop(created);
    let (run, cut) = ran?;
    let valid = !failed_too_often(&run, &plan);
    let file = ResultFile { cut, ..ResultFile::new("run", vec![run]) };
    save(&file, args.out.as_ref())?;
    if args.json {
        output::json(&file)?;
    } else if args.full {
        output::part(&show::one(&file.runs[0]))?;
    } else {
        output::part(&show::summary(&file.runs[0]))?;
    }
    Ok(if cut {
        INTERRUPTED
    } else if valid {
        0
    } else {
        FAILED
    })
}

/// Whether more calls failed than may.
pub(super) fn failed_too_often(run: &RunResult, plan: &Plan) -> bool {
    let (calls, failed) = (run.measured.calls(), run.measured.failed());
    calls == 0 || failed as f64 > plan.failures_max * calls as f64
}

/// Refuses a file that cannot be written, a url, or the script itself, if one was named.
pub(super) fn check(path: Option<&PathBuf>, workload: &str) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    output::not_a_url("--output", path)?;
    output::not_over("--output", path, Program::path(workload).into_iter())?;
    output::check(path)
}

/// Writes the result file, if one was named. An interrupted run never replaces a file.
pub(super) fn save(file: &ResultFile, path: Option<&PathBuf>) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let name = path.display();
    if file.runs.is_empty() {
        note!("interrupted: {name} was not written");
        return Ok(());
    }
    match file.save(path) {
        Err(ResultError::File { error, .. }) if file.cut && error.kind() == ErrorKind::AlreadyExists => {
            note!("interrupted: {name} stays as it was");
            Ok(())
        }
        saved => saved.map_err(|error| Failure::Run(error.to_string())),
    }
}
