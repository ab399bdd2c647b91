//! `sanderling bench store`: the operations of an embedding table beside the limit of this machine's memory.

use std::path::PathBuf;

use sanderling_bench::{Op, StoreOptions, StoreReport, TableArgs, store};
use sanderling_observe::Machine;
use sanderling_store::{Distances, Dtype, Packing};

use crate::failure::Failure;
use crate::output;
use crate::progress::Bar;

/// Measure pull, pooled pull, push and a mix, each beside the memory limit
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  # 10 M keys of dim 32; minutes
  sanderling bench store
  sanderling bench store --keys 50000000 --optimizer sgd --ops pull \\
      --dists uniform
  sanderling bench store --dim 16 --ops pull_pooled --json pooled.json
  sanderling bench store --keys 1000000 --threads 1 --ids shifted --json - \\
      > store.json

The memory limit is the rate of the same memory accesses with all addresses known: one independent index line and the \
row of each key for a pull, the rows alone for a pooled pull and a push. It alternates with the operation, at the \
best prefetch distance of a sweep; with f16 and bf16 it reads the same bytes but does not convert them. Each round \
draws new keys; zipf ranks are scattered over the keys. ns/key is per thread, p50 and p99 are per batch (in the mix: \
of its pulls), GB/s counts the cache lines that must be touched. Measure on an idle machine.")]
pub(super) struct Args {
    #[command(flatten)]
    table: TableArgs,
    /// Data type of the weights: f32, f16 or bf16
    #[arg(long, default_value = "f32", value_parser = dtype)]
    dtype: Dtype,
    /// Packing of rows and index: fast or compact
    #[arg(long, default_value = "fast", value_parser = packing)]
    packing: Packing,
    /// Prefetch distances: keys ahead for index buckets, cache lines ahead for rows [default: 48,192]
    #[arg(long, value_name = "KEYS,LINES", value_parser = distances)]
    distances: Option<Distances>,
    /// Thread counts to measure, comma-separated, such as 1,2 [default: 1 and one per processor]
    #[arg(long, value_delimiter = ',')]
    threads: Vec<usize>,
    /// Operations to measure, comma-separated
    #[arg(long, value_delimiter = ',', default_values_t = StoreOptions::default().ops)]
    ops: Vec<Op>,
    /// Number of rounds; each measures every operation and its limit once
    #[arg(long, default_value_t = StoreOptions::default().rounds)]
    rounds: usize,
    /// Number of requests per thread and round
    #[arg(long, default_value_t = StoreOptions::default().batches)]
    batches: usize,
    /// Random seed of the keys
    #[arg(long, default_value_t = StoreOptions::default().seed)]
    seed: u64,
    /// Print the memory limit at each prefetch distance, too
    #[arg(long)]
    sweep: bool,
    /// JSON file to write; - for standard output, without the table [default: none]
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Suppress progress output
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    let mut options = StoreOptions {
        dtype: args.dtype,
        packing: args.packing,
        distances: args.distances.unwrap_or_default(),
        ops: args.ops.clone(),
        rounds: args.rounds,
        batches: args.batches,
        seed: args.seed,
        ..args.table.options()
    };
    if !args.threads.is_empty() {
        options.threads.clone_from(&args.threads);
    }
    super::check(args.json.as_deref())?;
    let bar = Bar::new(args.quiet);
    let report = store::run(&options, &mut |what, done, of| bar.steps(what, done, of));
    bar.finish();
    super::show(&report.map_err(super::failed)?, args.json.as_deref(), |report| {
        describe(report, args.sweep)
    })?;
    Ok(0)
}

fn dtype(name: &str) -> Result<Dtype, String> {
    match name {
        "f32" => Ok(Dtype::F32),
        "f16" => Ok(Dtype::F16),
        "bf16" => Ok(Dtype::Bf16),
        _ => Err("expected f32, f16 or bf16".to_string()),
    }
}

fn packing(name: &str) -> Result<Packing, String> {
    match name {
        "fast" => Ok(Packing::Fast),
        "compact" => Ok(Packing::Compact),
        _ => Err("expected fast or compact".to_string()),
    }
}

fn distances(text: &str) -> Result<Distances, String> {
    let (keys, lines) = text.split_once(',').ok_or("expected two numbers, such as 32,64")?;
    let number = |text: &str| text.trim().parse().map_err(|_| format!("{text:?} is not a number"));
    Ok(Distances { bucket_keys: number(keys)?, row_lines: number(lines)? })
}

fn describe(report: &StoreReport, sweep: bool) -> String {
    let (options, Machine { cpu, cpus_usable, simd, memory_bytes, .. }) = (&report.options, &report.machine);
    let mut head = vec![
        ("machine", format!("{cpu}, {cpus_usable} processors, {simd}, {}", output::bytes(*memory_bytes))),
        (
            "table",
            format!(
                "{} keys, dim {}, {}, {}, {} packing",
                output::count(options.keys),
                options.dim,
                options.optimizer,
                format!("{:?}", options.dtype).to_lowercase(),
                format!("{:?}", options.packing).to_lowercase()
            ),
        ),
    ];
    if let Some(load) = report.load.last() {
        let (row_bytes, index_bytes) = (load.row_bytes_per_key, load.index_bytes_per_key);
        head.push(("bytes per key", format!("{index_bytes:.1} index, {row_bytes:.1} row")));
        head.push(("on huge pages", format!("{:.0} %", 100.0 * load.huge_share)));
    }
    for load in &report.load {
        let rate = format!(
            "{:.2} M rows/s, {} thread{}",
            load.mrows_per_s,
            load.threads,
            if load.threads == 1 { "" } else { "s" }
        );
        head.push(("load", rate));
    }
    let mut text = format!("{}\n\n{}", output::pairs(&head), results(report));
    if sweep {
        text += &format!("\n\n{}", sweeps(report));
    }
    text
}

fn results(report: &StoreReport) -> String {
    let header = [
        "op", "dist", "ids", "threads", "M keys/s", "ns/key", "p50 us", "p99 us", "GB/s", "limit", "ratio",
        "",
    ];
    let rows: Vec<Vec<String>> = report
        .results
        .iter()
        .map(|row| {
            vec![
                row.op.to_string(),
                row.dist.to_string(),
                row.ids.to_string(),
                row.threads.to_string(),
                format!("{:.1}", row.mkeys_per_s),
                format!("{:.2}", row.ns_per_key),
                format!("{:.1}", row.p50_us),
                format!("{:.1}", row.p99_us),
                format!("{:.1}", row.gb_per_s),
                format!("{:.1}", row.limit_mkeys_per_s),
                format!("{:.2}", row.ratio),
                row.read_only_mkeys_per_s.map_or_else(String::new, |rate| format!("pulls only {rate:.1}")),
            ]
        })
        .collect();
    output::table(&header, &rows)
}

/// One line per limit, one column per distance; the best is marked.
fn sweeps(report: &StoreReport) -> String {
    let mut distances: Vec<usize> = report.sweep.iter().map(|row| row.ahead).collect();
    distances.sort_unstable();
    distances.dedup();
    let titles: Vec<String> = distances.iter().map(|ahead| format!("{ahead} ahead")).collect();
    let header: Vec<&str> = ["limit of", "dist", "threads"]
        .into_iter()
        .chain(titles.iter().map(String::as_str))
        .chain([""])
        .collect();
    let of_one = |a: &sanderling_bench::SweepRow, b: &sanderling_bench::SweepRow| {
        (a.op, a.dist, a.threads) == (b.op, b.dist, b.threads)
    };
    let rows: Vec<Vec<String>> = report
        .sweep
        .chunk_by(of_one)
        .map(|rates| {
            let first = &rates[0];
            let mut cells = vec![first.op.to_string(), first.dist.to_string(), first.threads.to_string()];
            cells.extend(rates.iter().map(|row| format!("{:.1}", row.mkeys_per_s)));
            let best = rates.iter().max_by(|a, b| a.mkeys_per_s.total_cmp(&b.mkeys_per_s));
            cells.push(best.map_or_else(String::new, |row| format!("best {}", row.ahead)));
            cells
        })
        .collect();
    output::table(&header, &rows)
}
