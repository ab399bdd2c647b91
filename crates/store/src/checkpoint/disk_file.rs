//! A file of a save that is on its way to the device while the rest of it is written. Knows no format.
#![allow(unsafe_code)] // the system call that starts writing

use std::fs::File;
use std::io::{self, Write};

use super::files::Sink;

/// The device gets pieces of this size.
const PIECE_BYTES: u64 = 8 << 20;

/// A file open for writing.
#[derive(Debug)]
pub(super) struct DiskFile {
    file: File,
    bytes: u64,
    /// Bytes that the device has been given.
    started: u64,
}

impl DiskFile {
    pub(super) fn new(file: File) -> DiskFile {
        DiskFile { file, bytes: 0, started: 0 }
    }
}

impl Sink for DiskFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        if self.bytes - self.started >= PIECE_BYTES {
            start_writing(&self.file, self.started, self.bytes - self.started);
            self.started = self.bytes;
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn sync_data(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Starts to write a range of a file to the device, without waiting: `sync` then waits for the rest only. An error is
/// left to `sync`, which reports it.
#[cfg(all(target_os = "linux", not(miri)))]
fn start_writing(file: &File, first: u64, bytes: u64) {
    use std::os::fd::AsRawFd;

    let (Ok(first), Ok(bytes)) = (i64::try_from(first), i64::try_from(bytes)) else { return };
    // SAFETY: the call takes numbers only, and the descriptor is open as long as the file is borrowed.
    unsafe { libc::sync_file_range(file.as_raw_fd(), first, bytes, libc::SYNC_FILE_RANGE_WRITE) };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn start_writing(_: &File, _: u64, _: u64) {}
