//! Saving and restoring all tables of a server.

use crate::WireError;
use crate::limit::PATH_BYTES_MAX;
use crate::reader::Reader;
use crate::writer::Writer;

/// Saves all tables. The reply comes when they are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Save<'a> {
    /// Name of the checkpoint. The server decides the valid names and the place.
    pub name: &'a str,
}

impl<'a> Save<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.text("checkpoint", self.name, PATH_BYTES_MAX)
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Save<'a>, WireError> {
        Ok(Save { name: from.text("checkpoint", PATH_BYTES_MAX)? })
    }
}

/// Saves all tables as part of a save of several servers. The checkpoint `latest` still has no number, since each
/// server saves it at its own times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaveAs<'a> {
    /// Random number of the common save, not 0.
    pub number: u64,
    /// As in [`Save`].
    pub name: &'a str,
}

impl<'a> SaveAs<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u64(self.number);
        out.text("checkpoint", self.name, PATH_BYTES_MAX)
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<SaveAs<'a>, WireError> {
        Ok(SaveAs { number: from.u64("number of a save")?, name: from.text("checkpoint", PATH_BYTES_MAX)? })
    }
}

/// Reply to [`Save`] and [`SaveAs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saved {
    /// How often this checkpoint has been saved.
    pub generation: u64,
    /// Number of rows.
    pub rows: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Saved {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u64(self.generation);
        out.u64(self.rows);
        out.u64(self.bytes);
        Ok(())
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Saved, WireError> {
        Ok(Saved { generation: from.u64("generation")?, rows: from.u64("rows")?, bytes: from.u64("bytes")? })
    }
}

/// Replaces the tables of a server by those of a checkpoint. Clients must open their tables again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restore<'a> {
    /// As in [`Save`].
    pub name: &'a str,
}

impl<'a> Restore<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.text("checkpoint", self.name, PATH_BYTES_MAX)
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Restore<'a>, WireError> {
        Ok(Restore { name: from.text("checkpoint", PATH_BYTES_MAX)? })
    }
}

/// Reply to [`Restore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// Number of tables.
    pub tables: u64,
    /// Rows of this server.
    pub rows: u64,
}

impl Restored {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u64(self.tables);
        out.u64(self.rows);
        Ok(())
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Restored, WireError> {
        Ok(Restored { tables: from.u64("tables")?, rows: from.u64("rows")? })
    }
}
