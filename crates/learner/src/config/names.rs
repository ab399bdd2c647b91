//! The `[names]` table of a configuration. Knows no key.

use sanderling_formats::Format;
use sanderling_sample::spec::{Feature, FeatureKind, KeyRule};
use serde::{Deserialize, Serialize};

/// The `[names]` table of a configuration: features whose keys keep their texts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NamesConfig {
    /// Features of types `categorical` and `multi` with hashed keys.
    pub features: Vec<String>,
    /// Most memory of the names; keys beyond it have none.
    #[serde(with = "super::quantity::bytes")]
    pub max_bytes: u64,
}

impl Default for NamesConfig {
    fn default() -> Self {
        NamesConfig { features: Vec::new(), max_bytes: 256 << 20 }
    }
}

impl NamesConfig {
    /// Checks that the features are there, and of a kind whose keys are hashes of texts.
    ///
    /// # Errors
    /// The text of what is wrong.
    pub fn check(&self, features: &[Feature], format: Option<Format>) -> Result<(), String> {
        for name in &self.features {
            let Some(feature) = features.iter().find(|feature| feature.name == *name) else {
                return Err(format!("names.features: no feature {name:?}"));
            };
            let is_text = matches!(feature.kind, FeatureKind::Categorical | FeatureKind::Multi);
            if !is_text || feature.key_rule() == KeyRule::Raw {
                return Err(format!(
                    "names.features: keys of {name:?} are no hashes of texts; name features of type categorical or multi"
                ));
            }
        }
        if !self.is_empty() && format == Some(Format::Batch) {
            return Err(
                "names.features: batch files have keys without texts; train on their source".to_owned()
            );
        }
        Ok(())
    }

    /// Whether no feature is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.features.is_empty()
    }
}
