//! Any bytes as a batch file, and a good batch file with some bytes changed: the rows that were written, or an error, or
//! (where the checksums were made to fit) rows whose columns are whole; never a panic. Knows the readers' public API.
#![no_main]

use std::sync::Arc;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sanderling_formats::batch_file::{BatchFileOptions, BatchFileWriter, BlockCompression};
use sanderling_sample::{Batch, EncodeOptions, Encoder, LabelUse, PackedBatch, PackedBuffer, Rows, SampleError, Spec};
use sanderling_formats::{DataConfig, Reader};

#[derive(Arbitrary, Debug)]
enum Content {
    File(Vec<u8>),
    /// The bytes of a block, behind right lengths and checksums, packed by the number.
    Block(Vec<u8>, u32),
    /// Rows (label, number, keys), and what is laid over the file's bytes where.
    Changed(Vec<(bool, i16, Vec<u64>)>, u8, Vec<(u16, u8)>),
}

fn read(path: &str, encoder: &Arc<Encoder>) -> Result<Batch, SampleError> {
    let mut reader = Reader::open(&[path.to_string()], &DataConfig::default(), encoder)?;
    let mut batch = encoder.new_batch();
    while reader.next(&mut batch)? {}
    Ok(batch)
}

/// A checksum behind the bytes that it is of, at the place where a header has it.
fn seal(header: &mut [u8], at: usize) {
    let crc = crc32c::crc32c(&header[..at]);
    header[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

fuzz_target!(|content: Content| {
    let spec: Spec = serde_json::from_str(
        r#"{"feature": [{"name": "x", "type": "numeric"}, {"name": "tags", "type": "multi"}]}"#,
    )
    .unwrap();
    let options = EncodeOptions { missing: &[], label: LabelUse::Required, down_sample: false };
    let encoder = Arc::new(Encoder::new(&spec, &options).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.batch");
    let mut expected = encoder.new_batch();
    let write = |rows: &Batch, which: u8| {
        let (_, compression) = BlockCompression::ALL[usize::from(which) % 3];
        let options = BatchFileOptions { compression, overwrite: true };
        let mut out = BatchFileWriter::create(&path, &spec, options).unwrap();
        for start in (0..rows.len()).step_by(3) {
            out.write(&Rows::new(rows, start..rows.len().min(start + 3))).unwrap();
        }
        out.finish().unwrap();
        std::fs::read(&path).unwrap()
    };
    let bytes = match &content {
        Content::File(bytes) => bytes.clone(),
        Content::Block(payload, compression) => {
            let mut buffer = PackedBuffer::new();
            buffer.resize(payload.len()).copy_from_slice(payload);
            let _ = PackedBatch::parse(buffer);
            let mut bytes = write(&expected, 0);
            // In place of index and end: a block of as many rows as it says itself, an index of it, an end.
            bytes.truncate(bytes.len() - 64);
            let at = bytes.len();
            let rows = payload.get(8..12).map_or(0, |rows| u32::from_le_bytes(rows.try_into().unwrap()));
            let mut header = [0; 64];
            header[..4].copy_from_slice(b"BLCK");
            header[4..8].copy_from_slice(&(compression % 4).to_le_bytes());
            header[8..12].copy_from_slice(&rows.to_le_bytes());
            header[12..16].copy_from_slice(&crc32c::crc32c(payload).to_le_bytes());
            header[16..24].copy_from_slice(&(payload.len() as u64).to_le_bytes());
            header[24..32].copy_from_slice(&(payload.len() as u64).to_le_bytes());
            seal(&mut header, 60);
            bytes.extend(header);
            bytes.extend(payload);
            bytes.resize(bytes.len().next_multiple_of(64), 0);
            let index_at = bytes.len() as u64;
            let mut index = [0; 64];
            index[..8].copy_from_slice(&(at as u64).to_le_bytes());
            index[8..16].copy_from_slice(&u64::from(rows).to_le_bytes());
            bytes.extend(index);
            let mut end = [0; 64];
            end[..8].copy_from_slice(&index_at.to_le_bytes());
            end[8..16].copy_from_slice(&1_u64.to_le_bytes());
            end[16..24].copy_from_slice(&u64::from(rows).to_le_bytes());
            end[24..28].copy_from_slice(&crc32c::crc32c(&index[..16]).to_le_bytes());
            seal(&mut end, 52);
            end[56..].copy_from_slice(b"SNDLBEND");
            bytes.extend(end);
            bytes
        }
        Content::Changed(rows, which, changes) => {
            for (label, number, keys) in rows {
                expected.columns[0].push(1, f32::from(*number));
                keys.iter().for_each(|key| expected.columns[1].push(*key, 1.0));
                expected.close_row(f32::from(u8::from(*label)), 1.0);
            }
            let mut bytes = write(&expected, *which);
            for (at, byte) in changes {
                let at = usize::from(*at) % bytes.len();
                bytes[at] = *byte;
            }
            bytes
        }
    };
    std::fs::remove_file(&path).ok();
    std::fs::write(&path, bytes).unwrap();
    let Ok(batch) = read(path.to_str().unwrap(), &encoder) else {
        return;
    };
    for column in &batch.columns {
        assert_eq!(column.offsets.len(), batch.len() + 1);
        assert_eq!(column.offsets[batch.len()] as usize, column.keys.len());
    }
    if let Content::Changed(..) = content {
        assert_eq!(batch, expected);
    }
});
