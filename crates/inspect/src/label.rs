//! The guess of the label column: by its name, or because it alone has two values. It gives its reason.

use serde::Serialize;

use super::column::{ColumnKind, ColumnProfile};
use super::{DataProfile, repeated};

/// The column that looks like the label.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabelGuess {
    /// Its name.
    pub column: String,
    /// The positive texts; empty if the column holds numbers, where those above 0 are positive.
    pub positive: Vec<String>,
    /// Positive rows among those looked at.
    pub positives: u64,
    /// Their share.
    pub positive_share: f64,
    /// Why this column, and why these values.
    pub reason: String,
}

/// Names of labels, most telling first; compared without case, `_` and `-`.
const NAMES: [&str; 14] = [
    "label",
    "click",
    "clicked",
    "isclick",
    "target",
    "y",
    "class",
    "conversion",
    "converted",
    "outcome",
    "response",
    "islabel",
    "purchased",
    "income",
];

/// Texts that mean yes.
const YES: [&str; 9] = ["1", "yes", "y", "true", "t", "positive", "pos", "click", "clicked"];
/// Texts that mean no, each with its yes.
const NO: [(&str, &str); 6] =
    [("no", "yes"), ("n", "y"), ("false", "true"), ("f", "t"), ("negative", "positive"), ("neg", "pos")];

pub(super) fn guess(profile: &DataProfile) -> Option<LabelGuess> {
    let plain = |name: &str| name.to_lowercase().replace(['_', '-', ' '], "");
    let rank = |column: &ColumnProfile| NAMES.iter().position(|name| *name == plain(&column.name));
    let repeated = repeated(&profile.columns);
    let is_one = |column: &ColumnProfile| repeated.binary_search(&column.name.as_str()).is_err();
    let is_binary = |column: &ColumnProfile| is_binary(column) && is_one(column);
    let can_be =
        |column: &ColumnProfile| is_one(column) && (can_be_label(column) || only_value(column).is_some());
    let named = profile.columns.iter().filter(|column| can_be(column) && rank(column).is_some());
    if let Some(column) = named.min_by_key(|column| rank(column)) {
        return Some(match only_value(column) {
            Some(only) => of_one_value(column, only, profile.rows),
            None => of(column, profile.rows, "by its name"),
        });
    }
    let binary: Vec<&ColumnProfile> = profile.columns.iter().filter(|column| is_binary(column)).collect();
    let first = profile.columns.first().filter(|column| is_binary(column));
    let last = profile.columns.last().filter(|column| is_binary(column));
    match (&binary[..], first, last) {
        ([], ..) => None,
        ([only], ..) => Some(of(only, profile.rows, "the only column with two values")),
        (_, Some(column), None) => Some(of(column, profile.rows, "the first column, and it has two values")),
        (_, None, Some(column)) => Some(of(column, profile.rows, "the last column, and it has two values")),
        // Both candidates: click logs begin with the label, and tables end with it, as text more often than as a
        // number.
        (_, Some(first), Some(last)) if first.numbers.is_some() || last.numbers.is_none() => {
            Some(of(first, profile.rows, "the first column, and it has two values (the last one, too)"))
        }
        (_, Some(_), Some(last)) => {
            Some(of(last, profile.rows, "the last column, and it has two values (the first one, too)"))
        }
        (_, None, None) => None,
    }
}

fn is_binary(column: &ColumnProfile) -> bool {
    column.distinct == 2 && column.missing == 0 && can_be_label(column)
}

/// Whether a column has two values, or numbers of which some are above 0 and some not, and a name.
fn can_be_label(column: &ColumnProfile) -> bool {
    let scalar = matches!(column.kind, ColumnKind::Integer | ColumnKind::Float | ColumnKind::Text);
    let splits = column.numbers.is_some_and(|numbers| numbers.min <= 0.0 && numbers.max > 0.0);
    !column.name.is_empty() && scalar && (column.distinct == 2 || splits)
}

/// The value of a column with a single value, as in a small file whose rows are all positive or all negative: then
/// only its name makes it the label.
fn only_value(column: &ColumnProfile) -> Option<&str> {
    let only = column.top.first().filter(|_| column.distinct == 1 && column.missing == 0)?.value.as_str();
    let plain = only.to_lowercase();
    let is_one = column.numbers.is_some_and(|numbers| [-1.0, 0.0, 1.0].contains(&numbers.min))
        || YES.contains(&plain.as_str())
        || NO.iter().any(|(no, _)| *no == plain);
    is_one.then_some(only)
}

fn of_one_value(column: &ColumnProfile, only: &str, rows: u64) -> LabelGuess {
    let (positive, positives, why) = match &column.numbers {
        Some(numbers) => (Vec::new(), numbers.above_zero, "numbers above 0 are positive"),
        None => match NO.iter().find(|(no, _)| *no == only.to_lowercase()) {
            Some((_, yes)) => (vec![(*yes).to_string()], 0, "the positive text is a guess"),
            None => (vec![only.to_string()], rows, "positive by its text"),
        },
    };
    LabelGuess {
        column: column.name.clone(),
        positive,
        positives,
        positive_share: super::column::share(positives, rows),
        reason: format!("by its name; it has one value only, {only:?}; {why}"),
    }
}

fn of(column: &ColumnProfile, rows: u64, reason: &str) -> LabelGuess {
    let name = column.name.clone();
    let with = |positive: Vec<String>, positives: u64, why: &str| LabelGuess {
        column: name.clone(),
        positive,
        positives,
        positive_share: super::column::share(positives, rows),
        reason: format!("{reason}; {why}"),
    };
    match &column.numbers {
        Some(numbers) if numbers.min <= 0.0 && numbers.max > 0.0 => {
            with(Vec::new(), numbers.above_zero, "numbers above 0 are positive")
        }
        _ => {
            let yes = |value: &str| YES.contains(&value.to_lowercase().as_str());
            let positive = column.top.iter().find(|it| yes(&it.value));
            let larger =
                || column.top.iter().max_by(|a, b| as_number(&a.value).total_cmp(&as_number(&b.value)));
            match (positive, &column.numbers) {
                (Some(it), None) => with(vec![it.value.clone()], it.count, "positive by its text"),
                (_, Some(_)) => larger().map_or_else(
                    || with(Vec::new(), 0, "no value"),
                    |it| with(vec![it.value.clone()], it.count, "the larger value taken for positive"),
                ),
                (None, None) => column.top.iter().min_by_key(|it| it.count).map_or_else(
                    || with(Vec::new(), 0, "no value"),
                    |it| with(vec![it.value.clone()], it.count, "the rarer value taken for positive"),
                ),
            }
        }
    }
}

fn as_number(text: &str) -> f64 {
    text.parse().unwrap_or(f64::NEG_INFINITY)
}
