//! Folders of kept tables without opening the tables: lists and removes them, tells the cost of their pages, and maps
//! files beside them.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU8;

use crate::checkpoint::config_from_json;
use crate::index::directory::STRIPES;
use crate::kept::head::HeadFile;
use crate::kept::live::Live;
use crate::kept::{DROPPED, Folder, HEAD, LANES, UNDO, folder_name};
use crate::memory::Region;
use crate::memory::device::{Device, locate};
use crate::memory::file::{PageFile, Pages, pages_of};
use crate::memory::persist::{Persist, Step};
use crate::rows::layout::Layout;
use crate::rows::undo::UndoSlots;
use crate::table::durability::{Durability, can_survive_power};
use crate::{StoreError, TableConfig};

/// A kept table, as its folder describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptTable {
    /// The folder of the table.
    pub folder: PathBuf,
    /// The table's configuration.
    pub config: TableConfig,
    /// A text of the owner, see [`crate::Table::kept`].
    pub note: String,
    /// Rows, up to those in hand when the last process died.
    pub rows: u64,
    /// Rows that have memory.
    pub charged_rows: u64,
    /// The table's number of pushes.
    pub pushes: u64,
    /// Changes that the next process that opens it will mend.
    pub interrupted: usize,
}

/// The cost of the pages of a folder's file system, unless they are huge.
#[must_use]
pub fn pages_cost(folder: &Path) -> Option<&'static str> {
    match pages_of(folder).unwrap_or(Pages::SmallOnDisk) {
        Pages::Huge | Pages::HugeIfAsked => None,
        Pages::Small => Some(
            "4 KiB pages: pulls of a table beyond the caches take up to 2.5 times as long; use a tmpfs mounted with huge=advise",
        ),
        Pages::SmallOnDisk => Some(
            "pages of a disk: 4 KiB each, written back while pushes go on; use a tmpfs mounted with huge=advise",
        ),
    }
}

/// Bytes of a file that outlive the process, beside kept tables.
#[derive(Debug)]
pub struct KeptBytes {
    bytes: Region<AtomicU8>,
    persist: Option<Persist>,
}

impl KeptBytes {
    /// Opens a file of this length, and creates it with zeros if there is none. It survives what `durability` says.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, has another length, or its file system has no space.
    pub fn open(path: &Path, len: usize, durability: Durability) -> Result<KeptBytes, StoreError> {
        let can_sync = path.parent().is_some_and(can_survive_power);
        let writes_back = match durability {
            Durability::Process => false,
            Durability::Detect | Durability::Power => can_sync,
            Durability::Emulate => true,
        };
        let persist = Persist::detect().filter(|_| writes_back);
        let open = || {
            let is_synced = can_sync && persist.is_some();
            let file = match path.parent().and_then(locate) {
                Some((device, folder)) => open_on_device(&device, &folder, path)?,
                None if path.exists() => PageFile::open(path)?,
                None => PageFile::create(path)?,
            };
            let file = file.synced(is_synced);
            file.extend(len as u64)?;
            if is_synced {
                file.sync()?;
                let folder = path.parent().filter(|folder| folder.is_dir());
                folder.map_or(Ok(()), |folder| std::fs::File::open(folder)?.sync_all())?;
            }
            let bytes = Region::of_file(file, len)?;
            bytes.reserve(0..len)?;
            Ok(bytes)
        };
        let failed = |source| StoreError::Io { path: path.to_path_buf(), action: "open", source };
        let bytes = open().map_err(failed)?;
        let opened = KeptBytes { bytes, persist };
        // Bytes that a killed process has not written back.
        opened.write_back(0..len);
        Ok(opened)
    }

    /// Makes these bytes durable before later stores, if the file survives the loss of power.
    pub fn write_back(&self, bytes: Range<usize>) {
        if let Some(persist) = self.persist {
            persist.write_back(Step::Bytes, &self.bytes[bytes]);
        }
    }
}

/// A file on a device, which is created if there is none.
fn open_on_device(device: &Path, folder: &str, path: &Path) -> std::io::Result<PageFile> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
    let device = Device::open(device)?;
    if device.has(&name) { device.open_file(&name) } else { device.create(&name) }
}

impl std::ops::Deref for KeptBytes {
    type Target = [AtomicU8];

    fn deref(&self) -> &[AtomicU8] {
        &self.bytes
    }
}

/// Makes a folder for kept tables. A device has all folders.
///
/// # Errors
///
/// The folder cannot be created.
pub fn make_kept_folder(folder: &Path) -> Result<(), StoreError> {
    if locate(folder).is_some() {
        return Ok(());
    }
    let failed = |source| StoreError::Io { path: folder.to_path_buf(), action: "create the folder", source };
    std::fs::create_dir_all(folder).map_err(failed)
}

/// Removes a kept table that no process uses, whatever its layout; returns whether there was one.
///
/// # Errors
///
/// Another process uses it, or files cannot be removed.
pub fn forget_kept(root: &Path, name: &str) -> Result<bool, StoreError> {
    let path = root.join(folder_name(name));
    if locate(root).is_none() && !path.join(HEAD).exists() {
        return Ok(false);
    }
    let folder = Folder::lock(&path)?;
    let is_there = folder.has(HEAD);
    folder.remove_all().map(|()| is_there)
}

/// Removes all tables that `root` keeps, also those that this version cannot read; returns the names of their folders.
/// A device with other content becomes an empty one.
///
/// # Errors
///
/// Another process uses one, or files cannot be removed.
pub fn forget_all_kept(root: &Path) -> Result<Vec<String>, StoreError> {
    let failed = |source| StoreError::Io { path: root.to_path_buf(), action: "empty", source };
    let folders = match locate(root) {
        None => {
            let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).filter(|path| path.join(HEAD).exists()).collect()
        }
        Some((device, prefix)) => {
            let opened = match Device::open(&device) {
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                    Device::open_or_format(&device, true)
                }
                opened => opened,
            };
            let opened = opened.map_err(failed)?;
            folders_on_device(&opened, &device, &prefix)
        }
    };
    let mut removed = Vec::new();
    for path in folders {
        Folder::lock(&path)?.remove_all()?;
        removed.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
    }
    Ok(removed)
}

/// The folders of tables on a device, below a folder of it.
fn folders_on_device(device: &Device, path: &Path, prefix: &str) -> Vec<PathBuf> {
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
    let names = device.names(&prefix);
    let folders = names.iter().filter_map(|name| name.strip_suffix(HEAD)?.strip_suffix('/'));
    folders.map(|folder| path.join(folder)).collect()
}

/// The tables that `root` keeps, by name. Reads them without a lock, also while a process uses them.
///
/// # Errors
///
/// The folder cannot be read, or a table in it is damaged or of another version.
pub fn kept_tables(root: &Path) -> Result<Vec<KeptTable>, StoreError> {
    let failed = |source| StoreError::Io { path: root.to_path_buf(), action: "list", source };
    let mut found = Vec::new();
    if let Some((path, prefix)) = locate(root) {
        let device = Device::peek(&path).map_err(failed)?;
        for folder in folders_on_device(&device, &path, &prefix) {
            let open = |name: &str| device.open_file(&device.name_of(&folder.join(name)));
            found.push(KeptTable::read(folder.clone(), open)?);
        }
        return Ok(found);
    }
    let entries = match std::fs::read_dir(root) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let folder = entry.map_err(failed)?.path();
        let is_dropped = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(DROPPED));
        if folder.join(HEAD).exists() && !is_dropped {
            found.push(KeptTable::read(folder.clone(), |name| PageFile::open(&folder.join(name)))?);
        }
    }
    found.sort_by(|one, other| one.config.name.cmp(&other.config.name));
    Ok(found)
}

impl KeptTable {
    fn read(
        folder: PathBuf,
        open: impl Fn(&str) -> std::io::Result<PageFile>,
    ) -> Result<KeptTable, StoreError> {
        let failed = |name: &str, source| StoreError::Io { path: folder.join(name), action: "open", source };
        let open = |name: &str| open(name).map_err(|error| failed(name, error));
        let mut head_file = HeadFile::new(open(HEAD)?, None).map_err(|error| failed(HEAD, error))?;
        let head = head_file.read(&folder.join(HEAD))?;
        let config = config_from_json(head.config)
            .map_err(|reason| StoreError::Damaged { path: folder.join(HEAD), reason })?;
        let live = Live::new(open(LANES)?, None).map_err(|error| failed(LANES, error))?;
        let undo = Region::of_file(open(UNDO)?, UndoSlots::words(Layout::new(&config).words()))
            .map_err(|error| failed(UNDO, error))?;
        let undo = UndoSlots::new(undo, Layout::new(&config).words());
        let interrupted = live.in_hand(STRIPES).len() + undo.interrupted(live.rows()).len();
        let (rows, charged_rows, pushes) = (live.keys(), live.rows(), live.clock());
        Ok(KeptTable { folder, config, note: head.note, rows, charged_rows, pushes, interrupted })
    }
}
