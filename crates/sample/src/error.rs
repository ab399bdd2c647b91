//! Errors of reading; each names the file, the line or row, the column, and the expected content.

use std::path::PathBuf;

/// An error between a file and a batch.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// The feature spec contradicts itself or the data.
    #[error("spec: {0}")]
    Spec(String),
    /// An input, an output or a setting is wrong for any spec, or a file is of a kind that the spec does not read.
    #[error("{0}")]
    Settings(String),
    /// A file or pattern could not be opened or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file, or the pattern that named it.
        path: PathBuf,
        /// The error of the operating system or the decompressor.
        source: std::io::Error,
    },
    /// A row does not match the format or the spec.
    #[error("{}:{line}: column {column}: expected {expected}, found {found}", path.display())]
    BadRow {
        /// The file.
        path: PathBuf,
        /// Line of a text file, row of a columnar one, record of others; the first is 1.
        line: u64,
        /// Name of the column, or its position, from 1.
        column: String,
        /// The expected content.
        expected: String,
        /// The content found, shortened and made printable.
        found: String,
    },
    /// A file does not match its format: no header, a missing column, a truncated Parquet footer.
    #[error("{}: {reason}", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// The problem, and what to do.
        reason: String,
    },
    /// Standard input, a pipe, or the copy of a file is not wanted any more.
    #[error("the input is not wanted any more")]
    Unwanted,
    /// More rows were bad than `on_bad_row` allows.
    #[error("more than {max} bad rows; the last: {last}")]
    TooManyBadRows {
        /// The limit of `skip:max`.
        max: u64,
        /// The first row over the limit.
        last: Box<SampleError>,
    },
}

/// A field that could not be turned into keys; the reader adds file, line and column name.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    /// Index into the encoder's input columns.
    pub column: usize,
    /// The expected content.
    pub expected: String,
    /// The content found, shortened and made printable.
    pub found: String,
}

/// At most this many bytes of a bad field are quoted in an error.
const QUOTE_BYTES_MAX: usize = 40;

/// A field as an error message may show it: quoted, printable, at most 40 bytes.
#[must_use]
pub fn quote(field: &[u8]) -> String {
    if field.is_empty() {
        return "nothing".to_string();
    }
    let cut = &field[..field.len().min(QUOTE_BYTES_MAX)];
    let more = if cut.len() < field.len() { "..." } else { "" };
    format!("\"{}\"{more}", cut.escape_ascii())
}

/// A name as an error message shows it: quoted like [`quote`], but readable UTF-8 stays.
pub fn quote_text(text: &[u8]) -> String {
    if text.is_ascii() {
        return quote(text);
    }
    let (mut shown, mut bytes) = (String::new(), 0);
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            if bytes + c.len_utf8() > QUOTE_BYTES_MAX {
                return format!("\"{shown}\"...");
            }
            bytes += c.len_utf8();
            shown.extend(c.escape_debug());
        }
        if bytes + chunk.invalid().len() > QUOTE_BYTES_MAX {
            return format!("\"{shown}\"...");
        }
        bytes += chunk.invalid().len();
        shown += &chunk.invalid().escape_ascii().to_string();
    }
    format!("\"{shown}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_so_that_they_can_be_read() {
        let check = |text: &[u8], expected: &str| assert_eq!(quote_text(text), expected);
        check(b"", "nothing");
        check(b"a b", "\"a b\"");
        check("größe".as_bytes(), "\"größe\"");
        check(b"gr\xf6\xdfe", "\"gr\\xf6\\xdfe\"");
        check("ü\u{1b}[31m\u{9b}".as_bytes(), "\"ü\\u{1b}[31m\\u{9b}\"");
        check("ü".repeat(21).as_bytes(), &format!("\"{}\"...", "ü".repeat(20)));
    }
}
