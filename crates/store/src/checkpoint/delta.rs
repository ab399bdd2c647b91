//! Adds a delta to a checkpoint: the rows that changed since its last part, at their present value, and removed keys.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use super::chain::{DeltaRecord, TableDeltaRecord};
use super::files::{Disk, Files};
use super::rows::{Encoder, Link, RowShape};
use super::write::{CheckpointWriter, SkippedRows, no_delta, previous};
use crate::rows::numbers::RowNumbers;
use crate::{ChangeFrame, Checkpoint, StoreError, Table};

/// Writes a delta of all tables of a checkpoint that was begun with [`CheckpointWriter::begin_chain`].
///
/// The checkpoint without the delta remains valid until [`DeltaWriter::commit`] returns, even after an error, a kill
/// or a power loss. After an error the changes are in the next delta, or that one fails and a full save is needed.
#[derive(Debug)]
pub struct DeltaWriter {
    writer: CheckpointWriter,
    /// The delta's records, by the tables of the full checkpoint.
    tables: Vec<Option<TableDeltaRecord>>,
}

impl DeltaWriter {
    /// Begins a delta of the checkpoint in a directory.
    ///
    /// # Errors
    ///
    /// [`StoreError::NoDelta`] if only a full save is possible: there is no checkpoint with an epoch of its tables, a
    /// file of it is missing, or its deltas are too many or too large.
    pub fn create(dir: impl AsRef<Path>) -> Result<DeltaWriter, StoreError> {
        let writer = DeltaWriter::create_on(Box::new(Disk), dir.as_ref())?;
        // A delta after a missing file could not be read.
        let opened = Checkpoint::open(dir);
        opened.map_err(|error| writer.writer.no_delta(&error.to_string()))?;
        Ok(writer)
    }

    pub(crate) fn create_on(files: Box<dyn Files>, dir: &Path) -> Result<DeltaWriter, StoreError> {
        let Some(mut manifest) = previous(files.as_ref(), dir)? else {
            return Err(no_delta(dir, "there is no full checkpoint yet"));
        };
        if let Some(reason) = manifest.chain_end() {
            return Err(no_delta(dir, &reason));
        }
        // The full save has made the directory durable.
        let mut writer = CheckpointWriter::after(files, dir, Some(&manifest))?;
        let generation = writer.manifest.generation;
        manifest.generation = generation;
        let tables = manifest.tables.iter().map(|_| None).collect();
        manifest.deltas.push(DeltaRecord { generation, tables: Vec::new(), blobs: Vec::new() });
        writer.manifest = manifest;
        Ok(DeltaWriter { writer, tables })
    }

    /// Writes the changes of a table since the last part, while other threads may use it.
    ///
    /// Rows that are not finite are left out like removed keys, and reported.
    ///
    /// # Errors
    ///
    /// [`StoreError::NoDelta`] and [`StoreError::StreamTooLate`] if only a full save is possible: the checkpoint has
    /// no such table, the table is another one, or too many rows changed.
    pub fn changes(&mut self, table: &Table) -> Result<Option<SkippedRows>, StoreError> {
        let found = self.writer.manifest.tables.iter().position(|record| record.name == table.name());
        let Some(place) = found else {
            return Err(self.writer.no_delta(&format!("it has no table {:?}", table.name())));
        };
        if self.tables[place].is_some() {
            return Err(StoreError::DuplicateName { kind: "table", name: table.name().to_string() });
        }
        let record = &self.writer.manifest.tables[place];
        if record.config() != *table.config() {
            let reason = format!("table {:?} has another configuration now", table.name());
            return Err(self.writer.no_delta(&reason));
        }
        // The epoch of the last part, because this delta has no tables yet.
        let Some(since) = self.writer.manifest.epoch(record) else {
            return Err(self.writer.no_delta(&format!("it has no epoch of table {:?}", table.name())));
        };
        let pushes = table.clock();
        let mut delta = TableDeltaRecord {
            name: table.name().to_string(),
            file: None,
            rows: 0,
            removed: 0,
            table_rows: 0,
            pushes,
            since,
            epoch: since,
        };
        let mut skipped = None;
        if table.has_changes(since)? {
            skipped = self.write_changes(table, &mut delta)?;
        }
        delta.table_rows = table.len() as u64;
        self.tables[place] = Some(delta);
        Ok(skipped)
    }

    fn write_changes(
        &mut self,
        table: &Table,
        delta: &mut TableDeltaRecord,
    ) -> Result<Option<SkippedRows>, StoreError> {
        let manifest = &self.writer.manifest;
        let (generation, sequence) = (manifest.generation, manifest.deltas.len() as u32);
        let base = manifest.base.unwrap_or_default();
        let config = table.config();
        let shape = RowShape { dim: config.dim(), state: config.state() };
        let (numbers, since) = (RowNumbers::new(config), delta.since);
        let mut skipped: Option<SkippedRows> = None;
        let ((drained, rows, removed), file) = self.writer.write_file("delta", |tally| {
            tally.write_blocks(|write| {
                let mut write = Some(write);
                let mut encoder = None;
                let mut begin = |epoch: u64| match write.take() {
                    Some(write) => {
                        let link = Link { sequence, base, since, epoch };
                        Encoder::new(shape, generation, Some(&link), write)
                    }
                    None => Err(io::Error::other("a delta began twice")),
                };
                let mut failed = Ok(());
                let drained = table.drain_changes(since, |frame| {
                    // Too many changes: a file has each key once.
                    if frame.may_repeat {
                        return ControlFlow::Break(());
                    }
                    failed = (|| {
                        let encoder = match &mut encoder {
                            Some(encoder) => encoder,
                            none => none.insert(begin(frame.epoch)?),
                        };
                        write_frame(shape, &numbers, frame, encoder, &mut skipped)
                    })();
                    if failed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                });
                failed?;
                let epoch = match drained {
                    Ok(Some(epoch)) => epoch,
                    Ok(None) => return Ok((Ok(None), 0, 0)),
                    Err(error) => return Ok((Err(error), 0, 0)),
                };
                let encoder = encoder.map_or_else(|| begin(epoch), Ok)?;
                let (rows, removed) = encoder.finish()?;
                Ok((Ok(Some(epoch)), rows, removed))
            })
        })?;
        let Some(epoch) = drained? else {
            return Err(self.writer.no_delta(&format!("too many rows of table {:?} changed", table.name())));
        };
        (delta.epoch, delta.rows, delta.removed, delta.file) = (epoch, rows, removed, Some(file));
        Ok(skipped)
    }

    /// Writes named bytes. A delta has all blobs of the checkpoint anew.
    ///
    /// # Errors
    ///
    /// As for [`CheckpointWriter::blob`].
    pub fn blob(&mut self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.writer.blob(name, bytes)
    }

    /// Number of the delta in its chain, from 1.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.writer.manifest.deltas.len() as u64
    }

    /// Rows and bytes of the delta so far, without blobs.
    #[must_use]
    pub fn size(&self) -> (u64, u64) {
        let tables = self.tables.iter().flatten();
        tables.fold((0, 0), |(rows, bytes), table| {
            (rows + table.rows, bytes + table.file.as_ref().map_or(0, |file| file.bytes))
        })
    }

    /// Adds the delta to the checkpoint; returns the generation.
    ///
    /// # Errors
    ///
    /// [`StoreError::NoDelta`] if a table of the checkpoint was not passed to [`DeltaWriter::changes`].
    pub fn commit(mut self) -> Result<u64, StoreError> {
        if let Some(place) = self.tables.iter().position(Option::is_none) {
            let name = &self.writer.manifest.tables[place].name;
            return Err(self.writer.no_delta(&format!("its table {name:?} is gone")));
        }
        if let Some(delta) = self.writer.manifest.deltas.last_mut() {
            delta.tables = self.tables.into_iter().flatten().collect();
        }
        self.writer.commit()
    }
}

/// Writes the rows and removed keys of a frame.
fn write_frame<W: FnMut(&mut Vec<u8>) -> io::Result<()>>(
    shape: RowShape,
    numbers: &RowNumbers,
    frame: &ChangeFrame,
    encoder: &mut Encoder<W>,
    skipped: &mut Option<SkippedRows>,
) -> io::Result<()> {
    let rows = frame.rows.rows();
    for at in 0..frame.rows.len() {
        let row = rows.row(at, shape.dim, shape.state);
        match numbers.check(row.weights, row.state) {
            Ok(()) => encoder.row(row)?,
            Err(reason) => {
                let first = SkippedRows { rows: 0, key: row.key, reason };
                skipped.get_or_insert(first).rows += 1;
                encoder.remove(row.key)?;
            }
        }
    }
    frame.removed.iter().try_for_each(|&key| encoder.remove(key))
}
