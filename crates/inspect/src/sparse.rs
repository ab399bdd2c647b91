//! The profile of libsvm text: rows, features per row, indices. Knows no spec.

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use sanderling_sample::{SampleError, parse_f32, parse_f64, parse_u64, quote};

use super::column::{ValueCount, share};
use super::counts::{DISTINCT_EXACT_MAX, Distinct, Frequent};
use super::{DataProfile, FREQUENT_MAX, LabelGuess, ProfileOptions, Text, rows};

/// The profile of libsvm text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SparseProfile {
    /// `index:value` pairs of all rows.
    pub pairs: u64,
    /// Pairs per row: fewest.
    pub row_min: u64,
    /// Pairs per row: mean.
    pub row_mean: f64,
    /// Pairs per row: most.
    pub row_max: u64,
    /// Largest index.
    pub index_max: u64,
    /// Number of distinct indices.
    pub distinct: u64,
    /// Whether that is an estimate (standard error 0.8 percent).
    pub distinct_estimated: bool,
    /// Whether every value is 1.
    pub all_ones: bool,
    /// The most frequent indices; shares are of the rows.
    pub top: Vec<ValueCount>,
    /// The counts in `top` may be too low by this much; 0 if they are exact.
    pub top_count_error: u64,
}

pub(super) fn profile_sparse(
    profile: &mut DataProfile,
    text: &mut Text,
    options: &ProfileOptions,
) -> Result<(), SampleError> {
    let mut distinct = Distinct::new(DISTINCT_EXACT_MAX);
    let mut frequent = Frequent::new(FREQUENT_MAX);
    let (mut pairs, mut row_min, mut row_max, mut index_max) = (0u64, u64::MAX, 0, 0);
    let (mut all_ones, mut positives) = (true, 0u64);
    let mut row: Vec<(u64, f32)> = Vec::new();
    'blocks: while text.more {
        for (line, number) in rows::lines(text.block.text()).zip(text.block.first_line()..) {
            if line.trim_ascii_start().starts_with(b"#") {
                continue;
            }
            if profile.is_full(options) {
                break 'blocks;
            }
            let label = match parse(line, &mut row) {
                Ok(label) => label,
                Err((column, expected, found)) => {
                    profile.reject(number, column, expected.to_string(), found);
                    continue;
                }
            };
            profile.rows += 1;
            positives += u64::from(label > 0.0);
            pairs += row.len() as u64;
            row_min = row_min.min(row.len() as u64);
            row_max = row_max.max(row.len() as u64);
            for (index, value) in &row {
                index_max = index_max.max(*index);
                all_ones &= *value == 1.0;
                let bytes = index.to_le_bytes();
                let hash = xxh3_64(&bytes);
                distinct.add(hash);
                frequent.add(hash, &bytes);
            }
        }
        text.next()?;
    }
    let rows = profile.rows;
    let top = frequent.top(options.top).into_iter().map(|(count, bytes)| ValueCount {
        value: bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)).to_string(),
        count,
        share: share(count, rows),
    });
    let (distinct, distinct_estimated) = distinct.count();
    profile.sparse = Some(SparseProfile {
        pairs,
        row_min: if rows == 0 { 0 } else { row_min },
        row_mean: pairs as f64 / rows.max(1) as f64,
        row_max,
        index_max,
        distinct,
        distinct_estimated,
        all_ones: all_ones && pairs > 0,
        top: top.collect(),
        top_count_error: frequent.error(),
    });
    profile.label = (rows > 0).then(|| LabelGuess {
        column: "label".to_string(),
        positive: Vec::new(),
        positives,
        positive_share: share(positives, rows),
        reason: "the first field of every line; above 0 is positive".to_string(),
    });
    Ok(())
}

/// Parses the label and the pairs of a line. An error is the position of the token, the expected text and the found
/// text.
fn parse(line: &[u8], row: &mut Vec<(u64, f32)>) -> Result<f64, (usize, &'static str, String)> {
    row.clear();
    let tokens = line.split(|&byte| byte == b' ' || byte == b'\t').filter(|token| !token.is_empty());
    let mut tokens = tokens.take_while(|token| !token.starts_with(b"#")).zip(1..);
    let Some((label, _)) = tokens.next() else {
        return Err((1, "a row", "an empty line".to_string()));
    };
    let label = parse_f64(label).ok_or_else(|| (1, "a label (a number)", quote(label)))?;
    for (token, position) in tokens {
        let wrong = || (position, "index:value", quote(token));
        let colon = token.iter().position(|&byte| byte == b':').ok_or_else(wrong)?;
        if &token[..colon] == b"qid" {
            continue;
        }
        let pair = parse_u64(&token[..colon]).zip(parse_f32(&token[colon + 1..]));
        row.push(pair.ok_or_else(wrong)?);
    }
    Ok(label)
}
