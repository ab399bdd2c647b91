//! Opens and loads checkpoints. No content is trusted before its checksum was verified.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use crc_fast::Digest;

use super::chain::{DeltaEntry, DeltaRecord, RowFile};
use super::files::open_regular;
use super::manifest::{
    BlobEntry, FileRecord, MANIFEST, MANIFEST_BYTES_MAX, Manifest, TableEntry, TableRecord,
};
use super::newer_keys::NewerKeys;
use super::restore::Restoration;
use super::rows::{self, RowBlock, RowShape, RowsError};
use crate::rows::numbers::RowNumbers;
use crate::{Block, StoreError, Table, TableConfig};

/// Buffer size for reading a table file.
const READ_BYTES: usize = 256 * 1024;

/// The maximum number of files that a checkpoint keeps open; processes have a limit of about a thousand.
pub(super) const FILES_HELD_MAX: usize = 256;
/// The maximum number of saves that may complete while a checkpoint is opened.
const OVERTAKEN_MAX: usize = 16;

/// A checkpoint on disk.
///
/// Opening it reads the manifest and compares the files' sizes; contents are verified when they are loaded. Later
/// saves do not affect it, because it keeps its first 256 files open; further files are gone after a later save.
#[derive(Debug)]
pub struct Checkpoint {
    pub(super) dir: PathBuf,
    pub(super) manifest: Manifest,
    /// The first files of the manifest, as far as they are open.
    pub(super) files: Vec<Option<Arc<File>>>,
    tables: Vec<TableEntry>,
    blobs: Vec<BlobEntry>,
    deltas: Vec<DeltaEntry>,
}

/// Computes the checksum of all data read through it.
struct Checked<R> {
    inner: R,
    crc32c: Digest,
}

impl<R> Checked<R> {
    fn new(inner: R) -> Checked<R> {
        Checked { inner, crc32c: Digest::new(Crc32Iscsi) }
    }

    fn crc32c(&self) -> u32 {
        self.crc32c.finalize() as u32
    }
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.crc32c.update(&buffer[..read]);
        Ok(read)
    }
}

/// Reads a shared file from the beginning, with its own position.
struct Input {
    file: Arc<File>,
    at: u64,
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Checkpoint {
    /// Opens the checkpoint of a directory, with all of its deltas.
    pub fn open(dir: impl AsRef<Path>) -> Result<Checkpoint, StoreError> {
        Checkpoint::open_with(dir.as_ref(), None)
    }

    /// Opens the state after the first `deltas` deltas of a checkpoint; 0 for the full checkpoint alone.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if it has fewer, and the errors of [`Checkpoint::open`].
    pub fn open_through(dir: impl AsRef<Path>, deltas: usize) -> Result<Checkpoint, StoreError> {
        Checkpoint::open_with(dir.as_ref(), Some(deltas))
    }

    /// Verifies all checksums in the order of the chain; returns the number of deltas before the first damage, and
    /// the number of all deltas.
    ///
    /// # Errors
    ///
    /// The full checkpoint or the manifest is damaged or missing.
    pub fn whole_deltas(dir: impl AsRef<Path>) -> Result<(usize, usize), StoreError> {
        let dir = dir.as_ref();
        Checkpoint::open_through(dir, 0)?.verify()?;
        let deltas = read_manifest(dir)?.deltas.len();
        let is_damaged = |through: &usize| {
            let opened = Checkpoint::open_through(dir, *through);
            opened.and_then(|checkpoint| checkpoint.verify_last()).is_err()
        };
        let whole = (1..=deltas).find(is_damaged).map_or(deltas, |damaged| damaged - 1);
        Ok((whole, deltas))
    }

    fn open_with(dir: &Path, deltas: Option<usize>) -> Result<Checkpoint, StoreError> {
        let (manifest, files) = open_files(dir, deltas)?;
        Ok(Checkpoint::of(dir, manifest, files.into_iter().map(Some).collect()))
    }

    pub(super) fn of(dir: &Path, manifest: Manifest, files: Vec<Option<Arc<File>>>) -> Checkpoint {
        let tables = manifest.tables.iter().map(|table| manifest.table_entry(table)).collect();
        let blobs = manifest.latest_blobs().iter();
        let blobs = blobs.map(|blob| BlobEntry { name: blob.name.clone(), bytes: blob.file.bytes }).collect();
        let deltas = manifest.delta_entries();
        Checkpoint { dir: dir.to_path_buf(), manifest, files, tables, blobs, deltas }
    }

    /// Number of saves into this directory.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.manifest.generation
    }

    /// The tables, in the order in which they were written.
    #[must_use]
    pub fn tables(&self) -> &[TableEntry] {
        &self.tables
    }

    /// The blobs, in the order in which they were written.
    #[must_use]
    pub fn blobs(&self) -> &[BlobEntry] {
        &self.blobs
    }

    /// The deltas after the full checkpoint, in their order.
    #[must_use]
    pub fn deltas(&self) -> &[DeltaEntry] {
        &self.deltas
    }

    /// Loads and verifies a table, bit for bit, with its saved budget.
    ///
    /// # Errors
    ///
    /// [`StoreError::Damaged`] also for rows that [`Table::import`] would reject: values that are not finite, or
    /// negative sums of squares. It names table and key.
    pub fn load_table(&self, name: &str) -> Result<Table, StoreError> {
        self.load_table_within(name, self.table_record(name)?.config().budget_bytes)
    }

    /// Loads a table with another budget. A smaller budget may evict rows, as pushes do.
    ///
    /// # Errors
    ///
    /// [`StoreError::TableFull`] if eviction does not make enough room, and the errors of
    /// [`Checkpoint::load_table`].
    pub fn load_table_within(&self, name: &str, budget_bytes: Option<u64>) -> Result<Table, StoreError> {
        let record = self.table_record(name)?;
        let saved = record.config();
        let limit = |budget_bytes: Option<u64>| budget_bytes.unwrap_or(u64::MAX);
        let shape = shape(&saved);
        let is_larger = limit(budget_bytes) >= limit(saved.budget_bytes);
        // The budget or the memory may be too small.
        let mut table =
            Table::of_any_budget(TableConfig { budget_bytes, ..saved }).map_err(|error| match error {
                StoreError::Config { table, reason } => StoreError::Config {
                    table,
                    reason: format!("{reason} (a table of {})", self.dir.display()),
                },
                other => other,
            })?;
        // With a smaller budget it could take all memory, and leave none for the index.
        if is_larger {
            // The file's size bounds the number of rows, whatever the manifest says.
            let entry = self.manifest.table_entry(record);
            table.make_room(entry.rows.min(rows::rows_max(shape, entry.bytes)));
        }
        self.load_rows(name, &mut table, |_| true)?;
        Ok(table)
    }

    /// Adds the rows whose keys `keep` accepts to a table with the same kind of rows; returns their number.
    ///
    /// Blocks must have the same dims and optimizers, but optimizer settings may differ. The table must have none
    /// of these keys. Rows are copied bit for bit and the whole file is verified. Eviction makes room if needed.
    /// After an error the table holds some of the rows.
    pub fn load_rows(
        &self,
        name: &str,
        table: &mut Table,
        keep: impl FnMut(u64) -> bool,
    ) -> Result<u64, StoreError> {
        let record = self.table_record(name)?;
        let (found, expected) = (row_kind(&record.config()), row_kind(table.config()));
        if found != expected {
            let reason =
                format!("rows must be {expected}, but the rows of {} are {found}", self.dir.display());
            return Err(StoreError::Config { table: name.to_string(), reason });
        }
        self.restore_rows(record, table, keep)
    }

    /// [`Checkpoint::load_rows`] into a table with these weights, and with this optimizer state or without any.
    pub(super) fn restore_rows(
        &self,
        record: &TableRecord,
        table: &mut Table,
        mut keep: impl FnMut(u64) -> bool,
    ) -> Result<u64, StoreError> {
        // Eviction depends on the clock. If two clocks differ much, rows of the slower one are old.
        let pushes = self.manifest.pushes(record);
        table.set_clock(table.clock().max(pushes));
        let (config, table) = (record.config(), &*table);
        let (name, shape, numbers) = (record.name.as_str(), shape(&config), RowNumbers::new(&config));
        let clock = table.clock();
        let restoration = Restoration { table, name, shape, numbers: &numbers, clock, pushes };
        let files = self.manifest.row_files(record);
        let (mut newer, reading) = (NewerKeys::of(&files), Cell::new(&record.file));
        restoration.run(
            files.iter().map(|file| file.file.bytes).sum(),
            |restorer| {
                files.iter().try_for_each(|file| {
                    reading.set(file.file);
                    self.read_blocks(file, shape, |block| match block {
                        RowBlock::Rows(block) => {
                            restorer.restore(block, |key| newer.take(file, key) && keep(key))
                        }
                        RowBlock::Removed(keys) => {
                            newer.remove(keys);
                            Ok(())
                        }
                    })?;
                    // So that an error of a row is reported with its file.
                    restorer.settle().map_err(|error| self.rows_error(file.file, error))
                })
            },
            |error| self.rows_error(reading.get(), error),
        )
    }

    pub(super) fn table_record(&self, name: &str) -> Result<&TableRecord, StoreError> {
        let record = self.manifest.tables.iter().find(|table| table.name == name);
        record
            .ok_or_else(|| self.not_found("table", name, self.tables.iter().map(|table| table.name.as_str())))
    }

    /// Passes every block of a file to `each`.
    pub(super) fn read_blocks(
        &self,
        RowFile { file: record, expected }: &RowFile<'_>,
        shape: RowShape,
        each: impl FnMut(RowBlock<'_>) -> Result<(), RowsError>,
    ) -> Result<(), StoreError> {
        let file = self.input(record)?;
        // Buffered below the checksum, or data read ahead would be included too early.
        let mut input = Checked::new(BufReader::with_capacity(buffer_bytes(record), file));
        rows::decode(shape, expected, &mut input, each).map_err(|error| self.rows_error(record, error))?;
        self.check_crc(record, input.crc32c())
    }

    fn rows_error(&self, file: &FileRecord, error: RowsError) -> StoreError {
        let path = self.dir.join(&file.name);
        match error {
            RowsError::Io(source) => io_error(&path, "read", source),
            RowsError::Damaged(reason) => self.damaged(file, &reason),
            RowsError::Version(found) => StoreError::Version { path, found, supported: rows::VERSION },
            RowsError::Store(error) => error,
        }
    }

    fn damaged(&self, file: &FileRecord, reason: &str) -> StoreError {
        damaged(&self.dir.join(&file.name), with_delta(&self.manifest, file, reason))
    }

    fn check_crc(&self, record: &FileRecord, found: u32) -> Result<(), StoreError> {
        if found == record.crc32c {
            return Ok(());
        }
        let reason = format!("its checksum is {found:08x}, the manifest says {:08x}", record.crc32c);
        Err(self.damaged(record, &reason))
    }

    /// Reads and verifies a blob.
    pub fn blob(&self, name: &str) -> Result<Vec<u8>, StoreError> {
        let Some(record) = self.manifest.latest_blobs().iter().find(|blob| blob.name == name) else {
            return Err(self.not_found("blob", name, self.blobs.iter().map(|blob| blob.name.as_str())));
        };
        let path = self.dir.join(&record.file.name);
        // The file's size was verified, so it can be read whole.
        let mut file = self.input(&record.file)?.take(record.file.bytes.saturating_add(1));
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|source| io_error(&path, "read", source))?;
        if bytes.len() as u64 != record.file.bytes {
            return Err(self.damaged(&record.file, "its size changed while it was read"));
        }
        self.check_crc(&record.file, crc_fast::crc32_iscsi(&bytes))?;
        Ok(bytes)
    }

    /// Verifies all checksums without loading tables.
    pub fn verify(&self) -> Result<(), StoreError> {
        self.manifest.files().try_for_each(|record| self.verify_file(record))
    }

    /// Verifies the checksums of the last delta.
    fn verify_last(&self) -> Result<(), StoreError> {
        let mut files = self.manifest.deltas.last().into_iter().flat_map(DeltaRecord::files);
        files.try_for_each(|record| self.verify_file(record))
    }

    pub(super) fn verify_file(&self, record: &FileRecord) -> Result<(), StoreError> {
        let path = self.dir.join(&record.name);
        let mut input = Checked::new(self.input(record)?);
        let mut buffer = vec![0; buffer_bytes(record)];
        while input.read(&mut buffer).map_err(|source| io_error(&path, "read", source))? > 0 {}
        self.check_crc(record, input.crc32c())
    }

    /// Opens a data file for reading from its beginning.
    fn input(&self, record: &FileRecord) -> Result<Input, StoreError> {
        let at = self.manifest.files().position(|file| file.name == record.name);
        let held = at.and_then(|at| self.files.get(at)?.as_ref());
        let file = held.map_or_else(
            || open_file(&self.dir, &self.manifest, record).map(Arc::new),
            |file| Ok(Arc::clone(file)),
        )?;
        Ok(Input { file, at: 0 })
    }

    fn not_found<'a>(
        &self,
        kind: &'static str,
        name: &str,
        names: impl Iterator<Item = &'a str>,
    ) -> StoreError {
        let available = names.collect::<Vec<_>>().join(", ");
        StoreError::NotFound { path: self.dir.clone(), kind, name: name.to_string(), available }
    }
}

fn read_manifest(dir: &Path) -> Result<Manifest, StoreError> {
    let path = dir.join(MANIFEST);
    let mut bytes = Vec::new();
    let limit = MANIFEST_BYTES_MAX as u64 + 1;
    let file = open(&path)?;
    file.take(limit).read_to_end(&mut bytes).map_err(|source| io_error(&path, "read", source))?;
    if bytes.len() > MANIFEST_BYTES_MAX {
        return Err(damaged(&path, format!("it is larger than {MANIFEST_BYTES_MAX} bytes")));
    }
    Manifest::decode(&path, &bytes)
}

/// Opens the manifest and its first files. If a concurrent save removes them, opens those of the newer manifest.
fn open_files(dir: &Path, deltas: Option<usize>) -> Result<(Manifest, Vec<Arc<File>>), StoreError> {
    let read = || read_manifest(dir)?.through(dir, deltas);
    let (mut manifest, mut overtaken) = (read()?, 0);
    loop {
        let gone = match hold_files(dir, &manifest) {
            Ok(files) => return Ok((manifest, files)),
            Err(StoreError::Io { path, action, source }) if source.kind() == io::ErrorKind::NotFound => {
                StoreError::Io { path, action, source }
            }
            Err(error) => return Err(error),
        };
        let newest = read()?;
        if newest.generation == manifest.generation || overtaken == OVERTAKEN_MAX {
            return Err(missing_delta(dir, &manifest, gone));
        }
        (manifest, overtaken) = (newest, overtaken + 1);
    }
}

/// Opens all files of a manifest and keeps the first ones open.
fn hold_files(dir: &Path, manifest: &Manifest) -> Result<Vec<Arc<File>>, StoreError> {
    let mut held = Vec::new();
    for record in manifest.files() {
        let file = open_file(dir, manifest, record)?;
        if held.len() < FILES_HELD_MAX {
            held.push(Arc::new(file));
        }
    }
    Ok(held)
}

fn open(path: &Path) -> Result<File, StoreError> {
    open_regular(path).map_err(|source| match source.kind() {
        io::ErrorKind::InvalidData => damaged(path, source.to_string()),
        _ => io_error(path, "open", source),
    })
}

/// Names the delta to which a file belongs, and the state before it.
fn with_delta(manifest: &Manifest, file: &FileRecord, reason: &str) -> String {
    let Some(sequence) = manifest.sequence_of(file) else { return reason.to_string() };
    let deltas = manifest.deltas.len();
    format!("delta {sequence} of {deltas}: {reason}; the first {} remain", sequence - 1)
}

/// Names the delta of a missing file.
pub(super) fn missing_delta(dir: &Path, manifest: &Manifest, error: StoreError) -> StoreError {
    let StoreError::Io { path, .. } = &error else { return error };
    let is_delta = |file: &&FileRecord| dir.join(&file.name) == *path && manifest.sequence_of(file).is_some();
    let Some(file) = manifest.files().find(is_delta) else { return error };
    damaged(path, with_delta(manifest, file, "it is missing"))
}

/// Opens a data file and verifies its size.
fn open_file(dir: &Path, manifest: &Manifest, record: &FileRecord) -> Result<File, StoreError> {
    let path = dir.join(&record.name);
    let file = open(&path)?;
    let found = file.metadata().map_err(|source| io_error(&path, "read the size of", source))?.len();
    if found != record.bytes {
        let reason = format!("it has {found} bytes, the manifest says {}", record.bytes);
        return Err(damaged(&path, with_delta(manifest, record, &reason)));
    }
    Ok(file)
}

/// Describes the kind of rows: dims and state of each block.
fn row_kind(config: &TableConfig) -> String {
    let block = |block: &Block| format!("{} x {}", block.dims, block.optimizer.state_name());
    config.blocks.iter().map(block).collect::<Vec<_>>().join(" + ")
}

pub(super) fn shape(config: &TableConfig) -> RowShape {
    RowShape { dim: config.dim(), state: config.state() }
}

/// Size of a read buffer, at most the file's.
fn buffer_bytes(record: &FileRecord) -> usize {
    record.bytes.clamp(1, READ_BYTES as u64) as usize
}

fn damaged(path: &Path, reason: String) -> StoreError {
    StoreError::Damaged { path: path.to_path_buf(), reason }
}

fn io_error(path: &Path, action: &'static str, source: io::Error) -> StoreError {
    StoreError::Io { path: path.to_path_buf(), action, source }
}
