//! Pushes of gradients.

use crate::WireError;
use crate::frame::flag;
use crate::limit::{KEYS_MAX, SAMPLES_MAX};
use crate::message::pull::{read_dim, write_dim};
use crate::reader::{Reader, product};
use crate::writer::{Writer, agree};

/// One gradient per distinct key.
///
/// A client numbers its pushes. The server applies each number of a client at most once, so a push may be sent again
/// after a broken connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Push<'a> {
    /// Number of the table.
    pub table: u32,
    /// Random number of the client.
    pub client: u64,
    /// Number of this message among the client's pushes, ascending.
    pub sequence: u64,
    /// Whether an earlier message of the same push has advanced the table's use clock.
    ///
    /// Encoding does not check that [`Features::PUSH_PARTS`](crate::Features::PUSH_PARTS) was negotiated.
    pub continues: bool,
    /// Weights per row.
    pub dim: u32,
    /// Factor of the learning rate for this push.
    pub lr_scale: f32,
    /// Distinct; at most [`KEYS_MAX`].
    pub keys: &'a [u64],
    /// Occurrences of each key in the batch.
    pub counts: &'a [u32],
    /// A row of `dim` values per key.
    pub grads: &'a [f32],
}

impl<'a> Push<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        agree("counts", self.keys.len(), self.counts.len())?;
        agree("grads", product("grads", self.keys.len(), self.dim as usize)?, self.grads.len())?;
        out.u64(self.client);
        out.u64(self.sequence);
        out.count("keys", self.keys.len(), KEYS_MAX)?;
        write_dim(self.dim, out)?;
        out.f32(self.lr_scale);
        out.pad();
        out.slice(self.keys);
        out.slice(self.counts);
        out.slice(self.grads);
        Ok(())
    }

    pub(crate) fn read(table: u32, flags: u16, from: &mut Reader<'a>) -> Result<Push<'a>, WireError> {
        let continues = flags & flag::CONTINUES != 0;
        let (client, sequence) = (from.u64("client")?, from.u64("sequence")?);
        let count = from.count("keys", KEYS_MAX)?;
        let dim = read_dim(from)?;
        let lr_scale = from.f32("lr_scale")?;
        from.pad("lr_scale")?;
        let keys = from.slice("keys", count)?;
        let counts = from.slice("counts", count)?;
        let grads = from.slice("grads", product("grads", count, dim as usize)?)?;
        Ok(Push { table, client, sequence, continues, dim, lr_scale, keys, counts, grads })
    }
}

/// One gradient per sample of a fed batch. The server spreads it over the pooled rows and removes the batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PushFed<'a> {
    /// Number of the table.
    pub table: u32,
    /// As in [`Push`].
    pub client: u64,
    /// As in [`Push`].
    pub sequence: u64,
    /// As in [`Feed`](crate::Feed).
    pub batch: u64,
    /// As in [`Feed`](crate::Feed).
    pub feature: u32,
    /// Weights per row.
    pub dim: u32,
    /// Factor of the learning rate for this push.
    pub lr_scale: f32,
    /// A row of `dim` values per sample.
    pub grads: &'a [f32],
}

impl<'a> PushFed<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        let samples = self.grads.len() / (self.dim as usize).max(1);
        agree("grads", product("grads", samples, self.dim as usize)?, self.grads.len())?;
        out.u64(self.client);
        out.u64(self.sequence);
        out.u64(self.batch);
        out.u32(self.feature);
        out.count("samples", samples, SAMPLES_MAX)?;
        write_dim(self.dim, out)?;
        out.f32(self.lr_scale);
        out.slice(self.grads);
        Ok(())
    }

    pub(crate) fn read(table: u32, from: &mut Reader<'a>) -> Result<PushFed<'a>, WireError> {
        let (client, sequence) = (from.u64("client")?, from.u64("sequence")?);
        let (batch, feature) = (from.u64("batch")?, from.u32("feature")?);
        let samples = from.count("samples", SAMPLES_MAX)?;
        let dim = read_dim(from)?;
        let lr_scale = from.f32("lr_scale")?;
        let grads = from.slice("grads", product("grads", samples, dim as usize)?)?;
        Ok(PushFed { table, client, sequence, batch, feature, dim, lr_scale, grads })
    }
}

/// Reply to a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pushed {
    /// Whether an earlier request with this number had applied the push.
    pub repeated: bool,
}

impl Pushed {
    pub(crate) fn write(self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u8(self.repeated.into());
        out.pad();
        Ok(())
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Pushed, WireError> {
        let repeated = from.bool("repeated")?;
        from.pad("repeated")?;
        Ok(Pushed { repeated })
    }
}
