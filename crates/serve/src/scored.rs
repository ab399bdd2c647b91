//! Served models of either kind, built-in and deep, and the scratch by which a thread scores their rows.

use std::path::Path;
use std::sync::Arc;

use sanderling_learner::config::Loss;
use sanderling_learner::{KeyDrift, LearnError, Model, RowScorer, is_deep};
use sanderling_sample::spec::Feature;
use sanderling_sample::{FeatureEncoder, Field, FieldError, SampleError};
use sanderling_store::Table;

use crate::dense::{DeepModel, DeepScorer, Engines};

/// A model in memory.
pub(crate) enum Scored {
    BuiltIn(Box<Model>),
    Deep(Box<DeepModel>),
}

impl Scored {
    /// Loads a saved model. A built-in model shares tables of `loaded` that have its rows; `admit` gets the bytes of
    /// its own tables before they are loaded.
    ///
    /// # Errors
    /// The directory holds no model that can be served.
    pub(crate) fn load(
        path: &Path,
        engines: &Engines,
        loaded: &[Arc<Table>],
        admit: impl FnOnce(u64) -> Result<(), String>,
    ) -> Result<Scored, LearnError> {
        Ok(match is_deep(path) {
            true => Scored::Deep(Box::new(DeepModel::load(path, engines, admit)?)),
            false => Scored::BuiltIn(Box::new(Model::load_beside(path, loaded, admit)?)),
        })
    }

    /// Name of the run.
    pub(crate) fn name(&self) -> &str {
        match self {
            Scored::BuiltIn(model) => &model.config().name,
            Scored::Deep(model) => &model.description.name,
        }
    }

    /// Type of the model in words.
    pub(crate) fn describe(&self) -> String {
        match self {
            Scored::BuiltIn(model) => model.config().describe(),
            Scored::Deep(model) => model.describe(),
        }
    }

    /// Whether its scores are numbers of a regression, not probabilities.
    pub(crate) fn is_regression(&self) -> bool {
        match self {
            Scored::BuiltIn(model) => model.config().train.loss == Loss::Mse,
            Scored::Deep(model) => model.description.is_regression,
        }
    }

    /// The keys of requests against those of the training, by feature.
    pub(crate) fn drift(&self) -> Vec<(&str, Option<f64>)> {
        match self {
            Scored::BuiltIn(model) => model.drift().map(KeyDrift::by_feature).unwrap_or_default(),
            Scored::Deep(model) => model.drift.by_feature(),
        }
    }

    /// Whether a score is a sum of contributions of features.
    pub(crate) fn explains(&self) -> bool {
        matches!(self, Scored::BuiltIn(_))
    }

    pub(crate) fn features(&self) -> &[Feature] {
        match self {
            Scored::BuiltIn(model) => &model.config().feature,
            Scored::Deep(model) => &model.spec.feature,
        }
    }

    /// An encoder of values of a feature.
    pub(crate) fn feature_encoder(&self, feature: &str) -> Result<FeatureEncoder, SampleError> {
        match self {
            Scored::BuiltIn(model) => {
                let config = model.config();
                FeatureEncoder::new(&config.spec(), feature, &config.data.reading.missing)
            }
            Scored::Deep(model) => FeatureEncoder::new(&model.spec, feature, &model.missing),
        }
    }

    pub(crate) fn tables(&self) -> Vec<&Arc<Table>> {
        match self {
            Scored::BuiltIn(model) => model.tables().collect(),
            Scored::Deep(model) => model.tables.iter().collect(),
        }
    }

    /// The tables, that of the bias included.
    pub(crate) fn all_tables(&self) -> &[Arc<Table>] {
        match self {
            Scored::BuiltIn(model) => model.client().tables(),
            Scored::Deep(model) => &model.tables,
        }
    }

    pub(crate) fn table(&self, name: &str) -> Option<&Arc<Table>> {
        match self {
            Scored::BuiltIn(model) => model.table(name),
            Scored::Deep(model) => model.table(name),
        }
    }

    /// Rows over all tables.
    pub(crate) fn rows(&self) -> u64 {
        match self {
            Scored::BuiltIn(model) => model.rows(),
            Scored::Deep(model) => model.tables.iter().map(|table| table.len() as u64).sum(),
        }
    }

    /// Bytes of all tables.
    pub(crate) fn table_bytes(&self) -> u64 {
        match self {
            Scored::BuiltIn(model) => model.table_bytes(),
            Scored::Deep(model) => model.tables.iter().map(|table| table.bytes()).sum(),
        }
    }

    /// A scratch for its rows.
    pub(crate) fn scorer(&self) -> Result<Scorer, LearnError> {
        Ok(match self {
            Scored::BuiltIn(model) => Scorer::BuiltIn(Box::new(RowScorer::new(model)?)),
            Scored::Deep(model) => Scorer::Deep(Box::new(DeepScorer::new(model)?)),
        })
    }
}

/// Encodes and scores rows one after the other; a scratch for one thread.
pub(crate) enum Scorer {
    BuiltIn(Box<RowScorer>),
    Deep(Box<DeepScorer>),
}

impl Scorer {
    /// The columns of a row; fields run parallel to them.
    pub(crate) fn columns(&self) -> &[String] {
        match self {
            Scorer::BuiltIn(scorer) => scorer.columns(),
            Scorer::Deep(scorer) => scorer.encoder.input_columns(),
        }
    }

    /// Whether a row may lack a column, such as the label.
    pub(crate) fn is_optional(&self, column: usize) -> bool {
        match self {
            Scorer::BuiltIn(scorer) => scorer.is_optional(column),
            Scorer::Deep(scorer) => scorer.encoder.is_optional(column),
        }
    }

    /// Whether a feature of type `multi` reads a column.
    pub(crate) fn takes_list(&self, column: usize) -> bool {
        match self {
            Scorer::BuiltIn(scorer) => scorer.takes_list(column),
            Scorer::Deep(scorer) => scorer.encoder.takes_list(column),
        }
    }

    /// Encodes a row; an error leaves it out.
    pub(crate) fn add(&mut self, fields: &[Field<'_>]) -> Result<(), FieldError> {
        match self {
            Scorer::BuiltIn(scorer) => scorer.add(fields),
            Scorer::Deep(scorer) => scorer.add(fields),
        }
    }

    /// Number of rows that wait to be scored.
    pub(crate) fn len(&self) -> usize {
        match self {
            Scorer::BuiltIn(scorer) => scorer.len(),
            Scorer::Deep(scorer) => scorer.len(),
        }
    }

    /// Forgets the rows that were added.
    pub(crate) fn clear(&mut self) {
        match self {
            Scorer::BuiltIn(scorer) => scorer.clear(),
            Scorer::Deep(scorer) => scorer.clear(),
        }
    }
}
