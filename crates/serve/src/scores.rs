//! Scores of the rows of one request, some hundreds at a time, and their explanations. Knows no protocol.

use sanderling_learner::LearnError;
use sanderling_sample::Field;

use crate::dense::DenseInputs;
use crate::error::{Kind, ServeError};
use crate::limit::ROWS_AT_ONCE;
use crate::models::ServedModel;
use crate::scored::{Scored, Scorer};
use crate::slow::{Stage, StageTimes};

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

/// The scores of a request, or its rows for a batch.
pub(crate) enum Found {
    Scores(Scores),
    Rows(DenseInputs),
}

/// The results that a request asks for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wanted {
    pub(crate) explains: bool,
    /// Rows of the request up to which they join a batch of several requests, if the model has batches.
    pub(crate) joins_max: usize,
}

/// Takes the rows of a request one by one.
pub(crate) struct Scoring<'a> {
    model: &'a ServedModel,
    scorer: &'a mut Scorer,
    found: Scores,
    /// Rows that join a batch, in place of scores.
    joining: Option<DenseInputs>,
    times: &'a StageTimes,
}

impl<'a> Scoring<'a> {
    /// Begins a request of so many rows.
    ///
    /// # Errors
    /// Explanations of a model that has none.
    pub(crate) fn new(
        model: &'a ServedModel,
        scorer: &'a mut Scorer,
        rows: usize,
        wanted: Wanted,
        times: &'a StageTimes,
    ) -> Result<Scoring<'a>, ServeError> {
        if wanted.explains && !model.model.explains() {
            let text = "only scores of lr, fm and ffm models are explained: they are sums over features";
            return Err(ServeError::invalid(text));
        }
        let joining = match &model.model {
            Scored::Deep(deep) if rows <= wanted.joins_max => Some(deep.inputs()),
            _ => None,
        };
        let found = Scores { scores: Vec::new(), explained: wanted.explains.then(Explained::default) };
        Ok(Scoring { model, scorer, found, joining, times })
    }

    /// Encodes a row; its fields run parallel to the columns of the model. `row` is its place in the request.
    pub(crate) fn add(&mut self, row: usize, fields: &[Field<'_>]) -> Result<(), ServeError> {
        let added = self.scorer.add(fields);
        added.map_err(|error| ServeError::of_field(row, self.scorer.columns(), &error))?;
        if self.scorer.len() == ROWS_AT_ONCE { self.score() } else { Ok(()) }
    }

    /// Scores what is left.
    pub(crate) fn finish(mut self) -> Result<Found, ServeError> {
        if self.scorer.len() > 0 {
            self.score()?;
        }
        Ok(self.joining.map_or(Found::Scores(self.found), Found::Rows))
    }

    fn score(&mut self) -> Result<(), ServeError> {
        let (before, times) = (self.found.scores.len(), self.times);
        match (&mut *self.scorer, &self.model.model) {
            (Scorer::BuiltIn(scorer), Scored::BuiltIn(model)) => {
                let scored = times.timed(Stage::Score, || match &mut self.found.explained {
                    None => scorer.score(model, &mut self.found.scores),
                    Some(explained) => scorer
                        .explain(model, &mut self.found.scores, &mut explained.contributions)
                        .map(|bias| explained.bias = bias),
                });
                scored.map_err(|error| of_learner(error, before))
            }
            (Scorer::Deep(scorer), Scored::Deep(model)) => {
                let internal = |text: String| ServeError::new(Kind::Internal, text);
                if let Some(inputs) = &mut self.joining {
                    let gathered = times.timed(Stage::Rows, || scorer.gather(model, inputs));
                    return gathered.map_err(|error| internal(error.to_string()));
                }
                scorer.score(model, &mut self.found.scores, times).map_err(internal)?;
                check_scores(&self.found.scores[before..], before)
            }
            _ => unreachable!("a scorer scores rows of its own model"),
        }
    }
}

/// The error of a prediction by a built-in model; `before` rows of the request were scored already.
fn of_learner(error: LearnError, before: usize) -> ServeError {
    let LearnError::Prediction { cause, .. } = error else {
        return ServeError::new(Kind::Internal, error.to_string());
    };
    // A large value of the request is the client's, a model that has diverged is not.
    let kind = if cause.is_some() { Kind::Invalid } else { Kind::Internal };
    let cause = cause.unwrap_or_else(|| "the model has diverged".to_owned());
    let last = before + ROWS_AT_ONCE - 1;
    ServeError::new(kind, format!("a score of rows {before} to {last} is no finite number: {cause}"))
}

/// Refuses scores of a dense part that are no finite numbers; `first` is the place of the first in its request.
pub(crate) fn check_scores(scores: &[f32], first: usize) -> Result<(), ServeError> {
    let Some(at) = scores.iter().position(|score| !score.is_finite()) else { return Ok(()) };
    let row = first + at;
    let text = format!(
        "row {row}: its score is no finite number: a number of the row is too large, or the model has diverged"
    );
    Err(ServeError::invalid(text))
}

/// Prepares the scratch of so many threads, and scores a row of missing values.
///
/// # Errors
/// The score is no finite number, or there is no memory.
pub(crate) fn warm(model: &ServedModel, threads: usize) -> Result<(), String> {
    model.prepare(threads)?;
    let scored = model.with_scorer(|scorer| {
        let times = StageTimes::default();
        let mut scoring = Scoring::new(model, scorer, 1, Wanted::default(), &times)?;
        // A column that must not be missing has no such row.
        let row = vec![Field::Missing; model.columns.len()];
        if scoring.add(0, &row).is_ok() { scoring.finish().map(drop) } else { Ok(()) }
    });
    scored.map_err(|error| error.to_string())
}
