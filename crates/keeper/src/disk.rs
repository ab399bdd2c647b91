//! The folder of a keeper, as the operations that the journal needs. Knows no format.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;

/// Files of one folder.
pub(crate) trait Disk: Debug + Send {
    /// Reads a whole file, at most `bytes_max`. `None`: there is none.
    fn read(&self, name: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>>;
    /// Creates an empty file, or empties it.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a file to append to it.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Gives a file another name, whose file is replaced.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes names durable.
    fn sync_names(&self) -> io::Result<()>;
}

/// A file open for appending.
pub(crate) trait DiskFile: Debug + Send {
    /// Appends bytes, or part of them if it fails.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes the content durable.
    fn sync(&mut self) -> io::Result<()>;
    /// Cuts the file to this length.
    fn cut(&mut self, bytes: u64) -> io::Result<()>;
}

/// A folder of the system.
#[derive(Debug)]
pub(crate) struct Folder(pub(crate) PathBuf);

impl Disk for Folder {
    fn read(&self, name: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(self.0.join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file"));
        }
        let mut bytes = Vec::new();
        file.take(bytes_max + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > bytes_max {
            true => {
                Err(io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {bytes_max} bytes")))
            }
            false => Ok(Some(bytes)),
        }
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().create(true).write(true).truncate(true).open(self.0.join(name))?;
        Ok(Box::new(file))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut file = OpenOptions::new().write(true).open(self.0.join(name))?;
        file.seek(SeekFrom::End(0))?;
        Ok(Box::new(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }
}

impl DiskFile for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)?;
        self.seek(SeekFrom::Start(bytes)).map(drop)
    }
}
