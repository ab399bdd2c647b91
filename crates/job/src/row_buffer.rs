//! Packed rows that a worker received, by slices of places: in memory up to a limit, beyond it in a temporary file.
//! Does not know what is in a row.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::error::JobError;

/// When memory is full, slices are written out from the last one on, which is read back last: until there is room again, so
/// that what is hardly more than memory holds hardly goes through the file.
pub(crate) struct RowBuffer {
    slices: Vec<Slice>,
    bytes: usize,
    bytes_max: usize,
    directory: PathBuf,
    /// It has no name in the directory, so that nothing is left of it however the process ends.
    file: Option<File>,
    file_bytes: u64,
}

/// The fraction of memory that is freed at a time.
const ROOM_PART: usize = 8;

#[derive(Default)]
struct Slice {
    pieces: Vec<Vec<u8>>,
    /// Where in the file more of them are; each as long as what fits in memory, at most.
    stored: Vec<Range<u64>>,
}

impl RowBuffer {
    /// Nothing, of so many slices; up to `bytes_max` of them in memory.
    pub(crate) fn new(slices: usize, bytes_max: usize, directory: PathBuf) -> RowBuffer {
        let slices = (0..slices).map(|_| Slice::default()).collect();
        RowBuffer { slices, bytes: 0, bytes_max, directory, file: None, file_bytes: 0 }
    }

    pub(crate) fn slices(&self) -> usize {
        self.slices.len()
    }

    /// Bytes that were written to a temporary file.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Keeps rows of a slice.
    pub(crate) fn keep(&mut self, slice: usize, mut piece: Vec<u8>) -> Result<(), JobError> {
        if piece.len() < piece.capacity() / 2 {
            piece.shrink_to_fit();
        }
        let kept = self.slices.get_mut(slice).ok_or(JobError::Damaged("rows of a slice that is none"))?;
        self.bytes += piece.len();
        kept.pieces.push(piece);
        if self.bytes > self.bytes_max {
            let written = self.write_out();
            written.map_err(|source| JobError::Scratch { directory: self.directory.clone(), source })?;
        }
        Ok(())
    }

    fn write_out(&mut self) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile_in(&self.directory)?),
        };
        let enough = self.bytes_max - self.bytes_max / ROOM_PART;
        for slice in self.slices.iter_mut().rev().filter(|slice| !slice.pieces.is_empty()) {
            if self.bytes <= enough {
                break;
            }
            let start = self.file_bytes;
            for piece in slice.pieces.drain(..) {
                file.write_all(&piece)?;
                self.file_bytes += piece.len() as u64;
                self.bytes -= piece.len();
            }
            slice.stored.push(start..self.file_bytes);
        }
        Ok(())
    }

    /// Takes all rows of a slice.
    pub(crate) fn take(&mut self, slice: usize) -> Result<Vec<Vec<u8>>, JobError> {
        let Slice { mut pieces, stored } = std::mem::take(&mut self.slices[slice]);
        self.bytes -= pieces.iter().map(Vec::len).sum::<usize>();
        for range in stored {
            let mut piece = vec![0; (range.end - range.start) as usize];
            let file = self.file.as_ref().ok_or(JobError::Damaged("the temporary file is gone"))?;
            file.read_exact_at(&mut piece, range.start)
                .map_err(|source| JobError::Scratch { directory: self.directory.clone(), source })?;
            pieces.push(piece);
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_written_from_the_last_slice_on_and_all_comes_back() {
        const SLICES: usize = 10;
        for (bytes_max, pieces) in [(0, 100), (8_000, 50), (8_000, 90), (8_000, 300)] {
            let mut kept = RowBuffer::new(SLICES, bytes_max, std::env::temp_dir());
            for number in 0..pieces {
                kept.keep(number % SLICES, vec![number as u8; 100]).expect("kept");
                assert!(kept.bytes <= bytes_max, "{} bytes in memory", kept.bytes);
            }
            let beyond = (pieces * 100).saturating_sub(bytes_max) as u64;
            let stored = kept.stored_bytes();
            assert_eq!(stored > 0, beyond > 0);
            assert!(
                stored <= beyond + (bytes_max / ROOM_PART) as u64 + 1000,
                "{stored} of {beyond} too many"
            );
            // The first slice fits.
            assert_eq!(kept.slices[0].stored.is_empty(), bytes_max > 0);
            for slice in 0..SLICES {
                let mut found = kept.take(slice).expect("read back").concat();
                found.sort_unstable();
                let expected = (0..pieces).filter(|number| number % SLICES == slice);
                let mut expected: Vec<u8> = expected.flat_map(|number| [number as u8; 100]).collect();
                expected.sort_unstable();
                assert_eq!(found, expected, "slice {slice} of {pieces} pieces");
            }
        }
    }
}
