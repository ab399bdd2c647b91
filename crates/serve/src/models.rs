//! One version of a served model: its tables, its columns, and the scratch of its requests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sanderling_learner::{LearnError, Model, is_deep};
use sanderling_sample::{FeatureEncoder, SampleError};
use sanderling_store::{Dtype, Table};

use crate::dense::{DeepModel, Engines};
use crate::error::{Kind, ServeError, listed, quoted};
use crate::pool::Pool;
use crate::scored::{Scored, Scorer};

/// A column of the rows that a model scores.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// Whether features take a number from it.
    pub(crate) is_number: bool,
    pub(crate) takes_list: bool,
    /// Whether a row may lack it, such as the label.
    pub(crate) is_optional: bool,
}

/// How the rows of a replica are kept.
#[derive(Debug, Clone, Default)]
pub struct FollowOptions {
    /// Type of the weights; `None`: the saved one.
    pub dtype: Option<Dtype>,
    /// Memory limit of each table.
    pub budget_bytes: Option<u64>,
    /// The engine of the dense part of a deep model.
    pub engines: Engines,
}

/// One version of a model, in memory.
pub struct ServedModel {
    pub(crate) name: String,
    pub(crate) version: u64,
    pub(crate) model: Scored,
    /// Parallel to the fields of a row.
    pub(crate) columns: Vec<Column>,
    /// Of a deep model whose rows follow: the directory with its dense part.
    pub(crate) directory: Option<PathBuf>,
    scorers: Pool<Scorer>,
    encoders: BTreeMap<String, Pool<FeatureEncoder>>,
}

impl ServedModel {
    /// Loads a saved model and verifies every byte of it; without a name it has that of its run.
    ///
    /// # Errors
    /// The directory holds no model that can be served.
    pub fn load(path: &Path, name: Option<&str>, version: u64) -> Result<ServedModel, LearnError> {
        ServedModel::load_by(path, name, version, &Engines::default())
    }

    /// [`ServedModel::load`] with a choice of the engine for the dense part of a deep model.
    ///
    /// # Errors
    /// The directory holds no model that can be served.
    pub fn load_by(
        path: &Path,
        name: Option<&str>,
        version: u64,
        engines: &Engines,
    ) -> Result<ServedModel, LearnError> {
        ServedModel::load_beside(path, name, version, engines, &[], |_| Ok(()))
    }

    /// Loads a version beside others, whose tables it shares where they have the same rows. `admit` gets the bytes
    /// of its own tables before they are loaded.
    pub(crate) fn load_beside(
        path: &Path,
        name: Option<&str>,
        version: u64,
        engines: &Engines,
        others: &[&Arc<ServedModel>],
        admit: impl FnOnce(u64) -> Result<(), String>,
    ) -> Result<ServedModel, LearnError> {
        let tables: Vec<Arc<Table>> = others.iter().flat_map(|other| other.all_tables()).cloned().collect();
        ServedModel::of(Scored::load(path, engines, &tables, admit)?, name, version)
    }

    /// A version without rows, which a replica fills.
    ///
    /// # Errors
    /// The directory holds no model that can be served, or the memory limit is too low for empty tables.
    pub fn to_follow(
        path: &Path,
        name: Option<&str>,
        version: u64,
        options: &FollowOptions,
    ) -> Result<ServedModel, LearnError> {
        let FollowOptions { dtype, budget_bytes, engines } = options;
        let model = match is_deep(path) {
            true => Scored::Deep(Box::new(DeepModel::to_follow(path, engines, *dtype, *budget_bytes)?)),
            false => Scored::BuiltIn(Box::new(Model::to_follow(path, *dtype, *budget_bytes)?)),
        };
        let directory = matches!(model, Scored::Deep(_)).then(|| path.to_path_buf());
        Ok(ServedModel { directory, ..ServedModel::of(model, name, version)? })
    }

    /// The deep model with the dense part that its directory has now, and with the same tables.
    ///
    /// # Errors
    /// The directory holds no exported model, or one of other tables.
    pub(crate) fn with_new_dense_part(&self, engines: &Engines) -> Result<ServedModel, LearnError> {
        let (Scored::Deep(model), Some(path)) = (&self.model, &self.directory) else {
            let reason = "is no followed deep model".to_owned();
            return Err(LearnError::Model { path: PathBuf::new(), reason });
        };
        let model = Scored::Deep(Box::new(model.with_new_dense_part(path, engines)?));
        let directory = Some(path.clone());
        Ok(ServedModel { directory, ..ServedModel::of(model, Some(&self.name), self.version)? })
    }

    /// A model in memory.
    ///
    /// # Errors
    /// A spec that does not compile.
    pub(crate) fn of(model: Scored, name: Option<&str>, version: u64) -> Result<ServedModel, LearnError> {
        // The first request finds a scorer.
        let scorers = Pool::default();
        let columns = scorers.lend(
            || model.scorer(),
            |scorer| {
                let column = |(at, name): (usize, &String)| {
                    let inputs = |feature: &&sanderling_sample::spec::Feature| {
                        feature.inputs().contains(&name.as_str())
                    };
                    let mut readers = model.features().iter().filter(inputs).peekable();
                    Column {
                        name: name.clone(),
                        is_number: readers.peek().is_some()
                            && readers.all(sanderling_sample::spec::Feature::is_number),
                        takes_list: scorer.takes_list(at),
                        is_optional: scorer.is_optional(at),
                    }
                };
                Ok::<_, LearnError>(scorer.columns().iter().enumerate().map(column).collect())
            },
        )?;
        let encoders =
            model.features().iter().map(|feature| (feature.name.clone(), Pool::default())).collect();
        let name = name.unwrap_or(model.name()).to_owned();
        Ok(ServedModel { name, version, model, columns, directory: None, scorers, encoders })
    }

    /// Prepares the scratch of so many threads.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn prepare(&self, threads: usize) -> Result<(), String> {
        self.scorers.fill(threads, || self.model.scorer()).map_err(|error| error.to_string())?;
        for (feature, pool) in &self.encoders {
            let make = || self.model.feature_encoder(feature);
            pool.fill(threads, make).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// The tables, that of the bias included.
    pub(crate) fn all_tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.model.all_tables().iter()
    }

    /// A table by name, as it is served.
    #[must_use]
    pub fn shared_table(&self, name: &str) -> Option<Arc<Table>> {
        self.model.table(name).cloned()
    }

    /// Type of the model in words, and the engine that computes its dense part.
    #[must_use]
    pub fn describe(&self) -> String {
        self.model.describe()
    }

    /// The name by which clients ask for it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Rows over all tables.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.model.rows()
    }

    /// Memory of its tables, also of those that it shares with other versions.
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        self.model.table_bytes()
    }

    /// Whether its scores are numbers of a regression, not probabilities.
    pub(crate) fn is_regression(&self) -> bool {
        self.model.is_regression()
    }

    pub(crate) fn features(&self) -> impl Iterator<Item = &str> {
        self.model.features().iter().map(|feature| feature.name.as_str())
    }

    pub(crate) fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// The error of a column that the model lacks.
    pub(crate) fn unknown_column(&self, place: &str, name: &str) -> ServeError {
        let columns = listed(self.columns.iter().map(|column| column.name.as_str()));
        ServeError::invalid(format!("{place}: no column {}; the columns are {columns}", quoted(name)))
    }

    /// Lends a scorer without rows.
    pub(crate) fn with_scorer<T>(
        &self,
        work: impl FnOnce(&mut Scorer) -> Result<T, ServeError>,
    ) -> Result<T, ServeError> {
        let internal = |error: LearnError| ServeError::new(Kind::Internal, error.to_string());
        self.scorers.lend(
            || self.model.scorer().map_err(internal),
            |scorer| {
                scorer.clear();
                work(scorer)
            },
        )
    }

    /// Lends an encoder of values of a feature.
    pub(crate) fn with_encoder<T>(
        &self,
        feature: &str,
        work: impl FnOnce(&mut FeatureEncoder) -> Result<T, ServeError>,
    ) -> Result<T, ServeError> {
        let Some(pool) = self.encoders.get(feature) else {
            let features = listed(self.features());
            let text = format!("no feature {}; the features are {features}", quoted(feature));
            return Err(ServeError::invalid(text));
        };
        let failed = |error: SampleError| ServeError::invalid(error.to_string());
        let make = || self.model.feature_encoder(feature).map_err(failed);
        pool.lend(make, work)
    }

    /// A table by name.
    pub(crate) fn table(&self, name: &str) -> Result<&Arc<Table>, ServeError> {
        self.model.table(name).ok_or_else(|| {
            let tables = listed(self.model.tables().iter().map(|table| table.name()));
            let (name, of) = (quoted(name), quoted(&self.name));
            ServeError::new(Kind::NotFound, format!("no table {name}; the tables of {of} are {tables}"))
        })
    }
}
