//! The configuration of a run, as `sanderling train CONFIG.toml` reads it and a saved model keeps it: data, feature
//! spec, model, optimizer, training. Knows no command line.

mod data;
pub use data::{Data, Inputs};

mod names;
pub use names::NamesConfig;

mod model;
pub use model::{Model, ModelKind, RANK_MAX};

mod quantity;

mod renamed;
pub use renamed::RENAMED;

mod train;
pub use train::{Monitor, Reduction, Train};

use std::path::Path;

use sanderling_formats::Format;
use sanderling_formats::batch_file::completed;
use sanderling_formats::input::refuse_hubs;
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
    /// Reads a TOML file, lets `adjust` change what it says, and checks the result.
    pub fn read(path: &Path, adjust: impl FnOnce(&mut Self)) -> Result<Self, LearnError> {
        Self::from_toml(&read_text(path)?, path)?.adjusted(path, adjust)
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
    pub fn read_data(path: &Path, deep: &[&str], adjust: impl FnOnce(&mut Self)) -> Result<Self, LearnError> {
        let text = read_text(path)?;
        let wrong =
            |error: toml::de::Error| LearnError::Config { path: path.into(), reason: error.to_string() };
        let mut table: toml::Table = toml::from_str(&text).map_err(wrong)?;
        renamed::refuse(|section, old| renamed::has(&table, section, old))
            .map_err(|reason| LearnError::Config { path: path.into(), reason })?;
        let model = table.get("model").and_then(|model| model.get("type")).and_then(toml::Value::as_str);
        if !model.is_some_and(|model| deep.contains(&model)) {
            return Self::from_toml(&text, path)?.adjusted(path, adjust);
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

    fn from_toml(text: &str, path: &Path) -> Result<Self, LearnError> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let old = renamed::refuse_in_text(text).err();
            LearnError::Config { path: path.into(), reason: old.unwrap_or_else(|| error.to_string()) }
        })
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
        self.names
            .check(&self.feature, self.format())
            .map_err(|reason| LearnError::Config { path: path.into(), reason })?;
        let factors = self.model.factors();
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
        self.train.check_ps_timeout()?;
        self.model.check()?;
        if self.data.train.is_empty() {
            return Err("data.train: name at least one file, pattern or \"-\"".to_string());
        }
        for (name, inputs) in [("train", &self.data.train), ("valid", &self.data.valid)] {
            if inputs.0.iter().any(String::is_empty) {
                return Err(format!("data.{name}: an empty path"));
            }
        }
        self.check_read_once()?;
        let validates = !self.data.valid.is_empty();
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

    /// Standard input and pipes give their rows once.
    fn check_read_once(&self) -> Result<(), String> {
        let (trains, validates) = (self.data.train.read_once(), self.data.valid.read_once());
        if let Some(name) = trains.as_ref().or(validates.as_ref())
            && self.train.passes > 1
        {
            return Err(format!("train.passes > 1 needs files: {name} can be read only once"));
        }
        let Some(name) = trains else { return Ok(()) };
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
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("c.toml"), "c").map_err(|error| error.to_string())
    }

    #[test]
    fn configurations() {
        let head = "[data]\ntrain = \"a.csv\"\n[[feature]]\nname = \"f\"\n";
        let data = |entry: &str| format!("[data]\n{entry}\n");
        for (text, expected) in [
            (head.to_string(), Ok(())),
            ("[data]\ntrain = [\"a.svm\", \"b.svm\"]".to_string(), Ok(())),
            ("[data]\ntrain = \"a.criteo.gz\"".to_string(), Ok(())),
            ("[data]\ntrain = \"a.csv\"".to_string(), Err("no features")),
            ("[data]\ntrain = \"-\"".to_string(), Err("data.format")),
            ("[data]\ntrian = \"a.csv\"".to_string(), Err("unknown field `trian`, expected one of `train`")),
            (String::new(), Err("data.train")),
            (
                format!("[train]\nps_timeout = \"5ms\"\n{head}"),
                Err("train.ps_timeout = \"5ms\": must be 10ms to 24h"),
            ),
            (format!("[train]\nps_timeout = \"20\"\n{head}"), Err("is not a duration with a unit")),
            (format!("[train]\nps_timeout = \"2.5s\"\n{head}"), Ok(())),
            ("[data]\ntrain = \"\"".to_string(), Err("data.train: an empty path")),
            (data("train = \"a.svm\"\nvalid = [\"a.svm\", \"\"]"), Err("data.valid: an empty path")),
            (data("format = \"x\""), Err("data.format: unknown variant `x`, expected one of `")),
            (data("missing = \"NA\""), Err("data.missing: ")),
            (data("separator = 1"), Err("data.separator: ")),
            (data("on_bad_row = \"x\""), Err("data.on_bad_row: ")),
            (data("train = 1"), Err("data.train: a path")),
            (
                format!("{head}table = \"\""),
                Err("c.toml: feature \"f\": the name of its table must have 1 to 256"),
            ),
            (
                format!("{head}[model]\ninit_std = inf"),
                Err("model.init_std = inf: must be finite and 0 or more"),
            ),
            (format!("{head}[model]\ninit_std = 3e38"), Err("model.init_std = 3e38: must be at most 5e37")),
            (
                format!("{head}[model]\ntable_budget = 1"),
                Err("c.toml: model.table_budget = 1: a table without rows takes "),
            ),
            (format!("{head}[model]\ntable_budget = \"64KiB\""), Ok(())),
            (format!("{head}[optimizer]\nalpha = 0.3"), Ok(())),
            (format!("{head}[optimizer]\nalpha = inf"), Err("optimizer.alpha = inf must be")),
            (format!("{head}[optimizer]\nlr = 0.3"), Err("unknown field `lr`, expected one of `alpha`")),
            (format!("{head}[optimizer]\ntype = \"x\""), Err("unknown variant `x`, expected one of `sgd`")),
            (
                format!("{head}[train]\nschedule = \"exponential\""),
                Err(
                    "expected a table, such as { type = \"exponential\", factor = 0.9 }; its types are constant",
                ),
            ),
            (format!("{head}[train]\nbatch_size = 0"), Err("train.batch_size")),
            (format!("{head}[train]\nbatches = 1"), Err("batches")),
            (format!("{head}[train]\nearly_stop = 1"), Err("data.valid")),
            (format!("{head}table = \"(bias)\""), Err("constant term")),
            (format!("{head}dim = 3\n[model]\ntype = \"fm\"\nrank = 3"), Err("leave dim out")),
            (format!("{head}dim = 4\n[model]\ntype = \"fm\"\nrank = 3"), Ok(())),
            (format!("{head}[train]\nwarmup_steps = 5"), Err("FTRL")),
            (format!("{head}[train]\nwarmup_steps = 5\n[optimizer]\ntype = \"sgd\""), Ok(())),
            (format!("{head}[factor_optimizer]\ntype = \"adam\""), Ok(())),
            (format!("{head}[optimizer]\ntype = \"ftrl\"\nalhpa = 1.0"), Err("alhpa")),
            (
                format!("{head}[optimizer]\ntype = \"ftrl\"\nalpha = -1.0"),
                Err("c.toml: optimizer.alpha = -1 must be"),
            ),
            (
                format!("{head}[factor_optimizer]\ntype = \"adam\"\neps = 0.0\n[model]\ntype = \"fm\""),
                Err("factor_optimizer.eps = 0 must be"),
            ),
            (format!("name = \"../x\"\n{head}"), Err("letters")),
            (
                data(
                    "train = \"-\"\nformat = \"csv\"\n[[feature]]\neach = [\"a\", \"b\"]\ntype = \"quantile\"",
                ),
                Err("feature \"a\": quantile boundaries"),
            ),
            ("[data]\ntrain = \"-\"\nformat = \"libsvm\"\n[train]\npasses = 2".to_string(), Err("only once")),
            // By what it is, not by its name.
            (
                "[data]\ntrain = \"/dev/null\"\nformat = \"libsvm\"\n[train]\npasses = 2".to_string(),
                Err("/dev/null can be read only once"),
            ),
            (
                "[data]\ntrain = \"/dev/null\"\nformat = \"libsvm\"\n[train]\nthreads = 2\nsave_every_steps = 9"
                    .to_string(),
                Err("save_every_steps with several threads"),
            ),
        ] {
            match (parse(&text), expected) {
                // Every listed format is one.
                (Err(error), Err(_)) if error.contains("`train`, `valid`, `libsvm`") => {
                    panic!("{text}\n{error}")
                }
                (Ok(config), Ok(())) => {
                    let again = Config::parse(&config.to_toml(), Path::new("again"), "x").unwrap();
                    assert_eq!(again, config, "{text}");
                    let json = serde_json::to_string(&config).unwrap();
                    assert_eq!(Config::from_json(&json, |_| ()).unwrap(), config, "{text}");
                }
                (Err(error), Err(part)) => assert!(error.contains(part), "{text}\n{error}"),
                (got, expected) => panic!("{text}\ngave {got:?}, expected {expected:?}"),
            }
        }
    }

    /// Saved models stay readable.
    #[test]
    fn more_is_demanded_of_what_somebody_writes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        let check = |entry: &str, feature: &str, expected: &str| {
            let text = format!("[data]\ntrain = \"a.csv\"\n{entry}\n[[feature]]\nname = \"f\"\n{feature}\n");
            std::fs::write(&path, &text).unwrap();
            let saved = Config::parse(&text, &path, "c").unwrap();
            let json = serde_json::to_string(&saved).unwrap();
            for read in [Config::read(&path, |_| ()), Config::from_json(&json, |_| ())] {
                let error = read.unwrap_err().to_string();
                assert!(error.contains(expected), "{error}");
            }
        };
        check("", "type = \"quantile\"\nboundaries = []", "feature \"f\": boundaries = []");
        check("columns = []", "", "data.columns = []: name every column");
    }
}
