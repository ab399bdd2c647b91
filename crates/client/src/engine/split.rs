//! Cuts requests over the rows of a table into messages, by server and size. Does not place the rows of an answer.

use std::ops::Range;

use sanderling_store::{Absent, Dedup, Pooling, PushScale, StoreError, bad_gradient, gather};
use sanderling_wire::{Delete, Pull, PullPooled, Push, Request, limit};

use super::{Each, Engine, Message};
use crate::error::ClientError;
use crate::key_partition::{KeyPartition, RaggedPartition, RunSamples};
use crate::open_table::OpenTable;

/// Rows and gradients travel in messages of about this size, so that servers and network work at the same time.
const MESSAGE_BYTES: usize = 1 << 20;
/// Keys that one message removes at most: a server that removes rows does nothing else meanwhile.
const DELETE_KEYS_MAX: usize = 1 << 14;

/// The keys of samples whose rows are pooled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PooledKeys<'a> {
    pub(crate) keys: &'a [u64],
    /// From 0 on, one more than samples.
    pub(crate) offsets: &'a [u32],
    pub(crate) values: Option<&'a [f32]>,
    pub(crate) pooling: Pooling,
}

impl PooledKeys<'_> {
    /// Number of samples, if the lengths fit each other.
    pub(crate) fn check(&self, table: &OpenTable) -> Result<usize, ClientError> {
        let samples = check_offsets(table.name(), self.offsets, self.keys.len())?;
        if let Some(values) = self.values {
            table.length("values", self.keys.len(), values.len())?;
        }
        Ok(samples)
    }
}

/// Room for the keys and gradients of pushes, reused.
#[derive(Debug, Default)]
pub(crate) struct PushBuffers {
    dedup: Dedup,
    summed: Vec<f32>,
    partition: KeyPartition,
    pub(crate) message: MessageBuffers,
}

/// Room for the counts and gradients of one message.
#[derive(Debug, Default)]
pub(crate) struct MessageBuffers {
    counts: Vec<u32>,
    grads: Vec<f32>,
}

impl Engine {
    /// Rows of so many values that one message may have.
    pub(crate) fn rows_per_message(&self, values: usize) -> usize {
        let bytes = MESSAGE_BYTES.min(self.connections.frame_bytes_max() / 2);
        (bytes / (size_of::<f32>() * values.max(1))).clamp(1, limit::KEYS_MAX)
    }

    /// [`Engine::rows_per_message`] for pulls: the shortest rows have fewer bytes than their keys.
    fn rows_per_pull(&self, dim: usize) -> usize {
        self.rows_per_message(dim.max(size_of::<u64>() / size_of::<f32>()))
    }

    /// Begins a pull of each server's keys; a row per key answers.
    pub(crate) fn begin_pull<'k>(
        &mut self,
        (request, part): (u64, usize),
        table: &OpenTable,
        shares: impl Iterator<Item = (usize, &'k [u64])>,
        absent: Absent,
        each: &mut Each<'_>,
    ) -> Result<(), ClientError> {
        let (step, dim) = (self.rows_per_pull(table.dim()), table.dim() as u32);
        for (server, share) in shares {
            for (at, keys) in share.chunks(step).enumerate() {
                let span = at * step..at * step + keys.len();
                let message = Message::about(table, request, part, server).asking(span.clone(), span);
                let (number, format) =
                    (self.number(table, server, each)?, self.connections.row_format(server));
                let pull = Pull { table: table.read_number(server), dim, absent, format, keys };
                self.begin(message, number.needs, &Request::Pull(pull), each)?;
            }
        }
        Ok(())
    }

    /// Cuts samples into the messages of [`Engine::begin_pull_pooled`].
    ///
    /// Of several servers each gets the samples that have keys there; one server gets all, in their order.
    pub(crate) fn split_pooled(
        &self,
        table: &OpenTable,
        pooled: &PooledKeys<'_>,
        ragged: &mut RaggedPartition,
    ) {
        let which = if self.servers() == 1 { RunSamples::All } else { RunSamples::WithKeys };
        let (samples_max, keys_max) = (self.rows_per_pull(table.dim()), self.rows_per_message(3));
        let PooledKeys { keys, offsets, values, .. } = *pooled;
        ragged.clear(self.servers());
        for run in sample_runs(offsets, samples_max, keys_max) {
            let run_offsets = &offsets[run.start..=run.end];
            ragged.add(&self.placement, table.home(), keys, values, run_offsets, run.start, which);
        }
    }

    /// Begins a pull of pooled rows; a row per sample of a server's share answers.
    pub(crate) fn begin_pull_pooled(
        &mut self,
        request: u64,
        table: &OpenTable,
        ragged: &RaggedPartition,
        pooling: Pooling,
        absent: Absent,
        each: &mut Each<'_>,
    ) -> Result<(), ClientError> {
        let (dim, pooling) = (table.dim() as u32, self.pooling_there(pooling));
        for (server, run) in ragged.runs() {
            let message =
                Message::about(table, request, 0, server).asking(run.keys.clone(), run.samples.clone());
            let (number, format) = (self.number(table, server, each)?, self.connections.row_format(server));
            let ragged = ragged.shares[server].ragged(run);
            let pull = PullPooled { table: table.read_number(server), dim, pooling, absent, format, ragged };
            self.begin(message, number.needs, &Request::PullPooled(pull), each)?;
        }
        Ok(())
    }

    /// Begins a push of gradients; those of a key that occurs several times are summed.
    pub(crate) fn begin_push_keys(
        &mut self,
        request: u64,
        table: &OpenTable,
        (keys, grads): (&[u64], &[f32]),
        scale: PushScale,
        buffers: &mut PushBuffers,
        each: &mut Each<'_>,
    ) -> Result<(), ClientError> {
        let dim = table.dim();
        table.length("grads", keys.len() * dim, grads.len())?;
        let PushBuffers { dedup, summed, partition, message } = buffers;
        let grads = sum_duplicates(dedup, summed, keys, grads, dim);
        partition.assign(&self.placement, table.home(), &dedup.unique);
        self.begin_push(request, table, partition, (&dedup.counts, grads), scale, message, each)
    }

    /// Begins a push of the partition's distinct keys: how often each occurs, and its gradient.
    #[expect(clippy::too_many_arguments, reason = "a push is keys, counts, gradients and a scale")]
    pub(crate) fn begin_push(
        &mut self,
        request: u64,
        table: &OpenTable,
        partition: &KeyPartition,
        (counts, grads): (&[u32], &[f32]),
        scale: PushScale,
        buffers: &mut MessageBuffers,
        each: &mut Each<'_>,
    ) -> Result<(), ClientError> {
        check_push(table, partition, grads, scale)?;
        // A pull of the next minibatch may have brought a newer placement.
        let renewed = partition.renewed(&self.placement);
        let (partition, dim) = (renewed.as_ref().unwrap_or(partition), table.dim());
        let step = self.rows_per_message(dim + 3);
        for (server, share) in partition.shares().enumerate() {
            let parts = share.keys.chunks(step).zip(share.positions.chunks(step));
            for (part, (keys, positions)) in parts.enumerate() {
                gather(positions, 1, counts, &mut buffers.counts);
                gather(positions, dim, grads, &mut buffers.grads);
                let number = self.number(table, server, each)?;
                let (client, sequence) = self.next_push(server);
                let push = Push {
                    table: number.table,
                    client,
                    sequence,
                    continues: part > 0,
                    dim: dim as u32,
                    lr_scale: scale.lr_scale,
                    keys,
                    counts: &buffers.counts,
                    grads: &buffers.grads,
                };
                let message = Message::about(table, request, 0, server);
                self.begin(message, number.needs, &Request::Push(push), each)?;
            }
        }
        Ok(())
    }

    /// Begins the removal of each server's keys; their number answers.
    pub(crate) fn begin_delete<'k>(
        &mut self,
        request: u64,
        table: &OpenTable,
        shares: impl Iterator<Item = (usize, &'k [u64])>,
        each: &mut Each<'_>,
    ) -> Result<(), ClientError> {
        let step = self.rows_per_message(2).min(DELETE_KEYS_MAX);
        for (server, share) in shares {
            for keys in share.chunks(step) {
                let number = self.number(table, server, each)?;
                let message = Message::about(table, request, 0, server).asking(0..keys.len(), 0..0);
                let delete = Request::Delete(Delete { table: number.table, keys });
                self.begin(message, number.needs, &delete, each)?;
            }
        }
        Ok(())
    }
}

/// The runs of samples whose pooled rows are asked for by one message each. A sample is not cut, however many keys it has.
fn sample_runs(offsets: &[u32], samples_max: usize, keys_max: usize) -> impl Iterator<Item = Range<usize>> {
    let samples = offsets.len() - 1;
    let mut first = 0;
    std::iter::from_fn(move || {
        if first == samples {
            return None;
        }
        let ends = &offsets[first + 1..=samples.min(first + samples_max)];
        let keys_end = offsets[first] as usize + keys_max;
        let run = first..first + ends.partition_point(|&end| end as usize <= keys_end).max(1);
        first = run.end;
        Some(run)
    })
}

/// Number of samples. The wire's offsets start at 0 and end at the number of keys, as the store's do.
fn check_offsets(table: &str, offsets: &[u32], keys: usize) -> Result<usize, StoreError> {
    let fail = |reason: String| Err(StoreError::Offsets { table: table.to_owned(), reason });
    let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else {
        return fail("there must be at least one".to_owned());
    };
    if first != 0 || last as usize != keys {
        return fail(format!("they run from {first} to {last}, there are {keys} keys"));
    }
    match offsets.windows(2).position(|pair| pair[0] > pair[1]) {
        Some(at) => {
            fail(format!("offset {} is {}, below {} before it", at + 1, offsets[at + 1], offsets[at]))
        }
        None => Ok(offsets.len() - 1),
    }
}

/// The distinct keys go to `dedup`; the sums of their gradients, which are in `summed` unless no key occurs twice.
fn sum_duplicates<'a>(
    dedup: &mut Dedup,
    summed: &'a mut Vec<f32>,
    keys: &[u64],
    grads: &'a [f32],
    dim: usize,
) -> &'a [f32] {
    dedup.assign(keys);
    if dedup.unique.len() == keys.len() {
        return grads;
    }
    summed.clear();
    summed.resize(dedup.unique.len() * dim, 0.0);
    for (gradient, &unique) in grads.chunks_exact(dim).zip(&dedup.inverse) {
        for (sum, g) in summed[unique as usize * dim..][..dim].iter_mut().zip(gradient) {
            *sum += g;
        }
    }
    summed
}

/// Refuses bad gradients before any server gets a part, as a table in this process does.
pub(crate) fn check_push(
    table: &OpenTable,
    partition: &KeyPartition,
    grads: &[f32],
    scale: PushScale,
) -> Result<(), ClientError> {
    scale.check(table.name())?;
    let Some(at) = bad_gradient(grads) else { return Ok(()) };
    let (position, coordinate) = ((at / table.dim()) as u32, at % table.dim());
    let shares = partition.shares().flat_map(|share| share.positions.iter().zip(share.keys));
    let key = shares.filter(|(at, _)| **at == position).map(|(_, key)| *key).next().unwrap_or_default();
    let table = table.name().to_owned();
    Err(StoreError::BadGradient { table, key, coordinate, value: grads[at] }.into())
}
