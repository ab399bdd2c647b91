//! The links of a chain, one by one, for a reader that follows a directory: the full checkpoint, and each delta after it.
//! Knows nothing of where a follower gets the files from.

use std::io::ErrorKind;
use std::path::Path;

use super::chain::{DeltaRecord, RowFile};
use super::files::open_regular;
use super::manifest::{FileRecord, Manifest, TableRecord};
use super::newer_keys::NewerKeys;
use super::read::{Checkpoint, FILES_HELD_MAX, missing_delta, shape};
use super::restore::bad_row;
use super::rows::{RowBlock, RowsError, row_key, row_of_block, rows_of_block, u64_at};
use crate::rows::layout::Header;
use crate::rows::numbers::RowNumbers;
use crate::{RowRef, StoreError};

/// A link of a chain. Two manifests with an equal link name the same files with the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainLink {
    /// Generation of its save.
    pub generation: u64,
    /// Checksum of its part of the manifest, which has the checksums of its files.
    crc32c: u32,
}

impl ChainLink {
    fn of(generation: u64, record: serde_json::Result<Vec<u8>>) -> ChainLink {
        // Records with names and numbers only always become JSON.
        ChainLink { generation, crc32c: crc_fast::crc32_iscsi(&record.unwrap_or_default()) }
    }
}

impl Checkpoint {
    /// The checkpoint that a manifest describes, whose files in this directory are opened, and their sizes compared,
    /// when they are read. Present files are held open, so that a later save does not remove them.
    ///
    /// # Errors
    ///
    /// The manifest is damaged or of a later version.
    pub fn of_manifest(dir: &Path, manifest: &[u8]) -> Result<Checkpoint, StoreError> {
        let manifest = Manifest::decode(&dir.join(super::manifest::MANIFEST), manifest)?;
        let open = |record: &FileRecord| open_regular(&dir.join(&record.name)).ok().map(Into::into);
        let files = manifest.files().take(FILES_HELD_MAX).map(open).collect();
        Ok(Checkpoint::of(dir, manifest, files))
    }

    /// The state after the first `deltas` deltas of this checkpoint.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if it has fewer.
    pub fn through(&self, deltas: usize) -> Result<Checkpoint, StoreError> {
        let manifest = self.manifest.clone().through(&self.dir, Some(deltas))?;
        // Files of a shorter chain are the first ones of the longer one.
        let files = self.files[..self.files.len().min(manifest.files().count())].to_vec();
        Ok(Checkpoint::of(&self.dir, manifest, files))
    }

    /// The links of the chain, oldest first: the full checkpoint at place 0, and delta K at place K.
    #[must_use]
    pub fn links(&self) -> Vec<ChainLink> {
        let Manifest { base, generation, tables, blobs, deltas, .. } = &self.manifest;
        let full = ChainLink::of(base.unwrap_or(*generation), serde_json::to_vec(&(tables, blobs)));
        let delta = |delta: &DeltaRecord| ChainLink::of(delta.generation, serde_json::to_vec(delta));
        std::iter::once(full).chain(deltas.iter().map(delta)).collect()
    }

    /// Name and size of the file that a link has of a table; `None` if nothing of the table changed.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if there is no such table.
    pub fn file_of_link(&self, table: &str, link: usize) -> Result<Option<(String, u64)>, StoreError> {
        let record = self.table_record(table)?;
        Ok(self.record_of_link(record, link).map(|file| (file.name.clone(), file.bytes)))
    }

    /// Name and size of the file of a blob.
    #[must_use]
    pub fn file_of_blob(&self, name: &str) -> Option<(String, u64)> {
        let blob = self.manifest.latest_blobs().iter().find(|blob| blob.name == name)?;
        Some((blob.file.name.clone(), blob.file.bytes))
    }

    /// Verifies the checksum of the file that a link has of a table.
    ///
    /// # Errors
    ///
    /// The file is missing, has another size or another checksum. The error names it, and its delta.
    pub fn verify_link(&self, table: &str, link: usize) -> Result<(), StoreError> {
        let record = self.table_record(table)?;
        let verified = self.record_of_link(record, link).map_or(Ok(()), |file| self.verify_file(file));
        verified.map_err(|error| match &error {
            StoreError::Io { source, .. } if source.kind() == ErrorKind::NotFound => {
                missing_delta(&self.dir, &self.manifest, error)
            }
            _ => error,
        })
    }

    /// Epoch of a table's change stream until which the checkpoint has all changes; `None` if no delta can follow it.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if there is no such table.
    pub fn epoch(&self, table: &str) -> Result<Option<u64>, StoreError> {
        Ok(self.manifest.epoch(self.table_record(table)?))
    }

    fn record_of_link<'a>(&'a self, table: &'a TableRecord, link: usize) -> Option<&'a FileRecord> {
        let Some(delta) = link.checked_sub(1) else { return Some(&table.file) };
        let tables = &self.manifest.deltas.get(delta)?.tables;
        tables.iter().find(|delta| delta.name == table.name)?.file.as_ref()
    }

    /// Passes every row of a table to `each`, in the order of the files, the newest first, until it fails.
    ///
    /// Rows are checksummed before they are passed, but only the end of the file proves it complete.
    pub fn for_each_row<E: From<StoreError>>(
        &self,
        name: &str,
        mut each: impl FnMut(RowRef<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let record = self.table_record(name)?;
        let files = self.manifest.row_files(record);
        self.for_each_in(record, &files, |_, row| row.map_or(Ok(()), &mut each))
    }

    /// Passes what a delta, by its sequence number, has of a table to `each`: keys with a row, and removed keys without.
    ///
    /// Rows are checksummed before they are passed, but only the end of the file proves it complete.
    pub fn for_each_change<E: From<StoreError>>(
        &self,
        name: &str,
        delta: usize,
        each: impl FnMut(u64, Option<RowRef<'_>>) -> Result<(), E>,
    ) -> Result<(), E> {
        let record = self.table_record(name)?;
        let mut files = self.manifest.row_files(record);
        let file = self.record_of_link(record, delta).map(|file| file.name.clone());
        files.retain(|candidate| delta > 0 && Some(&candidate.file.name) == file.as_ref());
        self.for_each_in(record, &files, each)
    }

    /// Passes keys of some files, the newest first: each with its row, or without one if a delta removed it.
    fn for_each_in<E: From<StoreError>>(
        &self,
        record: &TableRecord,
        files: &[RowFile<'_>],
        mut each: impl FnMut(u64, Option<RowRef<'_>>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (config, mut failed) = (record.config(), None);
        let (shape, numbers) = (shape(&config), RowNumbers::new(&config));
        let mut values = vec![0.0; shape.dim + shape.state];
        let mut pass = |key: u64, row: Option<RowRef<'_>>| {
            each(key, row).map_err(|error| {
                failed = Some(error);
                RowsError::Damaged("reading it was stopped".to_string())
            })
        };
        let mut newer = NewerKeys::of(files);
        let read = files.iter().try_for_each(|file| {
            self.read_blocks(file, shape, |block| match block {
                RowBlock::Rows(block) => (0..rows_of_block(shape, block) as u32)
                    .filter(|&number| newer.take(file, row_key(shape, block, number)))
                    .try_for_each(|number| {
                        let header = row_of_block(shape, block, number, &mut values);
                        let Header { key, frequency, last_use, version } = header;
                        let (weights, state) = values.split_at(shape.dim);
                        let checked = numbers.check(weights, state);
                        checked.map_err(|reason| bad_row(&record.name, key, &reason))?;
                        pass(key, Some(RowRef { key, frequency, last_use, version, weights, state }))
                    }),
                RowBlock::Removed(keys) => {
                    newer.remove(keys);
                    let mut keys = keys.chunks_exact(size_of::<u64>()).map(|key| u64_at(key, 0));
                    keys.try_for_each(|key| pass(key, None))
                }
            })
        });
        failed.map_or_else(|| read.map_err(E::from), Err)
    }
}
