//! Policies of a table: admission, eviction, the use clock, hot keys, and background maintenance.

pub(crate) mod admission;
pub(crate) mod clock;
pub(crate) mod cursor;
pub(crate) mod evict;
pub(crate) mod hot_keys;
pub(crate) mod maintain;
pub(crate) mod rebase;
pub(crate) mod sketch;
