//! Results on standard output: one JSON object in one line, or a few aligned lines for a person; in a file, where one is named.
//! Notes on standard error. Knows no result.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::canonicalize;
use std::io::Write;
use std::path::Path;

use sanderling_files::{OutputFile, refuse_url};
pub use sanderling_observe::numbers::{bytes, count};
use serde::Serialize;

use crate::failure::Failure;
use crate::log;
use crate::width::{self, fold, wrapped};

/// So many in a second: rounded, as in every table, so that one run is the same number everywhere.
pub fn per_s(per_s: f64) -> String {
    count(per_s.round_ties_even() as u64)
}

/// Prints a line to standard error, without the panic of `eprintln!` when the reader has gone.
#[macro_export]
macro_rules! note {
    ($($argument:tt)*) => { $crate::output::note(format_args!($($argument)*)) };
}

/// Prints text that contains a name or a reason from another process, kept on one line, so that it cannot forge a line.
#[macro_export]
macro_rules! note_line {
    ($($argument:tt)*) => { $crate::output::note_line(format_args!($($argument)*)) };
}

/// Implementation of `note!`.
pub fn note(line: std::fmt::Arguments<'_>) {
    let line = line.to_string();
    log::say(wrapped(&shown(&line), width::of_stderr()).into_owned());
}

/// Implementation of `note_line!`.
pub fn note_line(line: std::fmt::Arguments<'_>) {
    let line = line.to_string();
    log::say(wrapped(&on_a_line(&line), width::of_stderr()).into_owned());
}

/// A text as a terminal may have it. A file, a name or another process may bring control characters, which would command it:
/// they come as `\u001b`, which JSON and TOML understand, too. Line breaks and tabs stay.
fn shown(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c.is_control() && c != '\n' && c != '\t')
}

/// Escapes control characters and line breaks, so that the text stays on its line.
pub fn on_a_line(text: &str) -> Cow<'_, str> {
    escaped(text, char::is_control)
}

fn escaped(text: &str, commands: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&commands) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if commands(c) {
            // Writing to a string does not fail.
            let _ = write!(escaped, "\\u{:04x}", u32::from(c));
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

/// Prints the JSON line that `--json` promises.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let line = serde_json::to_string(value).map_err(std::io::Error::from)?;
    text(&line)
}

/// Prints lines to standard output.
pub fn text(lines: &str) -> Result<(), Failure> {
    // Notes before a result also stand before it where both go to one file.
    log::finish();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", shown(lines))?;
    Ok(out.flush()?)
}

/// Prints lines for a person to standard output: a terminal gets long lines wrapped to its width.
pub fn prose(lines: &str) -> Result<(), Failure> {
    text(&wrapped(lines, width::of_stdout()))
}

/// Prints without ending the line.
pub fn part(text: &str) -> Result<(), Failure> {
    log::finish();
    let mut out = std::io::stdout().lock();
    write!(out, "{}", shown(text))?;
    Ok(out.flush()?)
}

/// Clears a terminal and goes to its first line.
pub fn clear() -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    write!(out, "\x1b[2J\x1b[H")?;
    Ok(out.flush()?)
}

/// Refuses a file that cannot be written: not to be found out after minutes of work.
pub fn check(path: &Path) -> Result<(), Failure> {
    OutputFile::check(path).map_err(|error| not_written(path, &error))
}

/// Refuses an output that is a file already, unless `force` replaces it.
pub fn not_there(path: &Path, force: bool) -> Result<(), Failure> {
    if !force && path.is_file() {
        return Err(Failure::Usage(format!("{}: exists already; replace it with --force", path.display())));
    }
    Ok(())
}

/// Refuses a url where a local folder or file is written.
pub fn not_a_url(option: &str, path: &Path) -> Result<(), Failure> {
    refuse_url(path).map_err(|reason| Failure::Usage(format!("{option} {}: {reason}", path.display())))
}

/// Refuses an output that would replace one of the files that are read.
pub fn not_over<'a>(
    option: &str,
    output: &Path,
    mut inputs: impl Iterator<Item = &'a Path>,
) -> Result<(), Failure> {
    // A missing file is not an input.
    let Ok(file) = canonicalize(output) else { return Ok(()) };
    if inputs.any(|input| canonicalize(input).is_ok_and(|input| input == file)) {
        let reason = "it is one of the input files, which would be lost; name another output";
        return Err(Failure::Usage(format!("{option} {}: {reason}", output.display())));
    }
    Ok(())
}

/// Writes all of a file.
pub fn save(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    OutputFile::save(path, bytes).map_err(|error| not_written(path, &error))
}

/// The error with the file's name.
pub fn not_written(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Output(std::io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Name and value pairs, one per line, values aligned.
pub fn pairs(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = rows.iter().map(|(name, value)| format!("{name:width$}  {}", on_a_line(value)));
    lines.collect::<Vec<_>>().join("\n")
}

/// A table with a header, columns aligned: the first and the last to the left, the others to the right.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    columns(header, rows, &[0, header.len().saturating_sub(1)])
}

/// A table with a header, columns aligned: those at the positions in `left` to the left, the others to the right.
pub fn columns(header: &[&str], rows: &[Vec<String>], left: &[usize]) -> String {
    columns_within(header, rows, left, None)
}

/// A table of aligned columns, folded where it is wider than a terminal: each part repeats the leading columns in `left`.
pub fn columns_within(header: &[&str], rows: &[Vec<String>], left: &[usize], width: Option<usize>) -> String {
    let leading = (0..header.len()).take_while(|at| left.contains(at)).count();
    columns_repeating(header, rows, left, leading, width)
}

/// [`columns_within`] whose parts repeat the first `repeated` columns.
pub fn columns_repeating(
    header: &[&str],
    rows: &[Vec<String>],
    left: &[usize],
    repeated: usize,
    width: Option<usize>,
) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| on_a_line(cell).into_owned()).collect()).collect();
    let widths: Vec<usize> = (0..header.len())
        .map(|at| rows.iter().map(|row| row[at].chars().count()).chain([header[at].len()]).max().unwrap_or(0))
        .collect();
    let line = |cells: &[String], part: &[usize]| {
        let cells = part.iter().map(|&at| {
            let (cell, width) = (&cells[at], widths[at]);
            if left.contains(&at) { format!("{cell:width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    let header: Vec<String> = header.iter().map(ToString::to_string).collect();
    let parts = fold(&widths, repeated.clamp(1, header.len().max(1)), width);
    let part = |part: &Vec<usize>| {
        let lines = std::iter::once(line(&header, part)).chain(rows.iter().map(|row| line(row, part)));
        lines.collect::<Vec<_>>().join("\n")
    };
    parts.iter().map(part).collect::<Vec<_>>().join("\n\n")
}

/// A metric that may not exist (AUC of one class).
pub fn metric(value: Option<f64>) -> String {
    value.map_or_else(|| "undefined".to_string(), |value| format!("{value:.6}"))
}

/// The rows of [`pairs`] that every measurement of a model begins with.
pub fn quality(
    (auc, logloss): (Option<f64>, Option<f64>),
    (prob_mean, real_mean): (Option<f64>, Option<f64>),
) -> Vec<(&'static str, String)> {
    vec![
        ("AUC", metric(auc)),
        ("logloss", metric(logloss)),
        ("calibration", format!("predicted {}, real {}", metric(prob_mean), metric(real_mean))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_commands_a_terminal_is_escaped() {
        for (text, expected) in [
            ("a\tb\nc", "a\tb\nc"),
            ("\u{1b}[31mred\u{7}", "\\u001b[31mred\\u0007"),
            ("\u{9b}2J\u{7f}\r", "\\u009b2J\\u007f\\u000d"),
        ] {
            assert_eq!(shown(text), expected);
        }
        assert_eq!(on_a_line("a\nb"), "a\\u000ab");
        let rows = [["a\n\u{1b}", "1"].map(str::to_string).to_vec()];
        assert_eq!(table(&["name", "n"], &rows), "name           n\na\\u000a\\u001b  1");
        assert_eq!(pairs(&[("x", "1\n2".to_string())]), "x  1\\u000a2");
    }

    #[test]
    fn rates_are_rounded_as_in_tables() {
        for (rate, expected) in [(0.0, "0"), (0.5, "0"), (1.5, "2"), (1234.4, "1,234"), (98_765.6, "98,766")]
        {
            assert_eq!(per_s(rate), expected);
            assert_eq!(per_s(rate).replace(',', ""), format!("{rate:.0}"));
        }
    }

    #[test]
    fn columns_of_numbers_end_at_their_right() {
        let rows = [["a", "10", "x"].map(str::to_string).to_vec()];
        assert_eq!(table(&["name", "n", "last"], &rows), "name   n  last\na     10  x");
        let folded = columns_within(&["name", "n", "last"], &rows, &[0, 2], Some(9));
        assert_eq!(folded, "name   n\na     10\n\nname  last\na     x");
    }
}
