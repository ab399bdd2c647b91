//! The bytes of a log segment: a header, then records, each with its length and checksum.

use crate::checkpoint::rows::{u32_at, u64_at};

const MAGIC: [u8; 8] = *b"SNDLDLOG";
pub(super) const VERSION: u32 = 1;
pub(super) const HEADER_BYTES: usize = 56;
/// The header's checksum covers the header from here on.
const CHECKED_FROM: usize = 12;
pub(super) const RECORD_HEADER_BYTES: usize = 32;
/// Most bytes of a record's payload, which a reader holds.
pub(super) const PAYLOAD_BYTES_MAX: usize = 256 << 20;
/// Bytes before the rows of a record of rows: use clock, shape, number of rows, flags.
pub(super) const ROWS_HEADER_BYTES: usize = 24;
/// Bytes before the keys of a record of removed keys: their number, flags.
pub(super) const REMOVED_HEADER_BYTES: usize = 8;
/// A later record of the group may have a key again.
pub(super) const MAY_REPEAT: u32 = 1;

/// The kinds of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Tables = 1,
    Rows = 2,
    Removed = 3,
    Pushes = 4,
    Commit = 5,
}

impl Kind {
    fn of(number: u32) -> Option<Kind> {
        let all = [Kind::Tables, Kind::Rows, Kind::Removed, Kind::Pushes, Kind::Commit];
        all.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// Names the log: the same for all of its segments.
    pub(super) id: u64,
    pub(super) number: u64,
    /// The segment before, and its bytes that count. 0: there is none.
    pub(super) previous: (u64, u64),
}

impl SegmentHeader {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(0_u32.to_le_bytes());
        [VERSION, HEADER_BYTES as u32, 0].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        let numbers = [self.id, self.number, self.previous.0, self.previous.1];
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        let crc = crc_fast::crc32_iscsi(&bytes[CHECKED_FROM..]);
        bytes[8..CHECKED_FROM].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a header; `Err` has the version of a newer format, or nothing.
    pub(super) fn decode(bytes: &[u8]) -> Result<SegmentHeader, Option<u32>> {
        let bytes = bytes.get(..HEADER_BYTES).ok_or(None)?;
        if bytes[..8] != MAGIC || u32_at(bytes, 8) != crc_fast::crc32_iscsi(&bytes[CHECKED_FROM..]) {
            return Err(None);
        }
        if u32_at(bytes, 12) != VERSION {
            return Err(Some(u32_at(bytes, 12)));
        }
        let [id, number, previous, previous_bytes] = [24, 32, 40, 48].map(|at| u64_at(bytes, at));
        Ok(SegmentHeader { id, number, previous: (previous, previous_bytes) })
    }
}

/// The header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub(super) crc32c: u32,
    pub(super) payload_bytes: usize,
    pub(super) kind: Kind,
    /// Number of the table in this log; 0 for records of no table.
    pub(super) table: u32,
    pub(super) group: u64,
    /// Of rows and removed keys: the epoch of the drain. Of a commit: milliseconds since 1970.
    pub(super) epoch: u64,
}

impl RecordHeader {
    /// Reads a header, without its checksum; `None` if it is none.
    pub(super) fn decode(bytes: &[u8]) -> Option<RecordHeader> {
        let bytes = bytes.get(..RECORD_HEADER_BYTES)?;
        let payload_bytes = u32_at(bytes, 4) as usize;
        let header = RecordHeader {
            crc32c: u32_at(bytes, 0),
            payload_bytes,
            kind: Kind::of(u32_at(bytes, 8))?,
            table: u32_at(bytes, 12),
            group: u64_at(bytes, 16),
            epoch: u64_at(bytes, 24),
        };
        (payload_bytes <= PAYLOAD_BYTES_MAX).then_some(header)
    }
}

/// Returns whether a record, header and payload, has its checksum.
pub(super) fn is_whole(header: &[u8], payload: &[u8]) -> bool {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&header[4..RECORD_HEADER_BYTES]);
    digest.update(payload);
    digest.finalize() as u32 == u32_at(header, 0)
}

/// Begins a record at the end of `out`, whose payload is appended next; returns its place for [`end_record`].
pub(super) fn begin_record(kind: Kind, table: u32, group: u64, out: &mut Vec<u8>) -> usize {
    let at = out.len();
    [0, 0, kind as u32, table].iter().for_each(|word| out.extend(word.to_le_bytes()));
    [group, 0].iter().for_each(|number| out.extend(number.to_le_bytes()));
    at
}

/// Ends the record that began at `at`.
pub(super) fn end_record(at: usize, epoch: u64, out: &mut [u8]) {
    let record = &mut out[at..];
    let payload_bytes = (record.len() - RECORD_HEADER_BYTES) as u32;
    record[4..8].copy_from_slice(&payload_bytes.to_le_bytes());
    record[24..32].copy_from_slice(&epoch.to_le_bytes());
    let crc = crc_fast::crc32_iscsi(&record[4..]);
    record[..4].copy_from_slice(&crc.to_le_bytes());
}

/// The name of a segment's file.
pub(super) fn segment_name(number: u64) -> String {
    format!("{number:012}.log")
}

/// The number of a segment by the name of its file; `None` for other files.
pub(super) fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log")?;
    let is_number = digits.len() >= 12 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that an independent program wrote by the documented format (`golden/make_log.py`).
    #[test]
    fn records_are_written_as_documented() {
        let golden = include_bytes!("../../../tests/all/golden/log/000000000004.log");
        let first = include_bytes!("../../../tests/all/golden/log/000000000003.log");
        let previous = (3, first.len() as u64 - 4);
        let mut written = SegmentHeader { id: 0x5EED, number: 4, previous }.encode();
        let mut record = |kind, table, group, epoch, payload: &[u8]| {
            let at = begin_record(kind, table, group, &mut written);
            written.extend_from_slice(payload);
            end_record(at, epoch, &mut written);
        };
        record(Kind::Tables, 0, 10, 0, b"the tables");
        let row = |key: u64, header: [u32; 3], values: [f32; 2]| {
            let mut row = key.to_le_bytes().to_vec();
            header.iter().for_each(|word| row.extend(word.to_le_bytes()));
            values.iter().for_each(|value| row.extend(value.to_le_bytes()));
            row
        };
        let rows = |clock: u64, row: Vec<u8>| {
            let mut payload = clock.to_le_bytes().to_vec();
            [1, 1, 1, 0_u32].iter().for_each(|word| payload.extend(word.to_le_bytes()));
            payload.extend(row);
            payload
        };
        record(Kind::Rows, 5, 10, 102, &rows(7, row(3, [10, 7, 6], [7.0, 0.0])));
        record(Kind::Commit, 0, 10, 1_700_000_000_010, &2_u64.to_le_bytes());
        record(Kind::Rows, 5, 11, 103, &rows(8, row(1, [5, 8, 4], [9.0, 9.0])));
        assert_eq!(written, golden);
        let header = SegmentHeader::decode(golden).unwrap();
        assert_eq!((header.id, header.number, header.previous), (0x5EED, 4, previous));
        assert_eq!(
            (segment_name(4).as_str(), segment_number("000000000004.log")),
            ("000000000004.log", Some(4))
        );
        for name in ["4.log", "00000000000x.log", "000000000004.log.new", ""] {
            assert_eq!(segment_number(name), None, "{name}");
        }
    }
}
