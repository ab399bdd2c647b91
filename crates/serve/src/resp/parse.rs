//! Commands of RESP2: arrays of bulk strings, or words on one line. Bounded, and borrowed from the buffer.

/// Bytes of a line: a count, a length, or words.
const LINE_BYTES_MAX: usize = 64 << 10;

/// The bounds of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Words of a command.
    pub(crate) words_max: usize,
    /// Bytes of a command.
    pub(crate) bytes_max: usize,
}

/// A command and the bytes that it takes.
pub(crate) type Parsed<'a> = (Vec<&'a [u8]>, usize);

/// Parses the command at the beginning of the bytes; `None`: it is not whole yet.
///
/// # Errors
/// The bytes are no command, or beyond the bounds. The connection cannot go on.
pub(crate) fn parse(bytes: &[u8], bounds: Bounds) -> Result<Option<Parsed<'_>>, &'static str> {
    if bytes.first() != Some(&b'*') {
        let Some((line, used)) = line(bytes)? else { return Ok(None) };
        let words: Vec<&[u8]> = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
        return if words.len() <= bounds.words_max { Ok(Some((words, used))) } else { Err("too many words") };
    }
    let Some((count, mut used)) = line(bytes)? else { return Ok(None) };
    let count = number(&count[1..]).ok_or("invalid multibulk length")?;
    if count > bounds.words_max {
        return Err("too many words");
    }
    let mut words = Vec::new();
    for _ in 0..count {
        let rest = &bytes[used..];
        if rest.first().is_some_and(|first| *first != b'$') {
            return Err("expected '$'");
        }
        let Some((length, head)) = line(rest)? else { return Ok(None) };
        let length = number(&length[1..]).ok_or("invalid bulk length")?;
        if length > bounds.bytes_max || used + head + length > bounds.bytes_max {
            return Err("the command is too long");
        }
        let Some((word, end)) = rest.get(head..).and_then(|rest| rest.split_at_checked(length)) else {
            return Ok(None);
        };
        match end {
            [b'\r', b'\n', ..] => {}
            [] | [b'\r'] => return Ok(None),
            _ => return Err("a bulk string does not end where its length says"),
        }
        words.push(word);
        used += head + length + 2;
    }
    Ok(Some((words, used)))
}

/// The line at the beginning of the bytes, and the bytes that it takes.
fn line(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, &'static str> {
    match bytes.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\n') {
        Some(at) => Ok(Some((bytes[..at].strip_suffix(b"\r").unwrap_or(&bytes[..at]), at + 1))),
        None if bytes.len() >= LINE_BYTES_MAX => Err("a line is too long"),
        None => Ok(None),
    }
}

fn number(digits: &[u8]) -> Option<usize> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(digits).ok()?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds { words_max: 4, bytes_max: 100 };

    #[test]
    fn commands_are_arrays_or_lines() {
        type Expected<'a> = Result<Option<(&'a [&'a [u8]], usize)>, &'a str>;
        let check = |bytes: &[u8], expected: Expected<'_>| {
            let found = parse(bytes, BOUNDS);
            let found = found.as_ref().map(|found| found.as_ref().map(|(words, used)| (&words[..], *used)));
            assert_eq!(found.map_err(|error| *error), expected, "{:?}", bytes.escape_ascii().to_string());
        };
        check(b"", Ok(None));
        check(b"PING\r\nmore", Ok(Some((&[b"PING"], 6))));
        check(b" GET  a:1 \n", Ok(Some((&[b"GET", b"a:1"], 11))));
        check(b"\r\n", Ok(Some((&[], 2))));
        check(b"*2\r\n$3\r\nGET\r\n$3\r\na\r\n\r\nrest", Ok(Some((&[b"GET", b"a\r\n"], 22))));
        check(b"*0\r\n", Ok(Some((&[], 4))));
        check(b"*1\r\n$4\r\nPI", Ok(None));
        check(b"*1\r\n$4\r\nPING\r", Ok(None));
        check(b"*1\r\n$4\r\nPINGx", Err("a bulk string does not end where its length says"));
        check(b"*x\r\n", Err("invalid multibulk length"));
        check(b"*-1\r\n", Err("invalid multibulk length"));
        check(b"*5\r\n", Err("too many words"));
        check(b"*99999999999999999999\r\n", Err("invalid multibulk length"));
        check(b"*1\r\n:4\r\n", Err("expected '$'"));
        check(b"*1\r\n$101\r\n", Err("the command is too long"));
        check(b"*1\r\n$+1\r\n", Err("invalid bulk length"));
        check(b"a b c d e\r\n", Err("too many words"));
        check(&[b'x'; LINE_BYTES_MAX], Err("a line is too long"));
    }

    proptest! {
        #[test]
        fn a_command_is_whole_at_its_last_byte(
            words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..8), 0..4),
            more in prop::collection::vec(any::<u8>(), 0..8),
        ) {
            let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
            for word in &words {
                bytes.extend(format!("${}\r\n", word.len()).bytes());
                bytes.extend(word);
                bytes.extend(b"\r\n");
            }
            let whole = bytes.len();
            for cut in 0..whole {
                prop_assert_eq!(parse(&bytes[..cut], BOUNDS), Ok(None), "{}", cut);
            }
            bytes.extend(more);
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(parse(&bytes, BOUNDS), Ok(Some((words, whole))));
        }

        #[test]
        fn any_bytes_are_a_command_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(Some((words, used))) = parse(&bytes, BOUNDS) {
                prop_assert!(used <= bytes.len() && words.len() <= BOUNDS.words_max);
            }
        }
    }
}
