//! Folders of files that are mapped as memory: in a file system, in the descriptor store of a service manager
//! ([`super::fd_store`]), or on a device without a file system ([`super::device`]). Knows no content.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::device::{Device, DeviceFolder, locate};
#[cfg(target_os = "linux")]
use super::fd_store::{self, UsedFolder};
use super::file::PageFile;

/// A folder of files. It need not exist.
#[derive(Debug)]
pub(crate) enum Place {
    FileSystem(PathBuf),
    #[cfg(target_os = "linux")]
    FdStore(PathBuf),
    /// A device, and the path of the folder in it.
    Device(Arc<Device>, String),
}

/// Keeps the folder from other tables of this process. The places that have it have one process at a time.
#[derive(Debug)]
pub(crate) enum PlaceInUse {
    #[cfg(target_os = "linux")]
    FdStore(#[expect(dead_code, reason = "its drop releases the folder")] UsedFolder),
    Device(#[expect(dead_code, reason = "its drop releases the folder")] DeviceFolder),
}

impl Place {
    /// The folder at a path. A device in it is locked for this process.
    pub(crate) fn of(path: &Path) -> io::Result<Place> {
        Place::find(path, Device::open)
    }

    /// The folder at a path, to read it while another process may use it.
    pub(crate) fn peek(path: &Path) -> io::Result<Place> {
        Place::find(path, Device::peek)
    }

    /// The folder at a path, to remove what is there. A device with other content becomes an empty one.
    pub(crate) fn to_empty(path: &Path) -> io::Result<Place> {
        Place::find(path, |device| match Device::open(device) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Device::open_or_format(device, true),
            opened => opened,
        })
    }

    fn find(path: &Path, open: impl Fn(&Path) -> io::Result<Arc<Device>>) -> io::Result<Place> {
        #[cfg(target_os = "linux")]
        if fd_store::is_in_store(path) {
            drop(fd_store::store()?);
            return Ok(Place::FdStore(path.to_path_buf()));
        }
        Ok(match locate(path) {
            Some((device, folder)) => Place::Device(open(&device)?, folder),
            None => Place::FileSystem(path.to_path_buf()),
        })
    }

    /// Creates a folder with those above it, in a file system. Checks that there is a descriptor store; opens no device.
    pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if fd_store::is_in_store(path) {
            return fd_store::store().map(drop);
        }
        if locate(path).is_some() { Ok(()) } else { std::fs::create_dir_all(path) }
    }

    /// A folder in this one.
    pub(crate) fn folder(&self, name: &str) -> Place {
        match self {
            Place::FileSystem(path) => Place::FileSystem(path.join(name)),
            #[cfg(target_os = "linux")]
            Place::FdStore(path) => Place::FdStore(path.join(name)),
            Place::Device(device, folder) => Place::Device(Arc::clone(device), below(folder, name)),
        }
    }

    /// Takes the folder for one table of this process; `None` in a file system, whose folders have a file to lock.
    pub(crate) fn take(&self) -> io::Result<Option<PlaceInUse>> {
        let used = match self {
            Place::FileSystem(_) => return Ok(None),
            #[cfg(target_os = "linux")]
            Place::FdStore(path) => fd_store::store()?.use_folder(path)?.map(PlaceInUse::FdStore),
            Place::Device(device, folder) => device.use_folder(folder).map(PlaceInUse::Device),
        };
        let in_use = || io::Error::new(io::ErrorKind::ResourceBusy, "this process uses the table already");
        used.map(Some).ok_or_else(in_use)
    }

    /// Creates an empty file, in the place of an earlier one.
    pub(crate) fn create(&self, name: &str) -> io::Result<PageFile> {
        match self {
            Place::FileSystem(path) => PageFile::create(&path.join(name)),
            #[cfg(target_os = "linux")]
            Place::FdStore(path) => {
                let path = path.join(name);
                PageFile::of(fd_store::store()?.create(&path)?, &path)
            }
            Place::Device(device, folder) => device.create(&below(folder, name)),
        }
    }

    /// Opens a file to read and write.
    pub(crate) fn open(&self, name: &str) -> io::Result<PageFile> {
        match self {
            Place::FileSystem(path) => PageFile::open(&path.join(name)),
            #[cfg(target_os = "linux")]
            Place::FdStore(path) => {
                let path = path.join(name);
                PageFile::of(fd_store::store()?.open(&path)?, &path)
            }
            Place::Device(device, folder) => device.open_file(&below(folder, name)),
        }
    }

    /// Whether there is such a file.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Place::FileSystem(path) => path.join(name).exists(),
            #[cfg(target_os = "linux")]
            Place::FdStore(path) => fd_store::store().is_ok_and(|store| store.exists(&path.join(name))),
            Place::Device(device, folder) => device.has(&below(folder, name)),
        }
    }

    /// Removes a file. Mappings of it stay valid.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        match self {
            Place::FileSystem(path) => std::fs::remove_file(path.join(name)),
            #[cfg(target_os = "linux")]
            Place::FdStore(path) => fd_store::store()?.remove(&path.join(name)),
            Place::Device(device, folder) => {
                let removed = below(folder, name);
                device.remove(&|file| file == removed)
            }
        }
    }

    /// Gives a complete file its name, in the place of an earlier one on a file system. The name before ends with `.new`.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        match self {
            Place::FileSystem(path) => std::fs::rename(path.join(from), path.join(to)),
            #[cfg(target_os = "linux")]
            Place::FdStore(path) => fd_store::store()?.rename(&path.join(from), &path.join(to)),
            Place::Device(device, folder) => device.rename(&below(folder, from), &below(folder, to)),
        }
    }

    /// The names of its files and folders, without order.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        match self {
            Place::FileSystem(path) => {
                let entries = std::fs::read_dir(path)?.flatten();
                Ok(entries.filter_map(|entry| entry.file_name().into_string().ok()).collect())
            }
            #[cfg(target_os = "linux")]
            Place::FdStore(path) => fd_store::store()?.list(path),
            Place::Device(device, folder) => Ok(device.list(&below(folder, ""))),
        }
    }

    /// Makes the names of its files durable. Those of a device are, whenever they change.
    pub(crate) fn sync(&self) -> io::Result<()> {
        match self {
            Place::FileSystem(path) => File::open(path)?.sync_all(),
            _ => Ok(()),
        }
    }

    /// Removes all files of a folder that is no file system's, `first` before the others, and ends its use. Returns false
    /// in a file system, without a change.
    pub(crate) fn remove_all(&self, first: &str) -> io::Result<bool> {
        match self {
            Place::FileSystem(_) => return Ok(false),
            #[cfg(target_os = "linux")]
            Place::FdStore(path) => fd_store::store()?.remove_folder(path, first)?,
            // All at once.
            Place::Device(device, folder) => device.remove_folder(folder)?,
        }
        Ok(true)
    }
}

/// Whether a path leads into the descriptor store of a service manager.
pub(crate) fn is_in_fd_store(path: &Path) -> bool {
    #[cfg(target_os = "linux")]
    return fd_store::is_in_store(path);
    #[cfg(not(target_os = "linux"))]
    false
}

/// A name in a folder of a device.
fn below(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}
