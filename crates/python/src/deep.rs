//! Deep models for the command line: `sanderling.torch.file_scores` scores the rows, and the arrays go on from here.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::exceptions::PyModuleNotFoundError;
use pyo3::prelude::*;
use sanderling_cli::{DeepEnd, DeepError, DeepModel, DeepModels, DeepRows, OnnxExport, Purpose};
use sanderling_client::Cluster;
use sanderling_formats::DataConfig;
use sanderling_learner::KnownKeys;

use crate::arrays::numbers;
use crate::remote::PyConnection;
use crate::value::{from_python, to_python};

/// Opens deep models by `sanderling.torch`, which is imported when the first one is opened.
pub(crate) struct TorchModels;

/// A `sanderling.torch.file_scores.FileScores`.
struct FileScores(Py<PyAny>);

impl DeepModels for TorchModels {
    fn open(&self, path: &Path, servers: Option<Arc<Cluster>>) -> Result<Box<dyn DeepModel>, DeepError> {
        Python::attach(|py| {
            let open = || {
                let connection = servers.map(|cluster| Py::new(py, PyConnection::of(cluster))).transpose()?;
                py.import("sanderling.torch.file_scores")?.getattr("FileScores")?.call1((path, connection))
            };
            let scores = open().map_err(|error| told(py, &error))?;
            Ok(Box::new(FileScores(scores.unbind())) as Box<dyn DeepModel>)
        })
    }

    fn download(&self, path: &Path, servers: Arc<Cluster>) -> Result<u64, DeepError> {
        Python::attach(|py| {
            let download = || {
                let connection = Py::new(py, PyConnection::of(servers))?;
                py.import("sanderling.torch")?.getattr("download")?.call1((path, connection))?.extract()
            };
            download().map_err(|error| told(py, &error))
        })
    }

    fn onnxruntime(&self) -> Option<PathBuf> {
        Python::attach(|py| {
            let spec = py.import("importlib.util").ok()?.call_method1("find_spec", ("onnxruntime",)).ok()?;
            let file: PathBuf = spec.getattr("origin").ok()?.extract().ok()?;
            file.parent().map(Path::to_owned)
        })
    }

    fn export_onnx(&self, path: &Path) -> Result<OnnxExport, DeepError> {
        Python::attach(|py| {
            let export = || {
                let export = py.import("sanderling.torch.onnx_export")?.getattr("export_onnx")?;
                let facts = export.call1((path,))?;
                Ok(OnnxExport {
                    output: facts.get_item("output")?.extract()?,
                    bytes: facts.get_item("bytes")?.extract()?,
                    inputs: facts.get_item("inputs")?.extract()?,
                })
            };
            export().map_err(|error: PyErr| told(py, &error))
        })
    }
}

impl FileScores {
    fn with<T>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T, DeepError> {
        Python::attach(|py| call(self.0.bind(py)).map_err(|error| told(py, &error)))
    }
}

impl DeepModel for FileScores {
    fn reading(&self) -> Result<DataConfig, DeepError> {
        self.with(|scores| from_python("data", &scores.getattr("reading")?))
    }

    fn begin(
        &mut self,
        files: &[String],
        reading: &DataConfig,
        threads: usize,
        purpose: Purpose,
    ) -> Result<(), DeepError> {
        self.with(|scores| {
            let reading = to_python(scores.py(), reading)?;
            let is_labelled = purpose == Purpose::Metrics;
            scores.call_method1("begin", (files.to_vec(), reading, threads, is_labelled)).map(drop)
        })
    }

    fn next(&mut self) -> Result<Option<DeepRows>, DeepError> {
        self.with(|scores| {
            let rows = scores.call_method0("take")?;
            if rows.is_none() {
                return Ok(None);
            }
            let [labels, predictions, weights] = ["labels", "scores", "weights"].map(|name| {
                let column = numbers(name, &rows.get_item(name)?)?;
                Ok::<_, PyErr>(column.as_slice()?.to_vec())
            });
            let rows_total = rows.get_item("rows_total")?.extract()?;
            Ok(Some(DeepRows { labels: labels?, scores: predictions?, weights: weights?, rows_total }))
        })
    }

    fn end(&mut self) -> Result<DeepEnd, DeepError> {
        self.with(|scores| {
            let facts = scores.call_method0("end")?;
            let entry = |name: &str| facts.get_item(name);
            let known: Vec<(String, u64, u64)> = entry("known")?.extract()?;
            let known = known.into_iter().map(|(feature, occurrences, known)| KnownKeys {
                feature,
                occurrences,
                known,
            });
            Ok(DeepEnd {
                known: known.collect(),
                rows: entry("rows")?.extract()?,
                table_bytes: entry("table_bytes")?.extract()?,
                bad_rows: entry("bad_rows")?.extract()?,
                bad_row_messages: entry("bad_row_messages")?.extract()?,
                metrics: entry("metrics")?.extract()?,
            })
        })
    }
}

/// An exception as the command tells it.
fn told(py: Python<'_>, error: &PyErr) -> DeepError {
    let value = error.value(py);
    let is_torch =
        || value.getattr("name").and_then(|name| name.extract::<String>()).is_ok_and(|name| name == "torch");
    if error.is_instance_of::<PyModuleNotFoundError>(py) && is_torch() {
        let text = "deep models need PyTorch: pip install 'sanderling[torch]'".to_owned();
        return DeepError { text, exit_code: 1 };
    }
    let of = || py.import("sanderling.torch.exit_codes")?.getattr("told")?.call1((value,))?.extract();
    let (text, exit_code) = of().unwrap_or_else(|_: PyErr| (error.to_string(), 1));
    DeepError { text, exit_code }
}
