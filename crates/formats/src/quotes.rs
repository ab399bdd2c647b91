//! The ends of CSV records: line feeds outside of quotes (RFC 4180). Knows separators and comments, no columns.
//!
//! A quote that is the first character of a field, blanks aside, opens it; one that is not doubled closes it; any
//! other quote is a character. Text without quotes is never walked.

use crate::scan::{Isa, Marked, find_marks};

/// The rules that decide where a record ends.
#[derive(Clone, Debug)]
pub struct Quotes {
    /// The separator of fields.
    pub separator: Vec<u8>,
    /// The first byte of comment lines.
    pub comment: Option<u8>,
}

/// The end of the records of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Records {
    /// The end of the last record, behind its line feed; 0 if none ends.
    pub end: usize,
    /// The quote behind that end that opens a field without an end.
    pub open: Option<usize>,
}

impl Quotes {
    /// Finds the end of the last record of a text that starts with one. `marks` is reused memory.
    pub fn last_end(&self, isa: Isa, text: &[u8], marks: &mut Vec<u32>) -> Records {
        if !text.contains(&b'"') {
            let line_feed = text.iter().rposition(|&byte| byte == b'\n');
            return Records { end: line_feed.map_or(0, |at| at + 1), open: None };
        }
        find_marks(isa, text, Marked::Bytes([b'\n', b'"', b'"']), marks);
        let mut marks = marks.iter().map(|&mark| mark as usize).peekable();
        let mut end = 0;
        while let Some(at) = marks.next() {
            if text[at] == b'\n' {
                end = at + 1;
            } else if self.opens(text, end, at) {
                loop {
                    let Some(inside) = marks.next() else { return Records { end, open: Some(at) } };
                    if text[inside] == b'"'
                        && marks.next_if(|&next| next == inside + 1 && text[next] == b'"').is_none()
                    {
                        break;
                    }
                }
            }
        }
        Records { end, open: None }
    }

    /// Finds the end of the first record of a text.
    pub fn first_end(&self, text: &[u8]) -> Records {
        let mut from = 0;
        loop {
            let Some(line) = text[from..].iter().position(|&byte| byte == b'\n') else {
                // A field may close before the text ends; then only a line feed is missing.
                let open = self.open_quote(text, from);
                return Records { end: 0, open: open.err() };
            };
            match self.open_quote(&text[..from + line], from) {
                Ok(()) => return Records { end: from + line + 1, open: None },
                Err(open) => match closing(text, open + 1) {
                    Some(at) => from = at + 1,
                    None => return Records { end: 0, open: Some(open) },
                },
            }
        }
    }

    /// Returns the first quote from `from` on that opens a field and is not closed, as an error.
    fn open_quote(&self, text: &[u8], from: usize) -> Result<(), usize> {
        let mut at = from;
        while let Some(quote) = text[at..].iter().position(|&byte| byte == b'"').map(|found| at + found) {
            at = quote + 1;
            if self.opens(text, 0, quote) {
                at = closing(text, at).ok_or(quote)? + 1;
            }
        }
        Ok(())
    }

    /// Whether the quote at `at`, which is not within quotes, opens a field of the record that starts at `record`.
    fn opens(&self, text: &[u8], record: usize, at: usize) -> bool {
        if self.comment.is_some() && text.get(record).copied() == self.comment {
            return false;
        }
        let mut before = &text[record..at];
        loop {
            if before.is_empty() || before.ends_with(&self.separator) {
                return true;
            }
            match before {
                [rest @ .., b' '] => before = rest,
                _ => return false,
            }
        }
    }

    /// The column, from 1, of the field that a quote opens.
    pub fn column(&self, text: &[u8], record: usize, open: usize) -> usize {
        let (mut column, mut at) = (1, record);
        while at < open {
            match text[at] {
                b'"' if self.opens(text, record, at) => at = closing(text, at + 1).unwrap_or(open),
                _ if text[at..].starts_with(&self.separator) => {
                    column += 1;
                    at += self.separator.len() - 1;
                }
                _ => {}
            }
            at += 1;
        }
        column
    }
}

/// The quote that closes a field whose content starts at `inside`.
fn closing(text: &[u8], inside: usize) -> Option<usize> {
    let mut at = inside;
    loop {
        at += text[at..].iter().position(|&byte| byte == b'"')?;
        match text.get(at + 1) {
            Some(b'"') => at += 2,
            _ => return Some(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn quotes() -> Quotes {
        Quotes { separator: b",".to_vec(), comment: Some(b'#') }
    }

    /// The ends of all records, one byte after the other; and the quote that stays open.
    fn ends(text: &[u8]) -> (Vec<usize>, Option<usize>) {
        let (mut ends, mut record, mut at) = (Vec::new(), 0, 0);
        let mut is_start = true;
        while at < text.len() {
            match text[at] {
                b'\n' => {
                    ends.push(at + 1);
                    (record, is_start) = (at + 1, true);
                }
                b'"' if is_start && text[record] != b'#' => {
                    let open = at;
                    loop {
                        at += 1;
                        match &text[at.min(text.len())..] {
                            [] => return (ends, Some(open)),
                            [b'"', b'"', ..] => at += 1,
                            [b'"', ..] => break,
                            _ => {}
                        }
                    }
                    is_start = false;
                }
                b',' => is_start = true,
                b' ' => {}
                _ => is_start = false,
            }
            at += 1;
        }
        (ends, None)
    }

    fn check(text: &[u8]) {
        let (ends, open) = ends(text);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let found = quotes().last_end(isa, text, &mut Vec::new());
            let text = String::from_utf8_lossy(text);
            assert_eq!(found, Records { end: ends.last().copied().unwrap_or(0), open }, "{text:?} {isa:?}");
        }
        let (mut rest, mut record) = (text, 0);
        for end in ends {
            assert_eq!(quotes().first_end(rest), Records { end: end - record, open: None }, "{rest:?}");
            (rest, record) = (&text[end..], end);
        }
        assert_eq!(quotes().first_end(rest).end, 0);
        assert_eq!(quotes().first_end(rest).open, open.map(|open| open - record), "{rest:?}");
    }

    #[test]
    fn records_end_outside_of_quotes() {
        for text in [
            "",
            "a,b\n",
            "a,\"b\nc\"\nd",
            "a, \"b\n\"\"\n\" x\"\ny,\"\n",
            "a\"b\nc\"\n",
            "#,\"\n\",\"\n",
            "\"\"\n\"\"\"\n\"\n",
            "\"a\" \"\n\"\n\"",
        ] {
            check(text.as_bytes());
        }
        assert_eq!(quotes().column(b"x\na,\"b,\",\"c", 2, 9), 3);
    }

    proptest! {
        #[test]
        fn as_one_byte_after_the_other(text in proptest::collection::vec(
            proptest::sample::select(b"\n\n\"\"\",, #ab\r".to_vec()), 0..200)) {
            check(&text);
        }
    }
}
