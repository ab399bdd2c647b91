//! Errors of columnar files: each names the file, the row and the column.

use super::*;

/// Reading must fail, and say all of this.
pub(super) fn check_error(path: &Path, encoder: &Encoder, parts: &[&str]) {
    let error = read(path, encoder).expect_err("must not read").to_string();
    let file = path.file_name().unwrap().to_str().unwrap();
    for part in parts.iter().copied().chain([file]) {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
}

#[test]
fn errors_name_the_file_the_row_and_the_column() {
    let numeric = encoder("[[feature]]\nname = \"x\"\ntype = \"numeric\"", LabelUse::Required);
    let dir = TempDir::new().unwrap();
    let labels: ArrayRef = Arc::new(Int32Array::from(vec![1, 0]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["1.5", "tall"]));
    let parts = Arc::new(StructArray::from(records(vec![("a", Arc::clone(&labels))])));
    for way in WAYS {
        let row = records(vec![("label", Arc::clone(&labels)), ("x", Arc::clone(&texts))]);
        check_error(
            &write(dir.path(), way, &[row]),
            &numeric,
            &[":2:", "column x", "finite number", "\"tall\""],
        );
        let lacking = records(vec![("label", Arc::clone(&labels)), ("y", Arc::clone(&texts))]);
        check_error(&write(dir.path(), way, &[lacking]), &numeric, &["no column \"x\"", "label, y"]);
        let nested = records(vec![("label", Arc::clone(&labels)), ("x", parts.clone())]);
        check_error(&write(dir.path(), way, &[nested]), &numeric, &["column \"x\"", "Struct"]);
        let twice = records(vec![
            ("label", Arc::clone(&labels)),
            ("x", Arc::clone(&labels)),
            ("x", Arc::clone(&labels)),
        ]);
        check_error(&write(dir.path(), way, &[twice]), &numeric, &["more than one column \"x\""]);
    }
}

#[test]
fn a_bad_row_goes_to_the_policy_and_the_others_are_kept() {
    let encoder = encoder("[[feature]]\nname = \"x\"\ntype = \"numeric\"", LabelUse::Required);
    let dir = TempDir::new().unwrap();
    let labels: ArrayRef = Arc::new(Int32Array::from(vec![1, 0, 1]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["1", "bad", "3"]));
    let path = write(dir.path(), "a.parquet", &[records(vec![("label", labels), ("x", texts)])]);
    let mut file = open(&path, &encoder).unwrap();
    let records = file.next_records().unwrap().unwrap();
    let (mut batch, mut bad) = (encoder.new_batch(), Vec::new());
    let count = |error, _: &mut Batch| {
        bad.push(error);
        Ok(())
    };
    let place = Place { path: &path, first_row: 1, first_row_id: 0 };
    RecordEncoder::default().encode(&encoder, &records, place, &mut batch, count).unwrap();
    assert_eq!(batch.columns[0].values, [1.0, 3.0]);
    assert!(matches!(&bad[..], [SampleError::BadRow { line: 2, .. }]), "{bad:?}");
}

#[test]
fn a_stream_must_end_where_it_says() {
    let encoder = encoder("[[feature]]\nname = \"x\"", LabelUse::Required);
    let dir = TempDir::new().unwrap();
    let ones: ArrayRef = Arc::new(Int32Array::from(vec![1, 0]));
    let path = write(
        dir.path(),
        "a.arrows",
        &[records(vec![("label", Arc::clone(&ones)), ("x", Arc::clone(&ones))])],
    );
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 8]).unwrap();
    check_error(&path, &encoder, &["without an end marker"]);
    std::fs::write(&path, [&whole[..], &whole[..]].concat()).unwrap();
    check_error(&path, &encoder, &["follow the end marker"]);
}

#[test]
fn a_cut_file_is_an_error_wherever_it_is_cut() {
    let encoder = encoder("[[feature]]\nname = \"x\"", LabelUse::Required);
    let dir = TempDir::new().unwrap();
    let ones: ArrayRef = Arc::new(Int32Array::from(vec![1, 0]));
    let texts: ArrayRef = Arc::new(vec!["a", "b"].into_iter().collect::<DictionaryArray<Int32Type>>());
    let records = records(vec![("label", ones), ("x", texts)]);
    for way in WAYS {
        let path = write(dir.path(), way, std::slice::from_ref(&records));
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(read(&path, &encoder).unwrap().len(), 2);
        // The ends byte by byte, the middle in steps.
        let near_an_end = |cut: &usize| *cut < 64 || cut + 64 > whole.len() || cut.is_multiple_of(11);
        for cut in (0..whole.len()).filter(near_an_end) {
            File::create(&path).unwrap().write_all(&whole[..cut]).unwrap();
            check_error(&path, &encoder, &[]);
        }
    }
}
