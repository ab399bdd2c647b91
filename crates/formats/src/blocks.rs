//! A text stream cut into blocks of whole lines, or of whole records if quotes may hold line feeds: the unit of work
//! of the text readers. Refuses input whose first bytes are no text. Knows no format.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use sanderling_sample::{SampleError, quote};

use crate::input;
use crate::not_text::{self, START_BYTES_MAX};
use crate::quotes::{Quotes, Records};
use crate::scan::{Isa, count_newlines};

/// A block holds about this many bytes of text; more only where a single line is longer.
pub const BLOCK_BYTES: usize = 256 << 10;

/// A longer line or record ends the run; memory stays bounded.
pub const LINE_BYTES_MAX: usize = 4 << 20;

/// Readable bytes after the text of a block, so that wide loads at its end stay inside.
pub(crate) const PAD_BYTES: usize = 64;

/// The byte order mark that some editors write before UTF-8; not part of the first line.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Whole lines (records) of text, each with its line feed (added to a last line that lacks it).
#[derive(Clone, Default)]
pub struct Block {
    /// The text, then at least `PAD_BYTES` of arbitrary bytes.
    buffer: Vec<u8>,
    len: usize,
    first_line: u64,
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("first_line", &self.first_line).field("bytes", &self.len).finish()
    }
}

impl Block {
    /// A block of a text in memory, whose first line has this number (the first of a file is 1).
    #[must_use]
    pub fn of_text(text: &[u8], first_line: u64) -> Block {
        let mut buffer = text.to_vec();
        if buffer.last().is_some_and(|&byte| byte != b'\n') {
            buffer.push(b'\n');
        }
        let len = buffer.len();
        buffer.resize(len + PAD_BYTES, 0);
        Block { buffer, len, first_line }
    }

    /// The lines.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    /// The lines and the readable bytes behind them.
    pub(crate) fn padded(&self) -> &[u8] {
        &self.buffer[..self.len + PAD_BYTES]
    }

    /// Number of the first line in its file; a file starts with 1.
    #[must_use]
    pub fn first_line(&self) -> u64 {
        self.first_line
    }
}

/// Cuts a stream into blocks. Empty lines at the end of the stream are not lines.
pub struct LineBlocks {
    stream: Box<dyn Read + Send>,
    path: PathBuf,
    /// Bytes that were read but belong to the next block.
    carry: Vec<u8>,
    next_line: u64,
    /// Whether the start has been looked at.
    has_begun: bool,
    at_end: bool,
    block_bytes: usize,
    isa: Isa,
    /// The rules of quotes that may hold line feeds, if any.
    quotes: Option<Quotes>,
    /// Reused memory for positions.
    marks: Vec<u32>,
}

impl LineBlocks {
    /// Cuts `stream`; `path` names it in errors.
    pub fn new(stream: Box<dyn Read + Send>, path: &Path) -> LineBlocks {
        let (path, carry, block_bytes, isa) = (path.to_path_buf(), Vec::new(), BLOCK_BYTES, Isa::detect());
        LineBlocks {
            stream,
            path,
            carry,
            next_line: 1,
            has_begun: false,
            at_end: false,
            block_bytes,
            isa,
            quotes: None,
            marks: Vec::new(),
        }
    }

    /// Sets the approximate size of a block.
    pub(crate) fn with_block_bytes(self, block_bytes: usize) -> LineBlocks {
        LineBlocks { block_bytes, ..self }
    }

    /// Lets quotes hold line feeds from here on: a line is a record.
    pub fn set_quotes(&mut self, quotes: Quotes) {
        self.quotes = Some(quotes);
    }

    /// Shows about one block of the bytes ahead without taking them, up to the last whole line.
    pub fn peek_start(&mut self) -> Result<&[u8], SampleError> {
        self.peek_line()?;
        let last = self.carry.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        Ok(if self.at_end { &self.carry } else { &self.carry[..last] })
    }

    pub(crate) fn next_line(&self) -> u64 {
        self.next_line
    }

    /// Shows the next line, with its line feed if it has one, without taking it; `None` at the end.
    pub(crate) fn peek_line(&mut self) -> Result<Option<&[u8]>, SampleError> {
        loop {
            let Records { end, open } = match &self.quotes {
                Some(quotes) => quotes.first_end(&self.carry),
                None => {
                    let line_feed = self.carry.iter().position(|&byte| byte == b'\n');
                    Records { end: line_feed.map_or(0, |at| at + 1), open: None }
                }
            };
            let len = if end > 0 { end } else { self.carry.len() };
            if len > LINE_BYTES_MAX {
                return Err(match open {
                    Some(open) => self.not_closed(&self.carry, 0, open),
                    None => self.line_too_long(&self.carry),
                });
            }
            if end > 0 || self.at_end {
                return Ok((len > 0).then_some(&self.carry[..len]));
            }
            let mut filled = self.carry.len();
            let target = filled + self.block_bytes;
            let mut buffer = std::mem::take(&mut self.carry);
            let read = self.fill(&mut buffer, &mut filled, target);
            buffer.truncate(filled);
            self.carry = buffer;
            read?;
        }
    }

    /// Takes the line that [`LineBlocks::peek_line`] showed.
    pub(crate) fn skip_line(&mut self) -> Result<(), SampleError> {
        let line = self.peek_line()?.unwrap_or_default();
        let ends_without_line_feed = line.last().is_some_and(|&byte| byte != b'\n');
        let (len, lines) =
            (line.len(), count_newlines(Isa::Scalar, line) + usize::from(ends_without_line_feed));
        self.carry.drain(..len);
        self.next_line += lines as u64;
        Ok(())
    }

    /// Replaces the block with the next lines; `false` at the end. Reuses the block's buffer.
    pub fn next_block(&mut self, block: &mut Block) -> Result<bool, SampleError> {
        let mut buffer = std::mem::take(&mut block.buffer);
        block.len = 0;
        let mut filled = self.carry.len();
        if buffer.len() < filled + PAD_BYTES {
            buffer.resize(filled + PAD_BYTES, 0);
        }
        buffer[..filled].copy_from_slice(&self.carry);
        self.carry.clear();
        let mut target = self.block_bytes.max(filled);
        let (end, is_last) = loop {
            self.fill(&mut buffer, &mut filled, target)?;
            if self.at_end && filled > 0 && buffer[filled - 1] != b'\n' {
                buffer[filled] = b'\n';
                filled += 1;
            }
            let Records { end: mut last, mut open } = self.records(&buffer[..filled]);
            if let Some(quote) = open.filter(|_| self.at_end)
                && last_line_starts_before(&buffer[..filled], quote)
            {
                // The quote swallows no other line: it is one bad row.
                (last, open) = (filled, None);
            }
            let end = without_empty_lines(&buffer[..last]);
            let is_last = self.at_end && open.is_none();
            if end > 0 || is_last {
                break (end, is_last);
            }
            if filled > LINE_BYTES_MAX || self.at_end {
                match open {
                    Some(open) if last == 0 || self.at_end => {
                        return Err(self.not_closed(&buffer[..filled], last, open));
                    }
                    _ if last == 0 => return Err(self.line_too_long(&buffer[..filled])),
                    // Only empty lines, and too many to hold back.
                    _ => break (last, false),
                }
            }
            target = (2 * target).min(LINE_BYTES_MAX + 1);
        };
        if !is_last {
            self.carry.extend_from_slice(&buffer[end..filled]);
        }
        *block = Block { buffer, len: end, first_line: self.next_line };
        self.next_line += count_newlines(self.isa, block.text()) as u64;
        Ok(end > 0)
    }

    /// Reads until `filled` reaches `target` or the stream ends. Leaves room for a line feed and the padding, and
    /// drops a byte order mark at the start.
    fn fill(&mut self, buffer: &mut Vec<u8>, filled: &mut usize, target: usize) -> Result<(), SampleError> {
        if !self.has_begun {
            self.has_begun = true;
            let mark = BYTE_ORDER_MARK.len();
            let read = self.fill(buffer, filled, target.max(START_BYTES_MAX));
            not_text::refuse(&buffer[..*filled], &self.path)?;
            if buffer[..*filled].starts_with(BYTE_ORDER_MARK) {
                buffer.copy_within(mark..*filled, 0);
                *filled -= mark;
            }
            read?;
        }
        if buffer.len() < target + 1 + PAD_BYTES {
            buffer.resize(target + 1 + PAD_BYTES, 0);
        }
        let read = input::fill(&mut *self.stream, &mut buffer[..target], filled, &mut self.at_end);
        read.map_err(|error| {
            // The rows of the block are lost, but its lines are counted.
            let lines = self.next_line - 1 + count_newlines(self.isa, &buffer[..*filled]) as u64;
            input::cut_short(&self.path, "line", lines, &error)
        })
    }

    /// Finds the end of the records of a text.
    fn records(&mut self, text: &[u8]) -> Records {
        match &self.quotes {
            Some(quotes) => quotes.last_end(self.isa, text, &mut self.marks),
            None => {
                let line_feed = text.iter().rposition(|&byte| byte == b'\n');
                Records { end: line_feed.map_or(0, |at| at + 1), open: None }
            }
        }
    }

    /// The error of a quote that is never closed. It ends the run, since no row behind it can be told from quoted
    /// text.
    fn not_closed(&self, text: &[u8], record: usize, open: usize) -> SampleError {
        let separator = self.quotes.as_ref().map_or(&b","[..], |quotes| &quotes.separator);
        let column = self.quotes.as_ref().map_or(1, |quotes| quotes.column(text, record, open));
        SampleError::BadRow {
            path: self.path.clone(),
            line: self.next_line + count_newlines(self.isa, &text[..open]) as u64,
            column: column.to_string(),
            expected: format!(
                "a closing quote within {LINE_BYTES_MAX} bytes (are quotes plain text? format = \"tsv\", separator = \"{}\")",
                separator.escape_ascii()
            ),
            found: "none".to_string(),
        }
    }

    fn line_too_long(&self, start: &[u8]) -> SampleError {
        SampleError::BadRow {
            path: self.path.clone(),
            line: self.next_line,
            column: "1".to_string(),
            expected: format!("a line of at most {LINE_BYTES_MAX} bytes (is this a text file?)"),
            found: format!("a longer one that starts with {}", quote(start)),
        }
    }
}

/// Whether the last line of a text of whole lines starts at or before this place.
fn last_line_starts_before(text: &[u8], at: usize) -> bool {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    text.iter().rposition(|&byte| byte == b'\n').is_none_or(|line_feed| line_feed < at)
}

/// The length of a text of whole lines without the empty lines at its end.
fn without_empty_lines(text: &[u8]) -> usize {
    let mut text = text;
    loop {
        text = match text {
            b"\n" | b"\r\n" => return 0,
            [rest @ .., b'\n', b'\n'] => &text[..rest.len() + 1],
            [rest @ .., b'\n', b'\r', b'\n'] => &text[..rest.len() + 1],
            _ => return text.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io;

    /// A stream that yields a few bytes at a time.
    struct Trickle(Vec<u8>, usize);

    impl Read for Trickle {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(buffer.len()).min(self.0.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0.drain(..count);
            Ok(count)
        }
    }

    fn read(
        text: &[u8],
        step: usize,
        skip: usize,
        block_bytes: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>, SampleError> {
        let mut blocks = LineBlocks::new(Box::new(Trickle(text.to_vec(), step)), Path::new("x"))
            .with_block_bytes(block_bytes);
        for _ in 0..skip {
            blocks.skip_line()?;
        }
        let (mut block, mut lines) = (Block::default(), Vec::new());
        while blocks.next_block(&mut block)? {
            let text = block.text().strip_suffix(b"\n").unwrap();
            let numbered = (block.first_line()..).zip(text.split(|&byte| byte == b'\n'));
            lines.extend(numbered.map(|(line, text)| (line, text.to_vec())));
            assert!(block.padded().len() >= block.text().len() + PAD_BYTES);
        }
        Ok(lines)
    }

    fn expected(text: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut lines: Vec<_> = (1..).zip(text.split(|&byte| byte == b'\n').map(<[u8]>::to_vec)).collect();
        while lines.last().is_some_and(|(_, line)| line.is_empty() || line == b"\r") {
            lines.pop();
        }
        lines
    }

    #[test]
    fn lines_longer_than_a_block_pass_and_endless_ones_do_not() {
        let mut text = vec![b'a'; 3 * BLOCK_BYTES];
        text.extend_from_slice(b"\nb\n\n\r\n");
        assert_eq!(read(&text, 1 << 20, 0, BLOCK_BYTES).unwrap(), expected(&text));
        let error = read(&vec![b'a'; LINE_BYTES_MAX + 2], 1 << 20, 0, BLOCK_BYTES).unwrap_err().to_string();
        assert!(error.contains("x:1: column 1: expected a line of at most 4194304 bytes"), "{error}");
    }

    #[test]
    fn a_stream_that_fails_is_known_to_the_line() {
        struct Failing;
        impl Read for Failing {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::UnexpectedEof.into())
            }
        }
        for block_bytes in [100, BLOCK_BYTES] {
            let text = ["a,b\n".repeat(1000), "c".to_owned()].concat();
            let stream = io::Cursor::new(text).chain(Failing);
            let mut blocks = LineBlocks::new(Box::new(stream), Path::new("x")).with_block_bytes(block_bytes);
            let mut block = Block::default();
            let error = loop {
                match blocks.next_block(&mut block) {
                    Ok(more) => assert!(more),
                    Err(error) => break error.to_string(),
                }
            };
            assert!(error.contains("cannot be read on, somewhere after line 1000: "), "{error}");
        }
    }

    #[test]
    fn one_byte_order_mark_is_left_out() {
        for marks in 0..4 {
            let text = ["\u{feff}".repeat(marks).as_str(), "a\nb"].concat();
            let mut lines = expected(text.strip_prefix('\u{feff}').unwrap_or(&text).as_bytes());
            for skip in [0, 1] {
                for (step, block_bytes) in (1..9).flat_map(|step| (1..9).map(move |bytes| (step, bytes))) {
                    assert_eq!(
                        read(text.as_bytes(), step, skip, block_bytes).unwrap(),
                        lines,
                        "{marks} {step} {block_bytes}"
                    );
                }
                lines.remove(0);
            }
        }
    }

    #[test]
    fn empty_lines_without_end_are_handed_out() {
        let text = vec![b'\n'; 2 * LINE_BYTES_MAX];
        assert!(read(&text, 1 << 20, 0, BLOCK_BYTES).unwrap().len() > LINE_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn the_blocks_are_the_text(
            lines in proptest::collection::vec(("[ab\r]{0,3}", 1_usize..100), 0..40),
            step in 1_usize..3000, repeat in 1_usize..1000, skip in 0_usize..2, small in 0_usize..2,
        ) {
            let text: String = lines.iter().map(|(line, count)| format!("{}\n", line.repeat(*count))).collect();
            let text = text.repeat(repeat);
            let text = &text.as_bytes()[..text.len().min(1 << 20)];
            let mut expected = expected(text);
            expected.drain(..skip.min(expected.len()));
            let block_bytes = [BLOCK_BYTES, 100][small];
            prop_assert_eq!(read(text, step * 100, skip, block_bytes).unwrap(), expected);
        }
    }
}
