//! Pushes of one thread: numbers them so that a server applies each at most once, and sends them without waiting for the
//! answers. Knows not how frames travel.

use sanderling_store::{GRADIENT_ABS_MAX, PushScale, StoreError};
use sanderling_wire::{Push, Reply, Request};

use super::Session;
use crate::error::{ClientError, Names};
use crate::exchange::CallError;
use crate::fan::Fan;
use crate::random::unique;
use crate::remote::RemoteTable;

/// Tags with this bit are pushes, whose answers have no place to go to; the others are positions in `asked`.
pub(super) const PUSH: u64 = 1 << 63;

/// What is under way without anybody waiting for it.
#[derive(Debug)]
pub(super) struct Pushes {
    /// Number of this client among those who push.
    client: u64,
    /// Per server, the number of the last push.
    sequences: Vec<u64>,
    /// Names of the tables, by the number in the tags.
    tables: Vec<String>,
    /// The first that failed.
    pub(super) failed: Option<ClientError>,
}

impl Session {
    /// As [`RemoteTable::push`].
    pub fn push(
        &mut self,
        table: &RemoteTable,
        keys: &[u64],
        grads: &[f32],
        scale: PushScale,
    ) -> Result<(), ClientError> {
        let dim = table.dim();
        table.length("grads", keys.len() * dim, grads.len())?;
        let (mut dedup, mut summed) = (std::mem::take(&mut self.dedup), std::mem::take(&mut self.summed));
        let mut fan = std::mem::take(&mut self.fan);
        dedup.assign(keys);
        fan.assign(&self.placement, table.home(), &dedup.unique);
        let begun = if dedup.unique.len() == keys.len() {
            self.begin_push(table, &fan, &dedup.counts, grads, scale)
        } else {
            summed.clear();
            summed.resize(dedup.unique.len() * dim, 0.0);
            for (gradient, &unique) in grads.chunks_exact(dim).zip(&dedup.inverse) {
                for (sum, g) in summed[unique as usize * dim..][..dim].iter_mut().zip(gradient) {
                    *sum += g;
                }
            }
            self.begin_push(table, &fan, &dedup.counts, &summed, scale)
        };
        (self.dedup, self.summed, self.fan) = (dedup, summed, fan);
        let finished = self.finish();
        begun.and(finished)
    }

    /// Sends the gradients of distinct keys, which the fan holds, without waiting for the answers: the next pull of this
    /// session, which sees the push, or [`Session::finish`] does and reports what failed.
    pub(crate) fn begin_push(
        &mut self,
        table: &RemoteTable,
        fan: &Fan,
        counts: &[u32],
        grads: &[f32],
        scale: PushScale,
    ) -> Result<(), ClientError> {
        check_push(table, fan, grads, scale)?;
        let dim = table.dim();
        let step = self.rows_per_request(dim + 3);
        let number = self.pushes.number(table.name());
        let Session { links, pushes, counts: part_counts, grads: part_grads, .. } = self;
        let names = links.names();
        for (server, share) in fan.shares.iter().enumerate() {
            for (keys, positions) in share.keys.chunks(step).zip(share.positions.chunks(step)) {
                part_counts.clear();
                part_counts.extend(positions.iter().map(|&at| counts[at as usize]));
                part_grads.clear();
                for &at in positions {
                    part_grads.extend_from_slice(&grads[at as usize * dim..][..dim]);
                }
                let sequence = pushes.sequences[server] + 1;
                pushes.sequences[server] = sequence;
                let push = Push {
                    table: table.number(server).table,
                    client: pushes.client,
                    sequence,
                    dim: dim as u32,
                    lr: scale.lr,
                    keys,
                    counts: part_counts,
                    grads: part_grads,
                };
                let boot_id = Some(table.number(server).boot_id);
                let mut sink = |server: usize, tag: u64, result: Result<Reply<'_>, CallError>| {
                    pushes.note(&names, server, tag, result);
                };
                let begun = links.begin(server, PUSH | number, boot_id, &Request::Push(push), &mut sink);
                begun.map_err(|source| ClientError::Request { table: table.name().to_owned(), source })?;
            }
        }
        Ok(())
    }

    /// Lets go what [`Session::begin_push`] has prepared.
    pub(crate) fn send(&mut self) {
        let Session { links, pushes, .. } = self;
        let names = links.names();
        links.send(&mut |server, tag, result| pushes.note(&names, server, tag, result));
    }

    /// Waits for the pushes that are under way. An error may be that of an earlier push.
    pub fn finish(&mut self) -> Result<(), ClientError> {
        let Session { links, pushes, .. } = self;
        let names = links.names();
        links.settle(&mut |server, tag, result| pushes.note(&names, server, tag, result));
        pushes.failed.take().map_or(Ok(()), Err)
    }
}

impl Pushes {
    pub(super) fn new(servers: usize) -> Pushes {
        Pushes { client: unique(), sequences: vec![0; servers], tables: Vec::new(), failed: None }
    }

    /// Number of a table in tags.
    fn number(&mut self, table: &str) -> u64 {
        let number = self.tables.iter().position(|other| other == table).unwrap_or_else(|| {
            self.tables.push(table.to_owned());
            self.tables.len() - 1
        });
        number as u64
    }

    pub(super) fn note(
        &mut self,
        names: &Names,
        server: usize,
        tag: u64,
        result: Result<Reply<'_>, CallError>,
    ) {
        let table = &self.tables[(tag & !PUSH) as usize];
        let error = match result {
            Ok(Reply::Push(_)) => return,
            Ok(_) => names.misfit(server, table),
            Err(error) => names.error(server, table, error),
        };
        self.failed.get_or_insert(error);
    }
}

/// What a table in this process would refuse is refused before any server has a part of it.
fn check_push(table: &RemoteTable, fan: &Fan, grads: &[f32], scale: PushScale) -> Result<(), ClientError> {
    let name = || table.name().to_owned();
    if !(scale.lr.is_finite() && scale.lr > 0.0) {
        return Err(StoreError::BadScale { table: name(), lr: scale.lr }.into());
    }
    // Without a branch per value, so that it vectorises; the comparison is false for NaN.
    let good = |g: &f32| g.abs() < GRADIENT_ABS_MAX;
    if grads.iter().fold(true, |all, g| all & good(g)) {
        return Ok(());
    }
    let at = grads.iter().position(|g| !good(g)).unwrap_or_default();
    let (position, coordinate) = ((at / table.dim()) as u32, at % table.dim());
    let shares = fan.shares.iter().flat_map(|share| share.positions.iter().zip(&share.keys));
    let key = shares.filter(|(at, _)| **at == position).map(|(_, key)| *key).next().unwrap_or_default();
    Err(StoreError::BadGradient { table: name(), key, coordinate, value: grads[at] }.into())
}
