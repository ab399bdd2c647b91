//! Files by path: in a folder of a file system, or in the descriptor store of a service manager ([`super::fd_store`]).
//! Knows no content.

use std::fs::File;
use std::io;
use std::path::Path;

#[cfg(target_os = "linux")]
use super::fd_store;

/// Runs the first on the descriptor store if the path is in it, otherwise the second.
macro_rules! in_place {
    ($path:expr, $store:expr, $folder:expr) => {{
        #[cfg(target_os = "linux")]
        if fd_store::is_in_store($path) {
            return fd_store::store().and_then($store);
        }
        $folder
    }};
}

/// Whether the path is in the descriptor store of a service manager.
pub(crate) fn is_in_fd_store(path: &Path) -> bool {
    #[cfg(target_os = "linux")]
    return fd_store::is_in_store(path);
    #[cfg(not(target_os = "linux"))]
    false
}

/// Creates an empty file, in the place of an earlier one.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    in_place!(path, |mut store| store.create(path), {
        // A new inode: an earlier process may still be mapping the old one.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        File::options().create_new(true).read(true).write(true).mode(0o600).open(path)
    })
}

/// Opens a file to read and write.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    in_place!(path, |store| store.open(path), File::options().read(true).write(true).open(path))
}

/// Whether there is such a file or folder.
pub(crate) fn exists(path: &Path) -> bool {
    let there = || -> io::Result<bool> { in_place!(path, |store| Ok(store.exists(path)), Ok(path.exists())) };
    there().unwrap_or(false)
}

pub(crate) fn remove(path: &Path) -> io::Result<()> {
    in_place!(path, |mut store| store.remove(path), std::fs::remove_file(path))
}

/// Gives a complete file its name. The name before ends with `.new`.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    in_place!(from, |mut store| store.rename(from, to), std::fs::rename(from, to))
}

/// The names of files and folders in a folder.
pub(crate) fn list(path: &Path) -> io::Result<Vec<String>> {
    in_place!(path, |store| store.list(path), {
        let entries = std::fs::read_dir(path)?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    })
}

/// Creates a folder with those above it. In a descriptor store, checks that there is one.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    in_place!(path, |_| Ok(()), std::fs::create_dir_all(path))
}

/// Makes the names of a folder's files durable.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    in_place!(path, |_| Ok(()), File::open(path)?.sync_all())
}
