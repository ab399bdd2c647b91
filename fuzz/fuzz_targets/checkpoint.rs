//! Arbitrary bytes as a checkpoint's manifest, table file or delta file give a typed error or a table, but no panic, and no more memory
//! than the files could fill. Checksums and sizes are fixed first, because they would reject most inputs.
#![no_main]

use std::fs;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sanderling_store::{
    Checkpoint, CheckpointWriter, DeltaWriter, Init, Optimizer, PushScale, Table, TableConfig,
};

const TABLE_FILE: &str = "g1-0.table";
const DELTA_FILE: &str = "g2-0.delta";
const MANIFEST: &str = "manifest.json";
/// Bytes before the blocks of a table file and of a delta file; the checksum is in 8..12 and covers the rest.
const HEADER_BYTES: usize = 40;
const DELTA_HEADER_BYTES: usize = 64;

#[derive(Arbitrary, Debug)]
enum Input {
    /// A manifest's inner object.
    Manifest(String),
    /// Changes of a valid manifest: position, number of removed bytes, inserted bytes.
    ManifestEdits(Vec<(u16, u8, String)>),
    /// The blocks of a table file, and changed bytes of a valid one.
    Blocks(Vec<u8>),
    TableEdits(Vec<(u16, u8)>),
    /// Changes of the manifest of a valid chain.
    ChainEdits(Vec<(u16, u8, String)>),
    /// The blocks of a delta, and changed bytes of a valid one.
    DeltaBlocks(Vec<u8>),
    DeltaEdits(Vec<(u16, u8)>),
}

impl Input {
    fn is_of_chain(&self) -> bool {
        matches!(self, Input::ChainEdits(_) | Input::DeltaBlocks(_) | Input::DeltaEdits(_))
    }
}

fn seal_manifest(body: &str) -> Vec<u8> {
    let crc = crc32c::crc32c(body.as_bytes());
    format!("{{\"manifest_crc32c\":\"{crc:08x}\",\n\"manifest\":{body}}}\n").into_bytes()
}

/// Fixes the checksums of a file's header and blocks.
fn seal(bytes: &mut [u8], header_bytes: usize, row_bytes: usize) {
    if bytes.len() < header_bytes {
        return;
    }
    let crc = crc32c::crc32c(&bytes[12..header_bytes]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    let mut at = header_bytes;
    while at + 8 <= bytes.len() {
        let count = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let rows = (count & !(1 << 31)) as usize;
        let size = match (count >> 31, rows) {
            (0, 0) => if header_bytes == HEADER_BYTES { 8 } else { 16 },
            (0, rows) => rows.saturating_mul(row_bytes),
            (_, keys) => keys * 8,
        };
        let end = (at + 8).saturating_add(size).min(bytes.len());
        let crc = crc32c::crc32c(&bytes[at + 8..end]);
        bytes[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        at = end;
    }
}

fuzz_target!(|input: Input| {
    let dir = tempfile::tempdir().unwrap();
    let sgd = Optimizer::Momentum { lr: 1.0, momentum: 0.5, l2: 0.0 };
    let table = Table::new(TableConfig::single("t", 2, Init::Zero, sgd)).unwrap();
    table.push(&[1, 2, 1 << 60], &[1.0; 6], PushScale::default()).unwrap();
    let mut writer = CheckpointWriter::create(dir.path()).unwrap();
    if input.is_of_chain() {
        writer.begin_chain(16);
    }
    writer.table(&table).unwrap();
    writer.commit().unwrap();
    let (mut name, mut header_bytes) = (TABLE_FILE, HEADER_BYTES);
    if input.is_of_chain() {
        table.push(&[1, 3], &[0.5; 4], PushScale::default()).unwrap();
        table.remove(2);
        let mut writer = DeltaWriter::create(dir.path()).unwrap();
        writer.changes(&table).unwrap();
        writer.commit().unwrap();
        (name, header_bytes) = (DELTA_FILE, DELTA_HEADER_BYTES);
    }
    let (manifest, file) = (dir.path().join(MANIFEST), dir.path().join(name));
    let text = fs::read_to_string(&manifest).unwrap();
    let body = text.split_once("\"manifest\":").unwrap().1.strip_suffix("}\n").unwrap().to_string();
    let mut blocks = fs::read(&file).unwrap();
    match input {
        Input::Manifest(body) => fs::write(&manifest, seal_manifest(&body)).unwrap(),
        Input::ManifestEdits(edits) | Input::ChainEdits(edits) => {
            let mut body = body.into_bytes();
            for (at, gone, new) in edits {
                let at = usize::from(at) % body.len().max(1);
                let end = (at + usize::from(gone)).min(body.len());
                body.splice(at.min(end)..end, new.into_bytes());
            }
            fs::write(&manifest, seal_manifest(&String::from_utf8_lossy(&body))).unwrap();
        }
        Input::Blocks(_) | Input::TableEdits(_) | Input::DeltaBlocks(_) | Input::DeltaEdits(_) => {
            match input {
                Input::Blocks(bytes) | Input::DeltaBlocks(bytes) => {
                    blocks.truncate(header_bytes);
                    blocks.extend(bytes);
                }
                Input::TableEdits(edits) | Input::DeltaEdits(edits) => {
                    for (at, byte) in edits {
                        let at = usize::from(at) % blocks.len();
                        blocks[at] = byte;
                    }
                }
                _ => {}
            }
            seal(&mut blocks, header_bytes, 20 + 4 * 4);
            let old = fs::read(&file).unwrap();
            let body = body
                .replace(&format!("\"bytes\": {}", old.len()), &format!("\"bytes\": {}", blocks.len()))
                .replace(&format!("\"crc32c\": {}", crc32c::crc32c(&old)), &format!("\"crc32c\": {}", crc32c::crc32c(&blocks)));
            fs::write(&file, &blocks).unwrap();
            fs::write(&manifest, seal_manifest(&body)).unwrap();
        }
    }
    let Ok(checkpoint) = Checkpoint::open(dir.path()) else { return };
    let _ = checkpoint.verify();
    for entry in checkpoint.tables() {
        if let Ok(table) = checkpoint.load_table(&entry.name) {
            // With deltas the number of rows is that of the table when they were written.
            assert!(table.len() as u64 == entry.rows || !checkpoint.deltas().is_empty());
        }
    }
    for entry in checkpoint.blobs() {
        let _ = checkpoint.blob(&entry.name);
    }
    if let Ok((whole, _)) = Checkpoint::whole_deltas(dir.path()) {
        Checkpoint::open_through(dir.path(), whole).unwrap().verify().unwrap();
    }
});
