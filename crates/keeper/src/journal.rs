//! The file of a keeper: all records as they once were, and each change since. Knows no thread and no clock.
//!
//! The file `journal` is a sequence of frames: 4 bytes of [`MAGIC`], the length of the payload and its CRC-32C (4 bytes
//! each, little endian), and the payload, which is JSON. The first frame is a [`Head`]; the others are lists of
//! [`Entry`], each applied as a whole. A new journal is written beside the old one, and replaces it by a rename.

use std::io;
use std::time::Duration;

use crc_fast::CrcAlgorithm;
use sanderling_registry::history::History;
use sanderling_registry::limit::TOTAL_BYTES_MAX;
use sanderling_registry::state_machine::{Entry, StateMachine};
use serde::{Deserialize, Serialize};

use crate::disk::{Disk, DiskFile};
use crate::limit::{FRAME_BYTES_MAX, GROWTH_BYTES_MIN, PIECE_BYTES};

/// Name of the file.
pub(crate) const JOURNAL: &str = "journal";
/// Name of the next one while it is written.
const PART: &str = "journal.part";
/// Beginning of a frame. JSON has no byte FF.
const MAGIC: [u8; 4] = [0xff, b's', b'k', 1];
const FRAME_HEAD_BYTES: usize = 12;
/// Longest journal that is read: it is written anew long before.
const JOURNAL_BYTES_MAX: u64 = 8 * TOTAL_BYTES_MAX as u64;
const FORMAT: u32 = 1;

/// The first frame.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    format: u32,
    /// The number of the keeper, drawn when its folder was new.
    keeper: String,
    /// Entries of the records as they once were. They were durable before the file got its name.
    begun_with: u64,
}

/// Why a journal cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("damaged at byte {at}: {reason}")]
    Damaged { at: usize, reason: String },
}

/// Why changes were not written.
#[derive(Debug)]
pub(crate) enum AppendError {
    /// Nothing was written.
    Refused(String),
    /// They may be found by the next start.
    Unknown(String),
}

/// The content of a journal.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) keeper: String,
    pub(crate) machine: StateMachine,
    pub(crate) history: History,
    /// Bytes that are whole.
    bytes: usize,
    begun_bytes: usize,
    /// Bytes of a change after them that was never answered.
    pub(crate) torn_bytes: usize,
}

/// An open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    disk: Box<dyn Disk>,
    keeper: String,
    /// `None`: what is on disk is uncertain, and only a new journal helps.
    file: Option<Box<dyn DiskFile>>,
    bytes: u64,
    /// Bytes at which it is written anew.
    rewrite_at: u64,
}

impl Journal {
    /// Reads the journal of a folder, or begins one with this number of a keeper.
    pub(crate) fn open(disk: Box<dyn Disk>, keeper: String) -> Result<(Journal, Found), ReadError> {
        let Some(content) = disk.read(JOURNAL, JOURNAL_BYTES_MAX)? else {
            let mut journal = Journal { disk, keeper, file: None, bytes: 0, rewrite_at: 0 };
            let machine = StateMachine::default();
            journal.rewrite(&machine)?;
            let (keeper, history) = (journal.keeper.clone(), History::default());
            let found = Found { keeper, machine, history, bytes: 0, begun_bytes: 0, torn_bytes: 0 };
            return Ok((journal, found));
        };
        let found = read(&content)?;
        let mut file = disk.open(JOURNAL)?;
        let bytes = found.bytes as u64;
        if found.torn_bytes > 0 {
            file.cut(bytes)?;
        }
        // The process that wrote it may have ended before this.
        file.sync()?;
        disk.sync_names()?;
        let rewrite_at = rewrite_at(found.begun_bytes as u64);
        Ok((Journal { disk, keeper: found.keeper.clone(), file: Some(file), bytes, rewrite_at }, found))
    }

    /// The length of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes changes, and returns when they are durable.
    pub(crate) fn append(&mut self, entries: &[Entry]) -> Result<(), AppendError> {
        let refused = |error: &dyn std::fmt::Display| AppendError::Refused(error.to_string());
        let mut bytes = Vec::new();
        frame(&mut bytes, &entries).map_err(|error| refused(&error))?;
        let Some(file) = &mut self.file else { return Err(refused(&"the journal is uncertain")) };
        let written = file.append(&bytes).and_then(|()| file.sync());
        let Err(error) = written else {
            self.bytes += bytes.len() as u64;
            return Ok(());
        };
        match file.cut(self.bytes).and_then(|()| file.sync()) {
            Ok(()) => Err(refused(&error)),
            Err(_) => {
                self.file = None;
                Err(AppendError::Unknown(error.to_string()))
            }
        }
    }

    /// Whether a new journal is due, or necessary.
    pub(crate) fn wants_rewrite(&self) -> bool {
        self.is_uncertain() || self.bytes >= self.rewrite_at
    }

    /// Whether nothing can be appended.
    pub(crate) fn is_uncertain(&self) -> bool {
        self.file.is_none()
    }

    /// Replaces the journal by one that begins with these records. Where that fails, the old one goes on if it is
    /// certain.
    pub(crate) fn rewrite(&mut self, machine: &StateMachine) -> io::Result<()> {
        // After a failure the present one grows on for a while.
        self.rewrite_at = self.bytes + GROWTH_BYTES_MIN;
        let (file, bytes) = match self.write_part(machine) {
            Ok(written) => written,
            Err(error) => {
                // Its room may be what is missing.
                let _ = self.disk.remove(PART);
                return Err(error);
            }
        };
        self.disk.rename(PART, JOURNAL)?;
        // Until the name is durable, a loss of power may bring the old journal back, so neither of them takes changes.
        self.file = None;
        self.disk.sync_names()?;
        self.file = Some(file);
        (self.bytes, self.rewrite_at) = (bytes, rewrite_at(bytes));
        Ok(())
    }

    fn write_part(&self, machine: &StateMachine) -> io::Result<(Box<dyn DiskFile>, u64)> {
        let entries = machine.snapshot();
        let mut file = self.disk.create(PART)?;
        let (mut bytes, mut written) = (Vec::new(), 0);
        let head = Head { format: FORMAT, keeper: self.keeper.clone(), begun_with: entries.len() as u64 };
        frame(&mut bytes, &head)?;
        for piece in pieces(&entries) {
            frame(&mut bytes, &piece)?;
            file.append(&bytes)?;
            written += bytes.len() as u64;
            bytes.clear();
        }
        file.append(&bytes)?;
        file.sync()?;
        Ok((file, written + bytes.len() as u64))
    }
}

fn rewrite_at(begun_bytes: u64) -> u64 {
    begun_bytes + begun_bytes.max(GROWTH_BYTES_MIN)
}

/// Entries in pieces of limited size.
fn pieces(entries: &[Entry]) -> impl Iterator<Item = &[Entry]> {
    let mut bytes = 0;
    entries.chunk_by(move |entry, _| {
        bytes += match entry {
            Entry::Put { name, value, .. } => name.len() + value.len(),
            _ => 0,
        } + 64;
        let goes_on = bytes < PIECE_BYTES;
        if !goes_on {
            bytes = 0;
        }
        goes_on
    })
}

fn frame(into: &mut Vec<u8>, payload: &impl Serialize) -> io::Result<()> {
    let payload = serde_json::to_vec(payload).map_err(io::Error::other)?;
    if payload.len() > FRAME_BYTES_MAX {
        return Err(io::Error::other(format!("a change of more than {FRAME_BYTES_MAX} bytes")));
    }
    frame_of(into, &payload);
    Ok(())
}

pub(crate) fn frame_of(into: &mut Vec<u8>, payload: &[u8]) {
    let length = (payload.len() as u32).to_le_bytes();
    into.extend_from_slice(&MAGIC);
    into.extend_from_slice(&length);
    into.extend_from_slice(&sum(length, payload).to_le_bytes());
    into.extend_from_slice(payload);
}

/// The checksum of a frame, over its length, too.
fn sum(length: [u8; 4], payload: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&length);
    digest.update(payload);
    digest.finalize() as u32
}

/// The payload at the beginning of these bytes, if it is whole.
fn payload(bytes: &[u8]) -> Option<&[u8]> {
    let (head, rest) = bytes.split_at_checked(FRAME_HEAD_BYTES)?;
    let (magic, numbers) = head.split_at(MAGIC.len());
    let length: [u8; 4] = numbers[..4].try_into().expect("it has 8 bytes");
    let expected: [u8; 4] = numbers[4..].try_into().expect("it has 8 bytes");
    let bytes = u32::from_le_bytes(length) as usize;
    let found = rest.get(..bytes).filter(|_| magic == MAGIC && bytes <= FRAME_BYTES_MAX)?;
    (sum(length, found) == u32::from_le_bytes(expected)).then_some(found)
}

/// Reads the content of a journal.
///
/// Only the last change may be torn, since each was durable before the next. A damaged one with a whole one after it was
/// answered, and nothing makes up for it.
pub(crate) fn read(content: &[u8]) -> Result<Found, ReadError> {
    let damaged = |at: usize, reason: String| ReadError::Damaged { at, reason };
    let head =
        payload(content).ok_or_else(|| damaged(0, "it does not begin as a journal does".to_owned()))?;
    let Head { format, keeper, mut begun_with } =
        serde_json::from_slice(head).map_err(|error| damaged(0, error.to_string()))?;
    if format != FORMAT {
        return Err(damaged(0, format!("it has format {format}; this version reads format {FORMAT}")));
    }
    let mut at = FRAME_HEAD_BYTES + head.len();
    let mut found = Found {
        keeper,
        machine: StateMachine::default(),
        history: History::default(),
        bytes: at,
        begun_bytes: at,
        torn_bytes: 0,
    };
    while let Some(payload) = payload(&content[at..]) {
        let entries: Vec<Entry> =
            serde_json::from_slice(payload).map_err(|error| damaged(at, error.to_string()))?;
        let is_beginning = begun_with > 0;
        for entry in &entries {
            let applied = found.machine.apply(entry, Duration::ZERO).map_err(|reason| damaged(at, reason))?;
            if begun_with > 0 {
                begun_with -= 1;
                found.history = History::after(found.machine.revision());
            } else if let Some(change) = applied {
                found.history.push(change);
            }
        }
        at += FRAME_HEAD_BYTES + payload.len();
        found.bytes = at;
        if is_beginning {
            found.begun_bytes = at;
        }
    }
    let rest = &content[at..];
    if begun_with > 0 {
        return Err(damaged(at, format!("{begun_with} entries of its beginning are missing")));
    }
    let magics = rest.windows(MAGIC.len()).enumerate().filter(|(_, window)| *window == MAGIC);
    if let Some((later, _)) =
        magics.skip_while(|(later, _)| *later == 0).find(|(later, _)| payload(&rest[*later..]).is_some())
    {
        return Err(damaged(at, format!("a change of {later} bytes, after which there are others")));
    }
    found.torn_bytes = rest.len();
    Ok(found)
}
