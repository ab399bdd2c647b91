//! Opening tables by name.

use std::sync::Arc;

use crate::refusal::Refusal;
use crate::state::State;
use crate::tables::Entry;

pub(crate) fn open(state: &State, name: &str) -> Result<Arc<Entry>, Refusal> {
    let directory = state.tables.directory();
    directory.named(name).cloned().ok_or_else(|| Refusal::no_table(&format!("{name:?}")))
}
