//! Pulls and pushes of one thread over its own connections: shares keys out to servers, asks all of them at once, and
//! puts what they answer where it belongs. Knows not how frames travel, nor what a row means.
//!
//! A reply is framed by what was asked, never by what was found: its sizes must be those of the request, and its rows go
//! to the places of the request's keys.

use sanderling_store::{Absent, Dedup, GRADIENT_ABS_MAX, Pooling, PushScale, StoreError};
use sanderling_wire::{
    self as wire, Pull, PullPooled, PullReply, Push, Ragged, Reply, Request, RowFormat, limit,
};

use crate::error::{ClientError, Names};
use crate::exchange::CallError;
use crate::fan::{Fan, RaggedFan};
use crate::links::Links;
use crate::placement::Placement;
use crate::random::unique;
use crate::remote::RemoteTable;

/// Rows and gradients travel in requests of about this size, so that servers and network work at the same time.
const REQUEST_BYTES: usize = 1 << 20;
/// Tags with this bit are pushes, whose answers have no place to go to; the others are positions in `asked`.
const PUSH: u64 = 1 << 63;

/// The connections of one thread to all servers of a cluster, with room for one request at a time. It connects when it is
/// used first, and again when a connection breaks.
#[derive(Debug)]
pub struct Session {
    pub(crate) links: Links,
    placement: Placement,
    pushes: Pushes,
    asked: Vec<Asked>,
    fan: Fan,
    ragged: RaggedFan,
    dedup: Dedup,
    /// Gradients of distinct keys; then those of one server, with their counts.
    summed: Vec<f32>,
    counts: Vec<u32>,
    grads: Vec<f32>,
}

/// What is under way without anybody waiting for it.
#[derive(Debug)]
struct Pushes {
    /// Number of this client among those who push.
    client: u64,
    /// Per server, the number of the last push.
    sequences: Vec<u64>,
    /// Names of the tables, by the number in the tags.
    tables: Vec<String>,
    /// The first that failed.
    failed: Option<ClientError>,
}

/// A request that is part of a pull.
#[derive(Debug, Clone, Copy)]
struct Asked {
    server: usize,
    /// Which of the pulls that are made at once.
    part: usize,
    /// Its keys, among those of the server's share.
    first_key: usize,
    keys: usize,
    /// Its rows: one per key, or one per sample from this one on.
    first_row: usize,
    rows: usize,
}

/// One of several pulls that are made at once: the table, and its keys shared out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PullPart<'a> {
    pub(crate) table: &'a RemoteTable,
    pub(crate) fan: &'a Fan,
}

/// Where the answers to a [`PullPart`] go.
#[derive(Debug)]
pub(crate) struct PullInto<'a> {
    pub(crate) out: &'a mut [f32],
    pub(crate) missing: Option<&'a mut Vec<u32>>,
}

impl Session {
    pub(crate) fn new(links: Links, placement: Placement) -> Session {
        let sequences = vec![0; links.len()];
        Session {
            links,
            placement,
            pushes: Pushes { client: unique(), sequences, tables: Vec::new(), failed: None },
            asked: Vec::new(),
            fan: Fan::default(),
            ragged: RaggedFan::default(),
            dedup: Dedup::new(),
            summed: Vec::new(),
            counts: Vec::new(),
            grads: Vec::new(),
        }
    }

    /// Where keys are.
    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Rows of so many values that one request may have.
    pub(crate) fn rows_per_request(&self, values: usize) -> usize {
        let bytes = REQUEST_BYTES.min(self.links.frame_bytes_max() / 2);
        (bytes / (size_of::<f32>() * values.max(1))).clamp(1, limit::KEYS_MAX)
    }

    /// The start of a server that has answered.
    pub(crate) fn boot_id(&self, server: usize) -> u64 {
        self.links.peer(server).map_or(0, |peer| peer.boot_id)
    }

    /// Asks one server and takes what `read` makes of the answer; `None` says that it is none. `table` is for messages.
    pub(crate) fn ask<T>(
        &mut self,
        server: usize,
        table: &str,
        request: &Request<'_>,
        read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Result<T, ClientError> {
        self.ask_start(server, table, None, request, read)
    }

    /// The same about a table by its number.
    pub(crate) fn ask_table<T>(
        &mut self,
        table: &RemoteTable,
        server: usize,
        request: &Request<'_>,
        read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Result<T, ClientError> {
        self.ask_start(server, table.name(), Some(table.number(server).boot_id), request, read)
    }

    fn ask_start<T>(
        &mut self,
        server: usize,
        table: &str,
        boot_id: Option<u64>,
        request: &Request<'_>,
        mut read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Result<T, ClientError> {
        self.finish()?;
        let names = self.links.names();
        let mut answer = None;
        let mut sink = |_: usize, _: u64, result: Result<Reply<'_>, CallError>| {
            answer = Some(match result {
                Ok(reply) => read(reply).ok_or_else(|| names.misfit(server, table)),
                Err(error) => Err(names.error(server, table, error)),
            });
        };
        let begun = self.links.begin(server, 0, boot_id, request, &mut sink);
        begun.map_err(|source| ClientError::Request { table: table.to_owned(), source })?;
        self.links.settle(&mut sink);
        answer.unwrap_or_else(|| Err(names.misfit(server, table)))
    }

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
        let mut fan = std::mem::take(&mut self.fan);
        fan.assign(&self.placement, table.home(), keys);
        let into = PullInto { out, missing: missing.as_deref_mut() };
        let result = self.pull_parts(&[PullPart { table, fan: &fan }], &mut [into], absent);
        self.fan = fan;
        if let Some(missing) = missing {
            missing.sort_unstable();
        }
        result
    }

    /// Pulls from several tables at once; how many keys have no row. Also waits for pushes that are under way.
    pub(crate) fn pull_parts(
        &mut self,
        parts: &[PullPart<'_>],
        into: &mut [PullInto<'_>],
        absent: Absent,
    ) -> Result<usize, ClientError> {
        self.asked.clear();
        for (part, PullPart { table, fan }) in parts.iter().enumerate() {
            if let Some(missing) = &mut into[part].missing {
                missing.clear();
            }
            let step = self.rows_per_request(table.dim());
            for (server, share) in fan.shares.iter().enumerate() {
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
            |asked| {
                let PullPart { table, fan } = parts[asked.part];
                let keys = &fan.shares[asked.server].keys[asked.first_key..][..asked.keys];
                let (number, dim) = (table.number(asked.server).table, table.dim() as u32);
                let request =
                    Request::Pull(Pull { table: number, dim, absent, format: RowFormat::F32, keys });
                (table, request)
            },
            |asked, reply| {
                let positions =
                    &parts[asked.part].fan.shares[asked.server].positions[asked.first_key..][..asked.keys];
                let dim = parts[asked.part].table.dim();
                let PullInto { out, missing } = &mut into[asked.part];
                for (row, &position) in positions.iter().enumerate() {
                    reply.values.copy_to(row * dim, &mut out[position as usize * dim..][..dim]);
                }
                if let Some(missing) = missing {
                    missing.extend(reply.absent.positions().map(|at| positions[at]));
                }
            },
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
        let (dim, name) = (table.dim(), table.name());
        let samples = check_offsets(name, offsets, keys.len())?;
        table.length("out", samples * dim, out.len())?;
        if let Some(values) = values {
            table.length("values", keys.len(), values.len())?;
        }
        // A mean over several servers is not the mean of theirs.
        let alone = self.links.len() == 1;
        let asked_pooling =
            if alone && pooling == Pooling::Mean { wire::Pooling::Mean } else { wire::Pooling::Sum };
        let step = self.rows_per_request(dim);
        let mut ragged = std::mem::take(&mut self.ragged);
        ragged.clear(self.links.len());
        self.asked.clear();
        for first_row in (0..samples).step_by(step) {
            let rows = step.min(samples - first_row);
            let offsets = &offsets[first_row..=first_row + rows];
            let firsts = self.asked.len();
            for (server, share) in ragged.shares.iter().enumerate() {
                let first_key = share.share.keys.len();
                self.asked.push(Asked { server, part: 0, first_key, keys: 0, first_row, rows });
            }
            ragged.add(&self.placement, table.home(), keys, values, offsets);
            for (asked, share) in self.asked[firsts..].iter_mut().zip(&ragged.shares) {
                asked.keys = share.share.keys.len() - asked.first_key;
            }
        }
        out.fill(0.0);
        if let Some(missing) = &mut missing {
            missing.clear();
        }
        let absent = wire_absent(absent);
        // Offsets have one entry more per request than it has samples; a server without keys is not asked.
        let offsets_first = |asked: &Asked| asked.first_row + asked.first_row / step;
        let result = self.pull_asked(
            |asked| {
                let share = &ragged.shares[asked.server];
                let span = asked.first_key..asked.first_key + asked.keys;
                let ragged = Ragged {
                    keys: &share.share.keys[span.clone()],
                    offsets: &share.offsets[offsets_first(asked)..][..=asked.rows],
                    values: values.map(|_| &share.values[span]),
                };
                let (number, dim) = (table.number(asked.server).table, dim as u32);
                let (pooling, format) = (asked_pooling, RowFormat::F32);
                let pull = PullPooled { table: number, dim, pooling, absent, format, ragged };
                (table, Request::PullPooled(pull))
            },
            |asked, reply| {
                let out = &mut out[asked.first_row * dim..][..asked.rows * dim];
                if let (true, wire::RowValues::F32(rows)) = (alone, reply.values) {
                    out.copy_from_slice(rows);
                } else if let wire::RowValues::F32(rows) = reply.values {
                    out.iter_mut().zip(rows).for_each(|(sum, part)| *sum += part);
                }
                if let Some(missing) = &mut missing {
                    let positions = &ragged.shares[asked.server].share.positions[asked.first_key..];
                    missing.extend(reply.absent.positions().map(|at| positions[at]));
                }
            },
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

    /// Makes the requests that `asked` lists, all at once, and hands the answers over as they come.
    fn pull_asked<'r>(
        &mut self,
        request: impl Fn(&Asked) -> (&'r RemoteTable, Request<'r>),
        mut place: impl FnMut(&Asked, &PullReply<'_>),
    ) -> Result<usize, ClientError> {
        let Session { links, asked, pushes, .. } = self;
        let names = links.names();
        let (mut missing, mut failed) = (0, None);
        let mut sink = |server: usize, tag: u64, result: Result<Reply<'_>, CallError>| {
            if tag & PUSH != 0 {
                pushes.note(&names, server, tag, result);
                return;
            }
            let asked = &asked[tag as usize];
            let table = request(asked).0;
            let error = match result {
                Ok(Reply::Pull(reply) | Reply::PullPooled(reply)) if fits(asked, table, &reply) => {
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
            let (table, request) = request(asked);
            let boot_id = Some(table.number(asked.server).boot_id);
            if let Err(source) = links.begin(asked.server, tag as u64, boot_id, &request, &mut sink) {
                begun = Err(ClientError::Request { table: table.name().to_owned(), source });
                break;
            }
        }
        links.settle(&mut sink);
        begun?;
        match failed.or_else(|| pushes.failed.take()) {
            Some(error) => Err(error),
            None => Ok(missing),
        }
    }

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
    /// Number of a table in tags.
    fn number(&mut self, table: &str) -> u64 {
        let number = self.tables.iter().position(|other| other == table).unwrap_or_else(|| {
            self.tables.push(table.to_owned());
            self.tables.len() - 1
        });
        number as u64
    }

    fn note(&mut self, names: &Names, server: usize, tag: u64, result: Result<Reply<'_>, CallError>) {
        let table = &self.tables[(tag & !PUSH) as usize];
        let error = match result {
            Ok(Reply::Push(_)) => return,
            Ok(_) => names.misfit(server, table),
            Err(error) => names.error(server, table, error),
        };
        self.failed.get_or_insert(error);
    }
}

fn wire_absent(absent: Absent) -> wire::Absent {
    match absent {
        Absent::Zero => wire::Absent::Zero,
        Absent::Init => wire::Absent::Init,
    }
}

/// Has the reply the sizes that were asked for?
fn fits(asked: &Asked, table: &RemoteTable, reply: &PullReply<'_>) -> bool {
    let shape = reply.shape();
    let expected = (asked.keys, asked.rows, table.dim() as u32, RowFormat::F32);
    (shape.keys, shape.rows, shape.dim, shape.format) == expected
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
