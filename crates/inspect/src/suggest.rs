//! A first configuration from a profile: TOML that trains as it is, with a comment at every guess. Knows the names of
//! the settings, not their effect.

mod text;

use std::fmt::Write;

use sanderling_formats::input::read_once;
use sanderling_formats::{DataConfig, Format};
use sanderling_sample::{SampleError, quote_text};

use super::column::{ColumnKind, ColumnProfile};
use super::times::{is_time, time_unit};
use super::{DataProfile, LabelGuess, naming, repeated};
use text::{list, one_line, quoted, stem};

/// Whole numbers with at most this many distinct values are codes.
const CODES_MAX: u64 = 32;
/// Whole numbers that fill their range with more distinct values than this are ids.
const DENSE_IDS_MIN: u64 = 256;
/// Ids are at least this share of their range.
const DENSE_SHARE_MIN: f64 = 0.5;
/// Whole numbers that fill a range this many times its width away from 0 are ids, too.
const FAR_RATIO: f64 = 10.0;
/// Beyond this a whole number is a hash or a time stamp, not a count.
const COUNT_MAX: f64 = 4294967296.0;
/// A distribution has a heavy tail if its largest value is this many times the 99th percentile, or that is this many
/// times the median.
const TAIL_RATIO: f64 = 10.0;
/// A text or id with almost as many distinct values as rows names the row.
const UNIQUE_SHARE_MIN: f64 = 0.95;
/// With fewer rows than this nothing is called unique.
const UNIQUE_ROWS_MIN: u64 = 50;
/// Most unused columns that an error names per reason.
const NAMES_SHOWN_MAX: usize = 5;
/// The label column if no column looks like one.
const NO_LABEL: &str = "label";
/// Floats within this are used as they are.
const SMALL: f64 = 10.0;

/// Learning rate of the factors times the number of features.
const FACTOR_RATE: f64 = 0.4;
/// The factors' learning rate stays within these.
const FACTOR_RATE_MIN: f64 = 0.01;
const FACTOR_RATE_MAX: f64 = 0.2;

/// The use of a column.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Categorical,
    Multi(Option<char>),
    Log,
    Quantile,
    Numeric,
    /// Left out, with the reason.
    Out(String),
}

/// Writes a configuration for `sanderling train` that reads the profiled file as `data_path`.
///
/// # Errors
/// `BadFile` where no column can be a feature, which says why.
pub fn suggest(profile: &DataProfile, data_path: &str) -> Result<String, SampleError> {
    let once = read_once(data_path);
    let has_spec = matches!(profile.format, Format::Batch | Format::Libsvm | Format::Libffm);
    let roles = if has_spec { Vec::new() } else { roles(profile, once) };
    if !has_spec && roles.iter().all(|(role, _)| is_out(role)) {
        return Err(SampleError::BadFile { path: data_path.into(), reason: without_features(&roles) });
    }
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_all(profile, data_path, once, roles, &mut out);
    Ok(out)
}

fn is_out(role: &Role) -> bool {
    matches!(role, Role::Out(_))
}

/// The reason that no column can be used.
fn without_features(roles: &[(Role, &ColumnProfile)]) -> String {
    let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
    for (role, column) in roles {
        let Role::Out(why) = role else { continue };
        match by_reason.iter_mut().find(|(other, _)| other == why) {
            Some((_, names)) => names.push(&column.name),
            None => by_reason.push((why, vec![&column.name])),
        }
    }
    let of_reason = |(why, names): (&str, Vec<&str>)| {
        let shown = |name: &&str| match *name {
            "" => "one without a name".to_string(),
            name => quote_text(name.as_bytes()),
        };
        let shown: Vec<String> = names.iter().take(NAMES_SHOWN_MAX).map(shown).collect();
        let more = names.len() - shown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more} ({why})", shown.join(", "))
    };
    let reasons: Vec<String> = by_reason.into_iter().map(of_reason).collect();
    match reasons.is_empty() {
        true => "no configuration can be suggested: there is no column beside the label".to_string(),
        false => {
            format!("no configuration can be suggested: no column can be a feature: {}", reasons.join("; "))
        }
    }
}

fn write_all(
    profile: &DataProfile,
    data_path: &str,
    once: bool,
    roles: Vec<(Role, &ColumnProfile)>,
    out: &mut String,
) -> std::fmt::Result {
    let part = if profile.complete { "all" } else { "the first" };
    writeln!(out, "# Suggested from {part} {} rows of {data_path:?}.", profile.rows)?;
    writeln!(
        out,
        "# Every choice below is a guess: look it over, then run `sanderling train` on this file. A commented entry is an"
    )?;
    writeln!(
        out,
        "# alternative that works: remove its `#`, and the line above it if that sets the same entry."
    )?;
    writeln!(out, "name = {}", quoted(&stem(data_path)))?;
    writeln!(out, "seed = 42\n")?;
    let fields = fields(profile, &roles);
    write_data(profile, data_path, once, &roles, out)?;
    if profile.format == Format::Batch {
        writeln!(out, "# Label and features are those that the file was converted with.\n")?;
    } else if profile.format == Format::Libffm {
        write_fields(profile, out)?;
    } else if profile.format != Format::Libsvm {
        write_label(profile.label.as_ref(), out)?;
        write_features(roles, once, out)?;
    }
    writeln!(out, "[model]")?;
    writeln!(out, "type = \"fm\"")?;
    writeln!(out, "# type = \"lr\"    # logistic regression, without the factors")?;
    if profile.format == Format::Libffm && profile.columns.len() > 1 {
        writeln!(
            out,
            "# type = \"ffm\"    # field-aware: a factor per field in every row; a rank of 4 suits it"
        )?;
    }
    writeln!(out, "rank = 8")?;
    writeln!(out, "# table_budget = \"4GiB\"    # memory limit per table\n")?;
    writeln!(out, "[optimizer]")?;
    writeln!(out, "type = \"ftrl\"\nalpha = 0.05\nl1 = 0.0")?;
    writeln!(out, "# l1 = 1.0    # rarely seen keys get a weight of exactly zero")?;
    writeln!(out, "l2 = 1.0\n")?;
    write_factors(fields, out)?;
    writeln!(out, "[train]\nbatch_size = 16")?;
    if once {
        return writeln!(out, "passes = 1    # the input can be read only once");
    }
    writeln!(out, "passes = 1")?;
    writeln!(
        out,
        "# passes = 5    # more overfit: set `valid` above, too, and early_stop = 1 to stop at the best"
    )?;
    writeln!(out, "# threads = 2    # faster; only one thread gives the same model every time")
}

/// The approximate number of keys per row, on which the factors' learning rate depends.
fn fields(profile: &DataProfile, roles: &[(Role, &ColumnProfile)]) -> f64 {
    match &profile.sparse {
        Some(sparse) => sparse.row_mean,
        // A batch file has only features as columns.
        None if roles.is_empty() => profile.columns.len() as f64,
        None => roles.iter().filter(|(role, _)| !is_out(role)).count() as f64,
    }
}

/// The optimizer of the factors. The gradient of a factor is a sum over the other keys of its row, so the rate that suits it
/// falls with their number: measured for 2 to 39 fields in docs/results/2026-11-28-suggested-rates.md.
fn write_factors(fields: f64, out: &mut String) -> std::fmt::Result {
    let lr = (FACTOR_RATE / fields.max(1.0)).clamp(FACTOR_RATE_MIN, FACTOR_RATE_MAX);
    writeln!(out, "[factor_optimizer]    # of \"fm\" alone; .4 divided by the number of features")?;
    writeln!(out, "type = \"adagrad\"\nlr = {lr:.2}\nl2 = 1e-4\n")
}

/// Alternatives for validation. Columns decide only where the file has columns that are not encoded.
fn write_valid(
    profile: &DataProfile,
    once: bool,
    roles: &[(Role, &ColumnProfile)],
    out: &mut String,
) -> std::fmt::Result {
    if once {
        return writeln!(out, "# valid may name a file of rows to watch the metrics on.");
    }
    writeln!(
        out,
        "# valid = {{ fraction = 0.1, by = \"random\" }}    # rows held out to watch the metrics on, or a file"
    )?;
    if matches!(profile.format, Format::Batch | Format::Libsvm | Format::Libffm) {
        return Ok(());
    }
    let held = |by: &str, column: &ColumnProfile| {
        format!("# valid = {{ fraction = 0.1, by = \"{by}\", column = {} }}", quoted(&column.name))
    };
    let user =
        |(role, column): &&(Role, &ColumnProfile)| *role == Role::Categorical && is_user_name(&column.name);
    if let Some((_, column)) = roles.iter().find(user) {
        writeln!(out, "{}    # all rows of some of them", held("hash", column))?;
    }
    let time = |(_, column): &&(Role, &ColumnProfile)| is_time(column) && column.missing == 0;
    match roles.iter().find(time) {
        Some((_, column)) => writeln!(out, "{}    # the latest rows", held("time", column)),
        None => writeln!(out, "# valid = {{ fraction = 0.1, by = \"time\" }}    # the last rows of the file"),
    }
}

fn write_data(
    profile: &DataProfile,
    data_path: &str,
    once: bool,
    roles: &[(Role, &ColumnProfile)],
    out: &mut String,
) -> std::fmt::Result {
    writeln!(out, "[data]")?;
    writeln!(out, "train = {}", quoted(data_path))?;
    write_valid(profile, once, roles, out)?;
    if Format::of_path(data_path) != Some(profile.format) {
        let how = if profile.format_guessed { "    # guessed from the content" } else { "" };
        writeln!(out, "format = \"{}\"{how}", profile.format)?;
    }
    let usual = if profile.format == Format::Csv { "," } else { "\t" };
    if let Some(separator) = profile.separator.as_deref().filter(|&separator| separator != usual) {
        writeln!(out, "separator = {}", quoted(separator))?;
    }
    if let Some(comment) = profile.comment {
        writeln!(out, "comment = {}", quoted(&comment.to_string()))?;
    }
    if let Some(header) = profile.header.filter(|&header| profile.named || !header)
        && profile.format != Format::Criteo
    {
        let names: Vec<String> = profile.columns.iter().map(|column| quoted(&column.name)).collect();
        let note = if profile.named { "" } else { "    # the file has no names; give better ones" };
        writeln!(out, "header = {header}\ncolumns = {}{note}", list(&names))?;
    }
    let mut marks: Vec<&str> = Vec::new();
    for mark in profile.columns.iter().flat_map(|column| &column.missing_marks) {
        if !marks.contains(&mark.as_str()) {
            marks.push(mark);
        }
    }
    if !marks.is_empty() {
        let usual = DataConfig::default().missing;
        let texts = usual.iter().map(String::as_str).chain(marks);
        let texts: Vec<String> = texts.map(quoted).collect();
        writeln!(out, "missing = {}    # texts that mean no value, in every column", list(&texts))?;
    }
    if profile.bad_rows > 0 {
        writeln!(out, "# {} rows could not be read, the first:", profile.bad_rows)?;
        let first = profile.first_bad_row.as_deref().unwrap_or_default();
        writeln!(out, "# {}", one_line(first))?;
        writeln!(out, "on_bad_row = \"skip\"    # they are counted; \"fail\" stops at the first")?;
    }
    writeln!(out)
}

/// A feature for every field of libffm text.
fn write_fields(profile: &DataProfile, out: &mut String) -> std::fmt::Result {
    writeln!(out, "[[feature]]    # a feature per field")?;
    writeln!(out, "each = [")?;
    for column in &profile.columns {
        writeln!(out, "    {},    # {}", quoted(&column.name), about(column))?;
    }
    writeln!(out, "]\ntype = \"sparse\"\n")
}

fn write_label(label: Option<&LabelGuess>, out: &mut String) -> std::fmt::Result {
    writeln!(out, "[label]")?;
    let Some(label) = label else {
        writeln!(out, "# No column looks like a label (two values, or a telling name). Name it here:")?;
        return writeln!(out, "column = {}\n", quoted(NO_LABEL));
    };
    writeln!(
        out,
        "# {}; {:.2} % of the rows are positive",
        one_line(&label.reason),
        100.0 * label.positive_share
    )?;
    writeln!(out, "column = {}", quoted(&label.column))?;
    if !label.positive.is_empty() {
        let texts: Vec<String> = label.positive.iter().map(|text| quoted(text)).collect();
        writeln!(out, "positive = {}", list(&texts))?;
    }
    writeln!(out)
}

/// The use of each column except the label.
fn roles(profile: &DataProfile, once: bool) -> Vec<(Role, &ColumnProfile)> {
    let label = profile.label.as_ref().map_or(NO_LABEL, |label| &label.column);
    let features = profile.columns.iter().filter(|column| column.name != label);
    let repeated = repeated(&profile.columns);
    let is_one = |column: &ColumnProfile| repeated.binary_search(&column.name.as_str()).is_err();
    let role = |column: &ColumnProfile| match column {
        _ if column.name.is_empty() => {
            let what =
                if profile.format.is_text() { "the header does not name it" } else { "it has no name" };
            Role::Out(format!("{what}; {}", naming(profile.format)))
        }
        _ if !is_one(column) => {
            Role::Out(format!("more than one column has this name; {}", naming(profile.format)))
        }
        _ => match role(column, profile.rows) {
            // Quantiles are fitted before the first pass.
            Role::Quantile if once => Role::Log,
            role => role,
        },
    };
    let mut roles: Vec<(Role, &ColumnProfile)> = features.map(|column| (role(column), column)).collect();
    if roles.iter().all(|(role, _)| is_out(role)) {
        // At least one column must remain.
        for (role, column) in &mut roles {
            let is_scalar = matches!(column.kind, ColumnKind::Text | ColumnKind::Integer | ColumnKind::Float);
            if is_scalar && !column.name.is_empty() && is_one(column) {
                *role = Role::Categorical;
            }
        }
    }
    roles
}

fn write_features(mut roles: Vec<(Role, &ColumnProfile)>, once: bool, out: &mut String) -> std::fmt::Result {
    for (role, column) in &roles {
        if let Role::Out(why) = role {
            writeln!(out, "# left out: {} ({why})", quoted(&column.name))?;
        }
    }
    roles.retain(|(role, _)| !is_out(role));
    // One entry per role, in the order of first use.
    while let Some((role, _)) = roles.first().cloned() {
        let same: Vec<&ColumnProfile> =
            roles.iter().filter(|(other, _)| *other == role).map(|(_, column)| *column).collect();
        roles.retain(|(other, _)| *other != role);
        writeln!(out, "[[feature]]")?;
        writeln!(out, "each = [")?;
        for column in same {
            writeln!(out, "    {},    # {}", quoted(&column.name), about(column))?;
        }
        writeln!(out, "]")?;
        match role {
            Role::Categorical => writeln!(out, "type = \"categorical\"")?,
            Role::Log if once => {
                writeln!(out, "type = \"log\"    # quantiles are not fitted to what is read once")?;
            }
            Role::Log => writeln!(out, "type = \"log\"    # numbers with a heavy tail")?,
            Role::Quantile => writeln!(out, "type = \"quantile\"\nbuckets = 32")?,
            Role::Numeric => writeln!(out, "type = \"numeric\"")?,
            Role::Multi(separator) => {
                writeln!(out, "type = \"multi\"")?;
                if let Some(separator) = separator {
                    writeln!(out, "separator = {}", quoted(&separator.to_string()))?;
                }
                writeln!(out, "pooling = \"mean\"")?;
            }
            Role::Out(_) => {}
        }
        writeln!(out)?;
    }
    Ok(())
}

fn role(column: &ColumnProfile, rows: u64) -> Role {
    let present = rows - column.missing.min(rows);
    let unique = present >= UNIQUE_ROWS_MIN && column.distinct as f64 >= UNIQUE_SHARE_MIN * present as f64;
    match column.kind {
        ColumnKind::Unsupported => Role::Out("a nested type; flatten it".to_string()),
        ColumnKind::Empty => Role::Out("it has no values".to_string()),
        _ if column.distinct <= 1 && column.missing == 0 => Role::Out("it has only one value".to_string()),
        ColumnKind::List => Role::Multi(column.separator),
        ColumnKind::Text if column.times && column.distinct > CODES_MAX => Role::Quantile,
        ColumnKind::Text if unique => Role::Out("almost every row has its own value".to_string()),
        ColumnKind::Text => Role::Categorical,
        ColumnKind::Integer => integer_role(column, unique),
        ColumnKind::Float => float_role(column),
    }
}

fn integer_role(column: &ColumnProfile, unique: bool) -> Role {
    let Some(numbers) = &column.numbers else { return Role::Categorical };
    if time_unit(column).is_some() && column.distinct > CODES_MAX {
        return Role::Quantile;
    }
    let range = numbers.max - numbers.min + 1.0;
    let dense = column.distinct as f64 >= DENSE_SHARE_MIN * range;
    let far = numbers.min > FAR_RATIO * range;
    let id = is_id_name(&column.name)
        || (dense && (far || column.distinct > DENSE_IDS_MIN))
        || numbers.max > COUNT_MAX;
    if unique && (id || dense) {
        return Role::Out("almost every row has its own value: a row number or an id".to_string());
    }
    match () {
        () if id || column.distinct <= CODES_MAX => Role::Categorical,
        // Also with a heavy tail: the small counts, which most rows have, keep buckets of their own.
        () => Role::Quantile,
    }
}

fn float_role(column: &ColumnProfile) -> Role {
    let Some(numbers) = &column.numbers else { return Role::Categorical };
    match () {
        () if heavy_tail(column) => Role::Log,
        () if numbers.min.abs().max(numbers.max.abs()) <= SMALL => Role::Numeric,
        () => Role::Quantile,
    }
}

fn heavy_tail(column: &ColumnProfile) -> bool {
    let Some(numbers) = &column.numbers else { return false };
    let beyond = |large: f64, small: f64| large > TAIL_RATIO * small.max(1.0);
    numbers.min >= -1.0 && (beyond(numbers.max, numbers.p99) || beyond(numbers.p99, numbers.median))
}

/// Whether a name suggests that the column's numbers are ids.
pub(super) fn is_id_name(name: &str) -> bool {
    const PARTS: [&str; 14] = [
        "id", "ids", "user", "item", "uid", "code", "zip", "zipcode", "postcode", "category", "cat", "ad",
        "site", "hash",
    ];
    let name = name.to_lowercase();
    name.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| PARTS.contains(&part)) || name.ends_with("id")
}

/// Whether a name suggests that the column tells users apart.
fn is_user_name(name: &str) -> bool {
    const PARTS: [&str; 5] = ["user", "uid", "member", "visitor", "session"];
    let name = name.to_lowercase();
    name.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| PARTS.contains(&part))
        || name.starts_with("user")
}

fn about(column: &ColumnProfile) -> String {
    let about = if column.distinct_estimated { "about " } else { "" };
    let mut text = format!("{about}{} values", column.distinct);
    if let Some(numbers) = &column.numbers {
        let _ = write!(text, ", {} to {}", numbers.min, numbers.max);
    }
    if let Some(unit) = time_unit(column) {
        let _ = write!(text, ", Unix times in {unit} (as `numeric` they would swamp the model)");
    }
    if column.times {
        let _ = write!(text, ", dates or times (read as seconds since 1970)");
    }
    if column.missing > 0 {
        let _ = write!(text, ", {:.1} % missing", 100.0 * column.missing_share);
    }
    if let Some(top) = column.top.first() {
        let _ = write!(text, ", {:.1} % are {:?}", 100.0 * top.share, top.value);
    }
    one_line(&text)
}
