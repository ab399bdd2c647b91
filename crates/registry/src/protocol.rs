//! The JSON between a keeper and its clients, and the checks of requests that all registries share.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::limit::{TERM_MAX, TERM_MIN, VALUE_BYTES_MAX, VALUE_DEPTH_MAX};
use crate::registry::{Change, Record, RegistryError};

/// The header in which keepers tell their number, and clients the number that they expect.
pub const KEEPER_HEADER: &str = "sanderling-keeper";

/// A value as compact JSON. Copies share it.
#[derive(Debug, Clone)]
pub struct JsonText(Arc<RawValue>);

impl JsonText {
    /// The text of a value.
    ///
    /// # Errors
    /// It is too long or too deep.
    pub fn new(name: &str, value: &Value) -> Result<JsonText, RegistryError> {
        if is_deeper(value, VALUE_DEPTH_MAX) {
            return Err(RegistryError::Invalid(format!(
                "{name}: the value has more than {VALUE_DEPTH_MAX} lists and objects within each other"
            )));
        }
        let raw = serde_json::value::to_raw_value(value)
            .map_err(|error| RegistryError::Invalid(format!("{name}: {error}")))?;
        let text = JsonText(Arc::from(raw));
        match text.len() <= VALUE_BYTES_MAX {
            true => Ok(text),
            false => Err(RegistryError::Invalid(format!(
                "{name}: the value has {} bytes, of at most {VALUE_BYTES_MAX}",
                text.len()
            ))),
        }
    }

    /// Bytes of the text.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // no JSON is empty
    pub fn len(&self) -> usize {
        self.0.get().len()
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> Value {
        serde_json::from_str(self.0.get()).expect("it was written from a value")
    }
}

/// Whether a value has more levels than this.
fn is_deeper(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(values) => levels == 0 || values.iter().any(|value| is_deeper(value, levels - 1)),
        Value::Object(values) => levels == 0 || values.values().any(|value| is_deeper(value, levels - 1)),
        _ => false,
    }
}

impl PartialEq for JsonText {
    fn eq(&self, other: &JsonText) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Serialize for JsonText {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<JsonText, D::Error> {
        // Text that was not written here may have blanks, and may nest deeper than a value can be read.
        let value = Value::deserialize(deserializer)?;
        let raw = serde_json::value::to_raw_value(&value).map_err(serde::de::Error::custom)?;
        Ok(JsonText(Arc::from(raw)))
    }
}

/// A record as an answer has it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecordText<'a> {
    /// The name in its cluster.
    pub name: &'a str,
    /// The revision of the last change.
    pub revision: u64,
    /// The lease with which the record ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<u64>,
    /// The content.
    pub value: &'a JsonText,
}

/// A change as an answer has it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChangeText<'a> {
    /// The name in its cluster.
    pub name: &'a str,
    /// The revision of the change.
    pub revision: u64,
    /// The record since then.
    pub record: Option<RecordText<'a>>,
}

/// The answer to a read of one record.
#[derive(Debug, Serialize, Deserialize)]
pub struct Read {
    /// The record, if there is one.
    pub record: Option<Record>,
}

/// The answer to a compare-and-set.
#[derive(Debug, Serialize, Deserialize)]
pub enum Set {
    /// The record was changed, at this revision.
    #[serde(rename = "done")]
    Done(u64),
    /// The record was not changed, and is this.
    #[serde(rename = "present")]
    Other(Option<Record>),
}

/// The answer to a watch.
#[derive(Debug, Serialize, Deserialize)]
pub struct Changes {
    /// The revision for the next question.
    pub after: u64,
    /// The changes.
    pub changes: Vec<Change>,
}

/// The request for a lease.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Term {
    /// The term in seconds.
    pub term_s: u64,
}

/// The answer to a request for a lease.
#[derive(Debug, Serialize, Deserialize)]
pub struct Granted {
    /// The lease.
    pub lease: u64,
}

/// The answer to a request to keep a lease alive or to end it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Kept {
    /// Whether the lease is there.
    pub kept: bool,
}

/// A refusal.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Refusal {
    /// The reason.
    pub error: String,
    /// Whether the change may have been made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
    /// The lease that has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ended: Option<u64>,
}

/// Whole seconds of a lease's term, rounded up.
///
/// # Errors
/// The term is too short or too long.
pub fn term_s(term: Duration) -> Result<u64, RegistryError> {
    match (TERM_MIN..=TERM_MAX).contains(&term) {
        true => Ok(term.as_secs() + u64::from(term.subsec_nanos() > 0)),
        false => Err(RegistryError::Invalid(format!(
            "the term of a lease must be {} s to {} s",
            TERM_MIN.as_secs(),
            TERM_MAX.as_secs()
        ))),
    }
}

/// Checks a compare-and-set before it is sent.
///
/// # Errors
/// It removes what is not there.
pub fn check_delete(name: &str, expected: u64) -> Result<(), RegistryError> {
    match expected {
        0 => Err(RegistryError::Invalid(format!(
            "{name}: only a record that is there can be removed; name its revision"
        ))),
        _ => Ok(()),
    }
}
