//! Where the rows of a client's tables live, behind one trait: in this process ([`LocalTables`]) or on servers
//! ([`ServerTables`]).
//!
//! Lookups, learners and the feed queue call the trait through [`Client`](crate::Client) and have no code of their own for
//! either place. Knows no model.

mod feeds;
mod local;
mod servers;

use std::fmt::Debug;
use std::sync::Arc;

use sanderling_sample::Rows;
use sanderling_store::{Absent, Checkpoint, CheckpointWriter, Pooling, PushScale, Table, TableConfig};

use crate::error::ClientError;
use crate::fed::{AheadFeature, Feedable};
use crate::lookup::Lookup;
use crate::remote::RemoteTable;
use crate::session::{LostFed, Session};
use crate::step::SyncGroup;
use crate::stop::Stop;

pub(crate) use local::LocalTables;
pub(crate) use servers::ServerTables;

/// Called with each feature, by its number, when all of its rows are in the lookup.
pub(crate) type EachFeature<'a> = &'a mut dyn FnMut(&Lookup, usize);
/// Chooses how a feature is pooled by servers; `None`: it is not.
pub(crate) type ChooseFed<'a> = &'a mut dyn FnMut(&Feedable) -> Option<Pooling>;

/// The rows of a client's tables. Tables are known by their numbers, in the order in which the client was given them.
pub(crate) trait RowBackend: Debug + Send + Sync {
    /// Width of each table's rows.
    fn dims(&self) -> Vec<usize>;

    /// Pulls the rows of a minibatch's distinct keys into the lookup; returns the number of keys without a row.
    /// `meanwhile` runs while servers are waited for, if they are.
    fn pull(
        &self,
        rows: &Rows<'_>,
        absent: Absent,
        lookup: &mut Lookup,
        each: EachFeature<'_>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<usize, ClientError>;

    /// [`RowBackend::pull`] in which features may be pooled where their rows are; a backend that cannot pulls them.
    fn pull_or_feed(
        &self,
        rows: &Rows<'_>,
        absent: Absent,
        lookup: &mut Lookup,
        _ahead: &[AheadFeature<'_>],
        _choose: ChooseFed<'_>,
        each: EachFeature<'_>,
    ) -> Result<usize, ClientError> {
        self.pull(rows, absent, lookup, each, &mut || {})
    }

    /// Pushes the lookup's gradients: one update per distinct key. To servers they may still wait in the lookup's session.
    fn begin_push(
        &self,
        threads: usize,
        lookup: &mut Lookup,
        scale_of: &dyn Fn(usize) -> PushScale,
    ) -> Result<(), ClientError>;

    /// See [`Client::push_lost`](crate::Client::push_lost). Tables in this process lose nothing.
    fn begin_push_lost(
        &self,
        _session: &mut Session,
        _lookup: &mut Lookup,
        _lost: &LostFed,
        _scale_of: &dyn Fn(usize) -> PushScale,
    ) -> Result<(), ClientError> {
        Ok(())
    }

    /// Connections for a thread; `None`: rows are reached without any.
    fn session(&self) -> Result<Option<Session>, ClientError> {
        Ok(None)
    }

    /// The stop check of waits for servers.
    fn stop(&self) -> Option<&Stop> {
        None
    }

    /// The tables for row-by-row access.
    ///
    /// # Errors
    /// [`ClientError::NotHere`] if rows cannot be updated one by one.
    fn online_tables(&self) -> Result<&[Arc<Table>], ClientError> {
        Err(ClientError::NotHere)
    }

    /// Position of a table in the list of a group that goes in step.
    fn step_table(&self, group: &mut SyncGroup, table: usize) -> Result<usize, ClientError>;

    /// Rows and bytes of memory of a table.
    fn size(&self, table: usize) -> Result<(u64, u64), ClientError>;

    /// Writes a table to a checkpoint, with this configuration if it has none here. No client may push meanwhile.
    fn save(
        &self,
        table: usize,
        config: Option<&TableConfig>,
        writer: &mut CheckpointWriter,
    ) -> Result<(), ClientError>;

    /// Adds the rows of a saved table, by its name in the checkpoint, to a table.
    fn import(&self, table: usize, checkpoint: &Checkpoint, name: &str) -> Result<(), ClientError>;

    /// The tables, if they are in this process.
    fn local(&self) -> &[Arc<Table>] {
        &[]
    }

    /// The tables, if they are on servers.
    fn remote(&self) -> &[RemoteTable] {
        &[]
    }
}
