//! The profile of libffm text: a column per field, whose values are indices. Knows no spec.

use std::collections::BTreeMap;

use sanderling_formats::libffm::triple;
use sanderling_sample::spec::{LIBFFM_COLUMN, LIBFFM_FIELD_MAX};
use sanderling_sample::{Field, SampleError, parse_f64, quote, with_text};

use super::column::ColumnStats;
use super::{COLUMNS_MAX, DataProfile, LABEL_VALUES, LabelGuess, ProfileOptions, Text, limits_of, rows};

/// Memory for counts is divided by this number of columns.
const COLUMNS_USUAL: usize = 256;

/// Parses the label of a line, and the fields and indices of its triples. An error is the position of the token and
/// the expected text.
fn parse(line: &[u8], row: &mut Vec<(u32, u64)>) -> Result<f64, (usize, &'static str, String)> {
    row.clear();
    let tokens = line.split(|&byte| byte == b' ' || byte == b'\t').filter(|token| !token.is_empty());
    let mut tokens = tokens.take_while(|token| !token.starts_with(b"#")).zip(1..);
    let Some((label, _)) = tokens.next() else { return Err((1, "a row", "an empty line".to_string())) };
    let label = parse_f64(label).ok_or_else(|| (1, "a label (a number)", quote(label)))?;
    for (token, position) in tokens {
        let wrong = || (position, "field:index:value", quote(token));
        let (field, index, _) = triple(token).ok_or_else(wrong)?;
        let field = u32::try_from(field).ok().filter(|field| *field <= LIBFFM_FIELD_MAX);
        row.push((field.ok_or_else(|| (position, "a field of at most 65535", quote(token)))?, index));
    }
    row.sort_unstable_by_key(|(field, _)| *field);
    Ok(label)
}

pub(super) fn profile_fields(
    profile: &mut DataProfile,
    text: &mut Text,
    options: &ProfileOptions,
) -> Result<(), SampleError> {
    let mut columns: BTreeMap<u32, (ColumnStats, u64)> = BTreeMap::new();
    let (mut row, mut positives) = (Vec::new(), 0);
    'blocks: while text.more {
        for (line, number) in rows::lines(text.block.text()).zip(text.block.first_line()..) {
            if line.trim_ascii_start().starts_with(b"#") {
                continue;
            }
            if profile.is_full(options) {
                break 'blocks;
            }
            match parse(line, &mut row) {
                Err((column, expected, found)) => profile.reject(number, column, expected.to_string(), found),
                Ok(label) => {
                    profile.rows += 1;
                    positives += u64::from(label > 0.0);
                    for pairs in row.chunk_by(|(one, _), (other, _)| one == other) {
                        let field = pairs[0].0;
                        if columns.len() == COLUMNS_MAX && !columns.contains_key(&field) {
                            let reason =
                                format!("has more than {COLUMNS_MAX} fields; at most that many are profiled");
                            return Err(SampleError::BadFile { path: profile.path.clone(), reason });
                        }
                        let new = || {
                            let name = format!("{LIBFFM_COLUMN}{field}");
                            (ColumnStats::new(&name, limits_of(COLUMNS_USUAL)), 0)
                        };
                        let (stats, rows_with) = columns.entry(field).or_insert_with(new);
                        *rows_with += 1;
                        stats.add_list();
                        for (_, index) in pairs {
                            _ = with_text(Field::Unsigned(*index), |index| stats.add_element(index));
                        }
                    }
                }
            }
        }
        text.next()?;
    }
    let rows = profile.rows;
    let finish = |(mut stats, rows_with): (ColumnStats, u64)| {
        stats.add_missing_rows(rows - rows_with);
        stats.finish(options.top.max(LABEL_VALUES))
    };
    profile.columns = columns.into_values().map(finish).collect();
    profile.label = (rows > 0).then(|| LabelGuess {
        column: "label".to_string(),
        positive: Vec::new(),
        positives,
        positive_share: super::column::share(positives, rows),
        reason: "the first number of every line; above 0 is positive".to_string(),
    });
    Ok(())
}
