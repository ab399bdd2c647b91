//! Pulls of one thread: partitions the keys, asks all servers at once, and scatters the answers. Does not know how
//! frames travel, nor what a row means.

use std::ops::Range;

use sanderling_store::{Absent, Pooling, StoreError};
use sanderling_wire::{self as wire, Pull, PullPooled, PullReply, Ragged, Reply, Request, RowFormat};

use super::push::PUSH;
use super::{Session, rows_per_pull, rows_per_request};
use crate::connection_set::ConnectionSet;
use crate::error::ClientError;
use crate::key_partition::{KeyPartition, RunSamples};
use crate::remote::RemoteTable;
use crate::rpc_state::CallError;

/// A request that is part of a pull.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) server: usize,
    /// Which of the pulls that are made at once; of a pooled one, which run of samples.
    pub(super) part: usize,
    /// Its keys, among those of the server's share.
    pub(super) first_key: usize,
    pub(super) keys: usize,
    /// Its rows: one per key, or one per sample of the server's share from this one on.
    pub(super) first_row: usize,
    pub(super) rows: usize,
}

/// One of several pulls that are made at once: the table, and its keys shared out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PullPart<'a> {
    pub(crate) table: &'a RemoteTable,
    pub(crate) partition: &'a KeyPartition,
}

/// Where the answers to a [`PullPart`] go.
#[derive(Debug)]
pub(crate) struct PullInto<'a> {
    pub(crate) out: &'a mut [f32],
    pub(crate) missing: Option<&'a mut Vec<u32>>,
}

impl Session {
    /// As [`RemoteTable::pull`].
    pub fn pull(
        &mut self,
        table: &RemoteTable,
        keys: &[u64],
        absent: Absent,
        out: &mut [f32],
        mut missing: Option<&mut Vec<u32>>,
    ) -> Result<usize, ClientError> {
        table.length("out", keys.len() * table.dim(), out.len())?;
        let mut partition = std::mem::take(&mut self.partition);
        partition.assign(&self.placement, table.home(), keys);
        let into = PullInto { out, missing: missing.as_deref_mut() };
        let result =
            self.pull_parts(&[PullPart { table, partition: &partition }], &mut [into], absent, || {});
        self.partition = partition;
        if let Some(missing) = missing {
            missing.sort_unstable();
        }
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
        let tables = parts.iter().map(|part| part.table);
        match self.follows(&pulled, absent, tables)? {
            true => self.pull_parts_once(parts, into, absent, || {}),
            false => pulled,
        }
    }

    /// Goes on with the tables that have the names now, if a pull that only reads has found one of them gone.
    fn follows<'t>(
        &mut self,
        pulled: &Result<usize, ClientError>,
        absent: Absent,
        tables: impl Iterator<Item = &'t RemoteTable>,
    ) -> Result<bool, ClientError> {
        let is_gone = matches!(pulled, Err(ClientError::Refused { fault: wire::Fault::UnknownTable, .. }));
        if !is_gone || absent != Absent::Zero {
            return Ok(false);
        }
        for table in tables {
            table.follow(self)?;
        }
        Ok(true)
    }

    fn pull_parts_once(
        &mut self,
        parts: &[PullPart<'_>],
        into: &mut [PullInto<'_>],
        absent: Absent,
        meanwhile: impl FnOnce(),
    ) -> Result<usize, ClientError> {
        self.asked.clear();
        for (part, PullPart { table, partition }) in parts.iter().enumerate() {
            if let Some(missing) = &mut into[part].missing {
                missing.clear();
            }
            let step = rows_per_pull(&self.connections, table.dim());
            for (server, share) in partition.shares().enumerate() {
                for first_key in (0..share.keys.len()).step_by(step) {
                    let keys = step.min(share.keys.len() - first_key);
                    self.asked.push(Asked {
                        server,
                        part,
                        first_key,
                        keys,
                        first_row: first_key,
                        rows: keys,
                    });
                }
            }
        }
        let absent = wire_absent(absent);
        self.pull_asked(
            |asked, format| {
                let PullPart { table, partition } = parts[asked.part];
                let keys = &partition.share(asked.server).keys[asked.first_key..][..asked.keys];
                let (number, dim) = (table.read_number(asked.server), table.dim() as u32);
                (table, Request::Pull(Pull { table: number, dim, absent, format, keys }))
            },
            |asked, reply| {
                let positions = &parts[asked.part].partition.share(asked.server).positions[asked.first_key..]
                    [..asked.keys];
                let dim = parts[asked.part].table.dim();
                let PullInto { out, missing } = &mut into[asked.part];
                reply.values.scatter(dim, positions, out);
                if let Some(missing) = missing {
                    missing.extend(reply.absent.positions().map(|at| positions[at]));
                }
            },
            meanwhile,
        )
    }

    /// As [`RemoteTable::pull_pooled`].
    #[expect(clippy::too_many_arguments, reason = "a ragged batch is keys, values and offsets")]
    pub fn pull_pooled(
        &mut self,
        table: &RemoteTable,
        keys: &[u64],
        values: Option<&[f32]>,
        offsets: &[u32],
        pooling: Pooling,
        absent: Absent,
        out: &mut [f32],
        mut missing: Option<&mut Vec<u32>>,
    ) -> Result<usize, ClientError> {
        let mut pull = |session: &mut Session| {
            let missing = missing.as_deref_mut();
            session.pull_pooled_once(table, keys, values, offsets, pooling, absent, out, missing)
        };
        let pulled = pull(self);
        match self.follows(&pulled, absent, std::iter::once(table))? {
            true => pull(self),
            false => pulled,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a ragged batch is keys, values and offsets")]
    fn pull_pooled_once(
        &mut self,
        table: &RemoteTable,
        keys: &[u64],
        values: Option<&[f32]>,
        offsets: &[u32],
        pooling: Pooling,
        absent: Absent,
        out: &mut [f32],
        mut missing: Option<&mut Vec<u32>>,
    ) -> Result<usize, ClientError> {
        let (dim, name) = (table.dim(), table.name());
        let samples = check_offsets(name, offsets, keys.len())?;
        table.length("out", samples * dim, out.len())?;
        if let Some(values) = values {
            table.length("values", keys.len(), values.len())?;
        }
        // A mean over several servers is not the mean of theirs.
        let alone = self.connections.len() == 1;
        let asked_pooling =
            if alone && pooling == Pooling::Mean { wire::Pooling::Mean } else { wire::Pooling::Sum };
        let mut ragged = std::mem::take(&mut self.ragged);
        ragged.clear(self.connections.len());
        self.asked.clear();
        // With several servers, each gets the samples that have keys there; one server gets all, in their order.
        let which = if alone { RunSamples::All } else { RunSamples::WithKeys };
        for (part, run) in sample_runs(&self.connections, dim, offsets).enumerate() {
            let firsts = self.asked.len();
            for (server, share) in ragged.shares.iter().enumerate() {
                let (first_key, first_row) = (share.keys.len(), share.samples.len());
                self.asked.push(Asked { server, part, first_key, keys: 0, first_row, rows: 0 });
            }
            let run_offsets = &offsets[run.start..=run.end];
            ragged.add(&self.placement, table.home(), keys, values, run_offsets, run.start, which);
            for (asked, share) in self.asked[firsts..].iter_mut().zip(&ragged.shares) {
                asked.keys = share.keys.len() - asked.first_key;
                asked.rows = share.samples.len() - asked.first_row;
            }
        }
        out.fill(0.0);
        if let Some(missing) = &mut missing {
            missing.clear();
        }
        let absent = wire_absent(absent);
        // Every run before it has one offset more than samples; a server without keys is not asked.
        let offsets_first = |asked: &Asked| asked.first_row + asked.part;
        let mut part = Vec::new();
        let result = self.pull_asked(
            |asked, format| {
                let share = &ragged.shares[asked.server];
                let span = asked.first_key..asked.first_key + asked.keys;
                let ragged = Ragged {
                    keys: &share.keys[span.clone()],
                    offsets: &share.offsets[offsets_first(asked)..][..=asked.rows],
                    values: values.map(|_| &share.values[span]),
                };
                let (number, dim) = (table.read_number(asked.server), dim as u32);
                let pull = PullPooled { table: number, dim, pooling: asked_pooling, absent, format, ragged };
                (table, Request::PullPooled(pull))
            },
            |asked, reply| {
                let rows = asked.first_row..asked.first_row + asked.rows;
                if alone {
                    reply.values.copy_to(&mut out[rows.start * dim..rows.end * dim]);
                } else {
                    let samples = &ragged.shares[asked.server].samples[rows];
                    add_rows_at(reply.values, &mut part, samples, dim, out);
                }
                if let Some(missing) = &mut missing {
                    let positions = &ragged.shares[asked.server].positions[asked.first_key..];
                    missing.extend(reply.absent.positions().map(|at| positions[at]));
                }
            },
            || {},
        );
        if !alone && pooling == Pooling::Mean {
            for (row, span) in out.chunks_exact_mut(dim).zip(offsets.windows(2)) {
                let scale = 1.0 / (span[1] - span[0]).max(1) as f32;
                row.iter_mut().for_each(|sum| *sum *= scale);
            }
        }
        if let Some(missing) = missing {
            missing.sort_unstable();
        }
        self.ragged = ragged;
        result
    }

    /// Makes the requests that `asked` lists, all at once, does what is to be done meanwhile, and hands the answers over as
    /// they come.
    pub(super) fn pull_asked<'r>(
        &mut self,
        request: impl Fn(&Asked, RowFormat) -> (&'r RemoteTable, Request<'r>),
        mut place: impl FnMut(&Asked, &PullReply<'_>),
        meanwhile: impl FnOnce(),
    ) -> Result<usize, ClientError> {
        let Session { connections, asked, pushes, .. } = self;
        let names = connections.names();
        let (mut missing, mut failed) = (0, None);
        let mut sink = |server: usize, tag: u64, result: Result<Reply<'_>, CallError>| {
            if tag & PUSH != 0 {
                pushes.note(&names, server, tag, result);
                return;
            }
            let asked = &asked[tag as usize];
            let table = request(asked, RowFormat::F32).0;
            let error = match result {
                Ok(Reply::Pull(reply) | Reply::PullPooled(reply) | Reply::PullFed(reply))
                    if fits(asked, table, &reply) =>
                {
                    missing += reply.absent.count();
                    place(asked, &reply);
                    return;
                }
                Ok(_) => names.misfit(server, table.name()),
                Err(error) => names.error(server, table.name(), error),
            };
            failed.get_or_insert(error);
        };
        let mut begun = Ok(());
        for (tag, asked) in asked.iter().enumerate().filter(|(_, asked)| asked.keys > 0) {
            let (table, request) = request(asked, connections.row_format(asked.server));
            let boot_id = Some(table.number(asked.server).boot_id);
            if let Err(source) = connections.begin(asked.server, tag as u64, boot_id, &request, &mut sink) {
                begun = Err(ClientError::Request { table: table.name().to_owned(), source });
                break;
            }
        }
        connections.settle_while(meanwhile, &mut sink);
        begun?;
        match failed.or_else(|| pushes.failed.first.take()) {
            Some(error) => Err(error),
            None => Ok(missing),
        }
    }
}

pub(crate) fn wire_absent(absent: Absent) -> wire::Absent {
    match absent {
        Absent::Zero => wire::Absent::Zero,
        Absent::Init => wire::Absent::Init,
    }
}

/// Adds the rows of a server to those of the others; halves become whole in `room`.
pub(super) fn add_rows(values: wire::RowValues<'_>, room: &mut Vec<f32>, out: &mut [f32]) {
    let rows = whole_rows(values, room);
    out.iter_mut().zip(rows).for_each(|(sum, row)| *sum += row);
}

/// Adds the rows of a server to the rows of these samples.
fn add_rows_at(
    values: wire::RowValues<'_>,
    room: &mut Vec<f32>,
    samples: &[u32],
    dim: usize,
    out: &mut [f32],
) {
    let rows = whole_rows(values, room);
    for (row, &sample) in rows.chunks_exact(dim).zip(samples) {
        out[sample as usize * dim..][..dim].iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
}

/// The rows in single precision, halves converted in `room`.
fn whole_rows<'a>(values: wire::RowValues<'a>, room: &'a mut Vec<f32>) -> &'a [f32] {
    match values {
        wire::RowValues::F32(rows) => rows,
        halves @ wire::RowValues::F16(_) => {
            room.resize(halves.len(), 0.0);
            halves.copy_to(room);
            &room[..]
        }
    }
}

/// Has the reply the sizes that were asked for?
fn fits(asked: &Asked, table: &RemoteTable, reply: &PullReply<'_>) -> bool {
    let shape = reply.shape();
    // Halves come only where they were agreed on.
    (shape.keys, shape.rows, shape.dim) == (asked.keys, asked.rows, table.dim() as u32)
}

/// The runs of samples whose pooled rows are asked for by one request each. A sample is not cut, however many keys it has.
pub(crate) fn sample_runs<'a>(
    connections: &ConnectionSet,
    dim: usize,
    offsets: &'a [u32],
) -> impl Iterator<Item = Range<usize>> + use<'a> {
    let samples_max = rows_per_pull(connections, dim);
    // A key, and its value.
    let keys_max = rows_per_request(connections, 3);
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
pub(crate) fn check_offsets(table: &str, offsets: &[u32], keys: usize) -> Result<usize, StoreError> {
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
