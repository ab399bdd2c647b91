//! Rows as libsvm, TSV and CSV text, written into preallocated buffers. It knows no thread and no file.

use super::truth::{FIRST_CATEGORICAL_ID, Generator, Row};
use super::{CATEGORICAL, NUMERIC};

/// Bytes that any number or token may be written past its end, before the next one overwrites them.
const SLACK_BYTES: usize = 16;
/// The longest `index:value ` of a numeric feature.
const NUMERIC_BYTES_MAX: usize = 16;
/// The longest `id:1 ` of a categorical one.
const VALUE_BYTES_MAX: usize = 14;
/// Hundredths of logarithms of 32-bit counts stay below this.
const HUNDREDTHS_END: u32 = 2304;

/// A buffer of text with its own end, so that writers may store whole words past it.
pub(super) struct Text {
    bytes: Vec<u8>,
    end: usize,
}

impl Text {
    pub(super) fn new() -> Self {
        Text { bytes: Vec::new(), end: 0 }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.end]
    }

    pub(super) fn clear(&mut self) {
        self.end = 0;
    }

    /// Reserves room for a row; afterwards only slice bounds are checked.
    #[inline]
    fn reserve(&mut self, bytes: usize) {
        if self.bytes.len() - self.end < bytes {
            self.bytes.resize((self.bytes.len() * 2).max(self.end + bytes), 0);
        }
    }

    /// Stores eight bytes and keeps the first `len`.
    #[inline]
    fn put(&mut self, word: u64, len: usize) {
        self.bytes[self.end..self.end + 8].copy_from_slice(&word.to_le_bytes());
        self.end += len;
    }

    #[inline]
    fn put_byte(&mut self, byte: u8) {
        self.bytes[self.end] = byte;
        self.end += 1;
    }

    #[inline]
    fn put_u32(&mut self, value: u32) {
        let low = if value < 100_000_000 {
            value
        } else {
            let high = value / 100_000_000;
            let (word, len) = short_digits(high);
            self.put(word, len);
            self.put(eight_digits(value % 100_000_000) | ZEROS, 8);
            return;
        };
        let (word, len) = short_digits(low);
        self.put(word, len);
    }

    /// Overwrites the separator that ends the row.
    fn end_row(&mut self) {
        self.bytes[self.end - 1] = b'\n';
    }
}

const ZEROS: u64 = u64::from_le_bytes(*b"00000000");

/// The eight decimal digits of a number below 10^8, most significant in the lowest byte, without `'0'` added:
/// all at once in the lanes of a word (Khuong 2017).
#[inline]
fn eight_digits(value: u32) -> u64 {
    let value = u64::from(value);
    let halves = (value / 10_000) | ((value % 10_000) << 32);
    let top = ((halves * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let pairs = top | ((halves - 100 * top) << 16);
    let tens = ((pairs * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | ((pairs - 10 * tens) << 8)
}

/// A number below 10^8 as text without leading zeros: the bytes and how many count.
#[inline]
fn short_digits(value: u32) -> (u64, usize) {
    let digits = eight_digits(value);
    let leading = ((digits | 1 << 56).trailing_zeros() / 8) as usize;
    ((digits | ZEROS) >> (8 * leading), 8 - leading)
}

/// The eight hexadecimal digits of `value` as text.
#[inline]
pub(super) fn hex_digits(value: u32) -> u64 {
    let mut word = u64::from(value.swap_bytes());
    word = (word | word << 16) & 0x0000_ffff_0000_ffff;
    word = (word | word << 8) & 0x00ff_00ff_00ff_00ff;
    // Each byte goes to two: its high nibble first.
    word = ((word >> 4) & 0x000f_000f_000f_000f) | ((word & 0x000f_000f_000f_000f) << 8);
    let letters = ((word + 0x0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101;
    word + ZEROS + letters * u64::from(b'a' - b'0' - 10)
}

/// The 32-bit token of a categorical id: a bijection, so that distinct ids stay distinct.
#[inline]
pub(super) fn token(id: u32) -> u32 {
    let mut x = id;
    x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

/// The text layout of a row.
#[derive(Clone, Copy)]
pub(super) enum Layout {
    /// `label index:value ...`
    Libsvm,
    /// Criteo's columns with this separator.
    Columns(u8),
}

pub(super) struct TextWriter {
    layout: Layout,
    row_bytes_max: usize,
    /// `d.dd ` for every number of hundredths.
    decimals: Vec<(u64, usize)>,
}

impl TextWriter {
    pub(super) fn new(layout: Layout, generator: &Generator) -> Self {
        let row_bytes_max =
            2 + NUMERIC * NUMERIC_BYTES_MAX + generator.values_max() * VALUE_BYTES_MAX + SLACK_BYTES;
        TextWriter { layout, row_bytes_max, decimals: (0..HUNDREDTHS_END).map(decimal).collect() }
    }

    /// The line above the rows, if the layout has one.
    pub(super) fn header(&self) -> String {
        match self.layout {
            Layout::Columns(b',') => super::column_names().join(",") + "\n",
            _ => String::new(),
        }
    }

    #[inline]
    pub(super) fn write(&self, row: &Row, text: &mut Text) {
        text.reserve(self.row_bytes_max);
        text.put_byte(b'0' + u8::from(row.label()));
        match self.layout {
            Layout::Libsvm => self.write_libsvm(row, text),
            Layout::Columns(separator) => write_columns(row, separator, text),
        }
        text.end_row();
    }

    #[inline]
    fn write_libsvm(&self, row: &Row, text: &mut Text) {
        const ONE: u64 = u64::from_le_bytes(*b":1 \0\0\0\0\0");
        text.put_byte(b' ');
        for index in 0..NUMERIC {
            match row.count(index) {
                Some(_) => {
                    text.put_u32(index as u32 + 1);
                    text.put_byte(b':');
                    let (word, len) = self.decimals[row.log_hundredths(index) as usize];
                    text.put(word, len);
                }
                None => {
                    text.put_u32((NUMERIC + index) as u32 + 1);
                    text.put(ONE, 3);
                }
            }
        }
        for index in 0..CATEGORICAL {
            for &id in row.ids(index) {
                debug_assert!(id >= FIRST_CATEGORICAL_ID);
                text.put_u32(id);
                text.put(ONE, 3);
            }
        }
    }
}

#[inline]
fn write_columns(row: &Row, separator: u8, text: &mut Text) {
    text.put_byte(separator);
    for index in 0..NUMERIC {
        if let Some(count) = row.count(index) {
            text.put_u32(count);
        }
        text.put_byte(separator);
    }
    for index in 0..CATEGORICAL {
        for &id in row.ids(index) {
            text.put(hex_digits(token(id)), 8);
            text.put_byte(b'|');
        }
        // Every row has a value of every categorical feature, so there is a bar to replace.
        text.end -= 1;
        text.put_byte(separator);
    }
}

/// Hundredths as the shortest decimal, followed by a space: at most `23.03 `.
fn decimal(hundredths: u32) -> (u64, usize) {
    let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    let text = format!("{} ", text.trim_end_matches('0').trim_end_matches('.'));
    let mut bytes = [0u8; 8];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    (u64::from_le_bytes(bytes), text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_the_standard_library_writes_them() {
        let edges = [0, 9, 10, 99, 100, 12_345, 9_999_999, 99_999_999, 100_000_000, 1_000_000_007, u32::MAX];
        for value in
            edges.into_iter().chain((0..200_000).map(|i: u32| i.wrapping_mul(0x9e37_79b9) >> (i % 31)))
        {
            let mut text = Text::new();
            text.reserve(64);
            text.put_u32(value);
            assert_eq!(text.as_bytes(), value.to_string().as_bytes());
            assert_eq!(hex_digits(value).to_le_bytes(), *format!("{value:08x}").as_bytes());
        }
        for (hundredths, expected) in [(0, "0 "), (10, "0.1 "), (179, "1.79 "), (200, "2 "), (2303, "23.03 ")]
        {
            let (word, len) = decimal(hundredths);
            assert_eq!(&word.to_le_bytes()[..len], expected.as_bytes());
        }
    }
}
