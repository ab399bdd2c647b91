//! A replica of published checkpoints: it has the rows of each delta, keeps a whole state where a link is damaged, and may
//! be the start of a replica of servers.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sanderling_client::{Cluster, RemoteTable};
use sanderling_learner::Model;
use sanderling_serve::{CheckpointPlace, FollowOptions, ReplicaConfig, ReplicaSource, ServedModel};
use sanderling_testkit::web::{Site, Web};
use sanderling_testkit::{LONG, TestServer};
use serde_json::Value;

use crate::fixture::{Example, Served, Trained, assert_close, examples};
use crate::replica::{change, connect, is_close, shard, wait};

const TABLES: [&str; 3] = ["user", "genres", "age"];

/// A replica that follows something, and its notes.
struct Following {
    served: Served,
    notes: Arc<Mutex<Vec<String>>>,
}

fn follow(path: &Path, source: ReplicaSource) -> Following {
    let (served, notes) = (Served::new([]), Arc::<Mutex<Vec<String>>>::default());
    let config = ReplicaConfig {
        source,
        fresh: Duration::from_millis(20),
        stale_after: Duration::from_secs(600),
        memory_bytes_max: None,
    };
    let model = Arc::new(ServedModel::to_follow(path, None, 1, &FollowOptions::default()).unwrap());
    let told = Arc::clone(&notes);
    served
        .server
        .follow_source(config, model, move |line| told.lock().unwrap().push(line.to_owned()))
        .unwrap();
    Following { served, notes }
}

impl Following {
    fn of(path: &Path, folder: &Path) -> Following {
        follow(path, ReplicaSource::Checkpoints(CheckpointPlace::folder(folder.to_path_buf())))
    }

    fn source(&self) -> Value {
        self.served.health()["replica"]["sources"][0].clone()
    }

    /// Waits until so many deltas of each part, after a full checkpoint of a generation, are applied.
    #[track_caller]
    fn reach(&self, generation: u64, deltas: u64) {
        let begun = Instant::now();
        loop {
            let source = self.source();
            let is_there = source["parts"].as_array().is_some_and(|parts| {
                parts.iter().all(|part| part["generation"] == generation && part["deltas"] == deltas)
            });
            if is_there {
                return;
            }
            assert!(begun.elapsed() < LONG, "not generation {generation} with {deltas} deltas: {source}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn error(&self) -> String {
        self.source()["error"].as_str().unwrap_or_default().to_owned()
    }

    fn noted(&self, text: &str) -> usize {
        self.notes.lock().unwrap().iter().filter(|line| line.contains(text)).count()
    }
}

/// Servers that save below one folder, with a trained model.
struct Place {
    servers: Vec<TestServer>,
    cluster: Arc<Cluster>,
    trained: Trained,
    tables: Vec<RemoteTable>,
    folder: tempfile::TempDir,
}

impl Place {
    fn new(kind: &str, shards: u16) -> Place {
        let folder = tempfile::tempdir().unwrap();
        let server = |at| {
            TestServer::new(|config| {
                (config.shard, config.shards) = (at, shards);
                config.data = Some(folder.path().join("data"));
            })
        };
        let servers: Vec<TestServer> = (0..shards).map(server).collect();
        let cluster = connect(&servers, false);
        let trained = Trained::at(kind, 2, &examples(300), Some(&cluster));
        let open = |name: &str| RemoteTable::open(&cluster, &format!("clicks/{name}")).unwrap();
        let tables = TABLES.iter().map(|name| open(name)).collect();
        Place { servers, cluster, trained, tables, folder }
    }

    fn latest(&self) -> std::path::PathBuf {
        self.folder.path().join("data/latest")
    }

    /// Changes rows of all tables, and removes a few.
    fn change(&self, round: u64) {
        self.tables.iter().for_each(|table| change(table, round));
    }

    /// Saves on all servers, which have saved as often before; returns the generation, and the number of deltas.
    fn save(&self, delta: bool) -> (u64, u64) {
        let saved: Vec<_> = self.servers.iter().map(|server| server.save("latest", delta)).collect();
        assert!(saved.iter().all(|other| *other == saved[0]), "{saved:?}");
        saved[0]
    }

    /// The scores and the number of rows of a model of the rows that the servers have now.
    fn expected(&self, all: &[Example]) -> (Vec<f32>, u64) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        Model::open_on_servers(&self.trained.path, &self.cluster).unwrap().save(&path, &[]).unwrap();
        let model = Model::load(&path).unwrap();
        (self.trained.scores_of(&model, all), model.rows())
    }

    fn check(&self, replica: &Following, all: &[Example]) {
        let (scores, rows) = self.expected(all);
        assert_close(&replica.served.scores(all), &scores);
        assert_eq!(replica.served.health()["models"][0]["rows"].as_u64(), Some(rows));
    }
}

#[test]
fn scores_are_those_of_each_delta_and_full_checkpoint() {
    let all = examples(500);
    for (kind, shards) in [("lr", 1), ("fm", 2), ("ffm", 3)] {
        let place = Place::new(kind, shards);
        let (mut base, _) = place.save(true);
        let replica = Following::of(&place.trained.path, &place.latest());
        wait("it is not served", || replica.served.server.is_ready());
        place.check(&replica, &all);
        for round in 0..6 {
            place.change(round);
            // The fourth save is a full one, to which no delta leads, and which none can follow.
            let (generation, deltas) = place.save(round != 3);
            if deltas == 0 {
                base = generation;
            }
            assert_eq!(deltas, [1, 2, 3, 0, 0, 1][round as usize]);
            replica.reach(base, deltas);
            place.check(&replica, &all);
        }
        let metrics = replica.served.get("/metrics");
        let metrics = metrics.text();
        assert!(metrics.contains("sanderling_replica_stale 0"), "{metrics}");
        for (name, count) in [("deltas", 4 * shards), ("exports", 3 * shards), ("errors", 0)] {
            let line = format!("sanderling_replica_{name}_total{{source=");
            let line = metrics.lines().find(|text| text.starts_with(&line)).unwrap();
            assert!(line.ends_with(&format!(" {count}")), "{line}, not {count}");
        }
        let lag = replica.served.health()["replica"]["lag_s"].as_f64().unwrap();
        assert!(lag < 600.0, "{lag}");
    }
}

/// Copies files of a checkpoint to where it is published, the manifest last.
fn publish(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    let mut names: Vec<_> =
        std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort_by_key(|name| name == "manifest.json");
    for name in names {
        // A reader finds a file whole, as in a bucket.
        std::fs::copy(from.join(&name), to.join("new")).unwrap();
        std::fs::rename(to.join("new"), to.join(&name)).unwrap();
    }
}

#[test]
fn a_damaged_or_missing_link_keeps_the_state_before_it() {
    let (all, place) = (examples(500), Place::new("fm", 1));
    place.save(true);
    let published = place.folder.path().join("published");
    publish(&place.latest(), &published);
    let replica = Following::of(&place.trained.path, &published);
    replica.reach(1, 0);
    for (round, damage) in ["flipped", "short", "missing"].into_iter().enumerate() {
        let delta = 2 * round as u64 + 1;
        place.change(delta);
        place.save(true);
        publish(&place.latest(), &published);
        replica.reach(1, delta);
        let (before, rows) = place.expected(&all);
        place.change(delta + 1);
        place.save(true);
        let name = format!("g{}-0.delta", delta + 2);
        let mut bytes = std::fs::read(place.latest().join(&name)).unwrap();
        let middle = bytes.len() / 2;
        match damage {
            "flipped" => bytes[middle] ^= 1,
            "short" => bytes.truncate(middle),
            _ => bytes.clear(),
        }
        // As a copy that went wrong, or that has not reached the file yet.
        let file = published.join(&name);
        std::fs::write(&file, &bytes).unwrap();
        if damage == "missing" {
            std::fs::remove_file(&file).unwrap();
        }
        let manifest = place.latest().join("manifest.json");
        std::fs::copy(manifest, published.join("new")).unwrap();
        std::fs::rename(published.join("new"), published.join("manifest.json")).unwrap();
        wait("the damage is not noticed", || !replica.error().is_empty());
        let error = replica.error();
        assert!(
            error.contains(&name) && error.contains(&format!("delta {}", delta + 1)),
            "{damage}: {error}"
        );
        for served in [&replica, &Following::of(&place.trained.path, &published)] {
            wait("the state before is not served", || served.served.server.is_ready());
            wait("it is not stale", || served.served.health()["replica"]["stale"] == true);
            assert_close(&served.served.scores(&all), &before);
            assert_eq!(served.served.health()["models"][0]["rows"].as_u64(), Some(rows));
        }
        // Named once, although it is tried again.
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!((replica.noted("not followed"), replica.noted("followed again")), (round + 1, round));
        publish(&place.latest(), &published);
        replica.reach(1, delta + 1);
        wait("it is stale", || replica.served.health()["replica"]["stale"] == false);
        place.check(&replica, &all);
    }
    // The next full checkpoint needs no link before it.
    std::fs::remove_file(published.join("g3-0.delta")).unwrap();
    place.change(9);
    place.save(false);
    publish(&place.latest(), &published);
    replica.reach(8, 0);
    place.check(&replica, &all);
    let metrics = replica.served.get("/metrics");
    let line =
        metrics.text().lines().find(|line| line.starts_with("sanderling_replica_errors_total")).unwrap();
    assert!(line.rsplit(' ').next().unwrap().parse::<u64>().unwrap() >= 3, "{line}");
}

#[test]
fn another_number_of_servers_and_other_tables_are_noticed() {
    let all = examples(500);
    let place = Place::new("fm", 2);
    place.save(true);
    let published = place.folder.path().join("published");
    publish(&place.latest().join("shard-0-of-2"), &published.join("shard-0-of-2"));
    let replica = Following::of(&place.trained.path, &published);
    wait("a part is not missed", || replica.error().contains("shard-1-of-2 has no manifest.json"));
    assert!(!replica.served.server.is_ready());
    publish(&place.latest().join("shard-1-of-2"), &published.join("shard-1-of-2"));
    wait("it is not served", || replica.served.server.is_ready());
    place.check(&replica, &all);
    // One server saves after the two; other rows, of which the two had none.
    let one = Place::new("fm", 1);
    one.tables[0].remove(&keys(&one.tables[0])[..3]).unwrap();
    one.save(true);
    publish(&one.latest(), &published);
    wait("the other servers are not followed", || {
        replica.source()["parts"].as_array().is_some_and(|parts| parts.len() == 1)
    });
    one.check(&replica, &all);
    let lr = Trained::at("lr", 1, &examples(300), None);
    let wrong = Following::of(&lr.path, &published);
    wait("rows of another shape are taken", || wrong.error().contains("weights, those of the model 1"));
    assert!(!wrong.served.server.is_ready());
}

fn keys(table: &RemoteTable) -> Vec<u64> {
    let mut keys = Vec::new();
    table.export(|rows| keys.extend_from_slice(rows.keys)).unwrap();
    keys.sort_unstable();
    keys
}

/// All files below a folder, by path.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        found.push((path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(&path).unwrap()));
    }
    found
}

#[test]
fn files_of_a_url_are_fetched_and_removed() {
    let (all, place) = (examples(500), Place::new("fm", 1));
    place.save(true);
    let site =
        |place: &Place| files(&place.latest()).into_iter().map(|(name, bytes)| (format!("c/{name}"), bytes));
    let web = Web::start(Site::new(site(&place)));
    let spool = place.folder.path().join("spool");
    let url = CheckpointPlace::url(&web.url("c"), spool.clone()).unwrap();
    let replica = follow(&place.trained.path, ReplicaSource::Checkpoints(url));
    for round in 0..3 {
        replica.reach(1, round);
        place.check(&replica, &all);
        place.change(round);
        place.save(true);
        web.site.lock().unwrap().files = site(&place).collect();
    }
    replica.reach(1, 3);
    place.check(&replica, &all);
    // The full checkpoint was asked for once; no file is left but the lock.
    let asked =
        web.site.lock().unwrap().requests.iter().filter(|line| line.contains("/c/g1-0.table")).count();
    assert_eq!(asked, 1);
    let folder = std::fs::read_dir(&spool).unwrap().next().unwrap().unwrap().path();
    assert_eq!(files(&folder), [("lock".to_owned(), Vec::new())]);
    drop(replica);
    assert!(std::fs::read_dir(&spool).unwrap().next().is_none());
}

#[test]
fn a_replica_of_servers_starts_from_their_checkpoint() {
    let (all, place) = (examples(500), Place::new("fm", 2));
    let servers = |start: &Path| ReplicaSource::Servers {
        cluster: Arc::clone(&place.cluster),
        start: Some(CheckpointPlace::folder(start.to_path_buf())),
    };
    place.save(true);
    place.change(1);
    place.save(true);
    let kept = place.folder.path().join("kept");
    for part in ["shard-0-of-2", "shard-1-of-2"] {
        publish(&place.latest().join(part), &kept.join(part));
    }
    place.change(2);
    let replica = follow(&place.trained.path, servers(&kept));
    wait("it is not served", || replica.served.server.is_ready());
    wait("it is not followed", || replica.noted("followed from the epoch of the checkpoint on") == 2);
    replica.served.catch_up();
    place.check(&replica, &all);
    let metrics = replica.served.get("/metrics");
    let exports = metrics.text().lines().filter(|line| line.starts_with("sanderling_replica_exports_total{"));
    assert!(
        exports.clone().count() == 2 && exports.clone().all(|line| line.ends_with(" 0")),
        "{}",
        metrics.text()
    );
    // A full checkpoint from which no delta goes on has no epochs: all rows are fetched.
    place.save(false);
    place.change(3);
    let replica = follow(&place.trained.path, servers(&place.latest()));
    wait("it is not followed", || {
        replica.noted("has no epoch of its changes, so all rows of 4 of 4 tables") == 2
    });
    replica.served.catch_up();
    place.check(&replica, &all);
    // A checkpoint that cannot be read is said, and all rows come from the servers.
    let replica = follow(&place.trained.path, servers(&place.folder.path().join("nothing")));
    wait("it is not followed", || replica.served.server.is_ready());
    assert_eq!(replica.noted("not loaded"), 1);
    place.check(&replica, &all);
}

#[test]
fn the_rows_of_a_checkpoint_are_served_before_servers_answer() {
    let (all, mut place) = (examples(500), Place::new("fm", 2));
    place.save(true);
    let (before, rows) = place.expected(&all);
    let addresses: Vec<_> = place.servers.iter().map(|server| server.address("tcp")).collect();
    place.tables.clear();
    place.servers.clear();
    let start = Some(CheckpointPlace::folder(place.latest()));
    let source = ReplicaSource::Servers { cluster: Arc::clone(&place.cluster), start };
    let replica = follow(&place.trained.path, source);
    wait("it is not served", || replica.served.server.is_ready());
    assert_close(&replica.served.scores(&all), &before);
    let health = replica.served.health();
    assert!(health["replica"]["stale"] == true && health["models"][0]["rows"] == rows, "{health}");
    // Other servers at the addresses do not have the changes since the checkpoint, and have other rows.
    place.servers.extend([shard(0, Some(&addresses[0])), shard(1, Some(&addresses[1]))]);
    let cluster = connect(&place.servers, false);
    let other = Trained::at("fm", 1, &examples(150), Some(&cluster));
    let expected = other.scores(&all);
    wait("it does not follow the new tables", || is_close(&replica.served.scores(&all), &expected));
    replica.served.catch_up();
    let rows = Model::load(&other.path).unwrap().rows();
    assert_eq!(replica.served.health()["models"][0]["rows"].as_u64(), Some(rows));
    assert_eq!(replica.noted("does not keep all changes since the checkpoint"), 2);
}
