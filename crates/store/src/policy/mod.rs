//! Policies beside requests: the use clock, eviction, admission sketches and maintenance.

pub(crate) mod clock;
pub(crate) mod evict;
pub(crate) mod maintain;
pub(crate) mod rebase;
pub(crate) mod sketch;
