//! Versions of a folder: flips under load without a failed or mixed answer, refusals that leave the old version.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sanderling_serve::RepositoryConfig;
use sanderling_serve::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use sanderling_serve::proto::model_infer_request::InferInputTensor;
use sanderling_serve::proto::{InferTensorContents, ModelInferRequest};
use serde_json::{Value, json};

use crate::fixture::{Served, Trained, numbers};

const FLIPS: u64 = 1000;
const USERS: [&str; 3] = ["u1", "u2", "u3"];

/// A client that keeps its connection.
struct Client {
    address: String,
    stream: BufReader<TcpStream>,
}

impl Client {
    fn new(address: &str) -> Client {
        Client { address: address.to_owned(), stream: BufReader::new(TcpStream::connect(address).unwrap()) }
    }

    fn ask(&mut self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (address, length) = (&self.address, body.len());
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\n\r\n");
        self.stream.get_mut().write_all(format!("{head}{body}").as_bytes()).unwrap();
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).unwrap();
            match line.trim_end().split_once(' ') {
                None if line.trim_end().is_empty() => break,
                Some(("HTTP/1.1", rest)) => status = rest[..3].parse().unwrap(),
                Some(("content-length:", value)) => length = value.parse().unwrap(),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }
}

fn rows() -> Value {
    USERS.iter().map(|user| json!({ "user": user, "genres": ["g1"], "age": 3 })).collect()
}

fn inputs() -> Value {
    let tensor = |name: &str, datatype: &str, data: Value| json!({ "name": name, "datatype": datatype, "shape": [3], "data": data });
    json!({ "inputs": [
        tensor("user", "BYTES", json!(USERS)),
        tensor("genres", "BYTES", json!(["g1", "g1", "g1"])),
        tensor("age", "FP32", json!([3, 3, 3])),
    ] })
}

fn grpc_request() -> ModelInferRequest {
    let input = |name: &str, datatype: &str, contents| InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: vec![3],
        contents: Some(contents),
        ..Default::default()
    };
    let texts = |texts: [&str; 3]| InferTensorContents {
        bytes_contents: texts.map(|text| text.as_bytes().to_vec().into()).to_vec(),
        ..Default::default()
    };
    let ages = InferTensorContents { fp32_contents: vec![3.0; 3], ..Default::default() };
    ModelInferRequest {
        model_name: "clicks".to_owned(),
        inputs: vec![
            input("user", "BYTES", texts(USERS)),
            input("genres", "BYTES", texts(["g1"; 3])),
            input("age", "FP32", ages),
        ],
        ..Default::default()
    }
}

/// The numbers of one of the two models.
#[derive(Debug, Clone, PartialEq)]
struct Planted {
    scores: Vec<f64>,
    weights: Value,
}

const ROWS_PATH: &str = "/tables/user/rows?value=u1&value=u2&value=u3";

fn weights(answer: &Value) -> Value {
    answer["rows"].as_array().unwrap().iter().map(|row| row["weights"].clone()).collect()
}

fn planted(trained: &Trained) -> Planted {
    let served = Served::new([trained.model(1)]);
    Planted {
        scores: numbers(&served.json("/predict", Some(&json!({ "rows": rows() })))["scores"]),
        weights: weights(&served.json(ROWS_PATH, None)),
    }
}

fn follow(served: &Served, folder: &Path, memory_bytes: Option<u64>) -> Arc<Mutex<Vec<String>>> {
    let notes = Arc::<Mutex<Vec<String>>>::default();
    let config = RepositoryConfig { folder: folder.to_owned(), every: Duration::ZERO, memory_bytes };
    let noted = Arc::clone(&notes);
    served.server.follow(config, move |note| noted.lock().unwrap().push(note.to_owned())).unwrap();
    notes
}

fn add(folder: &Path, version: u64, model: &Path) {
    symlink(model, folder.join("clicks").join(version.to_string())).unwrap();
}

#[test]
fn a_thousand_flips_under_load_fail_and_mix_no_request() {
    let trained = [Trained::new("fm"), Trained::with("fm", 5)];
    let planted = trained.each_ref().map(planted);
    assert!(planted[0].scores != planted[1].scores && planted[0].weights != planted[1].weights);
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    std::fs::create_dir(folder.join("clicks")).unwrap();
    add(folder, 0, &trained[0].path);
    let served = Served::new([]);
    let notes = follow(&served, folder, None);
    let (ended, counts) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 4]);
    let of = |version: &str| &planted[version.parse::<usize>().unwrap() % 2];
    let check = |kind: usize, ask: &mut dyn FnMut()| {
        while !ended.load(Ordering::Relaxed) {
            ask();
            counts[kind].fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut client, body) = (Client::new(&served.address), json!({ "rows": rows() }).to_string());
            check(0, &mut || {
                let (status, answer) = client.ask("POST", "/predict", &body);
                assert_eq!(status, 200, "{answer}");
                let version = answer["version"].as_str().unwrap();
                assert_eq!(numbers(&answer["scores"]), of(version).scores, "{answer}");
            });
        });
        scope.spawn(|| {
            let mut client = Client::new(&served.address);
            check(1, &mut || {
                let (status, answer) = client.ask("GET", ROWS_PATH, "");
                assert_eq!(status, 200, "{answer}");
                assert_eq!(weights(&answer), of(answer["version"].as_str().unwrap()).weights, "{answer}");
            });
        });
        scope.spawn(|| {
            let (mut client, body) = (Client::new(&served.address), inputs().to_string());
            check(2, &mut || {
                let (status, answer) = client.ask("POST", "/v2/models/clicks/infer", &body);
                assert_eq!(status, 200, "{answer}");
                let version = answer["model_version"].as_str().unwrap();
                assert_eq!(numbers(&answer["outputs"][0]["data"]), of(version).scores, "{answer}");
            });
        });
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let url = served.server.url().to_owned();
            let mut client = runtime.block_on(GrpcInferenceServiceClient::connect(url)).unwrap();
            check(3, &mut || {
                let reply = runtime.block_on(client.model_infer(grpc_request())).unwrap().into_inner();
                let contents = reply.outputs[0].contents.as_ref().unwrap();
                let found: Vec<f64> = contents.fp32_contents.iter().map(|score| f64::from(*score)).collect();
                let expected: Vec<f64> =
                    of(&reply.model_version).scores.iter().map(|score| f64::from(*score as f32)).collect();
                assert_eq!(found, expected);
            });
        });
        // A panic of a client ends the loops of the others.
        let end = End(&ended);
        let mut client = Client::new(&served.address);
        for version in 1..=FLIPS {
            add(folder, version, &trained[version as usize % 2].path);
            let body = json!({ "parameters": { "version": version } }).to_string();
            let (status, answer) = client.ask("POST", "/v2/repository/models/clicks/load", &body);
            assert_eq!((status, &answer["aliases"]["live"]), (200, &json!(version.to_string())), "{answer}");
            assert_eq!(answer["versions"], json!([version.to_string()]));
            std::fs::remove_file(folder.join("clicks").join((version - 1).to_string())).unwrap();
        }
        drop(end);
    });
    for count in &counts {
        assert!(count.load(Ordering::Relaxed) > 0, "{counts:?}");
    }
    let dropped = notes.lock().unwrap().iter().filter(|note| note.ends_with(" dropped")).count();
    assert_eq!(dropped as u64, FLIPS);
    let metrics = served.get("/metrics");
    let versions = metrics.text().lines().filter(|line| {
        line.starts_with("sanderling_serve_requests_total") && line.contains("endpoint=\"predict\"")
    });
    assert!(versions.count() <= 33, "{}", metrics.text());
}

/// Sets a flag when it is dropped, also by a panic.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The states of `/v2/repository/index` by version.
fn states(served: &Served) -> BTreeMap<String, String> {
    let index = served.json("/v2/repository/index", Some(&json!({})));
    let entry = |entry: &Value| {
        let text = |name: &str| entry[name].as_str().unwrap().to_owned();
        (text("version"), format!("{} {}", text("state"), text("reason")).trim_end().to_owned())
    };
    index.as_array().unwrap().iter().map(entry).collect()
}

fn live(served: &Served) -> Value {
    served.json("/predict", Some(&json!({ "rows": rows() })))["version"].clone()
}

fn change(served: &Served, order: &str, parameters: &Value) -> (u16, Value) {
    let body = json!({ "parameters": parameters }).to_string();
    let reply = served.post(&format!("/v2/repository/models/clicks/{order}"), &body);
    (reply.status, serde_json::from_str(reply.text()).unwrap())
}

#[test]
fn a_folder_names_the_versions_and_aliases() {
    let trained = [Trained::new("lr"), Trained::with("lr", 5)];
    let root = tempfile::tempdir().unwrap();
    let (folder, clicks) = (root.path(), root.path().join("clicks"));
    std::fs::create_dir(&clicks).unwrap();
    for version in 1..4 {
        add(folder, version, &trained[version as usize % 2].path);
    }
    let served = Served::new([]);
    let notes = follow(&served, folder, None);
    // Without a link, the latest.
    assert_eq!(live(&served), "3");
    assert_eq!(states(&served)["1"], "UNAVAILABLE no alias names it");
    // Links of a person, and a request to look at them.
    symlink("1", clicks.join("live")).unwrap();
    symlink("2", clicks.join("candidate")).unwrap();
    let (status, answer) = change(&served, "load", &json!({}));
    assert_eq!((status, &answer["versions"]), (200, &json!(["1", "2"])), "{answer}");
    assert_eq!((live(&served), states(&served)["3"].as_str()), (json!("1"), "UNAVAILABLE no alias names it"));
    // A request moves the alias, and the link follows.
    let (status, answer) = change(&served, "load", &json!({ "version": "2" }));
    assert_eq!((status, &answer["versions"]), (200, &json!(["2"])), "{answer}");
    assert_eq!(std::fs::read_link(clicks.join("live")).unwrap(), Path::new("2"));
    // Back again.
    assert_eq!((change(&served, "load", &json!({ "version": 1 })).0, live(&served)), (200, json!("1")));
    assert_eq!(change(&served, "unload", &json!({ "alias": "candidate" })).0, 200);
    assert!(!clicks.join("candidate").exists() && !states(&served)["2"].starts_with("READY"));
    // What is wrong changes nothing.
    let damaged = clicks.join("7");
    std::fs::create_dir(&damaged).unwrap();
    std::fs::write(damaged.join("manifest.json"), "{}").unwrap();
    for (order, parameters, status, reason) in [
        ("load", json!({ "version": 9 }), 404, "no version 9 of \"clicks\""),
        ("load", json!({ "version": 7 }), 400, "manifest"),
        ("load", json!({ "alias": "../x", "version": 1 }), 400, "is no alias"),
        ("unload", json!({}), 400, "remove it from the folder of models first"),
    ] {
        let (found, answer) = change(&served, order, &parameters);
        let error = answer["error"].as_str().unwrap();
        assert!(found == status && error.contains(reason), "{parameters}: {found} {error}");
        assert_eq!(std::fs::read_link(clicks.join("live")).unwrap(), Path::new("1"));
        assert_eq!(live(&served), "1");
    }
    assert!(states(&served)["7"].starts_with("UNAVAILABLE "), "{:?}", states(&served));
    std::fs::remove_file(clicks.join("live")).unwrap();
    symlink("9", clicks.join("live")).unwrap();
    assert_eq!((change(&served, "load", &json!({})).0, live(&served)), (200, json!("1")));
    // A folder that is gone is served on until a request drops the model.
    std::fs::remove_dir_all(&clicks).unwrap();
    assert_eq!((change(&served, "load", &json!({})).0, live(&served)), (404, json!("1")));
    assert_eq!(change(&served, "unload", &json!({})).0, 200);
    served.refuses("/predict", &json!({ "rows": rows() }).to_string(), 503, "no model is loaded");
    let notes = notes.lock().unwrap();
    assert!(notes.iter().any(|note| note == "clicks@live is clicks@2"), "{notes:?}");
}

#[test]
fn tables_of_equal_rows_are_shared_and_others_must_fit() {
    let trained = [Trained::new("fm"), Trained::with("fm", 5)];
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    std::fs::create_dir(folder.join("clicks")).unwrap();
    add(folder, 1, &trained[0].path);
    add(folder, 2, &trained[0].path);
    add(folder, 3, &trained[1].path);
    symlink("1", folder.join("clicks/live")).unwrap();
    let bytes = trained[0].model(1).table_bytes();
    let served = Served::new([]);
    // Room for one model.
    let _notes = follow(&served, folder, Some(bytes + 1000));
    assert_eq!(change(&served, "load", &json!({ "version": 2, "alias": "copy" })).0, 200);
    let loaded = served.json("/models", None);
    assert_eq!(loaded["models"].as_array().unwrap().len(), 2);
    assert_eq!(loaded["shared_bytes"], json!(bytes), "{loaded}");
    let (status, answer) = change(&served, "load", &json!({ "version": 3 }));
    let error = answer["error"].as_str().unwrap();
    assert!(status == 400 && error.contains("its tables need ") && error.contains("(--memory)"), "{error}");
    assert_eq!(live(&served), "1");
    // A directory that is overwritten does not disturb what is loaded.
    let before = live(&served);
    std::fs::remove_file(folder.join("clicks/1")).unwrap();
    add(folder, 1, &trained[1].path);
    assert_eq!((change(&served, "load", &json!({})).0, live(&served)), (200, before));
}

#[test]
fn exposed_servers_without_a_token_take_no_changes() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("clicks")).unwrap();
    let exposed = Served::with(|config| (config.expose, config.insecure) = (true, true), []);
    let _notes = follow(&exposed, root.path(), None);
    exposed.refuses("/v2/repository/models/clicks/load", "", 403, "--token-file");
    let single = Served::new([]);
    single.refuses("/v2/repository/models/clicks/load", "", 400, "--models");
}
