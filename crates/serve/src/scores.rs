//! Scores of the rows of one request, some hundreds at a time, and their explanations. Knows no protocol.

use sanderling_learner::{LearnError, RowScorer};
use sanderling_sample::Field;

use crate::error::{Kind, ServeError};
use crate::limit::ROWS_AT_ONCE;
use crate::models::ServedModel;

/// One score per row.
#[derive(Debug, Default)]
pub(crate) struct Scores {
    pub(crate) scores: Vec<f32>,
    pub(crate) explained: Option<Explained>,
}

/// The parts of the logits.
#[derive(Debug, Default)]
pub(crate) struct Explained {
    /// The constant term, the same in all rows.
    pub(crate) bias: f64,
    /// The contribution of each feature, row by row.
    pub(crate) contributions: Vec<f64>,
}

/// Takes the rows of a request one by one.
pub(crate) struct Scoring<'a> {
    model: &'a ServedModel,
    scorer: &'a mut RowScorer,
    found: Scores,
}

impl<'a> Scoring<'a> {
    pub(crate) fn new(model: &'a ServedModel, scorer: &'a mut RowScorer, explains: bool) -> Scoring<'a> {
        let found = Scores { scores: Vec::new(), explained: explains.then(Explained::default) };
        Scoring { model, scorer, found }
    }

    /// Encodes a row; its fields run parallel to the columns of the model. `row` is its place in the request.
    pub(crate) fn add(&mut self, row: usize, fields: &[Field<'_>]) -> Result<(), ServeError> {
        let added = self.scorer.add(fields);
        added.map_err(|error| ServeError::of_field(row, self.scorer.columns(), &error))?;
        if self.scorer.len() == ROWS_AT_ONCE { self.score() } else { Ok(()) }
    }

    /// Scores what is left.
    pub(crate) fn finish(mut self) -> Result<Scores, ServeError> {
        if !self.scorer.is_empty() {
            self.score()?;
        }
        Ok(self.found)
    }

    fn score(&mut self) -> Result<(), ServeError> {
        let (model, before) = (&self.model.model, self.found.scores.len());
        let scored = match &mut self.found.explained {
            None => self.scorer.score(model, &mut self.found.scores),
            Some(explained) => self
                .scorer
                .explain(model, &mut self.found.scores, &mut explained.contributions)
                .map(|bias| explained.bias = bias),
        };
        scored.map_err(|error| match error {
            LearnError::Prediction { cause, .. } => {
                // A large value of the request is the client's, a model that has diverged is not.
                let kind = if cause.is_some() { Kind::Invalid } else { Kind::Internal };
                let cause = cause.unwrap_or_else(|| "the model has diverged".to_owned());
                let last = before + ROWS_AT_ONCE - 1;
                ServeError::new(
                    kind,
                    format!("a score of rows {before} to {last} is no finite number: {cause}"),
                )
            }
            error => ServeError::new(Kind::Internal, error.to_string()),
        })
    }
}
