//! The client over embedded tables: what it looks up, and that pull and push do what a map of rows would.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use sanderling_client::{CONSTANT_KEY, Client, ClientError, Handles};
use sanderling_sample::{Batch, Rows};
use sanderling_store::{Absent, Block, Init, Optimizer, PushScale, StoreError, Table, TableConfig};

/// Features and the tables they read: two share one.
const FEATURES: [(&str, &str); 3] = [("user", "user"), ("clicked", "item"), ("shown", "item")];
const DIMS: [(&str, usize); 3] = [("user", 3), ("item", 2), ("bias", 1)];

fn client(optimizer: Optimizer) -> Client {
    let tables = DIMS.map(|(name, dims)| {
        let init = if name == "bias" { Init::Zero } else { Init::Normal { std: 0.1 } };
        let blocks = vec![Block { dims, init, optimizer }];
        Arc::new(Table::new(TableConfig { seed: 3, ..TableConfig::new(name, blocks) }).unwrap())
    });
    Client::embedded(tables.to_vec(), FEATURES, Some("bias")).unwrap()
}

/// Rows with 0 to 3 keys per feature; `distinct`: no key twice in a row's table.
fn batch(rows: u64, distinct: bool) -> Batch {
    let mut batch = Batch::new(&[false, true, false]);
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for row in 0..rows {
        let mut used = [HashSet::new(), HashSet::new()];
        for (column, (_, table)) in FEATURES.iter().enumerate() {
            for _ in 0..random(4) {
                let key = random(40);
                if used[usize::from(*table == "item")].insert(key) || !distinct {
                    batch.columns[column].push(key, key as f32);
                }
            }
        }
        batch.close_row((row % 2) as f32, 1.0);
    }
    batch
}

/// A table as a map, its weights the first ones that the real table gives, updated by plain SGD.
struct Model {
    rows: HashMap<u64, Vec<f32>>,
    frequency: HashMap<u64, u32>,
}

const LR: f32 = 0.5;

#[test]
fn pull_and_push_equal_a_map() {
    let client = client(Optimizer::Sgd { lr: LR, l2: 0.0 });
    let mut models: Vec<Model> =
        DIMS.iter().map(|_| Model { rows: HashMap::new(), frequency: HashMap::new() }).collect();
    let all = batch(300, false);
    let mut lookup = client.lookup();
    for (step, start) in (0..300).step_by(25).enumerate() {
        let rows = Rows::new(&all, start..start + 25);
        let missing = client.pull(&rows, Absent::Init, &mut lookup).unwrap();
        let mut new: HashSet<(usize, u64)> = HashSet::new();
        let mut touched: HashSet<(usize, u64)> = HashSet::new();
        let mut pushed = Vec::new();
        for (column, (_, name)) in FEATURES.iter().enumerate() {
            let table = DIMS.iter().position(|(other, _)| other == name).unwrap();
            let dim = DIMS[table].1;
            let keys = rows.keys(column);
            assert_eq!(lookup.indices(column).len(), keys.len());
            for (at, key) in keys.iter().enumerate() {
                let index = lookup.indices(column)[at] as usize;
                let seen = &lookup.table(column).rows()[index * dim..][..dim];
                let model = &mut models[table];
                if !model.rows.contains_key(key) {
                    new.insert((table, *key));
                }
                assert_eq!(*model.rows.entry(*key).or_insert_with(|| seen.to_vec()), seen, "step {step}");
                *model.frequency.entry(*key).or_default() += 1;
                touched.insert((table, *key));
            }
            // A gradient that depends on key and place, so that a mix-up shows.
            let (indices, _, grads) = lookup.backward(column);
            for (at, key) in keys.iter().enumerate() {
                let grad = &mut grads[indices[at] as usize * dim..][..dim];
                grad.iter_mut().enumerate().for_each(|(f, g)| *g += (*key as f32 + 1.0) * (f as f32 + 0.25));
            }
            pushed.extend(keys.iter().map(|key| (table, *key)));
        }
        // Features that share a table have seen the same rows; only now do these change.
        for (table, key) in pushed {
            let weights = models[table].rows.get_mut(&key).unwrap();
            weights
                .iter_mut()
                .enumerate()
                .for_each(|(f, w)| *w -= LR * (key as f32 + 1.0) * (f as f32 + 0.25));
        }
        new.extend((step == 0).then_some((2, CONSTANT_KEY)));
        assert_eq!(missing, new.len(), "step {step}: absent keys");
        assert_eq!(lookup.unique_keys(), touched.len() + 1, "step {step}: the constant is one more");
        assert_eq!(lookup.constant(), [-LR * 2.0 * step as f32]);
        lookup.constant_grad()[0] += 2.0;
        client.push(&mut lookup, PushScale::default()).unwrap();
        // Sums of gradients round differently from one update per occurrence: the map follows the table.
        for (table, model) in client.tables().iter().zip(&mut models) {
            for (key, expected) in &mut model.rows {
                let row = table.get(*key).unwrap();
                assert_eq!(row.frequency, model.frequency[key]);
                for (expected, got) in expected.iter().zip(&row.weights) {
                    assert!((expected - got).abs() <= 1e-5 * expected.abs().max(1.0), "{expected} {got}");
                }
                *expected = row.weights;
            }
        }
    }
    assert_eq!(client.tables().iter().map(|t| t.len()).collect::<Vec<_>>(), [40, 40, 1]);
}

/// One table of dim 2, and a minibatch of so many keys that a push of them is shared.
fn many(budget_bytes: Option<u64>) -> (Client, Batch) {
    let optimizer = Optimizer::Adagrad { lr: LR, eps: 1e-10, initial: 0.0, l2: 0.0 };
    let blocks = vec![Block { dims: 2, init: Init::Normal { std: 0.1 }, optimizer }];
    let table = Table::new(TableConfig { budget_bytes, ..TableConfig::new("t", blocks) }).unwrap();
    let mut batch = Batch::new(&[false]);
    (0..20_000).for_each(|key| batch.columns[0].push(key * key, 1.0));
    batch.close_row(0.0, 1.0);
    (Client::embedded(vec![Arc::new(table)], [("f", "t")], None).unwrap(), batch)
}

#[test]
fn a_push_that_threads_share_is_as_one_thread_makes_it() {
    let of_threads = [1, 3].map(|threads| {
        let (client, batch) = many(None);
        let mut lookup = client.lookup();
        for step in 0..3 {
            client.pull(&Rows::new(&batch, 0..1), Absent::Init, &mut lookup).unwrap();
            let (_, _, grads) = lookup.backward(0);
            grads.iter_mut().enumerate().for_each(|(at, grad)| *grad = ((at * 7 + step) % 11) as f32 - 5.0);
            client.push_by(threads, &mut lookup, PushScale::default()).unwrap();
        }
        let table = &client.tables()[0];
        // What is refused is applied in no part.
        client.pull(&Rows::new(&batch, 0..1), Absent::Init, &mut lookup).unwrap();
        *lookup.backward(0).2.last_mut().unwrap() = f32::NAN;
        let refused = client.push_by(threads, &mut lookup, PushScale::default()).unwrap_err();
        assert!(matches!(refused, ClientError::Store(StoreError::BadGradient { .. })), "{refused:?}");
        let keys = batch.columns[0].keys.iter();
        let rows: Vec<_> = keys.map(|&key| table.get(key).unwrap()).collect();
        (
            rows.into_iter().map(|row| (row.weights, row.state, row.frequency)).collect::<Vec<_>>(),
            table.stats().pushes,
        )
    });
    assert!(of_threads[0] == of_threads[1], "rows or the number of pushes differ");
}

#[test]
fn a_full_table_says_what_all_threads_left_out() {
    let (client, batch) = many(Some(512 << 10));
    let mut lookup = client.lookup();
    client.pull(&Rows::new(&batch, 0..1), Absent::Init, &mut lookup).unwrap();
    lookup.backward(0).2.fill(1.0);
    let full = client.push_by(3, &mut lookup, PushScale::default()).unwrap_err();
    let ClientError::Store(StoreError::TableFull { rejected, .. }) = full else { panic!("{full:?}") };
    assert_eq!(client.tables()[0].len() as u64 + rejected, 20_000);
}

/// Minibatches of which a table is pulled at once, and of which it is pulled in several goes, are the same.
#[test]
fn every_feature_is_shown_once_with_all_of_its_rows() {
    let tables = [("a", 3), ("b", 2)].map(|(name, dims)| {
        let block =
            Block { dims, init: Init::Normal { std: 0.1 }, optimizer: Optimizer::Sgd { lr: LR, l2: 0.0 } };
        Arc::new(Table::new(TableConfig::new(name, vec![block])).unwrap())
    });
    let read: Vec<usize> = (0..9).map(|feature| usize::from(feature % 3 == 1)).collect();
    let pairs = read.iter().map(|&table| ("feature", ["a", "b"][table]));
    let client = Client::embedded(tables.to_vec(), pairs, Some("a")).unwrap();
    let known: Vec<u64> = (0..20_000).step_by(3).collect();
    for table in &tables {
        table.push(&known, &vec![0.0; known.len() * table.dim()], PushScale::default()).unwrap();
    }
    let mut lookup = client.lookup();
    lookup.note_missing();
    for samples in [0, 1, 300, 2000] {
        let mut batch = Batch::new(&[false; 9]);
        for sample in 0..samples {
            for (feature, column) in batch.columns.iter_mut().enumerate() {
                // Features of a table have some keys in common.
                column.push((sample * 7 + feature as u64 * 5) % 20_000, 1.0);
            }
            batch.close_row(0.0, 1.0);
        }
        let (rows, mut shown) = (Rows::all(&batch), Vec::new());
        let missing = client
            .pull_each(&rows, Absent::Init, &mut lookup, |lookup, feature| {
                let (table, from) = (&tables[read[feature]], lookup.table(feature).rows());
                let mut expected = vec![0.0; rows.keys(feature).len() * table.dim()];
                table.pull(rows.keys(feature), Absent::Init, &mut expected, None).unwrap();
                let found = lookup.indices(feature).iter().flat_map(|&index| {
                    let at = index as usize * table.dim();
                    from[at..at + table.dim()].iter().copied()
                });
                assert!(found.eq(expected), "feature {feature} of {samples} samples");
                shown.push(feature);
            })
            .unwrap();
        shown.sort_unstable();
        assert_eq!(shown, (0..9).collect::<Vec<_>>());
        let keys: HashSet<(usize, u64)> = (0..9)
            .flat_map(|feature| rows.keys(feature).iter().map(move |&key| (feature, key)))
            .map(|(feature, key)| (read[feature], key))
            .chain([(0, CONSTANT_KEY)])
            .collect();
        assert_eq!(lookup.unique_keys(), keys.len());
        assert_eq!(missing, keys.iter().filter(|(_, key)| key % 3 > 0).count(), "{samples} samples");
        // Whatever has no row gets none; whatever has one has its gradient, also where nothing was added to it.
        lookup.backward(4).2.fill(1.0);
        let (found, before) = (lookup.indices(4).to_vec(), tables[1].len());
        lookup.forget_missing();
        for (table, (keys, counts, grads)) in lookup.gradients().enumerate() {
            assert!(keys.iter().all(|key| key % 3 == 0) && counts.len() == keys.len());
            assert_eq!(grads.len(), keys.len() * tables[table].dim());
            let touched = grads.iter().filter(|&&grad| grad == 1.0).count();
            let zeros = grads.iter().filter(|&&grad| grad == 0.0).count();
            assert_eq!(touched + zeros, grads.len(), "nothing of the minibatch before is left");
            assert!(table == 1 || touched == 0);
        }
        client.push(&mut lookup, PushScale::default()).unwrap();
        assert!(tables[1].len() == before && found.len() as u64 == samples);
    }
}

#[test]
fn a_pull_creates_nothing_and_absent_says_what_it_yields() {
    let client = client(Optimizer::Sgd { lr: LR, l2: 0.0 });
    let all = batch(50, false);
    let mut lookup = client.lookup();
    for (absent, is_zero) in [(Absent::Zero, true), (Absent::Init, false)] {
        client.pull(&Rows::all(&all), absent, &mut lookup).unwrap();
        assert_eq!(lookup.table(0).rows().iter().all(|w| *w == 0.0), is_zero, "{absent:?}");
        assert_eq!(lookup.table(1).dim(), 2);
        assert!(client.tables().iter().all(|table| table.is_empty()));
    }
    // Nothing asked for, nothing pushed.
    client.pull(&Rows::new(&all, 3..3), Absent::Init, &mut lookup).unwrap();
    assert_eq!(lookup.unique_keys(), 1);
}

#[test]
fn features_must_find_their_tables() {
    let table = || {
        vec![Arc::new(
            Table::new(TableConfig::single("a", 1, Init::Zero, Optimizer::Sgd { lr: 0.1, l2: 0.0 })).unwrap(),
        )]
    };
    assert!(Client::embedded(table(), [("x", "a")], None).unwrap().lookup().constant().is_empty());
    for (features, constant, name) in
        [(vec![("x", "a"), ("y", "b")], None, "\"b\""), (vec![], Some("c"), "\"c\"")]
    {
        let error = Client::embedded(table(), features, constant).unwrap_err();
        assert!(matches!(error, ClientError::UnknownTable { .. }));
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn tables_of_one_name_are_one_table() {
    let [first, second] = [(); 2].map(|()| {
        let config = TableConfig::single("a", 1, Init::Zero, Optimizer::Sgd { lr: 0.1, l2: 0.0 });
        Arc::new(Table::new(config).unwrap())
    });
    let client =
        |tables: [&Arc<Table>; 2]| Client::embedded(tables.map(Arc::clone).to_vec(), [("x", "a")], None);
    assert!(client([&first, &first]).is_ok());
    assert_eq!(
        client([&first, &second]).unwrap_err().to_string(),
        "two tables are named \"a\": features find theirs by its name; give each one of its own"
    );
}

/// Key, frequency, version, bits of weights and state; the use clock is left out, as it counts calls.
type RowBits = (u64, u32, u32, Vec<u32>);

/// Every row of every table.
fn contents(client: &Client) -> Vec<Vec<RowBits>> {
    let bits = |floats: &[f32], more: &[f32]| floats.iter().chain(more).map(|f| f.to_bits()).collect();
    let tables = client.tables().iter().map(|table| {
        let mut rows = Vec::new();
        table.for_each_row(|row| {
            rows.push((row.key, row.frequency, row.version, bits(row.weights, row.state)));
        });
        rows.sort();
        rows
    });
    tables.collect()
}

#[test]
fn online_equals_a_pull_and_a_push_per_row() {
    for optimizer in [
        Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.01, l2: 0.1 },
        Optimizer::Adam { lr: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, l2: 0.0 },
    ] {
        let (by_row, online) = (client(optimizer), client(optimizer));
        let all = batch(200, true);
        let scale = PushScale { lr_scale: 0.7 };
        // The gradient is made of the present weights, so that a stale read would show.
        let slope = |weight: f32, row: usize| 0.3 * weight - (row % 7) as f32 * 0.1;
        let mut lookup = by_row.lookup();
        for row in 0..all.len() {
            by_row.pull(&Rows::new(&all, row..row + 1), Absent::Init, &mut lookup).unwrap();
            for column in 0..FEATURES.len() {
                let dim = lookup.table(column).dim();
                let (indices, weights, grads) = lookup.backward(column);
                for at in indices.iter().flat_map(|index| *index as usize * dim..(*index as usize + 1) * dim)
                {
                    grads[at] += slope(weights[at], row);
                }
            }
            lookup.constant_grad()[0] += slope(lookup.constant()[0], row);
            by_row.push(&mut lookup, scale).unwrap();
        }
        let mut handles = Handles::default();
        for start in (0..all.len()).step_by(64) {
            let rows = Rows::new(&all, start..all.len().min(start + 64));
            let mut open = online.online(&rows, 1, scale, &mut handles).unwrap();
            for row in 0..rows.len() {
                for column in 0..FEATURES.len() {
                    let offsets = rows.offsets(column);
                    for at in offsets[row] - offsets[0]..offsets[row + 1] - offsets[0] {
                        let (handles, table) = open.column_mut(column);
                        let handle = handles[at as usize];
                        let grad: Vec<f32> =
                            table.weights(handle).iter().map(|w| slope(*w, start + row)).collect();
                        table.update(handle, &grad);
                    }
                }
                open.update_constant(slope(open.constant(), start + row));
            }
        }
        assert!(contents(&by_row) == contents(&online), "{optimizer:?}");
    }
}

/// The tables after the first are asked before anything is applied to that one.
#[test]
fn a_gradient_that_one_table_refuses_is_applied_in_none() {
    let client = client(Optimizer::Sgd { lr: LR, l2: 0.0 });
    let (all, mut lookup) = (batch(20, true), client.lookup());
    let rows = Rows::new(&all, 0..20);
    for bad in [f32::NAN, 1.0] {
        client.pull(&rows, Absent::Init, &mut lookup).unwrap();
        for column in 0..FEATURES.len() {
            lookup.backward(column).2.fill(1.0);
        }
        lookup.backward(2).2[1] = bad;
        match client.push(&mut lookup, PushScale::default()) {
            Err(ClientError::Store(StoreError::BadGradient { table, coordinate, .. })) => {
                assert!(bad.is_nan());
                assert_eq!((table.as_str(), coordinate), ("item", 1));
                assert!(client.tables().iter().all(|table| table.is_empty()));
            }
            pushed => {
                pushed.unwrap();
                assert!(!bad.is_nan() && client.tables().iter().all(|table| !table.is_empty()));
            }
        }
    }
}
