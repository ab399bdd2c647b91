//! Arbitrary bytes as the segments of a delta log give a typed error or a table, but no panic, and no more memory than the
//! files could fill. Checksums are fixed first, because they would reject most inputs.
#![no_main]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sanderling_store::{Init, LogReader, LogTarget, LogWriter, Optimizer, PushScale, Table, TableConfig};

const ID: u64 = 9;
const HEADER_BYTES: usize = 56;
const RECORD_HEADER_BYTES: usize = 32;

#[derive(Arbitrary, Debug)]
struct Input {
    /// Changed bytes: segment, position, byte.
    edits: Vec<(u8, u16, u8)>,
    /// The second segment from its header on, if it is replaced.
    records: Option<Vec<u8>>,
    /// Bytes that are left of the last segment.
    cut: Option<u16>,
    is_sealed: bool,
}

struct Target(Table);

impl LogTarget for Target {
    fn tables(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn table(&mut self, number: u32) -> Option<&mut Table> {
        (number == 1).then_some(&mut self.0)
    }

    fn pushes(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }
}

fn table() -> Table {
    let momentum = Optimizer::Momentum { lr: 1.0, momentum: 0.5, l2: 0.0 };
    Table::new(TableConfig::single("t", 2, Init::Zero, momentum)).unwrap()
}

/// Fixes the checksums of a segment's header and records.
fn seal(bytes: &mut [u8]) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let crc = crc32c::crc32c(&bytes[12..HEADER_BYTES]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    let mut at = HEADER_BYTES;
    while at + RECORD_HEADER_BYTES <= bytes.len() {
        let size = u32::from_le_bytes([bytes[at + 4], bytes[at + 5], bytes[at + 6], bytes[at + 7]]) as usize;
        let end = (at + RECORD_HEADER_BYTES).saturating_add(size).min(bytes.len());
        let crc = crc32c::crc32c(&bytes[at + 4..end]);
        bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        at = end;
    }
}

/// Both segments of a log with creations, updates and removals. Made once, because it waits for the disk.
static SEGMENTS: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let table_of_log = table();
    let mut writer = LogWriter::create(dir.path(), ID, 1 << 20).unwrap();
    let mut epoch = None;
    for group in 0..4_u64 {
        table_of_log.push(&[1, 2 + group, 1 << 60], &[1.0; 6], PushScale::default()).unwrap();
        table_of_log.remove(group);
        if group == 2 {
            writer.end_segment();
        }
        writer.tables(b"[]").unwrap();
        let (reached, _) = match epoch {
            None => writer.all_rows(1, &table_of_log, 16).unwrap(),
            Some(since) => writer.changes(1, &table_of_log, since).unwrap(),
        };
        epoch = Some(reached);
        writer.pushes(b"{}").unwrap();
        writer.commit(group, false).unwrap();
    }
    paths(dir.path()).map(|path| fs::read(path).unwrap())
});

fn paths(dir: &Path) -> [PathBuf; 2] {
    [1, 2].map(|number| dir.join(format!("{number:012}.log")))
}

fuzz_target!(|input: Input| {
    let dir = tempfile::tempdir().unwrap();
    let paths = paths(dir.path());
    let mut segments = SEGMENTS.clone();
    if let Some(records) = input.records {
        segments[1].truncate(HEADER_BYTES);
        segments[1].extend(records);
    }
    for (segment, at, byte) in input.edits {
        let segment = &mut segments[usize::from(segment) % 2];
        let at = usize::from(at) % segment.len();
        segment[at] = byte;
    }
    if input.is_sealed {
        segments.iter_mut().for_each(|segment| seal(segment));
    }
    if let Some(cut) = input.cut {
        segments[1].truncate(usize::from(cut));
    }
    for (path, segment) in paths.iter().zip(&segments) {
        fs::write(path, segment).unwrap();
    }
    for cut in [false, true] {
        if let Ok(reader) = LogReader::open(dir.path(), ID, 1, cut) {
            let _ = reader.replay(&mut Target(table()));
        }
    }
    let _ = LogReader::summary(dir.path(), ID, 1);
    let _ = LogReader::logs(dir.path());
});
