//! The generator of synthetic data: its bytes do not depend on threads, its law is the requested one, its best AUC
//! equals the AUC of the true probabilities, and all formats agree. It does not test any reader.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use sanderling_sample::SampleError;

use super::{CATEGORICAL, Generator, NUMERIC, SynthConfig, SynthFormat, SynthReport, generate};

fn config(rows: u64) -> SynthConfig {
    SynthConfig { rows, vocabulary: 500_000, threads: 2, ..SynthConfig::default() }
}

/// Generates into a temporary file of this name; returns the report and the bytes, decompressed.
fn write(config: &SynthConfig, name: &str) -> (SynthReport, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    let report = generate(config, &path, &mut |_, _| true).unwrap().unwrap();
    let raw = std::fs::read(&path).unwrap();
    assert_eq!(report.bytes, raw.len() as u64);
    let mut bytes = Vec::new();
    match path.extension().and_then(|e| e.to_str()) {
        Some("gz") => _ = flate2::read::GzDecoder::new(&raw[..]).read_to_end(&mut bytes).unwrap(),
        Some("zst") => bytes = zstd::decode_all(&raw[..]).unwrap(),
        _ => bytes = raw,
    }
    (report, bytes)
}

#[test]
fn bytes_and_report_do_not_depend_on_threads() {
    for name in ["a.libsvm", "a.tsv", "a.csv", "a.parquet", "a.libsvm.gz"] {
        let base = SynthConfig { multi_valued: 3, first_row: 700, threads: 1, ..config(5000) };
        let one = write(&base, name);
        for threads in [2, 3, 7] {
            let many = write(&SynthConfig { threads, ..base.clone() }, name);
            assert!(one == many, "{name} differs with {threads} threads");
        }
        let other = write(&SynthConfig { seed: 43, ..base.clone() }, name);
        assert!(one.1 != other.1, "{name} does not depend on the seed");
    }
}

/// Of files that were there, too.
#[test]
fn what_is_stopped_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.libsvm", "a.csv.gz", "a.tsv.zst", "a.parquet"] {
        let path = dir.path().join(name);
        for before in [None, Some("before")] {
            before.iter().for_each(|text| std::fs::write(&path, text).unwrap());
            let stopped = generate(&config(20_000), &path, &mut |rows, _| rows < 10_000).unwrap();
            assert_eq!(stopped, None);
            assert_eq!(std::fs::read_to_string(&path).ok().as_deref(), before, "{name}");
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4);
}

#[test]
fn a_later_first_row_continues_the_stream() {
    let (_, whole) = write(&config(3000), "whole.tsv");
    let mut parts = Vec::new();
    for (first_row, rows) in [(0, 1), (1, 1499), (1500, 36), (1536, 512), (2048, 952)] {
        parts.extend(write(&SynthConfig { first_row, ..config(rows) }, "part.tsv").1);
    }
    assert!(whole == parts);
}

#[test]
fn compression_changes_no_byte_of_text() {
    let plain = write(&config(3000), "a.libsvm").1;
    assert!(plain == write(&config(3000), "a.libsvm.gz").1);
    assert!(plain == write(&config(3000), "a.libsvm.zst").1);
}

#[test]
fn libsvm_has_39_features_and_ids_of_their_own() {
    let (report, bytes) = write(&config(2000), "a.libsvm");
    let text = String::from_utf8(bytes).unwrap();
    assert_eq!(text.lines().count(), 2000);
    for line in text.lines() {
        let mut tokens = line.split(' ');
        assert!(matches!(tokens.next(), Some("0" | "1")));
        let features: Vec<(u32, f64)> = tokens
            .map(|token| token.split_once(':').unwrap())
            .map(|(index, value)| (index.parse().unwrap(), value.parse().unwrap()))
            .collect();
        assert_eq!(features.len(), NUMERIC + CATEGORICAL);
        for (place, &(index, value)) in features.iter().enumerate() {
            let own = place as u32 + 1;
            match place {
                0..NUMERIC if index == own => assert!((0.0..=23.03).contains(&value)),
                0..NUMERIC => assert_eq!((index, value), (own + NUMERIC as u32, 1.0)),
                _ => assert!(index > 2 * NUMERIC as u32 && index < report.ids_end && value == 1.0),
            }
        }
        let categorical = &features[NUMERIC..];
        assert!(categorical.windows(2).all(|pair| pair[0].0 < pair[1].0), "features share ids: {line}");
    }
}

#[test]
fn columns_and_libsvm_tell_of_the_same_rows() {
    let config = SynthConfig { multi_valued: 2, ..config(500) };
    let libsvm = String::from_utf8(write(&config, "a.libsvm").1).unwrap();
    let tsv = String::from_utf8(write(&config, "a.tsv").1).unwrap();
    let mut tokens: HashMap<String, u32> = HashMap::new();
    for (sparse, columns) in libsvm.lines().zip(tsv.lines()) {
        let mut sparse = sparse.split(' ');
        let columns: Vec<&str> = columns.split('\t').collect();
        assert_eq!(columns.len(), 1 + NUMERIC + CATEGORICAL);
        assert_eq!(sparse.next().unwrap(), columns[0]);
        for (index, count) in columns[1..=NUMERIC].iter().enumerate() {
            let (id, value) = sparse.next().unwrap().split_once(':').unwrap();
            if count.is_empty() {
                assert_eq!((id, value), ((index + 1 + NUMERIC).to_string().as_str(), "1"));
            } else {
                let log = (1.0 + count.parse::<f64>().unwrap()).ln();
                assert!((value.parse::<f64>().unwrap() - log).abs() < 0.0051);
            }
        }
        for (index, cell) in columns[1 + NUMERIC..].iter().enumerate() {
            assert!(index < 2 || !cell.contains('|'));
            for token in cell.split('|') {
                assert_eq!(token.len(), 8);
                let id = sparse.next().unwrap().strip_suffix(":1").unwrap().parse().unwrap();
                assert_eq!(*tokens.entry(token.to_string()).or_insert(id), id, "a token means two ids");
            }
        }
        assert_eq!(sparse.next(), None);
    }
    let csv = String::from_utf8(write(&config, "a.csv").1).unwrap();
    let (header, rows) = csv.split_once('\n').unwrap();
    assert!(header.starts_with("label,I1,") && header.ends_with(",C26"));
    assert!(rows == tsv.replace('\t', ","));
}

#[test]
fn parquet_holds_the_columns_of_tsv() {
    use arrow_array::Array;
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Int32Type, Int64Type};
    let config = SynthConfig { multi_valued: 1, ..config(3000) };
    let tsv = String::from_utf8(write(&config, "a.tsv").1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    generate(&config, &path, &mut |_, _| true).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReader::try_new(file, 1024).unwrap();
    let mut lines = tsv.lines();
    for batch in reader {
        let batch = batch.unwrap();
        for row in 0..batch.num_rows() {
            let mut fields = vec![batch.column(0).as_primitive::<Int32Type>().value(row).to_string()];
            for column in &batch.columns()[1..=NUMERIC] {
                let column = column.as_primitive::<Int64Type>();
                fields.push(if column.is_null(row) { String::new() } else { column.value(row).to_string() });
            }
            let values = batch.column(1 + NUMERIC).as_list::<i32>().value(row);
            fields.push(values.as_string::<i32>().iter().flatten().collect::<Vec<_>>().join("|"));
            for column in &batch.columns()[2 + NUMERIC..] {
                fields.push(column.as_string::<i32>().value(row).to_string());
            }
            assert_eq!(fields.join("\t"), lines.next().unwrap());
        }
    }
    assert_eq!(lines.next(), None);
}

#[test]
fn ids_follow_the_zipf_law_and_vocabularies_add_up() {
    let config = config(60_000);
    let generator = Generator::new(&config).unwrap();
    let sizes = generator.vocabularies();
    assert_eq!(sizes.iter().sum::<u32>(), config.vocabulary);
    assert!(*sizes.iter().max().unwrap() > 1000 * sizes.iter().min().unwrap(), "{sizes:?}");
    let mut counts = vec![HashMap::<u32, u32>::new(); CATEGORICAL];
    generator.for_each_row(0..config.rows, |row| {
        for (index, counts) in counts.iter_mut().enumerate() {
            *counts.entry(row.ids(index)[0]).or_default() += 1;
        }
    });
    for (index, (counts, &size)) in counts.iter().zip(&sizes).enumerate() {
        let mut counts: Vec<f64> = counts.values().map(|&count| f64::from(count)).collect();
        counts.sort_by(|a, b| b.total_cmp(a));
        let norm: f64 = (1..=size).map(|rank| f64::from(rank).powf(-config.zipf_exponent)).sum();
        for (place, count) in counts.iter().take(10).enumerate() {
            let expected = config.rows as f64 * ((place + 1) as f64).powf(-config.zipf_exponent) / norm;
            // Six standard deviations, and room for neighbours that changed places.
            let slack = 6.0 * expected.sqrt() + 0.02 * expected;
            assert!((count - expected).abs() < slack, "C{}: place {place}: {count} / {expected}", index + 1);
        }
    }
}

#[test]
fn multi_valued_features_have_one_to_k_distinct_values() {
    let config = SynthConfig { multi_valued: 3, values_max: 5, ..config(4000) };
    let mut seen = [[0u32; 6]; CATEGORICAL];
    Generator::new(&config).unwrap().for_each_row(0..4000, |row| {
        for (index, seen) in seen.iter_mut().enumerate() {
            let mut ids = row.ids(index).to_vec();
            seen[ids.len()] += 1;
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), row.ids(index).len());
        }
    });
    for (index, seen) in seen.iter().enumerate() {
        let several = seen[2..].iter().all(|&rows| rows > 0);
        assert!(
            if index < 3 { seen[0] == 0 && several } else { seen[1] == 4000 },
            "C{}: {seen:?}",
            index + 1
        );
    }
}

/// AUC by sorting all probabilities, ties counting one half.
fn auc(scores: &[(f64, bool)]) -> f64 {
    let mut sorted = scores.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut below, mut wins) = (0.0, 0.0);
    for tied in sorted.chunk_by(|a, b| a.0 == b.0) {
        let positives = tied.iter().filter(|row| row.1).count() as f64;
        let negatives = tied.len() as f64 - positives;
        wins += positives * (below + 0.5 * negatives);
        below += negatives;
    }
    wins / (below * (scores.len() as f64 - below))
}

#[test]
fn best_auc_and_logloss_are_those_of_the_true_probabilities() {
    for (rank, positive_rate) in [(4, 0.25), (0, 0.5), (6, 0.03)] {
        let config = SynthConfig { first_row: 100, rank, positive_rate, ..config(30_000) };
        let mut rows = Vec::new();
        Generator::new(&config)
            .unwrap()
            .for_each_row(100..30_100, |row| rows.push((row.probability(), row.label())));
        let (report, _) = write(&config, "a.tsv");
        let cost = |&(p, label): &(f64, bool)| if label { -p.ln() } else { -(1.0 - p).ln() };
        let logloss = rows.iter().map(cost).sum::<f64>() / 30_000.0;
        assert_eq!((report.rows, rows.len()), (30_000, 30_000));
        assert_eq!(report.positives, rows.iter().filter(|row| row.1).count() as u64);
        assert!((report.best_logloss.unwrap() - logloss).abs() < 1e-9);
        let best = report.best_auc.unwrap();
        assert!((best - auc(&rows)).abs() < 1e-5, "{best} / {}", auc(&rows));
        assert!(best > 0.7, "{best}");
        let rate = report.positives as f64 / 30_000.0;
        assert!((rate - positive_rate).abs() < 0.015, "{rate} / {positive_rate}");
        let mean = rows.iter().map(|row| row.0).sum::<f64>() / 30_000.0;
        assert!((mean - rate).abs() < 0.012, "labels do not follow the probabilities: {mean} / {rate}");
    }
}

#[test]
fn edges() {
    let (report, bytes) = write(&config(0), "a.libsvm");
    assert_eq!((report.rows, report.best_auc, report.best_logloss, bytes.len()), (0, None, None, 0));
    let formats = [
        ("x.svm", Some(SynthFormat::Libsvm)),
        ("x.tsv.zst", Some(SynthFormat::Tsv)),
        ("x.csv.gz", Some(SynthFormat::Csv)),
        ("x.parquet", Some(SynthFormat::Parquet)),
        ("x.txt", None),
        ("tsv", None),
    ];
    for (name, format) in formats {
        assert_eq!(SynthFormat::of_path(Path::new(name)), format, "{name}");
    }
    assert_eq!("parquet".parse::<SynthFormat>().unwrap(), SynthFormat::Parquet);
    assert!("xml".parse::<SynthFormat>().unwrap_err().to_string().contains("found \"xml\""));
    let bad = [
        SynthConfig { vocabulary: 3, ..config(1) },
        SynthConfig { positive_rate: f64::NAN, ..config(1) },
        SynthConfig { multi_valued: 27, ..config(1) },
        SynthConfig { values_max: 0, ..config(1) },
    ];
    for config in bad {
        let error = generate(&config, Path::new("/nonexistent/a.tsv"), &mut |_, _| true).unwrap_err();
        assert!(matches!(error, SampleError::Settings(_)), "{error}");
    }
    let error = generate(&config(1), Path::new("/nonexistent/a.tsv"), &mut |_, _| true).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/a.tsv"), "{error}");
    let smallest = SynthConfig { vocabulary: 100, ..config(100) };
    assert_eq!(write(&smallest, "a.tsv").0.vocabularies.iter().sum::<u32>(), 100);
}

#[test]
fn labels_drift_by_day() {
    const DAY: u64 = 4000;
    let plain = SynthConfig { positive_rate: 0.3, ..config(5 * DAY) };
    let drifting = SynthConfig { drift: 0.4, day_rows: DAY, ..plain.clone() };
    let logits = |config: &SynthConfig, day: u64| {
        let mut found = Vec::new();
        let generator = Generator::new(config).unwrap();
        generator
            .for_each_row(day * DAY..(day + 1) * DAY, |row| found.push((row.logit(), row.probability())));
        found
    };
    assert_eq!(logits(&plain, 0), logits(&drifting, 0), "the first day is as without drift");
    let correlation = |day: u64| {
        let (one, two) = (logits(&plain, day), logits(&drifting, day));
        let n = one.len() as f64;
        let mean = |of: &[(f64, f64)]| of.iter().map(|(logit, _)| logit).sum::<f64>() / n;
        let (mean_one, mean_two) = (mean(&one), mean(&two));
        let sum = |of: &dyn Fn(f64, f64) -> f64| {
            one.iter().zip(&two).map(|(a, b)| of(a.0 - mean_one, b.0 - mean_two)).sum::<f64>()
        };
        let rate = two.iter().map(|(_, probability)| probability).sum::<f64>() / n;
        // The weights of frequent ids move the share of positives, too.
        assert!((rate - 0.3).abs() < 0.2, "day {day}: {rate} are positive");
        sum(&|a, b| a * b) / (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt()
    };
    let found: Vec<f64> = (0..3).map(correlation).collect();
    // The numeric features do not drift, so days have more in common than cos(36 degrees) and cos(72 degrees).
    assert!(
        found[0] > 0.999999 && (0.75..0.99).contains(&found[1]) && found[2] < found[1] - 0.1,
        "{found:?}"
    );
    // One file over all days is the files of the days.
    let (_, whole) = write(&SynthConfig { rows: 2 * DAY, ..drifting.clone() }, "whole.tsv");
    let days =
        [0, DAY].map(|first_row| SynthConfig { rows: DAY, first_row, day_rows: 0, ..drifting.clone() });
    assert!(whole == [write(&days[0], "1.tsv").1, write(&days[1], "2.tsv").1].concat());
}
