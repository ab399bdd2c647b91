//! Finds the segments of a log that follow a checkpoint, and how far they count.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::record::{
    HEADER_BYTES, Kind, RECORD_HEADER_BYTES, RecordHeader, SegmentHeader, VERSION, is_whole, segment_number,
};
use crate::StoreError;
use crate::checkpoint::files::open_regular;
use crate::checkpoint::rows::{u32_at, u64_at};

/// Buffer size for reading a segment.
const READ_BYTES: usize = 1 << 20;

/// A segment of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSegment {
    /// Number of the segment.
    pub number: u64,
    /// Its file.
    pub path: PathBuf,
    /// Size of its file.
    pub file_bytes: u64,
    /// Bytes that count: whole groups that nothing has replaced.
    pub bytes: u64,
}

/// The end of the groups that count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEnd {
    /// The number that names the log.
    pub id: u64,
    /// The last group; 0 if there is none.
    pub group: u64,
    /// Number of groups that were read.
    pub groups: u64,
    /// Later groups are in this segment or a later one.
    pub next_segment: u64,
    /// The segment of that group, and its bytes up to there.
    pub segment: u64,
    /// See `segment`.
    pub bytes: u64,
    /// The file and offset of an unfinished group that was cut, and its bytes.
    pub cut: Option<(PathBuf, u64, u64)>,
}

/// The content of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogSummary {
    /// The segments in their order.
    pub segments: Vec<LogSegment>,
    /// The numbers of the first and of the last group.
    pub groups: Option<(u64, u64)>,
    /// Milliseconds since 1970 at the first and at the last group.
    pub unix_ms: Option<(u64, u64)>,
    /// Rows and removed keys in all groups.
    pub rows: u64,
    /// See `rows`.
    pub removed: u64,
    /// Bytes after the last group, which a start cuts.
    pub torn_bytes: u64,
    /// The first damage; nothing after it was read.
    pub damage: Option<String>,
}

/// Reads the groups of a log.
#[derive(Debug)]
pub struct LogReader {
    pub(super) dir: PathBuf,
    pub(super) id: u64,
    pub(super) segments: Vec<LogSegment>,
    first: u64,
    cut: Option<(PathBuf, u64, u64)>,
}

/// How a segment was read to its end.
pub(super) struct Scanned {
    /// Bytes up to the end of the last group.
    pub(super) bytes: u64,
    /// The last group; 0 if there is none.
    pub(super) group: u64,
    /// Why it was not read further.
    pub(super) fault: Option<Fault>,
}

/// The first record that is not whole.
pub(super) struct Fault {
    pub(super) offset: u64,
    pub(super) reason: &'static str,
}

impl LogReader {
    /// Opens the log `id` from a segment on. With `cut`, the log ends before its first damage, which is an error
    /// otherwise. An unfinished group at the end is cut in any case.
    ///
    /// # Errors
    ///
    /// [`StoreError::Damaged`] names the segment and the offset of the damage, or the missing segment.
    pub fn open(dir: impl AsRef<Path>, id: u64, first: u64, cut: bool) -> Result<LogReader, StoreError> {
        let dir = dir.as_ref();
        let mut reader = LogReader { dir: dir.to_path_buf(), id, segments: Vec::new(), first, cut: None };
        let damage = reader.find(first, cut)?;
        if let Some(damage) = damage.filter(|_| !cut) {
            return Err(damage);
        }
        if cut {
            reader.cut_damage()?;
        }
        reader.cut_tail(cut)?;
        Ok(reader)
    }

    /// Returns whether a directory has a segment of the log `id` with the number `first` or a later one.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`] if the directory cannot be read.
    pub fn has_segments(dir: impl AsRef<Path>, id: u64, first: u64) -> Result<bool, StoreError> {
        for (_, path) in files_of(dir.as_ref())?.into_iter().filter(|(number, _)| *number >= first) {
            if read_header(&path)?.0.is_ok_and(|header| header.id == id) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The numbers of the logs in a directory, each with its first segment.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`] if the directory cannot be read.
    pub fn logs(dir: impl AsRef<Path>) -> Result<Vec<(u64, u64)>, StoreError> {
        let mut logs: Vec<(u64, u64)> = Vec::new();
        for (number, path) in files_of(dir.as_ref())? {
            if let Ok(header) = read_header(&path)?.0
                && !logs.iter().any(|(id, _)| *id == header.id)
            {
                logs.push((header.id, number));
            }
        }
        Ok(logs)
    }

    /// Lists the segments that follow each other from `first` on; returns a break in their order.
    ///
    /// The last segment names the one before it, and so on. Segments that none names had a group that failed.
    fn find(&mut self, first: u64, cut: bool) -> Result<Option<StoreError>, StoreError> {
        let mut headers: Vec<(SegmentHeader, PathBuf, u64)> = Vec::new();
        let mut broken = None;
        for (number, path) in files_of(&self.dir)?.into_iter().filter(|(number, _)| *number >= first) {
            let (header, file_bytes) = read_header(&path)?;
            match header {
                Ok(header) if header.id == self.id => headers.push((header, path, file_bytes)),
                Ok(_) => {}
                Err(Some(found)) => return Err(StoreError::Version { path, found, supported: VERSION }),
                Err(None) => {
                    let segment = LogSegment { number, path, file_bytes, bytes: file_bytes };
                    broken = Some(segment);
                }
            }
        }
        // A header without its content is that of an unfinished group, but not if a second group follows.
        let mut damage = None;
        if let Some(segment) = broken
            && headers.last().is_none_or(|(last, ..)| last.number < segment.number)
            && later_groups(&segment, 0)?.is_some_and(|(least, most)| least != most)
        {
            damage = Some(damaged(&segment.path, self.with_whole("its header is damaged")));
        }
        while let Err((path, reason)) = self.link(first, &headers) {
            damage = Some(damaged(&path, self.with_whole(&reason)));
            if !cut {
                break;
            }
            // The segments before the break are whole.
            headers.pop();
        }
        Ok(damage)
    }

    /// Follows the segments from the last one back to `first`; a break has a file and a reason.
    fn link(
        &mut self,
        first: u64,
        headers: &[(SegmentHeader, PathBuf, u64)],
    ) -> Result<(), (PathBuf, String)> {
        self.segments.clear();
        let Some((mut header, mut path, mut file_bytes)) = headers.last().cloned() else { return Ok(()) };
        let mut bytes = file_bytes;
        loop {
            let (number, previous) = (header.number, header.previous);
            self.segments.push(LogSegment { number, path: path.clone(), file_bytes, bytes });
            if previous.0 < first {
                self.segments.reverse();
                return Ok(());
            }
            let before = headers.iter().find(|(header, ..)| header.number == previous.0);
            let Some(before) = before.filter(|_| previous.0 < number).cloned() else {
                let reason =
                    format!("segment {}, which comes before it, is missing or has no header", previous.0);
                return Err((path, reason));
            };
            (header, path, file_bytes) = before;
            bytes = previous.1;
            if bytes > file_bytes || bytes < HEADER_BYTES as u64 {
                let reason =
                    format!("it has {file_bytes} bytes, but segment {number} follows its byte {bytes}");
                return Err((path, reason));
            }
        }
    }

    /// Names what remains of the log before its damage.
    pub(super) fn with_whole(&self, reason: &str) -> String {
        format!("log {:x}: {reason}; the groups before it are whole: --cut-log starts with them", self.id)
    }

    /// Drops all groups from the first damage on.
    fn cut_damage(&mut self) -> Result<(), StoreError> {
        let mut group = 0;
        for at in 0..self.segments.len() {
            let scanned = scan(&self.segments[at], group, &mut |_, _| {})?;
            group = scanned.group.max(group);
            let is_last = at + 1 == self.segments.len();
            if scanned.bytes < self.segments[at].bytes && !is_last {
                self.segments.truncate(at + 1);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Cuts what is not a whole group at the end.
    fn cut_tail(&mut self, may_be_damaged: bool) -> Result<(), StoreError> {
        let Some(last) = self.segments.last() else { return Ok(()) };
        let scanned = scan(last, 0, &mut |_, _| {})?;
        let Some(fault) = scanned.fault else { return Ok(()) };
        if !may_be_damaged && has_later_group(last, fault.offset, scanned.group + 1)? {
            let reason = format!("offset {}: {}", fault.offset, fault.reason);
            return Err(damaged(&last.path, self.with_whole(&reason)));
        }
        let (path, lost) = (last.path.clone(), last.bytes - scanned.bytes);
        self.cut = Some((path, scanned.bytes, lost));
        let is_empty = scanned.bytes <= HEADER_BYTES as u64;
        if let Some(last) = self.segments.last_mut() {
            last.bytes = scanned.bytes;
        }
        if is_empty {
            self.segments.pop();
        }
        Ok(())
    }

    /// The end of the log after its last group.
    pub(super) fn end(&self, group: u64, groups: u64) -> LogEnd {
        let (segment, bytes) = self.segments.last().map_or((0, 0), |last| (last.number, last.bytes));
        LogEnd { id: self.id, group, groups, next_segment: self.first, segment, bytes, cut: self.cut.clone() }
    }

    /// Reads the whole log `id` from a segment on and describes it.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`]; damage is part of the summary.
    pub fn summary(dir: impl AsRef<Path>, id: u64, first: u64) -> Result<LogSummary, StoreError> {
        let mut reader =
            LogReader { dir: dir.as_ref().to_path_buf(), id, segments: Vec::new(), first, cut: None };
        let damage = reader.find(first, false)?.map(|damage| damage.to_string());
        let mut summary = LogSummary { segments: reader.segments, damage, ..LogSummary::default() };
        let count = summary.segments.len();
        for at in 0..count {
            let after = summary.groups.map_or(0, |(_, last)| last);
            let segment = summary.segments[at].clone();
            let mut group = InGroup::default();
            let scanned =
                scan(&segment, after, &mut |record, payload| summary.add(&mut group, record, payload))?;
            let Some(fault) = scanned.fault else { continue };
            let is_torn = at + 1 == count && !has_later_group(&segment, fault.offset, scanned.group + 1)?;
            if !is_torn {
                let text = format!("{}: offset {}: {}", segment.path.display(), fault.offset, fault.reason);
                summary.damage = Some(text);
                break;
            }
            summary.torn_bytes = segment.bytes - scanned.bytes;
            summary.segments[at].bytes = scanned.bytes;
        }
        Ok(summary)
    }
}

/// The rows and removed keys of a group that is being read.
#[derive(Default)]
struct InGroup {
    rows: u64,
    removed: u64,
}

impl LogSummary {
    fn add(&mut self, group: &mut InGroup, record: &RecordHeader, payload: &[u8]) {
        // Only whole records come here, but another program may have written them.
        let word = |at: usize| if payload.len() < at + 4 { 0 } else { u64::from(u32_at(payload, at)) };
        match record.kind {
            Kind::Rows => group.rows += word(16),
            Kind::Removed => group.removed += word(0),
            Kind::Commit => {
                let InGroup { rows, removed } = std::mem::take(group);
                self.rows += rows;
                self.removed += removed;
                self.groups.get_or_insert((record.group, 0)).1 = record.group;
                self.unix_ms.get_or_insert((record.epoch, 0)).1 = record.epoch;
            }
            Kind::Tables | Kind::Pushes => {}
        }
    }
}

/// Reads the records of a segment up to the bytes that count. `group` is the last group before it; 0 is any.
pub(super) fn scan(
    segment: &LogSegment,
    group: u64,
    each: &mut dyn FnMut(&RecordHeader, &mut Vec<u8>),
) -> Result<Scanned, StoreError> {
    let mut records = Records::open(segment)?;
    let mut scanned = Scanned { bytes: HEADER_BYTES as u64, group, fault: None };
    let (mut group, mut in_group) = (group, 0);
    let mut payload = Vec::new();
    loop {
        let offset = records.at;
        match records.next(&mut payload)? {
            Next::Record(record) => {
                let is_first = group == 0;
                if is_first {
                    group = record.group.saturating_sub(1);
                }
                if record.group != group.wrapping_add(1) {
                    scanned.fault = Some(Fault { offset, reason: "the record is of another group" });
                    return Ok(scanned);
                }
                each(&record, &mut payload);
                in_group += 1;
                if record.kind == Kind::Commit {
                    if payload.len() != size_of::<u64>() || u64_at(&payload, 0) + 1 != in_group {
                        scanned.fault =
                            Some(Fault { offset, reason: "the group has another number of records" });
                        return Ok(scanned);
                    }
                    (group, in_group) = (record.group, 0);
                    (scanned.bytes, scanned.group) = (records.at, group);
                }
            }
            Next::End if in_group == 0 => return Ok(scanned),
            Next::End => {
                scanned.fault = Some(Fault { offset, reason: "the group has no end" });
                return Ok(scanned);
            }
            Next::Bad(reason) => {
                scanned.fault = Some(Fault { offset, reason });
                return Ok(scanned);
            }
        }
    }
}

/// A record of a segment, or why there is none.
pub(super) enum Next {
    Record(RecordHeader),
    End,
    Bad(&'static str),
}

/// Reads records one by one.
pub(super) struct Records {
    input: BufReader<File>,
    path: PathBuf,
    pub(super) at: u64,
    end: u64,
}

impl Records {
    pub(super) fn open(segment: &LogSegment) -> Result<Records, StoreError> {
        let path = segment.path.clone();
        let mut file = open(&path)?;
        let start = HEADER_BYTES as u64;
        file.seek(SeekFrom::Start(start)).map_err(|source| io_error(&path, "read", source))?;
        let input = BufReader::with_capacity(READ_BYTES, file);
        Ok(Records { input, path, at: start, end: segment.bytes })
    }

    /// Reads the next record; its payload replaces `payload`.
    pub(super) fn next(&mut self, payload: &mut Vec<u8>) -> Result<Next, StoreError> {
        let left = self.end.saturating_sub(self.at);
        if left == 0 {
            return Ok(Next::End);
        }
        let mut bytes = [0; RECORD_HEADER_BYTES];
        if left < bytes.len() as u64 {
            return Ok(Next::Bad("the record is not whole"));
        }
        let failed = |source| io_error(&self.path, "read", source);
        self.input.read_exact(&mut bytes).map_err(failed)?;
        let Some(header) = RecordHeader::decode(&bytes) else {
            return Ok(Next::Bad("there is no record"));
        };
        // The size of the file bounds the memory.
        if header.payload_bytes as u64 > left - bytes.len() as u64 {
            return Ok(Next::Bad("the record is not whole"));
        }
        payload.resize(header.payload_bytes, 0);
        self.input.read_exact(payload).map_err(failed)?;
        if !is_whole(&bytes, payload) {
            return Ok(Next::Bad("the checksum of the record does not match"));
        }
        self.at += (bytes.len() + payload.len()) as u64;
        Ok(Next::Record(header))
    }
}

/// Returns whether a record after the offset is of a later group than `group`. Such a group was begun when this one was
/// on the device, so this one is damaged and not unfinished.
fn has_later_group(segment: &LogSegment, offset: u64, group: u64) -> Result<bool, StoreError> {
    Ok(later_groups(segment, offset)?.is_some_and(|(_, most)| most > group))
}

/// The least and the greatest group of the whole records after an offset.
fn later_groups(segment: &LogSegment, offset: u64) -> Result<Option<(u64, u64)>, StoreError> {
    let failed = |source| io_error(&segment.path, "read", source);
    let mut file = open(&segment.path)?;
    file.seek(SeekFrom::Start(offset)).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(segment.bytes.saturating_sub(offset)).read_to_end(&mut bytes).map_err(failed)?;
    let record = |at: usize| {
        let header = RecordHeader::decode(&bytes[at..])?;
        let payload = bytes[at + RECORD_HEADER_BYTES..].get(..header.payload_bytes)?;
        is_whole(&bytes[at..], payload).then_some((header.group, at + RECORD_HEADER_BYTES + payload.len()))
    };
    let (mut found, mut at): (Option<(u64, u64)>, usize) = (None, 0);
    while at < bytes.len() {
        let Some((group, end)) = record(at) else {
            at += 1;
            continue;
        };
        let (least, most) = found.unwrap_or((group, group));
        found = Some((least.min(group), most.max(group)));
        at = end;
    }
    Ok(found)
}

/// The files of all segments, in the order of their numbers.
fn files_of(dir: &Path) -> Result<Vec<(u64, PathBuf)>, StoreError> {
    let failed = |source| io_error(dir, "list", source);
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if let Some(number) = entry.file_name().to_str().and_then(segment_number) {
            files.push((number, entry.path()));
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Reads the header of a segment and the size of its file.
fn read_header(path: &Path) -> Result<(Result<SegmentHeader, Option<u32>>, u64), StoreError> {
    let failed = |source| io_error(path, "read", source);
    let file = open(path)?;
    let file_bytes = file.metadata().map_err(failed)?.len();
    let mut bytes = Vec::new();
    file.take(HEADER_BYTES as u64).read_to_end(&mut bytes).map_err(failed)?;
    let number = path.file_name().and_then(|name| segment_number(name.to_str()?));
    let header = SegmentHeader::decode(&bytes).and_then(|header| {
        // A file that was renamed is none of the log's.
        if Some(header.number) == number { Ok(header) } else { Err(None) }
    });
    Ok((header, file_bytes))
}

fn open(path: &Path) -> Result<File, StoreError> {
    open_regular(path).map_err(|source| io_error(path, "open", source))
}

pub(super) fn damaged(path: &Path, reason: String) -> StoreError {
    StoreError::Damaged { path: path.to_path_buf(), reason }
}

fn io_error(path: &Path, action: &'static str, source: io::Error) -> StoreError {
    StoreError::Io { path: path.to_path_buf(), action, source }
}
