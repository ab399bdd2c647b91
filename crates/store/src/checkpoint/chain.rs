//! A chain in the manifest: a full checkpoint, and deltas that each hold what changed since the one before.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::manifest::{
    BlobRecord, FileRecord, Manifest, TableEntry, TableRecord, VERSION_OF_CHAIN, check_names, parse_file_name,
};
use super::rows::{Expected, Link};
use crate::StoreError;

/// Deltas of a chain. More would make the manifest large, which every delta writes anew.
const DELTAS_MAX: usize = 1000;
/// Bytes of all deltas that are always possible; a chain whose deltas are larger than its full checkpoint ends. A reader
/// holds the keys of all deltas.
const DELTA_BYTES_MIN: u64 = 64 << 20;

/// A delta, which covers all tables of the full checkpoint in their order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeltaRecord {
    pub(crate) generation: u64,
    pub(crate) tables: Vec<TableDeltaRecord>,
    /// All blobs of the checkpoint anew.
    pub(crate) blobs: Vec<BlobRecord>,
}

/// The changes of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableDeltaRecord {
    pub(crate) name: String,
    /// `None` if nothing changed.
    pub(crate) file: Option<FileRecord>,
    /// Rows and removed keys in the file.
    pub(crate) rows: u64,
    pub(crate) removed: u64,
    /// Rows of the table afterwards.
    pub(crate) table_rows: u64,
    pub(crate) pushes: u64,
    /// The changes are those after this epoch, until the other one.
    pub(crate) since: u64,
    pub(crate) epoch: u64,
}

/// A delta of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaEntry {
    /// Number in the chain, from 1.
    pub sequence: usize,
    /// Generation of its save.
    pub generation: u64,
    /// Rows that were created or changed.
    pub rows: u64,
    /// Keys that were removed.
    pub removed: u64,
    /// Size of its files, blobs included.
    pub bytes: u64,
}

impl DeltaRecord {
    pub(crate) fn files(&self) -> impl Iterator<Item = &FileRecord> {
        let tables = self.tables.iter().filter_map(|table| table.file.as_ref());
        tables.chain(self.blobs.iter().map(|blob| &blob.file))
    }
}

/// A file with rows of a table.
#[derive(Debug)]
pub(crate) struct RowFile<'a> {
    pub(crate) file: &'a FileRecord,
    pub(crate) expected: Expected,
}

impl Manifest {
    /// The state after the first `deltas` deltas; `None` for all.
    pub(crate) fn through(mut self, dir: &Path, deltas: Option<usize>) -> Result<Manifest, StoreError> {
        let Some(deltas) = deltas else { return Ok(self) };
        if deltas > self.deltas.len() {
            let available = format!("1 to {}", self.deltas.len());
            let (path, name) = (dir.to_path_buf(), deltas.to_string());
            return Err(StoreError::NotFound { path, kind: "delta", name, available });
        }
        self.deltas.truncate(deltas);
        let base = self.base.unwrap_or(self.generation);
        self.generation = self.deltas.last().map_or(base, |delta| delta.generation);
        Ok(self)
    }

    /// The blobs of the last delta, or of the full checkpoint.
    pub(crate) fn latest_blobs(&self) -> &[BlobRecord] {
        self.deltas.last().map_or(&self.blobs, |delta| &delta.blobs)
    }

    /// The deltas of a table, oldest first, each with its sequence number.
    fn deltas_of<'a>(
        &'a self,
        name: &'a str,
    ) -> impl DoubleEndedIterator<Item = (u32, &'a DeltaRecord, &'a TableDeltaRecord)> {
        let place = self.tables.iter().position(|table| table.name == name);
        let numbered = self.deltas.iter().zip(1..).map(|(delta, sequence): (_, u32)| (sequence, delta));
        let numbered: Vec<_> = numbered.collect();
        numbered
            .into_iter()
            .filter_map(move |(sequence, delta)| Some((sequence, delta, delta.tables.get(place?)?)))
    }

    /// The files with rows of a table, newest first: the first one with a key has its state.
    pub(crate) fn row_files<'a>(&'a self, table: &'a TableRecord) -> Vec<RowFile<'a>> {
        let base = self.base.unwrap_or(self.generation);
        let mut files: Vec<RowFile<'_>> = self
            .deltas_of(&table.name)
            .rev()
            .filter_map(|(sequence, delta, TableDeltaRecord { file, rows, removed, since, epoch, .. })| {
                let file = file.as_ref()?;
                let link = Link { sequence, base, since: *since, epoch: *epoch };
                let (generation, bytes) = (delta.generation, file.bytes);
                let expected = Expected { generation, rows: *rows, bytes, link: Some((link, *removed)) };
                Some(RowFile { file, expected })
            })
            .collect();
        let expected = Expected { generation: base, rows: table.rows, bytes: table.file.bytes, link: None };
        files.push(RowFile { file: &table.file, expected });
        files
    }

    /// The use clock of a table.
    pub(crate) fn pushes(&self, table: &TableRecord) -> u64 {
        self.deltas_of(&table.name).next_back().map_or(table.pushes, |(_, _, last)| last.pushes)
    }

    /// The epoch of a table from which the next delta goes on.
    pub(crate) fn epoch(&self, table: &TableRecord) -> Option<u64> {
        self.deltas_of(&table.name).next_back().map_or(table.epoch, |(_, _, last)| Some(last.epoch))
    }

    pub(crate) fn table_entry(&self, table: &TableRecord) -> TableEntry {
        let config = table.config();
        TableEntry {
            name: table.name.clone(),
            dim: config.dim(),
            rows: self.deltas_of(&table.name).next_back().map_or(table.rows, |(_, _, last)| last.table_rows),
            bytes: self.row_files(table).iter().map(|file| file.file.bytes).sum(),
            pushes: self.pushes(table),
            config,
        }
    }

    pub(crate) fn delta_entries(&self) -> Vec<DeltaEntry> {
        let entry = |(delta, sequence): (&DeltaRecord, usize)| DeltaEntry {
            sequence,
            generation: delta.generation,
            rows: delta.tables.iter().map(|table| table.rows).sum(),
            removed: delta.tables.iter().map(|table| table.removed).sum(),
            bytes: delta.files().map(|file| file.bytes).sum(),
        };
        self.deltas.iter().zip(1..).map(entry).collect()
    }

    /// The delta that a file belongs to; `None` for files of the full checkpoint.
    pub(crate) fn sequence_of(&self, file: &FileRecord) -> Option<usize> {
        let place = self.deltas.iter().position(|delta| delta.files().any(|other| other.name == file.name));
        place.map(|place| place + 1)
    }

    /// Why no further delta is possible, if so.
    pub(crate) fn chain_end(&self) -> Option<String> {
        if self.base.is_none() {
            return Some("the checkpoint was saved without the changes that follow it".to_string());
        }
        let full = self.tables.iter().map(|table| table.file.bytes).sum();
        let deltas = self.delta_entries().iter().map(|delta| delta.bytes).sum();
        chain_end(full, deltas, self.deltas.len())
    }

    /// Checks what a chain adds to the manifest.
    pub(super) fn check_chain(&self) -> Result<(), String> {
        let Some(base) = self.base else {
            let is_chain = self.version == VERSION_OF_CHAIN
                || !self.deltas.is_empty()
                || self.tables.iter().any(|table| table.epoch.is_some());
            return if is_chain { Err("it has parts of a chain, but no base".to_string()) } else { Ok(()) };
        };
        if self.version != VERSION_OF_CHAIN {
            return Err(format!("it has a base, which version {} has not", self.version));
        }
        let mut before = base;
        for (delta, sequence) in self.deltas.iter().zip(1..) {
            self.check_delta(delta, sequence, before)
                .map_err(|reason| format!("delta {sequence}: {reason}"))?;
            before = delta.generation;
        }
        if before != self.generation {
            return Err(format!("its generation is {}, that of its last part {before}", self.generation));
        }
        Ok(())
    }

    fn check_delta(&self, delta: &DeltaRecord, sequence: usize, before: u64) -> Result<(), String> {
        if delta.generation <= before {
            return Err(format!("its generation is {}, that of the part before {before}", delta.generation));
        }
        if let Some(file) = delta.files().find(|file| parse_file_name(&file.name) != Some(delta.generation)) {
            return Err(format!("it names {:?}, which is of another generation", file.name));
        }
        check_names("blob", delta.blobs.iter().map(|blob| blob.name.as_str()).collect())?;
        if !delta.tables.iter().map(|table| &table.name).eq(self.tables.iter().map(|table| &table.name)) {
            return Err("its tables are not those of the full checkpoint".to_string());
        }
        for (place, (table, full)) in delta.tables.iter().zip(&self.tables).enumerate() {
            let earlier = sequence.checked_sub(2).and_then(|at| self.deltas.get(at)?.tables.get(place));
            let epoch = earlier.map_or(full.epoch, |earlier| Some(earlier.epoch));
            if epoch != Some(table.since) || table.epoch < table.since {
                return Err(format!(
                    "table {:?}: its changes are of epochs {} to {}, but the part before ends at {epoch:?}",
                    table.name, table.since, table.epoch
                ));
            }
            if table.file.is_none() && (table.rows, table.removed, table.epoch) != (0, 0, table.since) {
                return Err(format!("table {:?}: it has changes, but no file", table.name));
            }
        }
        Ok(())
    }
}

/// Why a chain of these sizes takes no further delta, if so.
fn chain_end(full_bytes: u64, delta_bytes: u64, deltas: usize) -> Option<String> {
    if deltas >= DELTAS_MAX {
        return Some(format!("it has {deltas} deltas, the most of a chain"));
    }
    (delta_bytes > full_bytes.max(DELTA_BYTES_MIN))
        .then(|| format!("its deltas have {delta_bytes} bytes, the full checkpoint {full_bytes}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_ends_when_its_deltas_are_many_or_large() {
        let (mib, gib) = (1 << 20, 1 << 30);
        for (full, deltas, count, expected) in [
            (0, 0, 0, None),
            (mib, 64 * mib, 5, None),
            (mib, 65 * mib, 5, Some("the full checkpoint 1048576")),
            (gib, gib, 5, None),
            (gib, gib + 1, 5, Some("bytes")),
            (gib, 0, 999, None),
            (gib, 0, 1000, Some("1000 deltas")),
        ] {
            let end = chain_end(full, deltas, count);
            let is_as_expected = expected
                .map_or(end.is_none(), |expected| end.as_ref().is_some_and(|end| end.contains(expected)));
            assert!(is_as_expected, "{full} {deltas} {count}: {end:?}");
        }
    }
}
