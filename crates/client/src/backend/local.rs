//! Tables in this process as a backend of rows. Knows no server.

use std::sync::Arc;

use sanderling_sample::Rows;
use sanderling_store::{Absent, Checkpoint, CheckpointWriter, PushScale, Table, TableConfig};

use super::{EachFeature, RowBackend};
use crate::error::ClientError;
use crate::lookup::{Lookup, TableLookup};
use crate::shared_push::push_shared;
use crate::step::SyncGroup;
use crate::whole_rows::import_rows;

/// Distinct keys that are pulled together: enough for overlapping cache misses, few enough that the rows are still in the
/// cache when the caller reads them.
const TOGETHER_KEYS: usize = 1024;

/// Tables in this process.
#[derive(Debug)]
pub(crate) struct LocalTables(pub(crate) Vec<Arc<Table>>);

impl RowBackend for LocalTables {
    fn dims(&self) -> Vec<usize> {
        self.0.iter().map(|table| table.dim()).collect()
    }

    fn pull(
        &self,
        rows: &Rows<'_>,
        absent: Absent,
        lookup: &mut Lookup,
        each: EachFeature<'_>,
        _meanwhile: &mut dyn FnMut(),
    ) -> Result<usize, ClientError> {
        lookup.begin();
        let mut missing = 0;
        for (number, table) in self.0.iter().enumerate() {
            // Features added and shown so far, and distinct keys pulled so far.
            let (mut added, mut shown, mut pulled) = (0, 0, 0);
            let features = lookup.readers(number).len();
            loop {
                let is_end = added == features;
                if is_end {
                    lookup.add_constant(number);
                } else {
                    lookup.add(lookup.readers(number)[added], rows);
                    added += 1;
                }
                let part = &mut lookup.tables[number];
                if !is_end && part.distinct() - pulled < TOGETHER_KEYS {
                    continue;
                }
                missing += pull_new(table, absent, lookup.notes_missing, part, pulled)?;
                pulled = part.distinct();
                for at in shown..added {
                    each(lookup, lookup.readers(number)[at]);
                }
                shown = added;
                if is_end {
                    break;
                }
            }
        }
        Ok(missing)
    }

    fn begin_push(
        &self,
        threads: usize,
        lookup: &mut Lookup,
        scale_of: &dyn Fn(usize) -> PushScale,
    ) -> Result<(), ClientError> {
        // All gradients are checked before any is applied.
        let mut pushes = Vec::with_capacity(self.0.len());
        for (number, (table, part)) in self.0.iter().zip(&mut lookup.tables).enumerate() {
            let ((keys, counts, grads), rows) = part.gradients_and_rows();
            pushes.push(table.check_push(keys, counts, grads, scale_of(number))?.with_rows(rows));
        }
        pushes.iter().try_for_each(|push| Ok(push_shared(push, threads)?))
    }

    fn online_tables(&self) -> Result<&[Arc<Table>], ClientError> {
        Ok(&self.0)
    }

    fn step_table(&self, _group: &mut SyncGroup, table: usize) -> Result<usize, ClientError> {
        // The group has the same list.
        Ok(table)
    }

    fn size(&self, table: usize) -> Result<(u64, u64), ClientError> {
        let table = &self.0[table];
        Ok((table.len() as u64, table.bytes()))
    }

    fn save(
        &self,
        table: usize,
        _config: Option<&TableConfig>,
        writer: &mut CheckpointWriter,
    ) -> Result<(), ClientError> {
        Ok(writer.table(&self.0[table])?)
    }

    fn import(&self, table: usize, checkpoint: &Checkpoint, name: &str) -> Result<(), ClientError> {
        let table = &self.0[table];
        import_rows(checkpoint, name, |rows| Ok(table.import(rows)?))
    }

    fn local(&self) -> &[Arc<Table>] {
        &self.0
    }
}

/// Pulls the distinct keys of a table from this number on; returns how many of them have no row.
fn pull_new(
    table: &Table,
    absent: Absent,
    notes_missing: bool,
    part: &mut TableLookup,
    from: usize,
) -> Result<usize, ClientError> {
    let TableLookup { dedup, dim, rows, missing, pulled, .. } = part;
    let (keys, out) = (&dedup.unique[from..], &mut rows[from * *dim..]);
    if !notes_missing {
        return Ok(table.pull_for_push(keys, absent, out, None, pulled)?);
    }
    let mut new_missing = Vec::new();
    let count = table.pull_for_push(keys, absent, out, Some(&mut new_missing), pulled)?;
    missing.extend(new_missing.iter().map(|&position| position + from as u32));
    Ok(count)
}
