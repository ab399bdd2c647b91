//! Feeds the keys of some features to the servers that pool their rows, before a minibatch is leased. Knows no table
//! and no server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use sanderling_sample::{PackedBatch, PackedBuffer, PackedError, Rows, pack_without, packed_bytes_max};

use super::error::ServiceError;
use super::lease_queue::LeaseQueue;
use super::leases::{Fed, Minibatch};

/// Minibatches that are fed together, so that they share one round trip to the servers.
const AT_ONCE: usize = 8;

/// Feeds keys to the servers that pool their rows.
pub trait KeyFeeder: Send {
    /// Feeds minibatches and notes the fed columns of each; none, if that is better. Retries until `stopped` is set
    /// or its patience has ended.
    ///
    /// # Errors
    /// A sentence that tells the user why it cannot go on. The hub then has failed.
    fn feed(&mut self, minibatches: &mut [Feeding<'_>], stopped: &AtomicBool) -> Result<(), String>;
}

/// A minibatch to be fed.
#[derive(Debug)]
pub struct Feeding<'a> {
    /// Its rows, all columns of the hub's spec.
    pub rows: Rows<'a>,
    /// The part that was fed.
    pub fed: FedColumns,
}

/// The part of a minibatch that was fed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FedColumns {
    /// The number by which the servers know the batch. A feature's number there is its column.
    pub batch: u64,
    /// The columns, ascending.
    pub columns: Vec<u32>,
    /// Version of the placement by which the keys were shared out.
    pub placement_version: u64,
    /// How many servers there are.
    pub servers: u32,
    /// Per column, how many keys each server got, repetitions included: [columns, servers].
    pub keys: Vec<u32>,
}

/// The state of the feeding thread.
pub(super) struct Table {
    pub(super) feeder: Box<dyn KeyFeeder>,
    pub(super) lease_queue: Arc<LeaseQueue>,
    pub(super) started: Instant,
    /// Longest payload that fits into a frame.
    pub(super) payload_bytes_max: usize,
    pub(super) stopped: Arc<AtomicBool>,
}

impl Table {
    /// Feeds until it is stopped.
    pub(super) fn run(mut self) -> Result<(), ServiceError> {
        let mut left = Vec::new();
        while let Some(next) = self.lease_queue.to_feed(AT_ONCE, &self.stopped) {
            let batches: Vec<PackedBatch> =
                next.iter().map(|(number, batch)| parse(*number, batch)).collect::<Result<_, _>>()?;
            let mut feedings: Vec<Feeding<'_>> = Vec::new();
            for batch in &batches {
                feedings.push(Feeding { rows: batch.rows(), fed: FedColumns::default() });
            }
            let fed = self.feeder.feed(&mut feedings, &self.stopped);
            if self.stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            fed.map_err(|reason| ServiceError::Feed { reason })?;
            let at_us = self.started.elapsed().as_micros() as u64;
            for ((number, _), Feeding { rows, fed }) in next.iter().zip(feedings) {
                let fed = self
                    .measured(&rows, fed, at_us, &mut left)
                    .map_err(|error| ServiceError::packed(*number, &error))?;
                self.lease_queue.leases().fed(*number, fed);
            }
        }
        Ok(())
    }

    /// The feeding to keep. `None` if its message, which replaces the keys, is too long for a frame: then the
    /// minibatch goes out with all keys. `left` is memory for the rest of the minibatch.
    fn measured(
        &self,
        rows: &Rows<'_>,
        fed: FedColumns,
        at_us: u64,
        left: &mut Vec<u8>,
    ) -> Result<Fed, PackedError> {
        let FedColumns { batch, mut columns, placement_version, servers, mut keys } = fed;
        let mut bytes = 0;
        if !columns.is_empty() {
            bytes = pack_rest(rows, &columns, left)?;
            let said = size_of::<u32>() * (columns.len() + keys.len() + 2);
            if bytes + said > self.payload_bytes_max {
                (columns, keys, bytes) = (Vec::new(), Vec::new(), 0);
            }
        }
        Ok(Fed { batch, columns, placement_version, servers, keys, bytes, at_us })
    }
}

/// The rest of a minibatch without the fed keys, packed.
pub(super) fn rest(number: u64, batch: &Minibatch, fed: &Fed) -> Result<Vec<u8>, ServiceError> {
    let (whole, mut left) = (parse(number, batch)?, Vec::new());
    let bytes = pack_rest(&whole.rows(), &fed.columns, &mut left);
    left.truncate(bytes.map_err(|error| ServiceError::packed(number, &error))?);
    Ok(left)
}

/// Packs rows without the keys of these columns at the start of `left`; returns the length.
fn pack_rest(rows: &Rows<'_>, columns: &[u32], left: &mut Vec<u8>) -> Result<usize, PackedError> {
    // Zeros replace boundaries, and boundaries that were shared with such a column are stored.
    let more = (columns.len() + 1) * (size_of::<u32>() * (rows.len() + 1) + 2 * LINE_BYTES);
    left.resize(packed_bytes_max(rows) + more, 0);
    pack_without(rows, columns, left)
}

/// Arrays of a packed batch begin at multiples of this.
const LINE_BYTES: usize = sanderling_sample::PACKED_ALIGN_BYTES;

fn parse(number: u64, batch: &Minibatch) -> Result<PackedBatch, ServiceError> {
    let mut buffer = PackedBuffer::new();
    buffer.resize(batch.payload.len()).copy_from_slice(&batch.payload);
    PackedBatch::parse(buffer).map_err(|error| ServiceError::packed(number, &error))
}
