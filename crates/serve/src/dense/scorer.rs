//! Encodes rows for a deep model, and gathers and pools their embeddings; a scratch for one thread.

use sanderling_learner::LearnError;
use sanderling_sample::{Batch, Encoder, Field, FieldError, Rows};
use sanderling_store::{Absent, Pooling as StorePooling, StoreError, Table};

use crate::dense::description::Pooling;
use crate::dense::inputs::DenseInputs;
use crate::dense::model::DeepModel;
use crate::slow::{Stage, StageTimes};

/// Encodes rows, and makes the inputs of the dense part of them.
pub(crate) struct DeepScorer {
    pub(crate) encoder: Encoder,
    batch: Batch,
    /// Inputs of the dense part where they go to no batch of several requests.
    inputs: DenseInputs,
    /// The column of the batch of each feature, in the order of the description.
    columns: Vec<usize>,
    /// The key of a present value, of each numeric feature.
    value_keys: Vec<u64>,
}

impl DeepScorer {
    /// Prepares for rows of a model.
    ///
    /// # Errors
    /// A spec that does not compile.
    pub(crate) fn new(model: &DeepModel) -> Result<DeepScorer, LearnError> {
        let encoder = model.encoder()?;
        let features = &model.spec.feature;
        let place = |name: &str| features.iter().position(|feature| feature.name == name).unwrap_or_default();
        let columns: Vec<usize> = model.description.features().map(place).collect();
        let numbers = model.description.numbers.iter();
        let value_keys = numbers.map(|name| features[place(name)].value_key()).collect();
        let (batch, inputs) = (encoder.new_batch(), model.inputs());
        Ok(DeepScorer { encoder, batch, inputs, columns, value_keys })
    }

    /// Encodes a row; an error leaves it out.
    pub(crate) fn add(&mut self, fields: &[Field<'_>]) -> Result<(), FieldError> {
        self.encoder.encode_row(fields, self.batch.len() as u64 + 1, &mut self.batch).map(|_| ())
    }

    pub(crate) fn len(&self) -> usize {
        self.batch.len()
    }

    pub(crate) fn clear(&mut self) {
        self.batch.clear();
    }

    /// Appends the inputs of the rows that were added, and forgets the rows.
    pub(crate) fn gather(&mut self, model: &DeepModel, to: &mut DenseInputs) -> Result<(), StoreError> {
        let rows = Rows::all(&self.batch);
        model.drift.note(&rows);
        let description = &model.description;
        let table = |name: &str| model.table(name).unwrap_or(&model.tables[0]);
        let mut columns = self.columns.iter().copied().zip(&mut to.columns);
        for (embedding, (column, to)) in description.embeddings.iter().zip(&mut columns) {
            pool(table(&embedding.table), embedding.pooling, &rows, column, &mut to.values)?;
        }
        for (value_key, (column, to)) in self.value_keys.iter().zip(&mut columns) {
            let (keys, values) = (rows.keys(column), rows.values(column));
            let number = |span: &[u32]| {
                let key = span[0] as usize;
                let is_present = span[0] < span[1] && keys[key] == *value_key;
                if is_present { values.map_or(1.0, |values| values[key]) } else { 0.0 }
            };
            to.values.extend(rows.offsets(column).windows(2).map(number));
        }
        if let Some(history) = &description.history {
            let column = self.columns[self.columns.len() - 1];
            let (table, keys) = (table(&history.table), rows.keys(column));
            for span in rows.offsets(column).windows(2) {
                let keys = &keys[span[0] as usize..span[1] as usize];
                let keys = &keys[keys.len().saturating_sub(history.length)..];
                let first = to.steps.len();
                to.steps.resize(first + keys.len() * table.dim(), 0.0);
                table.pull(keys, Absent::Init, &mut to.steps[first..], None)?;
                to.lengths.push(keys.len());
            }
        }
        to.rows += rows.len();
        self.batch.clear();
        Ok(())
    }

    /// Scores the rows that were added and forgets them; `scores` gets one per row.
    ///
    /// # Errors
    /// The engine fails.
    pub(crate) fn score(
        &mut self,
        model: &DeepModel,
        scores: &mut Vec<f32>,
        times: &StageTimes,
    ) -> Result<(), String> {
        let mut inputs = std::mem::take(&mut self.inputs);
        if inputs.columns.is_empty() {
            inputs = model.inputs();
        }
        inputs.clear();
        let gathered = times.timed(Stage::Rows, || self.gather(model, &mut inputs));
        let done = gathered.map_err(|error| error.to_string());
        let done = done.and_then(|()| times.timed(Stage::Score, || model.run(&inputs, scores)));
        self.inputs = inputs;
        done
    }
}

/// Appends the pooled row of every sample; unknown keys count as their initial rows, as in training.
fn pool(
    table: &Table,
    pooling: Pooling,
    rows: &Rows<'_>,
    column: usize,
    out: &mut Vec<f32>,
) -> Result<(), StoreError> {
    let (dim, first) = (table.dim(), out.len());
    out.resize(first + rows.len() * dim, 0.0);
    let (keys, values, offsets) = (rows.keys(column), rows.values(column), rows.offsets(column));
    let out = &mut out[first..];
    let (values, pooling) = match pooling {
        Pooling::Sum => (values, StorePooling::Sum),
        // Values do not count.
        Pooling::Mean => (None, StorePooling::Mean),
    };
    table.pull_pooled(keys, values, offsets, pooling, Absent::Init, out, None).map(|_| ())
}
