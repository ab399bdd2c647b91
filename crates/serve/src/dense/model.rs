//! A saved deep model in memory: tables, feature spec, and the dense part in an engine.

use std::path::Path;
use std::sync::Arc;

use sanderling_learner::{KeyDrift, LearnError, SavedRows};
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, SampleError, Spec};
use sanderling_store::{Block, Dtype, Optimizer, Table, TableConfig, Writes};

use crate::batch::Batches;
use crate::dense::description::Description;
use crate::dense::engine::{DenseEngine, Engines, Signature};
use crate::dense::inputs::{DenseInputs, Padded};
use crate::limit::ROWS_AT_ONCE;

/// A deep model that scores rows.
pub(crate) struct DeepModel {
    pub(crate) description: Description,
    /// Without labels, which are features of the training input.
    pub(crate) spec: Spec,
    pub(crate) missing: Vec<String>,
    pub(crate) tables: Vec<Arc<Table>>,
    engine: Box<dyn DenseEngine>,
    /// The keys of requests against those of the training.
    pub(crate) drift: KeyDrift,
    /// Batches over requests.
    pub(crate) batches: Arc<Batches>,
}

impl DeepModel {
    /// Loads the tables and the exported dense part of a model directory. `admit` gets the bytes of the tables before.
    ///
    /// # Errors
    /// The model was not exported, its rows are on servers, a file is damaged, or no engine can run the dense part.
    pub(crate) fn load(
        path: &Path,
        engines: &Engines,
        admit: impl FnOnce(u64) -> Result<(), String>,
    ) -> Result<DeepModel, LearnError> {
        let (description, onnx) = Description::read(path)?;
        let saved = SavedRows::open(path)?;
        let mut bytes = 0_u64;
        for name in description.tables() {
            // The error of rows on servers says how to copy them.
            let entry = saved.table(Some(name))?;
            bytes = bytes.saturating_add(entry.config.bytes_of_rows(entry.rows));
        }
        admit(bytes).map_err(|reason| LearnError::Model { path: path.into(), reason })?;
        DeepModel::of(path, &saved, description, &onnx, saved.tables()?, engines)
    }

    /// The dense part of a model directory and empty tables of weights, which a replica fills. Keys without a row have the
    /// initial rows of training.
    ///
    /// # Errors
    /// The errors of [`DeepModel::load`], and a memory limit below that of an empty table.
    pub(crate) fn to_follow(
        path: &Path,
        engines: &Engines,
        dtype: Option<Dtype>,
        budget_bytes: Option<u64>,
    ) -> Result<DeepModel, LearnError> {
        let (description, onnx) = Description::read(path)?;
        let saved = SavedRows::open(path)?;
        let table = |name: &str| {
            let saved = saved.table(Some(name))?.config.clone();
            let optimizer = Optimizer::Sgd { lr: 0.01, l2: 0.0 };
            let blocks = saved.blocks.into_iter().map(|block| Block { optimizer, ..block }).collect();
            let config = TableConfig {
                seed: saved.seed,
                packing: saved.packing,
                dtype: dtype.unwrap_or(saved.dtype),
                writes: Writes::CopyOnWrite,
                budget_bytes,
                ..TableConfig::new(saved.name, blocks)
            };
            Ok::<_, LearnError>(Arc::new(Table::new(config)?))
        };
        let tables = description.tables().into_iter().map(table).collect::<Result<_, _>>()?;
        DeepModel::of(path, &saved, description, &onnx, tables, engines)
    }

    /// The model with the dense part that its directory has now, and with the tables that it has.
    ///
    /// # Errors
    /// The errors of [`DeepModel::load`], and a dense part that reads another table.
    pub(crate) fn with_new_dense_part(
        &self,
        path: &Path,
        engines: &Engines,
    ) -> Result<DeepModel, LearnError> {
        let (description, onnx) = Description::read(path)?;
        if let Some(name) = description.tables().into_iter().find(|name| self.table(name).is_none()) {
            let reason = format!("reads table {name:?}, which is not followed: start the server again");
            return Err(LearnError::Model { path: path.into(), reason });
        }
        DeepModel::of(path, &SavedRows::open(path)?, description, &onnx, self.tables.clone(), engines)
    }

    fn of(
        path: &Path,
        saved: &SavedRows,
        description: Description,
        onnx: &[u8],
        tables: Vec<Arc<Table>>,
        engines: &Engines,
    ) -> Result<DeepModel, LearnError> {
        let wrong = |reason: String| LearnError::Model { path: path.into(), reason };
        let Some(reading) = saved.reading() else {
            return Err(wrong("keeps no feature spec: train it again with this version".to_owned()));
        };
        let mut spec = reading.spec.expand()?;
        spec.feature.retain(|feature| description.features().any(|name| name == feature.name));
        if spec.is_sparse() {
            let reason = "reads libsvm or libffm lines; only deep models with named columns can be served";
            return Err(wrong(reason.to_owned()));
        }
        for name in description.features() {
            if !spec.feature.iter().any(|feature| feature.name == name) {
                return Err(wrong(format!("is damaged: its spec has no feature {name:?}")));
            }
        }
        for name in description.tables() {
            let dim = tables.iter().find(|table| table.name() == name).map(|table| table.dim());
            if dim != Some(description.width) {
                return Err(wrong(format!("is damaged: table {name:?} has rows of {dim:?} weights")));
            }
        }
        let signature = Signature { inputs: description.inputs(), output: description.output.clone() };
        let engine = engines.load(onnx, &signature).map_err(wrong)?;
        let missing = reading.data.missing.clone();
        let drift = KeyDrift::of_saved(saved, spec.feature.iter().map(|feature| feature.name.as_str()))?;
        let batches = Arc::default();
        let model = DeepModel { description, spec, missing, tables, engine, drift, batches };
        model.try_out().map_err(wrong)?;
        Ok(model)
    }

    /// A model of one numeric feature, for tests.
    #[cfg(test)]
    pub(crate) fn of_numbers(feature: &str, spec: Spec, engine: Box<dyn DenseEngine>) -> DeepModel {
        let description = Description::of_numbers(feature);
        let (missing, tables, batches) = (Vec::new(), Vec::new(), Arc::default());
        let drift = KeyDrift::default();
        DeepModel { description, spec, missing, tables, engine, drift, batches }
    }

    /// Scores a row of zeros, so that an engine that cannot run the file fails at the start.
    fn try_out(&self) -> Result<(), String> {
        let mut inputs = self.inputs();
        inputs.rows = 1;
        inputs.columns.iter_mut().for_each(|column| column.values.resize(column.width.unwrap_or(1), 0.0));
        inputs.lengths.push(0);
        self.run(&inputs, &mut Vec::new())
    }

    /// Type of the model, and the engine of its dense part.
    pub(crate) fn describe(&self) -> String {
        format!("{}, computed by {}", self.description.description, self.engine.name())
    }

    /// The encoder of rows without labels.
    pub(crate) fn encoder(&self) -> Result<Encoder, SampleError> {
        let mut spec = self.spec.clone();
        spec.weight = None;
        let options = EncodeOptions { missing: &self.missing, label: LabelUse::Optional, down_sample: false };
        Encoder::new(&spec, &options)
    }

    pub(crate) fn table(&self, name: &str) -> Option<&Arc<Table>> {
        self.tables.iter().find(|table| table.name() == name)
    }

    /// Empty inputs of the dense part.
    pub(crate) fn inputs(&self) -> DenseInputs {
        let embeddings = self.description.embeddings.iter().map(|_| Some(self.description.width));
        DenseInputs::new(embeddings.chain(self.description.numbers.iter().map(|_| None)))
    }

    /// Runs the dense part some hundred rows at a time, and appends one score per row.
    ///
    /// # Errors
    /// The engine fails.
    pub(crate) fn run(&self, inputs: &DenseInputs, scores: &mut Vec<f32>) -> Result<(), String> {
        let (labels, width) = (self.description.labels, self.description.width);
        let (mut output, mut padded) = (Vec::new(), Padded::default());
        let mut first = 0;
        while first < inputs.rows {
            let rows = first..inputs.rows.min(first + ROWS_AT_ONCE);
            first = rows.end;
            let padded = self.description.history.is_some().then(|| {
                inputs.pad(rows.clone(), width, &mut padded);
                (&padded, width)
            });
            output.clear();
            self.engine.run(&inputs.tensors(&rows, padded), &mut output)?;
            if output.len() != rows.len() * labels {
                let (found, rows) = (output.len(), rows.len());
                return Err(format!(
                    "the dense part gave {found} numbers for {rows} rows of {labels} labels"
                ));
            }
            scores.extend(output.chunks_exact(labels).map(|labels| labels[0]));
        }
        Ok(())
    }
}
