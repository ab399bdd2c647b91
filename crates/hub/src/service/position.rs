//! The position of a hub: acknowledged minibatches, leases, and the fingerprint of the input, as a small text file
//! that is replaced as a whole, with the journal's lines behind it. Knows no lease table and no input.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::{File, TryLockError};
use std::io::{Error, ErrorKind, Read, Write as _};
use std::path::{Path, PathBuf};

use sanderling_sample::key::hash;
use sanderling_sample::quote;
use sanderling_wire::limit::UNACKNOWLEDGED_MAX;

use super::ack_set::AckSet;
use super::error::ServiceError;
use super::journal::{Tail, line_of, records_of};
use super::leases::{LeaseHolder, LeaseTable, PassStart, Record};
use super::limit::POSITION_BYTES_MAX;

const LAST: &str = "written at the end";
const NOT_LAST: &str = "written meanwhile";
const HEAD: &str = "sanderling hub position 2";
/// The current version, and the one before, which had no lines behind the checksum.
const VERSIONS: [&str; 2] = ["2", "1"];
/// Salt of the checksum.
const SUM_SALT: u64 = 0x706f_7369_7469_6f6e;

/// The settings that decide which rows are in which minibatch, as names and texts; a position fits only equal ones.
pub(crate) type Fingerprint = Vec<(&'static str, String)>;

/// Locks a position until the result is dropped or the process ends.
///
/// Of two hubs with one position, each would overwrite the other's acknowledgements. The lock is on a file of its
/// own, since the position is replaced; that file stays.
pub(crate) fn claim(path: &Path) -> Result<File, ServiceError> {
    let io = |source| ServiceError::Io { path: path.to_path_buf(), source };
    let file = File::create(beside(path, ".lock")).map_err(io)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let reason = "another hub uses this position; stop that one, or give this one another file";
            Err(io(Error::new(ErrorKind::ResourceBusy, reason)))
        }
        // A file system without locks: its operator keeps two hubs apart.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}

/// The position of a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) stream: u64,
    /// The pass of the first minibatch that is not acknowledged.
    pub(crate) start: PassStart,
    /// Passes that have begun since.
    pub(crate) later: VecDeque<PassStart>,
    pub(crate) acked: AckSet,
    pub(crate) holders: Vec<LeaseHolder>,
    /// Whether it was written at an orderly end, after the last acknowledgement.
    pub(crate) is_last: bool,
}

impl Position {
    /// The position of a hub that has leased nothing.
    pub(crate) fn new(stream: u64) -> Position {
        Position {
            stream,
            start: PassStart::default(),
            later: VecDeque::new(),
            acked: AckSet::default(),
            holders: Vec::new(),
            is_last: true,
        }
    }

    /// The position of a lease table.
    pub(crate) fn of(leases: &LeaseTable, is_last: bool) -> Position {
        let (acked, start) = leases.position();
        let later = leases.later_passes().collect();
        Position {
            stream: leases.stream(),
            start,
            later,
            acked: acked.clone(),
            holders: leases.holders(),
            is_last,
        }
    }

    /// Applies a change from the journal.
    pub(crate) fn apply(&mut self, record: &Record) {
        match record {
            Record::Used { trainer, numbers } => {
                for &number in numbers {
                    self.acked.insert(number);
                }
                if let Some(holder) = self.holders.iter_mut().find(|holder| holder.name == *trainer) {
                    holder.numbers.retain(|number| !numbers.contains(number));
                    holder.used.extend(numbers);
                    let more = holder.used.len().saturating_sub(UNACKNOWLEDGED_MAX);
                    holder.used.drain(..more);
                }
            }
            Record::Came { trainer } => {
                if !self.holders.iter().any(|holder| holder.name == *trainer) {
                    let (numbers, used) = (Vec::new(), Vec::new());
                    self.holders.push(LeaseHolder { name: trainer.clone(), numbers, used });
                }
            }
            Record::Gone { trainer } => self.holders.retain(|holder| holder.name != *trainer),
            Record::Pass(start) => self.later.push_back(*start),
        }
        while let Some(&start) = self.later.front().filter(|start| start.first <= self.acked.prefix()) {
            self.start = start;
            self.later.pop_front();
        }
    }

    /// The leases, as journal records, since the text has no lines for them.
    fn records(&self) -> Vec<Record> {
        let used = |holder: &LeaseHolder| {
            let LeaseHolder { name, used, .. } = holder;
            (!used.is_empty()).then(|| Record::Used { trainer: name.clone(), numbers: used.clone() })
        };
        self.later.iter().copied().map(Record::Pass).chain(self.holders.iter().filter_map(used)).collect()
    }

    /// The text and its checksum.
    fn to_text(&self, fingerprint: &Fingerprint) -> (String, u64) {
        let mut text = format!("{HEAD}\n");
        for (name, value) in fingerprint {
            let _ = writeln!(text, "{name} {value}");
        }
        let (stream, PassStart { pass, first }) = (self.stream, self.start);
        let _ = writeln!(text, "stream {stream:016x}\npass {pass}\nfirst {first}");
        let _ = write!(text, "acknowledged 0-{}", self.acked.prefix());
        for (first, end) in self.acked.above() {
            let _ = write!(text, " {first}-{end}");
        }
        let _ = write!(text, "\n{}", if self.is_last { LAST } else { NOT_LAST });
        for LeaseHolder { name, numbers, .. } in &self.holders {
            // As JSON, since a name may contain line feeds.
            let _ = write!(text, "\ntrainer {}", serde_json::Value::from(name.as_str()));
            for number in numbers {
                let _ = write!(text, "\t{number}");
            }
        }
        let sum = hash(text.as_bytes(), SUM_SALT);
        let _ = writeln!(text, "\nsum {sum:016x}");
        (text, sum)
    }

    fn of_bytes(bytes: &[u8], fingerprint: &Fingerprint) -> Result<Position, String> {
        let (text, log) = split(bytes)?;
        let (mut position, sum) = Position::of_text(text, fingerprint)?;
        for record in records_of(log, sum).map_err(|reason| damaged(&reason))? {
            position.apply(&record);
        }
        Ok(position)
    }

    fn of_text(text: &str, fingerprint: &Fingerprint) -> Result<(Position, u64), String> {
        let mut lines = text.lines();
        let mut next = |name: &str| {
            let line = lines.next().ok_or_else(|| damaged(&format!("it ends before its {name}")))?;
            line.strip_prefix(name)
                .map(str::trim_start)
                .ok_or_else(|| damaged(&format!("{} is not its {name}", quote(line.as_bytes()))))
        };
        if !VERSIONS.contains(&next("sanderling hub position")?) {
            return Err("it is of another version of this program".to_owned());
        }
        let (body, said) = text.rsplit_once("\nsum ").ok_or_else(|| damaged("it has no checksum"))?;
        let sum = hash(body.as_bytes(), SUM_SALT);
        if format!("{sum:016x}\n") != said {
            return Err(damaged("its checksum is wrong"));
        }
        for (name, expected) in fingerprint {
            let found = next(name)?;
            if found != expected {
                return Err(format!(
                    "it is a position with {name} {found}, and this is {expected}: continue with those settings, or remove the file to start over"
                ));
            }
        }
        let number =
            |name: &str, text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is not a {name}"));
        let stream = next("stream")?;
        let stream = u64::from_str_radix(stream, 16).map_err(|_| format!("{stream:?} is not a stream"))?;
        let pass = number("pass", next("pass")?)?;
        let start = PassStart { pass, first: number("number", next("first")?)? };
        let mut ranges = Vec::new();
        for range in next("acknowledged")?.split(' ') {
            let (first, end) = range.split_once('-').ok_or_else(|| format!("{range:?} is not a range"))?;
            ranges.push((number("number", first)?, number("number", end)?));
        }
        let acked = match ranges[0] {
            (0, prefix) if start.first <= prefix => AckSet::of(prefix, &ranges[1..]),
            _ => None,
        };
        let acked = acked.ok_or("its ranges contradict each other")?;
        // Hubs of version 1 wrote no trainers.
        let is_last = lines.next() == Some(LAST);
        let trainers = lines.take_while(|line| !line.starts_with("sum "));
        let holders =
            trainers.map(holder_of).collect::<Option<_>>().ok_or("a trainer line cannot be read")?;
        Ok((Position { stream, start, later: VecDeque::new(), acked, holders, is_last }, sum))
    }

    /// Reads a position; `None` if there is no file.
    pub(crate) fn read(path: &Path, fingerprint: &Fingerprint) -> Result<Option<Position>, ServiceError> {
        let io = |source| ServiceError::Io { path: path.to_path_buf(), source };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
        };
        let mut bytes = Vec::new();
        file.take(POSITION_BYTES_MAX).read_to_end(&mut bytes).map_err(io)?;
        let wrong = |reason| ServiceError::Position { path: path.to_path_buf(), reason };
        Position::of_bytes(&bytes, fingerprint).map(Some).map_err(wrong)
    }

    /// Replaces the file atomically; the result takes the lines of later changes.
    pub(crate) fn write(&self, path: &Path, fingerprint: &Fingerprint) -> Result<Tail, ServiceError> {
        let io = |source| ServiceError::Io { path: path.to_path_buf(), source };
        let new = beside(path, ".new");
        let mut file = File::create(&new).map_err(io)?;
        let (mut text, mut sum) = self.to_text(fingerprint);
        let records = self.records();
        if !records.is_empty() {
            let (line, of_line) = line_of(&records, sum);
            (text, sum) = (text + &line, of_line);
        }
        file.write_all(text.as_bytes()).map_err(io)?;
        file.sync_all().map_err(io)?;
        std::fs::rename(&new, path).map_err(io)?;
        // Without the sync, a power failure brings back the old file, and with it minibatches that were used.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = File::open(folder.unwrap_or(Path::new(".")));
        folder.and_then(|folder| folder.sync_all()).map_err(io)?;
        Ok(Tail::new(file, sum))
    }
}

/// Splits a file into the position's text and the lines behind its checksum.
fn split(bytes: &[u8]) -> Result<(&str, &[u8]), String> {
    let no_text = |_| damaged("it is not text");
    let mark = b"\nsum ";
    let Some(at) = bytes.windows(mark.len()).position(|window| window == mark) else {
        return Ok((std::str::from_utf8(bytes).map_err(no_text)?, &[]));
    };
    let line = &bytes[at + 1..];
    let end = line.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |end| at + 1 + end + 1);
    let (text, log) = bytes.split_at(end);
    Ok((std::str::from_utf8(text).map_err(no_text)?, log))
}

fn holder_of(line: &str) -> Option<LeaseHolder> {
    let mut fields = line.strip_prefix("trainer ")?.split('\t');
    let name = serde_json::from_str(fields.next()?).ok()?;
    Some(LeaseHolder {
        name,
        numbers: fields.map(str::parse).collect::<Result<_, _>>().ok()?,
        used: Vec::new(),
    })
}

/// The error text of a damaged file, with what to do.
fn damaged(what: &str) -> String {
    format!("{what}: it is damaged: restore a copy, or remove it to start over")
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
            let acked = AckSet::of(7, ranges).unwrap();
            let holder = |name: &str, numbers: &[u64], used: &[u64]| LeaseHolder {
                name: name.to_owned(),
                numbers: numbers.to_vec(),
                used: used.to_vec(),
            };
            let holders = vec![holder("a b\tc\n", &[8, 12], &[4, 2]), holder("\nsum \"", &[], &[])];
            let (start, is_last) = (PassStart { pass: 2, first: 6 }, ranges.is_empty());
            let later = VecDeque::from([PassStart { pass: 3, first: 9 }]);
            let position = Position { stream: u64::MAX - 5, start, later, acked, holders, is_last };
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
        check(&text.replace("position 2", "position 3"), &fingerprint, "another version");
        check("", &fingerprint, "it ends before its sanderling hub position: it is damaged: restore a copy");
        // Without the journal's lines, which may be cut short.
        let text = &text[..split(text.as_bytes()).unwrap().0.len()];
        for end in 1..text.len() {
            assert!(Position::of_bytes(&text.as_bytes()[..end], &fingerprint).is_err(), "{end}");
        }
        for at in (0..text.len()).filter(|&at| text.as_bytes()[at].is_ascii_digit()) {
            let mut bytes = text.to_owned().into_bytes();
            bytes[at] ^= 1;
            assert!(Position::of_bytes(&bytes, &fingerprint).is_err(), "{at}");
        }
    }

    #[test]
    fn a_position_of_the_version_before_is_gone_on_from() {
        let body = "sanderling hub position 1\nbatch 10\nstream 0000000000000005\npass 1\nfirst 4\n\
                    acknowledged 0-6 8-9\nwritten meanwhile\ntrainer \"a\"\t7";
        let text = format!("{body}\nsum {:016x}\n", hash(body.as_bytes(), SUM_SALT));
        let fingerprint: Fingerprint = vec![("batch", "10".to_owned())];
        let holder = LeaseHolder { name: "a".to_owned(), numbers: vec![7], used: Vec::new() };
        let expected = Position {
            start: PassStart { pass: 1, first: 4 },
            acked: AckSet::of(6, &[(8, 9)]).unwrap(),
            holders: vec![holder],
            is_last: false,
            ..Position::new(5)
        };
        assert_eq!(Position::of_bytes(text.as_bytes(), &fingerprint), Ok(expected));
    }
}
