//! Queues over hubs: every row is used once per pass, whoever leaves in between.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sanderling_feed::{
    Embedding, EmbeddingOptions, Feature, FeaturePooling, Fed, FeedError, FeedQueue, LookedUp, QueueOptions,
    Recycler, Sampled, Source,
};
use sanderling_hub::SubscribeOptions;
use sanderling_hub::service::{Service, ServiceConfig};
use sanderling_sample::Batch;
use sanderling_store::{Absent, Init, Optimizer, PushScale, Table, TableConfig};

const ROWS: u64 = 5_000;
const PASSES: u64 = 2;

/// A hub that runs on a thread.
struct Hub {
    address: String,
    stop: Arc<AtomicBool>,
    run: JoinHandle<()>,
}

impl Hub {
    fn start(folder: &Path, share: (u64, u64)) -> Hub {
        let files: Vec<String> = (0..2).map(|file| numbered(folder, file)).collect();
        let config = ServiceConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            inputs: files,
            spec: toml::from_str("[[feature]]\nname = \"id\"\nkey = \"raw\"").unwrap(),
            batch: 64,
            passes: PASSES,
            shuffle: 500,
            threads: 2,
            share,
            ..ServiceConfig::default()
        };
        let service = Service::start(&config, |_| ()).unwrap();
        let (address, stop) = (service.addresses()[0].to_string(), Arc::<AtomicBool>::default());
        let stopping = Arc::clone(&stop);
        let run = std::thread::spawn(move || {
            service.run(&stopping, |_| ()).0.unwrap();
        });
        Hub { address, stop, run }
    }

    /// Waits until it ends because everything was used up.
    fn end(self) {
        self.run.join().unwrap();
        assert!(!self.stop.load(Ordering::Relaxed));
    }
}

fn numbered(folder: &Path, file: u64) -> String {
    let path = folder.join(format!("{file}.csv"));
    if path.exists() {
        // Another hub reads it.
        return path.display().to_string();
    }
    let rows = ROWS * file / 2..ROWS * (file + 1) / 2;
    let lines: String = rows.map(|row| format!("{},{row}\n", row % 2)).collect();
    std::fs::write(&path, format!("label,id\n{lines}")).unwrap();
    path.display().to_string()
}

/// A table whose rows count how often they were pushed, downwards.
fn counting() -> (Arc<Table>, Arc<Embedding>) {
    let optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
    let table = Arc::new(Table::new(TableConfig::single("t", 1, Init::Zero, optimizer)).unwrap());
    let features = vec![Feature { name: "id".to_owned(), table: 0, pooling: FeaturePooling::SUM }];
    let options = EmbeddingOptions::default();
    (Arc::clone(&table), Embedding::embedded(vec![table], features, options).unwrap())
}

fn open(hubs: &str, name: &str, embedding: &Arc<Embedding>) -> FeedQueue {
    let options = SubscribeOptions { window: 16, ..SubscribeOptions::default() };
    let source = Source::hubs(hubs, name, &options).unwrap();
    let options = QueueOptions { threads: 2, depth: 4, ..QueueOptions::default() };
    FeedQueue::open(source, Some(Arc::clone(embedding)), options).unwrap()
}

/// Pushes a one for every row of so many minibatches, or of all.
fn train(queue: &FeedQueue, most: usize) -> usize {
    for trained in 0..most {
        let Some(fed) = queue.next().unwrap() else { return trained };
        let Fed::LookedUp(mut looked_up) = fed else { panic!("it was not looked up") };
        let ones = vec![1.0; looked_up.pooled().len()];
        looked_up.add_grads(Some(&ones), &[]).unwrap();
        looked_up.push(PushScale::default()).unwrap();
    }
    most
}

fn check_once_per_pass(table: &Table, embedding: &Embedding) {
    embedding.finish().unwrap();
    let keys: Vec<u64> = (0..ROWS).collect();
    let mut counts = vec![0.0; keys.len()];
    table.pull(&keys, Absent::Zero, &mut counts, None).unwrap();
    let wrong: Vec<(usize, &f32)> =
        counts.iter().enumerate().filter(|(_, count)| **count != -(PASSES as f32)).collect();
    assert!(wrong.is_empty(), "{} rows, such as {:?}", wrong.len(), wrong.first());
}

#[test]
fn one_trainer_reads_from_two_hubs() {
    let folder = tempfile::tempdir().unwrap();
    let hubs = [Hub::start(folder.path(), (0, 2)), Hub::start(folder.path(), (1, 2))];
    let (table, embedding) = counting();
    let queue = open(&format!("hub://{},{}", hubs[0].address, hubs[1].address), "one", &embedding);
    let batches = train(&queue, usize::MAX);
    assert!(batches as u64 >= PASSES * ROWS.div_ceil(64), "{batches}");
    check_once_per_pass(&table, &embedding);
    drop(queue);
    hubs.into_iter().for_each(Hub::end);
}

#[test]
fn what_a_trainer_has_not_used_when_it_leaves_others_or_itself_get_again() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), (0, 1));
    let address = format!("hub://{}", hub.address);
    let (table, embedding) = counting();
    for round in 0..3 {
        let queue = open(&address, "leaver", &embedding);
        assert_eq!(train(&queue, 5 + round), 5 + round);
        embedding.finish().unwrap();
    }
    let queues = [open(&address, "leaver", &embedding), open(&address, "other", &embedding)];
    let shares: Vec<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = queues.iter().map(|queue| scope.spawn(|| train(queue, usize::MAX))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // All minibatches but the 18 that were used before.
    assert_eq!(shares.iter().sum::<usize>() as u64, PASSES * ROWS.div_ceil(64) - 18, "{shares:?}");
    check_once_per_pass(&table, &embedding);
    drop(queues);
    hub.end();
}

/// The next minibatch, with this gradient for each of its rows; not pushed.
fn prepared(queue: &FeedQueue, grad: f32) -> LookedUp {
    let Some(Fed::LookedUp(mut looked_up)) = queue.next().unwrap() else { panic!("there is none") };
    let grads = vec![grad; looked_up.pooled().len()];
    looked_up.add_grads(Some(&grads), &[]).unwrap();
    *looked_up
}

#[test]
fn a_minibatch_whose_push_failed_is_given_again_and_the_loop_hears_why() {
    let folder = tempfile::tempdir().unwrap();
    let last = PASSES * ROWS.div_ceil(64) - 1;
    // The last one is the one that nobody pushes after.
    for good in [3, last] {
        let hub = Hub::start(folder.path(), (0, 1));
        let address = format!("hub://{}", hub.address);
        let (table, embedding) = counting();
        let queue = open(&address, "failing", &embedding);
        assert_eq!(train(&queue, good as usize) as u64, good);
        prepared(&queue, f32::NAN).push(PushScale::default()).unwrap();
        if good < last {
            assert!(embedding.finish().unwrap_err().to_string().contains("NaN"));
        }
        let error = queue.next().unwrap_err();
        assert!(matches!(error, FeedError::Unpushed { number, .. } if number == good), "{error}");
        for word in [&hub.address[..], "table \"t\"", "NaN", "start the trainer anew"] {
            assert!(error.to_string().contains(word), "{word}: {error}");
        }
        assert!(queue.next().unwrap().is_none(), "it is closed");
        drop(queue);
        let again = open(&address, "failing", &embedding);
        // Its failure was told to the loop, and is no news to who pushes next.
        drop(embedding.finish());
        train(&again, usize::MAX);
        check_once_per_pass(&table, &embedding);
        drop(again);
        hub.end();
    }
}

fn one_row() -> Batch {
    let mut batch = Batch::new(&[false]);
    (batch.labels, batch.weights) = (vec![0.0], vec![1.0]);
    batch.columns[0].keys.push(ROWS);
    batch.columns[0].offsets.push(1);
    batch
}

#[test]
fn what_is_pushed_after_a_push_that_failed_is_given_again_too() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), (0, 1));
    let address = format!("hub://{}", hub.address);
    let (table, embedding) = counting();
    let queue = open(&address, "failing", &embedding);
    train(&queue, 2);
    let mut in_hand = prepared(&queue, 1.0);
    let others = Recycler::new(1).take(|| Sampled::new(queue.names().clone(), one_row()));
    let mut bad = embedding.look_up(Arc::new(others)).unwrap();
    bad.add_grads(Some(&[f32::NAN]), &[]).unwrap();
    bad.push(PushScale::default()).unwrap();
    // A reader of the statistics does not take the error away; who pushes next is told, and nothing of it is pushed.
    let until = Instant::now() + Duration::from_secs(60);
    while queue.statistics().push_grad.count < 3 {
        assert!(Instant::now() < until, "it is not pushed");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(in_hand.push(PushScale::default()).unwrap_err().to_string().contains("NaN"));
    drop(queue);
    train(&open(&address, "failing", &embedding), usize::MAX);
    check_once_per_pass(&table, &embedding);
    hub.end();
}

#[test]
fn what_was_in_hand_and_not_pushed_when_a_queue_is_dropped_is_given_again() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), (0, 1));
    let address = format!("hub://{}", hub.address);
    let (table, embedding) = counting();
    let queue = open(&address, "dropping", &embedding);
    train(&queue, 2);
    let unpushed = prepared(&queue, 1.0);
    drop(queue);
    drop(unpushed);
    train(&open(&address, "dropping", &embedding), usize::MAX);
    check_once_per_pass(&table, &embedding);
    hub.end();
}

#[test]
fn a_hub_that_is_not_there_is_named() {
    let options = SubscribeOptions { patience: Duration::ZERO, ..SubscribeOptions::default() };
    let error = Source::hubs("hub://127.0.0.1:1", "one", &options).unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:1"), "{error}");
}
