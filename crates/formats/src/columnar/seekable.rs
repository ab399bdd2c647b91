//! A columnar file that can be read at any position: the file itself, or a temporary copy of a compressed file, a
//! url, a pipe or standard input. Knows bytes only, neither Parquet nor Arrow.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use sanderling_sample::SampleError;

use crate::format::Compression;
use crate::input::is_local;
use crate::patient::Wanted;
use crate::temporary;

/// A file read by position. Clones share the file but no cursor, so that several columns can be read in turn.
#[derive(Clone, Debug)]
pub(super) struct Seekable {
    file: Arc<File>,
    len_bytes: u64,
}

impl Seekable {
    /// Opens a file. A compressed file, a url, a pipe or standard input (`-`) is copied into a temporary file first,
    /// while it is wanted.
    pub(super) fn open(
        path: &Path,
        compression: Compression,
        wanted: Option<&Wanted>,
    ) -> Result<Seekable, SampleError> {
        let failed = |source| SampleError::Io { path: path.to_path_buf(), source };
        // Checked before opening, which on a pipe may wait for its writer.
        let is_seekable =
            compression == Compression::None && is_local(path) && path.metadata().map_err(failed)?.is_file();
        let file =
            if is_seekable { File::open(path).map_err(failed)? } else { temporary::copy_of(path, wanted)? };
        let len_bytes = file.metadata().map_err(failed)?.len();
        Ok(Seekable { file: Arc::new(file), len_bytes })
    }

    pub(super) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Fills `out` from `offset`; an error if the file ends before.
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    /// Whether the file holds `length` bytes from `offset` on. Checked before allocating for them.
    pub(super) fn holds(&self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.len_bytes)
    }
}

/// Reads forward from a position without moving the file's own cursor.
pub(super) struct Forward {
    file: Arc<File>,
    offset: u64,
}

impl Read for Forward {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(out, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl Length for Seekable {
    fn len(&self) -> u64 {
        self.len_bytes
    }
}

impl ChunkReader for Seekable {
    type T = BufReader<Forward>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(BufReader::new(Forward { file: Arc::clone(&self.file), offset: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        if !self.holds(start, length as u64) {
            return Err(ParquetError::EOF(format!(
                "{length} bytes at {start} reach past the end of the file at {}",
                self.len_bytes
            )));
        }
        let mut bytes = vec![0; length];
        self.read_at(start, &mut bytes).map_err(|error| ParquetError::External(Box::new(error)))?;
        Ok(bytes.into())
    }
}
