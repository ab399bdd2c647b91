//! The journal of a hub: changes since its position was written, as lines behind it. Lines are written before
//! trainers are told of the changes, many changes at once (group commit), so a hub that is killed resumes from all
//! that its trainers have heard. Knows no connection; a session that waits for a change polls
//! [`Journal::is_written`].

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sanderling_sample::key::hash;
use serde_json::{Value, json};

use crate::lock::lock;

use super::error::ServiceError;
use super::lease_queue::LeaseQueue;
use super::leases::{PassStart, Record};
use super::limit::JOURNAL_BYTES_MAX;
use super::position::{Fingerprint, Position};

/// The end of a position file, to which lines are appended.
#[derive(Debug)]
pub(crate) struct Tail {
    file: File,
    /// The checksum of the preceding lines, with which that of the next line begins.
    sum: u64,
    /// Bytes appended.
    bytes: u64,
}

impl Tail {
    pub(crate) fn new(file: File, sum: u64) -> Tail {
        Tail { file, sum, bytes: 0 }
    }

    /// Appends a line and syncs it to disk.
    fn append(&mut self, records: &[Record]) -> std::io::Result<()> {
        let (line, sum) = line_of(records, self.sum);
        self.file.write_all(line.as_bytes())?;
        self.file.sync_data()?;
        (self.sum, self.bytes) = (sum, self.bytes + line.len() as u64);
        Ok(())
    }
}

/// A line and its checksum, which covers the line's bytes and is salted with the previous checksum, so that no line
/// of another file fits here.
pub(crate) fn line_of(records: &[Record], before: u64) -> (String, u64) {
    let value = |record: &Record| match record {
        Record::Used { trainer, numbers } => json!(["used", trainer, numbers]),
        Record::Came { trainer } => json!(["came", trainer]),
        Record::Gone { trainer } => json!(["gone", trainer]),
        Record::Pass(PassStart { pass, first }) => json!(["pass", pass, first]),
    };
    let text = Value::from(records.iter().map(value).collect::<Vec<_>>()).to_string();
    let sum = hash(text.as_bytes(), before);
    (format!("{sum:016x} {text}\n"), sum)
}

/// Parses the lines. A last line that was cut short is dropped: no trainer was told of it. Any other bad line is
/// damage.
pub(crate) fn records_of(mut bytes: &[u8], mut before: u64) -> Result<Vec<Record>, String> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let end = bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |end| end + 1);
        let (line, rest) = bytes.split_at(end);
        match read_line(line, before) {
            Some((of_line, sum)) => {
                records.extend(of_line);
                (before, bytes) = (sum, rest);
            }
            None if rest.is_empty() => break,
            None => return Err("a line of its journal has a wrong checksum".to_owned()),
        }
    }
    Ok(records)
}

fn read_line(line: &[u8], before: u64) -> Option<(Vec<Record>, u64)> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let (said, text) = line.split_once(' ')?;
    let sum = hash(text.as_bytes(), before);
    if format!("{sum:016x}") != said {
        return None;
    }
    let values: Vec<Value> = serde_json::from_str(text).ok()?;
    Some((values.iter().map(record_of).collect::<Option<_>>()?, sum))
}

fn record_of(value: &Value) -> Option<Record> {
    let parts = value.as_array()?;
    let trainer = || parts.get(1)?.as_str().map(str::to_owned);
    match parts.first()?.as_str()? {
        "used" => {
            let numbers = parts.get(2)?.as_array()?.iter().map(Value::as_u64).collect::<Option<_>>()?;
            Some(Record::Used { trainer: trainer()?, numbers })
        }
        "came" => Some(Record::Came { trainer: trainer()? }),
        "gone" => Some(Record::Gone { trainer: trainer()? }),
        "pass" => {
            Some(Record::Pass(PassStart { pass: parts.get(1)?.as_u64()?, first: parts.get(2)?.as_u64()? }))
        }
        _ => None,
    }
}

/// A position file in use by a hub.
pub(super) struct Journal {
    path: PathBuf,
    fingerprint: Fingerprint,
    lease_queue: Arc<LeaseQueue>,
    /// `None`: an append failed, and the file must be rewritten as a whole.
    tail: Mutex<Option<Tail>>,
    /// The number of the lease table's changes that are in the file.
    written: AtomicU64,
    /// Whether the file cannot be written; then no answer waits for it.
    is_broken: AtomicBool,
    /// The lock that keeps other hubs from the position.
    _claim: File,
}

impl Journal {
    pub(super) fn new(
        path: PathBuf,
        fingerprint: Fingerprint,
        lease_queue: Arc<LeaseQueue>,
        tail: Tail,
        claim: File,
    ) -> Journal {
        Journal {
            path,
            fingerprint,
            lease_queue,
            tail: Mutex::new(Some(tail)),
            written: AtomicU64::new(0),
            is_broken: AtomicBool::new(false),
            _claim: claim,
        }
    }

    /// Whether the first `changes` changes are in the file, or waiting is pointless because it is broken.
    pub(super) fn is_written(&self, changes: u64) -> bool {
        self.written.load(Ordering::Acquire) >= changes || self.is_broken()
    }

    /// Whether an append failed: the file lacks acknowledgements until it is rewritten as a whole.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    /// Rewrites the whole file.
    pub(super) fn save(&self, is_last: bool) -> Result<(), ServiceError> {
        let mut tail = lock(&self.tail);
        self.replace(&mut tail, is_last)
    }

    fn replace(&self, tail: &mut Option<Tail>, is_last: bool) -> Result<(), ServiceError> {
        let (position, changes) = {
            let mut leases = self.lease_queue.leases();
            // The position contains them.
            drop(leases.take_records());
            (Position::of(&leases, is_last), leases.changes())
        };
        match position.write(&self.path, &self.fingerprint) {
            Ok(new) => {
                *tail = Some(new);
                self.written.store(changes, Ordering::Release);
                self.is_broken.store(false, Ordering::Release);
                Ok(())
            }
            Err(error) => {
                // The records that were taken are in neither file.
                *tail = None;
                self.is_broken.store(true, Ordering::Release);
                Err(error)
            }
        }
    }

    /// Appends the changes since the last call; later ones wait for the next call.
    pub(super) fn commit(&self) -> Result<(), ServiceError> {
        let mut tail = lock(&self.tail);
        let (records, changes) = {
            let mut leases = self.lease_queue.leases();
            (leases.take_records(), leases.changes())
        };
        let Some(open) = tail.as_mut() else { return Ok(()) };
        if records.is_empty() {
            return Ok(());
        }
        if open.bytes > JOURNAL_BYTES_MAX {
            return self.replace(&mut tail, false);
        }
        if let Err(source) = open.append(&records) {
            // Half a line may be in the file: nothing fits behind it.
            *tail = None;
            self.is_broken.store(true, Ordering::Release);
            return Err(ServiceError::Io { path: self.path.clone(), source });
        }
        self.written.store(changes, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        vec![
            Record::Came { trainer: "a b\t\"\n".to_owned() },
            Record::Used { trainer: "a b\t\"\n".to_owned(), numbers: vec![0, u64::MAX] },
            Record::Pass(PassStart { pass: 1, first: 40 }),
            Record::Gone { trainer: "sum".to_owned() },
        ]
    }

    #[test]
    fn lines_say_what_was_written_and_half_a_last_line_says_nothing() {
        let (first, sum) = line_of(&records(), 7);
        let (second, _) = line_of(&records()[..1], sum);
        let both = first.clone() + &second;
        let expected: Vec<Record> = records().into_iter().chain(records().into_iter().take(1)).collect();
        assert_eq!(records_of(both.as_bytes(), 7), Ok(expected));
        assert_eq!(both.matches('\n').count(), 2);
        for end in 0..both.len() {
            let found = records_of(&both.as_bytes()[..end], 7).unwrap();
            assert_eq!(found, if end < first.len() { vec![] } else { records() }, "{end}");
        }
        // The disk may have only the end of a line.
        let torn = [first.as_bytes(), &vec![0; second.len() - 3], &second.as_bytes()[second.len() - 3..]];
        assert_eq!(records_of(&torn.concat(), 7), Ok(records()));
    }

    #[test]
    fn a_line_that_is_wrong_before_others_is_damage() {
        let (first, sum) = line_of(&records(), 7);
        let both = first.clone() + &line_of(&records(), sum).0;
        for at in 0..first.len() - 1 {
            let mut bytes = both.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(records_of(&bytes, 7).is_err(), "{at}");
        }
        // Lines of another position, or in another order.
        assert!(records_of(both.as_bytes(), 8).is_err());
        let (other, _) = line_of(&records(), sum);
        assert!(records_of((other + &first).as_bytes(), 7).is_err());
    }
}
