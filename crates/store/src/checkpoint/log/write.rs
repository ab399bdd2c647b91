//! Appends groups to a log: records are collected in memory, written in pieces, and synced by the commit of the group.

use std::collections::HashMap;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::record::{
    Kind, MAY_REPEAT, RECORD_HEADER_BYTES, REMOVED_HEADER_BYTES, ROWS_HEADER_BYTES, SegmentHeader,
    begin_record, end_record, segment_name, segment_number,
};
use super::segments::LogEnd;
use crate::checkpoint::files::{Disk, Files, Sink};
use crate::checkpoint::rows::{RowShape, append_row};
use crate::checkpoint::write::{SkippedRows, create_dirs};
use crate::rows::numbers::RowNumbers;
use crate::{ChangeFrame, RowRef, StoreError, Table};

/// A record of rows or removed keys ends at this size.
const RECORD_BYTES: usize = 256 << 10;
/// Bytes that are collected before they are written.
const PIECE_BYTES: usize = 1 << 20;

/// The result of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logged {
    /// Number of the last group that is on the device.
    pub group: u64,
    /// Bytes that were written for it; 0 if there was nothing to write.
    pub bytes: u64,
}

/// A segment that is open for writing.
struct Segment {
    sink: Box<dyn Sink>,
    number: u64,
    /// Bytes of whole groups.
    bytes: u64,
    /// The directory has its entry on the device.
    is_listed: bool,
}

/// Writes the groups of a log into a directory, each at once or not at all.
///
/// Nothing of a group counts before [`LogWriter::commit`] returns. After an error the group is lost, and the next one
/// begins a new segment: the caller drains the changes again. Only one writer may use a directory at a time.
pub struct LogWriter {
    dir: PathBuf,
    files: Box<dyn Files>,
    id: u64,
    segment_bytes_max: u64,
    /// The last group that is on the device.
    group: u64,
    /// The last segment with a group that counts, and its bytes.
    previous: (u64, u64),
    next_segment: u64,
    segment: Option<Segment>,
    /// Records that are not written yet, and bytes of the group that are.
    waiting: Vec<u8>,
    written: u64,
    records: u64,
    /// The use clock of each table in its last record of rows.
    clocks: HashMap<u32, u64>,
}

impl std::fmt::Debug for LogWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogWriter")
            .field("dir", &self.dir)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

impl LogWriter {
    /// Begins a log beside the segments that a directory may hold, creating the directory if needed. A segment gets no
    /// further group once it has `segment_bytes_max` bytes.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`] if the directory cannot be created or listed.
    pub fn create(dir: impl AsRef<Path>, id: u64, segment_bytes_max: u64) -> Result<LogWriter, StoreError> {
        LogWriter::create_on(Box::new(Disk), dir.as_ref(), id, segment_bytes_max)
    }

    pub(super) fn create_on(
        files: Box<dyn Files>,
        dir: &Path,
        id: u64,
        segment_bytes_max: u64,
    ) -> Result<LogWriter, StoreError> {
        create_dirs(files.as_ref(), dir).map_err(|source| io_error(dir, "create directory", source))?;
        let names = files.list(dir).map_err(|source| io_error(dir, "list", source))?;
        let last = names.iter().filter_map(|name| segment_number(name)).max().unwrap_or(0);
        Ok(LogWriter {
            dir: dir.to_path_buf(),
            files,
            id,
            segment_bytes_max,
            group: 0,
            previous: (0, 0),
            next_segment: last.saturating_add(1),
            segment: None,
            waiting: Vec::new(),
            written: 0,
            records: 0,
            clocks: HashMap::new(),
        })
    }

    /// Goes on with a log that was replayed to this end.
    ///
    /// # Errors
    ///
    /// As for [`LogWriter::create`].
    pub fn after(
        dir: impl AsRef<Path>,
        end: &LogEnd,
        segment_bytes_max: u64,
    ) -> Result<LogWriter, StoreError> {
        LogWriter::after_on(Box::new(Disk), dir.as_ref(), end, segment_bytes_max)
    }

    pub(super) fn after_on(
        files: Box<dyn Files>,
        dir: &Path,
        end: &LogEnd,
        segment_bytes_max: u64,
    ) -> Result<LogWriter, StoreError> {
        let writer = LogWriter::create_on(files, dir, end.id, segment_bytes_max)?;
        let next_segment = writer.next_segment.max(end.next_segment);
        Ok(LogWriter { group: end.group, previous: (end.segment, end.bytes), next_segment, ..writer })
    }

    /// The number that names this log.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The last group that is on the device.
    #[must_use]
    pub fn group(&self) -> u64 {
        self.group
    }

    /// Ends the segment; returns the number from which on later groups are.
    pub fn end_segment(&mut self) -> u64 {
        self.segment = None;
        self.next_segment
    }

    /// Returns whether the next group is the first one of a segment, which describes all tables and pushes anew.
    #[must_use]
    pub fn begins_segment(&self) -> bool {
        self.segment.as_ref().is_none_or(|segment| segment.bytes == 0)
    }

    /// Adds the list of tables to the group.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`]; the group is lost.
    pub fn tables(&mut self, list: &[u8]) -> Result<(), StoreError> {
        self.text(Kind::Tables, list)
    }

    /// Adds the push history to the group.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`]; the group is lost.
    pub fn pushes(&mut self, history: &[u8]) -> Result<(), StoreError> {
        self.text(Kind::Pushes, history)
    }

    fn text(&mut self, kind: Kind, text: &[u8]) -> Result<(), StoreError> {
        let at = begin_record(kind, 0, self.group + 1, &mut self.waiting);
        self.waiting.extend_from_slice(text);
        self.end_record(at, 0)
    }

    /// Adds the changes of a table since an epoch to the group, while other threads may use the table; returns the
    /// epoch that they reach. `number` names the table in this log.
    ///
    /// Rows that are not finite are left out like removed keys, and reported.
    ///
    /// # Errors
    ///
    /// [`StoreError::StreamTooLate`]: the group has nothing of the table, and may get [`LogWriter::all_rows`].
    /// [`StoreError::Io`]: the group is lost.
    pub fn changes(
        &mut self,
        number: u32,
        table: &Table,
        since: u64,
    ) -> Result<(u64, Option<SkippedRows>), StoreError> {
        let mut rows = TableRecords::new(number, table);
        let mut failed = Ok(());
        let drained = table.drain_changes(since, |frame| {
            failed = self.frame(&mut rows, table, frame);
            if failed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        failed?;
        let epoch = drained?.unwrap_or(since);
        self.end_rows(&mut rows, table, epoch)?;
        self.end_removed(&mut rows, epoch)?;
        Ok((epoch, rows.skipped))
    }

    /// Adds all rows of a table to the group, and subscribes to its changes; returns the epoch from which these go on.
    /// `keys_max` is as in [`Table::subscribe_changes`].
    ///
    /// # Errors
    ///
    /// As for [`Table::subscribe_changes`]. [`StoreError::Io`]: the group is lost.
    pub fn all_rows(
        &mut self,
        number: u32,
        table: &Table,
        keys_max: usize,
    ) -> Result<(u64, Option<SkippedRows>), StoreError> {
        let epoch = table.subscribe_changes(keys_max)?;
        let mut rows = TableRecords::new(number, table);
        let mut failed = Ok(());
        let _ = table.try_for_each_row(|row| {
            failed = self.row(&mut rows, table, row, epoch);
            if failed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        failed?;
        self.end_rows(&mut rows, table, epoch)?;
        self.end_removed(&mut rows, epoch)?;
        Ok((epoch, rows.skipped))
    }

    fn frame(
        &mut self,
        rows: &mut TableRecords,
        table: &Table,
        frame: &ChangeFrame,
    ) -> Result<(), StoreError> {
        let columns = frame.rows.rows();
        rows.may_repeat = frame.may_repeat;
        for at in 0..frame.rows.len() {
            self.row(rows, table, columns.row(at, rows.shape.dim, rows.shape.state), frame.epoch)?;
        }
        for &key in &frame.removed {
            self.removed(rows, key, frame.epoch)?;
        }
        if frame.may_repeat {
            // A record has each key once.
            self.end_removed(rows, frame.epoch)?;
            self.end_rows(rows, table, frame.epoch)?;
        }
        Ok(())
    }

    fn row(
        &mut self,
        rows: &mut TableRecords,
        table: &Table,
        row: RowRef<'_>,
        epoch: u64,
    ) -> Result<(), StoreError> {
        if let Err(reason) = rows.numbers.check(row.weights, row.state) {
            let first = SkippedRows { rows: 0, key: row.key, reason };
            rows.skipped.get_or_insert(first).rows += 1;
            return self.removed(rows, row.key, epoch);
        }
        append_row(rows.shape, row, &mut rows.block);
        rows.count += 1;
        if rows.block.len() >= RECORD_BYTES { self.end_rows(rows, table, epoch) } else { Ok(()) }
    }

    fn removed(&mut self, rows: &mut TableRecords, key: u64, epoch: u64) -> Result<(), StoreError> {
        rows.removed.extend_from_slice(&key.to_le_bytes());
        if rows.removed.len() >= RECORD_BYTES { self.end_removed(rows, epoch) } else { Ok(()) }
    }

    /// Writes the collected rows with the table's use clock, also if only that has changed.
    fn end_rows(&mut self, rows: &mut TableRecords, table: &Table, epoch: u64) -> Result<(), StoreError> {
        // After the rows were read, so that none of them was used later.
        let clock = table.clock();
        if rows.count == 0 && self.clocks.get(&rows.number) == Some(&clock) {
            return Ok(());
        }
        self.clocks.insert(rows.number, clock);
        let at = begin_record(Kind::Rows, rows.number, self.group + 1, &mut self.waiting);
        self.waiting.extend(clock.to_le_bytes());
        let flags = if rows.may_repeat { MAY_REPEAT } else { 0 };
        let RowShape { dim, state } = rows.shape;
        let words = [dim as u32, state as u32, rows.count, flags];
        words.iter().for_each(|word| self.waiting.extend(word.to_le_bytes()));
        debug_assert_eq!(self.waiting.len() - at, RECORD_HEADER_BYTES + ROWS_HEADER_BYTES);
        self.waiting.append(&mut rows.block);
        rows.count = 0;
        self.end_record(at, epoch)
    }

    fn end_removed(&mut self, rows: &mut TableRecords, epoch: u64) -> Result<(), StoreError> {
        if rows.removed.is_empty() {
            return Ok(());
        }
        let at = begin_record(Kind::Removed, rows.number, self.group + 1, &mut self.waiting);
        let flags = if rows.may_repeat { MAY_REPEAT } else { 0 };
        let words = [(rows.removed.len() / size_of::<u64>()) as u32, flags];
        words.iter().for_each(|word| self.waiting.extend(word.to_le_bytes()));
        debug_assert_eq!(self.waiting.len() - at, RECORD_HEADER_BYTES + REMOVED_HEADER_BYTES);
        self.waiting.append(&mut rows.removed);
        self.end_record(at, epoch)
    }

    fn end_record(&mut self, at: usize, epoch: u64) -> Result<(), StoreError> {
        end_record(at, epoch, &mut self.waiting);
        self.records += 1;
        if self.waiting.len() >= PIECE_BYTES { self.write_waiting() } else { Ok(()) }
    }

    /// Ends the group: its records are on the device when this returns. A group without records is written only if
    /// `always`.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`]; the group is lost.
    pub fn commit(&mut self, unix_ms: u64, always: bool) -> Result<Logged, StoreError> {
        if self.records == 0 && !always {
            return Ok(Logged { group: self.group, bytes: 0 });
        }
        let records = self.records;
        let at = begin_record(Kind::Commit, 0, self.group + 1, &mut self.waiting);
        self.waiting.extend(records.to_le_bytes());
        self.end_record(at, unix_ms)?;
        self.write_waiting()?;
        let bytes = self.written;
        let is_listed = match &mut self.segment {
            Some(segment) => {
                let synced = segment.sink.sync_data();
                let is_listed = segment.is_listed;
                synced.map(|()| is_listed)
            }
            None => Err(io::Error::other("the segment was not opened")),
        };
        let is_listed = is_listed.or_else(|source| self.fail("sync", source))?;
        if !is_listed && let Err(source) = self.files.sync_dir(&self.dir) {
            return self.fail("sync directory", source);
        }
        self.group += 1;
        (self.written, self.records) = (0, 0);
        if let Some(segment) = &mut self.segment {
            segment.is_listed = true;
            segment.bytes += bytes;
            self.previous = (segment.number, segment.bytes);
            if segment.bytes >= self.segment_bytes_max {
                self.segment = None;
            }
        }
        Ok(Logged { group: self.group, bytes })
    }

    /// Gives the group up. The caller drains its changes again.
    pub fn abandon(&mut self) {
        let is_written = self.written > 0;
        self.lose_group();
        if is_written {
            // Its bytes do not count: the next segment says so.
            self.segment = None;
        }
    }

    fn lose_group(&mut self) {
        self.waiting.clear();
        self.clocks.clear();
        (self.written, self.records) = (0, 0);
    }

    /// Removes the segments below this number. Segments that cannot be removed are left to the next call.
    pub fn prune(&self, below: u64) {
        let Ok(names) = self.files.list(&self.dir) else { return };
        let old = names.iter().filter_map(|name| Some((segment_number(name)?, name)));
        let mut old: Vec<_> = old.filter(|(number, _)| *number < below).collect();
        // Oldest first: after a kill in between, the rest of the log is still without a gap.
        old.sort_unstable();
        for (_, name) in old {
            let _ = self.files.remove(&self.dir.join(name));
        }
    }

    /// Writes the collected records, of a new segment if none is open.
    fn write_waiting(&mut self) -> Result<(), StoreError> {
        if self.segment.is_none() {
            let number = self.next_segment;
            // Not used again, even if this fails.
            self.next_segment += 1;
            let path = self.dir.join(segment_name(number));
            let header = SegmentHeader { id: self.id, number, previous: self.previous };
            let created = self.files.create(&path).and_then(|mut sink| {
                sink.write_all(&header.encode())?;
                Ok(sink)
            });
            match created {
                Ok(sink) => self.segment = Some(Segment { sink, number, bytes: 0, is_listed: false }),
                Err(source) => return self.fail("create", source),
            }
            self.written += super::record::HEADER_BYTES as u64;
        }
        let Some(segment) = &mut self.segment else { return Ok(()) };
        self.written += self.waiting.len() as u64;
        match segment.sink.write_all(&self.waiting) {
            Ok(()) => self.waiting.clear(),
            Err(source) => return self.fail("write", source),
        }
        Ok(())
    }

    fn fail<T>(&mut self, action: &'static str, source: io::Error) -> Result<T, StoreError> {
        let number =
            self.segment.take().map_or(self.next_segment.saturating_sub(1), |segment| segment.number);
        self.lose_group();
        Err(io_error(&self.dir.join(segment_name(number)), action, source))
    }
}

/// The records of a table that are being filled.
struct TableRecords {
    number: u32,
    shape: RowShape,
    numbers: RowNumbers,
    may_repeat: bool,
    block: Vec<u8>,
    count: u32,
    removed: Vec<u8>,
    skipped: Option<SkippedRows>,
}

impl TableRecords {
    fn new(number: u32, table: &Table) -> TableRecords {
        let config = table.config();
        TableRecords {
            number,
            shape: RowShape { dim: config.dim(), state: config.state() },
            numbers: RowNumbers::new(config),
            may_repeat: false,
            block: Vec::new(),
            count: 0,
            removed: Vec::new(),
            skipped: None,
        }
    }
}

fn io_error(path: &Path, action: &'static str, source: io::Error) -> StoreError {
    StoreError::Io { path: path.to_path_buf(), action, source }
}
