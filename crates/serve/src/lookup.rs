//! Rows of tables by key, or by the text of a feature, which becomes the key as in training.

use sanderling_sample::Field;
use serde::{Deserialize, Serialize};

use crate::catalog::Models;
use crate::cell::Cell;
use crate::error::{ServeError, listed, quoted};
use crate::models::ServedModel;
use crate::predict::version_text;
use crate::query;
use crate::work::{Answer, Asked};

/// A request for rows of a table.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Request<'a> {
    #[serde(borrow)]
    keys: Vec<Cell<'a>>,
    #[serde(borrow)]
    values: Vec<Cell<'a>>,
    /// The feature that the values are of; empty: the only one that reads the table, or the one of its name.
    feature: String,
    model: String,
    #[serde(borrow)]
    version: Option<Cell<'a>>,
}

#[derive(Serialize)]
struct Reply<'a> {
    model: &'a str,
    version: String,
    table: &'a str,
    dim: usize,
    rows: Vec<ReplyRow<'a>>,
}

#[derive(Serialize)]
struct ReplyRow<'a> {
    key: u64,
    /// The key again, for readers whose numbers have 53 bits.
    hex: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a Value<'a>>,
    found: bool,
    weights: Option<Vec<f32>>,
}

/// A value as the client wrote it.
struct Value<'a>(&'a Cell<'a>);

impl Serialize for Value<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Cell::Text(text) => serializer.serialize_str(text),
            Cell::Int(number) => serializer.serialize_i64(*number),
            Cell::Unsigned(number) => serializer.serialize_u64(*number),
            Cell::Float(number) => serializer.serialize_f64(*number),
            Cell::Bool(is_true) => serializer.serialize_bool(*is_true),
            Cell::Missing | Cell::List(_) => serializer.serialize_none(),
        }
    }
}

/// Answers `GET /tables/TABLE/rows?key=1&value=u17`.
pub(crate) fn answer_query(
    models: &Models,
    asked: &Asked,
    table: &str,
    query: &str,
) -> Result<Answer, ServeError> {
    let mut request = Request::default();
    for (name, value) in query::pairs(query)? {
        match &*name {
            "key" => request.keys.push(Cell::Text(value.into())),
            "value" => request.values.push(Cell::Text(value.into())),
            "feature" => request.feature = value,
            "model" => request.model = value,
            "version" => request.version = Some(Cell::Text(value.into())),
            _ => {
                let text =
                    format!("no parameter {}; there are key, value, feature, model, version", quoted(&name));
                return Err(ServeError::invalid(text));
            }
        }
    }
    answer(models, asked, table, &request)
}

/// Answers `POST /tables/TABLE/rows`.
pub(crate) fn answer_body(
    models: &Models,
    asked: &Asked,
    table: &str,
    body: &[u8],
) -> Result<Answer, ServeError> {
    let request: Request<'_> =
        serde_json::from_slice(body).map_err(|error| ServeError::invalid(format!("the body: {error}")))?;
    answer(models, asked, table, &request)
}

fn answer(models: &Models, asked: &Asked, table: &str, request: &Request<'_>) -> Result<Answer, ServeError> {
    let model = models.find(&request.model, &version_text(request.version.as_ref())?)?;
    asked.of(&model);
    let (count, found) = (request.keys.len() + request.values.len(), model.table(table)?);
    if count == 0 {
        return Err(ServeError::invalid("no keys; give key or value, such as ?value=u17"));
    }
    if count > asked.batch_max {
        return Err(ServeError::too_many(count, "keys", asked.batch_max));
    }
    let row = |key: u64, value: Option<&'_ Value<'_>>| {
        let weights = found.get(key).map(|row| row.weights);
        (key, format!("{key:016x}"), value.is_some(), weights)
    };
    let mut rows = Vec::with_capacity(count);
    for key in &request.keys {
        rows.push(row(key_of(key)?, None));
    }
    let values: Vec<Value<'_>> = request.values.iter().map(Value).collect();
    if !values.is_empty() {
        let feature = feature_of(&model, table, &request.feature)?;
        model.with_encoder(feature, |encoder| {
            for value in &values {
                let invalid = |text: String| ServeError::invalid(format!("feature {feature:?}: {text}"));
                let field = value.0.scalar().ok_or_else(|| invalid("a list has no single key".to_owned()))?;
                let keys = encoder.keys(field).map_err(|error| {
                    invalid(format!("expected {}, found {}", error.expected, error.found))
                })?;
                let &[key] = keys else {
                    return Err(invalid(format!("a value has {} keys, not one", keys.len())));
                };
                rows.push(row(key, Some(value)));
            }
            Ok(())
        })?;
    }
    let mut given = values.iter();
    let rows = rows.into_iter().map(|(key, hex, is_value, weights)| {
        let value = if is_value { given.next() } else { None };
        ReplyRow { key, hex, value, found: weights.is_some(), weights }
    });
    asked.count_rows(count);
    let (name, version) = (&*model.name, model.version.to_string());
    Answer::json(&Reply { model: name, version, table, dim: found.dim(), rows: rows.collect() })
}

/// Passes the weights of each value of a table's feature to `each`; `None`: no row, or a missing value.
pub(crate) fn weights_of<'a>(
    model: &ServedModel,
    table: &str,
    values: impl Iterator<Item = &'a [u8]>,
    mut each: impl FnMut(Option<Vec<f32>>),
) -> Result<(), ServeError> {
    let found = model.table(table)?;
    let feature = feature_of(model, table, "")?;
    model.with_encoder(feature, |encoder| {
        for value in values {
            match encoder.keys(Field::Text(value)) {
                Ok(&[key]) => each(found.get(key).map(|row| row.weights)),
                Ok([]) => each(None),
                Ok(keys) => {
                    let text = format!("feature {feature:?}: a value has {} keys, not one", keys.len());
                    return Err(ServeError::invalid(text));
                }
                Err(error) => {
                    let text =
                        format!("feature {feature:?}: expected {}, found {}", error.expected, error.found);
                    return Err(ServeError::invalid(text));
                }
            }
        }
        Ok(())
    })
}

/// A key: a whole number, decimal digits, or 0x and hexadecimal digits.
fn key_of(cell: &Cell<'_>) -> Result<u64, ServeError> {
    let key = match cell {
        Cell::Int(number) => u64::try_from(*number).ok(),
        Cell::Unsigned(number) => Some(*number),
        Cell::Text(text) => match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        },
        _ => None,
    };
    key.ok_or_else(|| {
        let found =
            if let Cell::Text(text) = cell { quoted(text) } else { "a value of another type".to_owned() };
        let expected = "a key is a number from 0 to 2^64 - 1, or 0x and hex digits";
        ServeError::invalid(format!("{expected}, found {found}; the text of a feature is a value"))
    })
}

/// The feature whose values are looked up in a table.
fn feature_of<'a>(model: &'a ServedModel, table: &str, wanted: &'a str) -> Result<&'a str, ServeError> {
    let readers = model.model.config().feature.iter().filter(|feature| feature.table() == table);
    let names: Vec<&str> = readers.map(|feature| feature.name.as_str()).collect();
    let found = match (&*names, wanted) {
        ([only], "") => Some(*only),
        (names, "") => names.iter().find(|name| **name == table).copied(),
        (names, wanted) => names.iter().find(|name| **name == wanted).copied(),
    };
    found.ok_or_else(|| {
        let names = listed(names);
        let text = match wanted {
            "" => format!("several features read this table; name one of {names} as the feature"),
            wanted => format!("no feature {} reads this table; there are {names}", quoted(wanted)),
        };
        ServeError::invalid(text)
    })
}
