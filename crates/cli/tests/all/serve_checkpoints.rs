//! `sanderling serve --from` the checkpoints that `sanderling ps` saves, as processes: in a folder and in a bucket, with
//! deltas, a damaged one among them, and after `kill -9` of both.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_client::{Cluster, ConnectOptions, RemoteTable};
use sanderling_learner::Model;
use sanderling_store::PushScale;
use sanderling_testkit::web::{Site, Web};
use sanderling_testkit::{LONG, http};
use serde_json::{Value, json};

use crate::process::Process;
use crate::serve::{Serve, run};

const USERS: usize = 40;
const TABLES: [&str; 2] = ["user", "genres"];

/// Trains the run `clicks` on servers.
fn train(folder: &Path, addresses: &str) {
    let row = |at: usize| format!("u{},g{},{}\n", at % 25, at % 5, at % 3 / 2);
    let rows: String = (0..300).map(row).collect();
    std::fs::write(folder.join("clicks.csv"), format!("user,genres,label\n{rows}")).unwrap();
    let config = "name = \"clicks\"\ndata = { train = \"clicks.csv\" }\nmodel = { type = \"fm\" }\n\
        [[feature]]\nname = \"user\"\n[[feature]]\nname = \"genres\"\ntype = \"multi\"\n";
    std::fs::write(folder.join("clicks.toml"), config).unwrap();
    let users: String = (0..USERS).map(|at| format!("u{at},g{}\n", at % 6)).collect();
    std::fs::write(folder.join("users.csv"), format!("user,genres\n{users}")).unwrap();
    let (code, _, errors) = run(folder, &format!("train clicks.toml -q --ps {addresses}"));
    assert_eq!(code, Some(0), "{errors}");
}

/// The servers of a run.
struct Servers {
    processes: Vec<Process>,
    cluster: Arc<Cluster>,
}

impl Servers {
    fn start(folder: &Path) -> Servers {
        let start = |shard| {
            let options = format!("--no-local --shard {shard}/2 --data data --delta-every 1s");
            Process::start_at(folder, "127.0.0.1:0", 1, "", &options)
        };
        let processes: Vec<Process> = (0..2).map(start).collect();
        let addresses: Vec<_> = processes.iter().map(|process| process.addresses[0].clone()).collect();
        let cluster = Cluster::connect(&addresses, ConnectOptions::default()).unwrap();
        Servers { processes, cluster }
    }

    fn addresses(&self) -> String {
        let all: Vec<String> =
            self.processes.iter().map(|process| process.addresses[0].to_string()).collect();
        all.join(",")
    }

    /// Changes rows, and removes one.
    fn change(&self, by: f32) {
        for name in TABLES {
            let table = RemoteTable::open(&self.cluster, &format!("clicks/{name}")).unwrap();
            let mut keys = Vec::new();
            table.export(|rows| keys.extend_from_slice(rows.keys)).unwrap();
            keys.sort_unstable();
            let grads = vec![by; keys.len() / 2 * table.dim()];
            table.push(&keys[..keys.len() / 2], &grads, PushScale::default()).unwrap();
            table.remove(&keys[keys.len() - 1..]).unwrap();
        }
    }

    /// The scores that `predict` gives the users with the rows that the servers have now.
    fn scores(&self, folder: &Path) -> Vec<f64> {
        let model = Model::open_on_servers(&folder.join("runs/clicks/model"), &self.cluster).unwrap();
        let place = tempfile::tempdir_in(folder).unwrap();
        model.save(&place.path().join("model"), &[]).unwrap();
        let path = place.path().file_name().unwrap().to_str().unwrap().to_owned();
        let (code, scores, errors) = run(folder, &format!("predict {path}/model users.csv"));
        assert_eq!(code, Some(0), "{errors}");
        scores.lines().map(|line| line.parse().unwrap()).collect()
    }

    fn kill(&mut self) {
        for mut process in self.processes.drain(..) {
            process.signal("KILL");
            process.wait_unread();
        }
    }
}

fn scores(serve: &Serve) -> Vec<f64> {
    let rows: Vec<Value> = (0..USERS)
        .map(|at| json!({ "user": format!("u{at}"), "genres": [format!("g{}", at % 6)] }))
        .collect();
    let answer = serve.json("/predict", &json!({ "rows": rows }));
    answer["scores"].as_array().unwrap().iter().map(|score| score.as_f64().unwrap()).collect()
}

fn is_close(found: &[f64], expected: &[f64]) -> bool {
    found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-6)
}

fn replica(serve: &Serve) -> Value {
    let health: Value =
        serde_json::from_str(http(&serve.address, "GET", "/health", &[], b"").text()).unwrap();
    health["replica"].clone()
}

#[track_caller]
fn wait(what: &str, mut is_done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_done() {
        assert!(begun.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// All files below a folder, as objects of a bucket.
fn objects(folder: &Path, below: &str, to: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{below}/{}", entry.file_name().to_str().unwrap());
        match entry.file_type().unwrap().is_dir() {
            true => objects(&entry.path(), &name, to),
            // A save may remove it meanwhile.
            false => _ = std::fs::read(entry.path()).map(|bytes| to.insert(name, bytes)),
        }
    }
}

/// Copies the checkpoint to the bucket when all of its files are there.
fn publish(web: &Web, folder: &Path) {
    let mut files = BTreeMap::new();
    objects(&folder.join("data/latest"), "bucket/latest", &mut files);
    web.site.lock().unwrap().files = files;
}

#[test]
fn checkpoints_are_followed_in_a_folder_and_a_bucket() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let mut servers = Servers::start(folder);
    train(folder, &servers.addresses());
    let web = Web::start(Site::new([]));
    web.site.lock().unwrap().page = 100;
    let expected = servers.scores(folder);
    let model = "runs/clicks/model --from";
    let local = Serve::start_with(folder, &format!("{model} data/latest --fresh 50ms"), &[]);
    wait("the folder is not followed", || is_close(&scores(&local), &expected));
    publish(&web, folder);
    let remote = format!("{model} s3://bucket/latest/ --fresh 50ms --spool spool");
    let remote = || Serve::start_with(folder, &remote, &web.environment());
    let mut bucket = remote();
    let follow = |bucket: &Serve, expected: &[f64]| {
        for (what, serve) in [("folder", &local), ("bucket", bucket)] {
            wait(what, || {
                publish(&web, folder);
                is_close(&scores(serve), expected)
            });
        }
    };
    for by in [0.5, -0.25] {
        servers.change(by);
        let before = expected.clone();
        let expected = servers.scores(folder);
        assert!(!is_close(&before, &expected));
        follow(&bucket, &expected);
    }
    let parts = replica(&bucket)["sources"][0]["parts"].clone();
    assert!(parts[0]["part"] == "shard-0-of-2" && parts[1]["deltas"].as_u64() > Some(0), "{parts}");

    // Both are killed. The next replica begins with the newest state, and removes what the other one left.
    let expected = servers.scores(folder);
    servers.kill();
    bucket.signal("KILL");
    bucket.child.wait().unwrap();
    assert_eq!(std::fs::read_dir(folder.join("spool")).unwrap().count(), 1);
    bucket = remote();
    assert_eq!(std::fs::read_dir(folder.join("spool")).unwrap().count(), 1);
    assert!(is_close(&scores(&bucket), &expected) && is_close(&scores(&local), &expected));

    // Other processes of the servers: a full checkpoint, then deltas.
    let mut servers = Servers::start(folder);
    servers.change(0.125);
    let expected = servers.scores(folder);
    follow(&bucket, &expected);

    // The copy of a delta is damaged: the state before it stays, until it is whole.
    servers.change(2.0);
    let newer = servers.scores(folder);
    wait("the delta is not saved", || is_close(&scores(&local), &newer));
    servers.kill();
    let mut files = BTreeMap::new();
    objects(&folder.join("data/latest"), "bucket/latest", &mut files);
    let whole = files.clone();
    let before = web.site.lock().unwrap().files.clone();
    let added: Vec<String> = files.keys().filter(|name| !before.contains_key(*name)).cloned().collect();
    let deltas = added.iter().filter(|name| name.ends_with(".delta"));
    for name in deltas.clone() {
        *files.get_mut(name).unwrap().last_mut().unwrap() ^= 1;
    }
    assert!(deltas.clone().count() > 0, "{added:?}");
    web.site.lock().unwrap().files = files;
    wait("the damage is not noticed", || replica(&bucket)["sources"][0]["error"].is_string());
    let health = replica(&bucket);
    let error = health["sources"][0]["error"].as_str().unwrap();
    assert!(error.contains("delta") && error.contains("checksum") && health["stale"] == true, "{health}");
    assert!(is_close(&scores(&bucket), &expected));
    web.site.lock().unwrap().files = whole;
    wait("the delta is not applied", || is_close(&scores(&bucket), &newer));
    wait("the error stays", || replica(&bucket)["sources"][0]["error"].is_null());
    let metrics = http(&bucket.address, "GET", "/metrics", &[], b"");
    assert!(metrics.text().contains("sanderling_replica_errors_total{source=\"s3://bucket/latest\"}"));
}

#[test]
fn a_replica_of_servers_starts_from_their_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let mut servers = Servers::start(folder);
    train(folder, &servers.addresses());
    // A delta of each server, so that the checkpoint has epochs.
    wait("no delta is saved", || {
        let delta = |shard| {
            let part = std::fs::read_dir(folder.join(format!("data/latest/shard-{shard}-of-2")));
            part.is_ok_and(|mut part| {
                part.any(|entry| entry.unwrap().file_name().to_str().unwrap().ends_with(".blob"))
            })
        };
        delta(0) && delta(1)
    });
    servers.change(0.5);
    let expected = servers.scores(folder);
    let from = servers.addresses().replace("tcp://", "ps://");
    let options = format!("runs/clicks/model --from {from} --start data/latest --fresh 20ms --ps-timeout 1s");
    let serve = Serve::start_with(folder, &options, &[]);
    wait("the servers are not followed", || is_close(&scores(&serve), &expected));
    wait("it is stale", || replica(&serve)["stale"] == false);
    servers.kill();
    wait("the end of the servers is not noticed", || replica(&serve)["sources"][0]["error"].is_string());
    assert!(is_close(&scores(&serve), &expected));
}
