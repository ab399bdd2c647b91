//! Changes of the lease table that a hub must know after a crash, in order, until the journal takes them. Knows no
//! file.

use super::PassStart;

/// One change; trainers by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// A trainer has acknowledged these minibatches.
    Used { trainer: String, numbers: Vec<u64> },
    /// A new trainer, or an expired one, has subscribed.
    Came { trainer: String },
    /// A trainer has expired and lost its leases.
    Gone { trainer: String },
    /// A pass begins with this minibatch.
    Pass(PassStart),
}

/// The changes that the journal has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Log {
    is_kept: bool,
    records: Vec<Record>,
    /// The number of changes, taken ones included.
    count: u64,
    /// The count after the latest [`Record::Gone`].
    gone: u64,
}

impl Log {
    /// Creates a log that keeps changes, or drops them at once if there is no journal.
    pub(super) fn new(is_kept: bool) -> Log {
        Log { is_kept, ..Log::default() }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn gone(&self) -> u64 {
        self.gone
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(super) fn take(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }

    pub(super) fn used(&mut self, trainer: &str, number: u64) {
        if !self.is_kept {
            return;
        }
        self.count += 1;
        match self.records.last_mut() {
            Some(Record::Used { trainer: last, numbers }) if last == trainer => numbers.push(number),
            _ => self.records.push(Record::Used { trainer: trainer.to_owned(), numbers: vec![number] }),
        }
    }

    pub(super) fn came(&mut self, trainer: &str) {
        self.push(Record::Came { trainer: trainer.to_owned() });
    }

    pub(super) fn gone_for_good(&mut self, trainer: &str) {
        self.push(Record::Gone { trainer: trainer.to_owned() });
        self.gone = self.count;
    }

    pub(super) fn pass(&mut self, start: PassStart) {
        self.push(Record::Pass(start));
    }

    fn push(&mut self, record: Record) {
        if self.is_kept {
            self.count += 1;
            self.records.push(record);
        }
    }
}
