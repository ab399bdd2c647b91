//! The profile of message records: a column per name or slot that occurs. Knows no spec.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use sanderling_formats::DataConfig;
use sanderling_formats::input::{self, InputFile};
use sanderling_formats::messages::{Message, each_column};
use sanderling_formats::records::{Framing, RecordBlock, RecordBlocks};
use sanderling_sample::{Field, SampleError};

use super::column::ColumnStats;
use super::{COLUMNS_MAX, DataProfile, LABEL_VALUES, ProfileOptions, add_field, limits_of};

/// Memory for counts is divided by this number of columns; more columns are few enough not to matter.
const COLUMNS_USUAL: usize = 256;

/// The columns seen so far.
#[derive(Default)]
struct Columns {
    by_name: HashMap<Vec<u8>, usize>,
    stats: Vec<ColumnStats>,
}

pub(super) fn profile_messages(
    profile: &mut DataProfile,
    message: Message,
    config: &DataConfig,
    options: &ProfileOptions,
) -> Result<(), SampleError> {
    let file = InputFile { path: profile.path.clone(), bytes: None };
    let stream = input::open(&file, &Arc::new(AtomicU64::new(0)), None)?;
    let mut records = RecordBlocks::new(stream, &profile.path, Framing::of(message));
    let (mut block, mut columns) = (RecordBlock::default(), Columns::default());
    // All values of the current record, and the range of each column. A repeated name replaces its earlier values.
    let mut row: Vec<(usize, usize)> = Vec::new();
    'blocks: while records.next_block(&mut block)? {
        let (mut values, mut elements) = (Vec::new(), Vec::new());
        for (number, record) in block.records() {
            if profile.is_full(options) {
                break 'blocks;
            }
            let Ok(record) = record else {
                let expected = "data that fits its checksum".to_string();
                profile.reject(number, 1, expected, "other data".to_string());
                continue;
            };
            elements.clear();
            row.clear();
            row.resize(columns.stats.len(), (0, 0));
            let mut too_many = false;
            let read = each_column(message, record, &mut values, |name, values: &[Field<'_>]| {
                let from = elements.len();
                elements.extend_from_slice(values);
                match columns.by_name.get(name) {
                    Some(&column) => row[column] = (from, elements.len()),
                    None if columns.stats.len() == COLUMNS_MAX => too_many = true,
                    None => {
                        columns.by_name.insert(name.to_vec(), columns.stats.len());
                        columns.stats.push(new_column(name, profile.rows));
                        row.push((from, elements.len()));
                    }
                }
            });
            if too_many {
                let reason = format!("has more than {COLUMNS_MAX} columns; at most that many are profiled");
                return Err(SampleError::BadFile { path: profile.path.clone(), reason });
            }
            if let Err((expected, found)) = read {
                profile.reject(number, 1, expected, found);
                continue;
            }
            profile.rows += 1;
            for (stats, &(from, to)) in columns.stats.iter_mut().zip(&row) {
                match &elements[from..to] {
                    [] => stats.add_missing(),
                    [one] => add_field(stats, *one, config),
                    several => add_field(stats, Field::List(several), config),
                }
            }
        }
    }
    let top = options.top.max(LABEL_VALUES);
    profile.columns = columns.stats.into_iter().map(|stats| stats.finish(top)).collect();
    Ok(())
}

fn new_column(name: &[u8], rows_without: u64) -> ColumnStats {
    let mut stats = ColumnStats::new(&String::from_utf8_lossy(name), limits_of(COLUMNS_USUAL));
    stats.add_missing_rows(rows_without);
    stats
}
