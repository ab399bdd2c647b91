//! Pages of a table's change stream: an export of all weights, then what changed since.

use crate::WireError;
use crate::limit::KEYS_MAX;
use crate::message::pull::{RowFormat, RowValues, read_dim, read_values, write_dim, write_values};
use crate::reader::{Reader, product};
use crate::writer::{Writer, agree};

/// A follower's place in the change stream of a table at one server. All zero: the start of an export of all rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChangesPlace {
    /// Epoch until which the follower has all changes; 0 during an export.
    pub since: u64,
    /// Epoch that the export or drain reaches; equal to `since` between two drains.
    pub until: u64,
    /// Where the next page goes on; 0 at the start of an export or drain.
    pub cursor: u64,
}

impl ChangesPlace {
    fn write(&self, out: &mut Writer<'_>) {
        out.u64(self.since);
        out.u64(self.until);
        out.u64(self.cursor);
    }

    fn read(from: &mut Reader<'_>) -> Result<ChangesPlace, WireError> {
        Ok(ChangesPlace { since: from.u64("since")?, until: from.u64("until")?, cursor: from.u64("cursor")? })
    }
}

/// Requests the next page of a table's change stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changes {
    /// Number of the table.
    pub table: u32,
    /// All zero, or the place of the last reply.
    pub place: ChangesPlace,
    /// Age in microseconds up to which the drain of another follower is used again.
    pub fresh_us: u32,
    /// Maximum number of keys, at most [`KEYS_MAX`].
    pub keys_max: u32,
    /// Format of the rows in the reply.
    pub format: RowFormat,
}

impl Changes {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        self.place.write(out);
        out.u32(self.fresh_us);
        out.count("keys_max", self.keys_max as usize, KEYS_MAX)?;
        out.pad();
        Ok(())
    }

    pub(crate) fn read(table: u32, format: RowFormat, from: &mut Reader<'_>) -> Result<Changes, WireError> {
        let place = ChangesPlace::read(from)?;
        let fresh_us = from.u32("fresh")?;
        let keys_max = from.count("keys_max", KEYS_MAX)? as u32;
        from.pad("keys_max")?;
        Ok(Changes { table, place, fresh_us, keys_max, format })
    }
}

/// Reply to [`Changes`]: the present weights of some keys, and keys that have no row any more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChangedRows<'a> {
    /// Place of the next page.
    pub next: ChangesPlace,
    /// Microseconds since the drain or export began. After its last page, the follower has all changes that are older.
    pub age_us: u64,
    /// More keys have changed than one drain takes; `age_us` holds after the last of them.
    pub has_more: bool,
    /// Weights per row.
    pub dim: u32,
    /// Keys of the rows, each once.
    pub keys: &'a [u64],
    /// Weights, row after row.
    pub values: RowValues<'a>,
    /// Keys without a row.
    pub removed: &'a [u64],
}

impl<'a> ChangedRows<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        let rows = self.keys.len();
        agree("rows", product("rows", rows, self.dim as usize)?, self.values.len())?;
        self.next.write(out);
        out.u64(self.age_us);
        out.count("rows", rows, KEYS_MAX)?;
        out.count("removed keys", self.removed.len(), KEYS_MAX)?;
        write_dim(self.dim, out)?;
        out.u8(self.has_more.into());
        out.pad();
        out.slice(self.keys);
        write_values(self.values, out);
        out.slice(self.removed);
        Ok(())
    }

    pub(crate) fn read(format: RowFormat, from: &mut Reader<'a>) -> Result<ChangedRows<'a>, WireError> {
        let next = ChangesPlace::read(from)?;
        let age_us = from.u64("age")?;
        let rows = from.count("rows", KEYS_MAX)?;
        let removed = from.count("removed keys", KEYS_MAX)?;
        let dim = read_dim(from)?;
        let has_more = from.bool("has more")?;
        from.pad("has more")?;
        let keys = from.slice("keys", rows)?;
        let values = read_values(format, product("rows", rows, dim as usize)?, from)?;
        let removed = from.slice("removed keys", removed)?;
        Ok(ChangedRows { next, age_us, has_more, dim, keys, values, removed })
    }
}
