//! A data file for a person: its columns, their values, and what looks like the label.

use std::path::Path;

use sanderling_formats::{DataConfig, input};
use sanderling_inspect::{
    ColumnProfile, DataProfile, ProfileOptions, SparseProfile, ValueCount, profile_first, suggest,
};
use sanderling_learner::LearnError;

use super::Args;
use crate::failure::Failure;
use crate::output;
use crate::width;

/// Whether a folder holds data: files, and the first is of a known format. (What a run leaves behind holds none.)
///
/// # Errors
/// A folder with files of known formats that cannot be read as one input.
pub(super) fn is_folder_of_data(args: &Args) -> Result<bool, Failure> {
    let mut config = DataConfig::default();
    args.reading.apply_all(&mut config)?;
    let found = input::expand(&[args.path.to_string_lossy().into_owned()]);
    let is_data = |path: &Path| config.format_of(path).is_some();
    match found {
        Ok(files) => Ok(files.first().is_some_and(|file| is_data(&file.path))),
        Err(error) => {
            let names = std::fs::read_dir(&args.path).into_iter().flatten().flatten();
            let has_data = names.map(|entry| entry.path()).any(|path| path.is_file() && is_data(&path));
            if has_data { Err(error.into()) } else { Ok(false) }
        }
    }
}

pub(super) fn show(args: &Args) -> Result<u8, Failure> {
    let mut config = DataConfig::default();
    args.reading.apply_all(&mut config)?;
    let options = ProfileOptions { rows_max: args.rows, top: args.top as usize };
    // A name need not be text; what a folder or a pattern stands for is asked only where there is no such file.
    let files = match args.path.exists() && !args.path.is_dir() {
        true => vec![args.path.clone()],
        false => {
            let files = input::expand(&[args.path.to_string_lossy().into_owned()])?;
            files.into_iter().map(|file| file.path).collect()
        }
    };
    let name = args.path.to_string_lossy().into_owned();
    args.reading.check_used(&config, [&name])?;
    let mut found = profile_first(&files, &config, &options)?;
    args.reading.check_used_by(found.format, &name)?;
    if files.len() > 1 {
        note_others(&mut found, &args.path, files.len());
    }
    if args.suggest {
        // Nothing can be trained on it.
        if found.rows == 0 {
            let (input, bad_rows, first_bad) =
                (args.path.display().to_string(), found.bad_rows, found.first_bad_row);
            return Err(LearnError::NoRows { input, bad_rows, first_bad }.into());
        }
        found.complete &= files.len() == 1;
        output::text(suggest(&found, &name)?.trim_end())?;
    } else if args.json {
        output::json(&found)?;
    } else {
        output::prose(&describe(&found, width::of_stdout()))?;
    }
    Ok(0)
}

/// Says that a pattern stands for more than what was looked at.
fn note_others(found: &mut DataProfile, pattern: &Path, files: usize) {
    let note = format!(
        "the first of {} files that match {}; the others were not looked at",
        output::count(files as u64),
        pattern.display()
    );
    found.note = Some(found.note.take().map_or(note.clone(), |before| format!("{before}; {note}")));
}

fn describe(found: &DataProfile, width: Option<usize>) -> String {
    let guessed = if found.format_guessed { " (guessed)" } else { "" };
    let cut = if found.complete { "" } else { ", more in the file" };
    let mut head = vec![
        ("file", found.path.display().to_string()),
        ("format", format!("{}{guessed}{}", found.format, layout(found))),
        ("rows", format!("{}{cut}", output::count(found.rows))),
    ];
    if let Some(label) = &found.label {
        let share = format!("{:.2} %", label.positive_share * 100.0);
        head.push((
            "label",
            format!(
                "{}: {} positive, {share} ({})",
                label.column,
                output::count(label.positives),
                label.reason
            ),
        ));
    } else {
        head.push(("label", "no column looks like one".to_string()));
    }
    if found.bad_rows > 0 {
        let first = found.first_bad_row.as_deref().unwrap_or("");
        head.push(("bad rows", format!("{}, the first: {first}", output::count(found.bad_rows))));
    }
    if let Some(note) = &found.note {
        head.push(("note", note.clone()));
    }
    let mut text = output::pairs(&head);
    if let Some(sparse) = &found.sparse {
        text += &format!("\n\n{}", describe_sparse(sparse));
    }
    if !found.columns.is_empty() {
        let header = ["column", "type", "missing", "distinct", "range", "most frequent"];
        let rows: Vec<Vec<String>> = found.columns.iter().map(column).collect();
        text += &format!("\n\n{}", output::columns_within(&header, &rows, &[0, header.len() - 1], width));
    }
    text
}

fn layout(found: &DataProfile) -> String {
    let separator = found.separator.as_ref().map(|separator| format!(", separator {separator:?}"));
    let header = found.header.map(|header| if header { ", with a header" } else { ", without header" });
    format!("{}{}", separator.unwrap_or_default(), header.unwrap_or_default())
}

fn column(column: &ColumnProfile) -> Vec<String> {
    let range = match &column.numbers {
        Some(n) => format!("{} .. {}, median {}", short(n.min), short(n.max), short(n.median)),
        None => column.separator.map(|s| format!("separated by {s:?}")).unwrap_or_default(),
    };
    vec![
        if column.name.is_empty() { "(no name)".to_string() } else { column.name.clone() },
        format!("{:?}", column.kind).to_lowercase(),
        format!("{:.1} %", column.missing_share * 100.0),
        format!("{}{}", if column.distinct_estimated { "~" } else { "" }, output::count(column.distinct)),
        range,
        frequent(&column.top),
    ]
}

fn describe_sparse(sparse: &SparseProfile) -> String {
    let estimated = if sparse.distinct_estimated { "~" } else { "" };
    output::pairs(&[
        ("pairs", output::count(sparse.pairs)),
        ("per row", format!("{} to {}, mean {:.1}", sparse.row_min, sparse.row_max, sparse.row_mean)),
        ("distinct indices", format!("{estimated}{}", output::count(sparse.distinct))),
        ("largest index", output::count(sparse.index_max)),
        ("values", if sparse.all_ones { "all 1".to_string() } else { "not all 1".to_string() }),
        ("most frequent", frequent(&sparse.top)),
    ])
}

fn frequent(top: &[ValueCount]) -> String {
    let values = top.iter().map(|value| format!("{:?} {:.1} %", value.value, value.share * 100.0));
    values.collect::<Vec<_>>().join(", ")
}

/// Of a number beyond 2^53 a float has lost the last digits: it is not to look as if it had them.
fn short(number: f64) -> String {
    match number.abs() {
        large if large >= 1e15 => format!("{number:.4e}"),
        _ if number.fract() == 0.0 => format!("{number}"),
        _ => format!("{number:.4}"),
    }
}
