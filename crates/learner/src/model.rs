//! A model: its configuration and its tables, in memory and as a directory on disk. Knows no training loop.

use std::path::Path;
use std::sync::Arc;

use sanderling_client::{Client, ClientError, Cluster, RemoteTable};
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, SampleError, key};
use sanderling_store::{Block, Checkpoint, CheckpointWriter, Init, Table, TableConfig};

use crate::config::Config;
use crate::error::LearnError;
use crate::model_diagnostics::{explain_no_model, other_kind};

/// The table that holds the constant term; its one row has [`sanderling_client::CONSTANT_KEY`].
pub const BIAS_TABLE: &str = "(bias)";
/// The configuration inside a model's directory.
pub(crate) const CONFIG_BLOB: &str = "config.toml";

/// A model; while it is trained its tables may be on servers, else they are in this process.
#[derive(Debug)]
pub struct Model {
    config: Config,
    client: Client,
}

impl Model {
    /// An untrained model. Quantile boundaries must be fitted.
    pub fn new(config: Config) -> Result<Self, LearnError> {
        let tables = table_configs(&config).into_iter().map(Table::new).collect::<Result<_, _>>()?;
        Self::from_tables(config, tables)
    }

    /// An untrained model with tables `RUN/TABLE` on parameter servers; replaces earlier ones of this name.
    pub fn on_servers(config: Config, cluster: &Arc<Cluster>) -> Result<Self, LearnError> {
        Self::remote(config, |table| {
            RemoteTable::drop_named(cluster, &table.name)?;
            Ok(RemoteTable::create(cluster, table)?)
        })
    }

    /// [`Model::on_servers`] with the rows of a saved model imported into the tables.
    pub(crate) fn onto_servers(
        config: Config,
        cluster: &Arc<Cluster>,
        checkpoint: &Checkpoint,
        path: &Path,
    ) -> Result<Self, LearnError> {
        check_tables(checkpoint, &config, path)?;
        let model = Self::on_servers(config, cluster)?;
        for (number, config) in table_configs(&model.config).iter().enumerate() {
            model.client.import_table(number, checkpoint, &config.name).map_err(of_table)?;
        }
        Ok(model)
    }

    /// Opens a saved model with its tables on servers, as they are now.
    ///
    /// Only the configuration is read from the saved model.
    pub fn open_on_servers(path: &Path, cluster: &Arc<Cluster>) -> Result<Self, LearnError> {
        let checkpoint = Checkpoint::open(path).map_err(|error| explain_no_model(error, path))?;
        Self::found_on_servers(config_of(&checkpoint, path)?, cluster)
    }

    /// [`Model::on_servers`] for a model that was never saved, whose tables exist.
    pub(crate) fn found_on_servers(config: Config, cluster: &Arc<Cluster>) -> Result<Self, LearnError> {
        Self::remote(config, |table| {
            // It must be there: a new one would predict from nothing.
            RemoteTable::open(cluster, &table.name)?;
            Ok(RemoteTable::create(cluster, table)?)
        })
    }

    /// A model whose tables, named `RUN/TABLE`, are what `find` says.
    fn remote(
        config: Config,
        mut find: impl FnMut(&TableConfig) -> Result<RemoteTable, LearnError>,
    ) -> Result<Self, LearnError> {
        let mut tables = Vec::new();
        for mut table in table_configs(&config) {
            let name = std::mem::take(&mut table.name);
            table.name = format!("{}/{name}", config.name);
            tables.push((name, find(&table)?));
        }
        let bias = config.model.bias.then_some(BIAS_TABLE);
        let client = Client::remote(tables, features(&config), bias)?;
        Ok(Model { config, client })
    }

    fn from_tables(config: Config, tables: Vec<Table>) -> Result<Self, LearnError> {
        let bias = config.model.bias.then_some(BIAS_TABLE);
        let tables = tables.into_iter().map(Arc::new).collect();
        let client = Client::embedded(tables, features(&config), bias)?;
        Ok(Model { config, client })
    }

    /// Are its tables on servers?
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.client.is_remote()
    }

    /// Opens a saved model and verifies every byte of it.
    pub fn load(path: &Path) -> Result<Self, LearnError> {
        let checkpoint = Checkpoint::open(path).map_err(|error| explain_no_model(error, path))?;
        Self::from_checkpoint(&checkpoint, path)
    }

    /// The model in an open checkpoint.
    pub fn from_checkpoint(checkpoint: &Checkpoint, path: &Path) -> Result<Self, LearnError> {
        let config = config_of(checkpoint, path)?;
        check_tables(checkpoint, &config, path)?;
        let names = checkpoint.tables().iter().map(|table| &table.name);
        let tables = names.map(|name| checkpoint.load_table(name)).collect::<Result<Vec<_>, _>>()?;
        Self::from_tables(config, tables)
    }

    /// Writes the model to a directory; whatever was there stays whole until the new one is. Where its tables are makes no
    /// difference to what is saved, but for the order of rows.
    pub fn save(&self, path: &Path, blobs: &[(&str, Vec<u8>)]) -> Result<(), LearnError> {
        let mut writer = CheckpointWriter::create(path)?;
        let configs = table_configs(&self.config);
        for (number, name) in self.client.table_names().iter().enumerate() {
            let config = configs.iter().find(|config| config.name == *name);
            self.client.save_table(number, config, &mut writer).map_err(of_table)?;
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

    /// The tables of the features, and the bias. The methods below are about tables in this process.
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

    /// An encoder for the model's spec; with optional labels, for prediction, it needs no weights either.
    pub fn encoder(&self, label: LabelUse, down_sample: bool) -> Result<Arc<Encoder>, SampleError> {
        encoder(&self.config, label, down_sample)
    }

    /// Rows over all tables in this process.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.client.tables().iter().map(|table| table.len() as u64).sum()
    }

    /// Bytes of all tables in this process, index and rows.
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        self.client.tables().iter().map(|table| table.bytes()).sum()
    }

    /// Rows and bytes of memory over all tables, wherever they are.
    pub fn size(&self) -> Result<(u64, u64), LearnError> {
        let (mut rows, mut bytes) = (0, 0);
        for number in 0..self.client.table_names().len() {
            let size = self.client.size(number)?;
            (rows, bytes) = (rows + size.0, bytes + size.1);
        }
        Ok((rows, bytes))
    }

    /// Bytes of memory of each table, wherever it is.
    pub(crate) fn table_sizes(&self) -> Result<Vec<(String, u64)>, LearnError> {
        let names = self.client.table_names().iter().enumerate();
        names.map(|(number, name)| Ok((name.clone(), self.client.size(number)?.1))).collect()
    }
}

/// The error of a table; that of the store stays one of the store.
fn of_table(error: ClientError) -> LearnError {
    match error {
        ClientError::Store(error) => error.into(),
        error => error.into(),
    }
}

/// As [`Model::encoder`], before there is a model.
pub(crate) fn encoder(
    config: &Config,
    label: LabelUse,
    down_sample: bool,
) -> Result<Arc<Encoder>, SampleError> {
    let missing = &config.data.reading.missing;
    let mut spec = config.spec();
    if label == LabelUse::Optional {
        spec.weight = None;
    }
    Encoder::new(&spec, &EncodeOptions { missing, label, down_sample }).map(Arc::new)
}

/// Per feature, its table.
fn features(config: &Config) -> impl Iterator<Item = (&str, &str)> {
    config.feature.iter().map(|feature| (feature.name.as_str(), feature.table()))
}

/// The tables that a configuration needs, that of the bias last.
fn table_configs(config: &Config) -> Vec<TableConfig> {
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
    let table = |name: &&str| {
        // Tables differ in their seed, or equal keys would start alike in all of them.
        let seed = key::hash(name.as_bytes(), config.seed);
        let packing = config.model.packing;
        TableConfig { seed, budget_bytes, packing, ..TableConfig::new(*name, blocks.clone()) }
    };
    let mut tables: Vec<TableConfig> = names.iter().map(table).collect();
    if config.model.bias {
        tables.push(TableConfig::new(BIAS_TABLE, vec![linear]));
    }
    tables
}

/// The configuration of a saved model.
pub(crate) fn config_of(checkpoint: &Checkpoint, path: &Path) -> Result<Config, LearnError> {
    if !checkpoint.blobs().iter().any(|blob| blob.name == CONFIG_BLOB) {
        return Err(other_kind(checkpoint, path));
    }
    let text = checkpoint.blob(CONFIG_BLOB)?;
    let text = String::from_utf8(text)
        .map_err(|_| LearnError::Model { path: path.into(), reason: format!("{CONFIG_BLOB} is not text") })?;
    Config::parse(&text, &path.join(CONFIG_BLOB), "model")
}

/// The tables that its configuration needs must be in a saved model, with rows as it needs them.
fn check_tables(checkpoint: &Checkpoint, config: &Config, path: &Path) -> Result<(), LearnError> {
    for needed in table_configs(config) {
        let (name, dim) = (&needed.name, needed.dim());
        let reason = match checkpoint.tables().iter().find(|table| table.name == *name) {
            Some(table) if table.dim == dim => continue,
            Some(table) => format!("table {name:?} has dim {}, the model needs {dim}", table.dim),
            None => format!("it has no table {name:?}, which its {CONFIG_BLOB} needs"),
        };
        return Err(LearnError::Model { path: path.into(), reason });
    }
    Ok(())
}
