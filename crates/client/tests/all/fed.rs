//! Features whose rows the servers pool: the tables are as if they had been pooled here.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::servers::{self, Misdeed, Server};
use sanderling_client::{
    Client, ClientError, Cluster, Fault, FeedAhead, FeedFeature, Feedable, Lookup, RemoteTable,
};
use sanderling_sample::{Batch, Rows};
use sanderling_store::{Absent, Init, Optimizer, Pooling, PushScale, Table, TableConfig};
use sanderling_wire::limit;

const DIM: usize = 3;
/// Five samples: repetitions within one and among them, and one without keys.
const KEYS: [u64; 9] = [7, 8, 7, 9, 8, 1 << 40, 7, 10, u64::MAX];
const OFFSETS: [u32; 6] = [0, 3, 3, 5, 8, 9];
const VALUES: [f32; 9] = [1.0, -2.0, 0.5, 3.0, 0.25, 1.5, -1.0, 2.0, 0.75];

fn config(name: &str, optimizer: Optimizer) -> TableConfig {
    let mut config = TableConfig::single(name, DIM, Init::Uniform { bound: 1.0 }, optimizer);
    config.seed = 5;
    config
}

fn sgd() -> Optimizer {
    Optimizer::Sgd { lr: 0.5, l2: 0.0 }
}

fn adagrad() -> Optimizer {
    Optimizer::Adagrad { lr: 0.1, eps: 1e-10, initial: 0.0, l2: 0.0 }
}

fn grads(round: usize) -> Vec<f32> {
    (0..5 * DIM).map(|at| ((at * 7 + round * 5) % 13) as f32 / 4.0 - 1.5).collect()
}

fn near(found: &[f32], expected: &[f32], what: &str) {
    let far = found.iter().zip(expected).find(|(a, b)| (*a - *b).abs() > 1e-6 * (1.0 + b.abs()));
    assert!(found.len() == expected.len() && far.is_none(), "{what}: {far:?}");
}

/// Weights of all of the keys.
fn weights(table: &RemoteTable) -> Vec<f32> {
    let mut rows = vec![0.0; KEYS.len() * DIM];
    table.pull(&KEYS, Absent::Zero, &mut rows, None).unwrap();
    rows
}

/// Rounds of feeding, pulling and pushing against a table in this process.
fn check(cluster: &Arc<Cluster>, optimizer: Optimizer, pooling: Pooling, values: Option<&[f32]>) {
    let what = format!("{} servers, {optimizer:?}, {pooling:?}", cluster.servers().len());
    let config = config(&format!("{what}, {}", values.is_some()), optimizer);
    let (remote, local) = (RemoteTable::create(cluster, &config).unwrap(), Table::new(config).unwrap());
    let mut session = cluster.session().unwrap();
    for round in 0..4 {
        let fed = session.feed(&remote, 100 + round as u64, 3, &KEYS, &OFFSETS, values, pooling).unwrap();
        let (mut found, mut expected) = (vec![9.0; 5 * DIM], vec![0.0; 5 * DIM]);
        let (mut missing_found, mut missing) = (vec![9], Vec::new());
        session.pull_fed(&remote, &fed, Absent::Init, &mut found, Some(&mut missing_found)).unwrap();
        local
            .pull_pooled(&KEYS, values, &OFFSETS, pooling, Absent::Init, &mut expected, Some(&mut missing))
            .unwrap();
        near(&found, &expected, &what);
        assert_eq!(missing_found, missing);
        let scale = PushScale { lr_scale: 1.0 / (1 + round) as f32 };
        session.push_fed(&remote, &fed, &grads(round), scale).unwrap();
        let of_keys = servers::fed::spread(&OFFSETS, values, pooling, &grads(round), DIM);
        local.push(&KEYS, &of_keys, scale).unwrap();
        let mut rows = vec![0.0; KEYS.len() * DIM];
        local.pull(&KEYS, Absent::Zero, &mut rows, None).unwrap();
        near(&weights(&remote), &rows, &what);
    }
    assert_eq!(remote.size().unwrap().0, local.len() as u64);
}

#[test]
fn rows_that_servers_pool_are_as_those_that_are_pooled_here() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, shards) in [("unix", 1), ("unix", 2), ("tcp", 3)] {
        let servers = servers::start(&folder, kind, shards);
        let cluster = servers::connect(&servers, servers::options());
        for optimizer in [sgd(), adagrad()] {
            check(&cluster, optimizer, Pooling::Sum, None);
            check(&cluster, optimizer, Pooling::Sum, Some(&VALUES));
            check(&cluster, optimizer, Pooling::Mean, None);
            check(&cluster, optimizer, Pooling::Mean, Some(&VALUES));
        }
        let kept: usize = servers.iter().map(|server| server.memory.batches.lock().unwrap().len()).sum();
        assert_eq!(kept, 0, "what was pushed is forgotten");
    }
}

fn two(folder: &tempfile::TempDir) -> (Vec<Server>, Arc<Cluster>) {
    let servers = servers::start(folder, "unix", 2);
    let cluster = servers::connect(&servers, servers::options());
    (servers, cluster)
}

#[test]
fn a_batch_that_a_server_forgot_is_named_and_the_table_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (servers, cluster) = two(&folder);
    let table = RemoteTable::create(&cluster, &config("forgetful", sgd())).unwrap();
    let mut session = cluster.session().unwrap();
    let mut out = vec![0.0; 5 * DIM];
    let forgotten = |error: ClientError| {
        let text = error.to_string();
        let ClientError::Refused { server, table, fault, .. } = error else { panic!("{text}") };
        assert_eq!((fault, &table[..]), (Fault::UnknownBatch, "forgetful"));
        assert_eq!(server, servers[1].address.to_string());
        assert!(text.contains("batch 77"), "{text}");
    };
    let fed = session.feed(&table, 77, 0, &KEYS, &OFFSETS, None, Pooling::Sum).unwrap();
    servers[1].memory.batches.lock().unwrap().clear();
    forgotten(session.pull_fed(&table, &fed, Absent::Init, &mut out, None).unwrap_err());
    forgotten(session.push_fed(&table, &fed, &grads(0), PushScale::default()).unwrap_err());
    let fed = session.feed(&table, 78, 0, &KEYS, &OFFSETS, None, Pooling::Sum).unwrap();
    assert_eq!(session.pull_fed(&table, &fed, Absent::Init, &mut out, None).unwrap(), {
        let mut missing = Vec::new();
        table.pull(&KEYS, Absent::Zero, &mut [0.0; 9 * DIM], Some(&mut missing)).unwrap()
    });
    session.push_fed(&table, &fed, &grads(0), PushScale::default()).unwrap();
    assert_eq!(table.size().unwrap().0, 6);
}

#[test]
fn a_push_is_applied_once_and_a_bad_one_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let (servers, cluster) = two(&folder);
    let table = RemoteTable::create(&cluster, &config("once", sgd())).unwrap();
    let mut session = cluster.session().unwrap();
    let fed = session.feed(&table, 1, 0, &KEYS, &OFFSETS, None, Pooling::Sum).unwrap();
    for value in [f32::NAN, f32::INFINITY, 1e30] {
        let mut bad = grads(0);
        bad[3 * DIM + 1] = value;
        let error = session.push_fed(&table, &fed, &bad, PushScale::default()).unwrap_err();
        assert!(matches!(error, ClientError::BadGradient { sample: 3, coordinate: 1, .. }), "{error}");
    }
    assert!(session.push_fed(&table, &fed, &[0.0; DIM], PushScale::default()).is_err());
    assert!(session.push_fed(&table, &fed, &grads(0), PushScale { lr_scale: -0.5 }).is_err());
    assert_eq!(table.size().unwrap().0, 0);
    // The second sample has no keys.
    let mut grads = grads(0);
    grads[DIM] = f32::NAN;
    servers.iter().for_each(|server| server.misbehave(&[Misdeed::Busy, Misdeed::CutAfter]));
    session.push_fed(&table, &fed, &grads, PushScale::default()).unwrap();
    let pushes: Vec<u64> =
        servers.iter().map(|server| server.memory.pushes.load(Ordering::Relaxed)).collect();
    assert_eq!(pushes, [1, 1]);
    let local = Table::new(config("once", sgd())).unwrap();
    let of_keys = servers::fed::spread(&OFFSETS, None, Pooling::Sum, &grads, DIM);
    local.push(&KEYS, &of_keys, PushScale::default()).unwrap();
    let mut rows = vec![0.0; KEYS.len() * DIM];
    local.pull(&KEYS, Absent::Zero, &mut rows, None).unwrap();
    near(&weights(&table), &rows, "once");
}

/// A server has the rows of all distinct keys in memory at once.
#[test]
fn a_feature_of_wide_rows_is_not_fed_if_they_are_too_many() {
    let folder = tempfile::tempdir().unwrap();
    let (_servers, cluster) = two(&folder);
    let dim = 1 << 15;
    let config = TableConfig::single("wide", dim, Init::Zero, sgd());
    let table = &RemoteTable::create(&cluster, &config).unwrap();
    let mut feeder = FeedAhead::new(&cluster).unwrap();
    let fits = limit::FED_ROWS_BYTES_MAX / (4 * dim);
    for (count, is_fed) in [(fits, true), (fits + 1, false)] {
        let keys: Vec<u64> = (0..count as u64).collect();
        let (offsets, pooling) = (&[0, count as u32][..], Pooling::Sum);
        let feature = FeedFeature { table, feature: 0, keys: &keys, offsets, values: None, pooling };
        let fed = feeder.begin(count as u64, &feature, None).unwrap();
        assert_eq!(fed.is_some(), is_fed, "{count} keys");
        feeder.finish().unwrap();
    }
}

/// Two features of tables of their own, and two of one table.
fn batch() -> Batch {
    let mut batch = Batch::new(&[false, true, false, false]);
    for span in OFFSETS.windows(2) {
        for at in span[0] as usize..span[1] as usize {
            batch.columns.iter_mut().for_each(|column| column.push(KEYS[at], VALUES[at]));
        }
        batch.close_row(0.0, 1.0);
    }
    batch
}

#[test]
fn some_features_are_fed_and_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let (servers, cluster) = two(&folder);
    let tables: Vec<(String, RemoteTable)> = ["plain", "weighted", "shared"]
        .map(|name| (name.to_owned(), RemoteTable::create(&cluster, &config(name, adagrad())).unwrap()))
        .into();
    let pairs = [("a", "plain"), ("b", "weighted"), ("c", "shared"), ("d", "shared")];
    let client = Client::remote(tables.clone(), pairs, None).unwrap();
    let batch = batch();
    let look_up = |lookup: &mut Lookup, fed: usize| {
        let (mut offered, mut shown) = (Vec::new(), Vec::new());
        // Samples 2 to 4: their offsets do not begin at 0.
        let choose = |feedable: &Feedable| {
            offered.push(*feedable);
            (feedable.feature == fed).then_some(Pooling::Sum)
        };
        let rows = Rows::new(&batch, 2..5);
        let missing =
            client.pull_or_feed(&rows, Absent::Init, lookup, &[], choose, |_, feature| shown.push(feature));
        let offer = |feature, has_values| Feedable {
            feature,
            keys: 6,
            distinct: 6,
            samples: 3,
            dim: DIM,
            servers: 2,
            has_values,
            fits: true,
        };
        assert_eq!(offered, [offer(0, false), offer(1, true)]);
        assert_eq!(shown, (0..4).filter(|&feature| feature != fed).collect::<Vec<_>>());
        missing.unwrap()
    };
    let mut lookup = client.lookup();
    assert_eq!(look_up(&mut lookup, 1), 18);
    assert_eq!((lookup.fed().len(), lookup.fed()[0].feature()), (1, 1));
    let mut expected = vec![0.0; 3 * DIM];
    let offsets = [0, 2, 5, 6];
    let local = Table::new(config("weighted", adagrad())).unwrap();
    local
        .pull_pooled(
            &KEYS[3..],
            Some(&VALUES[3..]),
            &offsets,
            Pooling::Sum,
            Absent::Init,
            &mut expected,
            None,
        )
        .unwrap();
    near(lookup.fed()[0].rows(), &expected, "fed");
    let kept = || servers.iter().map(|server| server.memory.batches.lock().unwrap().len()).max();
    // What is not pushed is replaced, not piled up.
    for _ in 0..5 {
        look_up(&mut lookup, 1);
        look_up(&mut lookup, 9);
        look_up(&mut lookup, 1);
        assert_eq!(kept(), Some(1));
    }
    lookup.fed_mut()[0].grads_mut().copy_from_slice(&grads(1)[..3 * DIM]);
    lookup.backward(0).2.fill(1.0);
    client.push(&mut lookup, PushScale::default()).unwrap();
    client.finish(&mut lookup).unwrap();
    let of_keys = servers::fed::spread(&offsets, Some(&VALUES[3..]), Pooling::Sum, &grads(1), DIM);
    local.push(&KEYS[3..], &of_keys, PushScale::default()).unwrap();
    let mut rows = vec![0.0; KEYS.len() * DIM];
    local.pull(&KEYS, Absent::Zero, &mut rows, None).unwrap();
    near(&weights(&tables[1].1), &rows, "pushed");
    let sizes: Vec<u64> = tables.iter().map(|(_, table)| table.size().unwrap().0).collect();
    assert_eq!((sizes, kept()), (vec![6, 6, 6], Some(0)));
    // Next time the rows are there. What was fed can be pushed by its distinct rows, too.
    assert_eq!(look_up(&mut lookup, 1), 0);
    let (fed, indices, grads) = lookup.backward_fed(0);
    assert_eq!((fed.feature(), indices), (1, &[0, 1, 2, 3, 4, 5][..]));
    grads.copy_from_slice(&of_keys);
    lookup.unfeed();
    client.push(&mut lookup, PushScale::default()).unwrap();
    client.finish(&mut lookup).unwrap();
    local.push(&KEYS[3..], &of_keys, PushScale::default()).unwrap();
    local.pull(&KEYS, Absent::Zero, &mut rows, None).unwrap();
    near(&weights(&tables[1].1), &rows, "pushed by rows");
    let count = |server: &Server| server.memory.batches.lock().unwrap().len();
    assert!(servers.iter().map(count).max() == Some(1));
    look_up(&mut lookup, 1);
    assert!(servers.iter().map(count).max() == Some(1), "its place is taken");
}
