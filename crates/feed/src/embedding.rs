//! The tables of an embedding, and which feature reads which and how: lookups and pushes. Knows neither the source of
//! minibatches nor what pooled rows mean to a model.

use std::sync::{Arc, Mutex, PoisonError};

use sanderling_client::{
    AheadFeature, Client, ClientError, Fault, FeatureReader, FeatureStats, FeatureWatch, Feedable, Floats,
    Lookup, RemoteTable, Session, Stop,
};
use sanderling_hub::FedFeature;
use sanderling_observe::LatencySummary;
use sanderling_sample::{PackedBatch, Rows};
use sanderling_store::{Absent, Table};

use crate::error::FeedError;
use crate::features::{Feature, Features};
use crate::fed::{PoolAt, PooledAt, Ways, hub_bytes, servers_bytes, trainer_bytes};
use crate::looked_up::LookedUp;
use crate::minibatch::Minibatch;
use crate::pooled::Pooled;
use crate::pushes::Pushes;
use crate::recycle::{Recycled, Recycler};
use crate::sampled::{Sampled, column};

/// Pushes that may be outstanding.
pub const PUSHES_MAX: usize = 1024;
/// Tables in this process that are small together: their rows are in the caches of a processor.
const SMALL_BYTES_MAX: u64 = 16 << 20;
/// Lookups and pooled rows that are kept for use again: more than a queue and its pushes usually hold.
const KEPT: usize = 64;

/// Options of an [`Embedding`].
#[derive(Debug, Clone, Copy)]
pub struct EmbeddingOptions {
    /// The value of a key without a row. With zeros its gradient is not pushed, so it gets no row.
    pub absent: Absent,
    /// Pushes that may be outstanding, at most [`PUSHES_MAX`]: so many of the last ones a lookup may miss. With 0 a push
    /// returns when it has been applied.
    pub pushes: usize,
    /// Where rows of tables on servers are pooled. With [`Absent::Zero`], and for tables that several features read,
    /// always at the trainer.
    pub pool_at: PoolAt,
}

impl Default for EmbeddingOptions {
    fn default() -> EmbeddingOptions {
        EmbeddingOptions { absent: Absent::Init, pushes: 8, pool_at: PoolAt::Auto }
    }
}

/// Tables and the features that read them. Cheap to share between threads.
#[derive(Debug)]
pub struct Embedding {
    client: Arc<Client>,
    /// The tables, if they are in this process.
    tables: Vec<Arc<Table>>,
    features: Arc<Features>,
    absent: Absent,
    pool_at: PoolAt,
    ways: Arc<Ways>,
    pushes: Pushes,
    waits_for_pushes: bool,
    lookups: Arc<Recycler<Lookup>>,
    floats: Arc<Recycler<Floats>>,
    sessions: Mutex<Vec<Session>>,
    /// The columns that the features read in minibatches of the names seen last.
    columns: Mutex<Option<Columns>>,
    /// Follows rows of features from one look to the next.
    feature_reader: Mutex<FeatureReader>,
}

/// The columns that features read in minibatches of these names.
#[derive(Debug)]
struct Columns {
    names: Arc<[String]>,
    columns: Arc<[usize]>,
}

impl Embedding {
    /// Over tables in this process.
    pub fn embedded(
        tables: Vec<Arc<Table>>,
        features: Vec<Feature>,
        options: EmbeddingOptions,
    ) -> Result<Arc<Embedding>, FeedError> {
        let shapes: Vec<(String, usize)> =
            tables.iter().map(|table| (table.name().to_owned(), table.dim())).collect();
        let kept = tables.clone();
        Embedding::new(&shapes, kept, features, options, |pairs| Client::embedded(tables, pairs, None))
    }

    /// Over tables on servers.
    pub fn remote(
        tables: Vec<RemoteTable>,
        features: Vec<Feature>,
        options: EmbeddingOptions,
    ) -> Result<Arc<Embedding>, FeedError> {
        let shapes: Vec<(String, usize)> =
            tables.iter().map(|table| (table.name().to_owned(), table.dim())).collect();
        let named = tables.into_iter().map(|table| (table.name().to_owned(), table)).collect();
        Embedding::new(&shapes, Vec::new(), features, options, |pairs| Client::remote(named, pairs, None))
    }

    fn new(
        shapes: &[(String, usize)],
        tables: Vec<Arc<Table>>,
        features: Vec<Feature>,
        options: EmbeddingOptions,
        client: impl FnOnce(Vec<(&str, &str)>) -> Result<Client, ClientError>,
    ) -> Result<Arc<Embedding>, FeedError> {
        if options.pushes > PUSHES_MAX {
            let reason = format!("{} outstanding pushes: 0 to {PUSHES_MAX} are possible", options.pushes);
            return Err(FeedError::Option { option: "pushes", reason });
        }
        let mut pairs = Vec::new();
        for feature in &features {
            let Some((table, _)) = shapes.get(feature.table) else {
                let (name, table, tables) = (&feature.name, feature.table, shapes.len());
                let reason = format!("{name:?} reads table number {table}, but there are {tables} tables");
                return Err(FeedError::Option { option: "features", reason });
            };
            pairs.push((feature.name.as_str(), table.as_str()));
        }
        let client = Arc::new(client(pairs)?);
        let features = Arc::new(Features::new(features, shapes.iter().map(|shape| shape.1).collect()));
        let ways = Arc::new(Ways::default());
        Ok(Arc::new(Embedding {
            pushes: Pushes::start(
                Arc::clone(&client),
                options.pushes,
                Arc::clone(&features),
                Arc::clone(&ways),
            ),
            waits_for_pushes: options.pushes == 0,
            client,
            tables,
            features,
            absent: options.absent,
            // Keys that are to stay without a row would get one from the servers.
            pool_at: if options.absent == Absent::Zero { PoolAt::Trainer } else { options.pool_at },
            ways,
            lookups: Recycler::new(KEPT),
            floats: Recycler::new(KEPT),
            sessions: Mutex::new(Vec::new()),
            columns: Mutex::new(None),
            feature_reader: Mutex::default(),
        }))
    }

    /// The numbers of each feature, from sampled minibatches whose rows were looked up for training.
    #[must_use]
    pub fn feature_stats(&self) -> Vec<FeatureStats> {
        let mut reader = self.feature_reader.lock().unwrap_or_else(PoisonError::into_inner);
        self.client.features().stats(&mut reader, &self.tables)
    }

    /// The counts of the keys of features, to be saved and compared.
    #[must_use]
    pub fn feature_watch(&self) -> &FeatureWatch {
        self.client.features()
    }

    /// The features, in order.
    #[must_use]
    pub fn features(&self) -> &[Feature] {
        self.features.all()
    }

    /// The width of a feature's rows.
    #[must_use]
    pub fn dim(&self, feature: usize) -> usize {
        self.features.dim(feature)
    }

    /// The width of each table's rows.
    #[must_use]
    pub fn table_dims(&self) -> &[usize] {
        self.features.table_dims()
    }

    /// Columns of the pooled rows: those of all pooled features, side by side in order.
    #[must_use]
    pub fn width(&self) -> usize {
        self.features.width()
    }

    /// The features with the position of each.
    pub(crate) fn layout(&self) -> &Features {
        &self.features
    }

    pub(crate) fn pushes(&self) -> &Pushes {
        &self.pushes
    }

    /// Whether keys without a row stay without one.
    pub(crate) fn forgets_missing(&self) -> bool {
        self.absent == Absent::Zero
    }

    /// Whether the rows of a feature whose keys a hub feeds can be pooled by the servers of its table here. The error says, for
    /// people, why not and what to do.
    pub(crate) fn check_fed(&self, fed: &FedFeature) -> Result<(), String> {
        let Some(feature) = self.features().iter().find(|feature| feature.name == fed.feature) else {
            return Err("this queue does not look it up; give its embedding this feature".to_owned());
        };
        let Some(table) = self.client.remote_tables().get(feature.table) else {
            return Err("its table is in this process; have it on those servers".to_owned());
        };
        if table.name() != fed.table {
            return Err(format!(
                "here it reads table {:?}; name the same table there and here",
                table.name()
            ));
        }
        let pooling = feature.pooling.name();
        if pooling != fed.pooling {
            let there = &fed.pooling;
            return Err(format!("its pooling is {there:?} there and {pooling:?} here; say the same"));
        }
        let shares = |other: &&Feature| other.table == feature.table && other.name != feature.name;
        match self.features().iter().find(shares) {
            Some(other) => {
                let other = &other.name;
                Err(format!("here feature {other:?} reads that table, too, and a row has one update of both"))
            }
            None => Ok(()),
        }
    }

    /// Which columns of minibatches with these names the features read.
    ///
    /// # Errors
    /// A feature that is not among them.
    pub fn columns(&self, names: &Arc<[String]>) -> Result<Arc<[usize]>, FeedError> {
        let mut known = self.columns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*known
            && Arc::ptr_eq(&known.names, names)
        {
            return Ok(Arc::clone(&known.columns));
        }
        let columns = self.features().iter().map(|feature| column(names, &feature.name));
        let columns: Arc<[usize]> = columns.collect::<Result<Vec<_>, _>>()?.into();
        *known = Some(Columns { names: Arc::clone(names), columns: Arc::clone(&columns) });
        Ok(columns)
    }

    /// Looks up and pools the rows of a minibatch, without waiting for pushes.
    ///
    /// Up to [`EmbeddingOptions::pushes`] of the last pushes may be missed, or none after [`Embedding::finish`].
    ///
    /// Features that a hub has fed are requested by their number, once. Afterwards, or if a server has forgotten
    /// them, they are looked up by their keys, which come from the hub. Features that were fed from here are looked up
    /// once more by their keys if a server has forgotten them.
    ///
    /// # Errors
    /// [`FeedError::Late`] if the hub does not have the keys any more.
    pub fn look_up(self: &Arc<Self>, sampled: Arc<Recycled<Sampled>>) -> Result<LookedUp, FeedError> {
        self.pushes.check_process()?;
        let Some(ahead) = &sampled.ahead else { return self.look_up_by_keys(sampled, || Ok(None)) };
        if ahead.claim() {
            match self.look_up_in(Arc::clone(&sampled), None, true, self.pool_at) {
                Err(error) if is_forgotten(&error) => {}
                done => return done,
            }
        }
        self.look_up_by_keys(Arc::clone(&sampled), || ahead.whole().map(Some))
    }

    fn look_up_by_keys(
        self: &Arc<Self>,
        sampled: Arc<Recycled<Sampled>>,
        whole: impl Fn() -> Result<Option<PackedBatch>, FeedError>,
    ) -> Result<LookedUp, FeedError> {
        match self.look_up_in(Arc::clone(&sampled), whole()?, false, self.pool_at) {
            Err(error) if is_forgotten(&error) => self.look_up_in(sampled, whole()?, false, PoolAt::Trainer),
            done => done,
        }
    }

    /// With the keys of the whole minibatch if they are there; by the number of what was fed, if so told.
    fn look_up_in(
        self: &Arc<Self>,
        sampled: Arc<Recycled<Sampled>>,
        whole: Option<PackedBatch>,
        by_number: bool,
        pool_at: PoolAt,
    ) -> Result<LookedUp, FeedError> {
        let columns = self.columns(&sampled.names)?;
        let mut lookup = self.lookups.take(|| self.client.lookup());
        lookup.read_columns(&columns);
        if self.forgets_missing() {
            lookup.note_missing();
        }
        let applied = self.pushes.applied();
        let rows = whole.as_ref().map_or_else(|| sampled.rows(), PackedBatch::rows);
        let ahead = if by_number { self.ahead_of(&sampled, &rows, &columns) } else { Vec::new() };
        let mut pooled = Pooled::new(&self.features, &self.floats, &rows, &columns);
        let each = |lookup: &Lookup, feature| pooled.add(&self.features, &rows, &columns, lookup, feature);
        let pulled = self.with_session(&mut lookup, |client, lookup| {
            let choose = |feedable: &Feedable| {
                if pool_at == PoolAt::Trainer {
                    return None;
                }
                let pooling = self.features()[feedable.feature].pooling;
                let chosen = pool_at.choose(pooling, feedable);
                if chosen.is_some() {
                    self.ways.by_servers(servers_bytes(feedable));
                }
                chosen
            };
            client.pull_or_feed(&rows, self.absent, lookup, &ahead, choose, each)
        });
        let missing = pulled?;
        pooled.add_fed(&self.features, &lookup);
        if self.client.is_remote() {
            self.note_trainer(&lookup);
        }
        let minibatch = Minibatch { sampled, whole, columns };
        Ok(LookedUp::new(Arc::clone(self), minibatch, lookup, pooled, (missing, applied)))
    }

    /// The features of which a hub has fed the keys.
    fn ahead_of<'a>(
        &self,
        sampled: &'a Sampled,
        rows: &Rows<'_>,
        columns: &[usize],
    ) -> Vec<AheadFeature<'a>> {
        let Some(ahead) = &sampled.ahead else { return Vec::new() };
        let mut all = Vec::new();
        for (feature, &column) in columns.iter().enumerate() {
            let Some(keys) = ahead.fed.keys_of(column) else { continue };
            let number = (ahead.fed.batch, column as u32);
            let placement_version = ahead.fed.placement_version;
            all.push(AheadFeature { feature, number, keys, placement_version, since: ahead.since });
            self.ways.by_hub(hub_bytes(rows.len(), self.features.dim(feature), ahead.fed.servers));
        }
        all
    }

    /// Whether all tables are in this process and small, so that a lookup waits for nothing.
    pub(crate) fn is_small(&self) -> bool {
        let bytes = |tables: &[Arc<Table>]| tables.iter().map(|table| table.bytes()).sum::<u64>();
        !self.tables.is_empty() && bytes(&self.tables) <= SMALL_BYTES_MAX
    }

    /// Counts features whose gradients were left out.
    pub(crate) fn note_late(&self, features: usize) {
        self.ways.late(features);
    }

    /// Counts the features that are pooled here, and their tables' bytes once.
    fn note_trainer(&self, lookup: &Lookup) {
        let mut counted = vec![false; self.table_dims().len()];
        for (at, feature) in self.features().iter().enumerate() {
            if lookup.fed().iter().any(|fed| fed.feature() == at) {
                continue;
            }
            let again = std::mem::replace(&mut counted[feature.table], true);
            let table = lookup.table(at);
            self.ways.by_trainer(if again { 0 } else { trainer_bytes(table.distinct(), table.dim()) });
        }
    }

    /// How features of tables on servers were looked up so far.
    #[must_use]
    pub fn pooled_at(&self) -> PooledAt {
        self.ways.total()
    }

    /// Works with connections that no other thread uses.
    fn with_session<T>(
        &self,
        lookup: &mut Lookup,
        work: impl FnOnce(&Client, &mut Lookup) -> Result<T, ClientError>,
    ) -> Result<T, FeedError> {
        let idle = self.sessions.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut session = match idle {
            Some(session) => Some(session),
            None => self.client.session()?,
        };
        lookup.swap_session(&mut session);
        let result = work(&self.client, lookup);
        lookup.swap_session(&mut session);
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).extend(session);
        Ok(result?)
    }

    /// The stop check of waits here.
    pub(crate) fn stop(&self) -> Option<&Stop> {
        self.client.stop()
    }

    /// Waits until all pushes have been applied; an error is that of one of them.
    pub fn finish(&self) -> Result<(), FeedError> {
        self.pushes.finish()
    }

    /// Waits for all pushes and ignores their failures.
    pub(crate) fn wait(&self) {
        drop(self.pushes.wait());
    }

    /// The first failure of a push since the last report; does not wait.
    pub fn check_pushed(&self) -> Result<(), FeedError> {
        self.pushes.check()
    }

    /// Whether a push returns when it has been applied.
    pub(crate) fn waits_for_pushes(&self) -> bool {
        self.waits_for_pushes
    }

    /// Pushes that have been handed over.
    #[must_use]
    pub fn pushed(&self) -> u64 {
        self.pushes.begun()
    }

    /// Pushes that have been applied, or have failed.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.pushes.applied()
    }

    /// How long pushes took, from the call to the answer.
    #[must_use]
    pub fn push_latency(&self) -> LatencySummary {
        self.pushes.latency().summary()
    }
}

/// Whether servers do not know the keys that were fed, or not any more: they were started anew, or rows have moved.
fn is_forgotten(error: &FeedError) -> bool {
    let FeedError::Client(ClientError::Refused { fault, .. }) = error else { return false };
    matches!(fault, Fault::UnknownBatch | Fault::NotHere { .. })
}
