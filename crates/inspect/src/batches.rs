//! The profile of a batch file, whose blocks hold keys and numbers, not the original texts. Knows no spec but the
//! file's own.

use sanderling_formats::DataConfig;
use sanderling_formats::batch_file::{BatchFile, Unpacker};
use sanderling_sample::spec::FeatureKind;
use sanderling_sample::{Field, PackedBatch, PackedBuffer, SampleError};

use super::{DataProfile, LABEL_VALUES, ProfileOptions, add_field, stats_of};

const NOTE: &str = "a batch file holds keys, not the values that they were made of; \
                    numeric and log features show their numbers as encoded";

pub(super) fn profile_batches(
    profile: &mut DataProfile,
    config: &DataConfig,
    options: &ProfileOptions,
) -> Result<(), SampleError> {
    let file = BatchFile::open_plain(&profile.path, None)?;
    let spec = file.spec();
    let label = std::iter::once(spec.label.column.clone());
    let names: Vec<String> = label.chain(spec.feature.iter().map(|feature| feature.name.clone())).collect();
    let mut stats = stats_of(&profile.path, &names)?;
    let room = options.rows_max.unwrap_or(u64::MAX);
    let (mut block, mut unpacker, mut buffer) = (None, Unpacker::default(), PackedBuffer::new());
    while let Some(next) = file.block_after(block.as_ref()).filter(|_| profile.rows < room) {
        let batch = file.load_all(&next, &mut unpacker, buffer)?;
        let rows = batch.rows();
        let rows = rows.slice(0..usize::try_from(room - profile.rows).unwrap_or(usize::MAX).min(rows.len()));
        for label in rows.labels() {
            add_field(&mut stats[0], Field::Float(f64::from(*label)), config);
        }
        for (column, feature) in spec.feature.iter().enumerate() {
            let is_number = matches!(feature.kind, FeatureKind::Numeric | FeatureKind::Log);
            let values = rows.values(column).filter(|_| is_number);
            let keys = rows.keys(column);
            let field = |at: usize| match values {
                Some(values) => Field::Float(f64::from(values[at])),
                None => Field::Unsigned(keys[at]),
            };
            let (offsets, stats) = (rows.offsets(column), &mut stats[1 + column]);
            for ends in offsets.windows(2) {
                let fields: Vec<Field<'_>> =
                    ((ends[0] - offsets[0]) as usize..(ends[1] - offsets[0]) as usize).map(field).collect();
                match &fields[..] {
                    [] => stats.add_missing(),
                    [one] => add_field(stats, *one, config),
                    several => add_field(stats, Field::List(several), config),
                }
            }
        }
        profile.rows += rows.len() as u64;
        buffer = PackedBatch::into_buffer(batch);
        block = Some(next);
    }
    profile.complete = profile.rows == file.rows();
    profile.note = Some(NOTE.to_string());
    let top = options.top.max(LABEL_VALUES);
    profile.columns = stats.into_iter().map(|stats| stats.finish(top)).collect();
    Ok(())
}
