//! Beginning a run from a saved model: what it takes over, and what must not have changed. Knows no training.

use std::mem::discriminant;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sanderling_client::Cluster;
use sanderling_sample::spec::Feature;
use sanderling_store::Checkpoint;
use serde_json::Value;

use super::resume::fitted_like;
use crate::config::{Config, ModelKind};
use crate::error::LearnError;
use crate::kept::KeptTables;
use crate::model::{Model, config_of};
use crate::model_diagnostics::explain_no_model;
use crate::progressive::ProgressivePoint;
use crate::state::RunState;

/// A saved model that a run begins from.
pub(super) struct EarlierModel {
    path: PathBuf,
    checkpoint: Checkpoint,
}

impl EarlierModel {
    /// Opens a model and gives `config` its fitted boundaries.
    ///
    /// # Errors
    /// [`LearnError::Model`] if the configuration changes a feature of the model, its rows or its label.
    pub(super) fn open(path: &Path, config: &mut Config) -> Result<Self, LearnError> {
        let checkpoint = Checkpoint::open(path).map_err(|error| explain_no_model(error, path))?;
        let saved = config_of(&checkpoint, path)?;
        // Boundaries stay; the moment of a holdout is of one input alone.
        *config = Config { data: config.data.clone(), ..fitted_like(config, &saved) };
        match difference(config, &saved) {
            Some(reason) => Err(LearnError::Model { path: path.into(), reason }),
            None => Ok(EarlierModel { path: path.into(), checkpoint }),
        }
    }

    /// The model with new tables that hold the rows of the earlier one, and empty tables for new features.
    pub(super) fn continue_as(
        &self,
        config: Config,
        servers: Option<&Arc<Cluster>>,
        kept: &mut KeptTables,
    ) -> Result<Model, LearnError> {
        let create = |config: &Config, table| kept.create(config, table);
        Model::continued(config, servers, &self.checkpoint, &self.path, create)
    }

    /// The progressive validation of the runs that led to the model.
    pub(super) fn progressive_curve(&self) -> Result<Vec<ProgressivePoint>, LearnError> {
        Ok(RunState::from_checkpoint(&self.checkpoint, &self.path)?.0.progressive_curve)
    }
}

/// The first change of a configuration with which a saved model cannot be continued.
fn difference(config: &Config, saved: &Config) -> Option<String> {
    let put_back = "put it back, or train without --from";
    let (model, before) = (&config.model, &saved.model);
    if model.kind != before.kind {
        let (now, before) = (model.kind.name(), before.kind.name());
        return Some(format!("model.type is {now:?} now, and the saved model is {before:?}: {put_back}"));
    }
    if model.kind != ModelKind::Lr && model.rank != before.rank {
        let (now, before) = (model.rank, before.rank);
        return Some(format!(
            "model.rank is {now} now, and the saved rows have {before} factors: {put_back}"
        ));
    }
    if config.train.loss != saved.train.loss {
        return Some(format!("train.loss differs from that of the saved model: {put_back}"));
    }
    if model.normalizes() != before.normalizes() {
        let (now, before) = (model.normalizes(), before.normalizes());
        return Some(format!("model.normalize is {now} now, and was {before}: {put_back}"));
    }
    if model.bias != before.bias {
        return Some(format!("model.bias is {} now, and was {}: {put_back}", model.bias, before.bias));
    }
    let factors = |config: &Config| config.factor_optimizer.unwrap_or(config.optimizer);
    let has_factors = model.kind != ModelKind::Lr;
    if discriminant(&config.optimizer) != discriminant(&saved.optimizer)
        || (has_factors && discriminant(&factors(config)) != discriminant(&factors(saved)))
    {
        return Some(format!("the type of an optimizer changed, and with it the state of rows: {put_back}"));
    }
    if config.label != saved.label {
        return Some(format!("[label] differs from that of the saved model: {put_back}"));
    }
    saved.feature.iter().find_map(|before| feature_difference(config, before)).or_else(|| {
        let names = |config: &Config| config.feature.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
        (model.kind == ModelKind::Ffm && names(config) != names(saved)).then(|| {
            format!(
                "features came or changed places, and ffm has a factor per feature, in their order, in every row ({} before): \
                 train without --from",
                saved.feature.len()
            )
        })
    })
}

/// How a feature of the saved model differs now.
fn feature_difference(config: &Config, before: &Feature) -> Option<String> {
    let name = &before.name;
    let Some(now) = config.feature.iter().find(|feature| feature.name == *name) else {
        return Some(format!(
            "the configuration lacks feature {name:?}, which the saved model has: keep it, or train without --from"
        ));
    };
    // Which keys get rows from now on may change.
    if (Feature { min_count: before.min_count, ..now.clone() }) == *before {
        return None;
    }
    let entries = |feature| serde_json::to_value(feature).unwrap_or_default();
    let (now, before) = (entries(now), entries(before));
    let empty = serde_json::Map::new();
    let names = |value: &Value| value.as_object().unwrap_or(&empty).keys().cloned().collect::<Vec<_>>();
    let entry = names(&now).into_iter().chain(names(&before)).find(|entry| now[entry] != before[entry]);
    let entry = entry.unwrap_or_default();
    let words = |value: &Value| match value {
        Value::Null => "unset".to_owned(),
        Value::Array(values) => format!("a list of {}", values.len()),
        value => value.to_string(),
    };
    Some(format!(
        "feature {name:?} changed: {entry} is {} now, and was {}; put it back, or name the feature anew",
        words(&now[&entry]),
        words(&before[&entry])
    ))
}
