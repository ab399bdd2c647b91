//! The file operations of a save, as a trait, so that tests can inject a fault into each of them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::disk_file::DiskFile;

/// A file open for writing.
pub(crate) trait Sink: Send {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Returns once the content is on the device.
    fn sync(&mut self) -> io::Result<()>;
    /// Like [`Sink::sync`], but need not write the time of the change.
    fn sync_data(&mut self) -> io::Result<()> {
        self.sync()
    }
}

/// The file operations of a save.
pub(crate) trait Files: Send {
    /// Creates a directory in an existing one; returns whether it was missing.
    fn create_dir(&self, path: &Path) -> io::Result<bool>;
    /// Reads the whole file; `None` if there is none.
    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>>;
    /// Creates or truncates the file.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Sink>>;
    /// Renames the file atomically, replacing an existing one.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Returns once creations, renames and removals in the directory are on the device.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Lists the files of the directory.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
}

/// Opens a regular file for reading.
///
/// Fails with [`io::ErrorKind::InvalidData`] for other files: reading a pipe could block forever, and a device may
/// have no end.
pub fn open_regular(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().read(true), path)
}

/// Creates or truncates a regular file for writing; fails for other files like [`open_regular`].
pub fn create_regular(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().write(true).create(true).truncate(true), path)
}

fn regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // Without it, opening a pipe would block. It does not affect regular files.
    let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "it is no regular file"))
}

/// The file system.
#[derive(Debug)]
pub(crate) struct Disk;

impl Files for Disk {
    fn create_dir(&self, path: &Path) -> io::Result<bool> {
        match fs::create_dir(path) {
            Ok(()) => Ok(true),
            Err(_) if path.is_dir() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        let mut file = match open_regular(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Sink>> {
        Ok(Box::new(DiskFile::new(create_regular(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(path)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }
}
