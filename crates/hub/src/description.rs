//! The description of a hub's rows, as it tells its trainers: how its input is read, and the feature spec with fitted
//! boundaries. Knows neither hub nor trainer.

use sanderling_formats::DataConfig;
use sanderling_sample::Spec;
use serde::{Deserialize, Serialize};

/// How rows of the input become rows of minibatches.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// How the input is read.
    pub data: DataConfig,
    /// The features of a row, one entry each, boundaries included.
    pub spec: Spec,
    /// Features whose keys the hub may feed to parameter servers; its minibatches then lack them.
    pub fed: Vec<FedFeature>,
}

/// A feature whose keys the hub feeds to the servers that pool its rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FedFeature {
    /// Its name.
    pub feature: String,
    /// Its table.
    pub table: String,
    /// The pooling of a sample's rows, as in a configuration.
    pub pooling: String,
}

impl Description {
    /// The JSON that is sent: `{"data": {...}, "spec": {...}}`, and `"fed": [...]` if the hub feeds keys. `None` if
    /// it is longer than `bytes_max`.
    pub(crate) fn to_json(&self, bytes_max: usize) -> Option<String> {
        let mut value = serde_json::json!({ "data": self.data, "spec": self.spec });
        if !self.fed.is_empty() {
            value["fed"] = serde_json::json!(self.fed);
        }
        let text = value.to_string();
        (text.len() <= bytes_max).then_some(text)
    }

    /// Parses the JSON.
    ///
    /// # Errors
    ///
    /// A sentence that tells the user what is wrong with the text.
    pub(crate) fn of_json(text: &str) -> Result<Description, String> {
        let wrong = |error: serde_json::Error| format!("its description of the rows: {error}");
        let mut value: serde_json::Value = serde_json::from_str(text).map_err(wrong)?;
        let mut part = |name| value.get_mut(name).map(serde_json::Value::take).unwrap_or_default();
        Ok(Description {
            data: serde_json::from_value(part("data")).map_err(wrong)?,
            spec: serde_json::from_value(part("spec")).map_err(wrong)?,
            // A hub that feeds nothing leaves the entry out.
            fed: match part("fed") {
                serde_json::Value::Null => Vec::new(),
                fed => serde_json::from_value(fed).map_err(wrong)?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_understood() {
        let spec: Spec = toml::from_str(
            "[label]\ncolumn = \"click\"\n[[feature]]\nname = \"a\"\ntype = \"quantile\"\nboundaries = [0.1, 2.5]\n\
             [[feature]]\nname = \"b\"\nkey = { modulo = 7 }",
        )
        .expect("a spec");
        let fed = |feature: &str| FedFeature {
            feature: feature.to_owned(),
            table: "run/t".to_owned(),
            pooling: "sum".to_owned(),
        };
        let plain = Description { data: DataConfig::default(), spec, fed: Vec::new() };
        let text = plain.to_json(1 << 20).expect("short");
        assert!(!text.contains("fed"), "{text}");
        assert_eq!(Description::of_json(&text), Ok(plain.clone()));
        let described = Description { fed: vec![fed("a"), fed("b")], ..plain };
        let text = described.to_json(1 << 20).expect("short");
        assert_eq!(Description::of_json(&text), Ok(described.clone()));
        assert_eq!(described.to_json(text.len() - 1), None);
        for wrong in [
            "",
            "{}",
            "[]",
            "{\"data\": {}, \"spec\": {\"feature\": 3}}",
            "{\"data\": {}, \"spec\": {}, \"fed\": 3}",
        ] {
            assert!(Description::of_json(wrong).is_err(), "{wrong}");
        }
    }
}
