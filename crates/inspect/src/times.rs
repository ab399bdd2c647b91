//! Which columns hold times. Knows no suggestion.

use super::column::{ColumnKind, ColumnProfile};
use super::suggest::is_id_name;

/// Unix times, in seconds, that a column of times may hold: from 1990 to 2100.
const FIRST_TIME_S: f64 = 631152000.0;
const LAST_TIME_S: f64 = 4102444800.0;

/// Whether a column holds times: texts of them, or Unix times.
pub(super) fn is_time(column: &ColumnProfile) -> bool {
    column.times || time_unit(column).is_some()
}

/// The unit of a column of Unix times: whole numbers within a few decades of moments in one of the units. Seconds
/// look like ids, so the name must suggest times.
pub(super) fn time_unit(column: &ColumnProfile) -> Option<&'static str> {
    const UNITS: [(&str, f64); 4] = [("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)];
    const NAMES: [&str; 7] = ["ts", "time", "timestamp", "date", "datetime", "unix", "at"];
    let numbers = column.numbers.as_ref().filter(|_| column.kind == ColumnKind::Integer)?;
    let name = column.name.to_lowercase();
    let is_named = name.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| NAMES.contains(&part))
        || name.ends_with("time")
        || name.ends_with("timestamp");
    let is_within = |per_s: f64| numbers.min >= FIRST_TIME_S * per_s && numbers.max <= LAST_TIME_S * per_s;
    let (unit, _) = UNITS.into_iter().find(|(_, per_s)| is_within(*per_s))?;
    (is_named || (unit != "s" && !is_id_name(&column.name))).then_some(unit)
}
