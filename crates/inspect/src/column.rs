//! The profile of one column: type, range, distinct and frequent values. Knows neither file nor label.

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use sanderling_sample::{Time, parse_f64};

use super::counts::{Distinct, Frequent};
use sanderling_sample::missing::{MARKS, is_value_among_texts, mark_at};

/// The type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ColumnKind {
    /// No value at all.
    Empty,
    /// Whole numbers.
    Integer,
    /// Numbers.
    Float,
    /// Anything else.
    Text,
    /// Several values in a field: separated text, or a list of a columnar file.
    List,
    /// A columnar type that no feature can read.
    Unsupported,
}

/// Range and distribution of a column of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NumberSummary {
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Mean of all values.
    pub mean: f64,
    /// Half of the values are at most this (from a sample of them).
    pub median: f64,
    /// 99 of 100 values are at most this (from a sample of them).
    pub p99: f64,
    /// How many are above 0.
    pub above_zero: u64,
}

/// A value and its count.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValueCount {
    /// The value, its first bytes if it is long.
    pub value: String,
    /// Its count.
    pub count: u64,
    /// Share of all rows; of a list column, of all its elements.
    pub share: f64,
}

/// The profile of a column.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ColumnProfile {
    /// Its name.
    pub name: String,
    /// The type of its values.
    pub kind: ColumnKind,
    /// The separator of the elements of a list column in text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub separator: Option<char>,
    /// Rows without a value.
    pub missing: u64,
    /// Their share.
    pub missing_share: f64,
    /// Texts counted as missing though the settings do not list them, such as `NULL`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_marks: Vec<String>,
    /// Number of distinct values; of a list column, of distinct elements.
    pub distinct: u64,
    /// Whether that is an estimate (standard error 0.8 percent) because they are many.
    pub distinct_estimated: bool,
    /// Whether all texts are dates or times.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub times: bool,
    /// Range of a column of numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numbers: Option<NumberSummary>,
    /// The most frequent values.
    pub top: Vec<ValueCount>,
    /// The counts in `top` may be too low by this much; 0 if they are exact.
    pub top_count_error: u64,
}

/// Separators that are tried, most telling first.
const SEPARATORS: [u8; 5] = *b"|;,^ ";
/// A column is a list if at least this share of its non-numeric values contains the separator and [`LIST_REUSE_MAX`]
/// holds.
const LIST_SHARE_MIN: f64 = 0.1;
/// Most distinct elements of a list column, as a share of its distinct values: elements recur.
const LIST_REUSE_MAX: f64 = 0.8;
/// Elements are counted exactly up to this many.
const ELEMENTS_EXACT_MAX: usize = 1 << 12;
/// Numbers kept for the quantiles.
const SAMPLE_MAX: usize = 4096;

/// Collects one column, value by value.
pub(super) struct ColumnStats {
    name: String,
    present: u64,
    missing: u64,
    /// Counts of the texts that other tools write for a missing value, by index in [`sanderling_sample::missing`].
    marks: [u64; MARKS],
    integers: u64,
    floats: u64,
    min: f64,
    max: f64,
    sum: f64,
    above_zero: u64,
    sample: Vec<f64>,
    draw: u64,
    distinct: Distinct,
    frequent: Frequent,
    /// One per separator, from the first value on that it splits.
    splits: [Option<Split>; SEPARATORS.len()],
    /// Whether the values are elements already, as in the list column of a columnar file.
    elements: bool,
    unsupported: bool,
    /// Whether every text so far is a date or a time.
    is_times: bool,
    /// Elements seen so far.
    values: u64,
}

/// The result of splitting by one separator.
struct Split {
    separator: u8,
    values_with: u64,
    elements: u64,
    distinct: Distinct,
    frequent: Frequent,
}

/// Limits of a column's memory.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) distinct_exact: usize,
    pub(super) frequent: usize,
}

impl ColumnStats {
    pub(super) fn new(name: &str, limits: Limits) -> ColumnStats {
        ColumnStats {
            name: name.to_string(),
            present: 0,
            missing: 0,
            marks: [0; MARKS],
            integers: 0,
            floats: 0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            sum: 0.0,
            above_zero: 0,
            sample: Vec::new(),
            draw: 0x9e37_79b9_7f4a_7c15,
            distinct: Distinct::new(limits.distinct_exact),
            frequent: Frequent::new(limits.frequent),
            splits: SEPARATORS.map(|_| None),
            elements: false,
            unsupported: false,
            is_times: true,
            values: 0,
        }
    }

    pub(super) fn set_unsupported(&mut self) {
        self.unsupported = true;
    }

    /// Adds a row without a value.
    pub(super) fn add_missing(&mut self) {
        self.missing += 1;
    }

    /// Adds a row with a text that other tools write for a missing value, by its index.
    pub(super) fn add_mark(&mut self, mark: usize) {
        self.missing += 1;
        self.marks[mark] += 1;
    }

    /// Counts the marks that are ordinary words as values in a column of texts.
    fn settle_marks(&mut self) {
        if self.present == self.integers + self.floats {
            return;
        }
        for mark in (0..MARKS).filter(|mark| is_value_among_texts(*mark)) {
            let rows = std::mem::take(&mut self.marks[mark]);
            if rows > 0 {
                let value = mark_at(mark).as_bytes();
                let hash = xxh3_64(value);
                self.missing -= rows;
                self.present += rows;
                self.values += rows;
                self.distinct.add(hash);
                self.frequent.add_many(hash, value, rows);
            }
        }
    }

    /// Adds rows from before the column's first appearance.
    pub(super) fn add_missing_rows(&mut self, rows: u64) {
        self.missing += rows;
    }

    /// Adds a row with a value.
    pub(super) fn add(&mut self, value: &[u8]) {
        self.split(value);
        self.present += 1;
        self.count(value);
        if let Some(number) = parse_f64(value) {
            self.number(number, is_integer(value));
        } else if self.is_times {
            self.is_times = Time::read(value).is_some();
        }
    }

    /// Counts the elements of a value. Until a separator splits a value, every value is one element and the column's
    /// counts serve; most columns are never split.
    fn split(&mut self, value: &[u8]) {
        let trims = value.trim_ascii().len() < value.len();
        for (split, separator) in self.splits.iter_mut().zip(SEPARATORS) {
            if let Some(split) = split {
                split.add(value);
            } else if trims || value.contains(&separator) {
                let distinct = self.distinct.copy(ELEMENTS_EXACT_MAX);
                let (elements, frequent) = (self.values, self.frequent.clone());
                split.insert(Split { separator, values_with: 0, elements, distinct, frequent }).add(value);
            }
        }
    }

    /// Adds a row whose value is a list; `add_element` adds its elements.
    pub(super) fn add_list(&mut self) {
        self.present += 1;
        self.elements = true;
    }

    /// Marks the column as a list by its type, even if it has no elements.
    pub(super) fn set_list(&mut self) {
        self.elements = true;
    }

    /// Adds an element to the latest list.
    pub(super) fn add_element(&mut self, element: &[u8]) {
        self.count(element);
    }

    fn count(&mut self, value: &[u8]) {
        let hash = xxh3_64(value);
        self.values += 1;
        self.distinct.add(hash);
        self.frequent.add(hash, value);
    }

    fn number(&mut self, number: f64, integer: bool) {
        if integer {
            self.integers += 1;
        } else {
            self.floats += 1;
        }
        self.min = self.min.min(number);
        self.max = self.max.max(number);
        self.sum += number;
        self.above_zero += u64::from(number > 0.0);
        // Reservoir sampling (Vitter 1985, algorithm R) with a fixed seed: the same file gives the same profile.
        let seen = self.integers + self.floats;
        if self.sample.len() < SAMPLE_MAX {
            self.sample.push(number);
        } else {
            self.draw ^= self.draw << 13;
            self.draw ^= self.draw >> 7;
            self.draw ^= self.draw << 17;
            let place = self.draw % seen;
            if let Some(slot) = usize::try_from(place).ok().and_then(|place| self.sample.get_mut(place)) {
                *slot = number;
            }
        }
    }

    fn summary(&mut self, count: u64) -> NumberSummary {
        let mut sample = std::mem::take(&mut self.sample);
        sample.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| sample.get((sample.len().saturating_sub(1) as f64 * share) as usize).copied();
        NumberSummary {
            min: self.min,
            max: self.max,
            mean: self.sum / count as f64,
            median: at(0.5).unwrap_or(self.min),
            p99: at(0.99).unwrap_or(self.max),
            above_zero: self.above_zero,
        }
    }

    pub(super) fn finish(mut self, top: usize) -> ColumnProfile {
        self.settle_marks();
        let found = (0..MARKS).filter(|mark| self.marks[*mark] > 0);
        let missing_marks = found.map(|mark| mark_at(mark).to_string()).collect();
        let rows = self.present + self.missing;
        let numbers = self.integers + self.floats;
        let mut kind = match () {
            () if self.unsupported => ColumnKind::Unsupported,
            () if self.elements => ColumnKind::List,
            () if self.present == 0 => ColumnKind::Empty,
            () if self.integers == self.present => ColumnKind::Integer,
            () if numbers == self.present => ColumnKind::Float,
            () => ColumnKind::Text,
        };
        // A space between date and time separates no list.
        let times = kind == ColumnKind::Text && numbers == 0 && self.is_times;
        let mut separator = None;
        let (texts, whole) = (self.present - numbers, self.distinct.count().0);
        let mut splits = self.splits.iter_mut().filter_map(Option::take);
        if kind == ColumnKind::Text
            && !times
            && let Some(split) = splits.find(|split| split.is_list(texts, whole))
        {
            kind = ColumnKind::List;
            separator = Some(char::from(split.separator));
            (self.distinct, self.frequent, self.values) = (split.distinct, split.frequent, split.elements);
        }
        let (distinct, distinct_estimated) = self.distinct.count();
        let of = if kind == ColumnKind::List { self.values } else { rows };
        let top = self.frequent.top(top).into_iter().map(|(count, value)| ValueCount {
            value: String::from_utf8_lossy(value).into_owned(),
            count,
            share: share(count, of),
        });
        ColumnProfile {
            kind,
            separator,
            missing: self.missing,
            missing_share: share(self.missing, rows),
            missing_marks,
            distinct,
            distinct_estimated,
            top: top.collect(),
            top_count_error: self.frequent.error(),
            times,
            numbers: matches!(kind, ColumnKind::Integer | ColumnKind::Float).then(|| self.summary(numbers)),
            name: self.name,
        }
    }
}

impl Split {
    fn add(&mut self, value: &[u8]) {
        self.values_with += u64::from(value.contains(&self.separator));
        let parts = value.split(|&byte| byte == self.separator).map(<[u8]>::trim_ascii);
        for part in parts.filter(|part| !part.is_empty()) {
            let hash = xxh3_64(part);
            self.elements += 1;
            self.distinct.add(hash);
            self.frequent.add(hash, part);
        }
    }

    /// Whether the values look like lists: many of the `texts` contain the separator, and the parts recur in other
    /// combinations, of which there are `whole`.
    fn is_list(&self, texts: u64, whole: u64) -> bool {
        let parts = self.distinct.count().0 as f64;
        self.values_with as f64 >= LIST_SHARE_MIN * texts as f64
            && self.values_with > 1
            && parts <= LIST_REUSE_MAX * whole as f64
    }
}

fn is_integer(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
