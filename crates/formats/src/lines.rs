//! Lines of sparse text (libsvm, libffm): windows of a block whose delimiters are located, and the numbers between
//! them. Knows no layout of a line.

use std::path::Path;

use sanderling_sample::{Encoder, SampleError, VALUE_ABS_MAX, parse_f32, parse_u64, short_f32, short_u64};

use crate::bad_rows::BadRows;
use crate::blocks::{Block, PAD_BYTES};
use crate::scan::{Isa, Marked, find_marks};
use crate::tokens::Tokens;

/// Delimiters are located this far ahead, so that text and positions stay in the first-level cache.
pub(crate) const WINDOW_BYTES: usize = 8 << 10;

/// The context of a block's lines.
pub(crate) struct Lines<'a> {
    pub(crate) encoder: &'a Encoder,
    pub(crate) bad_rows: &'a BadRows,
    pub(crate) path: &'a Path,
    /// Added to a line's number to make its row id.
    pub(crate) row_id_base: u64,
    pub(crate) isa: Isa,
}

/// Memory that decoding reuses from block to block.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Positions of delimiters.
    pub(crate) marks: Vec<u32>,
    pub(crate) tokens: Tokens,
}

/// Calls `decode` for each window of a block: with its text and padding, its marks in the scratch memory, and the number
/// of its first line. `decode` returns the number of the line after the window.
pub(crate) fn each_window(
    lines: &Lines<'_>,
    block: &Block,
    scratch: &mut Scratch,
    mut decode: impl FnMut(&[u8], &mut Scratch, u64) -> Result<u64, SampleError>,
) -> Result<(), SampleError> {
    let padded = block.padded();
    let (mut from, end) = (0, block.text().len());
    let mut line = block.first_line();
    while from < end {
        let to = window_end(&padded[..end], from);
        find_marks(lines.isa, &padded[from..to], Marked::Libsvm, &mut scratch.marks);
        line = decode(&padded[from..to + PAD_BYTES], scratch, line)?;
        from = to;
    }
    Ok(())
}

/// The end of the last line within a window from `from` on, or of the first line if that is longer.
fn window_end(text: &[u8], from: usize) -> usize {
    let window = &text[from..text.len().min(from + WINDOW_BYTES)];
    match window.iter().rposition(|&byte| byte == b'\n') {
        Some(at) => from + at + 1,
        None => {
            let rest = &text[from + window.len()..];
            let more = rest.iter().position(|&byte| byte == b'\n').map_or(rest.len(), |at| at + 1);
            from + window.len() + more
        }
    }
}

/// Eight bytes from `at` on.
#[inline(always)]
fn load(text: &[u8], at: usize) -> u64 {
    // The padding makes this always succeed; an out-of-place 0 would not be a digit.
    text.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[inline(always)]
pub(crate) fn index_at(text: &[u8], from: usize, to: usize) -> Option<u64> {
    let len = to.wrapping_sub(from);
    if len.wrapping_sub(1) < 8 { short_u64(load(text, from), len) } else { long_u64(text, from, to) }
}

#[inline(always)]
pub(crate) fn value_at(text: &[u8], from: usize, to: usize) -> Option<f32> {
    let len = to.wrapping_sub(from);
    if len == 1 {
        let digit = text[from].wrapping_sub(b'0');
        return if digit <= 9 { Some(f32::from(digit)) } else { None };
    }
    if len.wrapping_sub(2) < 7
        && let Some(value) = short_f32(load(text, from), len)
    {
        return Some(value);
    }
    long_f32(text, from, to)
}

#[inline(never)]
fn long_u64(text: &[u8], from: usize, to: usize) -> Option<u64> {
    parse_u64(text.get(from..to)?)
}

#[inline(never)]
fn long_f32(text: &[u8], from: usize, to: usize) -> Option<f32> {
    parse_f32(text.get(from..to)?).filter(|value| value.abs() < VALUE_ABS_MAX)
}
