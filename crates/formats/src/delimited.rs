//! CSV, TSV and Criteo TSV: lines cut into fields where they lie, and the fields given to the encoder.
//!
//! Quotes (CSV only) enclose a whole field, are doubled inside, and may hold separators and line feeds (RFC 4180). A
//! repeated header, as in concatenated files, is skipped and counted. It knows no files beyond the order of their
//! columns.

mod layout;

use layout::{AFTER_QUOTE, CLOSING, UNUSED, trim_blanks, trim_line};
use sanderling_sample::{Batch, Field, SampleError, quote};

use crate::blocks::{BYTE_ORDER_MARK, Block};
use crate::lines::Lines;
use crate::scan::{Marked, find_marks};
pub(crate) use layout::Layout;
pub use layout::{end_of_field, separator_of};

/// A quoted field with doubled quotes, which has to be copied without them.
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

/// The length, line feed included, of a header at the start of a text; a byte order mark may come before it.
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
    /// The start of the next line (in `next`: field), and the first mark that is not before it.
    from: usize,
    mark: usize,
    /// Lines of the current record.
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

    /// Cuts the next record, moves behind it even on an error, and stores the fields that the encoder reads.
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
                        // The field extends to the next separator or line feed, like one without quotes.
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
        // In a file of one column an empty line is not a missing value, whatever its line ending.
        if column == inputs.len() && (column > 1 || !trim_line(&self.text[line..self.from - 1]).is_empty()) {
            return Ok(());
        }
        Err(self.wrong_width(line, column))
    }

    /// Reads a field whose opening quote is before `from`; `self.mark` is the mark behind that quote. After an error
    /// the cursor is behind the closing quote, or at the end of the text if there is none.
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
        // The first missing or surplus column.
        let column = self.layout.name_of(columns.min(self.layout.inputs.len()));
        let expected = format!("{} columns", self.layout.inputs.len());
        RowError { column, expected, found: format!("{columns} in {}", quote(text)) }
    }
}

#[cfg(test)]
mod tests;
