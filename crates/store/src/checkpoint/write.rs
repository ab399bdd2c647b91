//! Saves checkpoints: writes new files next to the old ones, then replaces the manifest atomically. The blocks of a
//! large table are written by another thread while this one walks its rows.

use std::io;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, scope};

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use crc_fast::Digest;

use super::files::{Disk, Files, Sink};
use super::manifest::{
    BlobRecord, FileRecord, MANIFEST, MANIFEST_BYTES_MAX, MANIFEST_NEW, Manifest, TableEntry, TableRecord,
    file_name, parse_file_name,
};
use super::rows::{self, BLOCK_BYTES, RowShape};
use crate::config::NAME_BYTES_MAX;
use crate::rows::numbers::RowNumbers;
use crate::{RowRef, StoreError, Table, TableConfig};

/// Blocks that wait to be written.
const WAITING_BLOCKS: usize = 8;

/// Writes a checkpoint into a directory, which may hold an earlier one.
///
/// The earlier checkpoint remains valid until [`CheckpointWriter::commit`] returns, even after an error, a kill or
/// a power loss. A writer that is dropped without a commit removes its files. Only one writer may use a directory
/// at a time.
pub struct CheckpointWriter {
    dir: PathBuf,
    files: Box<dyn Files>,
    pub(super) manifest: Manifest,
    /// Data files that the manifest on disk does not name yet.
    pending: Vec<String>,
    /// Set by an error; an incomplete checkpoint must not be committed.
    failed: bool,
    /// Keys of past epochs that tables keep, if deltas shall follow.
    change_keys: Option<usize>,
    files_written: usize,
}

impl std::fmt::Debug for CheckpointWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckpointWriter").field("dir", &self.dir).field("manifest", &self.manifest).finish()
    }
}

/// Rows that were skipped because they are not finite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedRows {
    /// Number of skipped rows.
    pub rows: u64,
    /// Key of the first one.
    pub key: u64,
    /// The fault of the first one.
    pub reason: String,
}

/// Computes size and checksum of a file.
pub(super) struct Tally<'a> {
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

    /// Writes the blocks that `fill` passes on, from the first full one on by another thread.
    pub(super) fn write_blocks<T>(
        &mut self,
        fill: impl FnOnce(&mut dyn FnMut(&mut Vec<u8>) -> io::Result<()>) -> io::Result<T>,
    ) -> io::Result<T> {
        let tally = Mutex::new(self);
        let (blocks, waiting) = sync_channel::<Vec<u8>>(WAITING_BLOCKS);
        let (written, spare) = channel();
        let mut ends = Some((waiting, written));
        scope(|scope| {
            let mut writer = None;
            let filled = fill(&mut |block| {
                if block.len() >= BLOCK_BYTES
                    && let Some((waiting, written)) = ends.take()
                {
                    let tally = &tally;
                    let work = move || write_waiting(tally, &waiting, &written);
                    // Where the system gives no thread, this one writes.
                    writer = Builder::new().spawn_scoped(scope, work).ok();
                }
                if writer.is_none() {
                    return tally.lock().unwrap_or_else(PoisonError::into_inner).write(block);
                }
                let block = std::mem::replace(block, spare.try_recv().unwrap_or_default());
                blocks.send(block).map_err(|_| io::Error::other("the thread that writes has failed"))
            });
            drop(blocks);
            // Its error is the cause of the other one.
            writer.map_or(Ok(()), |writer| writer.join().unwrap_or_else(|panic| resume_unwind(panic)))?;
            filled
        })
    }
}

/// Writes blocks until there are no more, and returns their buffers.
fn write_waiting(
    tally: &Mutex<&mut Tally<'_>>,
    blocks: &Receiver<Vec<u8>>,
    written: &Sender<Vec<u8>>,
) -> io::Result<()> {
    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    for block in blocks {
        tally.write(&block)?;
        let _ = written.send(block);
    }
    Ok(())
}

impl CheckpointWriter {
    /// Begins a checkpoint, creating the directory if needed.
    ///
    /// Fails if the directory holds a damaged manifest, or a file with the largest possible generation: move it
    /// away.
    pub fn create(dir: impl AsRef<Path>) -> Result<CheckpointWriter, StoreError> {
        CheckpointWriter::create_on(Box::new(Disk), dir.as_ref())
    }

    pub(crate) fn create_on(files: Box<dyn Files>, dir: &Path) -> Result<CheckpointWriter, StoreError> {
        create_dirs(files.as_ref(), dir).map_err(|source| io_error(dir, "create directory", source))?;
        let previous = previous(files.as_ref(), dir)?;
        CheckpointWriter::after(files, dir, previous.as_ref())
    }

    /// Begins a checkpoint in an existing directory.
    pub(super) fn after(
        files: Box<dyn Files>,
        dir: &Path,
        previous: Option<&Manifest>,
    ) -> Result<CheckpointWriter, StoreError> {
        // After all existing files, so that leftovers of an interrupted save are not mixed in.
        let names = files.list(dir).map_err(|source| io_error(dir, "list", source))?;
        let leftover = names.iter().filter_map(|name| parse_file_name(name)).max().unwrap_or(0);
        let latest = previous.map_or(0, |manifest| manifest.generation).max(leftover);
        let dir = dir.to_path_buf();
        let Some(generation) = latest.checked_add(1) else {
            let reason = format!("it has a file of the last possible generation, {latest}: move it away");
            return Err(StoreError::Damaged { path: dir, reason });
        };
        let manifest = Manifest::new(generation);
        let (pending, failed, change_keys, files_written) = (Vec::new(), false, None, 0);
        Ok(CheckpointWriter { dir, files, manifest, pending, failed, change_keys, files_written })
    }

    /// Subscribes to the changes of all tables that are written from now on, so that deltas can follow
    /// ([`DeltaWriter`](crate::DeltaWriter)). `keys_max` bounds the keys of a delta ([`Table::subscribe_changes`]).
    pub fn begin_chain(&mut self, keys_max: usize) {
        self.change_keys = Some(keys_max);
        self.manifest.begin_chain();
    }

    pub(super) fn no_delta(&self, reason: &str) -> StoreError {
        no_delta(&self.dir, reason)
    }

    /// Begins a subscription, if deltas shall follow. Called before the rows are read.
    fn subscribe(&self, table: &Table) -> Result<Option<u64>, StoreError> {
        self.change_keys.map(|keys_max| table.subscribe_changes(keys_max)).transpose()
    }

    fn set_epoch(&mut self, epoch: Option<u64>) {
        if let Some(record) = self.manifest.tables.last_mut() {
            record.epoch = epoch;
        }
    }

    /// Writes a table while other threads may use it; each row is written as of its turn.
    ///
    /// # Errors
    ///
    /// [`StoreError::Diverged`] if a row is not finite: the checkpoint could not be loaded.
    pub fn table(&mut self, table: &Table) -> Result<(), StoreError> {
        let (epoch, pushes) = (self.subscribe(table)?, table.clock());
        self.rows(table.config(), |each| {
            // It breaks only if writing has failed, which is reported below.
            let _ = table.try_for_each_row(each);
            Ok::<_, StoreError>(pushes)
        })?;
        self.set_epoch(epoch);
        Ok(())
    }

    /// Writes a table like [`CheckpointWriter::table`], but skips and reports rows that are not finite.
    ///
    /// Such rows do not prevent the save of others.
    pub fn table_of_finite_rows(&mut self, table: &Table) -> Result<Option<SkippedRows>, StoreError> {
        let epoch = self.subscribe(table)?;
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
        self.set_epoch(epoch);
        Ok(left_out)
    }

    /// Writes a table of another process.
    ///
    /// `each_row` must pass every row to its argument, each key once, and return the table's use clock (number of
    /// pushes). If the argument breaks, writing has failed, and `each_row` may stop.
    ///
    /// # Panics
    ///
    /// If a row does not have the configuration's shape.
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

    /// Writes finite rows; `bad` decides whether to go on after others.
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
            tally.write_blocks(|write| rows::encode(shape, generation, write, each_good_row))
        })?;
        // An incomplete table must not be committed.
        let pushes = pushes.inspect_err(|_| self.failed = true)?;
        self.manifest.tables.push(TableRecord::new(config, file, rows, pushes));
        Ok(())
    }

    /// The tables written so far.
    pub fn tables(&self) -> impl Iterator<Item = TableEntry> + '_ {
        self.manifest.tables.iter().map(|table| self.manifest.table_entry(table))
    }

    /// Writes named bytes, such as other parts of a model.
    pub fn blob(&mut self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.check_is_new("blob", name)?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let reason =
                format!("the name of a blob must have 1 to {NAME_BYTES_MAX} bytes, not {}", name.len());
            return Err(io_error(&self.dir, "write", io::Error::new(io::ErrorKind::InvalidInput, reason)));
        }
        let ((), file) = self.write_file("blob", |tally| tally.write(bytes))?;
        let blob = BlobRecord { name: name.to_string(), file };
        self.manifest.deltas.last_mut().map_or(&mut self.manifest.blobs, |delta| &mut delta.blobs).push(blob);
        Ok(())
    }

    /// Replaces the directory's checkpoint by this one and removes the old files; returns the generation.
    ///
    /// Files that cannot be removed are left to the next commit.
    pub fn commit(mut self) -> Result<u64, StoreError> {
        self.check_not_failed("commit")?;
        let (new, path) = (self.dir.join(MANIFEST_NEW), self.dir.join(MANIFEST));
        let bytes = self.manifest.encode().map_err(|error| io_error(&new, "encode", error.into()))?;
        // The existing checkpoint can be opened, this one could not.
        if bytes.len() > MANIFEST_BYTES_MAX {
            let reason = format!(
                "{} bytes, at most {MANIFEST_BYTES_MAX} are readable: save fewer tables or blobs",
                bytes.len()
            );
            return Err(io_error(&new, "write", io::Error::new(io::ErrorKind::FileTooLarge, reason)));
        }
        let mut sink = self.files.create(&new).map_err(|source| io_error(&new, "create", source))?;
        sink.write_all(&bytes).map_err(|source| io_error(&new, "write", source))?;
        sink.sync().map_err(|source| io_error(&new, "sync", source))?;
        drop(sink);
        // The directory entries of data files must be durable before a manifest names them.
        self.sync_dir()?;
        // From here on the new manifest may be on disk even after an error: keep its files.
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
            _ => self.manifest.latest_blobs().iter().any(|blob| blob.name == name),
        };
        if taken {
            return Err(StoreError::DuplicateName { kind, name: name.to_string() });
        }
        Ok(())
    }

    /// Creates a data file, lets `fill` write it, and syncs it.
    pub(super) fn write_file<T>(
        &mut self,
        kind: &str,
        fill: impl FnOnce(&mut Tally<'_>) -> io::Result<T>,
    ) -> Result<(T, FileRecord), StoreError> {
        self.check_not_failed("write")?;
        let number = self.files_written;
        let name = file_name(self.manifest.generation, number, kind);
        let path = self.dir.join(&name);
        self.failed = true;
        self.pending.push(name.clone());
        self.files_written += 1;
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

/// Creates missing directories and syncs their parents: syncing a directory makes its content durable, but not
/// itself.
pub(super) fn create_dirs(files: &dyn Files, dir: &Path) -> io::Result<()> {
    let mut dirs: Vec<&Path> = dir.ancestors().filter(|dir| !dir.as_os_str().is_empty()).collect();
    dirs.reverse();
    for dir in dirs {
        let is_new = files.create_dir(dir)?;
        let Some(parent) = dir.parent() else { continue };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        // Also syncs existing directories, whose creator may have been interrupted; but some may not be readable.
        let synced = files.sync_dir(parent);
        if is_new {
            synced?;
        }
    }
    Ok(())
}

/// The manifest of the checkpoint in a directory, if there is one.
pub(super) fn previous(files: &dyn Files, dir: &Path) -> Result<Option<Manifest>, StoreError> {
    let path = dir.join(MANIFEST);
    let bytes = files.read(&path).map_err(|source| io_error(&path, "read", source))?;
    bytes.map(|bytes| Manifest::decode(&path, &bytes)).transpose()
}

pub(super) fn no_delta(dir: &Path, reason: &str) -> StoreError {
    StoreError::NoDelta { path: dir.to_path_buf(), reason: reason.to_string() }
}

fn io_error(path: &Path, action: &'static str, source: io::Error) -> StoreError {
    StoreError::Io { path: path.to_path_buf(), action, source }
}
