//! The store's benchmark: fills a table, and measures each operation beside its limit, under every load asked for.
//! Knows the store's public interface only.
//!
//! The *gather limit* of a pull touches, per key, one independent random index line and its row, both addresses known in
//! advance, at the best prefetch distance of a sweep that comes first. The limit of a pooled pull gathers and sums the
//! same rows, that of a push reads and writes them; both without an index. Limits use the table's own memory, the same
//! instructions, the same popularity of rows, and take turns with the operation.

use std::sync::Barrier;
use std::time::Instant;

use sanderling_observe::Machine;
use sanderling_observe::machine::available_bytes;
use sanderling_store::roofline::Roofline;
use sanderling_store::{PushScale, StoreError, Table};

use crate::keys::{Dist, Keys};
use crate::options::{Op, StoreOptions};
use crate::result::{BenchError, LoadRow, ResultRow, StoreReport, SweepRow};
use crate::rounds::{Measured, interleave, percentile};
use crate::traffic::{Kind, Scene, Worker};

/// Prefetch distances that are tried for the limits.
const AHEAD: [usize; 9] = [4, 8, 12, 16, 24, 32, 48, 64, 96];
/// Rounds of the sweep.
const SWEEP_ROUNDS: usize = 7;
/// Features of a sample in a pooled pull, each a bag of ids.
pub const FEATURES: usize = 26;
/// Rows per push while filling.
const LOAD_BATCH: usize = 4096;
const LINE_BYTES: f64 = 64.0;

/// Runs the benchmark. `progress` is told what comes next, how many steps are done, and of how many.
///
/// # Errors
/// [`BenchError`] for options out of range, for memory that is not there, and for whatever the table says.
pub fn run(
    options: &StoreOptions,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<StoreReport, BenchError> {
    options.check()?;
    if let Some(available_bytes) = available_bytes()
        && available_bytes < options.needed_bytes()
    {
        return Err(BenchError::Memory {
            keys: options.keys,
            row_bytes: options.row_bytes(),
            needed_bytes: options.needed_bytes(),
            available_bytes,
        });
    }
    let cells = options.ops.len() * options.dists.len() * options.threads.len();
    let steps = options.threads.len() + 1 + cells * (SWEEP_ROUNDS + options.rounds);
    let mut done = 0;
    let mut step = |what: &str| {
        progress(what, done, steps);
        done += 1;
    };

    step("touching memory");
    // The host of a virtual machine gives memory when it is first touched, and slowly: the first to fill would pay. Only
    // a table touches the same pages, of the same size.
    fill(&options.table()?, options, options.threads.iter().copied().max().unwrap_or(1))?;
    let mut load = Vec::new();
    let mut loaded = None;
    for &threads in &options.threads {
        step("filling the table");
        // One at a time: there may be no memory for two.
        drop(loaded.take());
        let table = options.table()?;
        load.push(fill(&table, options, threads)?);
        loaded = Some(table);
    }
    let Some(table) = loaded else { return Err(BenchError::Options("no threads".into())) };
    let mut report = StoreReport {
        machine: Machine::detect(),
        options: options.clone(),
        load,
        results: Vec::new(),
        sweep: Vec::new(),
    };
    for &dist in &options.dists {
        let keys = Keys::new(options.keys as u32, dist, options.ids);
        for &op in &options.ops {
            for &threads in &options.threads {
                let name = format!("{op} {dist} x{threads}");
                let cell = Cell { options, table: &table, keys: &keys, op, dist, threads };
                report.results.push(cell.measure(&mut report.sweep, &mut || step(&name))?);
            }
        }
    }
    progress("", steps, steps);
    Ok(report)
}

/// Fills the table, every thread with its share of the keys.
fn fill(table: &Table, options: &StoreOptions, threads: usize) -> Result<LoadRow, BenchError> {
    let gradients = vec![0.01; LOAD_BATCH * options.dim];
    let ones = vec![1; LOAD_BATCH];
    let barrier = Barrier::new(threads);
    let share = |thread: usize| -> Result<(Instant, Instant), StoreError> {
        let bound = |thread: usize| (options.keys * thread as u64 / threads as u64) as u32;
        let (first, end) = (bound(thread), bound(thread + 1));
        let mut ids = Vec::with_capacity(LOAD_BATCH);
        barrier.wait();
        let start = Instant::now();
        for first in (first..end).step_by(LOAD_BATCH) {
            ids.clear();
            ids.extend(
                (first..end.min(first.saturating_add(LOAD_BATCH as u32)))
                    .map(|number| options.ids.id(number)),
            );
            let gradients = &gradients[..ids.len() * options.dim];
            table.push_unique(&ids, &ones[..ids.len()], gradients, PushScale::default())?;
        }
        Ok((start, Instant::now()))
    };
    let times = std::thread::scope(|scope| {
        let share = &share;
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || share(thread))).collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, _>| match handle.join() {
            Ok(times) => times,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        handles.into_iter().map(join).collect::<Result<Vec<_>, StoreError>>()
    })?;
    let first = times.iter().map(|(start, _)| *start).min();
    let last = times.iter().map(|(_, end)| *end).max();
    let load_s = first.zip(last).map_or(0.0, |(first, last)| (last - first).as_secs_f64());
    let (stats, keys) = (table.stats(), options.keys as f64);
    if stats.rows != options.keys {
        return Err(BenchError::Lost(options.keys.abs_diff(stats.rows)));
    }
    Ok(LoadRow {
        threads,
        rows: stats.rows,
        load_s,
        mrows_per_s: keys / load_s.max(1e-9) / 1e6,
        index_bytes_per_key: stats.index_bytes as f64 / keys,
        row_bytes_per_key: stats.slab_bytes as f64 / keys,
        huge_share: stats.huge_bytes as f64 / ((stats.index_bytes + stats.slab_bytes).max(1)) as f64,
    })
}

/// One operation under one load.
struct Cell<'a> {
    options: &'a StoreOptions,
    table: &'a Table,
    keys: &'a Keys,
    op: Op,
    dist: Dist,
    threads: usize,
}

impl Op {
    fn kind(self) -> Kind {
        match self {
            Op::Pull => Kind::Pull,
            Op::PullPooled => Kind::PullPooled,
            Op::Push => Kind::Push,
            Op::Mix98 => Kind::Mix,
        }
    }

    fn limit(self, ahead: usize) -> Kind {
        match self {
            Op::Pull | Op::Mix98 => Kind::Gather { ahead },
            Op::PullPooled => Kind::Pool { ahead },
            Op::Push => Kind::Rewrite { ahead },
        }
    }
}

impl Cell<'_> {
    fn measure(&self, sweep: &mut Vec<SweepRow>, step: &mut dyn FnMut()) -> Result<ResultRow, BenchError> {
        let Cell { options, op, dist, threads, .. } = *self;
        let rates = self.take_turns(&AHEAD.map(|ahead| op.limit(ahead)), SWEEP_ROUNDS, step)?;
        let (mut best, mut best_rate) = (AHEAD[0], 0.0);
        for (ahead, measured) in AHEAD.into_iter().zip(&rates) {
            let mkeys_per_s = measured.median();
            sweep.push(SweepRow { op, dist, threads, ahead, mkeys_per_s });
            if mkeys_per_s > best_rate {
                (best, best_rate) = (ahead, mkeys_per_s);
            }
        }
        let mut passes = vec![op.kind(), op.limit(best)];
        if op == Op::Mix98 {
            passes.push(Kind::Pull);
        }
        let measured = self.take_turns(&passes, options.rounds, step)?;
        let (this, limit) = (&measured[0], &measured[1]);
        let mkeys_per_s = this.median();
        Ok(ResultRow {
            op,
            dist,
            ids: options.ids,
            threads,
            keys: options.keys,
            dim: options.dim,
            batch: if op == Op::PullPooled { options.samples } else { options.batch },
            mkeys_per_s,
            limit_mkeys_per_s: limit.median(),
            ratio: this.ratio(limit),
            ns_per_key: threads as f64 * 1e3 / mkeys_per_s,
            p50_us: percentile(&this.batch_us, 0.5),
            p99_us: percentile(&this.batch_us, 0.99),
            gb_per_s: mkeys_per_s * self.bytes_per_key() / 1e3,
            limit_ahead: best,
            read_only_mkeys_per_s: measured.get(2).map(Measured::median),
        })
    }

    fn take_turns(
        &self,
        passes: &[Kind],
        rounds: usize,
        step: &mut dyn FnMut(),
    ) -> Result<Vec<Measured>, BenchError> {
        let Cell { options, table, keys, .. } = *self;
        let limit = Roofline::of(table);
        let scene = Scene {
            table,
            keys,
            lines: limit.lines() as u32,
            row_words: limit.row_words(),
            batch: options.batch,
            batches: options.batches,
            bags: options.samples * FEATURES,
            passes,
        };
        // Pushes must not wait for it.
        drop(limit);
        let seed = options.seed.wrapping_add(rounds as u64);
        let mut workers: Vec<_> = (0..self.threads).map(|thread| Worker::new(&scene, seed, thread)).collect();
        let measured = interleave(&mut workers, passes.len(), rounds, step);
        let absent_keys = workers.iter().map(|worker| worker.absent_keys).sum();
        if let Some(error) = workers.into_iter().find_map(|worker| worker.error) {
            return Err(error.into());
        }
        if absent_keys > 0 {
            return Err(BenchError::Lost(absent_keys));
        }
        Ok(measured)
    }

    /// Bytes of the cache lines that must be touched.
    fn bytes_per_key(&self) -> f64 {
        let (pull_lines, push_lines) = Roofline::of(self.table).lines_per_row();
        // One line of the index, and what is read, or read and written, of a row.
        let lines = if self.op == Op::Push { 1.0 + 2.0 * push_lines } else { 1.0 + pull_lines };
        lines * LINE_BYTES
    }
}
