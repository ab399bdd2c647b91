//! Any bytes as a text file (libsvm, libffm, CSV, TSV, Criteo), plain or compressed: rows, bad rows or an error, never a panic; and
//! the same rows whatever instructions read them and wherever blocks end. Knows the readers' public API.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use sanderling_formats::{BadRowPolicy, BadRows, DataConfig, Decoder, Format, Isa, Source, Unit};
use sanderling_sample::{Batch, EncodeOptions, Encoder, LabelUse, Spec};

/// Small, so that lines go over the ends of blocks.
const UNIT_BYTES: usize = 64;

/// Rows as bits, since a value may be NaN; messages about bad rows; what ended it.
type Found = (Vec<u32>, Vec<(Vec<u32>, Vec<u64>, Vec<u32>)>, Vec<String>, Option<String>);

fn read(
    path: &str,
    config: &DataConfig,
    encoder: &Arc<Encoder>,
    isa: Isa,
    unit_bytes: Option<usize>,
) -> Found {
    let bad_rows = Arc::new(BadRows::new(config.on_bad_row));
    let mut decoder = Decoder::with_isa(Arc::clone(encoder), Arc::clone(&bad_rows), isa);
    let (mut batch, mut unit) = (encoder.new_batch(), Unit::default());
    let error = (|| {
        let source = Source::open(&[path.to_string()], config, encoder)?;
        let mut source = match unit_bytes {
            Some(bytes) => source.with_unit_bytes(bytes),
            None => source,
        };
        while source.next_unit(&mut unit)? {
            decoder.decode(&unit, &mut batch)?;
        }
        Ok::<_, sanderling_sample::SampleError>(())
    })();
    check(&batch);
    let bits = |floats: &[f32]| floats.iter().map(|float| float.to_bits()).collect::<Vec<_>>();
    let columns = batch
        .columns
        .iter()
        .map(|column| (column.offsets.clone(), column.keys.clone(), bits(&column.values)));
    let error = error.err().map(|error| error.to_string());
    ([bits(&batch.labels), bits(&batch.weights)].concat(), columns.collect(), bad_rows.messages(), error)
}

fn check(batch: &Batch) {
    for column in &batch.columns {
        assert_eq!(column.offsets.len(), batch.len() + 1);
        assert_eq!(column.offsets[batch.len()] as usize, column.keys.len());
        assert_eq!(column.values.len(), if column.is_weighted() { column.keys.len() } else { 0 });
    }
}

// Three bytes say how it is read; the rest is the file.
fuzz_target!(|bytes: &[u8]| {
    let Some((&[how, more, missing], file)) = bytes.split_first_chunk() else { return };
    let format = [Format::Libsvm, Format::Csv, Format::Tsv, Format::Criteo, Format::Libffm][usize::from(how) % 5];
    let has = |bit: u8| more >> bit & 1 == 1;
    let spec = match format {
        Format::Libsvm => Spec::libsvm(),
        Format::Libffm => Spec::libffm([0, 1, 2]),
        Format::Criteo => Spec::criteo(),
        _ => serde_json::from_str(
            r#"{"label": {"column": "a"}, "feature": [{"name": "b", "type": "numeric"}, {"name": "c"},
                {"name": "d", "type": "multi", "separator": "|"}]}"#,
        )
        .unwrap(),
    };
    let columns = || ["a", "b", "c", "d"].map(str::to_owned).to_vec();
    let config = DataConfig {
        format: Some(format),
        header: has(0).then_some(has(1)),
        columns: has(2).then(columns),
        comment: has(3).then_some('#'),
        separator: has(4).then(|| [";", "::"][usize::from(missing) % 2].to_owned()),
        missing: if missing % 4 == 0 { vec![] } else { vec![String::new(), "?".to_owned()] },
        on_bad_row: if has(5) { BadRowPolicy::Fail } else { BadRowPolicy::Skip { max: u64::MAX } },
    };
    let label = if has(6) { LabelUse::Required } else { LabelUse::Optional };
    let options = EncodeOptions { missing: &config.missing, label, down_sample: false };
    let Ok(encoder) = Encoder::new(&spec, &options) else { return };
    let encoder = Arc::new(encoder);
    let folder = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(folder.path(), file).unwrap();
    let path = folder.path().to_str().unwrap();
    let expected = read(path, &config, &encoder, Isa::Scalar, None);
    // How much comes out of a damaged stream before it is noticed, and so what is wrong first, depends on how much is asked for
    // at once.
    let is_damaged = |found: &Found| found.3.as_ref().is_some_and(|error| error.contains("cannot be read on"));
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        assert_eq!(read(path, &config, &encoder, isa, None), expected, "{isa:?}");
        let in_small_units = read(path, &config, &encoder, isa, Some(UNIT_BYTES));
        if is_damaged(&expected) {
            assert!(in_small_units.3.is_some(), "{isa:?}: {in_small_units:?}");
        } else {
            assert_eq!(in_small_units, expected, "{isa:?} in small units");
        }
    }
});
