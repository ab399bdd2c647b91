//! Queues over files: order, completeness, bounds, errors.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_feed::{
    Embedding, EmbeddingOptions, Feature, FeaturePooling, Fed, FeedQueue, QueueOptions, Source,
};
use sanderling_formats::{BadRowPolicy, DataConfig};
use sanderling_sample::Spec;
use sanderling_store::{Init, Optimizer, PushScale, Table, TableConfig};

/// A file of so many rows, each of which has its number as key.
fn numbered(folder: &Path, name: &str, rows: std::ops::Range<u64>) -> String {
    let mut text = String::new();
    for row in rows {
        writeln!(text, "{} {}:1", row % 2, row + 1).unwrap();
    }
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn open(inputs: &[String], embedding: Option<Arc<Embedding>>, options: QueueOptions) -> FeedQueue {
    let source = Source::files(inputs.to_vec(), DataConfig::default(), &Spec::default(), true).unwrap();
    FeedQueue::open(source, embedding, options).unwrap()
}

/// The numbers of the rows of each minibatch.
fn drain(queue: &FeedQueue) -> Vec<Vec<u64>> {
    let mut batches = Vec::new();
    while let Some(fed) = queue.next().unwrap() {
        batches.push(fed.sampled().rows().keys(0).iter().map(|key| key - 1).collect());
    }
    batches
}

const ROWS: u64 = 1003;
const BATCH: usize = 100;

fn options(threads: usize) -> QueueOptions {
    QueueOptions { batch_rows: BATCH, threads, depth: 3, ..QueueOptions::default() }
}

#[test]
fn rows_come_in_order_whatever_the_threads_and_all_of_them_without_order() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = [numbered(folder.path(), "a.svm", 0..600), numbered(folder.path(), "b.svm", 600..ROWS)];
    let all: Vec<u64> = (0..ROWS).collect();
    for threads in [1, 2, 4] {
        let batches = drain(&open(&inputs, None, QueueOptions { passes: 2, ..options(threads) }));
        assert_eq!(batches.len(), 22);
        assert!(
            batches.iter().enumerate().all(|(at, rows)| rows.len() == if at % 11 == 10 { 3 } else { BATCH })
        );
        assert_eq!(batches.concat(), [all.clone(), all.clone()].concat(), "{threads} threads");
        let mut unordered =
            drain(&open(&inputs, None, QueueOptions { ordered: false, ..options(threads) })).concat();
        unordered.sort_unstable();
        assert_eq!(unordered, all, "{threads} threads without order");
    }
}

#[test]
fn a_shuffle_depends_on_the_seed_alone_and_ranks_share_the_input() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = [numbered(folder.path(), "a.svm", 0..ROWS)];
    let shuffled = |threads, seed| {
        drain(&open(&inputs, None, QueueOptions { shuffle: 500, seed, ..options(threads) })).concat()
    };
    assert_eq!(shuffled(1, 7), shuffled(3, 7));
    assert_ne!(shuffled(1, 7), shuffled(1, 8));
    let whole = drain(&open(&inputs, None, options(1)));
    for rank in 0..3 {
        let share = drain(&open(&inputs, None, QueueOptions { rank, ranks: 3, ..options(2) }));
        let expected: Vec<Vec<u64>> = whole.iter().skip(rank as usize).step_by(3).cloned().collect();
        assert_eq!(share, expected, "rank {rank}");
    }
}

#[test]
fn an_error_comes_after_the_rows_before_it_and_names_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let good = numbered(folder.path(), "a.svm", 0..250);
    let bad = folder.path().join("b.svm");
    std::fs::write(&bad, "1 5:1\n1 what\n").unwrap();
    for ordered in [true, false] {
        let inputs = [good.clone(), bad.display().to_string()];
        let queue = open(&inputs, None, QueueOptions { ordered, ..options(2) });
        let mut rows = 0;
        let error = loop {
            match queue.next() {
                Ok(Some(fed)) => rows += fed.sampled().rows().len(),
                Ok(None) => panic!("no error after {rows} rows"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("b.svm:2"), "{error}");
        assert!(rows >= if ordered { 200 } else { 0 }, "{rows}");
        assert!(queue.next().unwrap().is_none(), "it has ended");
    }
    let missing = folder.path().join("none.svm").display().to_string();
    let error = open(&[missing], None, options(1)).next().unwrap_err().to_string();
    assert!(error.contains("none.svm"), "{error}");
}

/// As many bad rows as may be skipped are skipped in every pass.
#[test]
fn bad_rows_are_skipped_once_a_pass() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.svm");
    std::fs::write(&path, "1 1:1\n1 what\n0 2:1\n").unwrap();
    for (max, enough) in [(1, true), (0, false)] {
        let data = DataConfig { on_bad_row: BadRowPolicy::Skip { max }, ..DataConfig::default() };
        let source = Source::files(vec![path.display().to_string()], data, &Spec::default(), true).unwrap();
        let queue = FeedQueue::open(source, None, QueueOptions { passes: 3, ..options(1) }).unwrap();
        if enough {
            assert_eq!(drain(&queue), [[0, 1]; 3]);
            let statistics = queue.statistics();
            assert_eq!((statistics.bad_rows, statistics.bad_row_messages.len()), (3, 3));
            assert!(statistics.bad_row_messages[0].contains("a.svm:2"), "{statistics:?}");
            assert!(statistics.exposition("q").contains("sanderling_feed_bad_rows_total{queue=\"q\"} 3\n"));
        } else {
            assert!(queue.next().unwrap_err().to_string().contains("a.svm:2"));
        }
    }
}

#[test]
fn no_more_is_ready_than_was_asked_for_and_a_queue_may_be_left_at_any_time() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = [numbered(folder.path(), "a.svm", 0..ROWS)];
    let by_bytes = QueueOptions { depth: 100, depth_bytes: 1, ..options(4) };
    for (options, most) in [(options(4), 3), (by_bytes, 4)] {
        let queue = open(&inputs, None, QueueOptions { passes: u64::MAX, ..options });
        let deadline = Instant::now() + Duration::from_secs(60);
        while queue.statistics().ready == 0 {
            assert!(Instant::now() < deadline, "nothing becomes ready");
            std::thread::sleep(Duration::from_millis(1));
        }
        for _ in 0..20 {
            let fed = queue.next().unwrap();
            assert!(fed.is_some() && queue.statistics().ready <= most, "{}", queue.statistics().ready);
        }
        queue.close();
        assert!(queue.next().unwrap().is_none());
        assert_eq!(queue.statistics().batches, 20);
    }
    let wrong = QueueOptions { rank: 2, ranks: 2, ..options(1) };
    let source = Source::files(inputs.to_vec(), DataConfig::default(), &Spec::default(), true).unwrap();
    assert!(FeedQueue::open(source, None, wrong).is_err());
}

#[test]
fn minibatches_come_looked_up_and_statistics_say_who_waits() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = [numbered(folder.path(), "a.svm", 0..ROWS)];
    let optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
    let table = Arc::new(Table::new(TableConfig::single("t", 4, Init::Zero, optimizer)).unwrap());
    let source = Source::files(inputs.to_vec(), DataConfig::default(), &Spec::default(), true).unwrap();
    let name = source.spec().unwrap().feature[0].name.clone();
    let feature = Feature { name, table: 0, pooling: FeaturePooling::SUM };
    let tables = vec![Arc::clone(&table)];
    let embedding = Embedding::embedded(tables, vec![feature], EmbeddingOptions::default()).unwrap();
    let queue =
        FeedQueue::open(source, Some(Arc::clone(&embedding)), QueueOptions { passes: 3, ..options(2) });
    let queue = queue.unwrap();
    while let Some(fed) = queue.next().unwrap() {
        let Fed::LookedUp(mut looked_up) = fed else { panic!("it was not looked up") };
        let grads = vec![1.0; looked_up.pooled().len()];
        looked_up.add_grads(Some(&grads), &[]).unwrap();
        looked_up.push(PushScale::default()).unwrap();
        // At most what is ready, in the making, on its way and in our hand.
        assert!(looked_up.staleness() <= 3 + 2 + 8 + 1, "{}", looked_up.staleness());
    }
    embedding.finish().unwrap();
    assert_eq!(table.len(), ROWS as usize);
    let mut rows = vec![0.0; 4 * ROWS as usize];
    let keys: Vec<u64> = (1..=ROWS).collect();
    table.pull(&keys, sanderling_store::Absent::Zero, &mut rows, None).unwrap();
    assert!(rows.iter().all(|&weight| weight == -3.0), "each row was pushed in each of three passes");
    let statistics = queue.statistics();
    assert_eq!((statistics.batches, statistics.rows), (33, 3 * ROWS));
    assert_eq!(statistics.push_grad.count, 33);
    let report = statistics.to_string();
    for stage in ["ReadSample", "EmbeddingLookup", "PushGrad"] {
        assert!(report.contains(&format!("{stage:<15} count 33")), "{report}");
    }
    assert!(report.contains("bottleneck") || report.contains("starves"), "{report}");
}
