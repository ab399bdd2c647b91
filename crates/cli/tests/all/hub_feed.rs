//! `sanderling hub --feed` with parameter servers as processes of their own: what is pooled from keys that the hub has fed, and
//! what is pushed, is what a trainer with the keys gets and does; each row once per pass, whoever dies or is started anew.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::process::{Process, counters};
use sanderling_client::{Cluster, ConnectOptions, RemoteTable};
use sanderling_feed::{
    Embedding, EmbeddingOptions, Feature, FeaturePooling as Pooling, Fed, FeedError, FeedQueue, LookedUp,
    PoolAt, QueueOptions, Source,
};
use sanderling_hub::{Next, SubscribeOptions, Subscription, hub_addresses};
use sanderling_store::{Absent, Init, Optimizer, PushScale, TableConfig};

mod cluster;
mod refused;
mod traced;

const ROWS: u64 = 3_000;
const KEYS: u64 = 5_000;
const DIM: usize = 8;
const BATCH: u64 = 50;
const PASSES: u64 = 2;
/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Standard error in a file, which never fills up as a pipe does.
const TO_FILE: &str = "exec 2>>errors;";
/// Names of the features.
const FEATURES: [&str; 3] = ["id", "history", "amount"];

/// The keys of a row's history; some have none, and keys repeat.
fn history(row: u64) -> Vec<u64> {
    (0..row % 7).map(|at| (row * 31 + at * at * 977) % KEYS).collect()
}

/// A folder with the rows over two files, and with a spec.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let spec = "[[feature]]\nname = \"id\"\nkey = \"raw\"\n[[feature]]\nname = \"history\"\ntype = \"multi\"\nkey = \"raw\"\n\
                [[feature]]\nname = \"amount\"\ntype = \"numeric\"";
    std::fs::write(dir.path().join("spec.toml"), spec).unwrap();
    for file in 0..2 {
        let rows = ROWS * file / 2..ROWS * (file + 1) / 2;
        let keys = |row| history(row).iter().map(u64::to_string).collect::<Vec<_>>().join("|");
        let line = |row: u64| format!("{},{row},{},{}\n", row % 2, keys(row), row as f32 / ROWS as f32);
        let lines: String = rows.map(line).collect();
        std::fs::write(
            dir.path().join(format!("day_{file}.csv")),
            format!("label,id,history,amount\n{lines}"),
        )
        .unwrap();
    }
    dir
}

fn servers(dir: &Path, count: usize) -> (Vec<Process>, String) {
    let paths: Vec<String> = (0..count).map(|shard| format!("unix:{}/shard{shard}", dir.display())).collect();
    let start = |(shard, at): (usize, &String)| {
        let options = format!("--no-local --shard {shard}/{count} --data data");
        Process::start_at(dir, at, 1, TO_FILE, &options)
    };
    (paths.iter().enumerate().map(start).collect(), paths.join(","))
}

fn hub(dir: &Path, options: &str) -> Process {
    let command =
        format!("hub --spec spec.toml --batch-size {BATCH} --passes {PASSES} {options} day_0.csv day_1.csv");
    Process::start_command(dir, TO_FILE, &command, 1)
}

fn url(hubs: &[&Process]) -> String {
    let all: Vec<String> = hubs.iter().map(|hub| hub.addresses[0].to_string()).collect();
    format!("hub://{}", all.join(","))
}

/// Tables of a run, one per feature.
fn tables(ps: &str, run: &str, init: Init, optimizer: Optimizer) -> Vec<RemoteTable> {
    let cluster = Cluster::of(ps, ConnectOptions::default()).unwrap();
    let make = |feature: &&str| {
        let config = TableConfig::single(&format!("{run}/{feature}"), DIM, init, optimizer);
        RemoteTable::create(&cluster, &config).unwrap()
    };
    FEATURES.iter().map(make).collect()
}

fn embedding(tables: &[RemoteTable], pooling: Pooling) -> Arc<Embedding> {
    let options = EmbeddingOptions { pool_at: PoolAt::Trainer, ..EmbeddingOptions::default() };
    embedding_with(tables, pooling, options)
}

fn embedding_with(tables: &[RemoteTable], pooling: Pooling, options: EmbeddingOptions) -> Arc<Embedding> {
    let pooling = |name| if name == "history" { pooling } else { Pooling::SUM };
    let features = FEATURES.iter().enumerate();
    let features =
        features.map(|(table, name)| Feature { name: (*name).to_owned(), table, pooling: pooling(*name) });
    Embedding::remote(tables.to_vec(), features.collect(), options).unwrap()
}

/// Tables whose rows count how often they were pushed, downwards.
fn counting(ps: &str) -> (Vec<RemoteTable>, Arc<Embedding>) {
    let tables = tables(ps, "run", Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
    let embedding = embedding(&tables, Pooling::SUM);
    (tables, embedding)
}

fn open(hubs: &str, name: &str, embedding: Option<&Arc<Embedding>>) -> Result<FeedQueue, FeedError> {
    let source = Source::hubs(hubs, name, &SubscribeOptions::default())?;
    let options = QueueOptions { threads: 2, depth: 4, ..QueueOptions::default() };
    FeedQueue::open(source, embedding.cloned(), options)
}

fn next(queue: &FeedQueue) -> Option<Box<LookedUp>> {
    match queue.next().unwrap()? {
        Fed::LookedUp(looked_up) => Some(looked_up),
        Fed::Sampled(_) => panic!("it was not looked up"),
    }
}

/// Pushes a one for every row of so many minibatches, or of all.
fn train(queue: &FeedQueue, most: usize) -> usize {
    for trained in 0..most {
        let Some(mut looked_up) = next(queue) else { return trained };
        let ones = vec![1.0; looked_up.pooled().len()];
        looked_up.add_grads(Some(&ones), &[]).unwrap();
        looked_up.push(PushScale::default()).unwrap();
    }
    most
}

fn len(table: &RemoteTable) -> u64 {
    table.size().unwrap().0
}

fn pull(table: &RemoteTable, keys: u64) -> Vec<f32> {
    let keys: Vec<u64> = (0..keys).collect();
    let mut rows = vec![0.0; keys.len() * DIM];
    table.pull(&keys, Absent::Zero, &mut rows, None).unwrap();
    rows
}

/// Every row of every pass was pushed once: those of the id, which nobody fed, and those of the history.
fn check_once_per_pass(tables: &[RemoteTable]) {
    let ids = pull(&tables[0], ROWS);
    let wrong = ids.iter().position(|count| *count != -(PASSES as f32));
    assert!(wrong.is_none(), "row {wrong:?} was used {} times", -ids[wrong.unwrap_or_default()]);
    let mut expected = vec![0.0; KEYS as usize];
    (0..ROWS).flat_map(history).for_each(|key| expected[key as usize] -= PASSES as f32);
    let counts = pull(&tables[1], KEYS);
    let counts: Vec<f32> = counts.chunks_exact(DIM).map(|row| row[0]).collect();
    let wrong: Vec<_> = (0..KEYS as usize).filter(|&key| counts[key] != expected[key]).collect();
    assert!(wrong.is_empty(), "{} keys of the history, such as {:?}", wrong.len(), wrong.first());
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn check_near(what: &str, fed: &[f32], keyed: &[f32]) {
    assert_eq!(fed.len(), keyed.len());
    let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-6 * b.abs().max(1.0);
    let wrong = fed.iter().zip(keyed).position(far);
    assert!(wrong.is_none(), "{what}: value {wrong:?} is {:?}", wrong.map(|at| (fed[at], keyed[at])));
}

/// Looks the first pass up and trains in the second, by gradients that are the same for the same sample; the pooled rows by the
/// number of the row, and what went from the hub to the trainer.
fn both_passes(
    hub: &Process,
    embedding: &Arc<Embedding>,
) -> (BTreeMap<u64, Vec<f32>>, BTreeMap<String, u64>) {
    let queue = open(&url(&[hub]), "t", Some(embedding)).unwrap();
    let (mut pooled, mut trained, mut counted) = (BTreeMap::new(), 0, BTreeMap::new());
    while let Some(mut looked_up) = next(&queue) {
        let sampled = Arc::clone(looked_up.sampled());
        let ids = sampled.rows().keys(0).to_vec();
        let width = looked_up.embedding().width();
        if sampled.pass == 0 {
            let rows = looked_up.pooled().chunks_exact(width);
            ids.iter().zip(rows).for_each(|(id, row)| drop(pooled.insert(*id, row.to_vec())));
            continue;
        }
        let gradient = |id: u64, at: usize| ((id * 7 + at as u64 * 3) % 11) as f32 / 8.0 - 0.5;
        let grads: Vec<f32> = ids.iter().flat_map(|&id| (0..width).map(move |at| gradient(id, at))).collect();
        looked_up.add_grads(Some(&grads), &[]).unwrap();
        looked_up.push(PushScale { lr_scale: 0.5 }).unwrap();
        trained += 1;
        if trained == ROWS / BATCH {
            counted = counters(&hub.addresses[0]);
        }
    }
    embedding.finish().unwrap();
    assert_eq!((pooled.len() as u64, trained), (ROWS, ROWS / BATCH));
    (pooled, counted)
}

fn check_same(count: usize, pooling: Pooling, optimizer: Optimizer, options: &str) -> u64 {
    let dir = folder();
    let (processes, ps) = servers(dir.path(), count);
    let features = check_same_on(dir.path(), &ps, pooling, optimizer, options);
    // What was only looked up the servers have forgotten, but for what waits in lookups that were not used again.
    for process in &processes {
        let kept = counters(&process.addresses[0])["fed_batches"];
        assert!(kept < ROWS / BATCH / 2, "{kept} batches are kept");
    }
    features
}

fn check_same_on(dir: &Path, ps: &str, pooling: Pooling, optimizer: Optimizer, options: &str) -> u64 {
    let init = Init::Uniform { bound: 1.0 };
    let made = ["fed", "keyed"].map(|run| tables(ps, run, init, optimizer));
    let listen = "--listen 127.0.0.1:0 --shuffle-rows 700";
    let hubs = [hub(dir, &format!("{listen} --ps {ps} {options}")), hub(dir, listen)];
    let embeddings = [embedding(&made[0], pooling), embedding(&made[1], pooling)];
    let (fed, fed_counters) = both_passes(&hubs[0], &embeddings[0]);
    let (keyed, keyed_counters) = both_passes(&hubs[1], &embeddings[1]);
    for (id, row) in &keyed {
        check_near(&format!("pooled rows of {id}"), &fed[id], row);
    }
    check_near("rows of the id", &pull(&made[0][0], ROWS), &pull(&made[1][0], ROWS));
    check_near("rows of the history", &pull(&made[0][1], KEYS), &pull(&made[1][1], KEYS));
    assert_eq!((len(&made[0][2]), len(&made[1][2])), (1, 1));
    let (here, there) = (embeddings[0].pooled_at(), embeddings[1].pooled_at());
    assert_eq!((there.hub.features, here.late.features), (0, 0));
    // Nobody needed the keys, and fewer bytes went to the trainer.
    assert_eq!(fed_counters["trainer t asked_whole"], 0);
    assert!(
        fed_counters["trainer t bytes"] < keyed_counters["trainer t bytes"],
        "{fed_counters:?} {keyed_counters:?}"
    );
    here.hub.features
}

const FEED: &str = "--feed history=fed/history:";

#[test]
fn rows_and_gradients_are_those_of_a_trainer_with_the_keys() {
    let (sgd, adagrad) = (
        Optimizer::Sgd { lr: 0.5, l2: 0.0 },
        Optimizer::Adagrad { lr: 0.1, eps: 1e-10, initial: 0.1, l2: 0.0 },
    );
    let both = 2 * PASSES * ROWS / BATCH;
    let options = format!("{FEED}mean,amount=fed/amount");
    assert_eq!(check_same(1, Pooling::MEAN, sgd, &options), both);
    assert_eq!(check_same(2, Pooling::MEAN, adagrad, &options), both);
    assert_eq!(check_same(2, Pooling::SUM, adagrad, &format!("{FEED}sum")), both / 2);
}

#[test]
fn features_are_fed_where_the_trainers_link_has_fewer_bytes() {
    // Over two servers a key of its own per sample costs less than two rows and gradients of eight weights; three keys do not.
    let sgd = Optimizer::Sgd { lr: 0.5, l2: 0.0 };
    let options = "--feed-auto id=fed/id,history=fed/history";
    assert_eq!(check_same(2, Pooling::SUM, sgd, options), PASSES * ROWS / BATCH);
}

#[test]
fn each_row_is_used_once_over_two_hubs_though_a_trainer_dies() {
    let dir = folder();
    let (_processes, ps) = servers(dir.path(), 2);
    let (tables, embedding) = counting(&ps);
    let options = format!(
        "--listen 127.0.0.1:0 --trainer-timeout 200ms --ps {ps} --feed history=run/history,amount=run/amount"
    );
    let hubs = [
        hub(dir.path(), &format!("{options} --share 0/2")),
        hub(dir.path(), &format!("{options} --share 1/2")),
    ];
    let hubs_url = url(&[&hubs[0], &hubs[1]]);
    // It takes some and is gone without a word, as one that was killed.
    let takes_fed = SubscribeOptions { takes_fed: true, ..SubscribeOptions::default() };
    let mut lost = Subscription::open(&hub_addresses(&hubs_url).unwrap(), "dies", &takes_fed).unwrap();
    let mut numbers = Vec::new();
    for _ in 0..6 {
        let Next::Batch(delivered) = lost.next(Instant::now() + PATIENCE).unwrap() else {
            panic!("none came")
        };
        let fed = delivered.fed.unwrap();
        assert_eq!((fed.columns.len(), fed.servers), (2, 2));
        assert!(delivered.batch.rows().keys(1).is_empty() && !delivered.batch.rows().keys(0).is_empty());
        numbers.push(fed.batch);
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 6, "two hubs count from the same number");
    drop(lost);
    let first = open(&hubs_url, "leaves", Some(&embedding)).unwrap();
    assert_eq!(train(&first, 7), 7);
    drop(first);
    let queues = ["a", "b"].map(|name| open(&hubs_url, name, Some(&embedding)).unwrap());
    let trained: usize = std::thread::scope(|scope| {
        let threads = queues.each_ref().map(|queue| scope.spawn(|| train(queue, usize::MAX)));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(trained as u64 + 7, PASSES * ROWS / BATCH);
    embedding.finish().unwrap();
    check_once_per_pass(&tables);
    drop(queues);
    for hub in hubs {
        let (status, _) = hub.end();
        assert!(status.success());
    }
}

#[test]
fn what_a_server_has_forgotten_is_looked_up_by_the_keys() {
    let dir = folder();
    let (mut processes, ps) = servers(dir.path(), 1);
    let (_, before) = counting(&ps);
    let hub = hub(dir.path(), &format!("--listen 127.0.0.1:0 --ps {ps} --feed history=run/history"));
    let queue = open(&url(&[&hub]), "t", Some(&before)).unwrap();
    assert_eq!(train(&queue, 9), 9);
    before.finish().unwrap();
    drop((queue, before));
    // Some are fed and ready when the server goes.
    let fed = || counters(&processes[0].addresses[0])["fed_batches"];
    eventually("nothing is ready", || fed() >= 8);
    processes[0].signal("TERM");
    let (status, _) = processes.remove(0).end();
    assert!(status.success());
    let (_processes, ps) = servers(dir.path(), 1);
    let (tables, after) = counting(&ps);
    let queue = open(&url(&[&hub]), "t", Some(&after)).unwrap();
    let rest = train(&queue, usize::MAX);
    assert_eq!(rest as u64 + 9, PASSES * ROWS / BATCH);
    after.finish().unwrap();
    check_once_per_pass(&tables);
    let pooled_at = after.pooled_at();
    assert!(pooled_at.hub.features > 0 && pooled_at.trainer.features > rest as u64, "{pooled_at:?}");
}

#[test]
fn a_hub_that_was_started_anew_has_the_keys_of_what_trainers_have() {
    let dir = folder();
    let (_processes, ps) = servers(dir.path(), 1);
    let (tables, embedding) = counting(&ps);
    let at = format!("unix:{}/hub", dir.path().display());
    let start = || {
        hub(dir.path(), &format!("--listen {at} --position position --ps {ps} --feed history=run/history"))
    };
    let first = start();
    let hubs = url(&[&first]);
    let options = SubscribeOptions { takes_fed: true, ..SubscribeOptions::default() };
    let held = Mutex::new(Subscription::open(&hub_addresses(&hubs).unwrap(), "t", &options).unwrap());
    let mut taken = Vec::new();
    for _ in 0..4 {
        let Next::Batch(delivered) = held.lock().unwrap().next(Instant::now() + PATIENCE).unwrap() else {
            panic!("none came")
        };
        taken.push(delivered);
    }
    first.signal("TERM");
    assert!(first.end().0.success());
    let second = start();
    let full_batches = held.lock().unwrap().full_batches();
    for delivered in &taken {
        let whole = full_batches.get(&held, delivered.hub, delivered.number).unwrap().unwrap();
        let (whole, rest) = (whole.rows(), delivered.batch.rows());
        assert_eq!(whole.keys(0), rest.keys(0), "it is another minibatch");
        let expected: Vec<u64> = whole.keys(0).iter().flat_map(|&row| history(row)).collect();
        assert_eq!(whole.keys(1), expected);
        assert!(rest.keys(1).is_empty() && !expected.is_empty());
    }
    // What it does not have, it is not given.
    assert!(full_batches.get(&held, 0, 1_000).unwrap().is_none());
    held.lock().unwrap().leave(Instant::now() + PATIENCE).unwrap();
    assert!(full_batches.get(&held, 0, taken[0].number).unwrap().is_none());
    let queue = open(&hubs, "other", Some(&embedding)).unwrap();
    assert_eq!(train(&queue, usize::MAX) as u64, PASSES * ROWS / BATCH);
    embedding.finish().unwrap();
    check_once_per_pass(&tables);
    drop((queue, second));
}

#[test]
fn clipping_a_second_lookup_and_gradients_that_are_taken_away_have_the_keys() {
    let dir = folder();
    let (_processes, ps) = servers(dir.path(), 2);
    let (_tables, counting) = counting(&ps);
    let options = format!("--listen 127.0.0.1:0 --ps {ps} --feed history=run/history,amount=run/amount");
    let hub = hub(dir.path(), &options);
    let queue = open(&url(&[&hub]), "t", Some(&counting)).unwrap();
    let mut brought = next(&queue).unwrap();
    let sampled = Arc::clone(brought.sampled());
    let ids = sampled.rows().keys(0).to_vec();
    let ones = vec![1.0; brought.pooled().len()];
    brought.add_grads(Some(&ones), &[]).unwrap();
    // The norm of as many ones as there are keys: per distinct key the square of how often it occurs.
    let (mut times, mut amount) = (BTreeMap::<u64, f64>::new(), 0.0);
    ids.iter().flat_map(|&row| history(row)).for_each(|key| *times.entry(key).or_default() += 1.0);
    ids.iter().for_each(|&row| amount += f64::from(row as f32 / ROWS as f32));
    let squares = ids.len() as f64 + times.values().map(|times| times * times).sum::<f64>() + amount * amount;
    let norm = brought.grad_norm_squared().unwrap();
    assert!((norm / (squares * DIM as f64) - 1.0).abs() < 1e-5, "{norm} {squares}");
    // Another lookup of it does not take what was fed away from the first, and has the same rows.
    let mut again = counting.look_up(sampled).unwrap();
    check_near("another lookup", again.pooled(), brought.pooled());
    again.add_grads(Some(&ones), &[]).unwrap();
    let mut taken = Vec::new();
    again
        .take_gradients(|table, keys, counts, _| taken.push((table, keys.len(), counts.iter().sum::<u32>())))
        .unwrap();
    let keys: u32 = times.values().map(|&times| times as u32).sum();
    assert_eq!(taken, [(0, ids.len(), ids.len() as u32), (1, times.len(), keys), (2, 1, ids.len() as u32)]);
    brought.push(PushScale::default()).unwrap();
    counting.finish().unwrap();
    assert_eq!(counters(&hub.addresses[0])["trainer t asked_whole"], 2);
    // Once it was used up, nobody has its keys.
    let used = Arc::clone(next(&queue).unwrap().sampled());
    drop(next(&queue));
    eventually("it is not acknowledged", || counters(&hub.addresses[0])["acknowledged"] >= 2);
    let error = counting.look_up(used).unwrap_err();
    assert!(matches!(error, FeedError::Late { number: 1, .. }), "{error}");
}

#[test]
fn keys_that_are_to_stay_without_a_row_are_looked_up_and_not_pushed() {
    let dir = folder();
    let (_processes, ps) = servers(dir.path(), 1);
    let made = tables(&ps, "run", Init::Uniform { bound: 1.0 }, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
    let features = vec![Feature { name: "history".to_owned(), table: 1, pooling: Pooling::SUM }];
    let options = EmbeddingOptions { absent: Absent::Zero, ..EmbeddingOptions::default() };
    let zero = Embedding::remote(made.clone(), features, options).unwrap();
    let hub = hub(dir.path(), &format!("--listen 127.0.0.1:0 --ps {ps} --feed history=run/history"));
    let queue = open(&url(&[&hub]), "t", Some(&zero)).unwrap();
    let mut looked_up = next(&queue).unwrap();
    assert!(looked_up.missing() > 0 && looked_up.pooled().iter().all(|x| *x == 0.0));
    let error = looked_up.push(PushScale::default()).unwrap_err().to_string();
    assert!(error.contains("absent") && error.contains("--feed"), "{error}");
    assert_eq!(len(&made[1]), 0);
}

/// A server that does not answer is sent no more pushes than may be outstanding; whoever pushes waits, and nothing is lost.
#[test]
fn pushes_that_are_not_answered_are_bounded() {
    let dir = folder();
    let (processes, ps) = servers(dir.path(), 1);
    let made = tables(&ps, "run", Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
    let options = EmbeddingOptions { pool_at: PoolAt::Trainer, pushes: 2, ..EmbeddingOptions::default() };
    let embedding = embedding_with(&made, Pooling::SUM, options);
    let hub = hub(dir.path(), "--listen 127.0.0.1:0");
    let queue = open(&url(&[&hub]), "t", Some(&embedding)).unwrap();
    let minibatches: Vec<_> = (0..5).map(|_| next(&queue).unwrap()).collect();
    drop(queue);
    processes[0].signal("STOP");
    std::thread::scope(|scope| {
        let pushing = scope.spawn(|| {
            for mut looked_up in minibatches {
                let ones = vec![1.0; looked_up.pooled().len()];
                looked_up.add_grads(Some(&ones), &[]).unwrap();
                looked_up.push(PushScale::default()).unwrap();
            }
        });
        eventually("nothing is pushed", || embedding.pushed() == 2);
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!((embedding.pushed(), embedding.push_latency().count), (2, 0));
        processes[0].signal("CONT");
        pushing.join().unwrap();
    });
    embedding.finish().unwrap();
    assert_eq!((embedding.pushed(), embedding.push_latency().count), (5, 5));
    let ids: f32 = pull(&made[0], ROWS).iter().sum();
    assert_eq!(ids, -(5.0 * BATCH as f32 * DIM as f32));
}
