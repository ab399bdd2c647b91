//! The rows of a saved model by table and name, without the model: of built-in and deep models, and of tables that were
//! saved alone. Changes nothing.

use std::path::{Path, PathBuf};

use sanderling_sample::{FeatureEncoder, Field, SampleError};
use sanderling_store::{Checkpoint, RowRef, TableEntry};

use crate::config::Config;
use crate::error::LearnError;
use crate::model::{BIAS_TABLE, CONFIG_BLOB, config_of};
use crate::model_diagnostics::{deep_rows, explain_no_model};
use crate::names::{NAMES_BLOB, Names};

/// An opened model directory.
#[derive(Debug)]
pub struct SavedRows {
    path: PathBuf,
    checkpoint: Checkpoint,
    config: Option<Config>,
}

impl SavedRows {
    /// Opens the directory of a model, or of saved tables.
    ///
    /// # Errors
    /// A directory that is no model or checkpoint, and files that are damaged.
    pub fn open(path: &Path) -> Result<SavedRows, LearnError> {
        let checkpoint = match (Checkpoint::open(path), deep_rows(path)) {
            (Err(_), Some(rows)) => Checkpoint::open(rows)?,
            (checkpoint, _) => checkpoint.map_err(|error| explain_no_model(error, path))?,
        };
        let has_config = checkpoint.blobs().iter().any(|blob| blob.name == CONFIG_BLOB);
        let config = has_config.then(|| config_of(&checkpoint, path)).transpose()?;
        Ok(SavedRows { path: path.to_path_buf(), checkpoint, config })
    }

    /// The configuration of a built-in model.
    #[must_use]
    pub fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// The table of a name or feature; without a name, the only one.
    ///
    /// # Errors
    /// A table that is not there, or a missing name where there are several.
    pub fn table(&self, name: Option<&str>) -> Result<&TableEntry, LearnError> {
        let tables = || self.checkpoint.tables().iter().filter(|table| table.name != BIAS_TABLE);
        let of_feature = |name: &str| {
            let feature = self.config.as_ref()?.feature.iter().find(|feature| feature.name == name)?;
            tables().find(|table| table.name == feature.table())
        };
        let found = match name {
            Some(name) => tables().find(|table| table.name == name).or_else(|| of_feature(name)),
            None => tables().next().filter(|_| tables().count() == 1),
        };
        found.ok_or_else(|| {
            let names: Vec<&str> = tables().map(|table| table.name.as_str()).collect();
            let reason = match name {
                Some(name) => format!("no table or feature {name:?}; the tables are {}", names.join(", ")),
                None => format!("name one of its tables: {}", names.join(", ")),
            };
            LearnError::Model { path: self.path.clone(), reason }
        })
    }

    /// Passes every row of a table to `each`, in file order, until it fails.
    ///
    /// # Errors
    /// The errors of `each`, and of damaged files.
    pub fn for_each_row(
        &self,
        table: &str,
        each: impl FnMut(RowRef<'_>) -> Result<(), LearnError>,
    ) -> Result<(), LearnError> {
        self.checkpoint.for_each_row(table, each)
    }

    /// The names of keys that were kept with the model, of the features of a table; empty without a dictionary.
    ///
    /// # Errors
    /// A damaged dictionary.
    pub fn names(&self, table: &str) -> Result<Names, LearnError> {
        let Some(config) = &self.config else { return Ok(Names::default()) };
        if !self.checkpoint.blobs().iter().any(|blob| blob.name == NAMES_BLOB) {
            return Ok(Names::default());
        }
        let features = config.feature.iter().filter(|feature| feature.table() == table);
        let features: Vec<&str> = features.map(|feature| feature.name.as_str()).collect();
        Names::read(&self.checkpoint.blob(NAMES_BLOB)?, &features)
            .map_err(|reason| LearnError::Model { path: self.path.join(NAMES_BLOB), reason })
    }

    /// The key of a value of a feature.
    ///
    /// # Errors
    /// A model without a configuration, and a value without exactly one key.
    pub fn key(&self, feature: &str, value: Field<'_>) -> Result<u64, LearnError> {
        let Some(config) = &self.config else {
            let reason =
                "keeps no feature spec here, which decides the keys: name rows by key (--key)".to_owned();
            return Err(LearnError::Model { path: self.path.clone(), reason });
        };
        key_of(config, feature, value)
    }
}

/// The key of a value of a feature of a configuration.
///
/// # Errors
/// A feature that is not there, and a value without exactly one key.
pub fn key_of(config: &Config, feature: &str, value: Field<'_>) -> Result<u64, LearnError> {
    let mut encoder = FeatureEncoder::new(&config.spec(), feature, &config.data.reading.missing)?;
    match encoder.keys(value) {
        Ok(&[key]) => Ok(key),
        Ok(keys) => {
            Err(SampleError::Spec(format!("feature {feature:?}: the value has {} keys", keys.len())).into())
        }
        Err(error) => {
            let (expected, found) = (error.expected, error.found);
            Err(SampleError::Spec(format!("feature {feature:?}: expected {expected}, found {found}")).into())
        }
    }
}
