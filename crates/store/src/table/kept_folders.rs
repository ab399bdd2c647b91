//! Folders of kept tables without opening the tables: lists and removes them, and tells the cost of their pages.

use std::path::{Path, PathBuf};

use crate::checkpoint::config_from_json;
use crate::index::directory::STRIPES;
use crate::kept::head::HeadFile;
use crate::kept::live::Live;
use crate::kept::{DROPPED, Folder, HEAD, LANES, UNDO, folder_name};
use crate::memory::Region;
use crate::memory::device;
use crate::memory::file::{Pages, pages_of};
use crate::memory::place::{Place, is_in_fd_store};
use crate::rows::layout::Layout;
use crate::rows::undo::UndoSlots;
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
        Pages::Small if is_in_fd_store(folder) => Some(
            "4 KiB pages: pulls of a table beyond the caches take up to 2.5 times as long; write advise to /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
        Pages::Small => Some(
            "4 KiB pages: pulls of a table beyond the caches take up to 2.5 times as long; use a tmpfs mounted with huge=advise",
        ),
        Pages::SmallOnDisk => Some(
            "pages of a disk: 4 KiB each, written back while pushes go on; use a tmpfs mounted with huge=advise",
        ),
    }
}

/// Removes a kept table that no process uses, whatever its layout; returns whether there was one.
///
/// # Errors
///
/// Another process uses it, or files cannot be removed.
pub fn forget_kept(root: &Path, name: &str) -> Result<bool, StoreError> {
    let failed = |source| StoreError::Io { path: root.to_path_buf(), action: "open", source };
    let name = folder_name(name);
    if !Place::of(root).map_err(failed)?.folder(&name).has(HEAD) {
        return Ok(false);
    }
    Folder::lock(&root.join(name))?.remove_all().map(|()| true)
}

/// Removes all tables that `root` keeps, also those that this version cannot read; returns the names of their folders.
/// A device with other content becomes an empty one.
///
/// # Errors
///
/// Another process uses one, or files cannot be removed.
pub fn forget_all_kept(root: &Path) -> Result<Vec<String>, StoreError> {
    let failed = |source| StoreError::Io { path: root.to_path_buf(), action: "empty", source };
    let place = Place::to_empty(root).map_err(failed)?;
    let mut removed = place.names().unwrap_or_default();
    removed.retain(|name| place.folder(name).has(HEAD));
    removed.iter().try_for_each(|name| Folder::lock(&root.join(name))?.remove_all())?;
    Ok(removed)
}

/// The tables that `root` keeps, by name. Reads them without a lock, also while a process uses them.
///
/// # Errors
///
/// The folder cannot be read, or a table in it is damaged or of another version.
pub fn kept_tables(root: &Path) -> Result<Vec<KeptTable>, StoreError> {
    let place = peek(root)?;
    let mut names = names(root, &place)?;
    names.retain(|name| !name.starts_with(DROPPED) && place.folder(name).has(HEAD));
    let tables = names.into_iter().map(|name| KeptTable::read(root.join(&name), &place.folder(&name)));
    let mut tables = tables.collect::<Result<Vec<_>, _>>()?;
    tables.sort_by(|one, other| one.config.name.cmp(&other.config.name));
    Ok(tables)
}

/// The table that `root` keeps under a name, if there is one. Reads it without a lock, as [`kept_tables`] does.
///
/// # Errors
///
/// The table is damaged or of another version.
pub fn kept_table(root: &Path, name: &str) -> Result<Option<KeptTable>, StoreError> {
    let name = folder_name(name);
    let place = peek(root)?.folder(&name);
    place.has(HEAD).then(|| KeptTable::read(root.join(name), &place)).transpose()
}

/// The names of files and folders in a folder for kept tables; none if it is not there.
///
/// # Errors
///
/// The folder cannot be read.
pub fn kept_names(root: &Path) -> Result<Vec<String>, StoreError> {
    names(root, &peek(root)?)
}

fn peek(root: &Path) -> Result<Place, StoreError> {
    Place::peek(root).map_err(|source| StoreError::Io { path: root.to_path_buf(), action: "open", source })
}

fn names(root: &Path, place: &Place) -> Result<Vec<String>, StoreError> {
    match place.names() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        names => names.map_err(|source| StoreError::Io { path: root.to_path_buf(), action: "list", source }),
    }
}

/// Whether a path is a device for kept tables, or a file that stands for one and has them.
#[must_use]
pub fn is_kept_device(path: &Path) -> bool {
    device::has_tables(path).unwrap_or(false)
}

/// Creates a folder for kept tables, with those above it. A device has all folders. A folder `fdstore:` is in the
/// descriptor store of the service manager, whose variables must be there.
///
/// # Errors
///
/// The folder cannot be created; there is no such manager, or its unit has no `FileDescriptorStoreMax`.
pub fn create_kept_folder(folder: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::Io { path: folder.to_path_buf(), action: "create", source };
    Place::create_folder(folder).map_err(failed)
}

impl KeptTable {
    fn read(folder: PathBuf, place: &Place) -> Result<KeptTable, StoreError> {
        let failed = |name: &str, source| StoreError::Io { path: folder.join(name), action: "open", source };
        let open = |name: &str| place.open(name).map_err(|error| failed(name, error));
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
