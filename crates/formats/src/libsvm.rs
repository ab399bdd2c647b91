//! libsvm text, `label index:value index:value ...`, into the only column of a batch, at memory speed.
//!
//! The delimiters of some kilobytes are located first ([`crate::scan`]); a plain line (single blanks, only
//! `index:value`) is then read token by token from their positions. Any other line goes to [`careful_line`], which
//! handles tabs, comments, `qid:` and errors. It knows no files: its input is a block of lines and their numbers.

// For the entry into code that is compiled for more than the baseline instruction set.
#![allow(unsafe_code)]

use sanderling_sample::{Batch, SampleError, SparseFeatures, VALUE_ABS_MAX, parse_f32, parse_u64, quote};

use crate::blocks::{Block, PAD_BYTES};
use crate::libffm;
use crate::lines::{Lines, Scratch, each_window, index_at, value_at};
use crate::scan::Isa;
use crate::tokens::{Tokens, UNDECIDED};

/// The error text of a libffm line.
const IS_LIBFFM: &str = "index:value (field:index:value is libffm: set format = \"libffm\")";

/// The output columns, extended in advance, so that no field pays for growth.
struct Sink<'a> {
    keys: &'a mut [u64],
    values: &'a mut [f32],
    /// Keys in use.
    used: usize,
    offsets: &'a mut Vec<u32>,
    labels: &'a mut Vec<f32>,
    weights: &'a mut Vec<f32>,
}

impl Sink<'_> {
    #[inline(always)]
    fn close_row(&mut self, label: f32, weight: f32) {
        self.labels.push(label);
        self.weights.push(weight);
        self.offsets.push(self.used as u32);
    }
}

/// The error of a line.
#[derive(Debug, PartialEq)]
struct LineError {
    /// Position of the token, the label being 1.
    token: usize,
    expected: &'static str,
    found: String,
}

/// Appends the rows of a block to a batch of one weighted column.
pub(crate) fn decode(
    lines: &Lines<'_>,
    block: &Block,
    scratch: &mut Scratch,
    batch: &mut Batch,
) -> Result<(), SampleError> {
    let reads_lines = matches!(lines.encoder.sparse_features(), SparseFeatures::WholeLine);
    if batch.columns.len() != 1
        || !batch.columns[0].is_weighted()
        || !lines.encoder.is_sparse()
        || !reads_lines
    {
        let path = lines.path.display();
        let what = if reads_lines { "columns" } else { "fields, which libffm text has" };
        return Err(SampleError::Settings(format!(
            "{path}: libsvm input feeds one feature of type \"sparse\"; the features here read {what}"
        )));
    }
    each_window(lines, block, scratch, |text, scratch, line| decode_window(lines, text, scratch, line, batch))
}

fn decode_window(
    lines: &Lines<'_>,
    text: &[u8],
    scratch: &mut Scratch,
    first_line: u64,
    batch: &mut Batch,
) -> Result<u64, SampleError> {
    // Every field ends two tokens. The last mark is a line feed; two more of it spare the loop a look ahead.
    let Scratch { marks, tokens } = scratch;
    let fields_max = marks.len() / 2;
    let last = text.len() - PAD_BYTES - 1;
    marks.extend([last as u32; 2]);
    let Batch { labels, weights, columns } = batch;
    let column = &mut columns[0];
    let used = column.keys.len();
    column.keys.resize(used + fields_max, 0);
    column.values.resize(used + fields_max, 0.0);
    let mut sink = Sink {
        keys: &mut column.keys,
        values: &mut column.values,
        used,
        offsets: &mut column.offsets,
        labels,
        weights,
    };
    let result = if lines.encoder.libsvm_is_raw() {
        dispatch::<true>(lines, text, marks, tokens, first_line, &mut sink)
    } else {
        dispatch::<false>(lines, text, marks, tokens, first_line, &mut sink)
    };
    let used = sink.used;
    column.keys.truncate(used);
    column.values.truncate(used);
    result
}

fn dispatch<const RAW: bool>(
    lines: &Lines<'_>,
    text: &[u8],
    marks: &[u32],
    tokens: &mut Tokens,
    first_line: u64,
    sink: &mut Sink<'_>,
) -> Result<u64, SampleError> {
    match lines.isa {
        // SAFETY: `Decoder::with_isa` has made sure that the machine has what the `Isa` promises, these included.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe {
            tokens.read_avx512(text, marks);
            parse_with_bmi::<RAW, true>(lines, text, marks, tokens, first_line, sink)
        },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { parse_with_bmi::<RAW, false>(lines, text, marks, tokens, first_line, sink) },
        _ => parse::<RAW, false>(lines, text, marks, tokens, first_line, sink),
    }
}

/// Parses with three-operand shifts and single-instruction counts of trailing zeros.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn parse_with_bmi<const RAW: bool, const AHEAD: bool>(
    lines: &Lines<'_>,
    text: &[u8],
    marks: &[u32],
    tokens: &Tokens,
    first_line: u64,
    sink: &mut Sink<'_>,
) -> Result<u64, SampleError> {
    parse::<RAW, AHEAD>(lines, text, marks, tokens, first_line, sink)
}

/// Reads whole lines and returns the number of the line after them. `AHEAD`: the tokens were read in advance.
#[inline(always)]
fn parse<const RAW: bool, const AHEAD: bool>(
    lines: &Lines<'_>,
    text: &[u8],
    marks: &[u32],
    tokens: &Tokens,
    first_line: u64,
    sink: &mut Sink<'_>,
) -> Result<u64, SampleError> {
    let encoder = lines.encoder;
    let common = [b"0" as &[u8], b"1", b"-1", b"+1"].map(|label| encoder.label_of_text(label));
    let key = |index: u64| if RAW { index } else { encoder.libsvm_key(index) };
    let (integers, decimals) = (&tokens.integers[..], &tokens.decimals[..]);
    let mut line = first_line;
    // Start of the line in `text`, and its first mark.
    let (mut from, mut mark) = (0, 0);
    while from + PAD_BYTES < text.len() {
        let start = sink.used;
        // The label and the mark of the line feed, or None where the line is not plain.
        let plain = 'plain: {
            let Some(&stop) = marks.get(mark) else { break 'plain None };
            let mut end = stop as usize;
            let label = match &text[from..end] {
                b"0" => common[0],
                b"1" => common[1],
                b"-1" => common[2],
                b"+1" => common[3],
                _ => None,
            };
            let Some(label) = label else { break 'plain None };
            let mut at = mark + 1;
            // Locals, so that they stay in registers.
            let (keys, values, mut used) = (&mut *sink.keys, &mut *sink.values, start);
            loop {
                // `end` is where the last token ended and `at` the first mark behind it.
                if text[end] != b' ' {
                    break;
                }
                let Some(&[colon, stop]) = marks.get(at..).and_then(<[u32]>::first_chunk::<2>) else {
                    break 'plain None;
                };
                let (colon, stop) = (colon as usize, stop as usize);
                if text[colon] != b':' {
                    // An extra blank, perhaps before the line's end, or a token that is no pair.
                    if colon != end + 1 {
                        break 'plain None;
                    }
                    end = colon;
                    at += 1;
                    continue;
                }
                let (mut index, mut value) = (UNDECIDED, f32::NAN);
                if AHEAD {
                    (index, value) = (integers[at], decimals[at + 1]);
                }
                if index == UNDECIDED {
                    let Some(exact) = index_at(text, end + 1, colon) else { break 'plain None };
                    index = exact;
                }
                if value.is_nan() {
                    let Some(exact) = value_at(text, colon + 1, stop) else { break 'plain None };
                    value = exact;
                }
                keys[used] = key(index);
                values[used] = value;
                used += 1;
                end = stop;
                at += 2;
            }
            sink.used = used;
            match &text[end..end + 2] {
                [b'\n', _] => Some((label, at - 1)),
                b"\r\n" => Some((label, at)),
                _ => None,
            }
        };
        if let Some((label, line_feed)) = plain {
            match encoder.keep(label, lines.row_id_base + line) {
                Some(weight) => sink.close_row(label, weight),
                None => sink.used = start,
            }
            from = marks[line_feed] as usize + 1;
            mark = line_feed + 1;
        } else {
            sink.used = start;
            while text[marks[mark] as usize] != b'\n' {
                mark += 1;
            }
            let end = marks[mark] as usize;
            parse_carefully(lines, &text[from..end], line, sink)?;
            from = end + 1;
            mark += 1;
        }
        line += 1;
    }
    Ok(line)
}

#[cold]
#[inline(never)]
fn parse_carefully(
    lines: &Lines<'_>,
    text: &[u8],
    line: u64,
    sink: &mut Sink<'_>,
) -> Result<(), SampleError> {
    let start = sink.used;
    let push = |index, value| {
        sink.keys[sink.used] = lines.encoder.libsvm_key(index);
        sink.values[sink.used] = value;
        sink.used += 1;
    };
    match careful_line(text, |label| lines.encoder.label_of_text(label), push) {
        Ok(None) => {}
        Ok(Some(label)) => match lines.encoder.keep(label, lines.row_id_base + line) {
            Some(weight) => sink.close_row(label, weight),
            None => sink.used = start,
        },
        Err(LineError { token, expected, found }) => {
            sink.used = start;
            let path = lines.path.to_path_buf();
            let (column, expected) = (token.to_string(), expected.to_string());
            if lines.bad_rows.take(SampleError::BadRow { path, line, column, expected, found })? {
                sink.close_row(f32::NAN, f32::NAN);
            }
        }
    }
    Ok(())
}

/// Reads one line of any layout: blanks and tabs in any number, a carriage return at its end, a comment from a token
/// that starts with `#` on, and `qid:n` (the query of SVMrank, which no model here uses). `label_of` reads the
/// label's text, which is empty for a line that starts with a pair. Returns the label; `None` for a comment line.
fn careful_line(
    text: &[u8],
    label_of: impl Fn(&[u8]) -> Option<f32>,
    mut push: impl FnMut(u64, f32),
) -> Result<Option<f32>, LineError> {
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    let mut tokens =
        text.split(|&byte| byte == b' ' || byte == b'\t').filter(|token| !token.is_empty()).peekable();
    let wrong = |token, expected, found: &[u8]| LineError { token, expected, found: quote(found) };
    let mut position = 1;
    let label = match tokens.peek() {
        None => return Err(LineError { token: 1, expected: "a row", found: "an empty line".to_string() }),
        Some(token) if token.starts_with(b"#") => return Ok(None),
        Some(token) if token.contains(&b':') => {
            label_of(b"").ok_or_else(|| wrong(1, "a label before the first index:value", token))?
        }
        Some(token) => {
            let label = label_of(token).ok_or_else(|| wrong(1, "a label (a number)", token))?;
            tokens.next();
            position = 2;
            label
        }
    };
    for token in tokens {
        if token.starts_with(b"#") {
            break;
        }
        let Some(colon) = token.iter().position(|&byte| byte == b':') else {
            return Err(wrong(position, "index:value", token));
        };
        let (index, value) = (&token[..colon], &token[colon + 1..]);
        if index == b"qid" {
            parse_u64(value).ok_or_else(|| wrong(position, "qid: and an unsigned integer", token))?;
        } else {
            let index = parse_u64(index)
                .ok_or_else(|| wrong(position, "an unsigned integer of 64 bits before the colon", token))?;
            let value = parse_f32(value).ok_or_else(|| {
                let is_libffm = libffm::is_triple(token);
                wrong(position, if is_libffm { IS_LIBFFM } else { "a finite number after the colon" }, token)
            })?;
            if value.abs() >= VALUE_ABS_MAX {
                return Err(wrong(position, "a number below 1e15 in size after the colon", token));
            }
            push(index, value);
        }
        position += 1;
    }
    Ok(Some(label))
}

#[cfg(test)]
mod tests;
