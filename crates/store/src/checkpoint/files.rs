//! The few file operations that a save is made of, behind a trait, so that a test can fail or stop at every one of
//! them. Knows nothing of what is in the files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A file that is being written.
pub(crate) trait Sink {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Returns when the content is on the device.
    fn sync(&mut self) -> io::Result<()>;
}

/// What a save asks of the file system.
pub(crate) trait Files: Send {
    /// Creates the directory, in one that is there, unless it is there itself; was it not?
    fn create_dir(&self, path: &Path) -> io::Result<bool>;
    /// The whole content, or `None` when there is no such file.
    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>>;
    /// Creates the file, or empties it.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Sink>>;
    /// Atomically gives the file another name, replacing what had it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Returns when creations, renamings and removals in the directory are on the device.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Names of the files in the directory.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
}

/// Opens a file of a checkpoint, or of the folders that checkpoints are in, to be read. Fails with
/// [`io::ErrorKind::InvalidData`] where there is something else: a pipe would be waited for until somebody writes to it, and a
/// device may have no end.
pub fn open_regular(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().read(true), path)
}

/// Creates such a file, or empties it, in the same way.
pub fn create_regular(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().write(true).create(true).truncate(true), path)
}

fn regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // Or opening a pipe would itself wait. To a regular file it is nothing.
    let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "it is no regular file"))
}

/// The file system of the machine.
#[derive(Debug)]
pub(crate) struct Disk;

impl Sink for File {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        Write::write_all(self, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

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
        Ok(Box::new(create_regular(path)?))
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
