//! A model: its configuration and its tables, in memory and as a directory on disk. Knows no training loop.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use sanderling_client::Client;
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, SampleError, key};
use sanderling_store::{Block, Checkpoint, CheckpointWriter, Init, StoreError, Table, TableConfig};

use crate::config::{Config, ModelKind};
use crate::error::LearnError;

/// The table that holds the constant term; its one row has [`sanderling_client::CONSTANT_KEY`].
pub const BIAS_TABLE: &str = "(bias)";
/// The configuration inside a model's directory.
pub(crate) const CONFIG_BLOB: &str = "config.toml";

/// A model with its tables in this process.
#[derive(Debug)]
pub struct Model {
    config: Config,
    client: Client,
}

impl Model {
    /// An untrained model. Quantile boundaries must be fitted.
    pub fn new(config: Config) -> Result<Self, LearnError> {
        let mut names: Vec<&str> = Vec::new();
        for feature in &config.feature {
            if !names.contains(&feature.table()) {
                names.push(feature.table());
            }
        }
        let factors = config.model.factors();
        let linear = Block { dims: 1, init: Init::Zero, optimizer: config.optimizer };
        let mut blocks = vec![linear];
        if factors > 0 {
            let optimizer = config.factor_optimizer.unwrap_or(config.optimizer);
            let init = Init::Normal { std: config.model.init_std };
            blocks.push(Block { dims: factors, init, optimizer });
        }
        let budget_bytes = (config.model.table_budget_bytes > 0).then_some(config.model.table_budget_bytes);
        let mut tables = Vec::new();
        for name in names {
            // Tables differ in their seed, or equal keys would start alike in all of them.
            let seed = key::hash(name.as_bytes(), config.seed);
            tables.push(Table::new(TableConfig {
                name: name.to_string(),
                blocks: blocks.clone(),
                seed,
                budget_bytes,
            })?);
        }
        if config.model.bias {
            let name = BIAS_TABLE.to_string();
            tables.push(Table::new(TableConfig { name, blocks: vec![linear], seed: 0, budget_bytes: None })?);
        }
        Self::from_tables(config, tables)
    }

    fn from_tables(config: Config, tables: Vec<Table>) -> Result<Self, LearnError> {
        let features = config.feature.iter().map(|feature| (feature.name.as_str(), feature.table()));
        let bias = config.model.bias.then_some(BIAS_TABLE);
        let client = Client::embedded(tables.into_iter().map(Arc::new).collect(), features, bias)?;
        Ok(Model { config, client })
    }

    /// Opens a saved model and verifies every byte of it.
    pub fn load(path: &Path) -> Result<Self, LearnError> {
        let checkpoint = Checkpoint::open(path).map_err(|error| not_a_model(error, path))?;
        Self::from_checkpoint(&checkpoint, path)
    }

    /// The model in an open checkpoint.
    pub fn from_checkpoint(checkpoint: &Checkpoint, path: &Path) -> Result<Self, LearnError> {
        let text = checkpoint.blob(CONFIG_BLOB)?;
        let text = String::from_utf8(text).map_err(|_| LearnError::Model {
            path: path.into(),
            reason: format!("{CONFIG_BLOB} is not text"),
        })?;
        let config = Config::parse(&text, &path.join(CONFIG_BLOB), "model")?;
        let names: Vec<String> = checkpoint.tables().iter().map(|table| table.name.clone()).collect();
        let tables = names.iter().map(|name| checkpoint.load_table(name)).collect::<Result<Vec<_>, _>>()?;
        let model = Self::from_tables(config, tables)?;
        let dim = 1 + model.config.model.factors();
        let wrong = model.client.tables().iter().find(|t| t.name() != BIAS_TABLE && t.dim() != dim);
        match wrong {
            Some(table) => Err(LearnError::Model {
                path: path.into(),
                reason: format!("table {:?} has dim {}, the model needs {dim}", table.name(), table.dim()),
            }),
            None => Ok(model),
        }
    }

    /// Writes the model to a directory; whatever was there stays whole until the new one is.
    pub fn save(&self, path: &Path, blobs: &[(&str, Vec<u8>)]) -> Result<(), LearnError> {
        let mut writer = CheckpointWriter::create(path)?;
        for table in self.client.tables() {
            writer.table(table)?;
        }
        writer.blob(CONFIG_BLOB, self.config.to_toml().as_bytes())?;
        for (name, bytes) in blobs {
            writer.blob(name, bytes)?;
        }
        writer.commit()?;
        Ok(())
    }

    /// How the model was configured; the spec in it is complete.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn config_mut(&mut self) -> &mut Config {
        &mut self.config
    }

    /// The tables behind the features, and the bias.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The tables of the features, without the bias.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.client.tables().iter().filter(|table| table.name() != BIAS_TABLE)
    }

    /// A table by name.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<&Arc<Table>> {
        self.client.tables().iter().find(|table| table.name() == name)
    }

    /// An encoder for the model's spec; where labels are optional, for prediction, it asks for no weights either.
    pub fn encoder(&self, label: LabelUse, down_sample: bool) -> Result<Arc<Encoder>, SampleError> {
        let missing = &self.config.data.reading.missing;
        let mut spec = self.config.spec();
        if label == LabelUse::Optional {
            spec.weight = None;
        }
        Encoder::new(&spec, &EncodeOptions { missing, label, down_sample }).map(Arc::new)
    }

    /// Rows over all tables.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.client.tables().iter().map(|table| table.len() as u64).sum()
    }

    /// Bytes of all tables in memory, index and rows.
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        self.client.tables().iter().map(|table| table.bytes()).sum()
    }

    /// What the model is called in a sentence.
    #[must_use]
    pub fn describe(&self) -> String {
        match self.config.model.kind {
            ModelKind::Lr => "logistic regression".to_string(),
            ModelKind::Fm => format!("factorization machine, rank {}", self.config.model.rank),
        }
    }
}

/// Says where the model is, if a directory is named that holds none.
fn not_a_model(error: StoreError, path: &Path) -> LearnError {
    match &error {
        StoreError::Io { source, .. } if source.kind() == ErrorKind::NotFound && path.is_dir() => {
            let inside = path.join("model");
            let hint =
                if inside.is_dir() { format!("; did you mean {}?", inside.display()) } else { String::new() };
            LearnError::Model { path: path.into(), reason: format!("holds no model{hint}") }
        }
        _ => error.into(),
    }
}
