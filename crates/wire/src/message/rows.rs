//! Whole rows with their state, out of a server and into another, and the removal of rows.

use crate::WireError;
use crate::limit::{KEYS_MAX, STATE_MAX};
use crate::message::pull::{read_dim, write_dim};
use crate::reader::{Reader, product};
use crate::writer::{Writer, agree};

/// Requests the next rows of a table. Concurrently created or removed rows may be among them or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Export {
    /// Number of the table.
    pub table: u32,
    /// 0, or `next` of the last reply.
    pub cursor: u64,
    /// Maximum number of rows, at most [`KEYS_MAX`].
    pub rows_max: u32,
}

impl Export {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u64(self.cursor);
        out.count("rows_max", self.rows_max as usize, KEYS_MAX)?;
        out.pad();
        Ok(())
    }

    pub(crate) fn read(table: u32, from: &mut Reader<'_>) -> Result<Export, WireError> {
        let cursor = from.u64("cursor")?;
        let rows_max = from.count("rows_max", KEYS_MAX)? as u32;
        from.pad("rows_max")?;
        Ok(Export { table, cursor, rows_max })
    }
}

/// Reply to [`Export`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exported<'a> {
    /// The next cursor, never 0. `None` after the last row.
    pub next: Option<u64>,
    /// The rows.
    pub rows: RowBlock<'a>,
}

impl<'a> Exported<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        if self.next == Some(0) {
            return Err(WireError::Value { what: "next", found: 0 });
        }
        out.u64(self.next.unwrap_or_default());
        self.rows.write(out)
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Exported<'a>, WireError> {
        let next = Some(from.u64("next")?).filter(|&next| next != 0);
        Ok(Exported { next, rows: RowBlock::read(from)? })
    }
}

/// Stores rows unchanged. Existing rows are replaced, so it may be repeated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Import<'a> {
    /// Number of the table.
    pub table: u32,
    /// The rows. No key occurs twice.
    pub rows: RowBlock<'a>,
}

/// Rows, column by column. Each column has one entry per key, or `dim` or `state` entries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowBlock<'a> {
    /// Weights per row.
    pub dim: u32,
    /// Values of optimizer state per row.
    pub state: u32,
    /// At most [`KEYS_MAX`].
    pub keys: &'a [u64],
    /// Occurrences in pushes.
    pub frequencies: &'a [u32],
    /// The table's use clock at the last push.
    pub last_uses: &'a [u32],
    /// Updates.
    pub versions: &'a [u32],
    /// Weights, row after row.
    pub weights: &'a [f32],
    /// Optimizer state, row after row.
    pub states: &'a [f32],
}

impl<'a> RowBlock<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        let rows = self.keys.len();
        agree("frequencies", rows, self.frequencies.len())?;
        agree("last_uses", rows, self.last_uses.len())?;
        agree("versions", rows, self.versions.len())?;
        agree("weights", product("weights", rows, self.dim as usize)?, self.weights.len())?;
        agree("states", product("states", rows, self.state as usize)?, self.states.len())?;
        out.count("rows", rows, KEYS_MAX)?;
        write_dim(self.dim, out)?;
        out.count("state", self.state as usize, STATE_MAX)?;
        out.pad();
        out.slice(self.keys);
        out.slice(self.frequencies);
        out.slice(self.last_uses);
        out.slice(self.versions);
        out.slice(self.weights);
        out.slice(self.states);
        Ok(())
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<RowBlock<'a>, WireError> {
        let rows = from.count("rows", KEYS_MAX)?;
        let dim = read_dim(from)?;
        let state = from.count("state", STATE_MAX)?;
        from.pad("state")?;
        Ok(RowBlock {
            dim,
            state: state as u32,
            keys: from.slice("keys", rows)?,
            frequencies: from.slice("frequencies", rows)?,
            last_uses: from.slice("last_uses", rows)?,
            versions: from.slice("versions", rows)?,
            weights: from.slice("weights", product("weights", rows, dim as usize)?)?,
            states: from.slice("states", product("states", rows, state)?)?,
        })
    }
}

/// Removes the rows of these keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delete<'a> {
    /// Number of the table.
    pub table: u32,
    /// At most [`KEYS_MAX`].
    pub keys: &'a [u64],
}

impl<'a> Delete<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.count("keys", self.keys.len(), KEYS_MAX)?;
        out.pad();
        out.slice(self.keys);
        Ok(())
    }

    pub(crate) fn read(table: u32, from: &mut Reader<'a>) -> Result<Delete<'a>, WireError> {
        let keys = from.count("keys", KEYS_MAX)?;
        from.pad("keys")?;
        Ok(Delete { table, keys: from.slice("keys", keys)? })
    }
}
