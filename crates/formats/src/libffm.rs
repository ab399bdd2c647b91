//! libffm text, `label field:index:value ...`, into one column per feature of a batch.
//!
//! A feature reads the pairs of the fields that its columns name, or those of the whole line. Pairs of other fields
//! are checked and left out. As in [`crate::libsvm`], delimiters are located first; a plain line is read from their
//! positions, and any other line by [`careful_line`]. It knows no files.

use sanderling_sample::{Batch, SampleError, parse_f32, parse_u64, quote};

use crate::blocks::{Block, PAD_BYTES};
use crate::lines::{Lines, Scratch, each_window, index_at, value_at};

/// The error of a line: position of the token (the label is 1), expected text, found text.
type Wrong = (usize, &'static str, String);

const TRIPLE: &str = "field:index:value";
const IS_LIBSVM: &str = "field:index:value (index:value is libsvm: set format = \"libsvm\")";

/// Whether a token is `field:index:value`.
pub(crate) fn is_triple(token: &[u8]) -> bool {
    triple(token).is_some()
}

/// Parses `field:index:value`.
pub fn triple(token: &[u8]) -> Option<(u64, u64, f32)> {
    let mut parts = token.splitn(3, |&byte| byte == b':');
    let (field, index, value) = (parts.next()?, parts.next()?, parts.next()?);
    Some((parse_u64(field)?, parse_u64(index)?, parse_f32(value)?))
}

/// Appends the rows of a block.
pub(crate) fn decode(
    lines: &Lines<'_>,
    block: &Block,
    scratch: &mut Scratch,
    batch: &mut Batch,
) -> Result<(), SampleError> {
    if !lines.encoder.is_sparse() {
        let path = lines.path.display();
        return Err(SampleError::Settings(format!(
            "{path}: libffm input feeds features of type \"sparse\" with columns such as \"field_0\"; these features read others"
        )));
    }
    each_window(lines, block, scratch, |text, scratch, line| {
        decode_window(lines, text, &scratch.marks, line, batch)
    })
}

/// Reads whole lines and returns the number of the line after them.
fn decode_window(
    lines: &Lines<'_>,
    text: &[u8],
    marks: &[u32],
    first_line: u64,
    batch: &mut Batch,
) -> Result<u64, SampleError> {
    let encoder = lines.encoder;
    let (mut line, mut from, mut mark) = (first_line, 0, 0);
    while from + PAD_BYTES < text.len() {
        let (label, line_feed) = match plain_line(lines, text, marks, from, mark, batch) {
            Some((label, line_feed)) => (Ok(Some(label)), line_feed),
            None => {
                batch.abandon_row();
                let mut line_feed = mark;
                while text[marks[line_feed] as usize] != b'\n' {
                    line_feed += 1;
                }
                (careful_line(lines, &text[from..marks[line_feed] as usize], batch), line_feed)
            }
        };
        match label {
            // A comment.
            Ok(None) => {}
            Ok(Some(label)) => match encoder.keep(label, lines.row_id_base + line) {
                Some(weight) => batch.close_row(label, weight),
                None => batch.abandon_row(),
            },
            Err((token, expected, found)) => {
                batch.abandon_row();
                let (path, column, expected) =
                    (lines.path.to_path_buf(), token.to_string(), expected.to_string());
                lines.bad_rows.reject(SampleError::BadRow { path, line, column, expected, found }, batch)?;
            }
        }
        from = marks[line_feed] as usize + 1;
        mark = line_feed + 1;
        line += 1;
    }
    Ok(line)
}

/// Reads a line of single blanks and plain numbers from its marks; returns the label and the mark of its line feed.
/// `None`: the line is laid out otherwise, and the caller removes its keys.
#[inline]
fn plain_line(
    lines: &Lines<'_>,
    text: &[u8],
    marks: &[u32],
    from: usize,
    mark: usize,
    batch: &mut Batch,
) -> Option<(f32, usize)> {
    let (encoder, features) = (lines.encoder, lines.encoder.sparse_features());
    let mut end = *marks.get(mark)? as usize;
    let label = encoder.label_of_text(&text[from..end]).filter(|_| end > from)?;
    let mut at = mark + 1;
    while text[end] == b' ' {
        let &[first, second, stop] = marks.get(at..)?.first_chunk::<3>()?;
        let (first, second, stop) = (first as usize, second as usize, stop as usize);
        if text[first] != b':' || text[second] != b':' {
            return None;
        }
        let field = index_at(text, end + 1, first)?;
        let index = index_at(text, first + 1, second)?;
        let value = value_at(text, second + 1, stop)?;
        if let Some(feature) = features.of_field(field) {
            batch.columns[feature].push(encoder.sparse_key(feature, index), value);
        }
        end = stop;
        at += 3;
    }
    match &text[end..end + 2] {
        [b'\n', _] => Some((label, at - 1)),
        b"\r\n" => Some((label, at)),
        _ => None,
    }
}

/// Reads one line of any layout: blanks and tabs in any number, a carriage return at its end, a comment from a token
/// that starts with `#` on. Returns the label; `None` for a comment line.
#[cold]
fn careful_line(lines: &Lines<'_>, text: &[u8], batch: &mut Batch) -> Result<Option<f32>, Wrong> {
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    let mut tokens =
        text.split(|&byte| byte == b' ' || byte == b'\t').filter(|token| !token.is_empty()).peekable();
    let (encoder, features) = (lines.encoder, lines.encoder.sparse_features());
    let mut position = 1;
    let label = match tokens.peek() {
        None => return Err((1, "a row", "an empty line".to_string())),
        Some(token) if token.starts_with(b"#") => return Ok(None),
        // A line that starts with a triple has no label.
        Some(token) if token.contains(&b':') => encoder
            .label_of_text(b"")
            .ok_or_else(|| (1, "a label before the first field:index:value", quote(token)))?,
        Some(token) => {
            let label =
                encoder.label_of_text(token).ok_or_else(|| (1, "a label (a number)", quote(token)))?;
            tokens.next();
            position = 2;
            label
        }
    };
    for (token, position) in tokens.take_while(|token| !token.starts_with(b"#")).zip(position..) {
        let Some((field, index, value)) = triple(token) else {
            let colons = token.iter().filter(|&&byte| byte == b':').count();
            return Err((position, if colons == 1 { IS_LIBSVM } else { TRIPLE }, quote(token)));
        };
        if let Some(feature) = features.of_field(field) {
            batch.columns[feature].push(encoder.sparse_key(feature, index), value);
        }
    }
    Ok(Some(label))
}

#[cfg(test)]
mod tests;
