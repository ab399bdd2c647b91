//! Files by url against the same files of this machine: every row, whatever the format, the packing and the server.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sanderling_formats::batch_file::{BatchFileOptions, BatchFileWriter, BlockCompression, spec_of};
use sanderling_formats::{DataConfig, Reader, Source, Unit};
use sanderling_inspect::{ProfileOptions, profile};
use sanderling_sample::{Batch, EncodeOptions, Encoder, LabelUse, Rows, SampleError, Spec};
use sanderling_synth::{SynthConfig, generate};
use sanderling_testkit::web::{Fault, Site, Web};

const SPEC: &str = "
[[feature]]
name = \"I1\"
type = \"numeric\"
[[feature]]
name = \"C1\"
[[feature]]
name = \"C2\"
";
const ROWS: u64 = 1500;

fn encoder(spec: &Spec) -> Arc<Encoder> {
    let missing = [String::new()];
    let options = EncodeOptions { missing: &missing, label: LabelUse::Required, down_sample: false };
    Arc::new(Encoder::new(spec, &options).unwrap())
}

fn read(name: &str, spec: &Spec) -> Result<Batch, SampleError> {
    let encoder = encoder(spec);
    let mut reader = Reader::open(&[name.to_string()], &DataConfig::default(), &encoder)?;
    let mut batch = encoder.new_batch();
    while reader.next(&mut batch)? {}
    assert_eq!(reader.source().bytes_total().unwrap(), reader.source().bytes_read(), "{name}");
    Ok(batch)
}

/// Two files of a format, of different rows.
fn write(dir: &Path, extension: &str) -> Spec {
    let spec = toml::from_str(SPEC).unwrap();
    for part in 0..2 {
        let path = dir.join(format!("part-{part}.{extension}"));
        let config = SynthConfig { rows: ROWS, first_row: part * ROWS, ..SynthConfig::default() };
        if extension == "batch" {
            let csv = dir.join(format!("of-{part}.csv"));
            generate(&config, &csv, &mut |_, _| true).unwrap();
            let rows = read(&csv.to_string_lossy(), &spec).unwrap();
            let options = BatchFileOptions { compression: BlockCompression::Lz4, overwrite: false };
            let mut out = BatchFileWriter::create(&path, &spec, options).unwrap();
            out.write(&Rows::new(&rows, 0..rows.len())).unwrap();
            out.finish().unwrap();
        } else {
            generate(&config, &path, &mut |_, _| true).unwrap();
        }
    }
    if extension.starts_with("libsvm") { Spec::libsvm() } else { spec }
}

#[test]
fn rows_by_url_are_the_rows_of_the_files() {
    for extension in ["libsvm.gz", "libsvm", "csv", "csv.zst", "parquet", "batch"] {
        let dir = tempfile::tempdir().unwrap();
        let spec = write(dir.path(), extension);
        let file = |part: u32| dir.path().join(format!("part-{part}.{extension}"));
        let local = read(&dir.path().join(format!("part-*.{extension}")).to_string_lossy(), &spec).unwrap();
        assert_eq!(local.len() as u64, 2 * ROWS);
        for ranges in [true, false] {
            let files =
                (0..2).map(|part| (format!("d/part-{part}.{extension}"), std::fs::read(file(part)).unwrap()));
            let web = Web::start(Site { ranges, ..Site::new(files) });
            let pattern = web.url(&format!("d/part-*.{extension}"));
            assert!(read(&pattern, &spec).unwrap() == local, "{extension}, ranges: {ranges}");
            // What the query of a signed url ends with is no extension.
            let one = web.url(&format!("d/part-1.{extension}?signature=a.b"));
            let by_url =
                profile(Path::new(&one), &DataConfig::default(), &ProfileOptions::default()).unwrap();
            let mut here = profile(&file(1), &DataConfig::default(), &ProfileOptions::default()).unwrap();
            here.path = PathBuf::from(&one);
            assert!(by_url == here, "{extension}, ranges: {ranges}");
            if extension == "batch" {
                assert_eq!(spec_of(&[one]).unwrap(), spec.expand().unwrap());
            }
        }
    }
}

#[test]
fn what_is_not_wanted_is_not_copied() {
    for extension in ["parquet", "batch"] {
        let dir = tempfile::tempdir().unwrap();
        let spec = write(dir.path(), extension);
        let name = format!("part-0.{extension}");
        let web = Web::start(Site::new([(name.clone(), std::fs::read(dir.path().join(&name)).unwrap())]));
        let source = Source::open(&[web.url(&name)], &DataConfig::default(), &encoder(&spec)).unwrap();
        let found = source.while_wanted(Arc::new(|| false)).next_unit(&mut Unit::default());
        assert!(matches!(found, Err(SampleError::Unwanted)), "{extension}: {found:?}");
    }
}

#[test]
fn errors_name_the_url() {
    let dir = tempfile::tempdir().unwrap();
    let spec = write(dir.path(), "csv");
    let bytes = std::fs::read(dir.path().join("part-0.csv")).unwrap();
    let site = Site { etags: false, ..Site::new([("x.csv".to_string(), bytes)]) };
    let web = Web::start(Site { faults: [Fault::Cut(200_000)].into(), ..site });
    let error = read(&web.url("x.csv"), &spec).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}: cannot be read (", web.url("x.csv"))), "{error}");
    for (name, reason) in [
        (web.url("y.csv"), "is not there"),
        (web.url(""), "names no file"),
        ("ftp://host/x.csv".to_string(), "nothing is known of ftp://"),
        (web.url("x.csv.gz"), "is not there"),
    ] {
        let opened = Source::open(std::slice::from_ref(&name), &DataConfig::default(), &encoder(&spec));
        let error = opened.err().unwrap().to_string();
        assert!(error.starts_with(&format!("{name}: ")) && error.contains(reason), "{error}");
    }
}
