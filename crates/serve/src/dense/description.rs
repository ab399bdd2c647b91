//! `serving.json`, by which `sanderling export --onnx` tells the inputs of the dense part, and its check against the files.

use std::io::Read;
use std::path::{Path, PathBuf};

use sanderling_learner::LearnError;
use sanderling_store::open_regular;
use serde::Deserialize;

/// The file in a model directory.
pub(crate) const FILE: &str = "serving.json";
/// The manifest of the checkpoint.
const MANIFEST: &str = "manifest.json";
/// The latest version of the file that is read.
const FORMAT: u32 = 1;
/// Size limit of both files.
const BYTES_MAX: u64 = 16 << 20;
/// Size limit of the dense part, which an ONNX file in one piece has anyway.
const ONNX_BYTES_MAX: u64 = 2 << 30;

/// Inputs and output of a dense part.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Description {
    format: u32,
    /// SHA-256 of the dense part in PyTorch that the ONNX file was made of.
    checkpoint: String,
    onnx: OnnxFile,
    /// Name of the run.
    pub(crate) name: String,
    /// Type of the model in words.
    pub(crate) description: String,
    pub(crate) is_regression: bool,
    /// Number of outputs per row; the first one is the score.
    pub(crate) labels: usize,
    /// Weights of a row of a table.
    pub(crate) width: usize,
    /// Features with embeddings, in the order of the inputs.
    pub(crate) embeddings: Vec<Embedding>,
    /// Numeric features; their inputs follow.
    pub(crate) numbers: Vec<String>,
    /// The sequence; its rows and its mask are the last inputs.
    pub(crate) history: Option<History>,
    pub(crate) output: String,
}

/// A feature whose rows are pooled.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Embedding {
    pub(crate) feature: String,
    pub(crate) table: String,
    pub(crate) pooling: Pooling,
}

/// How the rows of a feature become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Pooling {
    /// Each row times the value of its key.
    Sum,
    Mean,
}

/// A feature whose rows stay apart.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct History {
    pub(crate) feature: String,
    pub(crate) table: String,
    /// Rows at most; the last ones are kept.
    pub(crate) length: usize,
}

#[derive(Debug, Clone, Deserialize)]
struct OnnxFile {
    file: String,
    bytes: u64,
    sha256: String,
}

#[derive(Deserialize)]
struct Manifest {
    dense: ManifestDense,
}

#[derive(Deserialize)]
struct ManifestDense {
    sha256: String,
}

impl Description {
    /// Reads the description and the ONNX file of a model directory.
    ///
    /// # Errors
    /// The model was not exported, not since it was saved last, or a file is damaged.
    pub(crate) fn read(directory: &Path) -> Result<(Description, Vec<u8>), LearnError> {
        let path = directory.join(FILE);
        let shown = directory.display();
        let export = format!("run sanderling export {shown} --onnx");
        if !path.exists() {
            let reason = format!("is a deep model whose dense part was not exported: {export}");
            return Err(LearnError::Model { path: directory.into(), reason });
        }
        let found: Description = parse(path.clone())?;
        let wrong = |path: PathBuf, reason: String| LearnError::Model { path, reason };
        if found.format > FORMAT {
            let reason =
                format!("has format {}, this version reads {FORMAT}: update sanderling", found.format);
            return Err(wrong(path, reason));
        }
        let manifest: Manifest = parse(directory.join(MANIFEST))?;
        if manifest.dense.sha256 != found.checkpoint {
            return Err(wrong(path, format!("belongs to an earlier state of the model: {export} again")));
        }
        if found.onnx.file.contains(['/', '\\']) || found.width == 0 || found.labels == 0 {
            return Err(wrong(path, format!("is damaged: {export} again")));
        }
        let onnx = directory.join(&found.onnx.file);
        let bytes = read(&onnx, ONNX_BYTES_MAX)?;
        if bytes.len() as u64 != found.onnx.bytes || sha256(&bytes) != found.onnx.sha256 {
            return Err(wrong(onnx, format!("is damaged, or not of this model: {export} again")));
        }
        Ok((found, bytes))
    }

    /// The description of one numeric feature, for tests.
    #[cfg(test)]
    pub(crate) fn of_numbers(feature: &str) -> Description {
        Description {
            format: FORMAT,
            checkpoint: String::new(),
            onnx: OnnxFile { file: String::new(), bytes: 0, sha256: String::new() },
            name: "clicks".to_owned(),
            description: "a test".to_owned(),
            is_regression: false,
            labels: 1,
            width: 1,
            embeddings: Vec::new(),
            numbers: vec![feature.to_owned()],
            history: None,
            output: "score".to_owned(),
        }
    }

    /// Names of the tables, in their order.
    pub(crate) fn tables(&self) -> Vec<&str> {
        let embeddings = self.embeddings.iter().map(|embedding| embedding.table.as_str());
        let history = self.history.iter().map(|history| history.table.as_str());
        let mut names: Vec<&str> = embeddings.chain(history).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Names of the features, in the order of the inputs.
    pub(crate) fn features(&self) -> impl Iterator<Item = &str> {
        let embeddings = self.embeddings.iter().map(|embedding| embedding.feature.as_str());
        let history = self.history.iter().map(|history| history.feature.as_str());
        embeddings.chain(self.numbers.iter().map(String::as_str)).chain(history)
    }

    /// Names of the inputs.
    pub(crate) fn inputs(&self) -> Vec<String> {
        let mask = self.history.iter().map(|history| format!("{}:mask", history.feature));
        self.features().map(str::to_owned).chain(mask).collect()
    }
}

fn parse<T: for<'de> Deserialize<'de>>(path: PathBuf) -> Result<T, LearnError> {
    let text = read(&path, BYTES_MAX)?;
    serde_json::from_slice(&text)
        .map_err(|error| LearnError::Model { path, reason: format!("is damaged: {error}") })
}

fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, LearnError> {
    let mut bytes = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(bytes_max).read_to_end(&mut bytes));
    read.map_err(|error| LearnError::Model { path: path.into(), reason: error.to_string() })?;
    Ok(bytes)
}

fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
