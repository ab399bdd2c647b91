//! Deep models in the commands that apply a model. The Python package scores the rows; options, progress, output and
//! exit codes are those of built-in models. Knows no Python.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sanderling_client::Cluster;
use sanderling_formats::DataConfig;
use sanderling_learner::KnownKeys;

use crate::failure::Failure;
use crate::progress::Bar;
use crate::reading::ReadArgs;
use crate::servers::ServerArgs;

/// Opens deep models; the Python package implements it.
pub trait DeepModels: Sync {
    /// Opens the model in a directory, with its tables in this process or on servers as they are now.
    fn open(&self, path: &Path, servers: Option<Arc<Cluster>>) -> Result<Box<dyn DeepModel>, DeepError>;
    /// Copies the rows of a model's tables from servers into its directory; returns their number.
    fn download(&self, path: &Path, servers: Arc<Cluster>) -> Result<u64, DeepError>;
    /// Directory of the package `onnxruntime`, if it is installed.
    fn onnxruntime(&self) -> Option<PathBuf>;
    /// Writes the dense part of a model as an ONNX file into its directory.
    fn export_onnx(&self, path: &Path) -> Result<OnnxExport, DeepError>;
}

/// An exported dense part.
#[derive(Debug, serde::Serialize)]
pub struct OnnxExport {
    /// The file.
    pub output: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Names of the inputs.
    pub inputs: Vec<String>,
}

/// An open deep model, which scores the rows of files in their order.
pub trait DeepModel {
    /// How the files of its run were read.
    fn reading(&self) -> Result<DataConfig, DeepError>;
    /// Begins to score these files; [`DeepModel::next`] then returns their rows.
    fn begin(
        &mut self,
        files: &[String],
        reading: &DataConfig,
        threads: usize,
        purpose: Purpose,
    ) -> Result<(), DeepError>;
    /// The next scored rows; `None` at the end.
    fn next(&mut self) -> Result<Option<DeepRows>, DeepError>;
    /// Facts about the scored rows and the tables, after the last row.
    fn end(&mut self) -> Result<DeepEnd, DeepError>;
}

/// Purpose of scoring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Metrics: rows need labels, scores are logits, and a skipped row has none.
    Metrics,
    /// Predictions: rows need no labels, scores are predictions, and that of a skipped row is NaN.
    Predictions,
}

/// Scored rows, one entry per row.
#[derive(Debug, Default)]
pub struct DeepRows {
    /// 0 or 1; not used for predictions.
    pub labels: Vec<f32>,
    /// Logits or predictions, see [`Purpose`].
    pub scores: Vec<f32>,
    /// Weights of the rows; not used for predictions.
    pub weights: Vec<f32>,
    /// Rows of all files, as estimated by now.
    pub rows_total: Option<u64>,
}

/// Facts about scored rows and the tables.
#[derive(Debug, Default)]
pub struct DeepEnd {
    /// By feature, how many of its keys the model knows; empty for tables on servers.
    pub known: Vec<KnownKeys>,
    /// Rows in the tables.
    pub rows: u64,
    /// Memory of the tables, in bytes.
    pub table_bytes: u64,
    /// Skipped rows.
    pub bad_rows: u64,
    /// Reasons of the first skipped rows.
    pub bad_row_messages: Vec<String>,
    /// Further metrics by name; for a model without logits the only ones.
    pub metrics: Vec<(String, f64)>,
}

/// An error of a deep model, and the exit code that stands for it.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct DeepError {
    /// The message.
    pub text: String,
    /// Exit code of the command.
    pub exit_code: u8,
}

/// Scores the rows of files with a deep model and hands them to `each`.
pub(crate) struct Scoring<'a> {
    pub(crate) models: Option<&'a dyn DeepModels>,
    pub(crate) path: &'a Path,
    pub(crate) files: &'a [String],
    pub(crate) servers: &'a ServerArgs,
    pub(crate) reading: &'a ReadArgs,
    pub(crate) threads: usize,
    pub(crate) stop: &'a AtomicBool,
}

impl Scoring<'_> {
    /// Runs to the end of the files, unless `stop` is set.
    pub(crate) fn run(
        &self,
        purpose: Purpose,
        bar: &Bar,
        mut each: impl FnMut(DeepRows) -> Result<(), Failure>,
    ) -> Result<DeepEnd, Failure> {
        let models = self.models.ok_or_else(|| not_here(self.path))?;
        let mut model = models.open(self.path, self.servers.connect()?)?;
        let mut reading = model.reading()?;
        self.reading.apply_all(&mut reading)?;
        self.reading.check_used(&reading, self.files)?;
        model.begin(self.files, &reading, self.threads, purpose)?;
        let what = if purpose == Purpose::Metrics { "evaluating" } else { "predicting" };
        let mut done = 0;
        while let Some(rows) = model.next()? {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Failure::Stopped);
            }
            done += rows.scores.len() as u64;
            bar.rows(what, done, rows.rows_total);
            each(rows)?;
        }
        Ok(model.end()?)
    }
}

/// The error for a deep model in a program without Python.
pub(crate) fn not_here(path: &Path) -> Failure {
    let text = format!(
        "{}: is a deep model, which the command of the Python package reads: pip install 'sanderling[torch]', \
         see docs/torch.md",
        path.display()
    );
    Failure::Deep(DeepError { text, exit_code: crate::failure::BAD_MODEL })
}
