//! The file of a recording: frames with checksums, the header first and an end mark last. Knows no worker.
//!
//! | part | bytes |
//! |---|---|
//! | start of the file | `SNDLPLAY`, version 1 as u32 |
//! | frame | kind u8, length u32, XXH3-64 of kind and payload salted with the frame's number, payload |
//!
//! Integers are little-endian. A frame has its number in its checksum, so that frames cannot be lost or exchanged.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sanderling_files::OutputFile;
use sanderling_sample::key;

use super::damaged;
use super::header::Header;
use super::minibatch::Minibatch;
use crate::error::LearnError;

const MAGIC: [u8; 8] = *b"SNDLPLAY";
const VERSION: u32 = 1;
const FRAME_HEADER_BYTES: usize = 13;
/// A longer frame is damage: a minibatch of 65,536 rows with 100 new keys each has less.
const FRAME_BYTES_MAX: u32 = 1 << 28;
/// Entries, minibatches and digest in the end mark.
const END_BYTES: usize = 24;

const HEADER: u8 = 1;
const MINIBATCH: u8 = 2;
const PASS_END: u8 = 3;
const END: u8 = 4;

/// An entry of a recording.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Minibatch(Minibatch),
    /// A worker has no further minibatches in this pass.
    PassEnd {
        worker: u32,
    },
    /// The recorded run has ended, with tables of this digest.
    End {
        minibatches: u64,
        digest: u64,
    },
}

/// Writes a recording. Without [`RecordingWriter::finish`] there is no file.
pub(super) struct RecordingWriter {
    path: PathBuf,
    out: BufWriter<OutputFile>,
    frames: u64,
    minibatches: u64,
}

impl RecordingWriter {
    pub(super) fn create(path: &Path, header: &Header) -> Result<RecordingWriter, LearnError> {
        let file = OutputFile::create(path).map_err(LearnError::io(path))?;
        let mut out = BufWriter::with_capacity(1 << 18, file);
        let start = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        out.write_all(&start).map_err(LearnError::io(path))?;
        let mut writer = RecordingWriter { path: path.to_owned(), out, frames: 0, minibatches: 0 };
        let header = serde_json::to_vec(header).map_err(|error| damaged(path, error.to_string()))?;
        writer.write(HEADER, &header)?;
        Ok(writer)
    }

    /// Appends the bytes of a [`Minibatch`].
    pub(super) fn minibatch(&mut self, bytes: &[u8]) -> Result<(), LearnError> {
        self.minibatches += 1;
        self.write(MINIBATCH, bytes)
    }

    pub(super) fn pass_end(&mut self, worker: u32) -> Result<(), LearnError> {
        self.write(PASS_END, &worker.to_le_bytes())
    }

    /// Minibatches so far.
    pub(super) fn minibatches(&self) -> u64 {
        self.minibatches
    }

    /// Gives the file its name; returns its bytes.
    pub(super) fn finish(mut self, digest: u64) -> Result<u64, LearnError> {
        let end = [self.frames, self.minibatches, digest].map(u64::to_le_bytes).concat();
        self.write(END, &end)?;
        let file = self.out.into_inner().map_err(|error| LearnError::io(&self.path)(error.into_error()))?;
        file.finish().map_err(LearnError::io(&self.path))
    }

    fn write(&mut self, kind: u8, payload: &[u8]) -> Result<(), LearnError> {
        let length = u32::try_from(payload.len()).ok().filter(|&length| length <= FRAME_BYTES_MAX);
        let Some(length) = length else {
            return Err(damaged(
                &self.path,
                "a minibatch has too many keys for a recording; lower train.batch_size",
            ));
        };
        let mut head = [0; FRAME_HEADER_BYTES];
        head[0] = kind;
        head[1..5].copy_from_slice(&length.to_le_bytes());
        head[5..].copy_from_slice(&checksum(self.frames, kind, payload).to_le_bytes());
        self.frames += 1;
        let written = self.out.write_all(&head).and_then(|()| self.out.write_all(payload));
        written.map_err(LearnError::io(&self.path))
    }
}

fn checksum(frame: u64, kind: u8, payload: &[u8]) -> u64 {
    key::hash(payload, frame << 8 | u64::from(kind))
}

/// Reads a recording whose end mark is there.
pub(super) struct RecordingReader {
    pub(super) header: Header,
    frames: Frames,
}

/// Frames of a file, read in order.
struct Frames {
    path: PathBuf,
    file: BufReader<File>,
    /// Frames so far.
    count: u64,
    payload: Vec<u8>,
}

impl RecordingReader {
    pub(super) fn open(path: &Path) -> Result<RecordingReader, LearnError> {
        let mut file = File::open(path).map_err(LearnError::io(path))?;
        let mut start = [0; MAGIC.len() + 4];
        let is_recording = file.read_exact(&mut start).is_ok() && start.starts_with(&MAGIC);
        if !is_recording {
            return Err(damaged(path, "it is no recording; sanderling train --record writes one"));
        }
        let version = start.last_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        if version != VERSION {
            let reason = format!("it is a recording of version {version}, and this program reads {VERSION}");
            return Err(damaged(path, reason));
        }
        check_end(&mut file, path)?;
        file.seek(SeekFrom::Start(start.len() as u64)).map_err(LearnError::io(path))?;
        let file = BufReader::with_capacity(1 << 18, file);
        let mut frames = Frames { path: path.to_owned(), file, count: 0, payload: Vec::new() };
        let kind = frames.read()?;
        let header = (kind == HEADER).then(|| serde_json::from_slice(&frames.payload).ok()).flatten();
        let header = header.ok_or_else(|| frames.damaged())?;
        Ok(RecordingReader { header, frames })
    }

    pub(super) fn path(&self) -> &Path {
        &self.frames.path
    }

    /// Bytes of the entry that was read last.
    pub(super) fn entry_bytes(&self) -> usize {
        self.frames.payload.len()
    }

    /// The next entry; after [`Entry::End`] there is none.
    pub(super) fn next(&mut self) -> Result<Entry, LearnError> {
        let kind = self.frames.read()?;
        let header = &self.header;
        let entry = match (kind, self.frames.payload.as_slice()) {
            (MINIBATCH, payload) => Minibatch::decode(payload)
                .filter(|entry| entry.worker < header.workers && entry.tables.len() == header.tables.len())
                .map(Entry::Minibatch),
            (PASS_END, payload) => {
                let worker = <[u8; 4]>::try_from(payload).ok().map(u32::from_le_bytes);
                worker.filter(|&worker| worker < header.workers).map(|worker| Entry::PassEnd { worker })
            }
            (END, payload) => {
                numbers(payload).map(|[_, minibatches, digest]| Entry::End { minibatches, digest })
            }
            _ => None,
        };
        entry.ok_or_else(|| self.frames.damaged())
    }
}

impl Frames {
    /// Reads a frame to `payload`; returns its kind.
    fn read(&mut self) -> Result<u8, LearnError> {
        let mut head = [0; FRAME_HEADER_BYTES];
        let read = self.file.read_exact(&mut head);
        read.map_err(|_| self.damaged())?;
        let &[kind, ref rest @ ..] = &head;
        let (length, sum) = rest.split_at(4);
        let length = length.first_chunk().map_or(u32::MAX, |bytes| u32::from_le_bytes(*bytes));
        if length > FRAME_BYTES_MAX {
            return Err(self.damaged());
        }
        self.payload.clear();
        // Not allocated ahead: the length may be damaged.
        let read = (&mut self.file).take(u64::from(length)).read_to_end(&mut self.payload);
        let is_whole = read.is_ok_and(|bytes| bytes == length as usize);
        if !is_whole || checksum(self.count, kind, &self.payload).to_le_bytes() != sum {
            return Err(self.damaged());
        }
        self.count += 1;
        Ok(kind)
    }

    fn damaged(&self) -> LearnError {
        damaged(
            &self.path,
            format!("frame {} is damaged; take another copy, or record the run again", self.count),
        )
    }
}

/// Refuses a file without its end mark, before anything is replayed.
fn check_end(file: &mut File, path: &Path) -> Result<(), LearnError> {
    const LENGTH: usize = FRAME_HEADER_BYTES + END_BYTES;
    let mut bytes = [0; LENGTH];
    let read = file.seek(SeekFrom::End(-(LENGTH as i64))).and_then(|_| file.read_exact(&mut bytes));
    let (head, payload) = bytes.split_at(FRAME_HEADER_BYTES);
    let is_end = read.is_ok()
        && head[0] == END
        && numbers(payload)
            .is_some_and(|[frames, ..]| checksum(frames, END, payload).to_le_bytes() == head[5..]);
    if is_end {
        return Ok(());
    }
    Err(damaged(path, "it is torn: its end is missing; take another copy, or record the run again"))
}

fn numbers(payload: &[u8]) -> Option<[u64; 3]> {
    let (numbers, []) = payload.as_chunks::<8>() else { return None };
    <[[u8; 8]; 3]>::try_from(numbers).ok().map(|numbers| numbers.map(u64::from_le_bytes))
}
