//! A replica of a deep model: its rows follow servers or their checkpoints, its dense part the exports into its directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sanderling_client::{Cluster, RemoteTable};
use sanderling_learner::{Config as RunConfig, save_reading};
use sanderling_serve::{CheckpointPlace, Engines, FollowOptions, ReplicaConfig, ReplicaSource, ServedModel};
use sanderling_store::{Absent, CheckpointWriter, Init, Optimizer, PushScale, Table, TableConfig};
use sanderling_testkit::TestServer;
use serde_json::{Value, json};

use crate::fixture::{Served, numbers};
use crate::replica::{connect, wait};

const WIDTH: usize = 2;
const USERS: usize = 12;

fn table_config(name: &str) -> TableConfig {
    let adagrad = Optimizer::Adagrad { lr: 0.1, eps: 1e-8, initial: 0.1, l2: 0.0 };
    TableConfig { seed: 7, ..TableConfig::single(name, WIDTH, Init::Normal { std: 0.5 }, adagrad) }
}

/// A field of a message of protobuf, with its length.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    assert!(content.len() < 1 << 14, "two bytes of a length are enough here");
    let length = [content.len() as u8 | 0x80, (content.len() >> 7) as u8];
    [&[number << 3 | 2], &length[..], content].concat()
}

/// An ONNX file: the score is the inner product of the user's row and these weights.
fn onnx(weights: [f32; WIDTH]) -> Vec<u8> {
    let node = |kind: &str, inputs: [&str; 2], output: &str| {
        let inputs = inputs.map(|input| field(1, input.as_bytes())).concat();
        field(1, &[inputs, field(2, output.as_bytes()), field(4, kind.as_bytes())].concat())
    };
    let constant = |name: &str, dims: &[u8], kind: u8, raw: &[u8]| {
        let dims: Vec<u8> = dims.iter().flat_map(|&dim| [1 << 3, dim]).collect();
        field(5, &[&dims[..], &[2 << 3, kind], &field(8, name.as_bytes()), &field(9, raw)].concat())
    };
    let graph = [
        node("MatMul", ["user", "weights"], "product"),
        node("Squeeze", ["product", "axes"], "score"),
        constant("weights", &[WIDTH as u8, 1], 1, &weights.map(f32::to_le_bytes).concat()),
        constant("axes", &[1], 7, &1_i64.to_le_bytes()),
    ];
    field(7, &graph.concat())
}

fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes what `sanderling export --onnx` writes for a dense part.
fn export(model: &Path, dense: &str, weights: [f32; WIDTH]) {
    let onnx = onnx(weights);
    std::fs::write(model.join("dense.onnx"), &onnx).unwrap();
    let manifest = json!({
        "format": 1, "generation": 1, "rows": "rows-1", "reading": "reading-1",
        "dense": { "file": "dense-1.pt", "bytes": 0, "sha256": dense },
    });
    std::fs::write(model.join("manifest.json"), manifest.to_string()).unwrap();
    let serving = json!({
        "format": 1, "checkpoint": dense, "name": "clicks", "description": "a test", "is_regression": true,
        "onnx": { "file": "dense.onnx", "bytes": onnx.len(), "sha256": sha256(&onnx) },
        "labels": 1, "width": WIDTH, "numbers": [], "history": null, "output": "score",
        "embeddings": [{ "feature": "user", "table": "user", "pooling": "sum" }],
    });
    std::fs::write(model.join("serving.part"), serving.to_string()).unwrap();
    std::fs::rename(model.join("serving.part"), model.join("serving.json")).unwrap();
}

/// The directory of a deep model of one feature.
fn deep_model(folder: &Path) -> PathBuf {
    let model = folder.join("model");
    let config = json!({
        "name": "clicks", "data": { "train": "clicks.csv" }, "feature": [{ "name": "user" }],
    });
    let config = RunConfig::from_json(&config.to_string(), |_| ()).unwrap();
    save_reading(&model.join("reading-1"), &config.data.reading, &config.spec(), None, None).unwrap();
    let mut writer = CheckpointWriter::create(model.join("rows-1")).unwrap();
    writer.table(&Table::new(table_config("user")).unwrap()).unwrap();
    writer.commit().unwrap();
    export(&model, "first", [1.0, -2.0]);
    model
}

fn built_in() -> Engines {
    Engines { built_in: true, ..Engines::default() }
}

fn follow(model: &Path, source: ReplicaSource) -> (Served, Arc<Mutex<Vec<String>>>) {
    let served = Served::with(|config| config.engines = built_in(), []);
    let config = ReplicaConfig {
        source,
        fresh: Duration::from_millis(20),
        stale_after: Duration::from_secs(600),
        memory_bytes_max: None,
    };
    let options = FollowOptions { engines: built_in(), ..FollowOptions::default() };
    let model = Arc::new(ServedModel::to_follow(model, None, 1, &options).unwrap());
    let notes = Arc::<Mutex<Vec<String>>>::default();
    let told = Arc::clone(&notes);
    served
        .server
        .follow_source(config, model, move |line| told.lock().unwrap().push(line.to_owned()))
        .unwrap();
    (served, notes)
}

/// The users with the keys of their rows.
fn users(served: &Served) -> Vec<(String, u64)> {
    let names: Vec<String> = (0..USERS).map(|at| format!("u{at}")).collect();
    let rows = served.json("/tables/user/rows", Some(&json!({ "values": names })));
    let keys = rows["rows"].as_array().unwrap().iter().map(|row| row["key"].as_u64().unwrap());
    names.iter().cloned().zip(keys).collect()
}

/// Whether the scores are those of the rows that the server has now, and of initial rows where it has none.
fn is_up_to_date(served: &Served, table: &RemoteTable, weights: [f32; WIDTH]) -> bool {
    let (mut rows, initial) = (BTreeMap::new(), Table::new(table_config("user")).unwrap());
    table
        .export(|columns| {
            for (key, row) in columns.keys.iter().zip(columns.weights.chunks_exact(WIDTH)) {
                rows.insert(*key, row.to_vec());
            }
        })
        .unwrap();
    let users = users(served);
    let asked: Vec<Value> = users.iter().map(|(user, _)| json!({ "user": user })).collect();
    let scores = numbers(&served.json("/predict", Some(&json!({ "rows": asked })))["scores"]);
    users.iter().zip(&scores).all(|((_, key), score)| {
        let mut row = vec![0.0; WIDTH];
        initial.pull(&[*key], Absent::Init, &mut row, None).unwrap();
        let row = rows.get(key).unwrap_or(&row);
        let expected: f32 = row.iter().zip(weights).map(|(a, b)| a * b).sum();
        (score - f64::from(expected)).abs() <= 1e-5
    })
}

fn place() -> (TestServer, Arc<Cluster>, RemoteTable, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::new(|config| config.data = Some(folder.path().join("data")));
    let cluster = connect(std::slice::from_ref(&server), false);
    let table = RemoteTable::create(&cluster, &table_config("clicks/user")).unwrap();
    (server, cluster, table, folder)
}

#[test]
fn rows_follow_servers_and_checkpoints_and_the_dense_part_its_exports() {
    let (server, cluster, table, folder) = place();
    let model = deep_model(folder.path());
    server.save("latest", true);
    let (served, notes) =
        follow(&model, ReplicaSource::Servers { cluster: Arc::clone(&cluster), start: None });
    let checkpoints = CheckpointPlace::folder(folder.path().join("data/latest"));
    let (saved, _) = follow(&model, ReplicaSource::Checkpoints(checkpoints));
    for served in [&served, &saved] {
        wait("it is not served", || served.server.is_ready());
    }
    let keys: Vec<u64> = users(&served).iter().take(USERS / 2).map(|(_, key)| *key).collect();
    for round in 0..3 {
        let grads: Vec<f32> = (0..keys.len() * WIDTH).map(|at| (at as f32 + round as f32).sin()).collect();
        table.push(&keys, &grads, PushScale::default()).unwrap();
        server.save("latest", true);
        for served in [&served, &saved] {
            wait("rows do not follow", || is_up_to_date(served, &table, [1.0, -2.0]));
        }
    }
    // Training has gone on, and the dense part is exported later.
    export(&model, "second", [0.5, 3.0]);
    for served in [&served, &saved] {
        wait("the dense part does not follow", || is_up_to_date(served, &table, [0.5, 3.0]));
    }
    table.remove(&keys[..1]).unwrap();
    wait("a removed row stays", || is_up_to_date(&served, &table, [0.5, 3.0]));
    // A file that does not belong to the description is refused, and the part before is served.
    std::fs::write(model.join("dense.onnx"), onnx([9.0, 9.0])).unwrap();
    let serving = std::fs::read_to_string(model.join("serving.json")).unwrap();
    std::fs::write(model.join("serving.json"), format!("{serving} ")).unwrap();
    let noted = |text: &str| notes.lock().unwrap().iter().filter(|line| line.contains(text)).count();
    wait("the damage is not noticed", || noted("the dense part before is served") == 1);
    assert!(is_up_to_date(&served, &table, [0.5, 3.0]));
    export(&model, "third", [-1.0, 0.25]);
    wait("the dense part does not follow", || is_up_to_date(&served, &table, [-1.0, 0.25]));
    assert_eq!((noted("the dense part before is served"), noted("exported again and is served")), (1, 2));
}

#[test]
fn a_model_without_the_configuration_of_its_tables_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = deep_model(folder.path());
    let refused = |expected: &str| {
        let options = FollowOptions { engines: built_in(), ..FollowOptions::default() };
        let error = ServedModel::to_follow(&model, None, 1, &options).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let manifest = std::fs::read_to_string(model.join("manifest.json")).unwrap();
    std::fs::write(model.join("manifest.json"), manifest.replace("\"rows\"", "\"none\"")).unwrap();
    refused("sanderling download");
    std::fs::write(model.join("manifest.json"), manifest.replace("first", "later")).unwrap();
    refused("belongs to an earlier state of the model");
    std::fs::remove_file(model.join("serving.json")).unwrap();
    refused("was not exported");
}
