//! How a saved model reads rows: its feature spec and the names of its keys. Those of a deep model are in a checkpoint of
//! their own beside its dense part. Knows no table.

use std::path::Path;

use sanderling_client::FeatureSnapshots;
use sanderling_formats::DataConfig;
use sanderling_sample::{FeatureEncoder, Field, SampleError, Spec};
use sanderling_store::{Checkpoint, CheckpointWriter};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::error::LearnError;
use crate::feature_snapshots::{FEATURES_BLOB, to_blob};
use crate::names::{NAMES_BLOB, NameCollector, Names};

/// The blob of a deep model that has its feature spec.
const SPEC_BLOB: &str = "spec.json";

/// How rows are read, and what they become.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// How files are read.
    pub data: DataConfig,
    /// The feature spec, complete.
    pub spec: Spec,
}

impl From<&Config> for Reading {
    fn from(config: &Config) -> Self {
        Reading { data: config.data.reading.clone(), spec: config.spec() }
    }
}

impl Reading {
    /// The key of a value of a feature.
    ///
    /// # Errors
    /// A feature that is not there, and a value without exactly one key.
    pub fn key(&self, feature: &str, value: Field<'_>) -> Result<u64, LearnError> {
        let mut encoder = FeatureEncoder::new(&self.spec, feature, &self.data.missing)?;
        match encoder.keys(value) {
            Ok(&[key]) => Ok(key),
            Ok(keys) => {
                Err(SampleError::Spec(format!("feature {feature:?}: the value has {} keys", keys.len()))
                    .into())
            }
            Err(error) => {
                let (expected, found) = (error.expected, error.found);
                let reason = format!("feature {feature:?}: expected {expected}, found {found}");
                Err(SampleError::Spec(reason).into())
            }
        }
    }

    /// Names of the features that read a table.
    pub(crate) fn features_of(&self, table: &str) -> Vec<&str> {
        let features = self.spec.feature.iter().filter(|feature| feature.table() == table);
        features.map(|feature| feature.name.as_str()).collect()
    }

    /// The spec that a deep model was saved with.
    pub(crate) fn of_deep(checkpoint: &Checkpoint, path: &Path) -> Result<Reading, LearnError> {
        serde_json::from_slice(&checkpoint.blob(SPEC_BLOB)?)
            .map_err(|error| LearnError::Model { path: path.join(SPEC_BLOB), reason: error.to_string() })
    }
}

/// Writes the feature spec of a deep model, the names of its keys, and the keys of its training, to a directory.
///
/// # Errors
/// The directory cannot be written.
pub fn save_reading(
    directory: &Path,
    data: &DataConfig,
    spec: &Spec,
    names: Option<&NameCollector>,
    features: Option<&FeatureSnapshots>,
) -> Result<(), LearnError> {
    let reading = Reading { data: data.clone(), spec: spec.clone() };
    let mut writer = CheckpointWriter::create(directory)?;
    writer.blob(SPEC_BLOB, &serde_json::to_vec(&reading).unwrap_or_default())?;
    if let Some(names) = names {
        writer.blob(NAMES_BLOB, &names.to_blob())?;
    }
    if let Some(features) = features {
        writer.blob(FEATURES_BLOB, &to_blob(features))?;
    }
    writer.commit()?;
    Ok(())
}

/// The names in a directory that [`save_reading`] wrote, for [`NameCollector::restore`]; `None` without names.
///
/// # Errors
/// The directory cannot be read.
pub fn saved_names(directory: &Path) -> Result<Option<Vec<u8>>, LearnError> {
    let checkpoint = Checkpoint::open(directory)?;
    Ok(has_names(&checkpoint).then(|| checkpoint.blob(NAMES_BLOB)).transpose()?)
}

/// The names of keys in a checkpoint, of some features; empty without a dictionary.
pub(crate) fn names_in(checkpoint: &Checkpoint, features: &[&str], path: &Path) -> Result<Names, LearnError> {
    if !has_names(checkpoint) {
        return Ok(Names::default());
    }
    Names::read(&checkpoint.blob(NAMES_BLOB)?, features)
        .map_err(|reason| LearnError::Model { path: path.join(NAMES_BLOB), reason })
}

fn has_names(checkpoint: &Checkpoint) -> bool {
    checkpoint.blobs().iter().any(|blob| blob.name == NAMES_BLOB)
}
