//! Small trained models, and a server of one of them.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sanderling_client::Cluster;
use sanderling_formats::{BadRowPolicy, BadRows};
use sanderling_learner::{Config as RunConfig, Model, RunOptions, predict, train};
use sanderling_serve::{Config, Models, ServedModel, Server};
use sanderling_testkit::{HttpReply, http};
use serde_json::Value;

/// Rows of the training file.
pub(crate) const ROWS: usize = 400;

/// A row of the data.
#[derive(Debug, Clone)]
pub(crate) struct Example {
    pub(crate) user: String,
    pub(crate) genres: Vec<String>,
    pub(crate) age: Option<f64>,
}

/// Rows with a bit of everything: repeated and new users, no and several genres, missing ages, quotes.
pub(crate) fn examples(count: usize) -> Vec<Example> {
    let example = |at: usize| Example {
        user: if at.is_multiple_of(11) { format!("ü \"{at}\"") } else { format!("u{}", at % 17) },
        genres: (0..at % 4).map(|genre| format!("g{}", (at * 7 + genre) % 9)).collect(),
        age: (!at.is_multiple_of(5)).then(|| (at * 37 % 90) as f64 / 2.0),
    };
    (0..count).map(example).collect()
}

impl Example {
    pub(crate) fn json(&self) -> Value {
        serde_json::json!({ "user": self.user, "genres": self.genres, "age": self.age })
    }
}

fn csv(examples: &[Example]) -> String {
    let mut text = "user,genres,age,label\n".to_owned();
    for (at, example) in examples.iter().enumerate() {
        let age = example.age.map(|age| age.to_string()).unwrap_or_default();
        let (user, genres) = (example.user.replace('"', "\"\""), example.genres.join("|"));
        writeln!(text, "\"{user}\",{genres},{age},{}", usize::from(at * 31 % 7 > 3)).unwrap();
    }
    text
}

/// A trained model in a folder.
pub(crate) struct Trained {
    folder: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Trained {
    /// Trains a model of a type, such as `fm`.
    pub(crate) fn new(kind: &str) -> Trained {
        Trained::with(kind, 3)
    }

    /// Trains with a number of passes, so that models differ.
    pub(crate) fn with(kind: &str, passes: u32) -> Trained {
        Trained::at(kind, passes, &examples(ROWS), None)
    }

    /// Trains on examples, with tables on servers or without.
    pub(crate) fn at(
        kind: &str,
        passes: u32,
        examples: &[Example],
        servers: Option<&Arc<Cluster>>,
    ) -> Trained {
        let features = serde_json::json!([{ "name": "user" }, { "name": "genres", "type": "multi" }, { "name": "age", "type": "log" }]);
        Trained::train("clicks.csv", &csv(examples), kind, passes, Some(features), servers)
    }

    /// Trains a model of a type on a file of this name and text.
    pub(crate) fn of_file(name: &str, text: &str, kind: &str, features: Option<Value>) -> Trained {
        Trained::train(name, text, kind, 3, features, None)
    }

    fn train(
        name: &str,
        text: &str,
        kind: &str,
        passes: u32,
        features: Option<Value>,
        servers: Option<&Arc<Cluster>>,
    ) -> Trained {
        let folder = tempfile::tempdir().unwrap();
        let train_file = folder.path().join(name);
        std::fs::write(&train_file, text).unwrap();
        let mut config = serde_json::json!({
            "name": "clicks",
            "data": { "train": train_file },
            "model": { "type": kind },
            "train": { "passes": passes, "batch_size": 16 },
        });
        if let Some(features) = features {
            config["feature"] = features;
        }
        let config = RunConfig::from_json(&config.to_string(), |_| ()).unwrap();
        let (runs_dir, servers) = (folder.path().join("runs"), servers.cloned());
        let options = RunOptions { runs_dir, servers, ..RunOptions::default() };
        train(config, &options, &AtomicBool::new(false), &mut |_| ()).unwrap();
        let path = folder.path().join("runs/clicks/model");
        Trained { folder, path }
    }

    /// The scores that the learner gives the rows of a file.
    pub(crate) fn scores(&self, examples: &[Example]) -> Vec<f32> {
        self.scores_of_file("new.csv", &csv(examples))
    }

    /// The scores that the learner gives the rows of a file of this name and text.
    pub(crate) fn scores_of_file(&self, name: &str, text: &str) -> Vec<f32> {
        self.scores_of_model(&Model::load(&self.path).unwrap(), name, text)
    }

    /// The scores that the learner gives the rows of examples with a model.
    pub(crate) fn scores_of(&self, model: &Model, examples: &[Example]) -> Vec<f32> {
        self.scores_of_model(model, "new.csv", &csv(examples))
    }

    fn scores_of_model(&self, model: &Model, name: &str, text: &str) -> Vec<f32> {
        let file = self.folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        let reading = model.config().data.reading.clone();
        let (bad_rows, stop) = (Arc::new(BadRows::new(BadRowPolicy::Fail)), Arc::default());
        let (inputs, mut scores) = ([file.to_str().unwrap().to_owned()], Vec::new());
        predict(model, &inputs, &reading, &bad_rows, &stop, |rows, _| {
            scores.extend_from_slice(rows);
            Ok(())
        })
        .unwrap();
        scores
    }

    pub(crate) fn model(&self, version: u64) -> ServedModel {
        ServedModel::load(&self.path, None, version).unwrap()
    }
}

/// A server of models.
pub(crate) struct Served {
    pub(crate) server: Server,
    pub(crate) address: String,
}

impl Served {
    pub(crate) fn new(models: impl IntoIterator<Item = ServedModel>) -> Served {
        Served::with(|_| (), models)
    }

    pub(crate) fn with(
        adjust: impl FnOnce(&mut Config),
        models: impl IntoIterator<Item = ServedModel>,
    ) -> Served {
        let mut config = Config::new("127.0.0.1:0".parse().unwrap());
        config.timeout = std::time::Duration::from_secs(60);
        adjust(&mut config);
        let server = Server::start(&config).unwrap();
        server.publish(Models::new(models));
        let address = server.url().split_once("://").unwrap().1.to_owned();
        Served { server, address }
    }

    pub(crate) fn get(&self, path: &str) -> HttpReply {
        http(&self.address, "GET", path, &[], b"")
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> HttpReply {
        http(&self.address, "POST", path, &[], body.as_bytes())
    }

    /// The JSON of an answer that must be fine.
    #[track_caller]
    pub(crate) fn json(&self, path: &str, body: Option<&Value>) -> Value {
        let reply = match body {
            None => self.get(path),
            Some(body) => self.post(path, &body.to_string()),
        };
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        serde_json::from_str(reply.text()).unwrap()
    }

    /// Checks status and error of an answer in JSON.
    #[track_caller]
    pub(crate) fn refuses(&self, path: &str, body: &str, status: u16, reason: &str) {
        let reply = self.post(path, body);
        let json: Value = serde_json::from_str(reply.text()).unwrap();
        let error = json["error"].as_str().unwrap();
        assert!(reply.status == status && error.contains(reason), "{body}: {} {error}", reply.status);
        assert!(error.chars().count() <= 200, "{error}");
    }
}

/// Checks that numbers differ by at most 1e-6.
#[track_caller]
pub(crate) fn assert_close(found: &[f64], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (row, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - f64::from(*expected)).abs() <= 1e-6, "row {row}: {found} is not {expected}");
    }
}

/// The numbers of a JSON list.
#[track_caller]
pub(crate) fn numbers(json: &Value) -> Vec<f64> {
    json.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}
