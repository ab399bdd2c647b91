//! Batches whose keys are sent ahead: fed to the servers, pulled as a row per sample, and pushed as a gradient per
//! sample. Does not know how frames travel, nor why rows are pooled there.

use sanderling_store::{Absent, Pooling, PushScale, bad_gradient};
use sanderling_wire::{
    self as wire, Features, Feed, Forget, PullFed, PushFed, Ragged, Reply, Request, limit,
};

use super::Session;
use super::pull::{Asked, PullInto, add_rows, check_offsets, wire_absent};
use super::push::note;
use crate::error::ClientError;
use crate::key_partition::RunSamples;
use crate::remote::RemoteTable;
use crate::rpc_state::CallError;

/// Bytes of a frame that are neither keys, offsets, values nor rows, rounded up.
const FRAME_REST_BYTES: usize = 1024;

/// The keys of one feature of a minibatch that servers keep until [`Session::push_fed`].
#[derive(Debug, Default)]
pub struct FedBatch {
    batch: u64,
    feature: u32,
    samples: usize,
    /// Number of keys per sample; empty if a hub fed them.
    counts: Vec<u32>,
    /// Per server, how many keys it got; one without keys is not asked.
    keys: Vec<u32>,
    /// Positions of each server's keys; empty if a hub fed them.
    positions: Vec<Vec<u32>>,
    /// Whether sums of servers are divided here: a server knows only its share of a sample's keys.
    is_divided_here: bool,
}

/// One of several batches that are pulled at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FedPart<'a> {
    pub(crate) table: &'a RemoteTable,
    pub(crate) batch: &'a FedBatch,
}

/// The keys to feed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FedKeys<'a> {
    pub(crate) keys: &'a [u64],
    /// From 0 on, one more than samples.
    pub(crate) offsets: &'a [u32],
    pub(crate) values: Option<&'a [f32]>,
    pub(crate) pooling: Pooling,
}

impl FedBatch {
    /// Rows that a pull of it gives.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Per server, how many keys it got, repetitions included.
    #[must_use]
    pub fn keys(&self) -> &[u32] {
        &self.keys
    }

    /// Describes a batch that a hub has fed under this number, with this many keys per server.
    pub(crate) fn assign_ahead(&mut self, (batch, feature): (u64, u32), samples: usize, keys: &[u32]) {
        (self.batch, self.feature, self.samples) = (batch, feature, samples);
        self.counts.clear();
        self.keys.clear();
        self.keys.extend_from_slice(keys);
        self.positions.clear();
        // A hub makes the servers weigh the keys of a mean.
        self.is_divided_here = false;
    }

    /// Servers that have keys of it, each with how many.
    fn shares(&self) -> impl Iterator<Item = (usize, usize)> {
        let all = self.keys.iter().map(|&keys| keys as usize).enumerate();
        all.filter(|&(_, keys)| keys > 0)
    }
}

impl Session {
    /// Sends the keys of one feature of a minibatch to the servers, which keep them until the push.
    ///
    /// The caller chooses the number. The same number and feature replace earlier keys; no request about those may be
    /// under way.
    #[expect(clippy::too_many_arguments, reason = "a ragged batch is keys, values and offsets")]
    pub fn feed(
        &mut self,
        table: &RemoteTable,
        batch: u64,
        feature: u32,
        keys: &[u64],
        offsets: &[u32],
        values: Option<&[f32]>,
        pooling: Pooling,
    ) -> Result<FedBatch, ClientError> {
        let mut fed = FedBatch::default();
        let begun =
            self.begin_feed(table, (batch, feature), &FedKeys { keys, offsets, values, pooling }, &mut fed);
        let finished = self.finish();
        begun.and(finished).map(|()| fed)
    }

    /// [`Session::feed`] without waiting for the answers: [`Session::finish`] or the next pull reports failures.
    pub(crate) fn begin_feed(
        &mut self,
        table: &RemoteTable,
        (batch, feature): (u64, u32),
        fed: &FedKeys<'_>,
        into: &mut FedBatch,
    ) -> Result<(), ClientError> {
        let FedKeys { keys, offsets, values, pooling } = *fed;
        check_offsets(table.name(), offsets, keys.len())?;
        if let Some(values) = values {
            table.length("values", keys.len(), values.len())?;
        }
        let is_divided_here = self.connections.len() > 1 && pooling == Pooling::Mean;
        let pooling = if pooling == Pooling::Mean && !is_divided_here {
            wire::Pooling::Mean
        } else {
            wire::Pooling::Sum
        };
        (into.batch, into.feature, into.is_divided_here) = (batch, feature, is_divided_here);
        into.samples = offsets.len() - 1;
        into.counts.clear();
        into.counts.extend(offsets.windows(2).map(|pair| pair[1] - pair[0]));
        into.keys.clear();
        into.keys.resize(self.connections.len(), 0);
        let tag = self.pushes.tag(table.name());
        let Session { connections, pushes, placement, ragged, .. } = self;
        ragged.clear(connections.len());
        ragged.add(placement, table.home(), keys, values, offsets, 0, RunSamples::All);
        into.positions.resize_with(connections.len(), Vec::new);
        let names = connections.names();
        for (server, (share, positions)) in ragged.shares.iter().zip(&mut into.positions).enumerate() {
            positions.clear();
            positions.extend_from_slice(&share.positions);
            into.keys[server] = positions.len() as u32;
            if positions.is_empty() {
                continue;
            }
            let there = table.number(server);
            let values = values.map(|_| &share.values[..]);
            let ragged = Ragged { keys: &share.keys, offsets: &share.offsets, values };
            let feed = Request::Feed(Feed { table: there.table, batch, feature, pooling, ragged });
            let mut sink = |server: usize, tag: u64, result: Result<Reply<'_>, CallError>| {
                pushes.note(&names, server, tag, result);
            };
            connections
                .begin(server, tag, Some(there.boot_id), &feed, &mut sink)
                .map_err(|source| ClientError::Request { table: table.name().to_owned(), source })?;
        }
        Ok(())
    }

    /// Pulls the pooled rows of a fed batch, one per sample; returns the number of keys without a row.
    ///
    /// Repeated keys count each time. The keys' positions go to `missing`.
    ///
    /// # Errors
    /// [`Fault::UnknownBatch`](wire::Fault::UnknownBatch), with the server's name, where a server has forgotten it.
    pub fn pull_fed(
        &mut self,
        table: &RemoteTable,
        batch: &FedBatch,
        absent: Absent,
        out: &mut [f32],
        missing: Option<&mut Vec<u32>>,
    ) -> Result<usize, ClientError> {
        table.length("out", batch.samples() * table.dim(), out.len())?;
        self.pull_fed_parts(&[FedPart { table, batch }], &mut [PullInto { out, missing }], absent)
    }

    /// Several of them at once.
    pub(crate) fn pull_fed_parts(
        &mut self,
        parts: &[FedPart<'_>],
        into: &mut [PullInto<'_>],
        absent: Absent,
    ) -> Result<usize, ClientError> {
        self.asked.clear();
        for (part, FedPart { batch, .. }) in parts.iter().enumerate() {
            into[part].out.fill(0.0);
            if let Some(missing) = &mut into[part].missing {
                missing.clear();
            }
            for (server, keys) in batch.shares() {
                let rows = batch.samples();
                self.asked.push(Asked { server, part, first_key: 0, keys, first_row: 0, rows });
            }
        }
        let absent = wire_absent(absent);
        let mut room = Vec::new();
        let result = self.pull_asked(
            |asked, format| {
                let FedPart { table, batch: FedBatch { batch, feature, .. } } = parts[asked.part];
                let (number, dim) = (table.number(asked.server).table, table.dim() as u32);
                let (batch, feature) = (*batch, *feature);
                (table, Request::PullFed(PullFed { table: number, batch, feature, dim, absent, format }))
            },
            |asked, reply| {
                let PullInto { out, missing } = &mut into[asked.part];
                add_rows(reply.values, &mut room, out);
                if let Some(missing) = missing {
                    // Where the keys of others stood, is not known here.
                    let positions = parts[asked.part].batch.positions.get(asked.server);
                    let position = |at: usize| positions.map_or(at as u32, |positions| positions[at]);
                    missing.extend(reply.absent.positions().map(position));
                }
            },
            || {},
        );
        for (FedPart { table, batch }, PullInto { out, missing }) in parts.iter().zip(into) {
            if batch.is_divided_here {
                for (row, &count) in out.chunks_exact_mut(table.dim()).zip(&batch.counts) {
                    let share = 1.0 / count.max(1) as f32;
                    row.iter_mut().for_each(|sum| *sum *= share);
                }
            }
            if let Some(missing) = missing {
                missing.sort_unstable();
            }
        }
        result
    }

    /// Pushes one gradient per sample; the servers distribute it over the pooled rows and forget the batch.
    ///
    /// Each row is updated once. Each server applies its part or refuses it, so after an error other servers may have
    /// applied theirs.
    pub fn push_fed(
        &mut self,
        table: &RemoteTable,
        batch: &FedBatch,
        grads: &[f32],
        scale: PushScale,
    ) -> Result<(), ClientError> {
        let begun = self.begin_push_fed(table, batch, grads, scale);
        let finished = self.finish();
        begun.and(finished)
    }

    /// [`Session::push_fed`] without waiting for the answers, as [`Session::begin_push`].
    pub(crate) fn begin_push_fed(
        &mut self,
        table: &RemoteTable,
        batch: &FedBatch,
        grads: &[f32],
        scale: PushScale,
    ) -> Result<(), ClientError> {
        let dim = table.dim();
        table.length("grads", batch.samples() * dim, grads.len())?;
        check_push(table, batch, grads, scale)?;
        let tag = self.pushes.tag(table.name());
        let Session { connections, pushes, summed, .. } = self;
        let grads = if batch.is_divided_here {
            summed.clear();
            for (grads, &count) in grads.chunks_exact(dim).zip(&batch.counts) {
                let share = 1.0 / count.max(1) as f32;
                summed.extend(grads.iter().map(|grad| grad * share));
            }
            &summed[..]
        } else {
            grads
        };
        let names = connections.names();
        let FedBatch { batch: id, feature, .. } = *batch;
        for (server, _) in batch.shares() {
            let (client, sequence) = pushes.outgoing.next(server);
            let there = table.number(server);
            let push = PushFed {
                table: there.table,
                client,
                sequence,
                batch: id,
                feature,
                dim: dim as u32,
                lr_scale: scale.lr_scale,
                grads,
            };
            let (tables, failed) = (&pushes.tables, &mut pushes.failed);
            let mut sink = |server: usize, tag: u64, result: Result<Reply<'_>, CallError>| {
                note(tables, failed, &names, server, tag, result);
            };
            connections
                .begin(server, tag, Some(there.boot_id), &Request::PushFed(push), &mut sink)
                .map_err(|source| ClientError::Request { table: table.name().to_owned(), source })?;
        }
        Ok(())
    }

    /// Has the servers forget a batch that will not be pushed, without waiting for the answers. Those that cannot be told
    /// forget it in time.
    pub(crate) fn begin_forget(&mut self, table: &RemoteTable, batch: &FedBatch) -> Result<(), ClientError> {
        let tag = self.pushes.tag(table.name());
        let Session { connections, pushes, .. } = self;
        let names = connections.names();
        let FedBatch { batch: id, feature, .. } = *batch;
        for (server, _) in batch.shares() {
            if !connections.can(server, Features::FORGET) {
                continue;
            }
            let there = table.number(server);
            let forget = Request::Forget(Forget { table: there.table, batch: id, feature });
            let mut sink = |server: usize, tag: u64, result: Result<Reply<'_>, CallError>| {
                pushes.note(&names, server, tag, result);
            };
            connections
                .begin(server, tag, Some(there.boot_id), &forget, &mut sink)
                .map_err(|source| ClientError::Request { table: table.name().to_owned(), source })?;
        }
        Ok(())
    }

    /// Whether a feature of so many keys and samples can be fed in one frame and pulled in one, and a server would hold its
    /// rows at once, even if all its keys are distinct and on one server. A batch is not cut: a row that is in two parts
    /// of it would be updated twice.
    pub(crate) fn has_room_for(&self, keys: usize, samples: usize, dim: usize) -> bool {
        let fed = keys * (size_of::<u64>() + size_of::<f32>()) + (samples + 1) * size_of::<u32>();
        let rows = samples * dim * size_of::<f32>() + keys / 8;
        let fits_frame = fed.max(rows) + FRAME_REST_BYTES <= self.connections.frame_bytes_max();
        let fits_memory = keys * dim * size_of::<f32>() <= limit::FED_ROWS_BYTES_MAX;
        fits_frame && fits_memory && keys <= limit::KEYS_MAX && samples <= limit::SAMPLES_MAX
    }
}

/// Refuses bad gradients before any server gets a part. The gradient of a sample without keys is ignored.
fn check_push(
    table: &RemoteTable,
    batch: &FedBatch,
    grads: &[f32],
    scale: PushScale,
) -> Result<(), ClientError> {
    scale.check(table.name())?;
    for (sample, grads) in grads.chunks_exact(table.dim()).enumerate() {
        // The number of keys per sample is unknown for batches that a hub fed.
        if batch.counts.get(sample) != Some(&0)
            && let Some(coordinate) = bad_gradient(grads)
        {
            let (table, value) = (table.name().to_owned(), grads[coordinate]);
            return Err(ClientError::BadGradient { table, sample, coordinate, value });
        }
    }
    Ok(())
}
