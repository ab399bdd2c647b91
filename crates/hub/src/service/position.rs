//! Where a hub goes on after its end: which minibatches were acknowledged, who has which, and of which input, as a small text file
//! that is replaced as a whole. Knows no desk and no input.

use std::fmt::Write as _;
use std::fs::{File, TryLockError};
use std::io::{Error, ErrorKind, Read, Write as _};
use std::path::{Path, PathBuf};

use sanderling_sample::key::hash;
use sanderling_sample::quote;

use super::desk::{Holder, PassStart};
use super::done::Done;
use super::error::ServiceError;
use super::limit::POSITION_BYTES_MAX;

const LAST: &str = "written at the end";
const NOT_LAST: &str = "written meanwhile";
const HEAD: &str = "sanderling hub position 1";
/// Salt of the sum that tells a file that was damaged.
const SUM_SALT: u64 = 0x706f_7369_7469_6f6e;

/// What decides which rows are in which minibatch, as names and texts: a position is good for the same only.
pub(crate) type Fingerprint = Vec<(&'static str, String)>;

/// Locks a position until the result is dropped or the process ends: of two hubs that use one, each would write over what was
/// acknowledged to the other. The lock is on a file of its own, since the position is replaced; that file stays.
pub(crate) fn claim(path: &Path) -> Result<File, ServiceError> {
    let io = |source| ServiceError::Io { path: path.to_path_buf(), source };
    let file = File::create(beside(path, ".lock")).map_err(io)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let reason = "another hub uses this position; stop that one, or give this one another file";
            Err(io(Error::new(ErrorKind::ResourceBusy, reason)))
        }
        // A file system without locks: whoever uses one looks after this.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}

/// See the top of this file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) stream: u64,
    /// The pass of the first minibatch that was not acknowledged.
    pub(crate) start: PassStart,
    pub(crate) done: Done,
    pub(crate) holders: Vec<Holder>,
    /// It was written when nothing could be handed out or acknowledged any more.
    pub(crate) is_last: bool,
}

impl Position {
    fn to_text(&self, fingerprint: &Fingerprint) -> String {
        let mut text = format!("{HEAD}\n");
        for (name, value) in fingerprint {
            let _ = writeln!(text, "{name} {value}");
        }
        let (stream, PassStart { pass, first }) = (self.stream, self.start);
        let _ = writeln!(text, "stream {stream:016x}\npass {pass}\nfirst {first}");
        let _ = write!(text, "acknowledged 0-{}", self.done.prefix());
        for (first, end) in self.done.above() {
            let _ = write!(text, " {first}-{end}");
        }
        let _ = write!(text, "\n{}", if self.is_last { LAST } else { NOT_LAST });
        for Holder { name, numbers } in &self.holders {
            // As JSON, since a name may have line feeds.
            let _ = write!(text, "\ntrainer {}", serde_json::Value::from(name.as_str()));
            for number in numbers {
                let _ = write!(text, "\t{number}");
            }
        }
        let sum = hash(text.as_bytes(), SUM_SALT);
        let _ = writeln!(text, "\nsum {sum:016x}");
        text
    }

    fn of_text(text: &str, fingerprint: &Fingerprint) -> Result<Position, String> {
        let mut lines = text.lines();
        let mut next = |name: &str| {
            let line = lines.next().ok_or_else(|| damaged(&format!("it ends before its {name}")))?;
            line.strip_prefix(name)
                .map(str::trim_start)
                .ok_or_else(|| damaged(&format!("{} is not its {name}", quote(line.as_bytes()))))
        };
        if next("sanderling hub position")? != "1" {
            return Err("it is of another version of this program".to_owned());
        }
        let (body, sum) = text.rsplit_once("\nsum ").ok_or_else(|| damaged("it has no sum"))?;
        if format!("{:016x}\n", hash(body.as_bytes(), SUM_SALT)) != sum {
            return Err(damaged("its sum is wrong"));
        }
        for (name, expected) in fingerprint {
            let found = next(name)?;
            if found != expected {
                return Err(format!(
                    "it is a position with {name} {found}, and this is {expected}: go on with what it began with, or \
                     remove it to begin anew"
                ));
            }
        }
        let number =
            |name: &str, text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no {name}"));
        let stream = next("stream")?;
        let stream = u64::from_str_radix(stream, 16).map_err(|_| format!("{stream:?} is no stream"))?;
        let pass = number("pass", next("pass")?)?;
        let start = PassStart { pass, first: number("number", next("first")?)? };
        let mut ranges = Vec::new();
        for range in next("acknowledged")?.split(' ') {
            let (first, end) = range.split_once('-').ok_or_else(|| format!("{range:?} is no range"))?;
            ranges.push((number("number", first)?, number("number", end)?));
        }
        let done = match ranges[0] {
            (0, prefix) if start.first <= prefix => Done::of(prefix, &ranges[1..]),
            _ => None,
        };
        let done = done.ok_or("its ranges contradict each other")?;
        // A hub of before knew of no trainers.
        let is_last = lines.next() == Some(LAST);
        let trainers = lines.take_while(|line| !line.starts_with("sum "));
        let holders = trainers.map(holder_of).collect::<Option<_>>().ok_or("a line of a trainer is none")?;
        Ok(Position { stream, start, done, holders, is_last })
    }

    /// Reads it; None if there is no file.
    pub(crate) fn read(path: &Path, fingerprint: &Fingerprint) -> Result<Option<Position>, ServiceError> {
        let io = |source| ServiceError::Io { path: path.to_path_buf(), source };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
        };
        let mut text = String::new();
        file.take(POSITION_BYTES_MAX).read_to_string(&mut text).map_err(io)?;
        let wrong = |reason| ServiceError::Position { path: path.to_path_buf(), reason };
        Position::of_text(&text, fingerprint).map(Some).map_err(wrong)
    }

    /// Replaces the file: whatever happens, there is the old one or the new one.
    pub(crate) fn write(&self, path: &Path, fingerprint: &Fingerprint) -> Result<(), ServiceError> {
        let io = |source| ServiceError::Io { path: path.to_path_buf(), source };
        let new = beside(path, ".new");
        let mut file = File::create(&new).map_err(io)?;
        file.write_all(self.to_text(fingerprint).as_bytes()).map_err(io)?;
        file.sync_all().map_err(io)?;
        std::fs::rename(&new, path).map_err(io)?;
        // Or a power failure brings the old one back, and with it minibatches that were used.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all()).map_err(io)
    }
}

fn holder_of(line: &str) -> Option<Holder> {
    let mut fields = line.strip_prefix("trainer ")?.split('\t');
    let name = serde_json::from_str(fields.next()?).ok()?;
    Some(Holder { name, numbers: fields.map(str::parse).collect::<Result<_, _>>().ok()? })
}

/// Why a file cannot be gone on from, and what to do.
fn damaged(what: &str) -> String {
    format!("{what}: it is damaged: put a copy of it back, or remove it to begin anew")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_was_written_or_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("position");
        let fingerprint: Fingerprint = vec![("inputs", "abc".to_owned()), ("batch", "10".to_owned())];
        assert_eq!(Position::read(&path, &fingerprint).unwrap(), None);
        for ranges in [&[][..], &[(9, 12), (13, 14)]] {
            let done = Done::of(7, ranges).unwrap();
            let holder =
                |name: &str, numbers: &[u64]| Holder { name: name.to_owned(), numbers: numbers.to_vec() };
            let holders = vec![holder("a b\tc\n", &[8, 12]), holder("sum \"", &[])];
            let (start, is_last) = (PassStart { pass: 2, first: 6 }, ranges.is_empty());
            let position = Position { stream: u64::MAX - 5, start, done, holders, is_last };
            position.write(&path, &fingerprint).unwrap();
            assert_eq!(Position::read(&path, &fingerprint).unwrap(), Some(position));
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let check = |text: &str, fingerprint: &Fingerprint, expected: &str| {
            std::fs::write(&path, text).unwrap();
            let error = Position::read(&path, fingerprint).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        };
        let other: Fingerprint = vec![("inputs", "abc".to_owned()), ("batch", "20".to_owned())];
        check(&text, &other, "a position with batch 10, and this is 20");
        check(&text.replace("position 1", "position 2"), &fingerprint, "another version");
        check(
            "",
            &fingerprint,
            "it ends before its sanderling hub position: it is damaged: put a copy of it back",
        );
        for end in 1..text.len() {
            assert!(Position::of_text(&text[..end], &fingerprint).is_err(), "{end}");
        }
        for at in (0..text.len()).filter(|&at| text.as_bytes()[at].is_ascii_digit()) {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(Position::of_text(&String::from_utf8(bytes).unwrap(), &fingerprint).is_err(), "{at}");
        }
    }
}
