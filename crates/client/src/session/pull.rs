//! Pulls of one thread: asks all servers at once and places the rows of their answers. Does not know how requests are
//! cut into messages, nor what a row means.

use sanderling_store::{Absent, Pooling};
use sanderling_wire::{PullReply, Reply, RowValues};

use super::{Session, WAITED_FOR};
use crate::engine::{Each, Engine, Message, PooledKeys, pulled};
use crate::error::ClientError;
use crate::key_partition::KeyPartition;
use crate::open_table::OpenTable;

/// One of several pulls that are made at once: the table, and its keys shared out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PullPart<'a> {
    pub(crate) table: &'a OpenTable,
    pub(crate) partition: &'a KeyPartition,
}

/// Where the answers to a [`PullPart`] go.
#[derive(Debug)]
pub(crate) struct PullInto<'a> {
    pub(crate) out: &'a mut [f32],
    pub(crate) missing: Option<&'a mut Vec<u32>>,
}

impl PullInto<'_> {
    pub(super) fn clear_missing(&mut self) {
        self.missing.iter_mut().for_each(|missing| missing.clear());
    }

    pub(super) fn sort_missing(&mut self) {
        self.missing.iter_mut().for_each(|missing| missing.sort_unstable());
    }

    /// Notes the keys without a row; `position` says where each key of the answer stood in the request.
    pub(super) fn note_missing(&mut self, reply: &PullReply<'_>, position: impl Fn(usize) -> u32) {
        if let Some(missing) = &mut self.missing {
            missing.extend(reply.absent.positions().map(position));
        }
    }

    /// Divides the sum of each sample by the number of its keys.
    pub(super) fn divide(&mut self, dim: usize, counts: impl Iterator<Item = u32>) {
        for (row, count) in self.out.chunks_exact_mut(dim).zip(counts) {
            let share = 1.0 / count.max(1) as f32;
            row.iter_mut().for_each(|sum| *sum *= share);
        }
    }
}

impl Session {
    /// As [`RemoteTable::pull`](crate::RemoteTable::pull).
    pub fn pull(
        &mut self,
        table: &OpenTable,
        keys: &[u64],
        absent: Absent,
        out: &mut [f32],
        missing: Option<&mut Vec<u32>>,
    ) -> Result<usize, ClientError> {
        table.length("out", keys.len() * table.dim(), out.len())?;
        self.follow_placement();
        let mut partition = std::mem::take(&mut self.partition);
        partition.assign(&self.engine.placement, table.home(), keys);
        let mut into = [PullInto { out, missing }];
        let result = self.pull_parts(&[PullPart { table, partition: &partition }], &mut into, absent, || {});
        self.partition = partition;
        into[0].sort_missing();
        result
    }

    /// Pulls from several tables at once; returns the number of keys without a row. Also waits for pushes that are
    /// under way. `meanwhile` runs after sending.
    pub(crate) fn pull_parts(
        &mut self,
        parts: &[PullPart<'_>],
        into: &mut [PullInto<'_>],
        absent: Absent,
        meanwhile: impl FnOnce(),
    ) -> Result<usize, ClientError> {
        let pulled = self.pull_parts_once(parts, into, absent, meanwhile);
        match self.follows(&pulled, absent, parts.iter().map(|part| part.table))? {
            true => self.pull_parts_once(parts, into, absent, || {}),
            false => pulled,
        }
    }

    fn pull_parts_once(
        &mut self,
        parts: &[PullPart<'_>],
        into: &mut [PullInto<'_>],
        absent: Absent,
        meanwhile: impl FnOnce(),
    ) -> Result<usize, ClientError> {
        into.iter_mut().for_each(PullInto::clear_missing);
        self.pull_with(
            |engine, each| {
                parts.iter().enumerate().try_for_each(|(part, PullPart { table, partition })| {
                    let shares = partition.shares().map(|share| share.keys).enumerate();
                    engine.begin_pull((WAITED_FOR, part), table, shares, absent, each)
                })
            },
            |message, reply, _| {
                let PullPart { table, partition } = parts[message.part];
                let positions = &partition.share(message.server).positions[message.keys.clone()];
                let into = &mut into[message.part];
                reply.values.scatter(table.dim(), positions, into.out);
                into.note_missing(reply, |at| positions[at]);
            },
            meanwhile,
        )
    }

    /// As [`RemoteTable::pull_pooled`](crate::RemoteTable::pull_pooled).
    #[expect(clippy::too_many_arguments, reason = "a ragged batch is keys, values and offsets")]
    pub fn pull_pooled(
        &mut self,
        table: &OpenTable,
        keys: &[u64],
        values: Option<&[f32]>,
        offsets: &[u32],
        pooling: Pooling,
        absent: Absent,
        out: &mut [f32],
        missing: Option<&mut Vec<u32>>,
    ) -> Result<usize, ClientError> {
        let pooled = PooledKeys { keys, offsets, values, pooling };
        table.length("out", pooled.check(table)? * table.dim(), out.len())?;
        let mut into = PullInto { out, missing };
        let pulled = self.pull_pooled_once(table, &pooled, absent, &mut into);
        match self.follows(&pulled, absent, std::iter::once(table))? {
            true => self.pull_pooled_once(table, &pooled, absent, &mut into),
            false => pulled,
        }
    }

    fn pull_pooled_once(
        &mut self,
        table: &OpenTable,
        pooled: &PooledKeys<'_>,
        absent: Absent,
        into: &mut PullInto<'_>,
    ) -> Result<usize, ClientError> {
        self.follow_placement();
        let (alone, dim, pooling) = (self.engine.servers() == 1, table.dim(), pooled.pooling);
        let is_divided_here = self.engine.pooling_there(pooling) != pooling;
        let mut ragged = std::mem::take(&mut self.ragged);
        self.engine.split_pooled(table, pooled, &mut ragged);
        into.out.fill(0.0);
        into.clear_missing();
        let result = self.pull_with(
            |engine, each| engine.begin_pull_pooled(WAITED_FOR, table, &ragged, pooling, absent, each),
            |message, reply, floats| {
                let share = &ragged.shares[message.server];
                let samples = message.rows.clone();
                if alone {
                    reply.values.copy_to(&mut into.out[samples.start * dim..samples.end * dim]);
                } else {
                    let rows = single_precision(reply.values, floats);
                    for (row, &sample) in rows.chunks_exact(dim).zip(&share.samples[samples]) {
                        add(row, &mut into.out[sample as usize * dim..][..dim]);
                    }
                }
                into.note_missing(reply, |at| share.positions[message.keys.start + at]);
            },
            || {},
        );
        if is_divided_here {
            into.divide(dim, pooled.offsets.windows(2).map(|span| span[1] - span[0]));
        }
        into.sort_missing();
        self.ragged = ragged;
        result
    }

    /// Makes the messages that `begin` begins, all at once, runs `meanwhile`, and hands the answers to `place` as they come,
    /// with room for floats.
    pub(super) fn pull_with(
        &mut self,
        begin: impl FnOnce(&mut Engine, &mut Each<'_>) -> Result<(), ClientError>,
        mut place: impl FnMut(&Message, &PullReply<'_>, &mut Vec<f32>),
        meanwhile: impl FnOnce(),
    ) -> Result<usize, ClientError> {
        let Session { engine, failed, floats, .. } = self;
        let (mut missing, mut first_error) = (0, None);
        let mut each = |message: &Message, result: Result<Reply<'_>, ClientError>| {
            if message.request != WAITED_FOR {
                return failed.note(message, result);
            }
            match result {
                Ok(reply) => {
                    if let Some(reply) = pulled(&reply) {
                        missing += reply.absent.count();
                        place(message, reply, floats);
                    }
                }
                Err(error) => _ = first_error.get_or_insert(error),
            }
        };
        let begun = begin(engine, &mut each);
        engine.settle_while(meanwhile, &mut each);
        begun?;
        match first_error.or_else(|| failed.first.take()) {
            Some(error) => Err(error),
            None => Ok(missing),
        }
    }
}

/// Adds the values of a row to another.
pub(super) fn add(row: &[f32], sums: &mut [f32]) {
    sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
}

/// The rows in single precision, halves converted in `room`.
pub(super) fn single_precision<'a>(values: RowValues<'a>, room: &'a mut Vec<f32>) -> &'a [f32] {
    match values {
        RowValues::F32(rows) => rows,
        halves @ RowValues::F16(_) => {
            room.resize(halves.len(), 0.0);
            halves.copy_to(room);
            &room[..]
        }
    }
}
