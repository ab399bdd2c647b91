//! The JSON of etcd's API, as far as the client reads it. Sends nothing.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Numbers are text in the JSON of gRPC, and absent where they are 0.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(text) => text.parse().map_err(serde::de::Error::custom),
        Value::Number(number) => number.as_u64().ok_or_else(|| serde::de::Error::custom("a negative number")),
        _ => Err(serde::de::Error::custom("no number")),
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Header {
    #[serde(deserialize_with = "number")]
    pub(crate) cluster_id: u64,
    #[serde(deserialize_with = "number")]
    pub(crate) revision: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KeyValue {
    pub(crate) key: String,
    pub(crate) value: String,
    #[serde(deserialize_with = "number")]
    pub(crate) mod_revision: u64,
    #[serde(deserialize_with = "number")]
    pub(crate) lease: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Range {
    pub(crate) header: Header,
    pub(crate) kvs: Vec<KeyValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Txn {
    pub(crate) header: Header,
    pub(crate) succeeded: bool,
    pub(crate) responses: Vec<TxnResponse>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TxnResponse {
    pub(crate) response_range: Option<Range>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Lease {
    pub(crate) header: Header,
    #[serde(rename = "ID", deserialize_with = "number")]
    pub(crate) id: u64,
    #[serde(rename = "TTL", deserialize_with = "number")]
    pub(crate) ttl: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Streamed<T> {
    pub(crate) result: T,
    pub(crate) error: Option<Failure>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Events {
    pub(crate) header: Header,
    pub(crate) canceled: bool,
    pub(crate) cancel_reason: String,
    #[serde(deserialize_with = "number")]
    pub(crate) compact_revision: u64,
    pub(crate) events: Vec<Event>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    pub(crate) r#type: String,
    pub(crate) kv: KeyValue,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Failure {
    pub(crate) message: String,
    /// Of versions that have no `message`.
    pub(crate) error: Value,
    #[serde(alias = "grpc_code")]
    pub(crate) code: u64,
}

impl Failure {
    pub(crate) fn words(&self) -> String {
        match (&*self.message, &self.error) {
            ("", Value::String(text)) => text.clone(),
            (message, _) => message.to_owned(),
        }
    }
}
