//! Any bytes as a TFRecord file or delimited samples, and any bytes as records in right frames: rows, bad rows or an
//! error, never a panic; and an Example that prost can read is never a damaged one. Knows the readers' public API and
//! the messages of the crate's own tests.
#![no_main]

use std::sync::Arc;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use prost::Message;
use sanderling_testkit::messages::{self, Example};
use sanderling_sample::spec::{Feature, FeatureKind};
use sanderling_formats::{BadRowPolicy, DataConfig, Format, Reader};
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Spec};

#[derive(Arbitrary, Debug)]
enum Content {
    File(Vec<u8>),
    Records(Vec<Vec<u8>>),
}

#[derive(Arbitrary, Debug)]
struct Input {
    is_tfrecord: bool,
    content: Content,
}

fuzz_target!(|input: Input| {
    let names = if input.is_tfrecord { ["a", "b", "x"] } else { ["sparse_0", "sparse_1", "dense_0"] };
    let kinds = [FeatureKind::Multi, FeatureKind::Categorical, FeatureKind::Numeric];
    let feature = names.iter().zip(kinds).map(|(name, kind)| Feature::of(name, kind)).collect();
    let spec = Spec { feature, ..Spec::default() };
    let options = EncodeOptions { missing: &[], label: LabelUse::Optional, down_sample: false };
    let encoder = Arc::new(Encoder::new(&spec, &options).unwrap());
    let file = tempfile::NamedTempFile::new().unwrap();
    let bytes = match &input.content {
        Content::File(bytes) => bytes.clone(),
        Content::Records(records) if input.is_tfrecord => {
            records.iter().flat_map(|record| messages::tfrecord(record)).collect()
        }
        Content::Records(records) => records.iter().flat_map(|record| messages::delimited(record)).collect(),
    };
    std::fs::write(file.path(), bytes).unwrap();
    let config = DataConfig {
        format: Some(if input.is_tfrecord { Format::TfRecord } else { Format::Protobuf }),
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
    for column in &batch.columns {
        assert_eq!(column.offsets.len(), batch.len() + 1);
        assert_eq!(column.offsets[batch.len()] as usize, column.keys.len());
    }
    // A file may start like a compressed one, and then is something else.
    if let (Content::Records(records), Ok(_)) = (&input.content, read) {
        assert_eq!(batch.len() as u64 + reader.bad_rows().count(), records.len() as u64);
        if input.is_tfrecord && records.iter().all(|record| Example::decode(&record[..]).is_ok()) {
            let messages = reader.bad_rows().messages();
            assert!(messages.iter().all(|message| !message.contains("(the record)")), "{messages:?}");
        }
    }
});
