//! The tables of a model, in this process or on servers, and which feature reads which. Does not know what rows mean.

use std::sync::Arc;

use sanderling_sample::Rows;
use sanderling_store::{Absent, Checkpoint, CheckpointWriter, Pooling, PushScale, Table, TableConfig};

use crate::backend::{LocalTables, RowBackend, ServerTables};
use crate::error::ClientError;
use crate::feature_watch::FeatureWatch;
use crate::fed::{AheadFeature, Feedable};
use crate::lookup::Lookup;
use crate::remote::{RemoteTable, check_tables};
use crate::session::{LostFed, Session};
use crate::step::SyncGroup;
use crate::stop::Stop;

/// The tables of a model, and which feature reads which. Cheap to share: workers bring their own [`Lookup`].
#[derive(Debug)]
pub struct Client {
    backend: Box<dyn RowBackend>,
    /// By which features know the tables.
    names: Vec<String>,
    column_tables: Vec<usize>,
    constant: Option<usize>,
    features: Arc<FeatureWatch>,
}

impl Client {
    /// A client over tables in this process. `features` are `(feature, table)` names in the order of a batch's columns;
    /// `constant` names a table whose row [`crate::CONSTANT_KEY`] every minibatch gets (a bias).
    pub fn embedded<'a>(
        tables: Vec<Arc<Table>>,
        features: impl IntoIterator<Item = (&'a str, &'a str)>,
        constant: Option<&'a str>,
    ) -> Result<Self, ClientError> {
        let names: Vec<String> = tables.iter().map(|table| table.name().to_owned()).collect();
        // Features name their tables, so that two of one name would all be the first.
        let is_other = |at: usize| {
            let first = names.iter().position(|name| *name == names[at]).unwrap_or(at);
            !Arc::ptr_eq(&tables[first], &tables[at])
        };
        if let Some(at) = (0..tables.len()).find(|&at| is_other(at)) {
            return Err(ClientError::TwinTables { table: names[at].clone() });
        }
        Client::new(Box::new(LocalTables(tables)), names, features, constant)
    }

    /// A client over tables on the servers of one cluster, each with the name by which features know it.
    pub fn remote<'a>(
        tables: Vec<(String, RemoteTable)>,
        features: impl IntoIterator<Item = (&'a str, &'a str)>,
        constant: Option<&'a str>,
    ) -> Result<Self, ClientError> {
        let (names, tables): (Vec<String>, Vec<RemoteTable>) = tables.into_iter().unzip();
        if let Some(first) = tables.first() {
            check_tables(first.cluster(), &tables)?;
        }
        Client::new(Box::new(ServerTables::new(tables)), names, features, constant)
    }

    fn new<'a>(
        backend: Box<dyn RowBackend>,
        names: Vec<String>,
        features: impl IntoIterator<Item = (&'a str, &'a str)>,
        constant: Option<&'a str>,
    ) -> Result<Self, ClientError> {
        let find = |feature: &str, name: &str| {
            names.iter().position(|other| other == name).ok_or_else(|| ClientError::UnknownTable {
                feature: feature.to_string(),
                table: name.to_string(),
            })
        };
        let features =
            features.into_iter().map(|(feature, name)| Ok((feature.to_owned(), find(feature, name)?)));
        let features = features.collect::<Result<Vec<(String, usize)>, ClientError>>()?;
        let column_tables = features.iter().map(|(_, table)| *table).collect();
        let constant = constant.map(|name| find("(constant)", name)).transpose()?;
        let features = FeatureWatch::new(features, names.clone());
        Ok(Client { backend, names, column_tables, constant, features })
    }

    /// The tables in this process, in the order given; none if they are on servers.
    #[must_use]
    pub fn tables(&self) -> &[Arc<Table>] {
        self.backend.local()
    }

    /// The tables on servers, in the order given; none if they are in this process.
    #[must_use]
    pub fn remote_tables(&self) -> &[RemoteTable] {
        self.backend.remote()
    }

    /// Whether the tables are on servers.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        !self.remote_tables().is_empty()
    }

    /// The names by which features know the tables, in the order given.
    #[must_use]
    pub fn table_names(&self) -> &[String] {
        &self.names
    }

    /// Rows and bytes of memory of the table with this number.
    pub fn size(&self, table: usize) -> Result<(u64, u64), ClientError> {
        self.backend.size(table)
    }

    /// Writes the table with this number to a checkpoint. No client may push meanwhile. The rows of a table on servers are
    /// written with the given configuration, and a table in this process with its own.
    pub fn save_table(
        &self,
        table: usize,
        config: Option<&TableConfig>,
        writer: &mut CheckpointWriter,
    ) -> Result<(), ClientError> {
        self.backend.save(table, config, writer)
    }

    /// Adds the rows of a saved table, by its name in the checkpoint, to the table with this number.
    pub fn import_table(&self, table: usize, checkpoint: &Checkpoint, name: &str) -> Result<(), ClientError> {
        self.backend.import(table, checkpoint, name)
    }

    /// Position of a table, by its number, in the list of a group of synchronous workers.
    ///
    /// A group at servers adds the table to its list.
    pub fn step_table(&self, group: &mut SyncGroup, table: usize) -> Result<usize, ClientError> {
        self.backend.step_table(group, table)
    }

    /// The tables for row-by-row access.
    pub(crate) fn online_tables(&self) -> Result<&[Arc<Table>], ClientError> {
        self.backend.online_tables()
    }

    /// Per feature, its table.
    pub(crate) fn column_tables(&self) -> &[usize] {
        &self.column_tables
    }

    /// The table of the constant.
    pub(crate) fn constant_table(&self) -> Option<usize> {
        self.constant
    }

    /// Room for one minibatch at a time. With tables on servers it also holds the connections of the worker, which are
    /// made when it is used first.
    #[must_use]
    pub fn lookup(&self) -> Lookup {
        let mut lookup = Lookup::new(self.backend.dims().into_iter(), &self.column_tables, self.constant);
        lookup.sampler = Some(self.features.sampler());
        lookup
    }

    /// Numbers of each feature, from sampled minibatches.
    #[must_use]
    pub fn features(&self) -> &Arc<FeatureWatch> {
        &self.features
    }

    /// Pulls a minibatch, and looks at its features if it is sampled. A pull for zeros is none of a training.
    fn pull_sampled(
        &self,
        absent: Absent,
        lookup: &mut Lookup,
        pull: impl FnOnce(&mut Lookup) -> Result<usize, ClientError>,
    ) -> Result<usize, ClientError> {
        let Some(mut sampler) = lookup.sampler.take() else { return pull(lookup) };
        let notes_missing = lookup.notes_missing;
        lookup.notes_missing |= absent == Absent::Init && sampler.draw();
        let pulled = pull(lookup);
        match &pulled {
            Ok(_) if absent == Absent::Init => sampler.note_pull(lookup),
            _ => sampler.pass_over(),
        }
        lookup.notes_missing = notes_missing;
        lookup.sampler = Some(sampler);
        pulled
    }

    /// Looks at the gradients of a sampled minibatch.
    fn note_push(lookup: &mut Lookup) {
        if let Some(mut sampler) = lookup.sampler.take() {
            sampler.note_push(lookup);
            lookup.sampler = Some(sampler);
        }
    }

    /// Connections for [`Lookup::swap_session`], made on first use; `None` for tables in this process.
    pub fn session(&self) -> Result<Option<Session>, ClientError> {
        self.backend.session()
    }

    /// Pulls the rows of a minibatch's distinct keys into `lookup`. Returns how many of them have no row yet.
    pub fn pull(&self, rows: &Rows<'_>, absent: Absent, lookup: &mut Lookup) -> Result<usize, ClientError> {
        self.pull_each(rows, absent, lookup, |_, _| {})
    }

    /// [`Client::pull`] that runs `meanwhile` while servers are waited for.
    ///
    /// With tables in this process `meanwhile` is not run.
    pub fn pull_while(
        &self,
        rows: &Rows<'_>,
        absent: Absent,
        lookup: &mut Lookup,
        meanwhile: impl FnOnce(),
    ) -> Result<usize, ClientError> {
        self.pull_each_while(rows, absent, lookup, |_, _| {}, meanwhile)
    }

    /// [`Client::pull`] that calls `each` with every feature, by its number, once its rows are complete.
    ///
    /// The rows are then still in the cache. After an error some features were shown.
    pub fn pull_each(
        &self,
        rows: &Rows<'_>,
        absent: Absent,
        lookup: &mut Lookup,
        each: impl FnMut(&Lookup, usize),
    ) -> Result<usize, ClientError> {
        self.pull_each_while(rows, absent, lookup, each, || {})
    }

    fn pull_each_while(
        &self,
        rows: &Rows<'_>,
        absent: Absent,
        lookup: &mut Lookup,
        mut each: impl FnMut(&Lookup, usize),
        meanwhile: impl FnOnce(),
    ) -> Result<usize, ClientError> {
        let mut meanwhile = Some(meanwhile);
        let mut once = || meanwhile.take().map_or((), |meanwhile| meanwhile());
        self.pull_sampled(absent, lookup, |lookup| {
            self.backend.pull(rows, absent, lookup, &mut each, &mut once)
        })
    }

    /// [`Client::pull_each`], with the features that `choose` selects fed to the servers and pooled there. Their pooled rows
    /// and gradients are in [`Lookup::fed`], and [`Client::push`] makes the servers distribute the gradients. Tables in this
    /// process are never fed.
    ///
    /// A hub may have fed the features in `ahead`, each the only feature of its table. `rows` then lack their keys, and their
    /// keys without a row are counted with repetitions.
    ///
    /// # Errors
    /// Errors of [`Client::pull`]. [`Fault::UnknownBatch`](sanderling_wire::Fault::UnknownBatch): a server has forgotten the
    /// fed keys; look the minibatch up by its keys instead.
    pub fn pull_or_feed(
        &self,
        rows: &Rows<'_>,
        absent: Absent,
        lookup: &mut Lookup,
        ahead: &[AheadFeature<'_>],
        mut choose: impl FnMut(&Feedable) -> Option<Pooling>,
        mut each: impl FnMut(&Lookup, usize),
    ) -> Result<usize, ClientError> {
        self.pull_sampled(absent, lookup, |lookup| {
            self.backend.pull_or_feed(rows, absent, lookup, ahead, &mut choose, &mut each)
        })
    }

    /// Pushes the gradients that were added up in `lookup` since the pull: one update per distinct key. On servers they
    /// are under way when this returns: the lookup's next pull sees them, and says if they failed, as [`Client::finish`]
    /// does.
    pub fn push(&self, lookup: &mut Lookup, scale: PushScale) -> Result<(), ClientError> {
        self.push_by(1, lookup, scale)
    }

    /// [`Client::push`] by up to this many threads for tables in this process with many keys. Each key belongs to one
    /// thread, so the result does not depend on the number of threads.
    pub fn push_by(&self, threads: usize, lookup: &mut Lookup, scale: PushScale) -> Result<(), ClientError> {
        self.push_each(threads, lookup, &|_| scale)
    }

    /// As [`Client::push_by`], where `scale_of` says by its number what each table's push is scaled by.
    pub fn push_each(
        &self,
        threads: usize,
        lookup: &mut Lookup,
        scale_of: &dyn Fn(usize) -> PushScale,
    ) -> Result<(), ClientError> {
        Client::note_push(lookup);
        self.backend.begin_push(threads, lookup, scale_of)?;
        lookup.session.iter_mut().for_each(Session::send);
        Ok(())
    }

    /// Pushes by its keys what [`Session::take_lost`] of this session has told, without waiting for the answers. The
    /// lookup has the gradients of the keys, by [`Lookup::backward_fed`], and its fed features since the lost push.
    pub fn push_lost(
        &self,
        session: &mut Session,
        lookup: &mut Lookup,
        lost: &LostFed,
        scale_of: &dyn Fn(usize) -> PushScale,
    ) -> Result<(), ClientError> {
        self.backend.begin_push_lost(session, lookup, lost, scale_of)
    }

    /// [`Client::push`] that sends to servers with the lookup's next pull or [`Client::finish`].
    ///
    /// A caller that pulls at once sends half as many messages. A gradient that one table refuses is applied in none.
    pub fn begin_push(&self, lookup: &mut Lookup, scale: PushScale) -> Result<(), ClientError> {
        Client::note_push(lookup);
        self.backend.begin_push(1, lookup, &|_| scale)
    }

    /// The stop check of waits for servers; `None` without servers or without a check.
    #[must_use]
    pub fn stop(&self) -> Option<&Stop> {
        self.backend.stop()
    }

    /// Waits until the servers have applied what was pushed.
    pub fn finish(&self, lookup: &mut Lookup) -> Result<(), ClientError> {
        lookup.session.as_mut().map_or(Ok(()), crate::session::Session::finish)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use sanderling_sample::Batch;
    use sanderling_store::{Init, Optimizer};

    use super::*;
    use crate::feature_watch::FeatureReader;

    const FEATURES: usize = 26;
    const ROWS: usize = 1024;

    /// A model of 26 features, each with a table of its own.
    fn client() -> Client {
        let optimizer = Optimizer::Adagrad { lr: 0.05, eps: 1e-10, initial: 0.1, l2: 0.0 };
        let table = |name: &String| {
            let config = TableConfig::single(name.as_str(), 16, Init::Normal { std: 0.01 }, optimizer);
            Arc::new(Table::new(config).expect("a table"))
        };
        let names: Vec<String> = (0..FEATURES).map(|feature| format!("f{feature}")).collect();
        let tables = names.iter().map(table).collect();
        let pairs = names.iter().map(|name| (name.as_str(), name.as_str()));
        Client::embedded(tables, pairs, None).expect("a client")
    }

    /// A minibatch with a key per row and feature, small keys being frequent.
    fn minibatch(number: u64, first: u64) -> Batch {
        let mut batch = Batch::new(&[false; FEATURES]);
        let mut random = sanderling_random::SplitMix64::new(number);
        for _ in 0..ROWS {
            for feature in 0..FEATURES {
                let bits = random.below(20).max(1);
                let key = first + random.below(1 << bits);
                batch.columns[feature].push(key, 1.0);
            }
            batch.close_row(0.0, 1.0);
        }
        batch
    }

    /// Trains on minibatches, and returns the time of pushes.
    fn train(client: &Client, lookup: &mut Lookup, minibatches: &[Batch]) -> Duration {
        let mut pushes = Duration::ZERO;
        for batch in minibatches {
            let rows = Rows::all(batch);
            client.pull(&rows, Absent::Init, lookup).expect("pulled");
            lookup.grads().for_each(|grads| grads.fill(0.01));
            let began = Instant::now();
            client.push(lookup, PushScale::default()).expect("pushed");
            pushes += began.elapsed();
        }
        pushes
    }

    #[test]
    fn sampled_minibatches_tell_of_features() {
        let client = client();
        let mut lookup = client.lookup();
        let all: Vec<Batch> = (0..80).map(|number| minibatch(number, 0)).collect();
        train(&client, &mut lookup, &all);
        let mut reader = FeatureReader::default();
        let first = client.features().stats(&mut reader, client.tables());
        assert_eq!(first.len(), FEATURES);
        for stats in &first {
            assert!(stats.keys >= 64 * 64, "{stats:?}");
            assert_eq!((stats.readers, &stats.name), (1, &stats.table));
            assert!(stats.admitted.is_some_and(|admitted| admitted > 100), "{stats:?}");
            assert!(stats.unseen_share.is_some_and(|share| (0.01..0.7).contains(&share)), "{stats:?}");
            assert!(stats.hit_share.is_some_and(|share| (0.1..0.9).contains(&share)), "{stats:?}");
            let gradient = stats.gradient_p50.expect("pushed");
            assert!((gradient / 0.04 - 1.0).abs() < 0.2, "{gradient}");
            assert!(stats.norm_p50 < stats.norm_max, "{stats:?}");
            assert!(stats.drift.is_some_and(|drift| drift < 0.1), "{stats:?}");
            assert_eq!((stats.drift_trained, stats.update_norm), (None, None));
        }
        // Another run begins from it, with other keys.
        let next = self::client();
        next.features().compare_with(&client.features().snapshots().features);
        let mut lookup = next.lookup();
        let other: Vec<Batch> = (0..80).map(|number| minibatch(number, 1 << 40)).collect();
        train(&next, &mut lookup, &other);
        let stats = next.features().stats(&mut FeatureReader::default(), next.tables());
        assert!(stats.iter().all(|stats| stats.drift_trained.is_some_and(|drift| drift > 0.25)), "{stats:?}");
        // Rows that were updated since the last look tell how far one update moves them; a lookup that ended still counts.
        train(&client, &mut client.lookup(), &all);
        drop(lookup);
        let second = client.features().stats(&mut reader, client.tables());
        for (first, second) in first.iter().zip(&second) {
            assert!(second.keys >= first.keys);
            assert!(second.update_norm.is_some_and(|norm| norm > 0.0), "{second:?}");
        }
        // A run that goes on has counted before.
        let resumed = self::client();
        resumed.features().resume(&client.features().snapshots());
        assert_eq!(resumed.features().snapshots().features, client.features().snapshots().features);
    }

    /// `cargo test -p sanderling-client --lib -- sampling_costs --ignored --nocapture` prints `docs/results`.
    #[test]
    #[ignore = "a measurement"]
    #[expect(clippy::print_stdout, reason = "what it measures")]
    fn sampling_costs_little() {
        let client = client();
        let all: Vec<Batch> = (0..96).map(|number| minibatch(number, 0)).collect();
        train(&client, &mut client.lookup(), &all);
        for round in 0..3 {
            let mut times = [0.0; 2];
            for (at, time) in times.iter_mut().enumerate() {
                let mut lookup = client.lookup();
                if at == 0 {
                    lookup.sampler = None;
                }
                let began = Instant::now();
                let pushes = train(&client, &mut lookup, &all);
                *time = began.elapsed().as_secs_f64();
                println!(
                    "round {round}, {}: {:.1} ms, pushes {:.1} ms",
                    ["off", "on"][at],
                    *time * 1e3,
                    pushes.as_secs_f64() * 1e3
                );
            }
        }
        // The time that a sampled minibatch takes more.
        let (mut lookup, mut sampled) = (client.lookup(), Duration::ZERO);
        let mut sampler = lookup.sampler.take().expect("made by the client");
        for batch in &all {
            client.pull(&Rows::all(batch), Absent::Init, &mut lookup).expect("pulled");
            lookup.grads().for_each(|grads| grads.fill(0.01));
            let began = Instant::now();
            while !sampler.draw() {}
            sampler.note_pull(&lookup);
            sampler.note_push(&mut lookup);
            sampled += began.elapsed();
        }
        println!("a sampled minibatch: {:.1} us", sampled.as_secs_f64() * 1e6 / all.len() as f64);
    }
}
