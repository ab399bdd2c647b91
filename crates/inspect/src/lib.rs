//! Profiles a data file without a configuration: columns, types, cardinality, frequent values, and a guess of the
//! label.
//!
//! One pass in bounded memory. Knows no model; [`suggest`] writes a first configuration.

mod batches;
mod column;
mod counts;
mod fields;
mod label;
mod messages;
mod paths;
mod rows;
mod sparse;
mod suggest;
mod times;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arrow_array::RecordBatch;
use serde::Serialize;

pub use column::{ColumnKind, ColumnProfile, NumberSummary, ValueCount};
pub use counts::{DISTINCT_EXACT_MAX, VALUE_BYTES_MAX};
pub use label::LabelGuess;
pub use sparse::SparseProfile;
pub use suggest::suggest;

use column::{ColumnStats, Limits};
use rows::Cut;
use sanderling_formats::blocks::{BYTE_ORDER_MARK, Block, LineBlocks};
use sanderling_formats::columnar::{Cells, ColumnarFile, cells_of};
use sanderling_formats::delimited::separator_of;
use sanderling_formats::input::{self, InputFile};
use sanderling_formats::quotes::Quotes;
use sanderling_formats::text_kind::TextKind;
use sanderling_formats::{Compression, DataConfig, Format};
use sanderling_sample::missing::mark_of;
use sanderling_sample::{Field, SampleError, quote_text, with_text};

/// Columns that are profiled at most; a wider file is not a table of features.
pub const COLUMNS_MAX: usize = 4096;
/// Distinct values counted exactly over all columns together.
const DISTINCT_TOTAL_MAX: usize = 1 << 24;
/// Values counted for the list of frequent ones, over all columns together, and bounds per column.
const FREQUENT_TOTAL_MAX: usize = 1 << 18;
const FREQUENT_MAX: usize = 4096;
const FREQUENT_MIN: usize = 64;

/// The guess of the label needs both values of a column.
const LABEL_VALUES: usize = 2;

/// Options of a profile.
#[derive(Clone, Copy, Debug)]
pub struct ProfileOptions {
    /// Stop after this many rows.
    pub rows_max: Option<u64>,
    /// Frequent values to list per column.
    pub top: usize,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        ProfileOptions { rows_max: None, top: 5 }
    }
}

/// The profile of a data file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DataProfile {
    /// The file.
    pub path: PathBuf,
    /// Its format, by its name or else by its first bytes.
    pub format: Format,
    /// Whether the format had to be guessed from the content.
    pub format_guessed: bool,
    /// The separator of delimited text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub separator: Option<String>,
    /// Whether the first row of delimited text names the columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<bool>,
    /// Whether the column names were given, and are not the file's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub named: bool,
    /// The character that opens comment lines of CSV and TSV.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<char>,
    /// Rows looked at.
    pub rows: u64,
    /// Whether these are all rows of the file.
    pub complete: bool,
    /// Rows that could not be read, not counted in `rows`.
    pub bad_rows: u64,
    /// The error of the first bad row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_bad_row: Option<String>,
    /// A limit of the profile: facts that the format does not keep, or columns that cannot be told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The column that looks like the label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<LabelGuess>,
    /// The columns, in the order of the file; none for libsvm.
    pub columns: Vec<ColumnProfile>,
    /// The profile of libsvm text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sparse: Option<SparseProfile>,
}

/// Profiles a file (or `-`, standard input). Guesses the format, separator and header unless `config` gives them.
///
/// # Errors
/// `Io`, or `BadFile` for a damaged or very wide file. Single bad rows are counted, not an error.
pub fn profile(
    path: &Path,
    config: &DataConfig,
    options: &ProfileOptions,
) -> Result<DataProfile, SampleError> {
    profile_first(&[path.to_path_buf()], config, options)
}

/// Profiles the first of several files, with the columns in the paths of all of them.
///
/// # Errors
/// As [`profile`]; also an empty list.
pub fn profile_first(
    files: &[PathBuf],
    config: &DataConfig,
    options: &ProfileOptions,
) -> Result<DataProfile, SampleError> {
    let Some(path) = files.first() else {
        return Err(SampleError::Settings("no input files are named".to_string()));
    };
    let named = config.format_of(path);
    let mut profile = DataProfile {
        path: path.clone(),
        format: named.unwrap_or(Format::Csv),
        format_guessed: named.is_none(),
        separator: None,
        header: None,
        named: config.columns.is_some(),
        comment: config.comment,
        rows: 0,
        complete: true,
        bad_rows: 0,
        first_bad_row: None,
        note: None,
        label: None,
        columns: Vec::new(),
        sparse: None,
    };
    if let Some(message) = named.and_then(Format::message) {
        messages::profile_messages(&mut profile, message, config, options)?;
    } else if named == Some(Format::Batch) {
        batches::profile_batches(&mut profile, config, options)?;
    } else if named.is_some_and(|format| !format.is_text()) {
        profile_columnar(&mut profile, config, options)?;
    } else {
        let file = InputFile { path: path.clone(), bytes: None };
        let mut lines = LineBlocks::new(input::open(&file, &Arc::new(AtomicU64::new(0)), None)?, path);
        if named.is_none() {
            profile.format = rows::guess_format(lines.peek_start()?);
        }
        let mut text = Text { lines, block: Block::default(), more: true };
        if !profile.format.is_delimited() {
            text.next()?;
        }
        if profile.format == Format::Libsvm {
            sparse::profile_sparse(&mut profile, &mut text, options)?;
        } else if profile.format == Format::Libffm {
            fields::profile_fields(&mut profile, &mut text, options)?;
        } else {
            profile_delimited(&mut profile, &mut text, config, options)?;
        }
    }
    if profile.format.is_delimited() || matches!(profile.format, Format::Parquet | Format::Arrow) {
        paths::add_columns(&mut profile, files, options.top);
    }
    if profile.note.is_none()
        && let Some(name) = repeated(&profile.columns).first()
    {
        let (name, how) = (quote_text(name.as_bytes()), naming(profile.format));
        profile.note = Some(format!(
            "more than one column is named {name}: they cannot be told apart, and are left out; {how}"
        ));
    }
    if !matches!(profile.format, Format::Libsvm | Format::Libffm) {
        profile.label = label::guess(&profile);
    }
    // The guess of the label needs more of them.
    profile.columns.iter_mut().for_each(|column| column.top.truncate(options.top));
    Ok(profile)
}

/// A text, block by block.
struct Text {
    lines: LineBlocks,
    block: Block,
    more: bool,
}

impl Text {
    fn next(&mut self) -> Result<(), SampleError> {
        self.more = self.lines.next_block(&mut self.block)?;
        Ok(())
    }
}

impl DataProfile {
    fn reject(&mut self, line: u64, column: usize, expected: String, found: String) {
        self.bad_rows += 1;
        if self.first_bad_row.is_none() {
            let (path, column) = (self.path.clone(), column.to_string());
            let error = SampleError::BadRow { path, line, column, expected, found };
            self.first_bad_row = Some(error.to_string());
        }
    }

    /// Whether the limit of rows is reached; then the profile is incomplete.
    fn is_full(&mut self, options: &ProfileOptions) -> bool {
        let full = options.rows_max.is_some_and(|max| self.rows >= max);
        self.complete &= !full;
        full
    }
}

fn stats_of(path: &Path, names: &[String]) -> Result<Vec<ColumnStats>, SampleError> {
    if names.len() > COLUMNS_MAX {
        let reason = format!("has {} columns; at most {COLUMNS_MAX} are profiled", names.len());
        return Err(SampleError::BadFile { path: path.to_path_buf(), reason });
    }
    let limits = limits_of(names.len());
    Ok(names.iter().map(|name| ColumnStats::new(name, limits)).collect())
}

/// The limits of each of `columns` columns.
fn limits_of(columns: usize) -> Limits {
    let columns = columns.max(1);
    Limits {
        distinct_exact: DISTINCT_EXACT_MAX.min(DISTINCT_TOTAL_MAX / columns),
        frequent: (FREQUENT_TOTAL_MAX / columns).clamp(FREQUENT_MIN, FREQUENT_MAX),
    }
}

fn profile_delimited(
    profile: &mut DataProfile,
    text: &mut Text,
    config: &DataConfig,
    options: &ProfileOptions,
) -> Result<(), SampleError> {
    let comment = config.comment.and_then(|it| u8::try_from(it).ok());
    let is_comment = |line: &[u8]| comment.is_some() && line.first().copied() == comment;
    let start = text.lines.peek_start()?.to_vec();
    let start = &start[..];
    let commented: usize =
        rows::lines(start).take_while(|line| is_comment(line)).map(|line| line.len() + 1).sum();
    let start = &start[commented.min(start.len())..];
    TextKind::refuse_json(start, &profile.path)?;
    let is_guessed = profile.format_guessed && config.columns.is_none() && config.separator.is_none();
    if is_guessed && TextKind::of(start) == Some(TextKind::IdLists) {
        return Err(TextKind::IdLists.error(&profile.path));
    }
    let quotes = profile.format == Format::Csv;
    let given = config.separator.as_deref().map(separator_of).transpose()?;
    let separator = given.unwrap_or_else(|| match profile.format {
        Format::Criteo => b"\t".to_vec(),
        format => rows::guess_separator(start, format).to_vec(),
    });
    let cut = Cut { separator: &separator, quotes };
    let named = config.columns.is_some() || profile.format == Format::Criteo;
    let header = config.header.unwrap_or_else(|| !named && rows::guess_header(start, cut));
    profile.separator = Some(String::from_utf8_lossy(&separator).into_owned());
    profile.header = Some(header);
    if quotes {
        text.lines.set_quotes(Quotes { separator: separator.clone(), comment });
    }
    text.next()?;
    let (mut header_line, mut headers) = (None, 0_u64);
    let mut stats: Vec<ColumnStats> = Vec::new();
    let mut first = true;
    'blocks: while text.more {
        let mut fields: Vec<Cow<'_, [u8]>> = Vec::new();
        let first_line = text.block.first_line();
        for (before, line) in rows::records(text.block.text(), cut, comment) {
            let number = first_line + before;
            if is_comment(line) {
                continue;
            }
            if header_line.as_deref() == Some(line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line)) {
                headers += 1;
                continue;
            }
            let is_row = !std::mem::take(&mut first) || {
                // The first row gives the names, or at least their number.
                let cells = cut.split(line, &mut fields).map_or(0, |()| fields.len());
                let names = match (&config.columns, profile.format) {
                    (Some(columns), _) => columns.clone(),
                    (None, Format::Criteo) => criteo_columns(),
                    (None, _) if header => {
                        fields.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
                    }
                    (None, _) => (1..=cells).map(|n| format!("c{n}")).collect(),
                };
                stats = stats_of(&profile.path, &names)?;
                header_line = header.then(|| line.to_vec());
                !header
            };
            if !is_row {
                continue;
            }
            if profile.is_full(options) {
                break 'blocks;
            }
            match cut.split(line, &mut fields) {
                Err(column) => {
                    let expected = "a closing quote, then a separator".to_string();
                    profile.reject(number, column, expected, sanderling_sample::quote(line));
                }
                Ok(()) if line.is_empty() => {
                    profile.reject(number, 1, "a row".to_string(), "an empty line".to_string());
                }
                Ok(()) if fields.len() != stats.len() => {
                    let expected = format!("{} fields", stats.len());
                    profile.reject(number, fields.len(), expected, format!("{}", fields.len()));
                }
                Ok(()) => {
                    profile.rows += 1;
                    for (stats, field) in stats.iter_mut().zip(&fields) {
                        add_text(stats, field, config);
                    }
                }
            }
        }
        text.next()?;
    }
    if headers > 0 {
        profile.note = Some(format!("the header comes again {headers} times, and is passed over"));
    }
    profile.columns = stats.into_iter().map(|stats| stats.finish(options.top.max(LABEL_VALUES))).collect();
    Ok(())
}

/// How to use columns that share a name.
fn naming(format: Format) -> &'static str {
    match format.is_text() {
        true => "to use it, set header = true and name all columns in columns = [...]",
        // The names are part of the file.
        false => "to use it, rename it in the file",
    }
}

/// Names of more than one column.
fn repeated(columns: &[ColumnProfile]) -> Vec<&str> {
    let mut names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    names.sort_unstable();
    let mut repeated: Vec<&str> =
        names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    repeated.dedup();
    repeated
}

fn criteo_columns() -> Vec<String> {
    let counts = (1..=13).map(|n| format!("I{n}"));
    let ids = (1..=26).map(|n| format!("C{n}"));
    std::iter::once("label".to_string()).chain(counts).chain(ids).collect()
}

fn add_text(stats: &mut ColumnStats, value: &[u8], config: &DataConfig) {
    if value.is_empty() || config.missing.iter().any(|missing| missing.as_bytes() == value) {
        stats.add_missing();
    } else if let Some(mark) = mark_of(value) {
        stats.add_mark(mark);
    } else {
        stats.add(value);
    }
}

fn profile_columnar(
    profile: &mut DataProfile,
    config: &DataConfig,
    options: &ProfileOptions,
) -> Result<(), SampleError> {
    let compression = Compression::of_path(&profile.path);
    let mut file = ColumnarFile::open_all(&profile.path, profile.format, compression)?;
    let names: Vec<String> = file.schema().fields().iter().map(|field| field.name().clone()).collect();
    let mut stats = stats_of(&profile.path, &names)?;
    while let Some(records) = file.next()? {
        let room = options.rows_max.map_or(u64::MAX, |max| max - profile.rows);
        let rows = usize::try_from(room).unwrap_or(usize::MAX).min(records.num_rows());
        if rows < records.num_rows() {
            profile.complete = false;
        }
        add_records(&mut stats, &records.slice(0, rows), config);
        profile.rows += rows as u64;
        if !profile.complete {
            break;
        }
    }
    profile.columns = stats.into_iter().map(|stats| stats.finish(options.top.max(LABEL_VALUES))).collect();
    Ok(())
}

fn add_records(stats: &mut [ColumnStats], records: &RecordBatch, config: &DataConfig) {
    for (stats, column) in stats.iter_mut().zip(records.columns()) {
        let Ok(cells) = cells_of(column) else {
            stats.set_unsupported();
            continue;
        };
        let elements = cells.elements();
        for row in 0..records.num_rows() {
            add_field(stats, cells.field(row, &elements), config);
        }
        if matches!(cells, Cells::List { .. }) {
            stats.set_list();
        }
    }
}

/// Adds a field with its type in the file.
fn add_field(stats: &mut ColumnStats, field: Field<'_>, config: &DataConfig) {
    match field {
        Field::Missing => stats.add_missing(),
        Field::Float(number) if number.is_nan() => stats.add_missing(),
        Field::List(parts) => {
            stats.add_list();
            for part in parts.iter().filter(|part| **part != Field::Missing) {
                _ = with_text(*part, |text| stats.add_element(text));
            }
        }
        one => _ = with_text(one, |text| add_text(stats, text, config)),
    }
}
