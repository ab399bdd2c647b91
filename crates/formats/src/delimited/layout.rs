//! The layout of a delimited file: separator, quotes, header, and the columns that the encoder reads. Reads the start
//! of a file and none of its rows.

use std::path::Path;

use sanderling_sample::{Encoder, SampleError, quote, quote_text};

use crate::blocks::LineBlocks;
use crate::folder::{Partition, partitions};
use crate::format::{DataConfig, Format};
use crate::quotes::Quotes;
use crate::text_kind::TextKind;

/// At most this many column names are listed in an error.
const NAMES_LISTED_MAX: usize = 20;

/// In `Layout::inputs`: the column is not read.
pub(super) const UNUSED: u32 = u32::MAX;

/// The names of the columns, and the header line.
type Names = (Vec<Vec<u8>>, Option<Vec<u8>>);

/// Per column of the file its input, and the inputs whose values are in the path.
type Inputs = (Vec<u32>, Vec<(u32, Option<Vec<u8>>)>);

/// The layout of one file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    /// One byte or several.
    pub(super) separator: Vec<u8>,
    /// CSV: quotes enclose fields, blanks around fields do not count.
    pub(super) quotes: bool,
    pub(super) comment: Option<u8>,
    /// Names of the file's columns.
    pub(super) names: Vec<String>,
    /// The header line without its end; a line equal to it is no row.
    pub(super) header: Option<Vec<u8>>,
    /// Inputs whose values are in the file's path, and the values.
    pub(super) constants: Vec<(u32, Option<Vec<u8>>)>,
    /// Per column of the file, its position among the encoder's inputs, or `UNUSED`.
    pub(super) inputs: Vec<u32>,
}

fn ascii(character: char, what: &str) -> Result<u8, SampleError> {
    let byte = u8::try_from(character).ok().filter(|byte| byte.is_ascii() && !b"\n\r\"".contains(byte));
    byte.ok_or_else(|| {
        SampleError::Settings(format!("data.{what} must be one ASCII character, not {character:?}"))
    })
}

/// A separator is at most this long.
const SEPARATOR_BYTES_MAX: usize = 16;

/// The bytes of a separator that a configuration names.
///
/// # Errors
/// It is empty, too long or not ASCII.
pub fn separator_of(separator: &str) -> Result<Vec<u8>, SampleError> {
    let is_ascii = separator.bytes().all(|byte| byte.is_ascii() && !b"\n\r\"".contains(&byte));
    if !is_ascii || separator.is_empty() || separator.len() > SEPARATOR_BYTES_MAX {
        return Err(SampleError::Settings(format!(
            "data.separator must be 1 to {SEPARATOR_BYTES_MAX} ASCII characters, none of them a quote, not {}",
            quote_text(separator.as_bytes())
        )));
    }
    Ok(separator.as_bytes().to_vec())
}

/// The position of a separator in a text, or the text's end.
pub fn end_of_field(text: &[u8], separator: &[u8]) -> usize {
    match separator {
        [byte] => text.iter().position(|it| it == byte),
        _ => text.windows(separator.len()).position(|window| window == separator),
    }
    .unwrap_or(text.len())
}

impl Layout {
    /// Reads and removes the header, if there is one, at the start of the file.
    pub(crate) fn open(
        lines: &mut LineBlocks,
        path: &Path,
        format: Format,
        config: &DataConfig,
        encoder: &Encoder,
    ) -> Result<Layout, SampleError> {
        if encoder.is_sparse() {
            let path = path.display();
            return Err(SampleError::Settings(format!(
                "{path}: a feature of type \"sparse\" reads libsvm or libffm text, not {format}"
            )));
        }
        let default = if format == Format::Csv { "," } else { "\t" };
        let mut layout = Layout {
            separator: separator_of(config.separator.as_deref().unwrap_or(default))?,
            quotes: format == Format::Csv,
            comment: config.comment.map(|comment| ascii(comment, "comment")).transpose()?,
            names: Vec::new(),
            header: None,
            constants: Vec::new(),
            inputs: Vec::new(),
        };
        if layout.quotes {
            lines.set_quotes(Quotes { separator: layout.separator.clone(), comment: layout.comment });
        }
        let kind = TextKind::of(lines.peek_start()?);
        if kind == Some(TextKind::Json) {
            return Err(TextKind::Json.error(path));
        }
        let (columns, header) = layout.column_names(lines, path, format, config, encoder)?;
        layout.header = header;
        layout.names = texts(&columns);
        let partitions = partitions(path);
        (layout.inputs, layout.constants) =
            layout.match_inputs(path, encoder, &columns, &partitions, kind)?;
        Ok(layout)
    }

    /// The names as they are in the file, which need not be UTF-8, and the header line.
    fn column_names(
        &self,
        lines: &mut LineBlocks,
        path: &Path,
        format: Format,
        config: &DataConfig,
        encoder: &Encoder,
    ) -> Result<Names, SampleError> {
        let bytes = |names: Vec<String>| names.into_iter().map(String::into_bytes).collect();
        let mut given = match (&config.columns, format) {
            (Some(columns), _) => Some(columns.clone()),
            (None, Format::Criteo) => Some(criteo_columns()),
            (None, _) => None,
        };
        let is_comment = |line: &[u8]| self.comment.is_some() && line.first().copied() == self.comment;
        while lines.peek_line()?.is_some_and(is_comment) {
            lines.skip_line()?;
        }
        let line_number = lines.next_line();
        let header = match lines.peek_line()? {
            None => None,
            Some(line) => Some(self.split(line).map_err(|(column, expected, found)| {
                let (path, column) = (path.to_path_buf(), column.to_string());
                SampleError::BadRow { path, line: line_number, column, expected, found }
            })?),
        };
        let line =
            lines.peek_line()?.map(|line| trim_line(line.strip_suffix(b"\n").unwrap_or(line)).to_vec());
        let first: Option<Vec<String>> = header.as_deref().map(texts);
        // The published test set of Criteo's log has no label column.
        if let (None, Format::Criteo, Some(names), Some(first)) =
            (&config.columns, format, &mut given, &first)
            && first.len() + 1 == names.len()
            && encoder.is_optional(0)
        {
            names.remove(0);
        }
        let has_header = config.header.unwrap_or(given.is_none() || given == first);
        let bad = |reason: String| Err(SampleError::BadFile { path: path.to_path_buf(), reason });
        if let (Some(given), Some(first)) = (&given, &first)
            && is_other_order(given, first)
        {
            let reason = "the first line names the columns in another order than data.columns; \
                          drop data.columns and say that the file has a header";
            return bad(reason.to_string());
        }
        match (has_header, given, header) {
            (true, given, Some(header)) => {
                lines.skip_line()?;
                match given {
                    Some(given) if given.len() != header.len() => bad(format!(
                        "the header has {} columns, the settings name {}; correct data.columns",
                        header.len(),
                        given.len()
                    )),
                    Some(given) => Ok((bytes(given), line)),
                    None => Ok((header, line)),
                }
            }
            (true, Some(given), None) | (false, Some(given), _) => {
                // The first of several concatenated files may lack the header.
                let names: Vec<Vec<u8>> = bytes(given);
                let is_header = config.header.is_none() && names.len() > 1;
                let line = is_header.then(|| names.join(&self.separator[..]));
                Ok((names, line))
            }
            (true, None, None) => bad("is empty; expected a first line that names the columns".to_string()),
            (false, None, first) => {
                let names = (1..=first.map_or(0, |first| first.len())).map(|n| n.to_string()).collect();
                Ok((bytes(names), None))
            }
        }
    }

    fn match_inputs(
        &self,
        path: &Path,
        encoder: &Encoder,
        columns: &[Vec<u8>],
        partitions: &[Partition],
        kind: Option<TextKind>,
    ) -> Result<Inputs, SampleError> {
        let bad = |reason: String| Err(SampleError::BadFile { path: path.to_path_buf(), reason });
        let (mut inputs, mut constants) = (vec![UNUSED; self.names.len()], Vec::new());
        let in_path = |wanted: &str| partitions.iter().find(|partition| partition.name == wanted);
        // An empty file without header has no rows that could lack a column.
        let wanted = if self.names.is_empty() { &[] } else { encoder.input_columns() };
        for (input, wanted) in wanted.iter().enumerate() {
            let mut found = self.names.iter().enumerate().filter(|(_, name)| *name == wanted);
            match (found.next(), found.next()) {
                (Some((column, _)), None) => inputs[column] = input as u32,
                (Some(_), Some(_)) => return bad(format!("two columns are named {wanted:?}")),
                (None, _) if in_path(wanted).is_some() => {
                    let value = in_path(wanted).and_then(|partition| partition.value.clone());
                    constants.push((input as u32, value.map(String::into_bytes)));
                }
                (None, _) if encoder.is_optional(input) => {}
                (None, _) => {
                    let listed = &columns[..columns.len().min(NAMES_LISTED_MAX)];
                    let more = if listed.len() < columns.len() { ", ..." } else { "" };
                    let listed = quote_names(listed);
                    if let Some(kind) = kind {
                        return bad(format!("no column {wanted:?} among {listed}{more}; {}", kind.hint()));
                    }
                    let one = match columns {
                        [_] => "one column only: is data.separator right? ",
                        _ => "",
                    };
                    return bad(format!(
                        "no column {wanted:?} among {listed}{more}; {one}if the file has no header, give data.columns, \
                         or --columns"
                    ));
                }
            }
        }
        Ok((inputs, constants))
    }

    pub(super) fn name_of(&self, column: usize) -> String {
        self.names.get(column).cloned().unwrap_or_else(|| (column + 1).to_string())
    }

    pub(super) fn trim<'a>(&self, field: &'a [u8]) -> &'a [u8] {
        if self.quotes { trim_blanks(field) } else { field }
    }

    /// Cuts one line in a simple way, with copies: for headers, and as the model of the fast path in tests. An error
    /// is position, expected, found.
    pub(super) fn split(&self, line: &[u8]) -> Result<Vec<Vec<u8>>, (usize, String, String)> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let mut fields = Vec::new();
        let mut rest = line;
        loop {
            let opening = if self.quotes { trim_blanks(rest).first() } else { None };
            let (field, after) = if opening == Some(&b'"') {
                let mut field = Vec::new();
                let mut inside = &rest[rest.iter().position(|&byte| byte == b'"').unwrap_or(0) + 1..];
                loop {
                    match inside {
                        [b'"', b'"', more @ ..] => {
                            field.push(b'"');
                            inside = more;
                        }
                        [b'"', more @ ..] => {
                            inside = more;
                            break;
                        }
                        [byte, more @ ..] => {
                            field.push(*byte);
                            inside = more;
                        }
                        [] => return Err((fields.len() + 1, CLOSING.to_string(), quote(rest))),
                    }
                }
                let end = end_of_field(inside, &self.separator);
                if !trim_blanks(&inside[..end]).is_empty() {
                    return Err((fields.len() + 1, AFTER_QUOTE.to_string(), quote(&inside[..end])));
                }
                (field, &inside[end..])
            } else {
                let end = end_of_field(rest, &self.separator);
                (self.trim(&rest[..end]).to_vec(), &rest[end..])
            };
            fields.push(field);
            match after {
                [] => return Ok(fields),
                more => rest = &more[self.separator.len()..],
            }
        }
    }
}

pub(super) const CLOSING: &str = "a closing quote before the end of the file";
pub(super) const AFTER_QUOTE: &str = "a separator after the closing quote";

/// Whether two lists hold the same names in another order.
fn is_other_order(given: &[String], first: &[String]) -> bool {
    let sorted = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort_unstable();
        names
    };
    given.len() == first.len() && given != first && sorted(given) == sorted(first)
}

/// The names as strings.
fn texts(names: &[Vec<u8>]) -> Vec<String> {
    names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

fn quote_names(names: &[Vec<u8>]) -> String {
    names.iter().map(|name| quote_text(name)).collect::<Vec<_>>().join(", ")
}

fn criteo_columns() -> Vec<String> {
    let numeric = (1..=13).map(|n| format!("I{n}"));
    let categorical = (1..=26).map(|n| format!("C{n}"));
    std::iter::once("label".to_string()).chain(numeric).chain(categorical).collect()
}

#[inline]
pub(super) fn trim_blanks(field: &[u8]) -> &[u8] {
    let mut field = field;
    while let [b' ', rest @ ..] | [rest @ .., b' '] = field {
        field = rest;
    }
    field
}

pub(super) fn trim_line(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}
