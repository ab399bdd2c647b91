//! The change stream of a table: which rows changed, and their present values, for delta checkpoints and replicas.
//!
//! Writers mark rows ([`notes`]); a drain begins an epoch ([`epochs`]), reads the marked rows and hands them out in
//! frames ([`stream`]) or in pages ([`pages`]).

pub(crate) mod epochs;
pub(crate) mod frame;
#[cfg(all(test, loom))]
mod model;
pub(crate) mod notes;
pub(crate) mod pages;
mod progress;
pub(crate) mod stream;
