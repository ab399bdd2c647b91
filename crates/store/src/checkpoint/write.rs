//! Saving: new files beside the old ones, then the manifest replaced in one step. Knows nothing of the bytes of a
//! table file.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use crc_fast::Digest;

use super::files::{Disk, Files, Sink};
use super::manifest::{
    BlobRecord, FileRecord, MANIFEST, MANIFEST_BYTES_MAX, MANIFEST_NEW, Manifest, TableEntry, TableRecord,
    file_name, parse_file_name,
};
use super::rows::{self, RowShape};
use crate::config::NAME_BYTES_MAX;
use crate::rows::numbers::RowNumbers;
use crate::{RowRef, StoreError, Table, TableConfig};

/// Writes one checkpoint into a directory, which may hold an earlier one.
///
/// Until [`CheckpointWriter::commit`] returns, the earlier checkpoint is what the directory holds; interrupted at any
/// moment, by an error, a kill or a power failure, it is intact. Dropped without a commit, the writer removes what it
/// wrote. Only one writer may work on a directory at a time.
pub struct CheckpointWriter {
    dir: PathBuf,
    files: Box<dyn Files>,
    manifest: Manifest,
    /// Data files that are not yet named by the manifest on disk.
    pending: Vec<String>,
    /// After an error the checkpoint is incomplete and must not be committed.
    failed: bool,
}

impl std::fmt::Debug for CheckpointWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckpointWriter").field("dir", &self.dir).field("manifest", &self.manifest).finish()
    }
}

/// Rows that are not in a checkpoint, since a number of each is not finite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedRows {
    /// How many.
    pub rows: u64,
    /// Key of the first.
    pub key: u64,
    /// What is wrong with it.
    pub reason: String,
}

/// Counts and checksums what goes into a file.
struct Tally<'a> {
    sink: &'a mut dyn Sink,
    bytes: u64,
    crc32c: Digest,
}

impl Tally<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sink.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        self.crc32c.update(bytes);
        Ok(())
    }
}

impl CheckpointWriter {
    /// Creates the directory where needed. Fails when it holds a checkpoint whose manifest is damaged, or a file of the last
    /// generation there can be: move it away.
    pub fn create(dir: impl AsRef<Path>) -> Result<CheckpointWriter, StoreError> {
        CheckpointWriter::create_on(Box::new(Disk), dir.as_ref())
    }

    pub(crate) fn create_on(files: Box<dyn Files>, dir: &Path) -> Result<CheckpointWriter, StoreError> {
        create_dirs(files.as_ref(), dir).map_err(|source| io_error(dir, "create directory", source))?;
        let path = dir.join(MANIFEST);
        let bytes = files.read(&path).map_err(|source| io_error(&path, "read", source))?;
        let previous = bytes.map(|bytes| Manifest::decode(&path, &bytes)).transpose()?;
        // Beyond every file that is there, so that leftovers of an interrupted save are not mixed in.
        let names = files.list(dir).map_err(|source| io_error(dir, "list", source))?;
        let leftover = names.iter().filter_map(|name| parse_file_name(name)).max().unwrap_or(0);
        let latest = previous.map_or(0, |manifest| manifest.generation).max(leftover);
        let dir = dir.to_path_buf();
        let Some(generation) = latest.checked_add(1) else {
            let reason = format!("it has a file of generation {latest}, the last there can be; move it away");
            return Err(StoreError::Damaged { path: dir, reason });
        };
        let manifest = Manifest::new(generation);
        Ok(CheckpointWriter { dir, files, manifest, pending: Vec::new(), failed: false })
    }

    /// Writes a table. Other threads may go on using it: each row is written as it is when its turn comes.
    ///
    /// # Errors
    /// [`StoreError::Diverged`] where a row has a number that is not finite, since it diverged: the checkpoint could not be loaded.
    pub fn table(&mut self, table: &Table) -> Result<(), StoreError> {
        let pushes = table.clock();
        self.rows(table.config(), |each| {
            // Where it was cut short, writing has failed, which is the error.
            let _ = table.try_for_each_row(each);
            Ok(pushes)
        })
    }

    /// Writes a table but for rows that have a number that is not finite: no push makes one, but what is saved beside them is
    /// not to suffer from it. Other threads may go on using it.
    pub fn table_of_finite_rows(&mut self, table: &Table) -> Result<Option<SkippedRows>, StoreError> {
        let (pushes, mut left_out) = (table.clock(), None);
        self.write_rows(
            table.config(),
            |each| {
                let _ = table.try_for_each_row(each);
                Ok::<_, StoreError>(pushes)
            },
            |key, reason| {
                left_out.get_or_insert(SkippedRows { rows: 0, key, reason }).rows += 1;
                ControlFlow::Continue(())
            },
        )?;
        Ok(left_out)
    }

    /// Writes a table that is not in this process: `each_row` is to call its argument with every row, each key once, and
    /// to say where the table's use clock stands (its number of pushes). When the argument answers with a break, the rows
    /// cannot be written, and it need not go on.
    ///
    /// # Panics
    /// If a row does not have the shape that the configuration says.
    pub fn rows<E: From<StoreError>>(
        &mut self,
        config: &TableConfig,
        each_row: impl FnOnce(&mut dyn FnMut(RowRef<'_>) -> ControlFlow<()>) -> Result<u64, E>,
    ) -> Result<(), E> {
        let mut bad = None;
        let written = self.write_rows(config, each_row, |key, reason| {
            bad = Some((key, reason));
            ControlFlow::Break(())
        });
        if let Some((key, reason)) = bad {
            self.failed = true;
            return Err(StoreError::Diverged { table: config.name.clone(), key, reason }.into());
        }
        written
    }

    /// The same, with a say in what becomes of rows with a number that is not finite, none of which is written.
    fn write_rows<E: From<StoreError>>(
        &mut self,
        config: &TableConfig,
        each_row: impl FnOnce(&mut dyn FnMut(RowRef<'_>) -> ControlFlow<()>) -> Result<u64, E>,
        mut bad: impl FnMut(u64, String) -> ControlFlow<()>,
    ) -> Result<(), E> {
        self.check_is_new("table", &config.name)?;
        config.check()?;
        let generation = self.manifest.generation;
        let shape = RowShape { dim: config.dim(), state: config.state() };
        let numbers = RowNumbers::new(config);
        let each_good_row = |each: &mut dyn FnMut(RowRef<'_>) -> ControlFlow<()>| {
            each_row(&mut |row| match numbers.check(row.weights, row.state) {
                Ok(()) => each(row),
                Err(reason) => bad(row.key, reason),
            })
        };
        let ((rows, pushes), file) = self.write_file("table", |tally| {
            rows::encode(shape, generation, |bytes| tally.write(bytes), each_good_row)
        })?;
        // A table of which some rows are missing must not be committed.
        let pushes = pushes.inspect_err(|_| self.failed = true)?;
        self.manifest.tables.push(TableRecord::new(config, file, rows, pushes));
        Ok(())
    }

    /// The tables that have been written.
    pub fn tables(&self) -> impl Iterator<Item = TableEntry> + '_ {
        self.manifest.tables.iter().map(TableRecord::entry)
    }

    /// Writes named bytes: whatever else makes up a model.
    pub fn blob(&mut self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.check_is_new("blob", name)?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let reason =
                format!("the name of a blob must have 1 to {NAME_BYTES_MAX} bytes, not {}", name.len());
            return Err(io_error(&self.dir, "write", io::Error::new(io::ErrorKind::InvalidInput, reason)));
        }
        let ((), file) = self.write_file("blob", |tally| tally.write(bytes))?;
        self.manifest.blobs.push(BlobRecord { name: name.to_string(), file });
        Ok(())
    }

    /// Makes what was written the directory's checkpoint, then removes the files of the one before. Returns the
    /// generation. Files that could not be removed are left for the next commit.
    pub fn commit(mut self) -> Result<u64, StoreError> {
        self.check_not_failed("commit")?;
        let (new, path) = (self.dir.join(MANIFEST_NEW), self.dir.join(MANIFEST));
        let bytes = self.manifest.encode().map_err(|error| io_error(&new, "encode", error.into()))?;
        // Nothing has been replaced yet: the checkpoint that is there can be opened, this one could not.
        if bytes.len() > MANIFEST_BYTES_MAX {
            let reason = format!("{} bytes; at most {MANIFEST_BYTES_MAX} can be read again", bytes.len());
            return Err(io_error(&new, "write", io::Error::new(io::ErrorKind::FileTooLarge, reason)));
        }
        let mut sink = self.files.create(&new).map_err(|source| io_error(&new, "create", source))?;
        sink.write_all(&bytes).map_err(|source| io_error(&new, "write", source))?;
        sink.sync().map_err(|source| io_error(&new, "sync", source))?;
        drop(sink);
        // The data files' directory entries must be durable before a manifest can name them.
        self.sync_dir()?;
        // From here on the new manifest may be on disk whatever this process learns: keep the files it names.
        self.pending.clear();
        self.files.rename(&new, &path).map_err(|source| io_error(&path, "rename", source))?;
        self.sync_dir()?;
        if let Ok(names) = self.files.list(&self.dir) {
            for name in names.iter().filter(|name| parse_file_name(name).is_some()) {
                if !self.manifest.files().any(|file| file.name == **name) {
                    let _ = self.files.remove(&self.dir.join(name));
                }
            }
        }
        Ok(self.manifest.generation)
    }

    fn check_not_failed(&self, action: &'static str) -> Result<(), StoreError> {
        if self.failed {
            let source = io::Error::other("an earlier write of this checkpoint failed; start it anew");
            return Err(io_error(&self.dir, action, source));
        }
        Ok(())
    }

    fn sync_dir(&self) -> Result<(), StoreError> {
        self.files.sync_dir(&self.dir).map_err(|source| io_error(&self.dir, "sync directory", source))
    }

    fn check_is_new(&self, kind: &'static str, name: &str) -> Result<(), StoreError> {
        let taken = match kind {
            "table" => self.manifest.tables.iter().any(|table| table.name == name),
            _ => self.manifest.blobs.iter().any(|blob| blob.name == name),
        };
        if taken {
            return Err(StoreError::DuplicateName { kind, name: name.to_string() });
        }
        Ok(())
    }

    /// Creates a data file, lets `fill` write it, and syncs it.
    fn write_file<T>(
        &mut self,
        kind: &str,
        fill: impl FnOnce(&mut Tally<'_>) -> io::Result<T>,
    ) -> Result<(T, FileRecord), StoreError> {
        self.check_not_failed("write")?;
        let number = self.manifest.tables.len() + self.manifest.blobs.len();
        let name = file_name(self.manifest.generation, number, kind);
        let path = self.dir.join(&name);
        self.failed = true;
        self.pending.push(name.clone());
        let mut sink = self.files.create(&path).map_err(|source| io_error(&path, "create", source))?;
        let mut tally = Tally { sink: sink.as_mut(), bytes: 0, crc32c: Digest::new(Crc32Iscsi) };
        let value = fill(&mut tally).map_err(|source| io_error(&path, "write", source))?;
        let (bytes, crc32c) = (tally.bytes, tally.crc32c.finalize() as u32);
        sink.sync().map_err(|source| io_error(&path, "sync", source))?;
        self.failed = false;
        Ok((value, FileRecord { name, bytes, crc32c }))
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        for name in &self.pending {
            let _ = self.files.remove(&self.dir.join(name));
        }
    }
}

/// Creates a directory and those above it that are missing, and syncs all that these are in: syncing a directory keeps what
/// is in it, but not itself.
fn create_dirs(files: &dyn Files, dir: &Path) -> io::Result<()> {
    let mut dirs: Vec<&Path> = dir.ancestors().filter(|dir| !dir.as_os_str().is_empty()).collect();
    dirs.reverse();
    for dir in dirs {
        let is_new = files.create_dir(dir)?;
        let Some(parent) = dir.parent() else { continue };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        // Those that were there as well, since who made them may not have come to this; but not all may be looked into.
        let synced = files.sync_dir(parent);
        if is_new {
            synced?;
        }
    }
    Ok(())
}

fn io_error(path: &Path, action: &'static str, source: io::Error) -> StoreError {
    StoreError::Io { path: path.to_path_buf(), action, source }
}
