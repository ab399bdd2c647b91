//! A file as memory. It knows nothing of what is in it.
#![allow(unsafe_code)] // mapping a file, of which nobody can promise that it stays as it is

use std::fs::File;
use std::io;

use memmap2::{Advice, Mmap};

/// A file that is mapped, for reading.
///
/// Whoever cuts the file short while it is mapped ends the process with SIGBUS; so files are written under another
/// name and renamed, never changed. What changes under the reader is read as it is found: every use is checked against
/// the bounds of the mapping.
#[derive(Debug)]
pub struct MappedFile(Mmap);

impl MappedFile {
    /// Maps the whole of a regular file.
    pub fn open(file: &File) -> io::Result<MappedFile> {
        // SAFETY: the mapping is private to this value and only read. Plain numbers are all that is read from it, for which
        // every pattern of bits is valid, and what is computed from them is checked where it is used as an index.
        let map = unsafe { Mmap::map(file)? };
        // It is only advice.
        let _ = map.advise(Advice::Sequential);
        Ok(MappedFile(map))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}
