//! Keys that were once asked for, read from a text file: a request per line. Knows no law; the whole file is
//! held in memory.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::GenerateError;

/// Most bytes of a trace. Its keys take up to six times as much memory, where all of them have one digit;
/// twice is common.
pub const TRACE_BYTES_MAX: u64 = 256 << 20;
/// Characters of a bad key that a message shows.
const SHOWN_CHARS_MAX: usize = 40;

/// The keys of a file, in order.
#[derive(Debug)]
pub(super) struct Trace {
    keys: Vec<u64>,
    /// Where the keys of every request start.
    starts: Vec<u32>,
}

impl Trace {
    /// Lines of numbers with spaces, tabs or commas between; empty lines are passed over.
    pub(super) fn open(path: &Path) -> Result<Self, GenerateError> {
        let lost = |source| GenerateError::TraceRead { path: path.to_owned(), source };
        let file = File::open(path).map_err(lost)?;
        Self::read(BufReader::new(file), path, TRACE_BYTES_MAX)
    }

    fn read(input: impl BufRead, path: &Path, bytes_max: u64) -> Result<Self, GenerateError> {
        let lost = |source| GenerateError::TraceRead { path: path.to_owned(), source };
        // One byte more than may be, to see that there is one.
        let mut input = input.take(bytes_max + 1);
        let mut trace = Trace { keys: Vec::new(), starts: Vec::new() };
        let (mut text, mut line) = (Vec::new(), 0);
        loop {
            text.clear();
            let read = input.read_until(b'\n', &mut text).map_err(lost)?;
            if input.limit() == 0 {
                return Err(GenerateError::TraceLong { path: path.to_owned() });
            }
            if read == 0 {
                break;
            }
            line += 1;
            let start = trace.keys.len();
            for word in text.split(|byte| byte.is_ascii_whitespace() || *byte == b',') {
                if !word.is_empty() {
                    let key = std::str::from_utf8(word).ok().and_then(|word| word.parse().ok());
                    trace.keys.push(key.ok_or_else(|| GenerateError::TraceKey {
                        path: path.to_owned(),
                        line,
                        text: String::from_utf8_lossy(word).chars().take(SHOWN_CHARS_MAX).collect(),
                    })?);
                }
            }
            if trace.keys.len() > start {
                trace.starts.push(start as u32);
            }
        }
        if trace.keys.is_empty() {
            return Err(GenerateError::TraceEmpty { path: path.to_owned() });
        }
        Ok(trace)
    }

    /// Has every line one key? Then lines are keys, not requests.
    fn is_flat(&self) -> bool {
        self.starts.len() == self.keys.len()
    }

    /// Keys of the request that a cycle replays, unless lines are single keys.
    pub(super) fn request_keys(&self, cycle: u64) -> Option<usize> {
        if self.is_flat() {
            return None;
        }
        let request = (cycle % self.starts.len() as u64) as usize;
        let end = self.starts.get(request + 1).map_or(self.keys.len(), |&end| end as usize);
        Some(end - self.starts[request] as usize)
    }

    /// Appends `count` keys: from where the cycle's request starts or, where lines are single keys, from the
    /// `cycle * count`-th key. After the last key comes the first.
    pub(super) fn fill(&self, cycle: u64, count: usize, out: &mut Vec<u64>) {
        let mut from = if self.is_flat() {
            (u128::from(cycle) * count as u128 % self.keys.len() as u128) as usize
        } else {
            self.starts[(cycle % self.starts.len() as u64) as usize] as usize
        };
        let mut left = count;
        while left > 0 {
            let part = &self.keys[from..self.keys.len().min(from + left)];
            out.extend_from_slice(part);
            left -= part.len();
            from = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<Trace, String> {
        Trace::read(text, Path::new("a.trace"), 40).map_err(|error| error.to_string())
    }

    #[test]
    fn lines_become_requests() {
        /// Of each cycle: what its request has, and what is there for three keys.
        fn check(text: &str, cycles: &[(Option<usize>, [u64; 3])]) {
            let trace = read(text.as_bytes()).unwrap();
            for (cycle, (request, keys)) in cycles.iter().enumerate() {
                let mut out = vec![99];
                trace.fill(cycle as u64, 3, &mut out);
                assert_eq!((trace.request_keys(cycle as u64), &out[1..]), (*request, &keys[..]), "{text:?}");
            }
        }
        check("1 2 3\n4,5\n", &[(Some(3), [1, 2, 3]), (Some(2), [4, 5, 1]), (Some(3), [1, 2, 3])]);
        check(
            "1\r\n\n2\t, 18446744073709551615",
            &[(Some(1), [1, 2, u64::MAX]), (Some(2), [2, u64::MAX, 1])],
        );
        check("1\n2\n3\n4\n", &[(None, [1, 2, 3]), (None, [4, 1, 2]), (None, [3, 4, 1])]);
        check("7\n", &[(None, [7, 7, 7]), (None, [7, 7, 7])]);
    }

    #[test]
    fn bad_files_are_refused_with_the_place() {
        for (text, message) in [
            (&b"1 2\n\n3 x4\n"[..], "a.trace:3: \"x4\" is not a key"),
            (b"18446744073709551616\n", "a.trace:1: \"18446744073709551616\" is not a key"),
            (b"-1\n", "a.trace:1: \"-1\" is not a key"),
            (b"1\n\xff\n", "a.trace:2: \"\u{fffd}\" is not a key"),
            (b"", "has no keys"),
            (b" \n,\n", "has no keys"),
            (b"1 2 3 4 5 6 7 8 9 0\n1 2 3 4 5 6 7 8 9 0\n1", "has more than"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(message), "{text:?}: {error}");
        }
        assert!(read(b"1 2 3 4 5 6 7 8 9 0\n1 2 3 4 5 6 7 8 9 0\n").is_ok(), "just as long as may be");
        let absent = Trace::open(Path::new("/nowhere/at.all")).unwrap_err().to_string();
        assert!(absent.starts_with("cannot read the trace /nowhere/at.all: "), "{absent}");
    }
}
