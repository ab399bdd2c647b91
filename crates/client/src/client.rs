//! The tables of a model, in this process or on servers, and which feature reads which. Does not know what rows mean.

use std::sync::Arc;

use sanderling_sample::Rows;
use sanderling_store::{Absent, Checkpoint, CheckpointWriter, Pooling, PushScale, Table, TableConfig};

use crate::backend::{LocalTables, RowBackend, ServerTables};
use crate::error::ClientError;
use crate::fed::{AheadFeature, Feedable};
use crate::lookup::Lookup;
use crate::remote::{RemoteTable, check_tables};
use crate::session::Session;
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
        let column_tables =
            features.into_iter().map(|(feature, name)| find(feature, name)).collect::<Result<_, _>>()?;
        let constant = constant.map(|name| find("(constant)", name)).transpose()?;
        Ok(Client { backend, names, column_tables, constant })
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
        Lookup::new(self.backend.dims().into_iter(), &self.column_tables, self.constant)
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
        self.backend.pull(rows, absent, lookup, &mut each, &mut once)
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
        self.backend.pull_or_feed(rows, absent, lookup, ahead, &mut choose, &mut each)
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
        self.backend.begin_push(threads, lookup, scale_of)?;
        lookup.session.iter_mut().for_each(Session::send);
        Ok(())
    }

    /// [`Client::push`] that sends to servers with the lookup's next pull or [`Client::finish`].
    ///
    /// A caller that pulls at once sends half as many messages. A gradient that one table refuses is applied in none.
    pub fn begin_push(&self, lookup: &mut Lookup, scale: PushScale) -> Result<(), ClientError> {
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
