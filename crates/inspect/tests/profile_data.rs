//! Profiles of small files whose content is known, and suggestions that must read back and encode their own file.
//! Knows no model.

#![allow(clippy::print_stdout)] // a skipped test says so
#![allow(clippy::unwrap_used)] // a panic here is a failed test with a line number

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, Int32Array, ListArray, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use sanderling_formats::{BadRowPolicy, DataConfig, Format, Reader};
use sanderling_inspect::{ColumnKind, DataProfile, ProfileOptions, profile, suggest};
use sanderling_sample::spec::FeatureKind;
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Spec};
use tempfile::TempDir;

fn look(path: &Path) -> DataProfile {
    profile(path, &DataConfig::default(), &ProfileOptions::default()).unwrap()
}

fn written(dir: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn write_parquet(path: &Path, records: &RecordBatch) {
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, records.schema(), None).unwrap();
    writer.write(records).unwrap();
    writer.close().unwrap();
}

/// The suggestion as settings and spec.
fn read_back(toml: &str) -> (DataConfig, Spec) {
    let mut table: toml::Table = toml::from_str(toml).unwrap_or_else(|error| panic!("{error}\n{toml}"));
    let mut data = table.remove("data").unwrap().try_into::<toml::Table>().unwrap();
    assert!(data.remove("train").is_some());
    for name in ["name", "seed", "model", "optimizer", "factor_optimizer", "train"] {
        assert!(table.remove(name).is_some(), "{name}");
    }
    let spec: Spec = toml::Value::Table(table).try_into().unwrap_or_else(|error| panic!("{error}\n{toml}"));
    (toml::Value::Table(data).try_into().unwrap(), spec)
}

/// Every row of the file must encode as its own suggestion says; returns the spec, expanded.
fn check_suggestion(path: &Path, profile: &DataProfile) -> Spec {
    let toml = suggest(profile, path.to_str().unwrap()).unwrap();
    let (config, spec) = read_back(&toml);
    let mut spec = if profile.format == Format::Libsvm { Spec::libsvm() } else { spec.expand().unwrap() };
    for feature in &mut spec.feature {
        if feature.kind == FeatureKind::Quantile {
            feature.boundaries = Some(vec![0.0, 1.0]);
        }
    }
    let options = EncodeOptions { missing: &config.missing, label: LabelUse::Required, down_sample: false };
    let encoder = Arc::new(Encoder::new(&spec, &options).unwrap());
    let mut reader = Reader::open(&[path.to_str().unwrap().to_string()], &config, &encoder).unwrap();
    let mut batch = encoder.new_batch();
    while reader.next(&mut batch).unwrap_or_else(|error| panic!("{error}\n{toml}")) {}
    assert_eq!(batch.len() as u64, profile.rows, "{toml}");
    assert_eq!(reader.bad_rows().count(), profile.bad_rows, "{toml}");
    let positives = batch.labels.iter().filter(|label| **label == 1.0).count() as u64;
    assert_eq!(positives, profile.label.as_ref().unwrap().positives, "{toml}");
    spec
}

fn kind_of(spec: &Spec, name: &str) -> Option<FeatureKind> {
    spec.feature.iter().find(|feature| feature.name == name).map(|feature| feature.kind)
}

/// A click log with every sort of column.
fn click_log(separator: char, header: bool) -> String {
    let names =
        ["row_id", "click", "user_id", "age", "spend", "price", "ratio", "tags", "city", "empty", "const"];
    let mut text = if header { names.join(&separator.to_string()) + "\n" } else { String::new() };
    for row in 0..600u64 {
        let spend = if row % 100 == 0 { row * row * 17 + 3 } else { row % 50 };
        let fields = [
            format!("k{row}x"),
            u8::from(row % 4 == 0).to_string(),
            (row * 7919 % 83 + 100_000).to_string(),
            if row % 10 == 3 { String::new() } else { (18 + row % 60).to_string() },
            spend.to_string(),
            format!("{spend}.25"),
            format!("{:.3}", (row % 97) as f64 / 97.0),
            format!("t{}|t{}|u{}", row % 5, row % 7, row % 3),
            format!("City {}", row % 11),
            String::new(),
            "same".to_string(),
        ];
        text += &(fields.join(&separator.to_string()) + "\n");
    }
    text
}

#[test]
fn a_click_log_is_seen_through() {
    let dir = TempDir::new().unwrap();
    let path = written(&dir, "log.csv", &click_log(',', true));
    let seen = look(&path);
    assert_eq!((seen.rows, seen.bad_rows, seen.complete, seen.header), (600, 0, true, Some(true)));
    let column = |name: &str| seen.columns.iter().find(|column| column.name == name).unwrap();
    assert_eq!(column("age").kind, ColumnKind::Integer);
    assert_eq!(column("age").missing, 60);
    assert_eq!((column("user_id").distinct, column("user_id").distinct_estimated), (83, false));
    assert_eq!(column("ratio").kind, ColumnKind::Float);
    assert_eq!((column("tags").kind, column("tags").separator), (ColumnKind::List, Some('|')));
    assert_eq!(column("tags").distinct, 5 + 7 - 5 + 3);
    assert_eq!(column("city").top[0].value, "City 0");
    assert_eq!(column("city").top[0].count, 55);
    assert_eq!(column("empty").kind, ColumnKind::Empty);
    let spend = column("spend").numbers.unwrap();
    assert_eq!((spend.min, spend.max), (0.0, 4_250_003.0));
    let label = seen.label.as_ref().unwrap();
    assert_eq!((label.column.as_str(), label.positives), ("click", 150));
    let spec = check_suggestion(&path, &seen);
    for (name, kind) in [
        ("row_id", None),
        ("empty", None),
        ("const", None),
        ("user_id", Some(FeatureKind::Categorical)),
        ("age", Some(FeatureKind::Quantile)),
        ("spend", Some(FeatureKind::Quantile)),
        ("price", Some(FeatureKind::Log)),
        ("ratio", Some(FeatureKind::Numeric)),
        ("tags", Some(FeatureKind::Multi)),
        ("city", Some(FeatureKind::Categorical)),
    ] {
        assert_eq!(kind_of(&spec, name), kind, "{name}");
    }
}

#[test]
fn separator_header_and_format_are_guessed() {
    let dir = TempDir::new().unwrap();
    for (name, separator, header) in [
        ("semicolon.csv", ';', true),
        ("bare.csv", ',', false),
        ("tabs.data", '\t', true),
        ("bare_tabs.data", '\t', false),
        ("log.tsv", '\t', true),
    ] {
        let path = written(&dir, name, &click_log(separator, header));
        let seen = look(&path);
        assert_eq!(
            (seen.separator.clone(), seen.header, seen.rows),
            (Some(separator.to_string()), Some(header), 600),
            "{name}"
        );
        assert_eq!(seen.label.as_ref().unwrap().column, if header { "click" } else { "c2" }, "{name}");
        check_suggestion(&path, &seen);
    }
}

#[test]
fn commas_of_decimals_separate_nothing_and_names_of_files_become_names_of_runs() {
    let dir = TempDir::new().unwrap();
    let rows: String = (0..90)
        .map(|row| format!("{};u{};{},{}\n", u8::from(row % 5 == 0), row % 7, row, row % 10))
        .collect();
    let path = written(&dir, "my clicks (1).csv", &("click;user;price\n".to_string() + &rows));
    let seen = look(&path);
    assert_eq!(
        (seen.separator.clone(), seen.header, seen.rows, seen.bad_rows),
        (Some(";".to_string()), Some(true), 90, 0)
    );
    assert_eq!(seen.columns.len(), 3);
    assert!(suggest(&seen, "data/my clicks (1).csv").unwrap().contains("\nname = \"my_clicks__1_\"\n"));
}

/// As pandas writes a frame: its index first, without a name.
/// They cannot be told apart; all others are what they would be.
#[test]
fn columns_of_one_name_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let rows = |cell: &dyn Fn(usize) -> String| (0..60).map(|row| cell(row) + "\n").collect::<String>();
    let numbers = rows(&|row| format!("{},{},{},x{}", row % 2, row % 7, row, row % 5));
    let path = written(&dir, "twice.csv", &format!("label,size,size,shop\n{numbers}"));
    let seen = look(&path);
    assert_eq!(
        (seen.header, seen.rows, seen.label.as_ref().unwrap().column.as_str()),
        (Some(true), 60, "label")
    );
    let note = seen.note.as_deref().unwrap();
    assert!(note.contains("more than one column is named \"size\""), "{note}");
    let toml = suggest(&seen, "twice.csv").unwrap();
    assert_eq!(toml.matches("# left out: \"size\" (more than one column has this name").count(), 2, "{toml}");
    let (_, spec) = read_back(&toml);
    let names: Vec<_> = spec.expand().unwrap().feature.into_iter().map(|feature| feature.name).collect();
    assert_eq!(names, ["shop"]);
    // Named otherwise, they are told apart, also by who reads the suggestion.
    let columns = ["label", "width", "depth", "shop"].map(str::to_owned).to_vec();
    let config = DataConfig { columns: Some(columns), header: Some(true), ..DataConfig::default() };
    let named = profile(&path, &config, &ProfileOptions::default()).unwrap();
    let names: Vec<_> =
        check_suggestion(&path, &named).feature.into_iter().map(|feature| feature.name).collect();
    assert_eq!(names, ["width", "shop"], "all depths differ, as ids of rows do");
    // Nor is one of them the label; and what is no header is none.
    let both = written(&dir, "both.csv", &format!("label,label,size,shop\n{numbers}"));
    assert!(look(&both).label.is_none_or(|label| label.column != "label"));
    let texts = rows(&|row| format!("a,a,b{row}"));
    let missing = rows(&|row| if row % 9 == 0 { "NA,NA,b".to_owned() } else { format!("{row},{row},b") });
    for (name, text) in [("texts.csv", texts), ("missing.csv", missing)] {
        let seen = look(&written(&dir, name, &text));
        assert_eq!((seen.header, seen.note), (Some(false), None), "{name}");
    }
}

/// Where nothing is left, the suggestion would be none.
#[test]
fn why_no_column_can_be_a_feature() {
    let dir = TempDir::new().unwrap();
    let check = |path: &Path, reason: &str| {
        let error = suggest(&look(path), "x.csv").unwrap_err().to_string();
        assert_eq!(error, format!("x.csv: no configuration can be suggested: {reason}"));
    };
    let csv = |text: &str| written(&dir, "a.csv", text);
    check(
        &csv("label,e,x,x,f\n1,,1,2,\n0,,3,4,\n"),
        "no column can be a feature: \"e\", \"f\" (it has no values); \"x\", \"x\" (more than one column has this name; \
         to use it, set header = true and name all columns in columns = [...])",
    );
    let empty = (0..7).map(|k| format!(",e{k}")).collect::<String>();
    let names = "\"e0\", \"e1\", \"e2\", \"e3\", \"e4\" and 2 more (it has no values)";
    check(
        &csv(&format!("label{empty}\n1,,,,,,,\n0,,,,,,,\n")),
        &format!("no column can be a feature: {names}"),
    );
    check(&csv("label\n1\n0\n"), "there is no column beside the label");
    // Names of a columnar file cannot be set.
    let path = dir.path().join("a.parquet");
    let column = |of: fn(i32) -> i32| -> ArrayRef { Arc::new(Int32Array::from_iter_values((0..60).map(of))) };
    let columns =
        [("label", column(|row| row % 2)), ("x", column(|row| row % 5)), ("x", column(|row| row % 7))];
    write_parquet(&path, &RecordBatch::try_from_iter(columns).unwrap());
    let names = "\"x\", \"x\" (more than one column has this name; to use it, rename it in the file)";
    check(&path, &format!("no column can be a feature: {names}"));
    let note = look(&path).note.unwrap();
    assert!(note.ends_with("are left out; to use it, rename it in the file"), "{note}");
}

#[test]
fn a_column_that_the_header_does_not_name_is_left_out() {
    let dir = TempDir::new().unwrap();
    for rows in [20, 90] {
        let lines: String = (0..rows)
            .map(|row| format!("{row},{},{}\n", u8::from(row % 5 == 0), ["a", "b", "c"][row % 3]))
            .collect();
        let path = written(&dir, "frame.csv", &(",click,site\n".to_string() + &lines));
        let seen = look(&path);
        assert_eq!((seen.header, seen.rows, seen.bad_rows), (Some(true), rows as u64, 0));
        assert_eq!(seen.label.as_ref().unwrap().column, "click");
        let spec = check_suggestion(&path, &seen);
        assert!(kind_of(&spec, "site").is_some() && kind_of(&spec, "").is_none());
        let toml = suggest(&seen, "frame.csv").unwrap();
        assert!(
            toml.contains("# left out: \"\" (the header does not name it; to use it, set header = true"),
            "{toml}"
        );
    }
    // One that is named by nothing but what a row may have, too, is none.
    assert_eq!(look(&written(&dir, "bare.csv", "\na\nb\n")).header, Some(false));
}

#[test]
fn names_are_written_so_that_they_are_read_back_and_command_no_terminal() {
    let dir = TempDir::new().unwrap();
    let odd = "a \u{1b}[31m \\ 'b' \u{9b}";
    let lines: String = (0..90).map(|row| format!("{},{}\n", u8::from(row % 5 == 0), row % 3)).collect();
    let path = written(&dir, "odd.csv", &format!("click,{odd}\n{lines}"));
    let spec = check_suggestion(&path, &look(&path));
    assert!(kind_of(&spec, odd).is_some(), "{spec:?}");
    let toml = suggest(&look(&path), "x\u{1b}y.csv").unwrap();
    assert!(!toml.contains(|c: char| c.is_control() && c != '\n'), "{toml:?}");
}

#[test]
fn text_labels_name_their_positive() {
    let dir = TempDir::new().unwrap();
    let rows: String = (0..90)
        .map(|row| format!("{}, {}, {}\n", row % 3, ["a", "b"][row % 2], [">50K", "<=50K", "<=50K"][row % 3]))
        .collect();
    let path = written(&dir, "a.csv", &rows);
    let seen = look(&path);
    let label = seen.label.as_ref().unwrap();
    assert_eq!(
        (label.column.as_str(), &label.positive[..], label.positives),
        ("c3", &[">50K".to_string()][..], 30)
    );
    check_suggestion(&path, &seen);
}

#[test]
fn a_label_by_its_name_may_have_one_value() {
    let dir = TempDir::new().unwrap();
    let check = |value: &str, positive: &[&str], all: bool| {
        // The site has two values, and may not be taken for it.
        let rows: String =
            (0..8).map(|row| format!("{},{value},{}\n", ["a", "b"][row % 2], row % 3)).collect();
        for rows in [rows, format!("a,{value},7\n")] {
            let path = written(&dir, "a.csv", &("site,click,n\n".to_string() + &rows));
            let seen = look(&path);
            let label = seen.label.as_ref().unwrap();
            assert_eq!(label.column, "click", "{value}");
            assert_eq!(label.positive, positive, "{value}");
            assert!(label.reason.contains("one value only"), "{}", label.reason);
            assert_eq!(label.positives, if all { seen.rows } else { 0 }, "{value}");
            check_suggestion(&path, &seen);
        }
    };
    check("1", &[], true);
    check("0", &[], false);
    check("yes", &["yes"], true);
    check("no", &["yes"], false);
    // What is no yes or no is no label, and what is to be filled in is no feature either.
    let path = written(&dir, "b.csv", "label,n\nx,1\n");
    let seen = look(&path);
    assert_eq!(seen.label, None);
    let (_, spec) = read_back(&suggest(&seen, "b.csv").unwrap());
    let names: Vec<String> = spec.expand().unwrap().feature.iter().map(|one| one.name.clone()).collect();
    assert_eq!(names, ["n"]);
}

#[test]
fn elements_of_lists_are_counted_to_the_end_and_numbers_among_them() {
    let dir = TempDir::new().unwrap();
    let check = |row: &dyn Fn(u64) -> String, rows: u64, distinct: u64, top: &str| {
        let text: String = (0..rows).map(|k| format!("{},{}\n", k % 2, row(k))).collect();
        let seen = look(&written(&dir, "a.csv", &("label,tags\n".to_string() + &text)));
        let tags = &seen.columns[1];
        assert_eq!((tags.kind, tags.separator), (ColumnKind::List, Some('|')));
        assert_eq!((tags.distinct, tags.distinct_estimated, tags.top_count_error), (distinct, false, 0));
        assert!(tags.top[0].value.starts_with(top), "{:?}", tags.top);
        tags.top[0].clone()
    };
    let triple = |k: u64| format!("{}|{}|{}", 60 + k / 2 % 40, 60 + k % 37, 60 + k * 7 % 40);
    let single = |k: u64| if k % 4 == 1 { "7".to_string() } else { (1 + k / 4 % 50).to_string() };
    let mixed = |k: u64| if k.is_multiple_of(2) { triple(k) } else { single(k) };
    let top = check(&mixed, 4000, 40 + 50, "7");
    assert_eq!(top.count, 1000 + 20);
    // Whatever comes first.
    check(&|k| if k < 2000 { single(k) } else { triple(k) }, 4000, 90, "7");
    // Early rows do not stand for late ones.
    let late = |k: u64| match k {
        0..70_000 => format!("t{}|x{}", k % 50, k % 30),
        _ => format!("n{}|z{}", k % 500, k % 7),
    };
    assert_eq!(check(&late, 200_000, 50 + 30 + 500 + 7, "z").count, 18_572);
}

#[test]
fn texts_of_times_are_no_lists() {
    let dir = TempDir::new().unwrap();
    let check = |name: &str,
                 cell: &dyn Fn(usize) -> String,
                 kind: ColumnKind,
                 times: bool,
                 suggested: &str| {
        let rows: String = (0..400).map(|row| format!("{},{},{}\n", row % 2, cell(row), row % 7)).collect();
        let path = written(&dir, "times.csv", &format!("label,{name},user\n{rows}"));
        let found = look(&path);
        let column = found.columns.iter().find(|column| column.name == name).unwrap();
        assert_eq!((column.kind, column.times, column.separator.is_some()), (kind, times, !times), "{name}");
        let text = suggest(&found, "times.csv").unwrap();
        assert!(text.contains(suggested), "{text}");
    };
    let at = |row: usize| format!("2026-05-0{} {:02}:{:02}:00", 1 + row % 3, row / 60, row % 60);
    let held = "by = \"time\", column = \"seen\" }    # the latest rows";
    check("seen", &at, ColumnKind::Text, true, held);
    // A list may hold something that looks like a date.
    let list = |row: usize| format!("2026-05-0{} day{}", 1 + row % 3, row % 50);
    check("seen", &list, ColumnKind::List, false, "type = \"multi\"");
}

#[test]
fn libsvm_text_is_counted_by_index() {
    let dir = TempDir::new().unwrap();
    let rows: String =
        (0..100).map(|row| format!("{} 1:1 {}:0.5 900:1\n", u8::from(row % 5 == 0), row + 2)).collect();
    for name in ["a.libsvm", "a.txt"] {
        let path = written(&dir, name, &(rows.clone() + "1 2;3\n" + "0\n"));
        let seen = look(&path);
        let sparse = seen.sparse.as_ref().unwrap();
        assert_eq!((seen.rows, seen.bad_rows, sparse.pairs), (101, 1, 300));
        assert_eq!((sparse.row_min, sparse.row_max, sparse.index_max, sparse.distinct), (0, 3, 900, 102));
        assert!(!sparse.all_ones);
        assert_eq!((sparse.top[0].value.as_str(), sparse.top[0].count), ("1", 100));
        assert_eq!(seen.label.as_ref().unwrap().positives, 20);
        check_suggestion(&path, &seen);
    }
}

#[test]
fn libffm_text_is_counted_by_field() {
    let dir = TempDir::new().unwrap();
    let row = |row: usize| match row % 2 {
        0 => format!("{} 0:{}:1 12:7:0.5 12:8:1\n", u8::from(row.is_multiple_of(5)), row % 10),
        _ => format!("{} 12:7:1\n", u8::from(row.is_multiple_of(5))),
    };
    let rows: String = (0..100).map(row).collect();
    for name in ["a.ffm", "a.txt"] {
        let path = written(&dir, name, &(rows.clone() + "1 2:3\n"));
        let seen = look(&path);
        assert_eq!((seen.format, seen.rows, seen.bad_rows), (Format::Libffm, 100, 1));
        let columns = seen.columns.iter().map(|it| (it.name.as_str(), it.missing, it.distinct));
        assert_eq!(columns.collect::<Vec<_>>(), [("field_0", 50, 5), ("field_12", 0, 2)]);
        assert_eq!(seen.label.as_ref().unwrap().positives, 20);
        let spec = check_suggestion(&path, &seen);
        assert_eq!(spec, Spec::libffm([0, 12]).expand().unwrap());
    }
}

#[test]
fn columnar_files_are_profiled_too() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.parquet");
    let labels: ArrayRef =
        Arc::new(Int32Array::from_iter_values((0..300).map(|row| i32::from(row % 3 == 0))));
    let city: ArrayRef = Arc::new(
        (0..300).map(|row| (row % 10 != 0).then(|| format!("c{}", row % 7))).collect::<StringArray>(),
    );
    let tags = (0..300).map(|row| Some((0..row % 4).map(|tag| Some(tag + row % 2)).collect::<Vec<_>>()));
    let tags: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(tags));
    let records = RecordBatch::try_from_iter([("city", city), ("tags", tags), ("label", labels)]).unwrap();
    write_parquet(&path, &records);
    let seen = look(&path);
    assert_eq!((seen.rows, seen.columns[0].missing, seen.columns[0].distinct), (300, 30, 7));
    assert_eq!((seen.columns[1].kind, seen.columns[1].distinct), (ColumnKind::List, 4));
    let spec = check_suggestion(&path, &seen);
    assert_eq!(kind_of(&spec, "tags"), Some(FeatureKind::Multi));
}

#[test]
fn bad_rows_are_counted_and_the_first_is_told() {
    let dir = TempDir::new().unwrap();
    let path = written(&dir, "a.csv", "label,x\n1,a\n0\n0,b,c\n0,e\n1,a\n1,\"d\n");
    let seen = look(&path);
    assert_eq!((seen.rows, seen.bad_rows), (3, 3));
    let first = seen.first_bad_row.as_ref().unwrap();
    assert!(first.contains("a.csv:3:") && first.contains("2 fields"), "{first}");
    check_suggestion(&path, &seen);
}

/// As the reader cuts them, which [`check_suggestion`] sees to.
#[test]
fn empty_fields_between_tabs_and_empty_lines_of_one_column() {
    let dir = TempDir::new().unwrap();
    let check = |name: &str, text: &str, columns: usize, (rows, bad_rows): (u64, u64)| {
        let path = written(&dir, name, text);
        let config = DataConfig { on_bad_row: BadRowPolicy::Skip { max: u64::MAX }, ..DataConfig::default() };
        let seen = profile(&path, &config, &ProfileOptions::default()).unwrap();
        assert_eq!((seen.columns.len(), seen.rows, seen.bad_rows), (columns, rows, bad_rows), "{text:?}");
        if columns > 1 {
            check_suggestion(&path, &seen);
        }
    };
    check("tabs.csv", "label\tx\ty\n1\t\t\"a\"\n0\t \"b\" \t\n1\ta\tb\n", 3, (3, 0));
    for end in ["\n", "\r\n"] {
        check("one.csv", &["x", "1", "", "2", "\"\"", ""].join(end), 1, (3, 1));
    }
}

#[test]
fn a_row_limit_is_a_limit_and_says_so() {
    let dir = TempDir::new().unwrap();
    let path = written(&dir, "log.csv", &click_log(',', true));
    for (rows_max, rows, complete) in [(10, 10, false), (600, 600, true), (1000, 600, true)] {
        let options = ProfileOptions { rows_max: Some(rows_max), ..ProfileOptions::default() };
        let seen = profile(&path, &DataConfig::default(), &options).unwrap();
        assert_eq!((seen.rows, seen.complete), (rows, complete), "{rows_max}");
    }
}

#[test]
fn shared_data_sets_give_specs_that_read_them() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    for (name, format, label, positives) in [
        ("frappe_x1/valid.csv", None, "label", None),
        ("criteo_80k/criteo_80k.tsv", Some(Format::Criteo), "label", None),
        ("adult/adult.data", None, "c15", Some(7841)),
    ] {
        let path = data.join(name);
        if !path.exists() {
            println!("skipped: {} is not there", path.display());
            continue;
        }
        let config = DataConfig { format, ..DataConfig::default() };
        let seen = profile(&path, &config, &ProfileOptions::default()).unwrap();
        let guessed = seen.label.as_ref().unwrap();
        assert_eq!(guessed.column, label, "{name}");
        assert!(positives.is_none_or(|positives| positives == guessed.positives), "{name}: {guessed:?}");
        check_suggestion(&path, &seen);
    }
}
