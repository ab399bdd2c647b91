//! Tables on servers as a backend of rows. Knows no table of this process.

use std::sync::atomic::{AtomicU64, Ordering};

use sanderling_observe::unique;
use sanderling_sample::Rows;
use sanderling_store::{Absent, Checkpoint, CheckpointWriter, PushScale, TableConfig};

use super::{ChooseFed, EachFeature, RowBackend};
use crate::engine::check_push;
use crate::error::ClientError;
use crate::fed::AheadFeature;
use crate::lookup::Lookup;
use crate::remote::RemoteTable;
use crate::session::{LostFed, PullInto, PullPart, Session};
use crate::step::SyncGroup;
use crate::stop::Stop;
use crate::whole_rows::{import_remote, save_remote};

/// Tables on the servers of one cluster.
#[derive(Debug)]
pub(crate) struct ServerTables {
    pub(crate) tables: Vec<RemoteTable>,
    /// Number of the next minibatch whose keys are fed.
    batches: AtomicU64,
}

impl ServerTables {
    pub(crate) fn new(tables: Vec<RemoteTable>) -> ServerTables {
        ServerTables { tables, batches: AtomicU64::new(unique()) }
    }

    pub(crate) fn next_batch(&self) -> u64 {
        self.batches.fetch_add(1, Ordering::Relaxed)
    }

    /// Pulls the keys that are in the lookup and runs `meanwhile` while the servers work; then shows each feature. Tables that
    /// the servers pool are left out.
    pub(crate) fn pull_assigned(
        &self,
        absent: Absent,
        lookup: &mut Lookup,
        each: EachFeature<'_>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<usize, ClientError> {
        let tables = &self.tables;
        let fed: Vec<bool> = (0..tables.len()).map(|table| lookup.is_fed(table)).collect();
        let Lookup { tables: parts, partitions, session, notes_missing, .. } = lookup;
        let session = match (session, tables.first()) {
            (Some(session), _) => session,
            (none, Some(table)) => none.insert(table.cluster().session()?),
            (_, None) => return Ok(0),
        };
        session.follow_placement();
        partitions.resize_with(tables.len(), Default::default);
        for (((table, part), partition), &is_fed) in
            tables.iter().zip(&*parts).zip(&mut *partitions).zip(&fed)
        {
            let keys: &[u64] = if is_fed { &[] } else { &part.dedup.unique };
            partition.assign(&session.engine.placement, table.home(), keys);
        }
        let asked: Vec<PullPart<'_>> =
            tables.iter().zip(&*partitions).map(|(table, partition)| PullPart { table, partition }).collect();
        let mut into: Vec<PullInto<'_>> = parts
            .iter_mut()
            .map(|part| PullInto { out: &mut part.rows, missing: notes_missing.then_some(&mut part.missing) })
            .collect();
        let missing = session.pull_parts(&asked, &mut into, absent, meanwhile)?;
        parts.iter_mut().for_each(|part| part.missing.sort_unstable());
        for feature in 0..lookup.features() {
            if !fed[lookup.table_number(feature)] {
                each(lookup, feature);
            }
        }
        Ok(missing)
    }
}

impl RowBackend for ServerTables {
    fn dims(&self) -> Vec<usize> {
        self.tables.iter().map(|table| table.dim()).collect()
    }

    fn pull(
        &self,
        rows: &Rows<'_>,
        absent: Absent,
        lookup: &mut Lookup,
        each: EachFeature<'_>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<usize, ClientError> {
        lookup.assign_once(rows);
        self.pull_assigned(absent, lookup, each, meanwhile)
    }

    fn pull_or_feed(
        &self,
        rows: &Rows<'_>,
        absent: Absent,
        lookup: &mut Lookup,
        ahead: &[AheadFeature<'_>],
        choose: ChooseFed<'_>,
        each: EachFeature<'_>,
    ) -> Result<usize, ClientError> {
        self.pull_with_feeds(rows, absent, lookup, ahead, choose, each)
    }

    fn begin_push(
        &self,
        _threads: usize,
        lookup: &mut Lookup,
        scale_of: &dyn Fn(usize) -> PushScale,
    ) -> Result<(), ClientError> {
        let Some(mut session) = lookup.session.take() else { return Ok(()) };
        let pushed = self.begin_push_over(&mut session, lookup, scale_of);
        lookup.session = Some(session);
        pushed
    }

    fn begin_push_lost(
        &self,
        session: &mut Session,
        lookup: &mut Lookup,
        lost: &LostFed,
        scale_of: &dyn Fn(usize) -> PushScale,
    ) -> Result<(), ClientError> {
        self.push_lost(session, lookup, lost, scale_of)
    }

    fn session(&self) -> Result<Option<Session>, ClientError> {
        self.tables.first().map(|table| table.cluster().session()).transpose()
    }

    fn stop(&self) -> Option<&Stop> {
        self.tables.first().and_then(|table| table.cluster().stop())
    }

    fn step_table(&self, group: &mut SyncGroup, table: usize) -> Result<usize, ClientError> {
        Ok(group.place_of_remote(&self.tables[table])?.unwrap_or(table))
    }

    fn size(&self, table: usize) -> Result<(u64, u64), ClientError> {
        self.tables[table].size()
    }

    fn save(
        &self,
        table: usize,
        config: Option<&TableConfig>,
        writer: &mut CheckpointWriter,
    ) -> Result<(), ClientError> {
        let table = &self.tables[table];
        let config = config.ok_or_else(|| ClientError::Cluster {
            reason: format!("table {:?} on servers is no table of this model", table.name()),
        })?;
        save_remote(table, config, writer)
    }

    fn import(&self, table: usize, checkpoint: &Checkpoint, name: &str) -> Result<(), ClientError> {
        import_remote(&self.tables[table], checkpoint, name)
    }

    fn remote(&self) -> &[RemoteTable] {
        &self.tables
    }
}

impl ServerTables {
    fn begin_push_over(
        &self,
        session: &mut Session,
        lookup: &mut Lookup,
        scale_of: &dyn Fn(usize) -> PushScale,
    ) -> Result<(), ClientError> {
        let tables = &self.tables;
        if !lookup.fed.is_empty() {
            // Keys fed under the same number from now on could overtake the push.
            lookup.batch = None;
        }
        let Lookup { tables: parts, partitions, unfed, .. } = lookup;
        for number in unfed.drain(..) {
            let (table, keys) = (&tables[number], &parts[number].dedup.unique);
            partitions[number].assign(&session.engine.placement, table.home(), keys);
        }
        if tables.len() > 1 {
            let all = tables.iter().zip(&mut *parts).zip(&*partitions);
            for (number, ((table, part), partition)) in all.enumerate() {
                check_push(table, partition, part.gradients().2, scale_of(number))?;
            }
        }
        for (number, ((table, part), partition)) in tables.iter().zip(parts).zip(partitions).enumerate() {
            let (_, counts, grads) = part.gradients();
            session.begin_push(table, partition, counts, grads, scale_of(number))?;
        }
        self.push_fed(lookup, session, scale_of)
    }
}
