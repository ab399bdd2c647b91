//! Opening a checkpoint: nothing is believed before its checksum has been. Knows nothing of how one is written.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use crc_fast::Digest;

use super::files::open_regular;
use super::manifest::{
    BlobEntry, FileRecord, MANIFEST, MANIFEST_BYTES_MAX, Manifest, TableEntry, TableRecord,
};
use super::rows::{self, Expected, RowShape, RowsError};
use crate::policy::clock::ImportClock;
use crate::rows::layout::Header;
use crate::rows::numbers::RowNumbers;
use crate::{Block, RowRef, StoreError, Table, TableConfig};

/// Bytes read from a table file at once.
const READ_BYTES: usize = 256 * 1024;

/// Files that a checkpoint holds open, at most: the first ones. A process may have a thousand or so, and has other uses for
/// them.
const FILES_HELD_MAX: usize = 256;
/// Saves that may end one after the other while a checkpoint is opened.
const OVERTAKEN_MAX: usize = 16;

/// A checkpoint on disk. Opening it reads the manifest and compares the files' sizes; contents are verified as they
/// are loaded. A later save into the directory changes nothing of it: its files are held open (the first 256; further ones
/// are gone then).
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    manifest: Manifest,
    /// The first of the manifest's.
    files: Vec<Arc<File>>,
    tables: Vec<TableEntry>,
    blobs: Vec<BlobEntry>,
}

/// Checksums and counts everything that is read through it.
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

/// A file from its beginning, whoever else reads it at the same time.
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
    /// Opens the checkpoint of a directory.
    pub fn open(dir: impl AsRef<Path>) -> Result<Checkpoint, StoreError> {
        let dir = dir.as_ref().to_path_buf();
        let (manifest, files) = open_files(&dir)?;
        let tables = manifest.tables.iter().map(TableRecord::entry).collect();
        let blobs = &manifest.blobs;
        let blobs =
            blobs.iter().map(|blob| BlobEntry { name: blob.name.clone(), bytes: blob.file.bytes }).collect();
        Ok(Checkpoint { dir, manifest, files, tables, blobs })
    }

    /// Number of saves that this directory has seen.
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

    /// Loads and verifies a table: every row with its header and optimizer state, bit for bit, however full the table was.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] also for a row that [`Table::import`] would not take: a number that is not finite, a sum of squares
    /// below 0. It names table and key.
    pub fn load_table(&self, name: &str) -> Result<Table, StoreError> {
        self.load_table_within(name, self.table_record(name)?.config().budget_bytes)
    }

    /// The same with another budget. A larger one has room for all rows; where a smaller one has not, the table's eviction
    /// makes it, as for pushes.
    ///
    /// # Errors
    /// [`StoreError::TableFull`] where it does not; and as for [`Checkpoint::load_table`].
    pub fn load_table_within(&self, name: &str, budget_bytes: Option<u64>) -> Result<Table, StoreError> {
        let record = self.table_record(name)?;
        let saved = record.config();
        let limit = |budget_bytes: Option<u64>| budget_bytes.unwrap_or(u64::MAX);
        let shape = shape(&saved);
        let is_larger = limit(budget_bytes) >= limit(saved.budget_bytes);
        // The budget may be too small, or the memory.
        let mut table =
            Table::of_any_budget(TableConfig { budget_bytes, ..saved }).map_err(|error| match error {
                StoreError::Config { table, reason } => StoreError::Config {
                    table,
                    reason: format!("{reason} (a table of {})", self.dir.display()),
                },
                other => other,
            })?;
        // In a smaller one it might take all that there is, and leave no room to find rows by.
        if is_larger {
            // A file of this size cannot hold more rows, whatever the manifest says.
            table.make_room(record.rows.min(rows::rows_max(shape, record.file.bytes)));
        }
        self.load_rows(name, &mut table, |_| true)?;
        Ok(table)
    }

    /// Adds the rows of a table of the checkpoint whose keys `keep` says to a table with rows of the same kind (the same
    /// blocks, whose optimizers may have other settings), bit for bit, and verifies all of it; the table must have none of
    /// these keys. How many. Where they are more than its budget holds, its eviction makes room, as for pushes. After an error
    /// the table has some of them.
    pub fn load_rows(
        &self,
        name: &str,
        table: &mut Table,
        mut keep: impl FnMut(u64) -> bool,
    ) -> Result<u64, StoreError> {
        let record = self.table_record(name)?;
        let (found, expected) = (row_kind(&record.config()), row_kind(table.config()));
        if found != expected {
            let reason =
                format!("rows of {expected} are wanted, those of {} are of {found}", self.dir.display());
            return Err(StoreError::Config { table: name.to_string(), reason });
        }
        // Eviction goes by it. Two clocks may be far from each other: rows of the one that is behind are old.
        table.set_clock(table.clock().max(record.pushes));
        let clock = table.clock();
        let mut added = 0;
        self.read_rows(record, |header, values| {
            if !keep(header.key) {
                return Ok(());
            }
            added += 1;
            let last_use = ImportClock::since(clock, record.pushes, header.last_use);
            match table.restore_row(Header { last_use, ..header }, values) {
                Ok(true) => Ok(()),
                Ok(false) => Err(RowsError::Damaged(format!("key {} occurs twice", header.key))),
                Err(error) => Err(RowsError::Store(error)),
            }
        })?;
        Ok(added)
    }

    /// Shows every row of a table to `each`, in the order of the file, until it fails, and verifies all of it: what is shown
    /// has been compared with a checksum, but only the end says that the file is whole.
    pub fn for_each_row<E: From<StoreError>>(
        &self,
        name: &str,
        mut each: impl FnMut(RowRef<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let record = self.table_record(name)?;
        let (dim, mut failed) = (record.config().dim(), None);
        let read = self.read_rows(record, |header, values| {
            let Header { key, frequency, last_use, version } = header;
            let (weights, state) = values.split_at(dim);
            let row = RowRef { key, frequency, last_use, version, weights, state };
            each(row).map_err(|error| {
                failed = Some(error);
                RowsError::Damaged("it was not read to its end".to_string())
            })
        });
        failed.map_or_else(|| read.map_err(E::from), Err)
    }

    fn table_record(&self, name: &str) -> Result<&TableRecord, StoreError> {
        let record = self.manifest.tables.iter().find(|table| table.name == name);
        record
            .ok_or_else(|| self.not_found("table", name, self.tables.iter().map(|table| table.name.as_str())))
    }

    fn read_rows(
        &self,
        record: &TableRecord,
        mut each: impl FnMut(Header, &[f32]) -> Result<(), RowsError>,
    ) -> Result<(), StoreError> {
        let path = self.dir.join(&record.file.name);
        let file = self.input(&record.file)?;
        let expected =
            Expected { generation: self.manifest.generation, rows: record.rows, bytes: record.file.bytes };
        // The buffer lies outside of the checksum, or bytes read ahead would count before they are used.
        let mut input = Checked::new(BufReader::with_capacity(buffer_bytes(&record.file), file));
        let config = record.config();
        let (shape, numbers) = (shape(&config), RowNumbers::new(&config));
        let checked = |header: Header, values: &[f32]| {
            let (weights, state) = values.split_at(shape.dim);
            match numbers.check(weights, state) {
                Ok(()) => each(header, values),
                Err(reason) => Err(RowsError::Damaged(format!(
                    "table {:?}: row of key {}: {reason}; what saved it had diverged, or is another program: take an earlier \
                     checkpoint",
                    record.name, header.key
                ))),
            }
        };
        rows::decode(shape, &expected, &mut input, checked).map_err(|error| match error {
            RowsError::Io(source) => io_error(&path, "read", source),
            RowsError::Damaged(reason) => damaged(&path, reason),
            RowsError::Version(found) => {
                StoreError::Version { path: path.clone(), found, supported: rows::VERSION }
            }
            RowsError::Store(error) => error,
        })?;
        check_crc(&path, &record.file, input.crc32c())
    }

    /// Reads and verifies a blob.
    pub fn blob(&self, name: &str) -> Result<Vec<u8>, StoreError> {
        let Some(record) = self.manifest.blobs.iter().find(|blob| blob.name == name) else {
            return Err(self.not_found("blob", name, self.blobs.iter().map(|blob| blob.name.as_str())));
        };
        let path = self.dir.join(&record.file.name);
        // The size has been compared with the file's, so that it may be read whole.
        let mut file = self.input(&record.file)?.take(record.file.bytes.saturating_add(1));
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|source| io_error(&path, "read", source))?;
        if bytes.len() as u64 != record.file.bytes {
            return Err(damaged(&path, "its size changed while it was read".to_string()));
        }
        check_crc(&path, &record.file, crc_fast::crc32_iscsi(&bytes))?;
        Ok(bytes)
    }

    /// Reads everything and compares it with its checksums, without building tables.
    pub fn verify(&self) -> Result<(), StoreError> {
        for record in self.manifest.files() {
            let path = self.dir.join(&record.name);
            let mut input = Checked::new(self.input(record)?);
            let mut buffer = vec![0; buffer_bytes(record)];
            while input.read(&mut buffer).map_err(|source| io_error(&path, "read", source))? > 0 {}
            check_crc(&path, record, input.crc32c())?;
        }
        Ok(())
    }

    /// A data file to be read from its beginning.
    fn input(&self, record: &FileRecord) -> Result<Input, StoreError> {
        let at = self.manifest.files().position(|file| file.name == record.name);
        let held = at.and_then(|at| self.files.get(at));
        let file =
            held.map_or_else(|| open_file(&self.dir, record).map(Arc::new), |file| Ok(Arc::clone(file)))?;
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

/// The manifest, and the first of its files. A save that ends in between removes them: then those of the next are opened.
fn open_files(dir: &Path) -> Result<(Manifest, Vec<Arc<File>>), StoreError> {
    let (mut manifest, mut overtaken) = (read_manifest(dir)?, 0);
    loop {
        let gone = match hold_files(dir, &manifest) {
            Ok(files) => return Ok((manifest, files)),
            Err(StoreError::Io { path, action, source }) if source.kind() == io::ErrorKind::NotFound => {
                StoreError::Io { path, action, source }
            }
            Err(error) => return Err(error),
        };
        let newest = read_manifest(dir)?;
        if newest.generation == manifest.generation || overtaken == OVERTAKEN_MAX {
            return Err(gone);
        }
        (manifest, overtaken) = (newest, overtaken + 1);
    }
}

/// Opens all of a manifest's files, and keeps the first of them open.
fn hold_files(dir: &Path, manifest: &Manifest) -> Result<Vec<Arc<File>>, StoreError> {
    let mut held = Vec::new();
    for record in manifest.files() {
        let file = open_file(dir, record)?;
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

/// Opens a data file and compares its size.
fn open_file(dir: &Path, record: &FileRecord) -> Result<File, StoreError> {
    let path = dir.join(&record.name);
    let file = open(&path)?;
    let found = file.metadata().map_err(|source| io_error(&path, "read the size of", source))?.len();
    if found != record.bytes {
        return Err(damaged(&path, format!("it has {found} bytes, the manifest says {}", record.bytes)));
    }
    Ok(file)
}

/// What rows are made of: per block, how many weights and what state.
fn row_kind(config: &TableConfig) -> String {
    let block = |block: &Block| format!("{} x {}", block.dims, block.optimizer.state_name());
    config.blocks.iter().map(block).collect::<Vec<_>>().join(" + ")
}

fn shape(config: &TableConfig) -> RowShape {
    RowShape { dim: config.dim(), state: config.state() }
}

/// Size of a read buffer, which need not exceed the file.
fn buffer_bytes(record: &FileRecord) -> usize {
    record.bytes.clamp(1, READ_BYTES as u64) as usize
}

fn check_crc(path: &Path, record: &FileRecord, found: u32) -> Result<(), StoreError> {
    if found == record.crc32c {
        return Ok(());
    }
    Err(damaged(path, format!("its checksum is {found:08x}, the manifest says {:08x}", record.crc32c)))
}

fn damaged(path: &Path, reason: String) -> StoreError {
    StoreError::Damaged { path: path.to_path_buf(), reason }
}

fn io_error(path: &Path, action: &'static str, source: io::Error) -> StoreError {
    StoreError::Io { path: path.to_path_buf(), action, source }
}
