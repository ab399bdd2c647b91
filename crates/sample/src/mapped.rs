//! A memory-mapped file. It knows nothing of its content.
#![allow(unsafe_code)] // mapping a file, which no caller can promise to leave unchanged

use std::fs::File;
use std::io;

use memmap2::{Advice, Mmap};

/// A file that is mapped for reading.
///
/// Truncating the file while it is mapped ends the process with SIGBUS; so files are written under another name and
/// renamed, never changed. Bytes that change during reading are harmless: every use is checked against the bounds of
/// the mapping.
#[derive(Debug)]
pub struct MappedFile(Mmap);

impl MappedFile {
    /// Maps the whole of a regular file.
    pub fn open(file: &File) -> io::Result<MappedFile> {
        // SAFETY: the mapping is private to this value and only read. Only plain numbers are read from it, for which
        // every pattern of bits is valid, and values computed from them are checked before use as an index.
        let map = unsafe { Mmap::map(file)? };
        // Advice may fail without harm.
        let _ = map.advise(Advice::Sequential);
        Ok(MappedFile(map))
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}
