//! Tables on two servers against one in this process: whatever is asked, the answers are the same.

use crate::servers;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use sanderling_client::{Client, Cluster, RemoteTable, RowBlock};
use sanderling_sample::{Batch, Rows};
use sanderling_store::{Absent, Block, Init, Optimizer, Pooling, PushScale, Table, TableConfig, WholeRows};
use sanderling_wire::limit;

fn config(name: &str, dims: usize) -> TableConfig {
    let sgd = Optimizer::Sgd { lr: 0.5, l2: 0.0 };
    let adagrad = Optimizer::Adagrad { lr: 0.1, eps: 1e-10, initial: 0.0, l2: 0.0 };
    let blocks = vec![
        Block { dims: 1, init: Init::Zero, optimizer: sgd },
        Block { dims, init: Init::Normal { std: 0.1 }, optimizer: adagrad },
    ];
    let mut config = TableConfig::new(name, blocks);
    config.seed = 7;
    config
}

#[derive(Debug, Clone)]
enum Deed {
    Pull { keys: Vec<u64>, init: bool },
    Pooled { keys: Vec<(u64, f32)>, cuts: Vec<usize>, values: bool, mean: bool },
    Push { keys: Vec<u64>, lr_scale: f32 },
    Remove { keys: Vec<u64> },
    Import { keys: BTreeSet<u64>, from: u32 },
    Size,
}

fn key() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..60, any::<u64>(), Just(0), Just(u64::MAX)]
}

fn deed() -> impl Strategy<Value = Deed> {
    let keys = || prop::collection::vec(key(), 0..80);
    let weighted = prop::collection::vec((key(), -2.0_f32..2.0), 0..80);
    prop_oneof![
        3 => (keys(), any::<bool>()).prop_map(|(keys, init)| Deed::Pull { keys, init }),
        3 => (weighted, prop::collection::vec(any::<usize>(), 0..20), any::<bool>(), any::<bool>())
            .prop_map(|(keys, cuts, values, mean)| Deed::Pooled { keys, cuts, values, mean }),
        4 => (keys(), 0.1_f32..2.0).prop_map(|(keys, lr_scale)| Deed::Push { keys, lr_scale }),
        1 => keys().prop_map(|keys| Deed::Remove { keys }),
        2 => (prop::collection::btree_set(key(), 0..80), 0_u32..100)
            .prop_map(|(keys, from)| Deed::Import { keys, from }),
        1 => Just(Deed::Size),
    ]
}

/// Sums of the same weights in another order: as far apart as rounding may bring sums of so many summands, however much these
/// cancel out.
fn check_sums(a: &[f32], b: &[f32], weights: &[f32], values: Option<&[f32]>, offsets: &[u32]) {
    let dim = a.len() / (offsets.len() - 1);
    assert_eq!(a.len(), b.len());
    for (sample, pair) in offsets.windows(2).enumerate() {
        for at in 0..dim {
            let size = (pair[0] as usize..pair[1] as usize)
                .map(|key| (weights[key * dim + at] * values.map_or(1.0, |values| values[key])).abs())
                .sum::<f32>();
            let summands = (pair[1] - pair[0]) as f32;
            let (a, b) = (a[sample * dim + at], b[sample * dim + at]);
            // Of each of the two sums half of it.
            let bound = (summands + 1.0) * f32::EPSILON * size;
            assert!(
                (a - b).abs() <= bound,
                "sample {sample}, {at}: {a}, {b}, which are {bound} apart at most"
            );
        }
    }
}

fn carry_out(deed: &Deed, remote: &RemoteTable, local: &Table, shards: usize) {
    let dim = local.dim();
    match deed {
        Deed::Pull { keys, init } => {
            let absent = if *init { Absent::Init } else { Absent::Zero };
            let (mut a, mut b) = (vec![1.0; keys.len() * dim], vec![2.0; keys.len() * dim]);
            let (mut missing_a, mut missing_b) = (vec![9], vec![8]);
            let found_a = remote.pull(keys, absent, &mut a, Some(&mut missing_a)).unwrap();
            let found_b = local.pull(keys, absent, &mut b, Some(&mut missing_b)).unwrap();
            assert_eq!((a, found_a, missing_a), (b, found_b, missing_b));
        }
        Deed::Pooled { keys, cuts, values, mean } => {
            let mut offsets: Vec<u32> = cuts.iter().map(|cut| (cut % (keys.len() + 1)) as u32).collect();
            offsets.extend([0, keys.len() as u32]);
            offsets.sort_unstable();
            let (keys, weights): (Vec<u64>, Vec<f32>) = keys.iter().copied().unzip();
            let values = values.then_some(&weights[..]);
            let pooling = if *mean { Pooling::Mean } else { Pooling::Sum };
            let floats = (offsets.len() - 1) * dim;
            let (mut a, mut b) = (vec![1.0; floats], vec![2.0; floats]);
            let (mut missing_a, mut missing_b) = (vec![9], vec![8]);
            let absent = Absent::Init;
            let found_a = remote
                .pull_pooled(&keys, values, &offsets, pooling, absent, &mut a, Some(&mut missing_a))
                .unwrap();
            let found_b = local
                .pull_pooled(&keys, values, &offsets, pooling, absent, &mut b, Some(&mut missing_b))
                .unwrap();
            assert_eq!((found_a, missing_a), (found_b, missing_b));
            if shards == 1 {
                assert_eq!(a, b);
            } else {
                let mut rows = vec![0.0; keys.len() * dim];
                local.pull(&keys, absent, &mut rows, None).unwrap();
                check_sums(&a, &b, &rows, values, &offsets);
            }
        }
        Deed::Push { keys, lr_scale } => {
            let grads: Vec<f32> =
                (0..keys.len() * dim).map(|at| ((at * 7 % 13) as f32 - 6.0) / 5.0).collect();
            remote.push(keys, &grads, PushScale { lr_scale: *lr_scale }).unwrap();
            local.push(keys, &grads, PushScale { lr_scale: *lr_scale }).unwrap();
        }
        Deed::Remove { keys } => {
            let gone = keys.iter().filter(|key| local.remove(**key)).count();
            assert_eq!(remote.remove(keys).unwrap(), gone as u64);
        }
        Deed::Import { keys, from } => {
            let state = local.config().state();
            let floats = |values: usize| -> Vec<f32> {
                (0..values).map(|at| (*from as usize + at * 11 % 17) as f32 / 3.0).collect()
            };
            let numbers: Vec<u32> = (*from..*from + keys.len() as u32).collect();
            let keys: Vec<u64> = keys.iter().copied().collect();
            let (keys, numbers) = (&keys[..], &numbers[..]);
            let (weights, states) = (&floats(keys.len() * dim)[..], &floats(keys.len() * state)[..]);
            let (frequencies, last_uses, versions) = (numbers, numbers, numbers);
            local.import(WholeRows { keys, frequencies, last_uses, versions, weights, states }).unwrap();
            let (dim, state) = (dim as u32, state as u32);
            let rows = RowBlock { dim, state, keys, frequencies, last_uses, versions, weights, states };
            remote.import(&rows).unwrap();
            let cut = RowBlock { versions: &numbers[..numbers.len() / 2], ..rows };
            assert_eq!(remote.import(&cut).is_err(), !keys.is_empty());
        }
        Deed::Size => assert_eq!(remote.size().unwrap().0, local.len() as u64),
    }
}

/// Key, frequency, version, weights, state. The use clock is each server's own.
type Row = (u64, u32, u32, Vec<f32>, Vec<f32>);

/// All rows, by key.
fn rows(table: &RemoteTable) -> Vec<Row> {
    let mut rows = Vec::new();
    table
        .export(|block| {
            let (dim, state) = (block.dim as usize, block.state as usize);
            for (at, &key) in block.keys.iter().enumerate() {
                let weights = block.weights[at * dim..][..dim].to_vec();
                let states = block.states[at * state..][..state].to_vec();
                rows.push((key, block.frequencies[at], block.versions[at], weights, states));
            }
        })
        .unwrap();
    rows.sort_by_key(|row| row.0);
    rows
}

fn check(cluster: &Arc<Cluster>, deeds: &[Deed]) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let config = config(&format!("table {}", COUNT.fetch_add(1, Ordering::Relaxed)), 3);
    let (remote, local) = (RemoteTable::create(cluster, &config).unwrap(), Table::new(config).unwrap());
    let shards = cluster.servers().len();
    deeds.iter().for_each(|deed| carry_out(deed, &remote, &local, shards));
    let mut expected = Vec::new();
    local.for_each_row(|row| {
        expected.push((row.key, row.frequency, row.version, row.weights.to_vec(), row.state.to_vec()));
    });
    expected.sort_by_key(|row| row.0);
    assert_eq!(rows(&remote), expected);
}

#[test]
fn a_remote_table_is_as_one_in_this_process() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, shards) in [("unix", 1), ("unix", 2), ("tcp", 3)] {
        let servers = servers::start(&folder, kind, shards);
        let cluster = servers::connect(&servers, servers::options());
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(40));
        let deeds = prop::collection::vec(deed(), 1..12);
        let checked = runner.run(&deeds, |deeds| {
            check(&cluster, &deeds);
            Ok(())
        });
        checked.unwrap();
    }
}

/// Larger than a request, so that it is cut into several, with more of them than may be under way.
#[test]
fn large_requests_are_cut() {
    let folder = tempfile::tempdir().unwrap();
    let servers = servers::start(&folder, "tcp", 2);
    let cluster = servers::connect(&servers, servers::options());
    let config = config("wide", 1023);
    let (remote, local) = (RemoteTable::create(&cluster, &config).unwrap(), Table::new(config).unwrap());
    let keys: Vec<u64> = (0..20_000).map(|key| key * 3 % 7001).collect();
    let grads: Vec<f32> = (0..keys.len() * 1024).map(|at| (at % 17) as f32 / 9.0 - 1.0).collect();
    remote.push(&keys, &grads, PushScale::default()).unwrap();
    local.push(&keys, &grads, PushScale::default()).unwrap();
    let mut expected = vec![0.0; grads.len()];
    local.pull(&keys, Absent::Zero, &mut expected, None).unwrap();
    let mut found = vec![0.0; grads.len()];
    assert_eq!(remote.pull(&keys, Absent::Zero, &mut found, None).unwrap(), 0);
    assert!(found == expected);
    let offsets: Vec<u32> = (0..=20_000).collect();
    remote.pull_pooled(&keys, None, &offsets, Pooling::Mean, Absent::Zero, &mut found, None).unwrap();
    assert!(found == expected);
}

/// Pooled rows are cut by the keys of the samples, too.
#[test]
fn requests_with_many_keys_per_sample_are_cut() {
    let folder = tempfile::tempdir().unwrap();
    let check = |shards: u32, keys_per_sample: &[u32], has_values: bool| {
        let what = format!("{shards} servers, {} samples", keys_per_sample.len());
        let servers = servers::start(&folder, "unix", shards);
        let cluster = servers::connect(&servers, servers::options());
        let config = TableConfig::single("narrow", 1, Init::Zero, Optimizer::Sgd { lr: 0.5, l2: 0.0 });
        let (remote, local) = (RemoteTable::create(&cluster, &config).unwrap(), Table::new(config).unwrap());
        let mut offsets = vec![0];
        keys_per_sample.iter().for_each(|keys| offsets.push(offsets[offsets.len() - 1] + keys));
        let keys: Vec<u64> = (0..u64::from(offsets[offsets.len() - 1])).map(|key| key * 7 % 50_021).collect();
        let some: Vec<u64> = (0..30_000).collect();
        let grads: Vec<f32> = some.iter().map(|key| (key % 17) as f32 / 8.0 - 1.0).collect();
        remote.push(&some, &grads, PushScale::default()).unwrap();
        local.push(&some, &grads, PushScale::default()).unwrap();
        let weights: Vec<f32> = (0..keys.len()).map(|at| (at % 5) as f32 / 4.0).collect();
        let values = has_values.then_some(&weights[..]);
        let samples = keys_per_sample.len();
        let (mut found, mut expected) = (vec![1.0; samples], vec![2.0; samples]);
        let (mut missing_found, mut missing) = (vec![9], vec![8]);
        let (mean, zero) = (Pooling::Mean, Absent::Zero);
        remote
            .pull_pooled(&keys, values, &offsets, mean, zero, &mut found, Some(&mut missing_found))
            .unwrap();
        local.pull_pooled(&keys, values, &offsets, mean, zero, &mut expected, Some(&mut missing)).unwrap();
        assert!(missing_found == missing, "{what}");
        let far = found.iter().zip(&expected).find(|(a, b)| (*a - *b).abs() > 1e-4 * (1.0 + b.abs()));
        assert_eq!(far, None, "{what}");
    };
    // More than a message may have.
    check(1, &vec![40; 30_000], false);
    check(2, &vec![40; 30_000], true);
    // A sample that is longer than a request is asked for by itself.
    check(1, &[3, 0, 200_000, 0, 0, 5, 90_000, 90_000, 1, 0], true);
    check(2, &[300_000], false);
    check(2, &[0, 0], false);
}

/// Every thread knows from its first request on how long frames may be.
#[test]
fn requests_are_cut_for_the_frames_that_servers_take() {
    let folder = tempfile::tempdir().unwrap();
    let start = |shard| {
        let memory = Arc::<servers::Memory>::default();
        memory.frame_bytes_max.store(limit::FRAME_BYTES_MIN as u32, Ordering::Relaxed);
        servers::Server::start_with(&servers::address(&folder), shard, 2, memory)
    };
    let servers: Vec<servers::Server> = (0..2).map(start).collect();
    let cluster = servers::connect(&servers, servers::options());
    let keys: Vec<u64> = (0..40_000).map(|key| key * 3 % 20_001).collect();
    let offsets: Vec<u32> = (0..=keys.len() as u32).collect();
    for dim in [1, 64] {
        let sgd = Optimizer::Sgd { lr: 0.5, l2: 0.0 };
        let config = TableConfig::single(&format!("dim {dim}"), dim, Init::Normal { std: 0.1 }, sgd);
        let (remote, local) = (RemoteTable::create(&cluster, &config).unwrap(), Table::new(config).unwrap());
        let grads: Vec<f32> = (0..keys.len() * dim).map(|at| (at % 17) as f32 / 9.0 - 1.0).collect();
        let session = || cluster.session().unwrap();
        session().push(&remote, &keys, &grads, PushScale::default()).unwrap();
        local.push(&keys, &grads, PushScale::default()).unwrap();
        let (mut found, mut expected) = (vec![0.0; grads.len()], vec![0.0; grads.len()]);
        local.pull(&keys, Absent::Zero, &mut expected, None).unwrap();
        assert_eq!(session().pull(&remote, &keys, Absent::Zero, &mut found, None).unwrap(), 0);
        assert!(found == expected, "{dim}");
        let (pooling, absent) = (Pooling::Sum, Absent::Zero);
        session().pull_pooled(&remote, &keys, None, &offsets, pooling, absent, &mut found, None).unwrap();
        assert!(found == expected, "{dim}, pooled");
        let offsets: Vec<u32> = (0..=400).map(|sample| sample * 100).collect();
        let (found, expected) = (&mut found[..400 * dim], &mut expected[..400 * dim]);
        session().pull_pooled(&remote, &keys, None, &offsets, pooling, absent, found, None).unwrap();
        local.pull_pooled(&keys, None, &offsets, pooling, absent, expected, None).unwrap();
        let far = found.iter().zip(expected).find(|(a, b)| (**a - **b).abs() > 1e-4 * (1.0 + b.abs()));
        assert_eq!(far, None, "{dim}, pooled by samples");
        assert_eq!(remote.clear().unwrap(), local.len() as u64);
    }
}

#[test]
fn threads_have_connections_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let servers = servers::start(&folder, "unix", 2);
    let cluster = servers::connect(&servers, servers::options());
    let remote = RemoteTable::create(&cluster, &config("shared", 3)).unwrap();
    let keys: Vec<u64> = (0..500).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    remote.push(&keys, &[0.1; 2000], PushScale::default()).unwrap();
                }
            });
        }
    });
    assert!(rows(&remote).iter().all(|row| row.1 == 100 && row.2 == 100));
}

/// While the servers have the keys of a minibatch, the worker has something else to do; where nobody is waited for, it is not
/// done.
#[test]
fn something_else_is_done_while_a_pull_is_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let servers = servers::start(&folder, "tcp", 2);
    let cluster = servers::connect(&servers, servers::options());
    let config = config("t", 3);
    let remote = RemoteTable::create(&cluster, &config).unwrap();
    let here = Client::embedded(vec![Arc::new(Table::new(config).unwrap())], [("f", "t")], None).unwrap();
    let there = Client::remote(vec![("t".to_owned(), remote)], [("f", "t")], None).unwrap();
    let mut batch = Batch::new(&[false]);
    for key in 0..100 {
        batch.columns[0].push(key, 1.0);
        batch.close_row(0.0, 1.0);
    }
    let (rows, mut local) = (Rows::all(&batch), here.lookup());
    let missing = here.pull_while(&rows, Absent::Init, &mut local, || panic!("nobody was waited for"));
    assert_eq!(missing.unwrap(), 100);
    let mut lookup = there.lookup();
    // Connects.
    there.pull(&rows, Absent::Init, &mut lookup).unwrap();
    let mut times = 0;
    servers.iter().for_each(|server| server.misbehave(&[servers::Misdeed::Busy]));
    let missing = there.pull_while(&rows, Absent::Init, &mut lookup, || {
        // They have had the requests, whose answers nobody has seen yet.
        let patience = Instant::now() + Duration::from_secs(20);
        while servers.iter().any(|server| !server.memory.misdeeds.lock().unwrap().is_empty()) {
            assert!(Instant::now() < patience, "nothing was sent");
            std::thread::sleep(Duration::from_millis(1));
        }
        times += 1;
    });
    assert_eq!((missing.unwrap(), times), (100, 1));
    assert_eq!(lookup.table(0).rows(), local.table(0).rows());
    // Gradients that are to go with the next pull do, and are applied before it.
    for (client, lookup) in [(&here, &mut local), (&there, &mut lookup)] {
        lookup.backward(0).2.iter_mut().zip(0..).for_each(|(grad, at)| *grad = at as f32 / 100.0);
        client.begin_push(lookup, PushScale::default()).unwrap();
    }
    let pushes = || servers.iter().map(|server| server.memory.pushes.load(Ordering::Relaxed)).sum::<u64>();
    assert_eq!(pushes(), 0);
    assert_eq!(here.pull(&rows, Absent::Init, &mut local).unwrap(), 0);
    assert_eq!((there.pull(&rows, Absent::Init, &mut lookup).unwrap(), pushes()), (0, 2));
    assert_eq!(lookup.table(0).rows(), local.table(0).rows());
    // Without another pull they go when the worker is done.
    lookup.backward(0);
    there.begin_push(&mut lookup, PushScale::default()).unwrap();
    there.finish(&mut lookup).unwrap();
    assert_eq!(pushes(), 4);
}

/// Servers from before temporary tables would save them, or refuse their configuration in words that help nobody.
#[test]
fn a_server_without_temporary_tables_makes_none() {
    let folder = tempfile::tempdir().unwrap();
    let servers = servers::start(&folder, "shm", 2);
    let cluster = servers::connect(&servers, servers::options());
    let error = RemoteTable::create_temporary(&cluster, &config("t", 3)).unwrap_err();
    assert!(error.to_string().contains("too old for temporary tables"), "{error}");
    assert!(RemoteTable::open(&cluster, "t").is_err(), "it was made");
}
