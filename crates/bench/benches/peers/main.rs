//! The store beside the maps that one would otherwise keep embeddings in, on the same keys and in interleaved rounds:
//!
//! `cargo bench -p sanderling-bench --bench peers -- --keys 10000000 --dim 32 --json peers.json`
//!
//! Knows command line and output; `race.rs` measures, `rivals.rs` has the maps. Rivals get their memory from the
//! system's allocator, as they do in a program; `GLIBC_TUNABLES=glibc.malloc.hugetlb=1` before the command lets them
//! have huge pages too.
#![allow(clippy::print_stdout)] // its purpose

mod race;
mod rivals;

use std::path::PathBuf;

use clap::Parser;
use sanderling_bench::{StoreOptions, TableArgs};

/// Of 512 keys: a third to a half of a second for the slowest.
const TURN_BATCHES: usize = 4000;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    table: TableArgs,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', default_values_t = StoreOptions::default().threads)]
    threads: Vec<usize>,
    /// Turns of each
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Requests of every thread in a turn. In a short one all that is seen is how its maps, pages and all, come back into the
    /// caches after the turns of the others, which costs most whoever is fastest
    #[arg(long, default_value_t = TURN_BATCHES)]
    batches: usize,
    /// Contestants [default: all]
    #[arg(long, value_delimiter = ',', value_parser = rivals::NAMES)]
    rivals: Vec<String>,
    /// Write the result as JSON to this file; to standard output, and nothing else there, if it is -
    #[arg(long)]
    json: Option<PathBuf>,
    /// Accepted because cargo passes it to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let options = StoreOptions {
        threads: args.threads,
        rounds: args.rounds,
        batches: args.batches,
        ..args.table.options()
    };
    let mut names: Vec<&str> = args.rivals.iter().map(String::as_str).collect();
    if names.is_empty() {
        names = rivals::NAMES.to_vec();
    }
    let report = race::run(&options, &names)?;
    let json = serde_json::to_string_pretty(&report)?;
    match args.json {
        Some(path) if path.as_os_str() == "-" => println!("{json}"),
        path => {
            if let Some(path) = path {
                std::fs::write(path, json + "\n")?;
            }
            println!(
                "{:11}  {:8}  {:>7}  {:20}  {:>8}  sanderling is",
                "op", "dist", "threads", "who", "M keys/s"
            );
            for row in report.results {
                let race::RaceRow { op, dist, threads, who, mkeys_per_s, sanderling_ratio, .. } = row;
                let (op, dist) = (op.to_string(), dist.to_string());
                println!(
                    "{op:11}  {dist:8}  {threads:>7}  {who:20}  {mkeys_per_s:8.1}  {sanderling_ratio:5.2} times"
                );
            }
        }
    }
    Ok(())
}
