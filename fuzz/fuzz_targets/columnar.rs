//! Good Parquet and Arrow IPC files with some bytes changed, cut or put in, and any bytes as such files: rows, bad rows or an
//! error. A panic of the libraries that the reader catches and reports is none of ours, so that only one that comes out counts.
//! Knows the readers' public API, and the libraries' writers for the good files.
#![no_main]

use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use arrow::array::{
    ArrayRef, DictionaryArray, Float64Array, Int64Array, ListArray, RecordBatch, StringArray,
};
use arrow::datatypes::{Int32Type, Int64Type};
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use libfuzzer_sys::fuzz_target;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use sanderling_formats::{BadRowPolicy, DataConfig, Format, Reader};
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Spec};

#[derive(Arbitrary, Debug)]
enum Content {
    Bytes {
        is_parquet: bool,
        bytes: Vec<u8>,
    },
    /// Which file, and per change where from the start or from the end, how many bytes go, what comes.
    Changed {
        which: u8,
        changes: Vec<(bool, u16, u8, Vec<u8>)>,
    },
}

fn records() -> RecordBatch {
    let ids: DictionaryArray<Int32Type> = (0..20).map(|row| ["x", "y", "a longer id"][row % 3]).collect();
    let tags = (0..20).map(|row| (row % 4 != 0).then(|| (0..row % 3).map(Some).collect::<Vec<_>>()));
    let columns: [(&str, ArrayRef); 5] = [
        ("label", Arc::new(Int64Array::from_iter_values((0..20).map(|row| row % 2)))),
        ("id", Arc::new(ids)),
        (
            "text",
            Arc::new(StringArray::from_iter((0..20).map(|row| (row % 5 != 0).then(|| row.to_string())))),
        ),
        (
            "x",
            Arc::new(Float64Array::from_iter(
                (0..20).map(|row| (row % 6 != 0).then_some(f64::from(row) / 4.0)),
            )),
        ),
        ("tags", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(tags))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
        .unwrap()
}

/// Whether it is Parquet, and the file.
fn good() -> &'static [(bool, Vec<u8>)] {
    static GOOD: OnceLock<Vec<(bool, Vec<u8>)>> = OnceLock::new();
    GOOD.get_or_init(|| {
        let records = records();
        let mut files = Vec::new();
        for pages in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(Default::default())] {
            let properties =
                WriterProperties::builder().set_compression(pages).set_data_page_row_count_limit(8).build();
            let mut writer = ArrowWriter::try_new(Vec::new(), records.schema(), Some(properties)).unwrap();
            writer.write(&records).unwrap();
            files.push((true, writer.into_inner().unwrap()));
        }
        for codec in [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)] {
            let options = || IpcWriteOptions::default().try_with_compression(codec).unwrap();
            let mut writer =
                FileWriter::try_new_with_options(Vec::new(), &records.schema(), options()).unwrap();
            writer.write(&records).unwrap();
            writer.finish().unwrap();
            files.push((false, writer.into_inner().unwrap()));
            let mut writer =
                StreamWriter::try_new_with_options(Vec::new(), &records.schema(), options()).unwrap();
            writer.write(&records).unwrap();
            writer.write(&records).unwrap();
            writer.finish().unwrap();
            files.push((false, writer.into_inner().unwrap()));
        }
        files
    })
}

fuzz_target!(
    init: {
        // Instead of the fuzzer's hook, which ends the process before anybody can catch.
        std::panic::set_hook(Box::new(|_| {}));
    },
    |content: Content| {
        let spec: Spec = serde_json::from_str(
            r#"{"feature": [{"name": "id"}, {"name": "text"}, {"name": "x", "type": "numeric"}, {"name": "tags", "type": "multi"}]}"#,
        )
        .unwrap();
        let options = EncodeOptions { missing: &[], label: LabelUse::Optional, down_sample: false };
        let encoder = Arc::new(Encoder::new(&spec, &options).unwrap());
        let is_good = matches!(&content, Content::Changed { changes, .. } if changes.is_empty());
        let (is_parquet, bytes) = match content {
            Content::Bytes { is_parquet, bytes } => (is_parquet, bytes),
            Content::Changed { which, changes } => {
                let (is_parquet, mut bytes) = good()[usize::from(which) % good().len()].clone();
                for (from_end, at, gone, new) in changes {
                    let at = usize::from(at).min(bytes.len());
                    let at = if from_end { bytes.len() - at } else { at };
                    let end = (at + usize::from(gone)).min(bytes.len());
                    bytes.splice(at..end, new);
                }
                (is_parquet, bytes)
            }
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let config = DataConfig {
            format: Some(if is_parquet { Format::Parquet } else { Format::Arrow }),
            on_bad_row: BadRowPolicy::Skip { max: u64::MAX },
            ..DataConfig::default()
        };
        let path = file.path().to_str().unwrap().to_string();
        let mut reader = Reader::open(&[path], &config, &encoder).unwrap();
        let mut batch = encoder.new_batch();
        let read = loop {
            match reader.next(&mut batch) {
                Ok(true) => {}
                other => break other,
            }
        };
        assert!(!is_good || (read.is_ok() && batch.len() % 20 == 0 && !batch.is_empty()), "{read:?}");
        for column in &batch.columns {
            assert_eq!(column.offsets.len(), batch.len() + 1);
            assert_eq!(column.offsets[batch.len()] as usize, column.keys.len());
        }
    }
);
