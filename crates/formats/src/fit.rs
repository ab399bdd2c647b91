//! Fits the parts of a spec that depend on the data: the boundaries of quantile buckets. Knows no model.

use std::sync::Arc;

use sanderling_sample::spec::{DefaultField, Feature, FeatureKind};
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, SampleError, Spec};

use crate::batch_file;
use crate::format::{DataConfig, Format};
use crate::input;
use crate::reader::Reader;

/// Boundaries are fitted to this many rows at most.
pub const FIT_ROWS_MAX: usize = 1_000_000;

/// Boundaries are fitted to this many values at most, 16 bytes each, over all quantile features.
pub const FIT_VALUES_MAX: usize = 1 << 25;

/// Fits the boundaries of all quantile features and returns the completed spec.
///
/// Uses the first [`FIT_ROWS_MAX`] rows, or as many as hold [`FIT_VALUES_MAX`] values; missing fields do not count.
/// Bad rows are handled as `config` says. A batch file contains its boundaries, which belong to the whole input,
/// since its rows are encoded by them.
pub fn fit(spec: &Spec, inputs: &[String], config: &DataConfig) -> Result<Spec, SampleError> {
    let mut spec = spec.expand()?;
    if spec.unfitted().next().is_none() {
        return Ok(spec);
    }
    // A pattern may not show the format of its files.
    let files = input::expand(inputs)?;
    if let Some(file) = files.iter().find(|file| config.format_of(&file.path) == Some(Format::Batch)) {
        let fitted = batch_file::spec_in(file)?;
        for feature in spec.feature.iter_mut().filter(is_unfitted) {
            let same = fitted.feature.iter().find(|other| other.name == feature.name);
            feature.boundaries = same.and_then(|same| same.boundaries.clone());
        }
        if let Some(feature) = spec.unfitted().next() {
            let reason = format!(
                "it has no quantile boundaries of feature {:?}; convert the source with this configuration",
                feature.name
            );
            return Err(SampleError::BadFile { path: file.path.clone(), reason });
        }
        return Ok(spec);
    }
    // Reads the fields as plain numbers; a missing one becomes a number that no field can hold.
    let missing = Some(DefaultField::Number(f64::from(f32::MIN)));
    let numbers: Vec<Feature> = spec
        .unfitted()
        .map(|feature| Feature {
            kind: FeatureKind::Numeric,
            default: missing.clone(),
            buckets: None,
            ..feature.clone()
        })
        .collect();
    let rows_max = FIT_ROWS_MAX.min(FIT_VALUES_MAX / numbers.len());
    let numeric = Spec { feature: numbers, weight: None, negatives: None, ..spec.clone() };
    let options = EncodeOptions { missing: &config.missing, label: LabelUse::Optional, down_sample: false };
    // A number that falls into a bucket may exceed f32, unlike one that is trained on.
    let encoder = Arc::new(Encoder::new(&numeric, &options)?.clamping());
    let mut reader = Reader::open(inputs, config, &encoder)?;
    if let Some(stream) = reader.stream() {
        let feature = spec.unfitted().next().map_or("", |feature| &feature.name);
        return Err(SampleError::Spec(format!(
            "feature {feature:?}: quantile boundaries are fitted to a file before the first pass; {} is a stream, which can be read \
             only once: give boundaries",
            stream.display()
        )));
    }
    let mut batch = encoder.new_batch();
    while batch.len() < rows_max && reader.next(&mut batch)? {}
    let mut columns = batch.columns.into_iter();
    for (feature, column) in spec.feature.iter_mut().filter(is_unfitted).zip(&mut columns) {
        let mut values: Vec<f32> = column.values.into_iter().filter(|value| *value != f32::MIN).collect();
        let buckets = feature.buckets.unwrap_or(Spec::BUCKETS_DEFAULT);
        feature.boundaries = Some(boundaries(&mut values, buckets));
    }
    Ok(spec)
}

fn is_unfitted(feature: &&mut Feature) -> bool {
    feature.kind == FeatureKind::Quantile && feature.boundaries.is_none()
}

/// The boundaries between at most `buckets` buckets of about equal count.
///
/// A boundary is halfway between the last value of one bucket and the first of the next, so that numbers which f32
/// rounds to either fall on the same side. A value that fills a bucket by itself gets one, and the others share the
/// rest: a column that is mostly zero still spends its buckets on the other values.
#[must_use]
pub fn boundaries(values: &mut [f32], buckets: usize) -> Vec<f64> {
    values.sort_unstable_by(f32::total_cmp);
    let mut ends = Vec::new();
    let halfway = |last: f32, next: f32| f64::midpoint(f64::from(last), f64::from(next));
    let (mut start, mut in_bucket, mut left) = (0, 0, buckets);
    while start < values.len() && left > 1 {
        let value = values[start];
        let end = start + values[start..].partition_point(|other| *other <= value);
        // The size of the open bucket and the ones after it, spread evenly.
        let target = (values.len() - start + in_bucket).div_ceil(left);
        let alone = end - start >= target;
        if alone && in_bucket > 0 {
            ends.push(halfway(values[start - 1], value));
            in_bucket = 0;
            left -= 1;
            continue;
        }
        in_bucket += end - start;
        if in_bucket >= target && end < values.len() {
            ends.push(halfway(value, values[end]));
            in_bucket = 0;
            left -= 1;
        }
        start = end;
    }
    ends
}

#[cfg(test)]
mod tests {
    use sanderling_sample::Rows;

    use super::*;
    use crate::batch_file::{BatchFileOptions, BatchFileWriter};

    const SPEC: &str = "[[feature]]\nname = \"x\"\ntype = \"quantile\"\nbuckets = 4";

    fn encoder(spec: &Spec) -> Arc<Encoder> {
        let options = EncodeOptions { missing: &[], label: LabelUse::Required, down_sample: false };
        Arc::new(Encoder::new(spec, &options).unwrap())
    }

    fn read(inputs: &[String], encoder: &Arc<Encoder>) -> sanderling_sample::Batch {
        let mut reader = Reader::open(inputs, &DataConfig::default(), encoder).unwrap();
        let mut batch = encoder.new_batch();
        while reader.next(&mut batch).unwrap() {}
        batch
    }

    #[test]
    fn a_batch_file_has_the_boundaries_wherever_it_stands() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(path("0.csv"), "label,x\n1,1\n0,2\n1,3\n0,4\n").unwrap();
        let open: Spec = toml::from_str(SPEC).unwrap();
        let fitted: Spec = toml::from_str(&format!("{SPEC}\nboundaries = [2.5]")).unwrap();
        let rows = read(&[path("0.csv")], &encoder(&fitted));
        std::fs::create_dir(path("rows")).unwrap();
        let out = dir.path().join("rows/1.batch");
        let mut out = BatchFileWriter::create(&out, &fitted, BatchFileOptions::default()).unwrap();
        out.write(&Rows::all(&rows)).unwrap();
        out.finish().unwrap();
        let check = |inputs: &[String], expected: &[f64]| {
            let found = fit(&open, inputs, &DataConfig::default()).unwrap();
            assert_eq!(found.feature[0].boundaries.as_deref(), Some(expected), "{inputs:?}");
            read(inputs, &encoder(&found));
        };
        check(&[path("0.csv")], &[1.5, 2.5, 3.5]);
        check(&[path("rows/1.batch")], &[2.5]);
        check(&[path("rows/*")], &[2.5]);
        check(&[path("0.csv"), path("rows/*")], &[2.5]);
    }

    #[test]
    fn numbers_beyond_f32_have_buckets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.csv");
        std::fs::write(&path, "label,x\n1,1e39\n0,-1e300\n1,\n0,-1\n1,1\n").unwrap();
        let input = [path.display().to_string()];
        let spec = fit(&toml::from_str(SPEC).unwrap(), &input, &DataConfig::default()).unwrap();
        let ends = spec.feature[0].boundaries.clone().unwrap();
        let buckets = [-1e300, -1.0, 1.0, 1e39].map(|number| ends.partition_point(|end| *end < number));
        assert_eq!(buckets, [0, 1, 2, 3], "{ends:?}");
        assert_eq!(read(&input, &encoder(&spec)).len(), 5);
    }

    #[test]
    fn buckets() {
        let mostly_zero: Vec<f32> = (0..100).map(|i| if i < 91 { 0.0 } else { i as f32 }).collect();
        for (values, buckets, expected) in [
            (vec![], 4, vec![]),
            (vec![5.0; 10], 4, vec![]),
            ((1..=8).map(|i| i as f32).collect(), 4, vec![2.5, 4.5, 6.5]),
            (vec![1.0, 2.0], 4, vec![1.5]),
            (mostly_zero, 4, vec![45.5, 93.5, 96.5]),
            (vec![-1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0], 4, vec![-0.5, 1.0]),
        ] {
            let mut sorted = values.clone();
            assert_eq!(boundaries(&mut sorted, buckets), expected, "{values:?}");
        }
    }

    #[test]
    fn numbers_that_f32_rounds_have_buckets_of_their_own() {
        for numbers in [
            (1..=10).map(|i| f64::from(i) / 10.0).collect::<Vec<_>>(),
            (0..10).map(|i| f64::from(i) * 3.0 + 16_777_217.0).collect(),
        ] {
            let mut values: Vec<f32> = numbers.iter().map(|number| *number as f32).collect();
            let ends = boundaries(&mut values, numbers.len());
            let buckets: Vec<usize> =
                numbers.iter().map(|number| ends.partition_point(|end| end < number)).collect();
            assert_eq!(buckets, (0..numbers.len()).collect::<Vec<_>>(), "{ends:?}");
        }
    }
}
