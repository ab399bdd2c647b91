//! Batches whose keys a server of these tests was fed, kept as they came. Every key is an occurrence of its own here: rows
//! and gradients are those of `Table::pull_pooled` and `Table::push`.

use sanderling_store::{Absent, Pooling, PushScale, StoreError, Table};
use sanderling_wire as wire;

/// Keys of one feature of a batch.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    keys: Vec<u64>,
    offsets: Vec<u32>,
    values: Option<Vec<f32>>,
    pooling: Pooling,
}

impl Kept {
    pub(crate) fn of(feed: &wire::Feed<'_>) -> Kept {
        let wire::Ragged { keys, offsets, values } = feed.ragged;
        Kept {
            keys: keys.into(),
            offsets: offsets.into(),
            values: values.map(Into::into),
            pooling: feed.pooling,
        }
    }

    pub(crate) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Rows of the samples, and positions of keys without a row.
    pub(crate) fn pull(&self, table: &Table, absent: Absent) -> Result<(Vec<f32>, Vec<u32>), StoreError> {
        let mut rows = vec![0.0; (self.offsets.len() - 1) * table.dim()];
        let mut missing = Vec::new();
        let values = self.values.as_deref();
        let Kept { keys, offsets, pooling, .. } = self;
        table.pull_pooled(keys, values, offsets, *pooling, absent, &mut rows, Some(&mut missing))?;
        Ok((rows, missing))
    }

    pub(crate) fn push(&self, table: &Table, samples: &[f32], scale: PushScale) -> Result<(), StoreError> {
        let values = self.values.as_deref();
        let grads = spread(&self.offsets, values, self.pooling, samples, table.dim());
        table.push(&self.keys, &grads, scale)
    }
}

/// The gradient of every key's row, if those of the pooled rows are these.
pub(crate) fn spread(
    offsets: &[u32],
    values: Option<&[f32]>,
    pooling: Pooling,
    samples: &[f32],
    dim: usize,
) -> Vec<f32> {
    let mut grads = Vec::new();
    for (span, grad) in offsets.windows(2).zip(samples.chunks_exact(dim)) {
        for at in span[0] as usize..span[1] as usize {
            let value = values.map_or(1.0, |values| values[at]);
            let share = if pooling == Pooling::Mean { value / (span[1] - span[0]) as f32 } else { value };
            grads.extend(grad.iter().map(|grad| share * grad));
        }
    }
    grads
}
