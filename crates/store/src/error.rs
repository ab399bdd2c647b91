//! Errors of the store: each names the table or the file, what was wrong, and what was done about the request.

use std::path::PathBuf;

/// What can go wrong with a table or a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A table's configuration is impossible: a zero dim, a learning rate that is not a positive number.
    #[error("table {table:?}: {reason}")]
    Config {
        /// Name of the table.
        table: String,
        /// What is wrong and what is allowed.
        reason: String,
    },
    /// A slice of a request has the wrong length; nothing was read or applied.
    #[error("table {table:?}: {what} has length {found}, expected {expected}")]
    Length {
        /// Name of the table.
        table: String,
        /// Which slice.
        what: &'static str,
        /// Length that the other arguments demand.
        expected: usize,
        /// Length it has.
        found: usize,
    },
    /// Offsets of a pooled pull are not `0 <= o[0] <= o[1] <= ... == keys.len()`; nothing was read.
    #[error("table {table:?}: offsets: {reason}")]
    Offsets {
        /// Name of the table.
        table: String,
        /// Which offset is wrong, and why.
        reason: String,
    },
    /// A gradient (after summing duplicates) is NaN, infinite, or so large that its square overflows; nothing of
    /// the request was applied.
    #[error(
        "table {table:?}: gradient of key {key}, coordinate {coordinate} is {value:e}: nothing of this push was applied; bound what it \
         comes from, lower the learning rate, or clip gradients"
    )]
    BadGradient {
        /// Name of the table.
        table: String,
        /// The key.
        key: u64,
        /// Coordinate within the row.
        coordinate: usize,
        /// The offending gradient.
        value: f32,
    },
    /// The update of a row would not be finite. That row stays as it was, and so do `rows - 1` others; all others of the
    /// request were updated exactly once.
    #[error(
        "table {table:?}: the update of key {key} is not finite: its row, and {} others of this push, stay as they were; lower the \
         learning rate or clip gradients",
        rows - 1
    )]
    NotFinite {
        /// Name of the table.
        table: String,
        /// The first such key.
        key: u64,
        /// Rows that stay as they were.
        rows: u64,
    },
    /// A push's learning rate factor is not finite or below 0, or with it a learning rate is not finite; nothing was applied.
    #[error(
        "table {table:?}: learning rate factor {lr_scale} must be finite and not below zero, and the learning rate times it finite"
    )]
    BadScale {
        /// Name of the table.
        table: String,
        /// The factor.
        lr_scale: f32,
    },
    /// This thread has a [`TableWriter`](crate::TableWriter) of the table, and would wait for itself; nothing was applied.
    #[error(
        "table {table:?}: this thread has a writer of the table, and nothing else can change it meanwhile: drop the writer first"
    )]
    Writing {
        /// Name of the table.
        table: String,
    },
    /// A row to be imported cannot be one of the table; nothing of the request was applied.
    #[error("table {table:?}: row of key {key}: {reason}: nothing of this import was applied")]
    BadRow {
        /// Name of the table.
        table: String,
        /// The key.
        key: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A row is not finite any more: its table cannot be saved, since nobody could load it.
    #[error(
        "table {table:?}: row of key {key}: {reason}, since it diverged: nothing was saved, and what was saved before stays; lower \
         the learning rate, and remove the row or begin anew"
    )]
    Diverged {
        /// Name of the table.
        table: String,
        /// The key.
        key: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// No room for new rows within the budget. The keys that had a row, and the new keys that still found room,
    /// were updated exactly once; `rejected` new keys were left out entirely, no row was created for them.
    #[error(
        "table {table:?} is full: {rows} rows, {}, {rejected} new keys of this request were left out; {} budget_bytes or remove rows",
        room(*budget_bytes),
        if *budget_bytes == u64::MAX { "set" } else { "raise" }
    )]
    TableFull {
        /// Name of the table.
        table: String,
        /// Rows in the table after the request.
        rows: u64,
        /// The configured budget (`u64::MAX` when the limit was the number of rows that a table has addresses for).
        budget_bytes: u64,
        /// Distinct keys of the request that were not applied.
        rejected: u64,
    },
    /// A file operation failed.
    #[error("{}: {action}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file of a checkpoint is not what was written: cut, changed, or not ours.
    #[error("{}: damaged checkpoint file: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// A file of a checkpoint was written by a newer format.
    #[error("{}: format version {found} is not supported (this build reads {supported})", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Version in the file.
        found: u32,
        /// Version that this build reads.
        supported: u32,
    },
    /// A checkpoint was given two tables or two blobs of one name.
    #[error("checkpoint: a {kind} named {name:?} was already written; names must be unique")]
    DuplicateName {
        /// "table" or "blob".
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A checkpoint does not hold what was asked for.
    #[error("{}: no {kind} named {name:?} (there are: {available})", path.display())]
    NotFound {
        /// The checkpoint directory.
        path: PathBuf,
        /// "table" or "blob".
        kind: &'static str,
        /// The name that was asked for.
        name: String,
        /// The names that exist.
        available: String,
    },
}

/// What a table is full of.
fn room(budget_bytes: u64) -> String {
    match budget_bytes {
        u64::MAX => "as many as its share of the address space holds without a budget".to_owned(),
        bytes => format!("budget {bytes} bytes"),
    }
}
