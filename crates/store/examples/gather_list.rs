//! CPU time per row of two ways to answer a pull by RDMA: copying the rows into the reply, and writing the list from
//! which a network card would gather them: `gather_list [SLAB_MIB] [ROUNDS] [FOLDER]`, tiny by default.
//!
//! Rows are at random places, and their numbers are known: both ways search the index before. A list is that of
//! verbs: 16 bytes per row (address, length, key of the row's piece of memory) and a request of 48 bytes per 30
//! rows. It is written, and then copied to a send queue in big endian, as the driver of a card does. Rows are
//! copied from huge pages, from 4 KiB pages if FOLDER (of a tmpfs such as /dev/shm) is given, and from memory that
//! is slowed by a delay per cache line, as a stand-in for persistent memory. Prints nanoseconds per row, the best
//! of all rounds, as CSV: row bytes, way, delay per line in ns, ns per row. `bench/gather_list.py` draws it.

#![allow(clippy::print_stdout)] // its purpose

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use sanderling_random::SplitMix64;
use sanderling_store::roofline::Roofline;
use sanderling_store::{Init, Optimizer, PushScale, Table, TableConfig};

/// Rows of a pull, and pulls of a round.
const BATCH: usize = 512;
const PULLS: usize = 200;
/// Prefetch distance of a gather.
const AHEAD: usize = 16;
/// Bytes of a row.
const ROW_BYTES: [usize; 6] = [64, 128, 256, 512, 1024, 4096];
const LINE_BYTES: usize = 64;
/// Delays per cache line, in ns.
const DELAYS_NS: [u64; 6] = [0, 2, 5, 10, 20, 50];
/// Most elements of a request, and rows of a piece of registered memory, as a power of two.
const SEGMENTS_MAX: usize = 30;
const PIECE_ROWS_LOG2: u32 = 16;

/// An element of a gather list: `struct ibv_sge`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Segment {
    address: u64,
    bytes: u32,
    key: u32,
}

/// The part of a request that the CPU writes: `struct ibv_send_wr` of a write.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Request {
    id: u64,
    remote: u64,
    key: u32,
    segments: u32,
    first: u64,
    flags: u64,
    immediate: u64,
}

/// Writes the list of a pull, as the last step before a driver takes it.
#[inline(never)]
fn write_list(rows: &[u32], row_bytes: u64, keys: &[u32], list: &mut [Segment], requests: &mut [Request]) {
    let mut remote = 0;
    for (number, (rows, list)) in rows.chunks(SEGMENTS_MAX).zip(list.chunks_mut(SEGMENTS_MAX)).enumerate() {
        for (row, segment) in rows.iter().zip(list.iter_mut()) {
            *segment = Segment {
                address: 0x7000_0000_0000 + u64::from(*row) * row_bytes,
                bytes: row_bytes as u32,
                key: keys[(row >> PIECE_ROWS_LOG2) as usize],
            };
        }
        requests[number] = Request { id: 1, remote, segments: rows.len() as u32, ..Request::default() };
        remote += rows.len() as u64 * row_bytes;
    }
}

/// Copies a list to the card's queue, as a driver does when requests are posted.
#[inline(never)]
fn post(list: &[Segment], requests: &[Request], queue: &mut [[u64; 2]]) {
    let mut at = 0;
    for (list, request) in list.chunks(SEGMENTS_MAX).zip(requests) {
        queue[at] =
            [request.id.to_be(), (u64::from(request.key) << 32 | u64::from(request.segments)).to_be()];
        queue[at + 1] = [request.remote.to_be(), request.immediate.to_be()];
        at += 2;
        for (segment, slot) in list.iter().zip(&mut queue[at..]) {
            *slot =
                [(u64::from(segment.bytes) << 32 | u64::from(segment.key)).to_be(), segment.address.to_be()];
        }
        at += list.len();
    }
}

fn delay(duration: Duration) {
    let start = Instant::now();
    while start.elapsed() < duration {
        std::hint::spin_loop();
    }
}

fn fill(table: &Table, rows: usize, dim: usize) {
    let mut keys = Vec::new();
    for first in (0..rows).step_by(8192) {
        keys.clear();
        keys.extend((first..rows.min(first + 8192)).map(|key| key as u64));
        table.push(&keys, &vec![1.0; keys.len() * dim], PushScale::default()).expect("room");
    }
}

/// Nanoseconds per row of a round.
fn per_row(pulls: &[Vec<u32>], mut pull: impl FnMut(&[u32])) -> f64 {
    let start = Instant::now();
    pulls.iter().for_each(|rows| pull(rows));
    start.elapsed().as_nanos() as f64 / (pulls.len() * BATCH) as f64
}

/// The best round: other processes only make rounds longer.
fn best(all: &[f64]) -> f64 {
    all.iter().copied().fold(f64::INFINITY, f64::min)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |at: usize, default: usize| args.get(at).map_or(default, |text| text.parse().expect("a number"));
    let (slab_bytes, rounds) = (number(0, 4) << 20, number(1, 3));
    println!("row_bytes,way,delay_ns_per_line,ns_per_row");
    for row_bytes in ROW_BYTES {
        let (dim, rows) = (row_bytes / size_of::<f32>(), slab_bytes / row_bytes);
        let config = TableConfig::single("t", dim, Init::Zero, Optimizer::Sgd { lr: 0.01, l2: 0.0 });
        let mut tables = vec![("copy", Table::new(config.clone()).expect("a table"))];
        if let Some(folder) = args.get(2) {
            let config = TableConfig { budget_bytes: Some((slab_bytes * 3 + (64 << 20)) as u64), ..config };
            let (table, _) = Table::kept(config, Path::new(folder), "gather").expect("a kept table");
            tables.push(("copy_4k", table));
        }
        let keys: Vec<u32> = (0..=((2 * rows as u32) >> PIECE_ROWS_LOG2)).collect();
        let mut random = SplitMix64::new(row_bytes as u64);
        for (way, table) in &tables {
            fill(table, rows, dim);
            let roofline = Roofline::of(table);
            let places = roofline.rows() as u64;
            let mut draw = || (1 + random.next() % (places - 1)) as u32;
            let pulls: Vec<Vec<u32>> = (0..PULLS).map(|_| (0..BATCH).map(|_| draw()).collect()).collect();
            // One line of the index, which is in the cache: its search is not measured.
            let (lines, mut out) = (vec![0; BATCH], vec![0.0; BATCH * dim]);
            let mut times = vec![Vec::new(); DELAYS_NS.len() + 1];
            let mut queue = vec![[0; 2]; 2 * BATCH];
            let (mut list, mut requests) = (vec![Segment::default(); BATCH], vec![Request::default(); BATCH]);
            for _ in 0..rounds {
                for (at, delay_ns) in DELAYS_NS.into_iter().enumerate() {
                    let duration =
                        Duration::from_nanos(delay_ns * (BATCH * row_bytes.div_ceil(LINE_BYTES)) as u64);
                    times[at].push(per_row(&pulls, |rows| {
                        roofline.gather(&lines, rows, AHEAD, &mut out);
                        black_box(&out);
                        if delay_ns > 0 {
                            delay(duration);
                        }
                    }));
                }
                times[DELAYS_NS.len()].push(per_row(&pulls, |rows| {
                    write_list(black_box(rows), row_bytes as u64, &keys, &mut list, &mut requests);
                    post(black_box(&list), black_box(&requests), &mut queue);
                    black_box(&queue);
                }));
            }
            let list_ns = best(&times.pop().unwrap_or_default());
            for (delay_ns, times) in DELAYS_NS.into_iter().zip(times) {
                if *way == "copy" || delay_ns == 0 {
                    println!("{row_bytes},{way},{delay_ns},{:.2}", best(&times));
                }
            }
            if *way == "copy" {
                println!("{row_bytes},list,0,{list_ns:.2}");
            }
        }
        if let Some(folder) = args.get(2) {
            drop(tables);
            std::fs::remove_dir_all(folder).expect("removed");
        }
    }
}
