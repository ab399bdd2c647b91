//! Errors of the store. Each names the table or the file, the fault, and the effect on the request.

use std::path::PathBuf;

/// Errors of tables and checkpoints.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The table configuration is invalid, for example a dim of 0 or a learning rate that is not positive.
    #[error("table {table:?}: {reason}")]
    Config {
        /// Name of the table.
        table: String,
        /// The fault and the valid values.
        reason: String,
    },
    /// A slice of the request has the wrong length; nothing was read or applied.
    #[error("table {table:?}: {what} has length {found}, expected {expected}")]
    Length {
        /// Name of the table.
        table: String,
        /// Name of the slice.
        what: &'static str,
        /// Expected length.
        expected: usize,
        /// Actual length.
        found: usize,
    },
    /// Offsets of a pooled pull are not `0 <= o[0] <= o[1] <= ... == keys.len()`; nothing was read.
    #[error("table {table:?}: offsets: {reason}")]
    Offsets {
        /// Name of the table.
        table: String,
        /// The wrong offset and the reason.
        reason: String,
    },
    /// A gradient, after duplicates were summed, is NaN, infinite or at least
    /// [`GRADIENT_ABS_MAX`](crate::GRADIENT_ABS_MAX); nothing of the request was applied.
    #[error(
        "table {table:?}: gradient of key {key}, coordinate {coordinate} is {value:e}; nothing of this push was applied: clip \
         gradients, lower the learning rate or bound the inputs"
    )]
    BadGradient {
        /// Name of the table.
        table: String,
        /// The key.
        key: u64,
        /// Coordinate within the row.
        coordinate: usize,
        /// The rejected gradient.
        value: f32,
    },
    /// The update of `rows` rows would not be finite; these rows are unchanged. All other rows of the request were
    /// updated exactly once.
    #[error(
        "table {table:?}: the update of key {key} is not finite; its row and {} others of this push are unchanged: lower the \
         learning rate or clip gradients",
        rows - 1
    )]
    NotFinite {
        /// Name of the table.
        table: String,
        /// Key of the first such row.
        key: u64,
        /// Number of unchanged rows.
        rows: u64,
    },
    /// The learning rate factor of a push is negative or not finite, or the scaled learning rate is not finite;
    /// nothing was applied.
    #[error(
        "table {table:?}: learning rate factor {lr_scale} must be finite and not negative, and so must the scaled learning rate"
    )]
    BadScale {
        /// Name of the table.
        table: String,
        /// The factor.
        lr_scale: f32,
    },
    /// This thread holds a [`TableWriter`](crate::TableWriter) of the table and would deadlock; nothing was
    /// applied.
    #[error(
        "table {table:?}: this thread holds a writer of the table, which excludes other changes: drop the writer first"
    )]
    Writing {
        /// Name of the table.
        table: String,
    },
    /// An imported row is invalid; nothing of the request was applied.
    #[error("table {table:?}: row of key {key}: {reason}; nothing of this import was applied")]
    BadRow {
        /// Name of the table.
        table: String,
        /// The key.
        key: u64,
        /// The fault of the row.
        reason: String,
    },
    /// A row is not finite, so that its table cannot be saved: the checkpoint could not be loaded.
    #[error(
        "table {table:?}: row of key {key} diverged: {reason}; nothing was saved, earlier checkpoints are unchanged: lower \
         the learning rate, and remove the row or restart training"
    )]
    Diverged {
        /// Name of the table.
        table: String,
        /// The key.
        key: u64,
        /// The fault of the row.
        reason: String,
    },
    /// The changes since this epoch are not kept any more; nothing was drained.
    #[error(
        "table {table:?}: the changes since epoch {epoch} are not kept (the oldest is {oldest}): subscribe again, and start from \
         an export of all rows"
    )]
    StreamTooLate {
        /// Name of the table.
        table: String,
        /// Epoch of the subscriber.
        epoch: u64,
        /// The oldest epoch from which a subscriber can go on; 0 without any subscription.
        oldest: u64,
    },
    /// A delta cannot be added to the checkpoint; the checkpoint is unchanged.
    #[error("{}: no delta is possible: {reason}: save a full checkpoint", path.display())]
    NoDelta {
        /// The checkpoint directory.
        path: PathBuf,
        /// The obstacle.
        reason: String,
    },
    /// The budget has no room for new rows. Keys with a row, and new keys that found room, were updated exactly
    /// once. The other `rejected` new keys got no row.
    #[error(
        "table {table:?} is full: {rows} rows, {}, {rejected} new keys of this request were rejected: {} budget_bytes or remove rows",
        room(*budget_bytes),
        if *budget_bytes == u64::MAX { "set" } else { "raise" }
    )]
    TableFull {
        /// Name of the table.
        table: String,
        /// Rows in the table after the request.
        rows: u64,
        /// The configured budget; `u64::MAX` if the table has none and its address space is used up, or if the file
        /// system of a kept table has no space.
        budget_bytes: u64,
        /// Distinct keys of the request without a row.
        rejected: u64,
    },
    /// A file operation failed.
    #[error("{}: {action}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operation that failed.
        action: &'static str,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A checkpoint file was truncated, changed, or written by another program.
    #[error("{}: damaged checkpoint file: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The mismatch.
        reason: String,
    },
    /// A newer format wrote the checkpoint file.
    #[error("{}: format version {found} is not supported (this build reads {supported})", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Version in the file.
        found: u32,
        /// Version that this build reads.
        supported: u32,
    },
    /// A checkpoint got two tables or two blobs with the same name.
    #[error("checkpoint: a {kind} named {name:?} was already written: choose a unique name")]
    DuplicateName {
        /// "table" or "blob".
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// The checkpoint has no table or blob with the requested name.
    #[error("{}: no {kind} named {name:?} (there are: {available})", path.display())]
    NotFound {
        /// The checkpoint directory.
        path: PathBuf,
        /// "table" or "blob".
        kind: &'static str,
        /// The requested name.
        name: String,
        /// The available names.
        available: String,
    },
}

/// The exhausted resource of a full table.
fn room(budget_bytes: u64) -> String {
    match budget_bytes {
        u64::MAX => "no budget, address space or kept table's file system used up".to_owned(),
        bytes => format!("budget {bytes} bytes"),
    }
}
