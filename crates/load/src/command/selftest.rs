//! `sanderling load selftest`: what the generator itself can do here.

use std::time::Duration;

use sanderling_load::engine::THREADS_MAX;
use sanderling_load::selftest::{SelfTest, measure};

use super::failed;
use crate::failure::Failure;
use crate::output;
use crate::progress::Bar;
use crate::quantity::time_above_0;

/// Measure the load generator itself on this machine
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sanderling load selftest
  sanderling load selftest --threads 4 --each 2s --json

Near these rates a load test measures its client, not the server: use more threads or more machines.")]
pub(super) struct Args {
    /// Number of threads of the multi-threaded parts
    #[arg(short, long, default_value_t = 2)]
    threads: usize,
    /// Measured time per part; each part is measured three times
    #[arg(long, default_value = "1s", value_parser = time_above_0)]
    each: Duration,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Suppress progress output
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    if !(1..=THREADS_MAX).contains(&args.threads) {
        return Err(Failure::Usage(format!("--threads: 1 to {THREADS_MAX} are possible")));
    }
    let bar = Bar::new(args.quiet);
    let measured = measure(args.threads, args.each, &mut |what, done, of| bar.steps(what, done, of));
    bar.finish();
    let found = measured.map_err(failed)?;
    if args.json {
        output::json(&found)?;
    } else {
        output::text(&describe(&found))?;
    }
    Ok(0)
}

fn describe(found: &SelfTest) -> String {
    let millions = |per_s: f64| format!("{:.1} M/s", per_s / 1e6);
    let (threads, one) = (found.threads, found.empty_calls_per_s);
    let all = |per_s: f64| format!("{}   {:.2} times one thread", millions(per_s), per_s / one);
    let mut rows = vec![
        ("machine".to_owned(), format!("{}, {} processors", found.machine.cpu, found.machine.cpus_usable)),
        ("script calls, empty, 1 thread".to_owned(), millions(one)),
        (format!("script calls, empty, {threads} threads"), all(found.empty_calls_per_s_all)),
        ("  if they shared a context".to_owned(), all(found.empty_calls_per_s_shared)),
        ("keys, zipf .99 of 10 M, 1 thread".to_owned(), millions(found.zipf_keys_per_s)),
    ];
    for one in &found.requests {
        let keys = if one.batch == 1 { "1 key".to_owned() } else { format!("{} keys", one.batch) };
        let name = format!("pulls, {}, {keys}, dim {}, 1 thread", one.transport, one.dim);
        rows.push((name, format!("{:.1} k requests/s", one.per_s / 1e3)));
    }
    let rows: Vec<(&str, String)> = rows.iter().map(|(name, value)| (&name[..], value.clone())).collect();
    output::pairs(&rows)
}
