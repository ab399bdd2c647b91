//! k-means over the embeddings of a table: in each round every worker pulls the rows of its share of the keys and adds them
//! to the nearest centroids; the sums of all workers are the next centroids; it stops when nothing moves any more.
//!
//! `cargo run --release -p sanderling-job --example kmeans -- FILE.libsvm [CLUSTERS] [WORKERS]`
//!
//! The file's keys say which rows of the table are clustered. The table is made up here, with rows around three points; it
//! could as well be on servers (`sanderling_client::RemoteTable`). Prints the centroids with the number of keys of each.
#![allow(clippy::print_stdout, reason = "printing is what an example is for")]

use std::sync::Arc;

use sanderling_formats::{BadRows, DataConfig};
use sanderling_job::{Input, Options, Order, STAGES, Tables, Worker, run};
use sanderling_observe::Stages;
use sanderling_random::Rng;
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Spec};
use sanderling_store::{Absent, Init, Optimizer, PushScale, Table, TableConfig};

const DIM: usize = 2;
const POINTS: [[f32; DIM]; 3] = [[1.0, 1.0], [5.0, 1.0], [1.0, 5.0]];
const KEYS_MAX: u64 = 100_000;
const ROWS: usize = 1024;
const ROUNDS_MAX: u64 = 100;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A table with a row for every key below the limit: one of the points, by its key, and a little noise.
fn table() -> Result<Table, Failure> {
    let optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
    let table = Table::new(TableConfig::single("items", DIM, Init::Zero, optimizer))?;
    let keys: Vec<u64> = (0..KEYS_MAX).collect();
    let mut rng = Rng::new(1, 0, 0);
    let mut noise = || (rng.next() >> 40) as f32 / (1 << 24) as f32 - 0.5;
    let mut gradients = Vec::new();
    for key in &keys {
        gradients.extend(POINTS[(key % 3) as usize].map(|value| -(value + noise())));
    }
    table.push(&keys, &gradients, PushScale::default())?;
    Ok(table)
}

fn nearest(centroids: &[f64], row: &[f32]) -> usize {
    let distance = |centroid: &[f64]| -> f64 {
        centroid.iter().zip(row).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum()
    };
    let distances = centroids.chunks_exact(DIM).map(distance).enumerate();
    distances.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(at, _)| at)
}

/// The rows of the first keys that worker 0 has, for all.
fn first(worker: &mut Worker, input: &Input, table: &Table, clusters: usize) -> Result<Vec<f64>, Failure> {
    let mut embeddings = vec![0.0; clusters * DIM];
    let mut share = worker.share(input, 0, Order::Input)?;
    if let Some(rows) = share.next(worker, clusters)? {
        let keys = &rows.keys(0)[..clusters.min(rows.keys(0).len())];
        table.pull(keys, Absent::Zero, &mut embeddings[..keys.len() * DIM], None)?;
    }
    let bytes: Vec<u8> = embeddings.iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect();
    let bytes = worker.broadcast("first centroids", 0, &bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|&value| f64::from_le_bytes(value)).collect())
}

/// Centroids, and the number of keys of each.
fn cluster(
    worker: &mut Worker,
    input: &Input,
    table: &Table,
    clusters: usize,
) -> Result<(Vec<f64>, Vec<f64>), Failure> {
    let mut embeddings = Vec::new();
    let mut centroids = first(worker, input, table, clusters)?;
    for round in 1..=ROUNDS_MAX {
        // Of every centroid the sum of its rows, then their number.
        let mut sums = vec![0.0; clusters * (DIM + 1)];
        let mut share = worker.share(input, round, Order::Input)?;
        while let Some(rows) = share.next(worker, ROWS)? {
            embeddings.resize(rows.keys(0).len() * DIM, 0.0);
            table.pull(rows.keys(0), Absent::Zero, &mut embeddings, None)?;
            for row in embeddings.chunks_exact(DIM) {
                let sum = &mut sums[nearest(&centroids, row) * (DIM + 1)..][..DIM + 1];
                sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
                sum[DIM] += 1.0;
            }
        }
        worker.sum("sums", &mut sums)?;
        let before = centroids.clone();
        for (centroid, sum) in centroids.chunks_exact_mut(DIM).zip(sums.chunks_exact(DIM + 1)) {
            if sum[DIM] > 0.0 {
                centroid.iter_mut().zip(sum).for_each(|(value, sum_of)| *value = sum_of / sum[DIM]);
            }
        }
        // All have the same bits, so all stop together.
        if centroids == before {
            return Ok((centroids, sums.chunks_exact(DIM + 1).map(|sum| sum[DIM]).collect()));
        }
    }
    Err(format!("the centroids still move after {ROUNDS_MAX} rounds").into())
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("usage: kmeans FILE.libsvm [CLUSTERS] [WORKERS]")?;
    let clusters = arguments.next().map_or(Ok(3), |clusters| clusters.parse())?;
    let workers = arguments.next().map_or(Ok(2), |workers| workers.parse())?;
    let options = EncodeOptions { missing: &[], label: LabelUse::Optional, down_sample: false };
    let encoder = Arc::new(Encoder::new(&Spec::libsvm(), &options)?);
    let reading = DataConfig::default();
    let bad_rows = Arc::new(BadRows::new(reading.on_bad_row));
    let input = Input { inputs: vec![file], reading, encoder, bad_rows };
    let table = table()?;
    let options = Options { workers, ..Options::default() };
    let (tables, stages) = (Tables::Embedded(Vec::new()), Stages::new(&STAGES));
    let ends = run(&options, &tables, &stages, |worker| cluster(worker, &input, &table, clusters))?;
    // All workers know the same.
    let (centroids, keys) = &ends[0];
    for (centroid, keys) in centroids.chunks_exact(DIM).zip(keys) {
        println!("{keys} keys around {centroid:.1?}");
    }
    Ok(())
}
