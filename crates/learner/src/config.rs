//! The configuration of a run, as `sanderling train CONFIG.toml` reads it and a saved model keeps it: data, feature
//! spec, model, optimizer, training. Knows no command line.

mod data;
pub use data::{Data, Inputs};

mod names;
pub use names::NamesConfig;

mod model;
pub use model::{Model, ModelKind, RANK_MAX};

mod overrides;
pub use overrides::{Override, set_entries};

mod quantity;

mod renamed;
pub use renamed::RENAMED;

mod table;
pub(crate) use table::EVERY_TABLE;
pub use table::{AdmissionOption, EvictionOption, MemoryOption, TableOptions};

mod train;
pub use train::{Loss, Monitor, Reduction, Train};

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use sanderling_formats::batch_file::completed;
use sanderling_formats::fit::fit;
use sanderling_formats::input::refuse_hubs;
use sanderling_formats::{Format, fit_holdout};
use sanderling_sample::Spec;
use sanderling_sample::spec::{Feature, Label, Negatives, Weight, check_all_written};
use sanderling_store::{Init, NAME_BYTES_MAX, Optimizer};
use serde::de::Error;
use serde::{Deserialize, Serialize};

use crate::error::LearnError;
use crate::json::from_json;
use crate::schedule::Schedule;

/// Everything that decides what a run does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name of the run; its files go to `runs/<name>`. Default: the stem of the configuration's file name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Seed of initial values and shuffles.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// The input.
    #[serde(default)]
    pub data: Data,
    /// The model.
    #[serde(default)]
    pub model: Model,
    /// How rows are updated.
    #[serde(default = "default_optimizer", deserialize_with = "optimizer_or_ftrl")]
    pub optimizer: Optimizer,
    /// How the factors of a factorization machine are updated; default: like everything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor_optimizer: Option<Optimizer>,
    /// The training loop.
    #[serde(default)]
    pub train: Train,
    /// The label.
    #[serde(default)]
    pub label: Label,
    /// Row weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<Weight>,
    /// Negative down-sampling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub negatives: Option<Negatives>,
    /// Memory, storage type, admission and eviction of tables by name; `*` is every other table.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub table: BTreeMap<String, TableOptions>,
    /// The features; none for libsvm and Criteo files, which have a spec of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feature: Vec<Feature>,
    /// Features whose keys keep their texts beside the model.
    #[serde(default, skip_serializing_if = "NamesConfig::is_empty")]
    pub names: NamesConfig,
}

/// Rows of a minibatch of models that are not built in, where the configuration does not say.
const DEEP_BATCH: i64 = 1024;

fn default_seed() -> u64 {
    42
}

fn default_optimizer() -> Optimizer {
    Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.0, l2: 0.0 }
}

/// An optimizer's settings; they are FTRL's if they do not say whose.
fn optimizer_or_ftrl<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Optimizer, D::Error> {
    let mut table = toml::Table::deserialize(input)?;
    table.entry("type").or_insert_with(|| "ftrl".into());
    toml::Value::Table(table).try_into().map_err(|error: toml::de::Error| D::Error::custom(error.message()))
}

/// Most rows in a minibatch.
pub const BATCH_ROWS_MAX: usize = 1 << 20;
/// Most rows in the shuffle buffer.
pub const SHUFFLE_ROWS_MAX: usize = 1 << 28;
/// Most worker threads.
pub const THREADS_MAX: usize = 1024;

/// The text of a configuration. One that cannot be read is as wrong an argument as one that makes no sense.
fn read_text(path: &Path) -> Result<String, LearnError> {
    let wrong = |error: std::io::Error| LearnError::Config { path: path.into(), reason: error.to_string() };
    std::fs::read_to_string(path).map_err(wrong)
}

impl Config {
    /// Reads a TOML file with some entries set, lets `adjust` change the rest, and checks the result.
    pub fn read(
        path: &Path,
        overrides: &[Override],
        adjust: impl FnOnce(&mut Self),
    ) -> Result<Self, LearnError> {
        Self::from_toml(&read_text(path)?, path, overrides)?.adjusted(path, adjust)
    }

    /// Applies the caller's changes, checks the configuration, and names the run after its file if it has no name.
    fn adjusted(mut self, path: &Path, adjust: impl FnOnce(&mut Self)) -> Result<Self, LearnError> {
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        adjust(&mut self);
        self.written(path, &stem.unwrap_or_default())
    }

    /// Completes a configuration that a person wrote, which must meet more demands than one that a model saved.
    fn written(self, path: &Path, name: &str) -> Result<Self, LearnError> {
        let wrong = |reason| LearnError::Config { path: path.into(), reason };
        check_all_written(&self.feature).map_err(wrong)?;
        if self.data.reading.columns.as_ref().is_some_and(Vec::is_empty) {
            return Err(wrong(
                "data.columns = []: name every column of the files, or leave it out".to_string(),
            ));
        }
        self.complete(path, name)
    }

    /// [`Config::read`] for callers that need data, features, batches and passes alone. The configuration may also be
    /// of a model that is not built in (`deep`); the sections and entries for that model are ignored.
    pub fn read_data(
        path: &Path,
        overrides: &[Override],
        deep: &[&str],
        adjust: impl FnOnce(&mut Self),
    ) -> Result<Self, LearnError> {
        let text = read_text(path)?;
        let wrong =
            |error: toml::de::Error| LearnError::Config { path: path.into(), reason: error.to_string() };
        let mut table: toml::Table = toml::from_str(&text).map_err(wrong)?;
        let because = |reason| LearnError::Config { path: path.into(), reason };
        overrides.iter().try_for_each(|entry| entry.apply(&mut table)).map_err(because)?;
        renamed::refuse(|section, old| renamed::has(&table, section, old)).map_err(because)?;
        let model = table.get("model").and_then(|model| model.get("type")).and_then(toml::Value::as_str);
        if !model.is_some_and(|model| deep.contains(&model)) {
            return Self::from_toml(&text, path, overrides)?.adjusted(path, adjust);
        }
        const SECTIONS: [&str; 8] =
            ["name", "seed", "data", "label", "weight", "negatives", "feature", "train"];
        table.retain(|section, _| SECTIONS.contains(&section));
        let train = table.entry("train").or_insert_with(|| toml::Table::new().into());
        if let Some(train) = train.as_table_mut() {
            train.retain(|entry, _| ["batch_size", "passes", "shuffle_rows"].contains(&entry));
            train.entry("batch_size").or_insert(DEEP_BATCH.into());
        }
        let config: Self = table.try_into().map_err(wrong)?;
        config.adjusted(path, adjust)
    }

    /// Parses and checks the TOML of a run as a model has saved it.
    ///
    /// `path` is for messages, `name` the default name.
    pub fn parse(text: &str, path: &Path, name: &str) -> Result<Self, LearnError> {
        let wrong =
            |error: toml::de::Error| LearnError::Config { path: path.into(), reason: error.to_string() };
        let mut table: toml::Table = toml::from_str(text).map_err(wrong)?;
        renamed::rename(&mut table);
        let config: Self = table.try_into().map_err(wrong)?;
        config.complete(path, name)
    }

    fn from_toml(text: &str, path: &Path, overrides: &[Override]) -> Result<Self, LearnError> {
        let wrong = |reason| LearnError::Config { path: path.into(), reason };
        let from_text = || toml::from_str(text).map_err(|error: toml::de::Error| error.to_string());
        let config = if overrides.is_empty() {
            from_text()
        } else {
            // The lines of a file are in errors of its text alone.
            toml::from_str(text).map_err(|error: toml::de::Error| error.to_string()).and_then(|table| {
                let read = |table: toml::Table| table.try_into().map_err(|error| error.to_string());
                overrides::read_with(&table, overrides, read)
            })
        };
        config.map_err(|error| wrong(renamed::refuse_in_text(text).err().unwrap_or(error)))
    }

    /// Parses a JSON value of the same structure, lets `adjust` change it, and checks the result.
    ///
    /// The run is named after its first training file if it has no name.
    pub fn from_json(text: &str, adjust: impl FnOnce(&mut Self)) -> Result<Self, LearnError> {
        let path = Path::new("config");
        let wrong = |reason| LearnError::Config { path: path.into(), reason };
        let mut config: Self = from_json(text).map_err(|reason| {
            let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
            wrong(renamed::refuse(|section, old| value[section].get(old).is_some()).err().unwrap_or(reason))
        })?;
        adjust(&mut config);
        let name = config.data.name();
        config.written(path, &name)
    }

    /// Fills in what follows from the rest and checks everything.
    fn complete(mut self, path: &Path, name: &str) -> Result<Self, LearnError> {
        if self.name.is_empty() {
            self.name = name.to_string();
        }
        self.check().map_err(|reason| LearnError::Config { path: path.into(), reason })?;
        self.train.monitor = Some(self.train.monitor());
        if self.train.loss == Loss::Mse {
            self.label.number = true;
        }
        if self.feature.is_empty() && self.format() == Some(Format::Batch) {
            // The file says by which spec its rows were encoded.
            let spec = completed(&self.spec(), &self.data.train.0)?;
            (self.label, self.weight, self.feature) = (spec.label, spec.weight, spec.feature);
        }
        if self.feature.is_empty() && self.format().is_none() {
            refuse_hubs(&self.data.train.0)?;
            let input = self.data.train.0.first().map_or("", String::as_str);
            let reason = format!(
                "data.format: {input:?} does not tell its format, and without a [[feature]] only libsvm, libffm, criteo and batch are complete"
            );
            return Err(LearnError::Config { path: path.into(), reason });
        }
        let spec = self
            .spec()
            .expand()
            .map_err(|error| LearnError::Config { path: path.into(), reason: error.to_string() })?;
        self.feature = spec.feature;
        let is_name = |table: &str| (1..=NAME_BYTES_MAX).contains(&table.len());
        if let Some(feature) = self.feature.iter().find(|feature| !is_name(feature.table())) {
            let reason = format!(
                "feature {:?}: the name of its table must have 1 to {NAME_BYTES_MAX} bytes",
                feature.name
            );
            return Err(LearnError::Config { path: path.into(), reason });
        }
        if let Some(feature) = self.feature.iter().find(|feature| feature.table() == crate::BIAS_TABLE) {
            let reason =
                format!("feature {:?}: the table {:?} is the constant term's", feature.name, feature.table());
            return Err(LearnError::Config { path: path.into(), reason });
        }
        self.check_tables().map_err(|reason| LearnError::Config { path: path.into(), reason })?;
        self.names
            .check(&self.feature, self.format())
            .map_err(|reason| LearnError::Config { path: path.into(), reason })?;
        self.model
            .check_fields(&self.feature)
            .map_err(|reason| LearnError::Config { path: path.into(), reason })?;
        let factors = self.factors();
        let dim = 1 + factors;
        if let Some(feature) = self.feature.iter().find(|feature| feature.dim.is_some_and(|d| d != dim)) {
            let reason = format!(
                "feature {:?}: dim = {}, but this model's rows have {dim} (one weight and {factors} factors); leave dim out",
                feature.name,
                feature.dim.unwrap_or_default()
            );
            return Err(LearnError::Config { path: path.into(), reason });
        }
        Ok(self)
    }

    /// The model in a sentence.
    #[must_use]
    pub fn describe(&self) -> String {
        match (self.train.loss, self.model.kind) {
            (Loss::Logloss, _) => self.model.describe(),
            (Loss::Mse, ModelKind::Lr) => "linear regression".to_owned(),
            (Loss::Mse, _) => format!("{}, regression", self.model.describe()),
        }
    }

    /// Numbers of a key's factors: 0 for logistic regression.
    #[must_use]
    pub fn factors(&self) -> usize {
        self.model.factors(self.feature.len())
    }

    /// The feature spec: what the file says, or the spec that its format implies.
    #[must_use]
    pub fn spec(&self) -> Spec {
        let implied = match self.format() {
            _ if !self.feature.is_empty() => self.feature.clone(),
            Some(Format::Libsvm | Format::Libffm) => Spec::libsvm().feature,
            Some(Format::Criteo) => Spec::criteo().feature,
            _ => Vec::new(),
        };
        Spec {
            label: self.label.clone(),
            weight: self.weight.clone(),
            negatives: self.negatives.clone(),
            feature: implied,
        }
    }

    /// The format of the first training input, if it is given or its name tells.
    fn format(&self) -> Option<Format> {
        self.data.reading.format_of(self.data.train.0.first()?)
    }

    /// The reduction in force.
    #[must_use]
    pub fn reduction(&self) -> Reduction {
        self.train.reduction.unwrap_or(match self.optimizer {
            Optimizer::Ftrl { .. } => Reduction::Sum,
            _ => Reduction::Mean,
        })
    }

    /// The configuration as TOML.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // Every type in here has a TOML form; the round trip is tested.
        toml::to_string(self).unwrap_or_default()
    }

    /// The configuration with what depends on the training files: quantile boundaries, and the moment of a holdout.
    pub(crate) fn fitted(mut self) -> Result<Self, LearnError> {
        let (inputs, reading) = (&self.data.train.0, &self.data.reading);
        self.feature = fit(&self.spec(), inputs, reading)?.feature;
        if let Some(holdout) = &self.data.holdout {
            self.data.holdout = Some(fit_holdout(holdout, &self.spec(), inputs, reading)?);
        }
        Ok(self)
    }

    fn check(&self) -> Result<(), String> {
        let name_is_plain = self.name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
        if self.name.is_empty() || !name_is_plain || self.name.starts_with('.') {
            return Err(format!(
                "name = {:?}: letters, digits, '-', '_' and '.' only, no '.' first; it is the configuration's file name \
                 unless name or --name says otherwise",
                self.name
            ));
        }
        let within = |name: &str, value: usize, least: usize, most: usize| {
            let fits = (least..=most).contains(&value);
            if fits { Ok(()) } else { Err(format!("{name} = {value}: must be {least} to {most}")) }
        };
        within("train.batch_size", self.train.batch_size, 1, BATCH_ROWS_MAX)?;
        within("train.shuffle_rows", self.train.shuffle_rows, 0, SHUFFLE_ROWS_MAX)?;
        within("train.threads", self.train.threads, 1, THREADS_MAX)?;
        if self.train.passes == 0 {
            return Err("train.passes must be at least 1".to_string());
        }
        if !(self.train.class_weight > 0.0 && self.train.class_weight.is_finite()) {
            return Err(format!("train.class_weight = {}: must be above 0", self.train.class_weight));
        }
        self.train.check_loss()?;
        if self.label.number && self.train.loss != Loss::Mse {
            return Err("label.number: only train.loss = \"mse\" learns numbers; leave it out".to_owned());
        }
        self.train.check_ps_timeout()?;
        self.model.check()?;
        if self.data.train.is_empty() {
            return Err("data.train: name at least one file, pattern or \"-\"".to_string());
        }
        let named = [("train", &self.data.train), ("valid", &self.data.valid)];
        let tests = self.data.test.iter().map(|(name, inputs)| (name.as_str(), inputs));
        for (name, inputs) in named.into_iter().chain(tests) {
            if inputs.0.iter().any(String::is_empty) {
                return Err(format!("data.{name}: an empty path"));
            }
        }
        if let Some((name, _)) =
            self.data.test.iter().find(|(name, inputs)| name.is_empty() || inputs.is_empty())
        {
            return Err(format!("data.test: the set {name:?} needs a name and a file"));
        }
        self.check_read_once()?;
        let validates = self.data.validates();
        if !validates
            && (self.train.early_stop > 0 || matches!(self.train.schedule, Schedule::Plateau { .. }))
        {
            return Err("early_stop and the plateau schedule need data.valid".to_string());
        }
        for (section, optimizer) in
            [("optimizer", Some(self.optimizer)), ("factor_optimizer", self.factor_optimizer)]
        {
            // Initial values are checked with their table.
            let checked = optimizer.map_or(Ok(()), |optimizer| optimizer.check(Init::Zero));
            checked.map_err(|reason| format!("{section}.{reason}"))?;
        }
        let scheduled = self.train.schedule != Schedule::Constant || self.train.warmup_steps > 0;
        let is_ftrl = |optimizer: &Optimizer| matches!(optimizer, Optimizer::Ftrl { .. });
        if scheduled && is_ftrl(&self.optimizer) && self.factor_optimizer.as_ref().is_none_or(is_ftrl) {
            return Err("train.schedule and train.warmup_steps do not act on FTRL, which lowers its rate per coordinate \
                        by itself; leave them out or take another optimizer"
                .to_string());
        }
        self.train.schedule.check()
    }

    /// Options of tables name tables of features, and features of one table agree about its admission.
    fn check_tables(&self) -> Result<(), String> {
        let tables: BTreeSet<&str> = self.feature.iter().map(Feature::table).collect();
        for (name, options) in &self.table {
            if name != EVERY_TABLE && !tables.contains(name.as_str()) {
                let tables = Vec::from_iter(tables).join(", ");
                return Err(format!("table.{name}: no feature has this table; there are {tables}"));
            }
            options.check(name)?;
        }
        for feature in &self.feature {
            let first = self.feature.iter().find(|other| other.table() == feature.table());
            if let Some(first) = first.filter(|first| first.min_count != feature.min_count) {
                return Err(format!(
                    "features {:?} and {:?} have one table, whose keys they count together: give both one min_count",
                    first.name, feature.name
                ));
            }
        }
        Ok(())
    }

    /// Standard input and pipes give their rows once.
    fn check_read_once(&self) -> Result<(), String> {
        let (trains, validates) = (self.data.train.read_once(), self.data.valid.read_once());
        if let Some(name) = trains.as_ref().or(validates.as_ref())
            && self.train.passes > 1
        {
            return Err(format!("train.passes > 1 needs files: {name} can be read only once"));
        }
        let Some(name) = trains else { return Ok(()) };
        if self.data.holdout.is_some() {
            return Err(format!("data.valid: rows are held out of files, and {name} can be read only once"));
        }
        if self.train.predict_first {
            return Err(format!("train.predict_first needs files: {name} can be read only once"));
        }
        if validates.as_ref() == Some(&name) {
            return Err(format!("data.train and data.valid: {name} can be read only once"));
        }
        if self.train.threads > 1 && self.train.save_every_steps > 0 {
            return Err(format!(
                "save_every_steps with several threads reopens the input, so it needs files: {name} can be read only once"
            ));
        }
        match self.spec().unfitted().next() {
            Some(feature) => Err(format!(
                "feature {:?}: quantile boundaries are fitted to a file before the first pass; {name} can be read only once, so give \
                 boundaries",
                // The members of a family have no names of their own yet.
                feature.each.first().unwrap_or(&feature.name)
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
