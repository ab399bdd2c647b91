//! Pulls from servers in which some features are fed and pooled there, and the rows of the others pulled. The caller chooses
//! per feature; a hub may have fed features before.

use std::time::Instant;

use sanderling_sample::Rows;
use sanderling_store::{Absent, Pooling, PushScale};
use sanderling_wire::Fault;

use super::servers::ServerTables;
use super::{ChooseFed, EachFeature};
use crate::engine::PooledKeys;
use crate::error::ClientError;
use crate::fed::{AheadFeature, FedRows, Feedable};
use crate::key_partition::KeyPartition;
use crate::lookup::Lookup;
use crate::remote::RemoteTable;
use crate::session::{FedPart, LostFed, PullInto, Session};

impl ServerTables {
    /// See [`Client::pull_or_feed`](crate::Client::pull_or_feed).
    pub(crate) fn pull_with_feeds(
        &self,
        rows: &Rows<'_>,
        absent: Absent,
        lookup: &mut Lookup,
        ahead: &[AheadFeature<'_>],
        choose: ChooseFed<'_>,
        each: EachFeature<'_>,
    ) -> Result<usize, ClientError> {
        let Some(first) = self.tables.first() else { return Ok(0) };
        let mut session = match lookup.session.take() {
            Some(session) => session,
            None => first.cluster().session()?,
        };
        if !ahead.is_empty() {
            session.follow_placement();
        }
        let forgotten = self.forget_unpushed(lookup, &mut session);
        lookup.assign(rows);
        let id = lookup.batch.take().unwrap_or_else(|| self.next_batch());
        let fed = forgotten
            .and_then(|()| self.note_ahead(rows.len(), ahead, lookup, &session))
            .and_then(|()| self.feed(rows, lookup, &mut session, id, choose));
        if fed.is_err() {
            // The first thing that went wrong is what is said.
            drop(session.finish());
        }
        lookup.session = Some(session);
        // With the rows' answers come those to what was fed.
        let mut missing = fed.and_then(|()| self.pull_assigned(absent, lookup, each, &mut || {}))?;
        if lookup.fed.is_empty() {
            lookup.batch = Some(id);
            return Ok(missing);
        }
        missing += self.pull_fed(absent, lookup)?;
        // Unless it is pushed the servers keep it, and the next one of this lookup takes its place there.
        lookup.batch = Some(id);
        Ok(missing)
    }

    /// Makes the servers forget the batch that a hub fed for the minibatch before, unless it was pushed.
    fn forget_unpushed(&self, lookup: &mut Lookup, session: &mut Session) -> Result<(), ClientError> {
        for at in 0..lookup.fed.len() {
            let table = self.table_of(lookup, lookup.fed[at].feature);
            let fed = &mut lookup.fed[at];
            if fed.is_ahead && !fed.is_pushed {
                fed.is_pushed = true;
                session.begin_forget(table, &fed.batch)?;
            }
        }
        Ok(())
    }

    /// Makes room for the pooled rows of features that a hub fed.
    fn note_ahead(
        &self,
        samples: usize,
        ahead: &[AheadFeature<'_>],
        lookup: &mut Lookup,
        session: &Session,
    ) -> Result<(), ClientError> {
        let placement = &session.engine.placement;
        for &AheadFeature { feature, number, keys, placement_version, since } in ahead {
            let table = self.table_of(lookup, feature);
            if placement_version != placement.version() {
                return Err(moved(table, placement_version, placement.version()));
            }
            let (expected, found) = (session.engine.servers(), keys.len());
            if expected != found {
                let name = table.name();
                let reason = format!(
                    "table {name:?}: its keys were fed to {found} servers, but it is on {expected}: name the same servers there and here"
                );
                return Err(ClientError::Cluster { reason });
            }
            let mut fed = lookup.spare_fed.pop().unwrap_or_default();
            fed.batch.assign_ahead(number, samples, keys, placement);
            fed.begin(feature, samples * table.dim(), since);
            fed.is_ahead = true;
            lookup.fed.push(fed);
        }
        Ok(())
    }

    fn feed(
        &self,
        rows: &Rows<'_>,
        lookup: &mut Lookup,
        session: &mut Session,
        id: u64,
        choose: ChooseFed<'_>,
    ) -> Result<(), ClientError> {
        let mut rebased = Vec::new();
        for feature in 0..lookup.features() {
            let number = lookup.table_number(feature);
            let is_alone = lookup.readers(number).len() == 1;
            if !is_alone || lookup.is_constant(number) || lookup.is_fed(number) {
                continue;
            }
            let table = &self.tables[number];
            let column = lookup.column(feature);
            let (keys, samples) = (rows.keys(column), rows.len());
            let values = rows.values(column);
            let feedable = Feedable {
                feature,
                keys: keys.len(),
                distinct: lookup.table(feature).dedup.unique.len(),
                samples,
                dim: table.dim(),
                servers: table.servers().count(),
                has_values: values.is_some(),
                fits: session.has_room_for(keys.len(), samples, table.dim()),
            };
            let Some(pooling) = choose(&feedable).filter(|_| feedable.fits) else { continue };
            let offsets = rows.offsets(column);
            let first = offsets[0];
            rebased.clear();
            rebased.extend(offsets.iter().map(|offset| offset - first));
            // A mean does not look at values.
            let values = values.filter(|_| pooling == Pooling::Sum);
            let keys = PooledKeys { keys, offsets: &rebased, values, pooling };
            let mut fed = lookup.spare_fed.pop().unwrap_or_default();
            fed.begin(feature, samples * table.dim(), Instant::now());
            let begun = session.begin_feed(table, (id, feature as u32), &keys, &mut fed.batch);
            lookup.fed.push(fed);
            begun?;
        }
        Ok(())
    }

    /// Pulls the features that were fed; how many of their distinct keys have no row.
    fn pull_fed(&self, absent: Absent, lookup: &mut Lookup) -> Result<usize, ClientError> {
        let Some(mut session) = lookup.session.take() else { return Ok(0) };
        let mut fed = std::mem::take(&mut lookup.fed);
        let (mut parts, mut into) = (Vec::new(), Vec::new());
        for FedRows { feature, batch, rows, missing, .. } in &mut fed {
            parts.push(FedPart { table: self.table_of(lookup, *feature), batch });
            into.push(PullInto { out: rows, missing: Some(missing) });
        }
        let pulled = session.pull_fed_parts(&parts, &mut into, absent);
        (lookup.session, lookup.fed) = (Some(session), fed);
        pulled?;
        let mut count = 0;
        for at in 0..lookup.fed.len() {
            let mut missing = std::mem::take(&mut lookup.fed[at].missing);
            if lookup.fed[at].is_ahead {
                count += missing.len();
                lookup.fed[at].missing = missing;
                continue;
            }
            let distinct = lookup.indices(lookup.fed[at].feature);
            missing.iter_mut().for_each(|position| *position = distinct[*position as usize]);
            missing.sort_unstable();
            missing.dedup();
            count += missing.len();
            lookup.fed[at].missing = missing;
        }
        Ok(count)
    }

    /// Begins the pushes of the features that were fed.
    pub(crate) fn push_fed(
        &self,
        lookup: &mut Lookup,
        session: &mut Session,
        scale_of: &dyn Fn(usize) -> PushScale,
    ) -> Result<(), ClientError> {
        for at in 0..lookup.fed.len() {
            let number = lookup.table_number(lookup.fed[at].feature);
            let FedRows { batch, grads, is_pushed, .. } = &mut lookup.fed[at];
            *is_pushed = true;
            session.begin_push_fed(&self.tables[number], at, batch, grads, scale_of(number))?;
        }
        Ok(())
    }

    /// See [`Client::push_lost`](crate::Client::push_lost).
    pub(crate) fn push_lost(
        &self,
        session: &mut Session,
        lookup: &mut Lookup,
        lost: &LostFed,
        scale_of: &dyn Fn(usize) -> PushScale,
    ) -> Result<(), ClientError> {
        let number = lookup.table_number(lookup.fed[lost.number].feature);
        let table = &self.tables[number];
        let Lookup { tables, fed, .. } = lookup;
        let (placement, dim) = (fed[lost.number].batch.placement(), table.dim());
        let (mut keys, mut counts, mut grads) = (Vec::new(), Vec::new(), Vec::new());
        let (all_keys, all_counts, all_grads) = tables[number].gradients();
        for (at, (&key, &count)) in all_keys.iter().zip(all_counts).enumerate() {
            if placement.server_of(table.home(), key) == lost.server {
                keys.push(key);
                counts.push(count);
                grads.extend_from_slice(&all_grads[at * dim..][..dim]);
            }
        }
        let mut partition = KeyPartition::default();
        partition.assign(&session.engine.placement, table.home(), &keys);
        session.begin_push(table, &partition, &counts, &grads, scale_of(number))
    }

    fn table_of(&self, lookup: &Lookup, feature: usize) -> &RemoteTable {
        &self.tables[lookup.table_number(feature)]
    }
}

/// The error of a batch that a hub has fed by another placement than the present one.
fn moved(table: &RemoteTable, fed: u64, present: u64) -> ClientError {
    ClientError::Refused {
        server: String::new(),
        table: table.name().to_owned(),
        fault: Fault::UnknownBatch,
        reason: format!("its keys were fed by version {fed} of the placement, which is {present} here"),
    }
}
