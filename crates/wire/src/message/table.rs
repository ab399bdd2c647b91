//! Creating, opening and listing tables. Their configuration is text that this crate does not read.

use crate::WireError;
use crate::limit::{CONFIG_BYTES_MAX, DIM_MAX, NAME_BYTES_MAX, STATE_MAX, TABLES_MAX};
use crate::reader::Reader;
use crate::writer::Writer;

/// The placement of a table's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// On all servers, by the slots of the keys.
    Sharded,
    /// All on one server, an index into the placement's servers.
    Pinned(u32),
}

impl Home {
    const SHARDED: u32 = u32::MAX;

    fn write(self, out: &mut Writer<'_>) -> Result<(), WireError> {
        match self {
            Home::Sharded => out.u32(Home::SHARDED),
            Home::Pinned(Home::SHARDED) => {
                return Err(WireError::Value { what: "pinned server", found: Home::SHARDED.into() });
            }
            Home::Pinned(server) => out.u32(server),
        }
        Ok(())
    }

    fn read(from: &mut Reader<'_>) -> Result<Home, WireError> {
        Ok(match from.u32("home")? {
            Home::SHARDED => Home::Sharded,
            server => Home::Pinned(server),
        })
    }
}

/// Creates a table, or finds the table with this name and configuration. It may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Create<'a> {
    /// Placement of the rows.
    pub home: Home,
    /// Its name.
    pub name: &'a str,
    /// The configuration, as JSON.
    pub config: &'a str,
}

impl<'a> Create<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        self.home.write(out)?;
        out.pad();
        out.text("name", self.name, NAME_BYTES_MAX)?;
        out.text("config", self.config, CONFIG_BYTES_MAX)
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Create<'a>, WireError> {
        let home = Home::read(from)?;
        from.pad("home")?;
        let name = from.text("name", NAME_BYTES_MAX)?;
        Ok(Create { home, name, config: from.text("config", CONFIG_BYTES_MAX)? })
    }
}

/// A server's description of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableInfo<'a> {
    /// Number of the table until the server's next start, not 0.
    pub table: u32,
    /// Placement of the rows.
    pub home: Home,
    /// Weights per row.
    pub dim: u32,
    /// Values of optimizer state per row.
    pub state: u32,
    /// Rows on this server.
    pub rows: u64,
    /// Bytes of memory on this server.
    pub bytes: u64,
    /// Its name.
    pub name: &'a str,
    /// Its configuration, as JSON.
    pub config: &'a str,
}

impl<'a> TableInfo<'a> {
    /// With empty texts.
    const BYTES_MIN: usize = 48;

    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u32(self.table);
        self.home.write(out)?;
        out.count("dim", self.dim as usize, DIM_MAX)?;
        out.count("state", self.state as usize, STATE_MAX)?;
        out.u64(self.rows);
        out.u64(self.bytes);
        out.text("name", self.name, NAME_BYTES_MAX)?;
        out.text("config", self.config, CONFIG_BYTES_MAX)
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<TableInfo<'a>, WireError> {
        Ok(TableInfo {
            table: from.u32("table")?,
            home: Home::read(from)?,
            dim: from.count("dim", DIM_MAX)? as u32,
            state: from.count("state", STATE_MAX)? as u32,
            rows: from.u64("rows")?,
            bytes: from.u64("bytes")?,
            name: from.text("name", NAME_BYTES_MAX)?,
            config: from.text("config", CONFIG_BYTES_MAX)?,
        })
    }

    pub(crate) fn write_all(infos: &[TableInfo<'_>], out: &mut Writer<'_>) -> Result<(), WireError> {
        out.count("tables", infos.len(), TABLES_MAX)?;
        out.pad();
        infos.iter().try_for_each(|info| info.write(out))
    }

    pub(crate) fn read_all(from: &mut Reader<'a>) -> Result<Vec<TableInfo<'a>>, WireError> {
        let count = from.list("tables", TABLES_MAX, TableInfo::BYTES_MIN)?;
        from.pad("tables")?;
        let mut infos = Vec::with_capacity(count);
        for _ in 0..count {
            infos.push(TableInfo::read(from)?);
        }
        Ok(infos)
    }
}
