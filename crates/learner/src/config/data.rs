//! The `[data]` table of a configuration. Opens no file.

use std::collections::BTreeMap;

use sanderling_formats::DataConfig;
use sanderling_formats::in_memory::{is_in_memory, lasting_name};
use sanderling_formats::input::read_once;
use sanderling_sample::{Holdout, HoldoutBy};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::names;

/// The `[data]` table: which files, and how to read them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Map<String, serde_json::Value>")]
pub struct Data {
    /// Files, glob patterns or `-` (standard input) to train on.
    pub train: Inputs,
    /// Files to evaluate on after each pass.
    #[serde(skip_serializing_if = "Inputs::is_empty")]
    pub valid: Inputs,
    /// Rows of `train` that are held out to evaluate on after each pass, in place of files.
    #[serde(rename = "valid", skip_serializing_if = "Option::is_none")]
    pub holdout: Option<Holdout>,
    /// Test sets by name, on which the model is evaluated once, at the end of the run.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub test: BTreeMap<String, Inputs>,
    /// How to read them.
    #[serde(flatten)]
    pub reading: DataConfig,
}

/// The name of a run whose training file gives none.
const RUN_NAME: &str = "run";

impl Data {
    /// The inputs of a validation; empty without one.
    #[must_use]
    pub fn valid_inputs(&self) -> &[String] {
        if self.holdout.is_some() { &self.train.0 } else { &self.valid.0 }
    }

    /// The rows of a validation in words.
    pub(crate) fn describe_valid(&self) -> String {
        let inputs = names(self.valid_inputs());
        let Some(Holdout { fraction, by, column, .. }) = &self.holdout else { return inputs };
        let column = column.as_ref().map_or(String::new(), |column| format!(" of {column}"));
        let by = match by {
            HoldoutBy::Hash => "hash",
            HoldoutBy::Time => "time",
            HoldoutBy::Random => "chance",
        };
        format!("{} % of {inputs}, held out by {by}{column}", (1e4 * fraction).round() / 1e2)
    }

    /// Whether passes are validated.
    #[must_use]
    pub fn validates(&self) -> bool {
        self.holdout.is_some() || !self.valid.is_empty()
    }

    /// Default name of a run: the first training file without its endings and invalid characters.
    #[must_use]
    pub fn name(&self) -> String {
        let path = self.train.0.first().map_or("", String::as_str);
        if is_in_memory(path) {
            return RUN_NAME.to_owned();
        }
        let file = path.rsplit(['/', '\\']).next().unwrap_or(path);
        let stem = file.split(['.', '?']).next().unwrap_or(file);
        let plain = |c: char| if c.is_alphanumeric() || c == '-' || c == '_' { c } else { '_' };
        match stem.chars().any(char::is_alphanumeric) {
            true => stem.chars().map(plain).collect(),
            false => RUN_NAME.to_owned(),
        }
    }
}

/// Written by hand because a flattened table cannot itself refuse misspelt fields.
impl TryFrom<serde_json::Map<String, serde_json::Value>> for Data {
    type Error = String;

    fn try_from(mut table: serde_json::Map<String, serde_json::Value>) -> Result<Self, String> {
        let mut inputs = |name: &str| match table.remove(name) {
            Some(value) => inputs_of(name, value),
            None => Ok(Inputs::default()),
        };
        let train = inputs("train")?;
        let (valid, holdout) = match table.remove("valid") {
            Some(Value::Object(entries)) => (Inputs::default(), Some(held_out(entries)?)),
            Some(value) => (inputs_of("valid", value)?, None),
            None => Default::default(),
        };
        let test = match table.remove("test") {
            None => BTreeMap::new(),
            Some(Value::Object(sets)) => sets
                .into_iter()
                .map(|(name, value)| Ok((name.clone(), inputs_of(&format!("test.{name}"), value)?)))
                .collect::<Result<_, String>>()?,
            // One set needs no name.
            Some(value) => BTreeMap::from([("test".to_owned(), inputs_of("test", value)?)]),
        };
        for (name, value) in &table {
            // One by one, for the errors do not name the field.
            let alone = serde_json::Map::from_iter([(name.clone(), value.clone())]);
            serde_json::from_value::<DataConfig>(alone.into()).map_err(|error| {
                let told = error.to_string();
                if told.starts_with("unknown field") {
                    // It knows its own fields only.
                    format!(
                        "data: {}",
                        told.replace("expected one of ", "expected one of `train`, `valid`, `test`, ")
                    )
                } else {
                    format!("data.{name}: {told}")
                }
            })?;
        }
        let reading = serde_json::from_value(table.into()).map_err(|error| format!("data: {error}"))?;
        Ok(Data { train, valid, holdout, test, reading })
    }
}

fn inputs_of(name: &str, value: Value) -> Result<Inputs, String> {
    serde_json::from_value(value).map_err(|_| format!("data.{name}: a path or a list of paths"))
}

fn held_out(entries: serde_json::Map<String, Value>) -> Result<Holdout, String> {
    let holdout: Holdout =
        serde_json::from_value(entries.into()).map_err(|error| format!("data.valid: {error}"))?;
    holdout.check().map_err(|reason| format!("data.valid: {reason}"))?;
    Ok(holdout)
}

/// One path or several: files, glob patterns, or `-`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "OneOrMany")]
pub struct Inputs(pub Vec<String>);

impl Inputs {
    /// Whether two inputs have the same names, where those in memory need only be of one kind.
    pub(crate) fn is_like(&self, other: &Inputs) -> bool {
        let lasting =
            |inputs: &Inputs| inputs.0.iter().map(|name| lasting_name(name).to_owned()).collect::<Vec<_>>();
        lasting(self) == lasting(other)
    }

    /// The first input that can be read only once, as messages name it.
    pub(crate) fn read_once(&self) -> Option<String> {
        let stream = self.0.iter().find(|name| read_once(name));
        stream.map(|name| lasting_name(name).to_owned())
    }

    /// Whether no path was given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl From<OneOrMany> for Inputs {
    fn from(value: OneOrMany) -> Self {
        match value {
            OneOrMany::One(path) => Inputs(vec![path]),
            OneOrMany::Many(paths) => Inputs(paths),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_named_after_its_first_training_file() {
        for (input, name) in [
            ("data/clicks.csv.gz", "clicks"),
            ("s3://bucket/day 1/*-part.parquet?x=1", "_-part"),
            ("C:\\data\\größe.tsv", "größe"),
            ("-", "run"),
            ("memory:7:polars.DataFrame", "run"),
            ("data/*", "run"),
        ] {
            let data = Data { train: Inputs(vec![input.to_owned(), "b.csv".to_owned()]), ..Data::default() };
            assert_eq!(data.name(), name);
        }
        assert_eq!(Data::default().name(), "run");
    }
}
