//! CSV, TSV and Criteo TSV: lines cut into fields where they lie, and the fields given to the encoder.
//!
//! Quotes (CSV only) stand around a whole field, doubled inside, and may hold separators and line feeds (RFC 4180). A header that
//! comes again, as in files put together, is passed over and counted. It knows no files beyond the order of their columns.

use std::path::Path;

use crate::batch::Batch;
use crate::blocks::{BYTE_ORDER_MARK, Block, LineBlocks};
use crate::encode::Encoder;
use crate::error::{SampleError, quote, quote_text};
use crate::field::Field;
use crate::folder::{Partition, partitions};
use crate::format::{DataConfig, Format};
use crate::libsvm::Lines;
use crate::quotes::Quotes;
use crate::scan::{Marked, find_marks};
use crate::text_kind::TextKind;

/// At most this many column names are listed in an error.
const NAMES_LISTED_MAX: usize = 20;

/// In `Layout::inputs`: no one reads this column.
const UNUSED: u32 = u32::MAX;

/// How the lines of one file are cut, and which of its columns the encoder reads.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    /// One byte or several.
    separator: Vec<u8>,
    /// CSV: quotes enclose fields, blanks around fields do not count.
    quotes: bool,
    comment: Option<u8>,
    /// Names of the file's columns.
    names: Vec<String>,
    /// The line that names the columns, without its end; a line like it is no row.
    header: Option<Vec<u8>>,
    /// Inputs whose values are in the file's path, and these.
    constants: Vec<(u32, Option<Vec<u8>>)>,
    /// Per column of the file, its position among the encoder's inputs, or `UNUSED`.
    inputs: Vec<u32>,
}

fn ascii(character: char, what: &str) -> Result<u8, SampleError> {
    let byte = u8::try_from(character).ok().filter(|byte| byte.is_ascii() && !b"\n\r\"".contains(byte));
    byte.ok_or_else(|| {
        SampleError::Settings(format!("data.{what} must be one ASCII character, not {character:?}"))
    })
}

/// A separator is at most this long.
const SEPARATOR_BYTES_MAX: usize = 16;

pub(crate) fn separator_of(separator: &str) -> Result<Vec<u8>, SampleError> {
    let is_ascii = separator.bytes().all(|byte| byte.is_ascii() && !b"\n\r\"".contains(&byte));
    if !is_ascii || separator.is_empty() || separator.len() > SEPARATOR_BYTES_MAX {
        return Err(SampleError::Settings(format!(
            "data.separator must be 1 to {SEPARATOR_BYTES_MAX} ASCII characters, none of them a quote, not {}",
            quote_text(separator.as_bytes())
        )));
    }
    Ok(separator.as_bytes().to_vec())
}

/// Where a separator stands in a text, or the text's end.
pub(crate) fn end_of_field(text: &[u8], separator: &[u8]) -> usize {
    match separator {
        [byte] => text.iter().position(|it| it == byte),
        _ => text.windows(separator.len()).position(|window| window == separator),
    }
    .unwrap_or(text.len())
}

impl Layout {
    /// Reads the header, if there is one, off the start of the file.
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

    /// The names as they stand in the file, which need not be UTF-8, and the line that says them.
    fn column_names(
        &self,
        lines: &mut LineBlocks,
        path: &Path,
        format: Format,
        config: &DataConfig,
        encoder: &Encoder,
    ) -> Result<(Vec<Vec<u8>>, Option<Vec<u8>>), SampleError> {
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
        // The published test set of Criteo's log has no labels: all other columns, and nothing in the label's place.
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
                // The first of several files that were put together may lack it.
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
    ) -> Result<(Vec<u32>, Vec<(u32, Option<Vec<u8>>)>), SampleError> {
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

    fn name_of(&self, column: usize) -> String {
        self.names.get(column).cloned().unwrap_or_else(|| (column + 1).to_string())
    }

    fn trim<'a>(&self, field: &'a [u8]) -> &'a [u8] {
        if self.quotes { trim_blanks(field) } else { field }
    }

    /// Cuts one line, plainly and with copies: for headers, and as the model that tests hold the fast way to. An error
    /// is position, expected, found.
    fn split(&self, line: &[u8]) -> Result<Vec<Vec<u8>>, (usize, String, String)> {
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

const CLOSING: &str = "a closing quote before the end of the file";
const AFTER_QUOTE: &str = "a separator after the closing quote";

/// Whether two lists hold the same names, but not in the same places.
fn is_other_order(given: &[String], first: &[String]) -> bool {
    let sorted = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort_unstable();
        names
    };
    given.len() == first.len() && given != first && sorted(given) == sorted(first)
}

/// Names as the rest of the program knows them.
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
fn trim_blanks(field: &[u8]) -> &[u8] {
    let mut field = field;
    while let [b' ', rest @ ..] | [rest @ .., b' '] = field {
        field = rest;
    }
    field
}

/// A quoted field with doubled quotes, to be copied without them.
struct Doubled {
    input: u32,
    from: usize,
    to: usize,
}

/// Appends the rows of a block.
pub(crate) fn decode(
    lines: &Lines<'_>,
    layout: &Layout,
    block: &Block,
    marks: &mut Vec<u32>,
    batch: &mut Batch,
) -> Result<(), SampleError> {
    let text = block.text();
    let third = if layout.quotes { b'"' } else { b'\n' };
    find_marks(lines.isa, text, Marked::Bytes([layout.separator[0], b'\n', third]), marks);
    let mut rows = Rows { layout, text, marks, from: 0, mark: 0, lines: 1, doubled: Vec::new() };
    let mut fields = vec![Field::Missing; lines.encoder.input_columns().len()];
    for (input, value) in &layout.constants {
        fields[*input as usize] = value.as_deref().map_or(Field::Missing, Field::Text);
    }
    let mut line = block.first_line();
    while rows.from < text.len() {
        rows.lines = 1;
        if layout.comment.is_some_and(|comment| text[rows.from] == comment) {
            rows.skip_line();
        } else if let Some(len) =
            layout.header.as_ref().and_then(|header| header_len(&text[rows.from..], header))
        {
            rows.skip(len);
            lines.bad_rows.count_header();
        } else if let Err(error) =
            rows.next(&mut fields).and_then(|()| encode(lines, &rows, line, &fields, batch))
        {
            let RowError { column, expected, found } = error;
            let path = lines.path.to_path_buf();
            lines.bad_rows.reject(SampleError::BadRow { path, line, column, expected, found }, batch)?;
        }
        line += rows.lines;
    }
    Ok(())
}

/// The length, with its line feed, of a header at the start of a text, which may have a byte order mark before it: it was a file's.
#[inline]
fn header_len(text: &[u8], header: &[u8]) -> Option<usize> {
    // Most rows differ in the first byte.
    if text.first() != header.first() && text.first() != BYTE_ORDER_MARK.first() {
        return None;
    }
    let line = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text).strip_prefix(header)?;
    let rest = line.strip_prefix(b"\r").unwrap_or(line).strip_prefix(b"\n")?;
    Some(text.len() - rest.len())
}

struct RowError {
    column: String,
    expected: String,
    found: String,
}

fn encode(
    lines: &Lines<'_>,
    rows: &Rows<'_>,
    line: u64,
    fields: &[Field<'_>],
    batch: &mut Batch,
) -> Result<(), RowError> {
    let row_id = lines.row_id_base + line;
    let encoded = if rows.doubled.is_empty() {
        lines.encoder.encode_row(fields, row_id, batch)
    } else {
        let single = |doubled: &Doubled| undouble(&rows.text[doubled.from..doubled.to]);
        let copies: Vec<Vec<u8>> = rows.doubled.iter().map(single).collect();
        let mut fields = fields.to_vec();
        for (doubled, copy) in rows.doubled.iter().zip(&copies) {
            fields[doubled.input as usize] = Field::Text(copy);
        }
        lines.encoder.encode_row(&fields, row_id, batch)
    };
    encoded.map(|_fate| ()).map_err(|error| RowError {
        column: lines.encoder.input_columns().get(error.column).cloned().unwrap_or_default(),
        expected: error.expected,
        found: error.found,
    })
}

/// The inside of a quoted field with each doubled quote made single.
fn undouble(field: &[u8]) -> Vec<u8> {
    let mut single = Vec::with_capacity(field.len());
    let mut after_quote = false;
    for &byte in field {
        after_quote = byte == b'"' && !after_quote;
        if byte != b'"' || after_quote {
            single.push(byte);
        }
    }
    single
}

/// A walk over the lines of a block by the positions of separators, quotes and line feeds.
struct Rows<'a> {
    layout: &'a Layout,
    text: &'a [u8],
    marks: &'a [u32],
    /// Where the next line (within `next`: field) starts, and the first mark that is not before it.
    from: usize,
    mark: usize,
    /// Lines of the record at hand.
    lines: u64,
    doubled: Vec<Doubled>,
}

impl<'a> Rows<'a> {
    /// Moves behind the next line feed.
    fn skip_line(&mut self) {
        while self.text[self.marks[self.mark] as usize] != b'\n' {
            self.mark += 1;
        }
        self.from = self.marks[self.mark] as usize + 1;
        self.mark += 1;
    }

    /// Moves behind this many bytes, which are whole lines.
    #[cold]
    fn skip(&mut self, len: usize) {
        let end = self.from + len;
        self.lines = 0;
        while let Some(&mark) = self.marks.get(self.mark).filter(|&&mark| (mark as usize) < end) {
            self.lines += u64::from(self.text[mark as usize] == b'\n');
            self.mark += 1;
        }
        self.from = end;
    }

    /// Cuts the next record, moves behind it whatever is wrong with it, and puts the fields that the encoder reads in their places.
    #[inline]
    fn next(&mut self, fields: &mut [Field<'a>]) -> Result<(), RowError> {
        self.doubled.clear();
        let Layout { separator, quotes, inputs, .. } = self.layout;
        let (first, is_long) = (separator[0], separator.len() > 1);
        let line = self.from;
        let (mut column, mut wrong) = (0, None);
        loop {
            let at = self.marks[self.mark] as usize;
            self.mark += 1;
            let byte = self.text[at];
            if *quotes && byte == b'"' && byte != first {
                // A quote within a field is a character; one at its start encloses it.
                if trim_blanks(&self.text[self.from..at]).is_empty() {
                    match self.quoted(column, at + 1, fields) {
                        Ok(()) => column += 1,
                        // The field goes on to the next separator or line feed, as one without quotes.
                        Err(error) => _ = wrong.get_or_insert(error),
                    }
                    if self.from > line && self.text[self.from - 1] == b'\n' {
                        break;
                    }
                }
                continue;
            }
            // Within a separator, or its first byte alone.
            if is_long && byte != b'\n' && (at < self.from || !self.text[at..].starts_with(separator)) {
                continue;
            }
            let mut field = &self.text[self.from..at];
            if byte == b'\n' {
                field = field.strip_suffix(b"\r").unwrap_or(field);
            }
            if let Some(&input) = inputs.get(column)
                && input != UNUSED
            {
                fields[input as usize] = Field::Text(self.layout.trim(field));
            }
            column += 1;
            self.from = if byte == b'\n' { at + 1 } else { at + separator.len() };
            if byte == b'\n' {
                break;
            }
        }
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        // Where there is one column, an empty line is no missing value of it, however lines end.
        if column == inputs.len() && (column > 1 || !trim_line(&self.text[line..self.from - 1]).is_empty()) {
            return Ok(());
        }
        Err(self.wrong_width(line, column))
    }

    /// Reads a field whose opening quote is before `from`; `self.mark` is the mark behind that quote. After an error the cursor is
    /// behind the closing quote, or at the end of the text where there is none.
    fn quoted(&mut self, column: usize, from: usize, fields: &mut [Field<'a>]) -> Result<(), RowError> {
        let (text, layout) = (self.text, self.layout);
        let error = |expected: &str, found: &[u8]| RowError {
            column: layout.name_of(column),
            expected: expected.to_string(),
            found: quote(found),
        };
        let mut doubled = false;
        let mut mark = self.mark;
        let to = loop {
            let Some(at) = self.marks.get(mark).map(|&at| at as usize) else {
                let error = error(CLOSING, trim_line(&text[self.from..text.len() - 1]));
                (self.mark, self.from) = (mark, text.len());
                return Err(error);
            };
            match text[at] {
                b'\n' => {
                    self.lines += 1;
                    mark += 1;
                }
                b'"' if text.get(at + 1) == Some(&b'"') => {
                    doubled = true;
                    mark += 2;
                }
                b'"' => break at,
                _ => mark += 1,
            }
        };
        // The field ends at the next separator or line feed; a quote before that is an error anyway.
        let end = self.marks[mark + 1] as usize;
        let between = if text[end] == b'\n' { trim_line(&text[to + 1..end]) } else { &text[to + 1..end] };
        let is_end = text[end] == b'\n' || text[end..].starts_with(&layout.separator);
        if !is_end || !trim_blanks(between).is_empty() {
            let error = error(AFTER_QUOTE, trim_line(&text[to + 1..end + usize::from(!is_end)]));
            self.mark = mark + 1;
            return Err(error);
        }
        if let Some(&input) = self.layout.inputs.get(column)
            && input != UNUSED
        {
            fields[input as usize] = Field::Text(&text[from..to]);
            if doubled {
                self.doubled.push(Doubled { input, from, to });
            }
        }
        self.mark = mark + 2;
        self.from = if text[end] == b'\n' { end + 1 } else { end + layout.separator.len() };
        Ok(())
    }

    #[cold]
    fn wrong_width(&self, line: usize, columns: usize) -> RowError {
        let text = trim_line(&self.text[line..self.from - 1]);
        if text.is_empty() {
            let column = self.layout.name_of(0);
            return RowError { column, expected: "a row".to_string(), found: "an empty line".to_string() };
        }
        // The first column that is missing, or the first that is too many.
        let column = self.layout.name_of(columns.min(self.layout.inputs.len()));
        let expected = format!("{} columns", self.layout.inputs.len());
        RowError { column, expected, found: format!("{columns} in {}", quote(text)) }
    }
}

fn trim_line(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
#[path = "delimited_tests.rs"]
mod tests;
