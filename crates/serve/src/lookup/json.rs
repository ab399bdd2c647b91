//! Requests for rows in JSON or in the query of a URL, and answers in JSON.

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE, HeaderName};
use serde::{Deserialize, Serialize};

use crate::catalog::Models;
use crate::cell::Cell;
use crate::error::{ServeError, quoted};
use crate::lookup::octets::{self, Input};
use crate::lookup::{Found, Groups, Items, find, pooling_named};
use crate::models::ServedModel;
use crate::predict::version_text;
use crate::query;
use crate::slow::Stage;
use crate::work::{Answer, Asked, OCTETS};

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
    /// The name of a pooling; empty: one row per key and value.
    pooling: String,
    /// Keys and values of each pooled row; none: all make one row.
    lengths: Option<Vec<u32>>,
    /// The datatype of the weights if the answer is binary; empty: 32-bit floats.
    dtype: String,
    /// Keys or values as bytes, beside the others.
    #[serde(skip)]
    raw: Option<(Input, &'a [u8])>,
}

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Json,
    Octets,
}

impl Form {
    /// The form of a body.
    pub(crate) fn sent(headers: &HeaderMap) -> Form {
        Form::of(headers, &CONTENT_TYPE)
    }

    /// The form of the answer that a client asks for.
    pub(crate) fn accepted(headers: &HeaderMap) -> Form {
        Form::of(headers, &ACCEPT)
    }

    fn of(headers: &HeaderMap, name: &HeaderName) -> Form {
        let kind = headers.get(name).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if kind.trim().eq_ignore_ascii_case(OCTETS) { Form::Octets } else { Form::Json }
    }
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
    value: Option<Value<'a>>,
    found: bool,
    weights: Option<&'a [f32]>,
}

/// The answer to a request for pooled rows.
#[derive(Serialize)]
struct PooledReply<'a> {
    model: &'a str,
    version: String,
    table: &'a str,
    dim: usize,
    pooling: &'a str,
    rows: Vec<PooledRow<'a>>,
    /// Places of the keys and values without a row.
    absent: &'a [u32],
}

#[derive(Serialize)]
struct PooledRow<'a> {
    weights: &'a [f32],
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
    form: Form,
) -> Result<Answer, ServeError> {
    let (request, _) = of_query(query)?;
    answer(models, asked, table, &request, form)
}

/// Answers `POST /tables/TABLE/rows`, whose body is JSON, or bytes with the rest of the request in the query.
pub(crate) fn answer_body(
    models: &Models,
    asked: &Asked,
    table: &str,
    query: &str,
    body: (Form, &[u8]),
    form: Form,
) -> Result<Answer, ServeError> {
    let request = match body {
        (Form::Octets, bytes) => {
            let (request, input) = of_query(query)?;
            Request { raw: Some((input, bytes)), ..request }
        }
        (Form::Json, bytes) => serde_json::from_slice(bytes)
            .map_err(|error| ServeError::invalid(format!("the body: {error}")))?,
    };
    answer(models, asked, table, &request, form)
}

/// The request of a query, and what a body of bytes has.
fn of_query(query: &str) -> Result<(Request<'static>, Input), ServeError> {
    let (mut request, mut input) = (Request::default(), Input::Keys);
    for (name, value) in query::pairs(query)? {
        match &*name {
            "key" => request.keys.push(Cell::Text(value.into())),
            "value" => request.values.push(Cell::Text(value.into())),
            "feature" => request.feature = value,
            "model" => request.model = value,
            "version" => request.version = Some(Cell::Text(value.into())),
            "pooling" => request.pooling = value,
            "lengths" => request.lengths = Some(lengths_of(&value)?),
            "dtype" => request.dtype = value,
            "input" => input = Input::named(&value)?,
            _ => {
                let text = format!(
                    "no parameter {}; there are key, value, feature, model, version, pooling, lengths, dtype, input",
                    quoted(&name)
                );
                return Err(ServeError::invalid(text));
            }
        }
    }
    Ok((request, input))
}

/// Lengths such as `2,3`.
fn lengths_of(text: &str) -> Result<Vec<u32>, ServeError> {
    let lengths = text.split(',').map(|length| length.trim().parse().ok());
    let wrong = || ServeError::invalid(format!("lengths are numbers such as 2,3; found {}", quoted(text)));
    lengths.collect::<Option<_>>().ok_or_else(wrong)
}

fn answer(
    models: &Models,
    asked: &Asked,
    table: &str,
    request: &Request<'_>,
    form: Form,
) -> Result<Answer, ServeError> {
    let model = models.find(&request.model, &version_text(request.version.as_ref())?)?;
    asked.of(&model);
    let found_in = model.table(table)?;
    let is_half = octets::is_half(&request.dtype)?;
    let items = items(&model, asked, table, request)?;
    let groups = groups(request, items.len())?;
    let rows = groups.as_ref().map_or(items.len(), Groups::len);
    asked.check_keys(items.keys().len().max(rows))?;
    let found = asked.times.timed(Stage::Rows, || find(found_in, &items, groups.as_ref()))?;
    asked.count_rows(items.keys().len());
    asked.times.timed(Stage::Write, || match form {
        Form::Octets => Ok(octets::answer(&model, &found, is_half)),
        Form::Json => json(&model, table, request, &items, &found),
    })
}

/// The keys and values of a request.
fn items(
    model: &ServedModel,
    asked: &Asked,
    table: &str,
    request: &Request<'_>,
) -> Result<Items, ServeError> {
    let count = request.keys.len() + request.values.len();
    if count == 0 && request.raw.is_none() {
        return Err(ServeError::invalid("no keys; give key or value, such as ?value=u17"));
    }
    asked.check_keys(count)?;
    let keys = request.keys.iter().map(key_of).collect::<Result<Vec<u64>, _>>()?;
    let mut items = Items::from(keys);
    if !request.values.is_empty() {
        let values = request.values.iter().map(Cell::scalar).collect::<Option<Vec<_>>>();
        let values = values.ok_or_else(|| ServeError::invalid("values: a list has no single key"))?;
        items.add_values(model, table, &request.feature, values.into_iter())?;
    }
    if let Some((input, bytes)) = request.raw {
        octets::add(&mut items, model, asked, table, &request.feature, input, bytes)?;
    }
    if request.pooling.is_empty() {
        // A missing value is an error here: the answer has the key of each row.
        items.check_single(request.raw.is_some())?;
    }
    Ok(items)
}

fn groups(request: &Request<'_>, items: usize) -> Result<Option<Groups>, ServeError> {
    match (&*request.pooling, &request.lengths) {
        ("", None) => Ok(None),
        ("", Some(_)) => Err(ServeError::invalid("lengths without a pooling; give one, such as sum")),
        (name, None) => Ok(Some(Groups::one(pooling_named(name)?, items))),
        (name, Some(lengths)) => Groups::of_lengths(pooling_named(name)?, lengths, items).map(Some),
    }
}

/// An answer in JSON.
fn json(
    model: &ServedModel,
    table: &str,
    request: &Request<'_>,
    items: &Items,
    found: &Found,
) -> Result<Answer, ServeError> {
    let (name, version, dim) = (&*model.name, model.version.to_string(), found.dim);
    if !request.pooling.is_empty() {
        let rows = found.weights.chunks_exact(dim).map(|weights| PooledRow { weights }).collect();
        let (pooling, absent) = (&*request.pooling, &*found.absent);
        return Answer::json(&PooledReply { model: name, version, table, dim, pooling, rows, absent });
    }
    items.check_single(false)?;
    let mut absent = found.absent.iter().peekable();
    let mut values = request.values.iter().map(Value);
    let keys = items.keys().iter().enumerate();
    let rows = keys.zip(found.weights.chunks_exact(dim)).map(|((at, key), weights)| {
        let value = if at < request.keys.len() { None } else { values.next() };
        let is_found = absent.next_if_eq(&&(at as u32)).is_none();
        let (hex, weights) = (format!("{key:016x}"), is_found.then_some(weights));
        ReplyRow { key: *key, hex, value, found: is_found, weights }
    });
    Answer::json(&Reply { model: name, version, table, dim, rows: rows.collect() })
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
