//! A replica of running servers: it has their rows, goes on without them, and catches up with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sanderling_client::{Cluster, ConnectOptions, RemoteTable};
use sanderling_learner::Model;
use sanderling_serve::{FollowOptions, ReplicaConfig, ReplicaSource, ServedModel};
use sanderling_store::{Dtype, PushScale};
use sanderling_testkit::TestServer;
use sanderling_transport::Address;
use serde_json::Value;

use crate::fixture::{Example, Served, Trained, assert_close, examples, numbers};

/// Longer than any wait of a passing test.
const LONG: Duration = Duration::from_secs(60);

pub(crate) fn shard(at: u16, address: Option<&Address>) -> TestServer {
    TestServer::new(|config| {
        (config.shard, config.shards) = (at, 2);
        if let Some(address) = address {
            config.listen = vec![address.clone()];
        }
    })
}

pub(crate) fn connect(servers: &[TestServer], f16_rows: bool) -> Arc<Cluster> {
    let addresses: Vec<Address> = servers.iter().map(|server| server.address("tcp")).collect();
    let options = ConnectOptions {
        prefer_local: false,
        timeout: Duration::from_millis(500),
        connect_timeout: LONG,
        f16_rows,
        ..ConnectOptions::default()
    };
    Cluster::connect(&addresses, options).unwrap()
}

fn replica(
    path: &std::path::Path,
    cluster: &Arc<Cluster>,
    dtype: Option<Dtype>,
    memory: Option<u64>,
) -> Served {
    let served = Served::new([]);
    let config = ReplicaConfig {
        source: ReplicaSource::Servers { cluster: Arc::clone(cluster), start: None },
        fresh: Duration::from_millis(10),
        stale_after: Duration::from_secs(1),
        memory_bytes_max: memory,
    };
    let model = Arc::new(
        ServedModel::to_follow(path, None, 1, &FollowOptions { dtype, ..FollowOptions::default() }).unwrap(),
    );
    served.server.follow_source(config, model, |_| ()).unwrap();
    served
}

#[track_caller]
pub(crate) fn wait(what: &str, mut is_done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_done() {
        assert!(begun.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Served {
    pub(crate) fn health(&self) -> Value {
        serde_json::from_str(self.get("/health").text()).unwrap()
    }

    pub(crate) fn scores(&self, examples: &[Example]) -> Vec<f64> {
        let rows: Vec<Value> = examples.iter().map(Example::json).collect();
        numbers(&self.json("/predict", Some(&serde_json::json!({ "rows": rows })))["scores"])
    }

    /// Waits until everything that was pushed before is here.
    pub(crate) fn catch_up(&self) {
        let since = Instant::now();
        wait("the replica does not catch up", || {
            let passed = since.elapsed().as_secs_f64();
            self.health()["replica"]["lag_s"].as_f64().is_some_and(|lag| lag < passed)
        });
    }
}

pub(crate) fn is_close(found: &[f64], expected: &[f32]) -> bool {
    found.iter().zip(expected).all(|(found, expected)| (found - f64::from(*expected)).abs() <= 1e-6)
}

/// Pushes to some rows of a table on servers, and removes a few.
pub(crate) fn change(table: &RemoteTable, round: u64) {
    let mut keys = Vec::new();
    table.export(|rows| keys.extend_from_slice(rows.keys)).unwrap();
    keys.sort_unstable();
    let some: Vec<u64> =
        keys.iter().copied().filter(|key| key.wrapping_add(round).is_multiple_of(3)).collect();
    let grads: Vec<f32> =
        (0..some.len() * table.dim()).map(|at| ((at as u64 + round) as f32).sin()).collect();
    table.push(&some, &grads, PushScale::default()).unwrap();
    // Some rows stay, however many rounds there are.
    if keys.len() > 8 {
        table.remove(&keys[..1]).unwrap();
    }
}

#[test]
fn scores_are_those_of_the_servers_while_they_change() {
    for kind in ["lr", "fm", "ffm"] {
        let servers = [shard(0, None), shard(1, None)];
        let cluster = connect(&servers, false);
        let trained = Trained::at(kind, 2, &examples(300), Some(&cluster));
        let served = replica(&trained.path, &cluster, None, None);
        wait("it is not served", || served.server.is_ready());
        let all = examples(500);
        assert_close(&served.scores(&all), &trained.scores(&all));
        let tables: Vec<RemoteTable> = ["user", "genres", "age", "(bias)"]
            .map(|name| RemoteTable::open(&cluster, &format!("clicks/{name}")).unwrap())
            .into();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (tables, stop) = (&tables, &stop);
            let writer = scope.spawn(move || {
                for round in 0.. {
                    tables[..3].iter().for_each(|table| change(table, round));
                    let bias = sanderling_client::CONSTANT_KEY;
                    tables[3].push(&[bias], &[0.1], PushScale::default()).unwrap();
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
            let late = replica(&trained.path, &cluster, None, None);
            wait("a late one is not served", || late.server.is_ready());
            served.catch_up();
            stop.store(true, Ordering::Relaxed);
            writer.join().unwrap();
            let downloaded = Model::open_on_servers(&trained.path, &cluster).unwrap();
            let folder = tempfile::tempdir().unwrap();
            downloaded.save(&folder.path().join("model"), &[]).unwrap();
            let expected = trained.scores_of(&Model::load(&folder.path().join("model")).unwrap(), &all);
            for served in [&served, &late] {
                served.catch_up();
                assert_close(&served.scores(&all), &expected);
            }
        });
        let metrics = served.get("/metrics");
        let metrics = metrics.text();
        assert!(metrics.contains("sanderling_replica_stale 0"), "{metrics}");
        assert!(metrics.contains("sanderling_replica_lag_seconds{source="), "{metrics}");
    }
}

#[test]
fn a_replica_outlives_its_servers_and_follows_their_successors() {
    let mut servers = vec![shard(0, None), shard(1, None)];
    let cluster = connect(&servers, false);
    let trained = Trained::at("fm", 2, &examples(300), Some(&cluster));
    let served = replica(&trained.path, &cluster, None, None);
    wait("it is not served", || served.server.is_ready());
    let (all, addresses) = (examples(500), [servers[0].address("tcp"), servers[1].address("tcp")]);
    let before = trained.scores(&all);
    servers.clear();
    wait("it is not stale", || served.health()["replica"]["stale"] == true);
    assert_close(&served.scores(&all), &before);
    assert_eq!(served.get("/v2/health/ready").status, 200);
    let health = served.health();
    assert!(health["replica"]["sources"][0]["error"].is_string(), "{health}");
    // Other servers at their addresses, first without tables.
    servers.extend([shard(0, Some(&addresses[0])), shard(1, Some(&addresses[1]))]);
    let cluster = connect(&servers, false);
    assert_close(&served.scores(&all), &before);
    let other = Trained::at("fm", 1, &examples(150), Some(&cluster));
    let expected = other.scores(&all);
    wait("it does not follow the new tables", || is_close(&served.scores(&all), &expected));
    served.catch_up();
    assert_close(&served.scores(&all), &expected);
    // Rows that only the old tables had are gone.
    let rows = Model::load(&other.path).unwrap().rows();
    assert_eq!(served.json("/health", None)["models"][0]["rows"].as_u64(), Some(rows));
}

#[test]
fn rows_in_half_precision_and_too_little_memory() {
    let servers = [shard(0, None), shard(1, None)];
    let cluster = connect(&servers, true);
    let trained = Trained::at("lr", 2, &examples(300), Some(&cluster));
    let all = examples(300);
    let half = replica(&trained.path, &cluster, Some(Dtype::F16), None);
    wait("it is not served", || half.server.is_ready());
    // A logit is the sum of at most six weights, each off by 2^-11 of itself; the slope of a score is at most a quarter.
    let model = Model::load(&trained.path).unwrap();
    let mut largest = 0.0_f32;
    for table in model.client().tables() {
        table.for_each_row(|row| {
            largest = row.weights.iter().fold(largest, |most, weight| most.max(weight.abs()));
        });
    }
    let error = 6.0 * f64::from(largest) / 2048.0 / 4.0;
    for (found, expected) in half.scores(&all).iter().zip(trained.scores(&all)) {
        assert!((found - f64::from(expected)).abs() <= error, "{found} {expected} {error}");
    }
    let full = replica(
        &trained.path,
        &cluster,
        None,
        Some(ServedModel::load(&trained.path, None, 1).unwrap().table_bytes() / 2),
    );
    let has_error = || full.health()["replica"]["sources"][0]["error"].as_str().map(str::to_owned);
    wait("it has no error", || has_error().is_some());
    let error = has_error().unwrap();
    assert!(error.contains("table") && error.contains("--memory"), "{error}");
    assert!(!full.server.is_ready());
}
