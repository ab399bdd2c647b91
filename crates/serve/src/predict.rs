//! `POST /predict`: rows as JSON objects in, scores out.

use std::borrow::Cow;
use std::sync::Arc;

use sanderling_sample::Field;
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use crate::batches::{self, Step};
use crate::catalog::Models;
use crate::cell::{Cell, Row};
use crate::error::ServeError;
use crate::models::ServedModel;
use crate::scored::Scorer;
use crate::scores::{Explained, Found, Scores, Scoring, Wanted};
use crate::slow::Stage;
use crate::work::{Answer, Asked};

/// The body of a request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request<'a> {
    #[serde(borrow)]
    rows: Vec<Row<'a>>,
    /// Empty: the only model.
    #[serde(default, borrow)]
    model: Cow<'a, str>,
    /// Empty: the latest.
    #[serde(default, borrow)]
    version: Option<Cell<'a>>,
    /// Whether to return what each feature adds to the logit.
    #[serde(default)]
    explain: bool,
}

#[derive(Serialize)]
struct Reply<'a> {
    model: &'a str,
    version: String,
    scores: &'a [f32],
    #[serde(skip_serializing_if = "Option::is_none")]
    explanations: Option<Vec<Explanation<'a>>>,
}

/// The parts of one row's logit.
#[derive(Serialize)]
struct Explanation<'a> {
    logit: f64,
    bias: f64,
    contributions: ByFeature<'a>,
}

struct ByFeature<'a> {
    features: &'a [&'a str],
    contributions: &'a [f64],
}

impl Serialize for ByFeature<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.features.len()))?;
        for (feature, contribution) in self.features.iter().zip(self.contributions) {
            map.serialize_entry(feature, contribution)?;
        }
        map.end()
    }
}

/// Answers a request.
pub(crate) fn answer(models: &Models, asked: &Asked, body: &[u8]) -> Result<Step<Answer>, ServeError> {
    let parsed = asked.times.timed(Stage::Parse, || serde_json::from_slice(body));
    let request: Request<'_> = parsed.map_err(|error| ServeError::invalid(format!("the body: {error}")))?;
    let model = models.find(&request.model, &version_text(request.version.as_ref())?)?;
    asked.of(&model);
    if request.rows.len() > asked.batch_max {
        return Err(ServeError::too_many(request.rows.len(), "rows", asked.batch_max));
    }
    let found = scores(&model, &request.rows, asked, asked.wanted(request.explain))?;
    let (asked, of) = (asked.clone(), Arc::clone(&model));
    batches::answer(found, &model, move |scores| reply(&of, &asked, &scores))
}

fn reply(model: &ServedModel, asked: &Asked, found: &Scores) -> Result<Answer, ServeError> {
    let features: Vec<&str> = model.features().collect();
    let explanations = found.explained.as_ref().map(|explained| explanations(explained, &features));
    let (scores, version) = (&*found.scores, model.version.to_string());
    asked.note_scores(scores);
    let reply = Reply { model: &model.name, version, scores, explanations };
    asked.times.timed(Stage::Write, || Answer::json(&reply))
}

/// A version, which clients write as a number or as a text.
pub(crate) fn version_text(version: Option<&Cell<'_>>) -> Result<String, ServeError> {
    match version {
        None | Some(Cell::Missing) => Ok(String::new()),
        Some(Cell::Text(text)) => Ok(text.to_string()),
        Some(Cell::Int(number)) => Ok(number.to_string()),
        Some(_) => Err(ServeError::invalid("version: a number or a text is expected")),
    }
}

fn explanations<'a>(explained: &'a Explained, features: &'a [&'a str]) -> Vec<Explanation<'a>> {
    let bias = explained.bias;
    let rows = explained.contributions.chunks_exact(features.len().max(1));
    let explanation = |contributions: &'a [f64]| Explanation {
        logit: bias + contributions.iter().sum::<f64>(),
        bias,
        contributions: ByFeature { features, contributions },
    };
    rows.map(explanation).collect()
}

fn scores(model: &ServedModel, rows: &[Row<'_>], asked: &Asked, wanted: Wanted) -> Result<Found, ServeError> {
    let work = |scorer: &mut Scorer| {
        let mut scoring = Scoring::new(model, scorer, rows.len(), wanted, &asked.times)?;
        let mut places: Vec<usize> = Vec::new();
        for (number, Row(entries)) in rows.iter().enumerate() {
            find_columns(model, number, entries, &mut places)?;
            add(&mut scoring, model, number, entries, &places)?;
        }
        scoring.finish()
    };
    asked.times.encoding(|| model.with_scorer(work))
}

/// In `places`: no entry of a row has the column.
const ABSENT: usize = usize::MAX;

/// Fills `places` with the entry of each column. Rows of one request mostly have their columns in one order.
fn find_columns(
    model: &ServedModel,
    number: usize,
    entries: &[(Cow<'_, str>, Cell<'_>)],
    places: &mut Vec<usize>,
) -> Result<(), ServeError> {
    let columns = &model.columns;
    let has = |column: usize, place: usize| {
        place == ABSENT && columns[column].is_optional
            || entries.get(place).is_some_and(|(name, _)| *name == columns[column].name)
    };
    let present = places.iter().filter(|place| **place != ABSENT).count();
    let is_same = places.len() == columns.len()
        && present == entries.len()
        && places.iter().enumerate().all(|(column, place)| has(column, *place));
    if is_same {
        return Ok(());
    }
    places.clear();
    places.resize(columns.len(), ABSENT);
    for (place, (name, _)) in entries.iter().enumerate() {
        let Some(column) = model.column(name) else {
            return Err(model.unknown_column(&format!("row {number}"), name));
        };
        if places[column] != ABSENT {
            return Err(ServeError::invalid(format!("row {number}: column {:?} is there twice", &**name)));
        }
        places[column] = place;
    }
    for (column, place) in columns.iter().zip(&*places) {
        if *place == ABSENT && !column.is_optional {
            let text = format!("row {number}: has no column {:?}; a missing value is null", column.name);
            return Err(ServeError::invalid(text));
        }
    }
    Ok(())
}

fn add(
    scoring: &mut Scoring<'_>,
    model: &ServedModel,
    number: usize,
    entries: &[(Cow<'_, str>, Cell<'_>)],
    places: &[usize],
) -> Result<(), ServeError> {
    let cell = |place: &usize| entries.get(*place).map(|(_, cell)| cell);
    let mut lists: Vec<Vec<Field<'_>>> = Vec::new();
    for (column, place) in places.iter().enumerate() {
        if let Some(Cell::List(elements)) = cell(place) {
            let list: Option<Vec<Field<'_>>> = elements.iter().map(Cell::scalar).collect();
            lists.push(list.ok_or_else(|| {
                let name = &model.columns[column].name;
                ServeError::invalid(format!("row {number}: column {name:?}: a list in a list"))
            })?);
        }
    }
    let mut lists = lists.iter();
    let field = |place: &usize| match cell(place) {
        None => Field::Missing,
        Some(cell) => {
            cell.scalar().unwrap_or_else(|| Field::List(lists.next().map_or(&[][..], Vec::as_slice)))
        }
    };
    let fields: Vec<Field<'_>> = places.iter().map(field).collect();
    scoring.add(number, &fields)
}
