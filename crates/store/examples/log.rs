//! Measures the delta log: `log [KEYS] [DIM] [GROUPS] [FOLDER]`, tiny by default.
//!
//! It writes a group with all rows, then groups of 1 % changed rows each, and prints the rows per second of writing with
//! the sync of each group, the median time of a group, and the rows per second of a replay into an empty table.

#![allow(clippy::print_stdout)] // its purpose

use std::path::PathBuf;
use std::time::Instant;

use sanderling_random::SplitMix64;
use sanderling_store::{Init, LogReader, LogTarget, LogWriter, Optimizer, PushScale, Table, TableConfig};

struct Target(Table);

impl LogTarget for Target {
    fn tables(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn table(&mut self, _: u32) -> Option<&mut Table> {
        Some(&mut self.0)
    }

    fn pushes(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }
}

fn main() {
    let number = |at: usize| std::env::args().nth(at).and_then(|text| text.parse::<usize>().ok());
    let (keys, dim, groups) = (number(1).unwrap_or(20_000), number(2).unwrap_or(8), number(3).unwrap_or(10));
    let parent = std::env::args().nth(4).map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = parent.join(format!("log-{}", std::process::id()));
    let config = TableConfig::single(
        "t",
        dim,
        Init::Normal { std: 0.1 },
        Optimizer::Adagrad { lr: 0.1, eps: 1e-6, initial: 0.0, l2: 0.0 },
    );
    let table = Table::new(config.clone()).expect("a table");
    let grads = vec![0.1; 512 * dim];
    let push = |keys: &[u64]| {
        keys.chunks(512).for_each(|keys| {
            table.push(keys, &grads[..keys.len() * dim], PushScale::default()).expect("room");
        });
    };
    push(&(0..keys as u64).collect::<Vec<_>>());
    let mut writer = LogWriter::create(&dir, 1, 256 << 20).expect("a folder");
    let (mut times, mut rows, start) = (Vec::new(), keys, Instant::now());
    writer.tables(b"").expect("written");
    let (mut epoch, _) = writer.all_rows(1, &table, 1 << 24).expect("written");
    writer.commit(0, true).expect("on disk");
    let mut written = start.elapsed();
    let mut rng = SplitMix64::new(7);
    for group in 0..groups {
        let first = rng.below(keys as u64);
        let changed: Vec<u64> =
            (0..(keys as u64 / 100).max(1)).map(|at| (first + at * 37) % keys as u64).collect();
        push(&changed);
        rows += changed.len();
        let start = Instant::now();
        if writer.begins_segment() {
            writer.tables(b"").expect("written");
        }
        (epoch, _) = writer.changes(1, &table, epoch).expect("written");
        writer.commit(group as u64, true).expect("on disk");
        times.push(start.elapsed());
        written += start.elapsed();
    }
    times.sort_unstable();
    let millions = |rows: usize, seconds: f64| rows as f64 / seconds / 1e6;
    println!(
        "write {:.2} M rows/s, group of {} rows {:.2} ms",
        millions(rows, written.as_secs_f64()),
        (keys / 100).max(1),
        times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    );
    let start = Instant::now();
    let mut target = Target(Table::new(config).expect("a table"));
    let reader = LogReader::open(&dir, 1, 1, false).expect("a log");
    let end = reader.replay(&mut target).expect("a whole log");
    println!("replay {:.2} M rows/s, {} groups", millions(rows, start.elapsed().as_secs_f64()), end.groups);
    assert_eq!(target.0.len(), table.len());
    std::fs::remove_dir_all(&dir).expect("removed");
}
