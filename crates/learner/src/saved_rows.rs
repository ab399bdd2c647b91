//! The rows of a saved model by table and name, without the model: of built-in and deep models, and of tables that were
//! saved alone. Changes nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sanderling_client::FeatureSnapshots;
use sanderling_sample::Field;
use sanderling_store::{Checkpoint, RowRef, Table, TableEntry};

use crate::error::LearnError;
use crate::feature_snapshots::feature_snapshots;
use crate::model::{BIAS_TABLE, CONFIG_BLOB, Model, config_of};
use crate::model_diagnostics::{deep_parts, explain_no_model};
use crate::names::Names;
use crate::reading::{Reading, names_in};
use crate::state::RunState;
use crate::table_counters::TableCounters;

/// An opened model directory.
#[derive(Debug)]
pub struct SavedRows {
    path: PathBuf,
    /// `None`: the rows are on servers.
    rows: Option<Checkpoint>,
    /// The spec and the names of a deep model.
    of_deep: Option<Checkpoint>,
    reading: Option<Reading>,
}

impl SavedRows {
    /// Opens the directory of a model, or of saved tables.
    ///
    /// # Errors
    /// A directory that is no model or checkpoint, and files that are damaged.
    pub fn open(path: &Path) -> Result<SavedRows, LearnError> {
        let saved = |rows, of_deep, reading| SavedRows { path: path.to_path_buf(), rows, of_deep, reading };
        match (Checkpoint::open(path), deep_parts(path)) {
            (Err(_), Some(parts)) => {
                let rows = parts.rows.map(Checkpoint::open).transpose()?;
                let of_deep = parts.reading.map(Checkpoint::open).transpose()?;
                let reading = of_deep.as_ref().map(|it| Reading::of_deep(it, path)).transpose()?;
                Ok(saved(rows, of_deep, reading))
            }
            (checkpoint, _) => {
                let checkpoint = checkpoint.map_err(|error| explain_no_model(error, path))?;
                let has_config = checkpoint.blobs().iter().any(|blob| blob.name == CONFIG_BLOB);
                let config = has_config.then(|| config_of(&checkpoint, path)).transpose()?;
                Ok(saved(Some(checkpoint), None, config.as_ref().map(Reading::from)))
            }
        }
    }

    /// Loads the built-in model.
    ///
    /// # Errors
    /// Tables without a configuration, and files that are damaged.
    pub fn model(&self) -> Result<Model, LearnError> {
        Model::from_checkpoint(self.rows()?, &self.path)
    }

    /// The counters of the tables of a built-in model by name; empty for models on servers and of earlier versions.
    ///
    /// # Errors
    /// The state of the run cannot be read.
    pub fn counters(&self) -> Result<BTreeMap<String, TableCounters>, LearnError> {
        Ok(RunState::from_checkpoint(self.rows()?, &self.path)?.0.table_counters)
    }

    /// The keys of the training; none of a model that was saved without them.
    pub(crate) fn feature_snapshots(&self) -> Result<FeatureSnapshots, LearnError> {
        let checkpoint = self.of_deep.as_ref().or(self.rows.as_ref());
        checkpoint.map_or_else(|| Ok(FeatureSnapshots::default()), |it| feature_snapshots(it, &self.path))
    }

    /// Loads all tables; none if their rows are on servers.
    ///
    /// # Errors
    /// Files that are damaged.
    pub fn tables(&self) -> Result<Vec<Arc<Table>>, LearnError> {
        let Some(rows) = &self.rows else { return Ok(Vec::new()) };
        let names = rows.tables().iter().map(|table| &table.name);
        names.map(|name| Ok(Arc::new(rows.load_table(name)?))).collect()
    }

    /// How the model reads rows; `None` for tables that were saved alone, and deep models of earlier versions.
    #[must_use]
    pub fn reading(&self) -> Option<&Reading> {
        self.reading.as_ref()
    }

    fn rows(&self) -> Result<&Checkpoint, LearnError> {
        self.rows.as_ref().ok_or_else(|| {
            let path = self.path.display();
            let reason = format!(
                "its rows are on parameter servers; copy them here: sanderling download {path} --ps ADDR"
            );
            LearnError::Model { path: self.path.clone(), reason }
        })
    }

    /// The table of a name or feature; without a name, the only one.
    ///
    /// # Errors
    /// A table that is not there, or a missing name where there are several.
    pub fn table(&self, name: Option<&str>) -> Result<&TableEntry, LearnError> {
        let rows = self.rows()?;
        let tables = || rows.tables().iter().filter(|table| table.name != BIAS_TABLE);
        let of_feature = |name: &str| {
            let spec = &self.reading.as_ref()?.spec;
            let feature = spec.feature.iter().find(|feature| feature.name == name)?;
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
        self.rows()?.for_each_row(table, each)
    }

    /// The names of keys that were kept with the model, of the features of a table; empty without a dictionary.
    ///
    /// # Errors
    /// A damaged dictionary.
    pub fn names(&self, table: &str) -> Result<Names, LearnError> {
        match (&self.reading, self.of_deep.as_ref().or(self.rows.as_ref())) {
            (Some(reading), Some(kept)) => names_in(kept, &reading.features_of(table), &self.path),
            _ => Ok(Names::default()),
        }
    }

    /// The key of a value of a feature.
    ///
    /// # Errors
    /// A model without a feature spec, and a value without exactly one key.
    pub fn key(&self, feature: &str, value: Field<'_>) -> Result<u64, LearnError> {
        let Some(reading) = &self.reading else {
            let reason =
                "keeps no feature spec here, which decides the keys: name rows by key (--key)".to_owned();
            return Err(LearnError::Model { path: self.path.clone(), reason });
        };
        reading.key(feature, value)
    }
}
