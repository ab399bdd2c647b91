//! Pushes of one thread: numbered, so that a server applies each at most once, and sent without waiting for the
//! answers. Does not know how frames travel.

use sanderling_observe::unique;
use sanderling_store::{Dedup, PushScale, StoreError, bad_gradient};
use sanderling_wire::{Push, Reply, Request, WireError};

use super::Session;
use crate::error::{ClientError, Names};
use crate::key_partition::KeyPartition;
use crate::remote::RemoteTable;
use crate::rpc_state::CallError;
use sanderling_store::gather;

/// Tags with this bit are pushes, whose answers have no place to go to; the others are positions in `asked`. Below it are the
/// mark of the push and, in so many bits, the number of its table.
pub(super) const PUSH: u64 = 1 << 63;
const TABLE_BITS: u32 = 24;

/// Pushes that are under way.
#[derive(Debug)]
pub(super) struct Pushes {
    pub(super) outgoing: Outgoing,
    /// Names of the tables, by the number in the tags.
    pub(super) tables: Vec<String>,
    /// The mark of the next pushes.
    mark: u64,
    pub(super) failed: Failed,
}

/// Failures of pushes.
#[derive(Debug, Default)]
pub(super) struct Failed {
    /// The first failure since the last report.
    pub(super) first: Option<ClientError>,
    /// Marks of failed pushes since the last query, each once.
    marks: Vec<u64>,
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
        let mut partition = std::mem::take(&mut self.partition);
        let grads = sum_duplicates(&mut dedup, &mut summed, keys, grads, dim);
        partition.assign(&self.placement, table.home(), &dedup.unique);
        let begun = self.begin_push(table, &partition, &dedup.counts, grads, scale);
        (self.dedup, self.summed, self.partition) = (dedup, summed, partition);
        let finished = self.finish();
        begun.and(finished)
    }

    /// Sends the gradients of the partition's distinct keys without waiting for the answers: the next pull of this
    /// session, which sees the push, or [`Session::finish`] waits for them and reports failures.
    pub(crate) fn begin_push(
        &mut self,
        table: &RemoteTable,
        partition: &KeyPartition,
        counts: &[u32],
        grads: &[f32],
        scale: PushScale,
    ) -> Result<(), ClientError> {
        let step = self.rows_per_request(table.dim() + 3);
        let tag = self.pushes.tag(table.name());
        let Session { connections, pushes, .. } = self;
        let names = connections.names();
        let Pushes { outgoing, tables, failed, .. } = pushes;
        outgoing.each(table, partition, counts, grads, scale, step, |server, boot_id, request| {
            let mut sink = |server: usize, tag: u64, result: Result<Reply<'_>, CallError>| {
                note(tables, failed, &names, server, tag, result);
            };
            connections.begin(server, tag, Some(boot_id), request, &mut sink)
        })
    }

    /// Lets go what [`Session::begin_push`] has prepared.
    pub(crate) fn send(&mut self) {
        let Session { connections, pushes, .. } = self;
        let names = connections.names();
        connections.send(&mut |server, tag, result| pushes.note(&names, server, tag, result));
    }

    /// Waits for the pushes that are under way. An error may be that of an earlier push.
    pub fn finish(&mut self) -> Result<(), ClientError> {
        let Session { connections, pushes, .. } = self;
        let names = connections.names();
        connections.settle(&mut |server, tag, result| pushes.note(&names, server, tag, result));
        pushes.failed.first.take().map_or(Ok(()), Err)
    }

    /// Marks what is pushed from now on, so that [`Session::take_failed`] can tell it from the rest.
    pub fn mark_pushes(&mut self, mark: u64) {
        self.pushes.mark = mark & ((PUSH >> TABLE_BITS) - 1);
    }

    /// The marks of the pushes that have failed since this was asked before. Of what has been answered, so after
    /// [`Session::finish`] of all.
    pub fn take_failed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.pushes.failed.marks)
    }
}

impl Pushes {
    pub(super) fn new(servers: usize) -> Pushes {
        Pushes { outgoing: Outgoing::new(servers), tables: Vec::new(), mark: 0, failed: Failed::default() }
    }

    /// The tag of a push to a table.
    pub(super) fn tag(&mut self, table: &str) -> u64 {
        let number = self.tables.iter().position(|other| other == table).unwrap_or_else(|| {
            self.tables.push(table.to_owned());
            self.tables.len() - 1
        });
        PUSH | self.mark << TABLE_BITS | number as u64
    }

    pub(super) fn note(
        &mut self,
        names: &Names,
        server: usize,
        tag: u64,
        result: Result<Reply<'_>, CallError>,
    ) {
        note(&self.tables, &mut self.failed, names, server, tag, result);
    }
}

pub(super) fn note(
    tables: &[String],
    failed: &mut Failed,
    names: &Names,
    server: usize,
    tag: u64,
    result: Result<Reply<'_>, CallError>,
) {
    let (mark, number) = ((tag & !PUSH) >> TABLE_BITS, tag & ((1 << TABLE_BITS) - 1));
    let table = &tables[number as usize];
    let error = match result {
        Ok(Reply::Push(_) | Reply::PushFed(_) | Reply::Feed | Reply::Forget) => return,
        Ok(_) => names.misfit(server, table),
        Err(error) => names.error(server, table, error),
    };
    failed.first.get_or_insert(error);
    if failed.marks.last() != Some(&mark) && !failed.marks.contains(&mark) {
        failed.marks.push(mark);
    }
}

/// Pushes of one client: numbered per server, each in as many messages as it needs.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Number of this client among those who push.
    client: u64,
    /// Per server, the number of the last push.
    sequences: Vec<u64>,
    /// Of one message.
    counts: Vec<u32>,
    grads: Vec<f32>,
}

impl Outgoing {
    pub(crate) fn new(servers: usize) -> Outgoing {
        Outgoing { client: unique(), sequences: vec![0; servers], counts: Vec::new(), grads: Vec::new() }
    }

    /// The client and the number of the next push to a server.
    pub(super) fn next(&mut self, server: usize) -> (u64, u64) {
        self.sequences[server] += 1;
        (self.client, self.sequences[server])
    }

    /// Gives the messages of a push of distinct keys to `begin`, each for a server and its start, with at most `step` rows.
    #[expect(clippy::too_many_arguments, reason = "a push is keys, counts, gradients and a scale")]
    pub(crate) fn each(
        &mut self,
        table: &RemoteTable,
        partition: &KeyPartition,
        counts: &[u32],
        grads: &[f32],
        scale: PushScale,
        step: usize,
        mut begin: impl FnMut(usize, u64, &Request<'_>) -> Result<(), WireError>,
    ) -> Result<(), ClientError> {
        check_push(table, partition, grads, scale)?;
        let dim = table.dim();
        for (server, share) in partition.shares().enumerate() {
            let parts = share.keys.chunks(step).zip(share.positions.chunks(step));
            for (part, (keys, positions)) in parts.enumerate() {
                gather(positions, 1, counts, &mut self.counts);
                gather(positions, dim, grads, &mut self.grads);
                let (client, sequence) = self.next(server);
                let number = table.number(server);
                let push = Push {
                    table: number.table,
                    client,
                    sequence,
                    continues: part > 0,
                    dim: dim as u32,
                    lr_scale: scale.lr_scale,
                    keys,
                    counts: &self.counts,
                    grads: &self.grads,
                };
                begin(server, number.boot_id, &Request::Push(push))
                    .map_err(|source| ClientError::Request { table: table.name().to_owned(), source })?;
            }
        }
        Ok(())
    }
}

/// The distinct keys go to `dedup`; the sums of their gradients, which are in `summed` unless no key occurs twice.
pub(crate) fn sum_duplicates<'a>(
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
    table: &RemoteTable,
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
