//! A model: its configuration and its tables, in memory and as a directory on disk. Knows no training loop.

use std::path::Path;
use std::sync::Arc;

use sanderling_client::{Client, ClientError, Cluster, RemoteTable};
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, NoteName, SampleError, Side, key};
use sanderling_store::{Block, Checkpoint, CheckpointWriter, Init, Table, TableConfig};

use crate::config::{Config, EVERY_TABLE, TableOptions};
use crate::error::LearnError;
use crate::feature_snapshots::{self, FEATURES_BLOB, feature_snapshots};
use crate::key_drift::KeyDrift;
use crate::model_diagnostics::{explain_no_model, other_kind};
use crate::names::{NAMES_BLOB, NameCollector};

/// The table that holds the constant term; its one row has [`sanderling_client::CONSTANT_KEY`].
pub const BIAS_TABLE: &str = "(bias)";
/// The configuration inside a model's directory.
pub(crate) const CONFIG_BLOB: &str = "config.toml";

/// A model; while it is trained its tables may be on servers, else they are in this process.
#[derive(Debug)]
pub struct Model {
    config: Config,
    client: Client,
    /// Collects the names of keys while the model is trained.
    names: Option<Arc<NameCollector>>,
    /// Compares the keys of requests with those of the training while the model is served.
    drift: Option<Arc<KeyDrift>>,
}

impl Model {
    /// An untrained model. Quantile boundaries must be fitted.
    pub fn new(config: Config) -> Result<Self, LearnError> {
        Self::new_in(config, |_, table| Ok(Table::new(table)?))
    }

    /// An untrained model with the tables that `create` makes.
    pub(crate) fn new_in(
        config: Config,
        mut create: impl FnMut(&Config, TableConfig) -> Result<Table, LearnError>,
    ) -> Result<Self, LearnError> {
        let tables = table_configs(&config).into_iter().map(|table| create(&config, table));
        let tables = tables.collect::<Result<_, _>>()?;
        Ok(Self::from_tables(config, tables)?.collecting_names())
    }

    /// An untrained model with tables `RUN/TABLE` on parameter servers; replaces earlier ones of this name.
    pub fn on_servers(config: Config, cluster: &Arc<Cluster>) -> Result<Self, LearnError> {
        let model = Self::remote(config, |table| {
            RemoteTable::drop_named(cluster, &table.name)?;
            Ok(RemoteTable::create(cluster, table)?)
        });
        Ok(model?.collecting_names())
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
        model.import(checkpoint, |_| true)?;
        Ok(model)
    }

    /// A model that begins with the rows of a saved one, in new tables; tables that the saved model lacks are empty.
    ///
    /// The rows must have the same dims and kinds of optimizers.
    pub(crate) fn continued(
        config: Config,
        servers: Option<&Arc<Cluster>>,
        checkpoint: &Checkpoint,
        path: &Path,
        mut create: impl FnMut(&Config, TableConfig) -> Result<Table, LearnError>,
    ) -> Result<Self, LearnError> {
        let is_saved = |name: &str| checkpoint.tables().iter().any(|table| table.name == name);
        for table in table_configs(&config).iter().filter(|table| is_saved(&table.name)) {
            check_table(checkpoint, table, path)?;
        }
        let Some(cluster) = servers else {
            let mut table = |table: TableConfig| -> Result<Table, LearnError> {
                let mut table = create(&config, table)?;
                let name = table.name().to_owned();
                if is_saved(&name) {
                    checkpoint.load_rows(&name, &mut table, |_| true)?;
                }
                Ok(table)
            };
            let tables = table_configs(&config).into_iter().map(&mut table).collect::<Result<_, _>>()?;
            return Self::from_tables(config, tables)?.begun_from(checkpoint, path);
        };
        let model = Self::on_servers(config, cluster)?;
        model.import(checkpoint, is_saved)?;
        model.begun_from(checkpoint, path)
    }

    /// Imports the saved rows of the tables that `chooses` accepts.
    fn import(&self, checkpoint: &Checkpoint, chooses: impl Fn(&str) -> bool) -> Result<(), LearnError> {
        for (number, config) in table_configs(&self.config).iter().enumerate() {
            if chooses(&config.name) {
                self.client.import_table(number, checkpoint, &config.name).map_err(of_table)?;
            }
        }
        Ok(())
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
        Ok(Model { config, client, names: None, drift: None })
    }

    fn from_tables(config: Config, tables: Vec<Table>) -> Result<Self, LearnError> {
        Self::from_shared_tables(config, tables.into_iter().map(Arc::new).collect())
    }

    pub(crate) fn from_shared_tables(config: Config, tables: Vec<Arc<Table>>) -> Result<Self, LearnError> {
        let bias = config.model.bias.then_some(BIAS_TABLE);
        let client = Client::embedded(tables, features(&config), bias)?;
        Ok(Model { config, client, names: None, drift: None })
    }

    /// Compares the keys that are scored from now on with those that the saved model was trained with.
    pub(crate) fn served(mut self, checkpoint: &Checkpoint, path: &Path) -> Result<Self, LearnError> {
        let trained = feature_snapshots(checkpoint, path)?;
        let names = self.config.feature.iter().map(|feature| feature.name.as_str());
        self.drift = Some(Arc::new(KeyDrift::new(names, &trained)));
        Ok(self)
    }

    /// The keys of requests against those of the training, of a model that is served.
    #[must_use]
    pub fn drift(&self) -> Option<&KeyDrift> {
        self.drift.as_deref()
    }

    /// Has the names of keys collected, as the configuration says.
    fn collecting_names(mut self) -> Self {
        if !self.config.names.is_empty() {
            let encoded = self.config.feature.iter().map(|feature| feature.name.as_str());
            self.names = Some(Arc::new(NameCollector::new(&self.config.names, encoded)));
        }
        self
    }

    /// Goes on collecting names from those that were saved.
    pub(crate) fn with_names_of(self, checkpoint: &Checkpoint, path: &Path) -> Result<Self, LearnError> {
        let model = self.collecting_names();
        if let Some(names) = &model.names
            && checkpoint.blobs().iter().any(|blob| blob.name == NAMES_BLOB)
        {
            let restored = names.restore(&checkpoint.blob(NAMES_BLOB)?);
            restored.map_err(|reason| LearnError::Model { path: path.join(NAMES_BLOB), reason })?;
        }
        Ok(model)
    }

    /// [`Model::with_names_of`] the earlier state of the run, with the distributions of keys until then.
    pub(crate) fn going_on_from(self, checkpoint: &Checkpoint, path: &Path) -> Result<Self, LearnError> {
        self.client.features().resume(&feature_snapshots(checkpoint, path)?);
        self.with_names_of(checkpoint, path)
    }

    /// [`Model::with_names_of`] another model, with whose keys those of the training are compared.
    fn begun_from(self, checkpoint: &Checkpoint, path: &Path) -> Result<Self, LearnError> {
        self.client.features().compare_with(&feature_snapshots(checkpoint, path)?.features);
        self.with_names_of(checkpoint, path)
    }

    /// The names of keys that were collected.
    pub(crate) fn names(&self) -> Option<&Arc<NameCollector>> {
        self.names.as_ref()
    }

    /// An encoder of training rows, which tells the names of keys.
    pub(crate) fn training_encoder(&self) -> Result<Arc<Encoder>, SampleError> {
        let encoder = new_encoder(&self.config, Purpose::Train)?;
        Ok(Arc::new(match &self.names {
            Some(names) => encoder.noting(&(Arc::clone(names) as Arc<dyn NoteName>)),
            None => encoder,
        }))
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

    /// The model of a run that goes on, with the tables that `load` makes of the checkpoint's.
    pub(crate) fn resumed(
        config: Config,
        checkpoint: &Checkpoint,
        path: &Path,
        mut load: impl FnMut(&Config, TableConfig) -> Result<Table, LearnError>,
    ) -> Result<Self, LearnError> {
        check_tables(checkpoint, &config, path)?;
        let tables = table_configs(&config).into_iter().map(|table| load(&config, table));
        let tables = tables.collect::<Result<_, _>>()?;
        Self::from_tables(config, tables)?.going_on_from(checkpoint, path)
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
        if let Some(names) = &self.names {
            writer.blob(NAMES_BLOB, &names.to_blob())?;
        }
        let features = self.client.features().snapshots();
        if !features.features.is_empty() {
            writer.blob(FEATURES_BLOB, &feature_snapshots::to_blob(&features))?;
        }
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

    /// An encoder for the model's spec.
    pub fn encoder(&self, purpose: Purpose) -> Result<Arc<Encoder>, SampleError> {
        encoder(&self.config, purpose)
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

/// Use of the rows that an encoder reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Training: without held-out rows, negatives down-sampled.
    Train,
    /// Scoring of the rows that are trained on, all of them.
    ScoreTrain,
    /// Validation: the held-out rows where `data.valid` holds rows out, else all.
    Valid,
    /// Scoring of labelled files of any origin.
    Score,
    /// Prediction: without weights, labels may be missing.
    Predict,
}

/// As [`Model::encoder`], before there is a model.
pub(crate) fn encoder(config: &Config, purpose: Purpose) -> Result<Arc<Encoder>, SampleError> {
    new_encoder(config, purpose).map(Arc::new)
}

fn new_encoder(config: &Config, purpose: Purpose) -> Result<Encoder, SampleError> {
    let missing = &config.data.reading.missing;
    let mut spec = config.spec();
    let label = if purpose == Purpose::Predict { LabelUse::Optional } else { LabelUse::Required };
    if label == LabelUse::Optional {
        spec.weight = None;
    }
    let options = EncodeOptions { missing, label, down_sample: purpose == Purpose::Train };
    let encoder = Encoder::new(&spec, &options)?;
    let side = match purpose {
        Purpose::Train | Purpose::ScoreTrain => Side::Train,
        Purpose::Valid => Side::Valid,
        Purpose::Score | Purpose::Predict => return Ok(encoder),
    };
    let holdout = config.data.holdout.as_ref();
    Ok(match holdout {
        Some(holdout) => encoder.on_side(holdout, config.seed, side),
        None => encoder,
    })
}

/// Per feature, its table.
fn features(config: &Config) -> impl Iterator<Item = (&str, &str)> {
    config.feature.iter().map(|feature| (feature.name.as_str(), feature.table()))
}

/// The tables that a configuration needs, that of the bias last.
pub(crate) fn table_configs(config: &Config) -> Vec<TableConfig> {
    let mut names: Vec<&str> = Vec::new();
    for feature in &config.feature {
        if !names.contains(&feature.table()) {
            names.push(feature.table());
        }
    }
    let factors = config.factors();
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
        let table = TableConfig { seed, budget_bytes, ..TableConfig::new(*name, blocks.clone()) };
        let options = config.table.get(*name).or_else(|| config.table.get(EVERY_TABLE));
        let min_count = config.feature.iter().find(|feature| feature.table() == *name);
        let min_count = min_count.and_then(|feature| feature.min_count).unwrap_or_default();
        options.unwrap_or(&TableOptions::default()).apply(min_count, table)
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
pub(crate) fn check_tables(checkpoint: &Checkpoint, config: &Config, path: &Path) -> Result<(), LearnError> {
    table_configs(config).iter().try_for_each(|needed| check_table(checkpoint, needed, path))
}

fn check_table(checkpoint: &Checkpoint, needed: &TableConfig, path: &Path) -> Result<(), LearnError> {
    let (name, dim) = (&needed.name, needed.dim());
    let reason = match checkpoint.tables().iter().find(|table| table.name == *name) {
        Some(table) if table.dim == dim => return Ok(()),
        Some(table) => format!("table {name:?} has dim {}, the model needs {dim}", table.dim),
        None => format!("it has no table {name:?}, which its {CONFIG_BLOB} needs"),
    };
    Err(LearnError::Model { path: path.into(), reason })
}
