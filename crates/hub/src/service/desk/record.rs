//! What a desk has done that a hub must know again after a crash, in order, until somebody has written it down. Knows no file.

use super::PassStart;

/// One change, by the names of trainers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// A trainer has acknowledged these minibatches.
    Used { trainer: String, numbers: Vec<u64> },
    /// A trainer has come that was not known, or was counted on no more.
    Came { trainer: String },
    /// A trainer is counted on no more: what it had is anybody's.
    Gone { trainer: String },
    /// A pass begins with this minibatch.
    Pass(PassStart),
}

/// The changes that are not written down yet.
#[derive(Debug, Default)]
pub(super) struct Log {
    is_kept: bool,
    records: Vec<Record>,
    /// How many changes there were, taken ones included.
    count: u64,
    /// What the count was after the latest [`Record::Gone`].
    gone: u64,
}

impl Log {
    /// One that keeps changes, or forgets them at once if nobody writes them down.
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
