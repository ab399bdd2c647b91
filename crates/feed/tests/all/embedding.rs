//! Lookups and pushes against sums made one by one in double precision.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use sanderling_feed::{
    Embedding, EmbeddingOptions, Feature, FeaturePooling, FeedError, LookedUp, Recycled, Recycler, Sampled,
};
use sanderling_sample::Batch;
use sanderling_store::{Absent, Init, Optimizer, PushScale, Table, TableConfig};

/// The samples of one feature: keys, and a value for each.
type Bags = Vec<Vec<(u64, f32)>>;

fn table(name: &str, dim: usize) -> Arc<Table> {
    let optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
    Arc::new(Table::new(TableConfig::single(name, dim, Init::Uniform { bound: 1.0 }, optimizer)).unwrap())
}

fn sampled(features: &[(&str, &Bags, bool)]) -> Arc<Recycled<Sampled>> {
    let weighted: Vec<bool> = features.iter().map(|feature| feature.2).collect();
    let mut batch = Batch::new(&weighted);
    for sample in 0..features[0].1.len() {
        for ((_, bags, _), column) in features.iter().zip(&mut batch.columns) {
            bags[sample].iter().for_each(|&(key, value)| column.push(key, value));
        }
        batch.close_row(0.0, 1.0);
    }
    let names = features.iter().map(|feature| feature.0.to_owned()).collect();
    Arc::new(Recycler::new(1).take(|| Sampled::new(names, batch)))
}

fn features(list: &[(&str, usize, FeaturePooling)]) -> Vec<Feature> {
    let feature = |&(name, table, pooling): &(&str, usize, FeaturePooling)| Feature {
        name: name.to_owned(),
        table,
        pooling,
    };
    list.iter().map(feature).collect()
}

fn row(table: &Table, key: u64) -> Vec<f64> {
    let mut row = vec![0.0; table.dim()];
    table.pull(&[key], Absent::Init, &mut row, None).unwrap();
    row.into_iter().map(f64::from).collect()
}

/// What a sample's rows are pooled to, and the share of the pooled row's gradient that each of its keys gets, by coordinate.
fn pooled(
    pooling: FeaturePooling,
    bag: &[(u64, f32)],
    weighted: bool,
    rows: &[Vec<f64>],
    dim: usize,
) -> Pooled {
    let mut pooled = Pooled { row: vec![0.0; dim], shares: vec![vec![0.0; dim]; bag.len()] };
    for coordinate in 0..dim {
        let values: Vec<f64> = rows.iter().map(|row| row[coordinate]).collect();
        for (at, (_, value)) in bag.iter().enumerate() {
            let share = match pooling {
                FeaturePooling::SUM if weighted => f64::from(*value),
                FeaturePooling::SUM | FeaturePooling::None => 1.0,
                FeaturePooling::MEAN => 1.0 / bag.len() as f64,
                FeaturePooling::Max => {
                    let first = values.iter().position(|v| values.iter().all(|other| v >= other));
                    if first == Some(at) { 1.0 } else { 0.0 }
                }
            };
            pooled.shares[at][coordinate] = share;
            pooled.row[coordinate] += share * values[at];
        }
    }
    pooled
}

struct Pooled {
    row: Vec<f64>,
    shares: Vec<Vec<f64>>,
}

/// Two features of one table and one of another: what comes out, and what a push leaves behind.
fn check(pooling: FeaturePooling, dim: usize, bags: &[Bags; 3], weighted: bool) {
    let tables = [table("shared", dim), table("own", 3)];
    let list =
        [("a", 0, pooling), ("b", 0, pooling), ("c", 1, FeaturePooling::SUM), ("c", 1, FeaturePooling::None)];
    let options = EmbeddingOptions::default();
    let embedding = Embedding::embedded(tables.to_vec(), features(&list), options).unwrap();
    let columns = [("c", &bags[2], false), ("a", &bags[0], weighted), ("b", &bags[1], weighted)];
    let mut looked_up = embedding.look_up(sampled(&columns)).unwrap();
    let (samples, width) = (bags[0].len(), embedding.width());
    assert_eq!(width, 2 * dim + 3);

    let mut expected = vec![0.0; samples * width];
    let mut after: HashMap<(usize, u64), Vec<f64>> = HashMap::new();
    let grads: Vec<f32> = (0..samples * width).map(|at| (at % 13) as f32 * 0.25 - 1.0).collect();
    for (number, (at, dim, table, pooling)) in
        [(0, dim, 0, pooling), (dim, dim, 0, pooling), (2 * dim, 3, 1, FeaturePooling::SUM)]
            .into_iter()
            .enumerate()
    {
        for (sample, bag) in bags[number].iter().enumerate() {
            let rows: Vec<Vec<f64>> = bag.iter().map(|&(key, _)| row(&tables[table], key)).collect();
            let weighted = weighted && number < 2;
            let pooled = pooled(pooling, bag, weighted, &rows, dim);
            expected[sample * width + at..][..dim].copy_from_slice(&pooled.row);
            for ((key, _), shares) in bag.iter().zip(pooled.shares) {
                let row = after.entry((table, *key)).or_insert_with(|| row(&tables[table], *key));
                for (coordinate, share) in shares.into_iter().enumerate() {
                    row[coordinate] -= share * f64::from(grads[sample * width + at + coordinate]);
                }
            }
        }
    }
    let near = |found: &[f32], expected: &[f64]| {
        let far = found.iter().zip(expected).find(|(a, b)| (f64::from(**a) - **b).abs() > 1e-4);
        assert!(found.len() == expected.len() && far.is_none(), "{pooling:?}: {far:?}");
    };
    near(looked_up.pooled(), &expected);
    let keys: Vec<u64> = bags[2].iter().flatten().map(|&(key, _)| key).collect();
    let of_keys: Vec<f64> = keys.iter().flat_map(|&key| row(&tables[1], key)).collect();
    near(looked_up.rows(3).unwrap(), &of_keys);
    assert!(looked_up.rows(0).is_none());

    let ones = vec![1.0; keys.len() * 3];
    for &key in &keys {
        after.get_mut(&(1, key)).unwrap().iter_mut().for_each(|weight| *weight -= 1.0);
    }
    looked_up.add_grads(Some(&grads), &[(3, &ones)]).unwrap();
    looked_up.push(PushScale::default()).unwrap();
    embedding.finish().unwrap();
    for ((table, key), expected) in &after {
        let found: Vec<f32> = row(&tables[*table], *key).into_iter().map(|weight| weight as f32).collect();
        near(&found, expected);
    }
    assert_eq!(tables[0].len() + tables[1].len(), after.len(), "a row for every key that was pushed");
}

fn bags(samples: usize) -> impl Strategy<Value = Bags> {
    let bag = proptest::collection::vec((0u64..12, -2.0f32..2.0), 0..5);
    proptest::collection::vec(bag, samples..=samples)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn pooled_rows_and_their_gradients_are_those_of_a_loop(
        (a, b, c) in (1usize..7).prop_flat_map(|samples| (bags(samples), bags(samples), bags(samples))),
        pooling in prop_oneof![Just(FeaturePooling::SUM), Just(FeaturePooling::MEAN), Just(FeaturePooling::Max)],
        dim in prop_oneof![Just(1usize), Just(5), Just(8), Just(16)],
        weighted: bool,
    ) {
        check(pooling, dim, &[a, b, c], weighted);
    }
}

fn one_key(key: u64) -> Arc<Recycled<Sampled>> {
    sampled(&[("a", &vec![vec![(key, 1.0)]], false)])
}

fn looked_up(options: EmbeddingOptions) -> (Arc<Table>, Arc<Embedding>, LookedUp) {
    let table = table("t", 2);
    let list = features(&[("a", 0, FeaturePooling::SUM)]);
    let embedding = Embedding::embedded(vec![Arc::clone(&table)], list, options).unwrap();
    let looked_up = embedding.look_up(one_key(7)).unwrap();
    (table, embedding, looked_up)
}

#[test]
fn keys_without_a_row_stay_without_one_where_they_count_as_zeros() {
    let options = EmbeddingOptions { absent: Absent::Zero, ..EmbeddingOptions::default() };
    let (table, embedding, _) = looked_up(options);
    table.push(&[1], &[0.5, 0.5], PushScale::default()).unwrap();
    let before = row(&table, 1);
    let both = sampled(&[("a", &vec![vec![(7, 1.0), (1, 1.0), (9, 1.0)]], false)]);
    let mut looked_up = embedding.look_up(both).unwrap();
    assert_eq!((looked_up.missing(), looked_up.unique_keys()), (2, 3));
    let found: Vec<f64> = looked_up.pooled().iter().map(|&weight| f64::from(weight)).collect();
    assert_eq!(found, before);
    looked_up.add_grads(Some(&[1.0, 2.0]), &[]).unwrap();
    looked_up.push(PushScale::default()).unwrap();
    embedding.finish().unwrap();
    assert_eq!(table.len(), 1);
    let found = row(&table, 1);
    assert!((found[0] - before[0] + 1.0).abs() < 1e-6 && (found[1] - before[1] + 2.0).abs() < 1e-6);
}

#[test]
fn a_lookup_that_is_dropped_or_not_pushed_changes_nothing_and_one_is_pushed_once() {
    let (table, embedding, mut looked_up) = looked_up(EmbeddingOptions::default());
    looked_up.add_grads(Some(&[1.0, 1.0]), &[]).unwrap();
    looked_up.add_grads(Some(&[1.0, 0.0]), &[]).unwrap();
    assert_eq!(looked_up.grad_norm_squared().unwrap(), 5.0);
    looked_up.scale_grads(0.5).unwrap();
    drop(looked_up);
    embedding.finish().unwrap();
    assert_eq!((table.len(), embedding.pushed()), (0, 0));
    // The next one, in the same memory, begins without gradients.
    let mut again = embedding.look_up(one_key(7)).unwrap();
    assert_eq!(again.grad_norm_squared().unwrap(), 0.0);
    again.push(PushScale::default()).unwrap();
    assert!(matches!(again.push(PushScale::default()), Err(FeedError::Pushed)));
    assert!(matches!(again.add_grads(Some(&[1.0, 1.0]), &[]), Err(FeedError::Pushed)));
    embedding.finish().unwrap();
    assert_eq!(table.len(), 1);
}

#[test]
fn what_does_not_fit_is_refused_and_what_a_push_went_wrong_with_is_said() {
    let (table, embedding, mut looked_up) = looked_up(EmbeddingOptions::default());
    let error = looked_up.add_grads(Some(&[1.0; 3]), &[]).unwrap_err();
    assert!(matches!(error, FeedError::Length { expected: 2, found: 3, .. }), "{error}");
    assert!(looked_up.add_grads(None, &[(0, &[1.0, 1.0])]).is_err(), "the feature is pooled");
    looked_up.add_grads(Some(&[f32::NAN, 1.0]), &[]).unwrap();
    looked_up.push(PushScale::default()).unwrap();
    let error = embedding.finish().unwrap_err().to_string();
    assert!(error.contains("\"t\""), "{error}");
    assert_eq!(table.len(), 0);
    embedding.finish().unwrap();
    let other = sampled(&[("b", &vec![vec![(1, 1.0)]], false)]);
    let error = embedding.look_up(other).unwrap_err().to_string();
    assert!(error.contains("\"a\"") && error.contains("it has b"), "{error}");
    let list = features(&[("a", 3, FeaturePooling::SUM)]);
    assert!(Embedding::embedded(vec![table], list, EmbeddingOptions::default()).is_err());
}

#[test]
fn pushes_are_bounded_in_order_and_counted() {
    let (table, embedding, _) = looked_up(EmbeddingOptions { pushes: 2, ..EmbeddingOptions::default() });
    let first = row(&table, 7);
    let stale = embedding.look_up(one_key(7)).unwrap();
    for _ in 0..50 {
        let mut looked_up = embedding.look_up(one_key(7)).unwrap();
        looked_up.add_grads(Some(&[0.5, 0.0]), &[]).unwrap();
        looked_up.push(PushScale::default()).unwrap();
        assert!(looked_up.staleness() <= 3, "{}", looked_up.staleness());
    }
    embedding.finish().unwrap();
    assert_eq!(embedding.pushed(), 50);
    assert_eq!(embedding.push_latency().count, 50);
    assert_eq!(stale.staleness(), 50);
    assert!((row(&table, 7)[0] - first[0] + 25.0).abs() < 1e-4);
}

/// While the table is a writer's alone no push is applied, however long that takes.
#[test]
fn a_lookup_waits_for_no_push_and_misses_no_more_than_may_be_outstanding() {
    const PUSHES: usize = 3;
    let (table, embedding, _) = looked_up(EmbeddingOptions { pushes: PUSHES, ..EmbeddingOptions::default() });
    let first = row(&table, 7);
    let push = |embedding: &Arc<Embedding>| {
        let mut looked_up = embedding.look_up(one_key(7)).unwrap();
        looked_up.add_grads(Some(&[1.0, 0.0]), &[]).unwrap();
        looked_up.push(PushScale::default()).unwrap();
    };
    push(&embedding);
    embedding.finish().unwrap();
    let writer = table.writer(PushScale::default()).unwrap();
    (0..PUSHES).for_each(|_| push(&embedding));
    let mut missing = embedding.look_up(one_key(7)).unwrap();
    assert!((f64::from(missing.pooled()[0]) - first[0] + 1.0).abs() < 1e-6, "that many were missed");
    assert_eq!((embedding.pushed(), embedding.applied()), (4, 1));
    std::thread::scope(|scope| {
        let (begun, begins) = std::sync::mpsc::channel();
        let embedding = &embedding;
        let further = scope.spawn(move || {
            begun.send(()).unwrap();
            push(embedding);
        });
        begins.recv().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!further.is_finished(), "a further push waits");
        assert_eq!(embedding.pushed(), 4);
        drop(writer);
        further.join().unwrap();
    });
    embedding.finish().unwrap();
    let mut all = embedding.look_up(one_key(7)).unwrap();
    assert!((f64::from(all.pooled()[0]) - first[0] + 5.0).abs() < 1e-6);
    assert_eq!(missing.staleness(), 4);
}

#[test]
fn with_no_push_outstanding_a_push_returns_when_it_has_been_applied() {
    let (table, embedding, _) = looked_up(EmbeddingOptions { pushes: 0, ..EmbeddingOptions::default() });
    let first = row(&table, 7);
    for step in 1..=50 {
        let mut looked_up = embedding.look_up(one_key(7)).unwrap();
        looked_up.add_grads(Some(&[0.5, 0.0]), &[]).unwrap();
        looked_up.push(PushScale::default()).unwrap();
        assert_eq!((embedding.pushed(), embedding.applied()), (step, step));
        assert!((row(&table, 7)[0] - first[0] + 0.5 * step as f64).abs() < 1e-4);
    }
    let mut wrong = embedding.look_up(one_key(7)).unwrap();
    wrong.add_grads(Some(&[f32::NAN, 0.0]), &[]).unwrap();
    assert!(matches!(wrong.push(PushScale::default()), Err(FeedError::Push(_))), "its own error, at once");
    assert!(
        Embedding::embedded(
            vec![table],
            features(&[("a", 0, FeaturePooling::SUM)]),
            EmbeddingOptions { pushes: sanderling_feed::PUSHES_MAX + 1, ..EmbeddingOptions::default() }
        )
        .is_err()
    );
}

#[test]
fn each_table_has_a_scale_of_its_own() {
    let tables = [table("one", 1), table("other", 1)];
    let list = features(&[("a", 0, FeaturePooling::SUM), ("b", 1, FeaturePooling::SUM)]);
    let embedding = Embedding::embedded(tables.to_vec(), list, EmbeddingOptions::default()).unwrap();
    let bags = vec![vec![(7, 1.0)]];
    let before = [row(&tables[0], 7)[0], row(&tables[1], 7)[0]];
    let mut looked_up = embedding.look_up(sampled(&[("a", &bags, false), ("b", &bags, false)])).unwrap();
    looked_up.add_grads(Some(&[1.0, 1.0]), &[]).unwrap();
    let scales = [0.25, 0.5].map(|lr_scale| PushScale { lr_scale });
    looked_up.push(sanderling_feed::Scales::Each(Arc::from(scales))).unwrap();
    embedding.finish().unwrap();
    for (table, (before, moved)) in tables.iter().zip(before.iter().zip([0.25, 0.5])) {
        assert!((before - row(table, 7)[0] - moved).abs() < 1e-6);
    }
}
