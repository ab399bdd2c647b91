//! Faults of the protocol that tests plant, to show that they would be found.

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Rows are updated without a copy of their old words.
    NoUndo,
    /// The copy of a row is forgotten before the update.
    UndoEndsEarly,
    /// A slot's row is stored before its hash.
    RowBeforeHash,
    /// The record of a key is ended before the change.
    RecordEndsEarly,
    /// Exchanges are not recorded.
    NoRedo,
    /// A share counts as moved before its keys are copied.
    MovedEarly,
    /// Rows are charged after they are used.
    NoCharge,
    /// Recovery ends the records before it has mended the index, so that it cannot be repeated.
    RecordsEndFirst,
    /// A row without a key is not found again.
    LeakedRow,
}

/// All faults.
#[cfg(test)]
pub(crate) const ALL: [Fault; 9] = [
    Fault::NoUndo,
    Fault::UndoEndsEarly,
    Fault::RowBeforeHash,
    Fault::RecordEndsEarly,
    Fault::NoRedo,
    Fault::MovedEarly,
    Fault::NoCharge,
    Fault::RecordsEndFirst,
    Fault::LeakedRow,
];

#[cfg(test)]
thread_local! {
    /// The planted fault of this thread, plus one.
    pub(crate) static PLANTED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Whether a test has planted this fault.
#[inline(always)]
pub(crate) fn is(fault: Fault) -> bool {
    #[cfg(test)]
    return PLANTED.get() == fault as usize + 1;
    #[cfg(not(test))]
    {
        let _ = fault;
        false
    }
}
