//! The first minibatch number of each pass. Knows no minibatch.

use std::collections::VecDeque;

/// The number of a pass's first minibatch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PassStart {
    pub(crate) pass: u64,
    pub(crate) first: u64,
}

/// Forgets passes that ended before `prefix`; the first that stays is that of `prefix`.
pub(super) fn forget(passes: &mut VecDeque<PassStart>, prefix: u64) {
    while passes.get(1).is_some_and(|next| next.first <= prefix) {
        passes.pop_front();
    }
}
