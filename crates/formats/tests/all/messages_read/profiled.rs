//! What `sanderling inspect` finds out about records, which name no columns up front. Knows no encoding of messages.

use std::path::Path;
use std::sync::Arc;

use sanderling_formats::{DataConfig, Format};
use sanderling_inspect::{ColumnKind, ProfileOptions, profile, suggest};
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Spec};
use tempfile::TempDir;

use super::{Row, read, three_ways, write};

#[test]
fn a_profile_knows_the_columns_and_its_suggestion_reads_them() {
    let rows: Vec<Row> = (0..200_u32)
        .map(|n| Row {
            label: n % 3 == 0,
            several: (0..n % 4).collect(),
            one: (n >= 50).then_some(n % 11),
            number: Some((n * 37 % 1000) as i16),
            count: 7 + (n % 2) as u16,
        })
        .collect();
    let dir = TempDir::new().unwrap();
    for (extension, content) in &three_ways(&rows, true)[1..] {
        for packing in ["", ".gz"] {
            let path = write(dir.path(), &format!("a.{extension}{packing}"), content);
            let found =
                profile(Path::new(&path), &DataConfig::default(), &ProfileOptions::default()).unwrap();
            assert_eq!((found.rows, found.bad_rows, found.complete), (200, 0, true));
            let column = |name: &str| found.columns.iter().find(|column| column.name == name).unwrap();
            assert_eq!(column("sparse_0").kind, ColumnKind::List);
            assert_eq!(column("sparse_0").missing, 50);
            assert_eq!((column("sparse_1").missing, column("sparse_1").distinct), (50, 11));
            assert_eq!(column("dense_0").kind, ColumnKind::Float);
            assert_eq!(found.label.as_ref().map(|label| label.column.as_str()), Some("label"));
            // What it suggests is a spec that reads the file.
            let text = suggest(&found, &path).unwrap();
            let config: toml::Table = toml::from_str(&text).unwrap();
            let spec: String = ["label", "feature"]
                .iter()
                .map(|part| {
                    toml::to_string(&toml::Table::from_iter([(part.to_string(), config[*part].clone())]))
                        .unwrap()
                })
                .collect();
            let spec: Spec = toml::from_str(&spec).unwrap();
            let fitted =
                sanderling_formats::fit::fit(&spec, std::slice::from_ref(&path), &DataConfig::default())
                    .unwrap();
            let options = EncodeOptions { missing: &[], label: LabelUse::Required, down_sample: false };
            let encoder = Arc::new(Encoder::new(&fitted, &options).unwrap());
            assert_eq!(read(&path, &encoder).unwrap().len(), 200);
            let limited = ProfileOptions { rows_max: Some(60), top: 5 };
            let part = profile(Path::new(&path), &DataConfig::default(), &limited).unwrap();
            assert_eq!((part.rows, part.complete), (60, false));
        }
    }
    // Without a name the content tells.
    let path = write(dir.path(), "a.data", &three_ways(&rows, true)[1].1);
    let error = profile(Path::new(&path), &DataConfig::default(), &ProfileOptions::default()).unwrap_err();
    assert!(error.to_string().contains("is TFRecord by its content"), "{error}");
    let config = DataConfig { format: Some(Format::TfRecord), ..DataConfig::default() };
    assert_eq!(profile(Path::new(&path), &config, &ProfileOptions::default()).unwrap().rows, 200);
}
