//! The `[data]` table of a configuration. Opens no file.

use sanderling_formats::DataConfig;
use sanderling_formats::in_memory::{is_in_memory, lasting_name};
use serde::{Deserialize, Serialize};

/// The `[data]` table: which files, and how to read them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Map<String, serde_json::Value>")]
pub struct Data {
    /// Files, glob patterns or `-` (standard input) to train on.
    pub train: Inputs,
    /// Files to evaluate on after each pass.
    #[serde(skip_serializing_if = "Inputs::is_empty")]
    pub valid: Inputs,
    /// How to read them.
    #[serde(flatten)]
    pub reading: DataConfig,
}

/// The name of a run whose training file gives none.
const RUN_NAME: &str = "run";

impl Data {
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
            Some(value) => {
                serde_json::from_value(value).map_err(|_| format!("data.{name}: a path or a list of paths"))
            }
            None => Ok(Inputs::default()),
        };
        let (train, valid) = (inputs("train")?, inputs("valid")?);
        for (name, value) in &table {
            // One by one, for the errors do not name the field.
            let alone = serde_json::Map::from_iter([(name.clone(), value.clone())]);
            serde_json::from_value::<DataConfig>(alone.into()).map_err(|error| {
                let told = error.to_string();
                if told.starts_with("unknown field") {
                    // It knows its own fields only.
                    format!(
                        "data: {}",
                        told.replace("expected one of ", "expected one of `train`, `valid`, ")
                    )
                } else {
                    format!("data.{name}: {told}")
                }
            })?;
        }
        let reading = serde_json::from_value(table.into()).map_err(|error| format!("data: {error}"))?;
        Ok(Data { train, valid, reading })
    }
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
