//! Batches whose keys are sent ahead: fed to the servers, pulled as a row per sample, and pushed as a gradient per
//! sample. Does not know how frames travel, nor why rows are pooled there.

use std::sync::Arc;

use sanderling_store::{Absent, Pooling, PushScale, bad_gradient};
use sanderling_wire::{Features, Feed, Forget, PullFed, PushFed, Request, limit};

use super::pull::{PullInto, add, single_precision};
use super::{FED_PART, Session, WAITED_FOR};
use crate::engine::{Message, PooledKeys};
use crate::error::ClientError;
use crate::key_partition::RunSamples;
use crate::open_table::OpenTable;
use crate::placement::Placement;

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
    /// The placement by which they were shared out.
    placement: Arc<Placement>,
    /// Whether sums of servers are divided here: a server knows only its share of a sample's keys.
    is_divided_here: bool,
}

/// One of several batches that are pulled at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FedPart<'a> {
    pub(crate) table: &'a OpenTable,
    pub(crate) batch: &'a FedBatch,
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

    /// The placement by which its keys were shared out.
    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Describes a batch that a hub has fed under this number, with this many keys per server by this placement.
    pub(crate) fn assign_ahead(
        &mut self,
        (batch, feature): (u64, u32),
        samples: usize,
        keys: &[u32],
        placement: &Arc<Placement>,
    ) {
        self.placement = Arc::clone(placement);
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
        table: &OpenTable,
        batch: u64,
        feature: u32,
        keys: &[u64],
        offsets: &[u32],
        values: Option<&[f32]>,
        pooling: Pooling,
    ) -> Result<FedBatch, ClientError> {
        let mut fed = FedBatch::default();
        let keys = PooledKeys { keys, offsets, values, pooling };
        let begun = self.begin_feed(table, (batch, feature), &keys, &mut fed);
        let finished = self.finish();
        begun.and(finished).map(|()| fed)
    }

    /// [`Session::feed`] without waiting for the answers: [`Session::finish`] or the next pull reports failures.
    pub(crate) fn begin_feed(
        &mut self,
        table: &OpenTable,
        (batch, feature): (u64, u32),
        fed: &PooledKeys<'_>,
        into: &mut FedBatch,
    ) -> Result<(), ClientError> {
        let samples = fed.check(table)?;
        let PooledKeys { keys, offsets, values, pooling } = *fed;
        let Session { engine, mark, failed, ragged, .. } = self;
        let (servers, pooling) = (engine.servers(), engine.pooling_there(pooling));
        into.is_divided_here = pooling != fed.pooling;
        (into.batch, into.feature, into.samples) = (batch, feature, samples);
        into.counts.clear();
        into.counts.extend(offsets.windows(2).map(|pair| pair[1] - pair[0]));
        into.keys.clear();
        into.keys.resize(servers, 0);
        into.positions.resize_with(servers, Vec::new);
        into.placement = Arc::clone(&engine.placement);
        ragged.clear(servers);
        ragged.add(&engine.placement, table.home(), keys, values, offsets, 0, RunSamples::All);
        for (share, (positions, keys)) in
            ragged.shares.iter().zip(into.positions.iter_mut().zip(&mut into.keys))
        {
            positions.clone_from(&share.positions);
            *keys = positions.len() as u32;
        }
        let mut note = failed.noting();
        for (server, run) in ragged.runs() {
            let number = table.number(server);
            let ragged = ragged.shares[server].ragged(run);
            let feed = Request::Feed(Feed { table: number.table, batch, feature, pooling, ragged });
            let message = Message::about(table, *mark, 0, server);
            engine.begin(message, number.needs, &feed, &mut note)?;
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
        table: &OpenTable,
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
        for into in &mut *into {
            into.out.fill(0.0);
            into.clear_missing();
        }
        let result = self.pull_with(
            |engine, each| {
                for (part, FedPart { table, batch }) in parts.iter().enumerate() {
                    let FedBatch { batch: id, feature, samples, .. } = **batch;
                    for (server, keys) in batch.shares() {
                        let message =
                            Message::about(table, WAITED_FOR, part, server).asking(0..keys, 0..samples);
                        let (number, format) = (table.number(server), engine.connections.row_format(server));
                        let pull = PullFed {
                            table: number.table,
                            batch: id,
                            feature,
                            dim: table.dim() as u32,
                            absent,
                            format,
                        };
                        engine.begin(message, number.needs, &Request::PullFed(pull), each)?;
                    }
                }
                Ok(())
            },
            |message, reply, floats| {
                let into = &mut into[message.part];
                add(single_precision(reply.values, floats), into.out);
                // The positions of keys that a hub fed are not known here.
                let positions = parts[message.part].batch.positions.get(message.server);
                into.note_missing(reply, |at| positions.map_or(at as u32, |positions| positions[at]));
            },
            || {},
        );
        for (FedPart { table, batch }, into) in parts.iter().zip(into) {
            if batch.is_divided_here {
                into.divide(table.dim(), batch.counts.iter().copied());
            }
            into.sort_missing();
        }
        result
    }

    /// Pushes one gradient per sample; the servers distribute it over the pooled rows and forget the batch.
    ///
    /// Each row is updated once. Each server applies its part or refuses it, so after an error other servers may have
    /// applied theirs.
    pub fn push_fed(
        &mut self,
        table: &OpenTable,
        batch: &FedBatch,
        grads: &[f32],
        scale: PushScale,
    ) -> Result<(), ClientError> {
        let begun = self.begin_push_fed(table, 0, batch, grads, scale);
        let finished = self.finish();
        begun.and(finished)
    }

    /// [`Session::push_fed`] without waiting for the answers, as [`Session::begin_push`]. If a server has forgotten the
    /// batch, [`Session::take_lost`] tells it by this `number`.
    pub(crate) fn begin_push_fed(
        &mut self,
        table: &OpenTable,
        number: usize,
        batch: &FedBatch,
        grads: &[f32],
        scale: PushScale,
    ) -> Result<(), ClientError> {
        let dim = table.dim();
        table.length("grads", batch.samples() * dim, grads.len())?;
        check_push(table, batch, grads, scale)?;
        let Session { engine, mark, failed, floats, .. } = self;
        let grads = if batch.is_divided_here {
            floats.clear();
            for (grads, &count) in grads.chunks_exact(dim).zip(&batch.counts) {
                let share = 1.0 / count.max(1) as f32;
                floats.extend(grads.iter().map(|grad| grad * share));
            }
            &floats[..]
        } else {
            grads
        };
        let FedBatch { batch: id, feature, .. } = *batch;
        let part = FED_PART + number;
        let mut note = failed.noting();
        for (server, _) in batch.shares() {
            let (client, sequence) = engine.next_push(server);
            let number = table.number(server);
            let push = PushFed {
                table: number.table,
                client,
                sequence,
                batch: id,
                feature,
                dim: dim as u32,
                lr_scale: scale.lr_scale,
                grads,
            };
            let message = Message::about(table, *mark, part, server);
            engine.begin(message, number.needs, &Request::PushFed(push), &mut note)?;
        }
        Ok(())
    }

    /// Has the servers forget a batch that will not be pushed, without waiting for the answers. Those that cannot be told
    /// forget it in time.
    pub(crate) fn begin_forget(&mut self, table: &OpenTable, batch: &FedBatch) -> Result<(), ClientError> {
        let Session { engine, mark, failed, .. } = self;
        let mut note = failed.noting();
        for (server, _) in batch.shares() {
            if !engine.connections.can(server, Features::FORGET) {
                continue;
            }
            let number = table.number(server);
            let forget = Forget { table: number.table, batch: batch.batch, feature: batch.feature };
            let message = Message::about(table, *mark, 0, server);
            engine.begin(message, number.needs, &Request::Forget(forget), &mut note)?;
        }
        Ok(())
    }

    /// How servers pool a mean, whose keys the trainer does not know: each its own, or a sum that is weighted before.
    pub(crate) fn mean_there(&self) -> Pooling {
        self.engine.pooling_there(Pooling::Mean)
    }

    /// Whether a feature of so many keys and samples can be fed in one frame and pulled in one, and a server would hold its
    /// rows at once, even if all its keys are distinct and on one server. A batch is not cut: a row that is in two parts
    /// of it would be updated twice.
    pub(crate) fn has_room_for(&self, keys: usize, samples: usize, dim: usize) -> bool {
        let fed = keys * (size_of::<u64>() + size_of::<f32>()) + (samples + 1) * size_of::<u32>();
        let rows = samples * dim * size_of::<f32>() + keys / 8;
        let fits_frame = fed.max(rows) + FRAME_REST_BYTES <= self.engine.connections.frame_bytes_max();
        let rows_bytes = keys * dim * size_of::<f32>();
        // The primary of a group sends the gradients of distinct rows to the others, in one frame.
        let replicated = rows_bytes + keys * limit::REPLICATED_KEY_BYTES + FRAME_REST_BYTES;
        let fits_memory = rows_bytes <= limit::FED_ROWS_BYTES_MAX
            && (!self.engine.is_cluster() || replicated <= self.engine.connections.frame_bytes_max());
        fits_frame && fits_memory && keys <= limit::KEYS_MAX && samples <= limit::SAMPLES_MAX
    }
}

/// Refuses bad gradients before any server gets a part. The gradient of a sample without keys is ignored.
fn check_push(
    table: &OpenTable,
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
