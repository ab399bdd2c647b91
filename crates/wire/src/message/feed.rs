//! Batches whose keys a hub sends ahead. The server keeps them by number until they are pushed.

use sanderling_pull::{Absent, Pooling};

use crate::WireError;
use crate::message::pull::{
    Ragged, RowFormat, read_absent, read_dim, read_pooling, write_absent, write_dim, write_pooling,
};
use crate::reader::Reader;
use crate::writer::Writer;

/// The keys of one feature of a batch. Feeding it again replaces it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Feed<'a> {
    /// Number of the table.
    pub table: u32,
    /// Number of the batch, chosen by the hub.
    pub batch: u64,
    /// Number of the feature. Features may share a table.
    pub feature: u32,
    /// Pooling of a sample's rows.
    pub pooling: Pooling,
    /// Keys, sample after sample.
    pub ragged: Ragged<'a>,
}

impl<'a> Feed<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u64(self.batch);
        out.u32(self.feature);
        self.ragged.write_counts(out)?;
        write_pooling(self.pooling, out);
        out.u8(self.ragged.values.is_some().into());
        out.pad();
        self.ragged.write(out);
        Ok(())
    }

    pub(crate) fn read(table: u32, from: &mut Reader<'a>) -> Result<Feed<'a>, WireError> {
        let (batch, feature) = (from.u64("batch")?, from.u32("feature")?);
        let (keys, samples) = Ragged::read_counts(from)?;
        let pooling = read_pooling(from)?;
        let has_values = from.bool("has values")?;
        from.pad("has values")?;
        Ok(Feed { table, batch, feature, pooling, ragged: Ragged::read(keys, samples, has_values, from)? })
    }
}

/// Requests the pooled rows of a fed batch. The reply is a [`PullReply`](crate::PullReply) with a row per sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullFed {
    /// Number of the table.
    pub table: u32,
    /// As in [`Feed`].
    pub batch: u64,
    /// As in [`Feed`].
    pub feature: u32,
    /// Row length that the client expects.
    pub dim: u32,
    /// The result for keys without a row.
    pub absent: Absent,
    /// Format of the rows in the reply.
    pub format: RowFormat,
}

impl PullFed {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u64(self.batch);
        out.u32(self.feature);
        write_dim(self.dim, out)?;
        write_absent(self.absent, out);
        out.pad();
        Ok(())
    }

    pub(crate) fn read(table: u32, format: RowFormat, from: &mut Reader<'_>) -> Result<PullFed, WireError> {
        let (batch, feature) = (from.u64("batch")?, from.u32("feature")?);
        let dim = read_dim(from)?;
        let absent = read_absent(from)?;
        from.pad("absent")?;
        Ok(PullFed { table, batch, feature, dim, absent, format })
    }
}

/// Removes the keys of one feature of a fed batch, if they are there, because it will not be pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forget {
    /// Number of the table.
    pub table: u32,
    /// As in [`Feed`].
    pub batch: u64,
    /// As in [`Feed`].
    pub feature: u32,
}

impl Forget {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u64(self.batch);
        out.u32(self.feature);
        out.pad();
        Ok(())
    }

    pub(crate) fn read(table: u32, from: &mut Reader<'_>) -> Result<Forget, WireError> {
        let (batch, feature) = (from.u64("batch")?, from.u32("feature")?);
        from.pad("feature")?;
        Ok(Forget { table, batch, feature })
    }
}
