//! Scoring of single rows in memory, as a service asks for them. Opens no input and starts no thread.

use std::sync::Arc;

use sanderling_sample::{Batch, Encoder, Field, FieldError, Rows};

use crate::error::LearnError;
use crate::evaluate::Scorer;
use crate::line_rows::{LINE_COLUMN, LineRows};
use crate::model::{Model, Purpose};

/// Encodes and scores rows one after the other; a scratch for one thread.
pub struct RowScorer {
    encoder: Arc<Encoder>,
    scorer: Scorer,
    batch: Batch,
    /// The decoder of a model whose rows are lines, and the only column of such rows.
    lines: Option<(LineRows, [String; 1])>,
}

impl RowScorer {
    /// Prepares for rows of a model.
    ///
    /// # Errors
    /// A spec that does not compile.
    pub fn new(model: &Model) -> Result<RowScorer, LearnError> {
        let encoder = model.encoder(Purpose::Predict)?;
        let (scorer, batch) = (Scorer::new(model), encoder.new_batch());
        let lines = encoder.is_sparse().then(|| (LineRows::new(&encoder), [LINE_COLUMN.to_owned()]));
        Ok(RowScorer { encoder, scorer, batch, lines })
    }

    /// The columns of a row; fields run parallel to them. A model of libsvm or libffm lines has one, [`LINE_COLUMN`].
    #[must_use]
    pub fn columns(&self) -> &[String] {
        match &self.lines {
            Some((_, column)) => column,
            None => self.encoder.input_columns(),
        }
    }

    /// Whether a row may lack a column, such as the label.
    #[must_use]
    pub fn is_optional(&self, column: usize) -> bool {
        self.lines.is_none() && self.encoder.is_optional(column)
    }

    /// Whether a column holds lists: a feature of type `multi` reads it.
    #[must_use]
    pub fn takes_list(&self, column: usize) -> bool {
        self.lines.is_none() && self.encoder.takes_list(column)
    }

    /// Encodes a row, to be scored with those before it by [`RowScorer::score`].
    ///
    /// # Errors
    /// The field that does not encode; the row is left out.
    pub fn add(&mut self, fields: &[Field<'_>]) -> Result<(), FieldError> {
        match &mut self.lines {
            Some((lines, _)) => lines.add(fields, &mut self.batch),
            None => self.encoder.encode_row(fields, self.batch.len() as u64 + 1, &mut self.batch).map(|_| ()),
        }
    }

    /// Number of rows that wait to be scored.
    #[must_use]
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Whether no row waits to be scored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Scores the rows that were added and forgets them; `probabilities` gets one per row.
    ///
    /// # Errors
    /// [`LearnError::Prediction`] where a prediction is infinite or undefined.
    pub fn score(&mut self, model: &Model, probabilities: &mut Vec<f32>) -> Result<(), LearnError> {
        let rows = Rows::all(&self.batch);
        model.drift().into_iter().for_each(|drift| drift.note(&rows));
        let scored = self.scorer.probabilities(model, &["row".to_owned()], &rows, 0);
        let scored = scored.map(|scored| probabilities.extend_from_slice(scored));
        self.batch.clear();
        scored
    }

    /// Scores like [`RowScorer::score`] and appends what each feature adds to the logit, row by row; returns the bias.
    ///
    /// The bias and the contributions of a row add up to its logit.
    ///
    /// # Errors
    /// [`LearnError::Prediction`] where a prediction is infinite or undefined.
    pub fn explain(
        &mut self,
        model: &Model,
        probabilities: &mut Vec<f32>,
        contributions: &mut Vec<f64>,
    ) -> Result<f64, LearnError> {
        let rows = Rows::all(&self.batch);
        model.drift().into_iter().for_each(|drift| drift.note(&rows));
        let scored = self.scorer.probabilities(model, &["row".to_owned()], &rows, 0);
        let scored = scored.map(|scored| probabilities.extend_from_slice(scored));
        let bias = scored.map(|()| {
            let (first, features) = (contributions.len(), rows.columns());
            contributions.resize(first + rows.len() * features, 0.0);
            self.scorer.contributions(&rows, |feature, row, contribution| {
                contributions[first + row * features + feature] = contribution;
            })
        });
        self.batch.clear();
        bias
    }

    /// Forgets the rows that were added.
    pub fn clear(&mut self) {
        self.batch.clear();
    }
}
