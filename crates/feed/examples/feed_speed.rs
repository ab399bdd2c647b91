//! How fast minibatches get to a trainer and gradients back, without anything in between: read, lookup, push. 81 features
//! of 1 to 3 keys each, rows of 16 weights with Adagrad; keys of each feature are zipf .99 over a million, or with `--mixed`
//! over from 10 to a million, as those of click logs are.
//!
//! `cargo run --release -p sanderling-feed --example feed_speed [-- --tiny] [--mixed] [--hub hub://... --ps ADDRESS]
//! [--write FILE] [--depth 4] [--pushes 8] [--read FILE]`
//!
//! With `--write` it only writes the batch file, for a hub to serve. With `--read` it only reads a libsvm or Criteo file,
//! in order and without one. Rounds of all settings in turns, medians printed. Knows
//! no model.
#![allow(clippy::print_stdout, reason = "printing is what an example is for")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use sanderling_client::{Cluster, ConnectOptions, Floats, RemoteTable, addresses};
use sanderling_feed::{
    Embedding, EmbeddingOptions, Feature, FeaturePooling, Fed, FeedQueue, FeedStatistics, QueueOptions,
    Source,
};
use sanderling_formats::DataConfig;
use sanderling_formats::batch_file::{BatchFileOptions, BatchFileWriter};
use sanderling_hub::SubscribeOptions;
use sanderling_random::{Rng, Zipf};
use sanderling_sample::{Batch, Rows, Spec};
use sanderling_store::{Init, Optimizer, PushScale, Table, TableConfig};

const FEATURES: usize = 81;
const KEYS_MAX: u64 = 3;
const KEYS_PER_FEATURE: f64 = 1e6;
const KEYS_OF_SMALLEST: f64 = 10.0;
const ZIPF: f64 = 0.99;
const DIM: usize = 16;
const BATCH: usize = 1024;
const BATCHES: usize = 200;
const ROUNDS: usize = 5;

type Failure = Box<dyn std::error::Error>;

fn spec() -> Result<Spec, Failure> {
    let mut spec = Spec::default();
    for feature in 0..FEATURES {
        spec.feature.push(serde_json::from_str(&format!(
            "{{\"name\": \"f{feature}\", \"type\": \"multi\", \"key\": \"raw\", \"table\": \"t\"}}"
        ))?);
    }
    Ok(spec)
}

fn write(path: &Path, batches: usize, is_mixed: bool) -> Result<(), Failure> {
    let options = BatchFileOptions { overwrite: true, ..BatchFileOptions::default() };
    let mut file = BatchFileWriter::create(path, &spec()?, options)?;
    let smallest = if is_mixed { KEYS_OF_SMALLEST } else { KEYS_PER_FEATURE };
    let step = (KEYS_PER_FEATURE / smallest).powf(1.0 / (FEATURES - 1) as f64);
    let keys = (0..FEATURES).map(|feature| (smallest * step.powi(feature as i32)).round() as u64);
    let zipfs: Vec<Zipf> = keys.map(|keys| Zipf::new(keys, ZIPF)).collect();
    let mut rng = Rng::new(1, 0, 0);
    let mut batch = Batch::new(&[false; FEATURES]);
    for _ in 0..batches {
        batch.clear();
        for _ in 0..BATCH {
            for (feature, column) in batch.columns.iter_mut().enumerate() {
                for _ in 0..=rng.next() % KEYS_MAX {
                    column.push((feature as u64) << 32 | zipfs[feature].rank(&mut rng), 1.0);
                }
            }
            batch.close_row((rng.next() & 1) as f32, 1.0);
        }
        file.write(&Rows::all(&batch))?;
    }
    file.finish()?;
    Ok(())
}

fn features() -> Vec<Feature> {
    let feature = |feature| Feature { name: format!("f{feature}"), table: 0, pooling: FeaturePooling::SUM };
    (0..FEATURES).map(feature).collect()
}

fn config() -> TableConfig {
    let optimizer = Optimizer::Adagrad { lr: 0.01, eps: 1e-8, initial: 0.1, l2: 0.0 };
    TableConfig::single("t", DIM, Init::Uniform { bound: 0.01 }, optimizer)
}

/// Where rows are.
enum Rowful {
    Here(Arc<Table>),
    There(RemoteTable),
}

/// One pass; examples per second, and what the queue says.
fn pass(
    source: Source,
    rows: &Rowful,
    bounds: (usize, usize),
    threads: usize,
) -> Result<(f64, FeedStatistics, usize), Failure> {
    let (depth, pushes) = bounds;
    let options = EmbeddingOptions { pushes, ..EmbeddingOptions::default() };
    let embedding = match rows {
        Rowful::Here(table) => Embedding::embedded(vec![Arc::clone(table)], features(), options)?,
        Rowful::There(table) => Embedding::remote(vec![table.clone()], features(), options)?,
    };
    let options = QueueOptions { batch_rows: BATCH, threads, depth, ..QueueOptions::default() };
    // At the start of a line, as a tensor's memory is.
    let mut grads = Floats::default();
    grads.resize(BATCH * embedding.width());
    grads.fill(1e-3);
    let start = Instant::now();
    let queue = FeedQueue::open(source, Some(Arc::clone(&embedding)), options)?;
    let (mut examples, mut unique) = (0, 0);
    while let Some(fed) = queue.next()? {
        let Fed::LookedUp(mut looked_up) = fed else { continue };
        let values = looked_up.pooled().len();
        looked_up.add_grads(Some(&grads[..values]), &[])?;
        looked_up.push(PushScale::default())?;
        examples += looked_up.sampled().rows().len();
        unique += looked_up.unique_keys();
    }
    embedding.finish()?;
    Ok((examples as f64 / start.elapsed().as_secs_f64(), queue.statistics(), unique / examples.max(1)))
}

/// Rows per second of one pass without look-ups.
fn read(path: &str, threads: usize, ordered: bool) -> Result<f64, Failure> {
    let source = Source::files(vec![path.to_owned()], DataConfig::default(), &Spec::default(), true)?;
    let options = QueueOptions { batch_rows: BATCH, threads, ordered, ..QueueOptions::default() };
    let start = Instant::now();
    let (queue, mut rows) = (FeedQueue::open(source, None, options)?, 0);
    while let Some(fed) = queue.next()? {
        rows += fed.sampled().rows().len();
    }
    Ok(rows as f64 / start.elapsed().as_secs_f64())
}

fn read_only(path: &str) -> Result<(), Failure> {
    let settings = [(1, true), (2, true), (1, false), (2, false)];
    let mut rates = settings.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for ((threads, ordered), rates) in settings.iter().zip(&mut rates) {
            rates.push(read(path, *threads, *ordered)?);
        }
    }
    for ((threads, ordered), rates) in settings.iter().zip(&mut rates) {
        rates.sort_by(f64::total_cmp);
        let median = rates[rates.len() / 2];
        println!("{threads} threads, ordered {ordered}: {median:.0} rows/s (of {rates:.0?})");
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let is_tiny = arguments.iter().any(|argument| argument == "--tiny");
    let is_mixed = arguments.iter().any(|argument| argument == "--mixed");
    let (batches, rounds) = if is_tiny { (3, 1) } else { (BATCHES, ROUNDS) };
    if let Some(path) = option("--write") {
        return write(Path::new(&path), batches, is_mixed);
    }
    if let Some(path) = option("--read") {
        return read_only(&path);
    }
    let path: PathBuf = std::env::temp_dir().join(format!("feed_speed_{}.batch", std::process::id()));
    let hubs = option("--hub");
    if hubs.is_none() {
        write(&path, batches, is_mixed)?;
    }
    let rows = match option("--ps") {
        None => Rowful::Here(Arc::new(Table::new(config())?)),
        Some(servers) => {
            let cluster = Cluster::connect(&addresses(&servers)?, ConnectOptions::default())?;
            Rowful::There(RemoteTable::create(&cluster, &config())?)
        }
    };
    let open = || {
        let inputs = vec![path.display().to_string()];
        match &hubs {
            None => Source::files(inputs, DataConfig::default(), &Spec::default(), true),
            Some(hubs) => {
                let options = SubscribeOptions { window: 32, ..SubscribeOptions::default() };
                Source::hubs(hubs, "feed_speed", &options)
            }
        }
    };
    let number = |name: &str, default: usize| option(name).map_or(Ok(default), |text| text.parse());
    let bounds = (number("--depth", 4)?, number("--pushes", 8)?);
    let settings: &[usize] = if hubs.is_some() { &[1] } else { &[1, 2] };
    let rounds = if hubs.is_some() { 1 } else { rounds };
    let mut measured: Vec<Vec<f64>> = vec![Vec::new(); settings.len()];
    let mut last = None;
    for round in 0..=rounds {
        for (threads, measured) in settings.iter().zip(&mut measured) {
            if hubs.is_some() && round == 1 {
                break;
            }
            let (rate, statistics, unique) = pass(open()?, &rows, bounds, *threads)?;
            // The first round makes the rows.
            if round > 0 || hubs.is_some() {
                measured.push(rate);
            }
            last = Some((*threads, statistics, unique));
        }
    }
    for (threads, measured) in settings.iter().zip(&mut measured) {
        measured.sort_by(f64::total_cmp);
        if let Some(median) = measured.get(measured.len() / 2) {
            println!("{threads} threads: {median:.0} examples/s (of {measured:.0?})");
        }
    }
    if let Some((threads, statistics, unique)) = last {
        println!("of the last pass, {threads} threads, {unique} distinct keys per example:\n{statistics}");
        for stage in &statistics.stages {
            println!("  {:<9} {:.3} s", stage.name, stage.seconds);
        }
    }
    if hubs.is_none() {
        std::fs::remove_file(&path)?;
    }
    Ok(())
}
