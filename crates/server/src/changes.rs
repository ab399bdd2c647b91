//! Pages of a table's change stream for followers: weights only, in the format that the follower asked for. The server
//! keeps nothing per follower.

use std::time::Duration;

use sanderling_store::{FollowOptions, StreamPlace};
use sanderling_wire::{
    Agreed, ChangedRows, Changes, ChangesPlace, Fault, Features, RowFormat, RowValues, narrow,
};

use crate::limit::CHANGE_KEYS_MAX;
use crate::refusal::Refusal;
use crate::tables::Entry;

/// Bytes of a reply besides its rows, including padding.
const HEAD_BYTES: usize = 256;

/// The columns of a page.
#[derive(Debug)]
pub(crate) struct ChangedPage {
    next: ChangesPlace,
    age: Duration,
    has_more: bool,
    keys: Vec<u64>,
    values: Vec<f32>,
    halves: Vec<u16>,
    format: RowFormat,
    removed: Vec<u64>,
}

impl ChangedPage {
    /// Reads the next page of a follower, as many keys as fit a frame.
    pub(crate) fn read(entry: &Entry, changes: &Changes, agreed: &Agreed) -> Result<ChangedPage, Refusal> {
        let is_half = changes.format == RowFormat::F16 && agreed.features.has(Features::F16_ROWS);
        let (dim, width) = (entry.dim() as usize, if is_half { 2 } else { 4 });
        let key_bytes = size_of::<u64>() + dim * width;
        let keys_max =
            ((agreed.frame_bytes_max as usize - HEAD_BYTES) / key_bytes).min(changes.keys_max as usize);
        if keys_max == 0 {
            let (bytes, bytes_max) = ((HEAD_BYTES + key_bytes) as u64, u64::from(agreed.frame_bytes_max));
            let reason = "not even one row fits, or none was asked for";
            return Err(Refusal::new(Fault::TooLarge { bytes, bytes_max }, reason));
        }
        let options = FollowOptions {
            fresh: Duration::from_micros(changes.fresh_us.into()),
            keys: keys_max,
            keys_kept: CHANGE_KEYS_MAX,
        };
        let ChangesPlace { since, until, cursor } = changes.place;
        let (mut keys, mut values, mut removed) = (Vec::new(), Vec::new(), Vec::new());
        let place = StreamPlace { since, until, cursor };
        let page = entry.table.follow_changes(
            place,
            &options,
            |_| true,
            |key, row| match row {
                None => removed.push(key),
                Some(row) => {
                    keys.push(key);
                    values.extend_from_slice(row.weights);
                }
            },
        )?;
        let mut halves = Vec::new();
        if is_half {
            halves.resize(values.len(), 0);
            narrow(&values, &mut halves);
        }
        let StreamPlace { since, until, cursor } = page.next;
        Ok(ChangedPage {
            next: ChangesPlace { since, until, cursor },
            age: page.age,
            has_more: page.has_more,
            keys,
            values,
            halves,
            format: if is_half { RowFormat::F16 } else { RowFormat::F32 },
            removed,
        })
    }

    pub(crate) fn reply(&self, dim: u32) -> ChangedRows<'_> {
        ChangedRows {
            next: self.next,
            age_us: u64::try_from(self.age.as_micros()).unwrap_or(u64::MAX),
            has_more: self.has_more,
            dim,
            keys: &self.keys,
            values: match self.format {
                RowFormat::F32 => RowValues::F32(&self.values),
                RowFormat::F16 => RowValues::F16(&self.halves),
            },
            removed: &self.removed,
        }
    }
}
