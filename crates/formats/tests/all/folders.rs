//! Folders as Spark and Hive write them: their data files, and the columns in their paths, for text and Parquet alike. Knows the
//! crate's public API.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use sanderling_formats::{DataConfig, Reader, input};
use sanderling_sample::{Batch, EncodeOptions, Encoder, LabelUse, SampleError, Spec};

fn read(name: &Path, config: &DataConfig) -> Result<Batch, SampleError> {
    let spec = "[[feature]]\nname = \"user\"\nsalt = \"\"\n[[feature]]\nname = \"day\"\nsalt = \"\"\n\
                [[feature]]\nname = \"hour\"\ntype = \"numeric\"";
    let spec: Spec = toml::from_str(spec).unwrap();
    let options = EncodeOptions { missing: &[], label: LabelUse::Required, down_sample: false };
    let encoder = Arc::new(Encoder::new(&spec, &options).unwrap());
    let mut reader = Reader::open(&[name.display().to_string()], config, &encoder)?;
    let mut batch = encoder.new_batch();
    while reader.next(&mut batch)? {}
    Ok(batch)
}

fn write(path: &Path, user: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    if path.extension().is_none_or(|extension| extension == "csv") {
        std::fs::write(path, format!("label,user\n1,{user}\n0,{user}\n")).unwrap();
        return;
    }
    let labels: ArrayRef = Arc::new(Int64Array::from(vec![1, 0]));
    let users: ArrayRef = Arc::new(StringArray::from(vec![user; 2]));
    let records = RecordBatch::try_from_iter([("label", labels), ("user", users)]).unwrap();
    let mut writer =
        ArrowWriter::try_new(std::fs::File::create(path).unwrap(), records.schema(), None).unwrap();
    writer.write(&records).unwrap();
    writer.close().unwrap();
}

fn key(text: &str) -> u64 {
    sanderling_sample::key::hash(text.as_bytes(), sanderling_sample::key::salt(""))
}

#[test]
fn partition_columns_are_read_from_the_path() {
    for extension in ["csv", "parquet"] {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("clicks");
        write(&root.join(format!("day=2024-01-01/hour=7/part-0.{extension}")), "a");
        write(&root.join(format!("day=2024-01-01/hour=8/part-0.{extension}")), "b");
        write(&root.join(format!("day=x%3Ay/hour=__HIVE_DEFAULT_PARTITION__/part-0.{extension}")), "c");
        for rubbish in ["_SUCCESS", ".part-0.crc", "day=x%3Ay/_SUCCESS", "_temporary/0/part-0"] {
            std::fs::create_dir_all(root.join(rubbish).parent().unwrap()).unwrap();
            std::fs::write(root.join(rubbish), "rubbish").unwrap();
        }
        for name in [root.clone(), root.join("*"), root.join("day=*"), root.join("*/*"), root.join("*/*/*")] {
            let batch = read(&name, &DataConfig::default()).unwrap();
            assert_eq!(batch.labels, [1.0, 0.0, 1.0, 0.0, 1.0, 0.0], "{name:?}");
            let users = ["a", "a", "b", "b", "c", "c"].map(key);
            assert_eq!(batch.columns[0].keys, users, "{name:?}");
            let first = key("2024-01-01");
            assert_eq!(batch.columns[1].keys, [first, first, first, first, key("x:y"), key("x:y")]);
            // A missing value is a key of its own, with the value 1.
            assert_eq!(batch.columns[2].values, [7.0, 7.0, 8.0, 8.0, 1.0, 1.0]);
            assert_ne!(batch.columns[2].keys[4], batch.columns[2].keys[0]);
        }
    }
}

#[test]
fn a_folder_stands_for_its_data_files() {
    let folder = tempfile::tempdir().unwrap();
    let name = |name: &str| folder.path().join(name).display().to_string();
    for file in
        ["b/part-1.csv", "b/part-0.csv", "b/_SUCCESS", "b/.part-0.csv.crc", "c/_x.csv", "d/sub/x.csv", "e/.x"]
    {
        std::fs::create_dir_all(folder.path().join(file).parent().unwrap()).unwrap();
        std::fs::write(folder.path().join(file), "label\n1\n").unwrap();
    }
    let expand = |pattern: &str| {
        let files = input::expand(&[name(pattern)]).map_err(|error| error.to_string())?;
        let short =
            |file: input::InputFile| file.path.strip_prefix(folder.path()).unwrap().display().to_string();
        Ok::<Vec<String>, String>(files.into_iter().map(short).collect())
    };
    let parts = ["b/part-0.csv", "b/part-1.csv"];
    assert_eq!(expand("b").unwrap(), parts);
    assert_eq!(expand("b/").unwrap(), parts);
    assert_eq!(expand("b/*").unwrap(), parts);
    // What is named is read.
    assert_eq!(expand("c/_*").unwrap(), ["c/_x.csv"]);
    assert_eq!(expand("b/_SUCCESS").unwrap(), ["b/_SUCCESS"]);
    let error = expand("c").unwrap_err();
    assert!(error.contains("c: is a folder without data files"), "{error}");
    let error = expand("e/*").unwrap_err();
    assert!(error.contains("no file matches this pattern"), "{error}");
    let error = expand("d").unwrap_err();
    assert!(error.contains("d/sub: is a folder in a folder of data, and no partition"), "{error}");
}
