//! Sends the keys of a message on, after a server of a cluster has said that they are elsewhere: waits for the placement
//! that says where, splits the message by it, and puts the answer together. The caller sees one answer.
//!
//! A message that changes rows was not applied by the server that refused it. A pull goes on only when the changes that
//! were begun before it have ended, so that it sees them as it would at its first server.

use std::time::{Duration, Instant};

use sanderling_store::{Pooling, gather};
use sanderling_wire::{
    Delete, Fault, Frame, Home, Import, Parsed, Pull, PullPooled, Push, Ragged, Reply, Request, RowBlock,
};

use super::assembly::{Assembly, Part};
use super::{Asker, Each, Engine, Message, Subject, UnderWay};
use crate::error::{ClientError, said};
use crate::key_partition::{KeyPartition, RaggedPartition, RunSamples};
use crate::open_table::{Number, OpenTable};
use crate::placement::Placement;
use crate::rpc_state::{CallError, MovedCall, Timeout};

/// How often it is looked whether a message can go on.
const LOOK: Duration = Duration::from_millis(2);
/// First and longest pause before keys are sent on once more, to a server that did not know yet that they are its own.
const PAUSE_MIN_US: u64 = 1_000;
const PAUSE_MAX_US: u64 = 50_000;

/// A message that waits to go on at other servers.
#[derive(Debug)]
pub(super) struct Parked {
    tag: usize,
    call: MovedCall,
    times: Option<Times>,
}

/// Times of a wait, by the clock of [`ConnectionSet::seen_us`](crate::connection_set::ConnectionSet::seen_us).
#[derive(Debug, Clone, Copy)]
struct Times {
    not_before_us: u64,
    until_us: u64,
}

/// The keys of a message that are one server's.
#[derive(Debug, Default)]
struct Share {
    server: usize,
    /// Where its keys and rows stand in the message.
    keys_at: Vec<u32>,
    rows_at: Vec<u32>,
    keys: Vec<u64>,
    /// Of pooled pulls.
    offsets: Vec<u32>,
    values: Vec<f32>,
}

/// Room for the columns of a share.
#[derive(Debug, Default)]
struct Columns {
    counts: Vec<u32>,
    last_uses: Vec<u32>,
    versions: Vec<u32>,
    weights: Vec<f32>,
    states: Vec<f32>,
}

impl Parked {
    pub(super) fn new(tag: usize, call: MovedCall) -> Parked {
        Parked { tag, call, times: None }
    }
}

impl UnderWay {
    /// Takes the end of a message that was a part of another one.
    pub(super) fn assemble(
        &mut self,
        tag: usize,
        result: Result<Reply<'_>, ClientError>,
        each: &mut Each<'_>,
    ) {
        if let Asker::Message(part) = std::mem::take(&mut self.messages[tag].asker) {
            self.note_part(&part, result, each);
        }
    }

    fn note_part(&mut self, part: &Part, result: Result<Reply<'_>, ClientError>, each: &mut Each<'_>) {
        let Some(at) = self.assemblies.iter().position(|(whole, _)| *whole == part.whole) else { return };
        let assembly = &mut self.assemblies[at].1;
        assembly.note(part, result);
        if assembly.open == 0 {
            let (whole, mut assembly) = self.assemblies.swap_remove(at);
            self.conclude(whole, assembly.reply(), each);
        }
    }

    /// Whether a change of rows that was begun before a message has not ended.
    fn has_earlier_change(&self, number: u64) -> bool {
        self.messages.iter().any(|message| message.is_open && message.is_change && message.number < number)
    }

    /// The error of a message that has waited for too long.
    fn late(&self, tag: usize, call: &MovedCall) -> ClientError {
        let fault = Fault::NotHere { placement_version: call.placement_version };
        let sent = match &self.messages[tag].asker {
            Asker::Message(part) => self.assemblies.iter().any(|(at, it)| *at == part.whole && it.is_begun),
            _ => false,
        };
        self.error(tag, CallError::Late { sent, cause: Some(said(&fault, &call.reason)) })
    }

    fn refused(&self, tag: usize, call: &MovedCall) -> ClientError {
        let fault = Fault::NotHere { placement_version: call.placement_version };
        self.error(tag, CallError::Refused { fault, reason: call.reason.clone() })
    }
}

impl Engine {
    /// When to look next whether a parked message can go on.
    pub(super) fn redirects_at(&self) -> Option<Instant> {
        (!self.under_way.parked.is_empty()).then(|| Instant::now() + LOOK)
    }

    /// Sends on what can go on.
    #[inline]
    pub(super) fn redirect(&mut self, each: &mut Each<'_>) {
        if !self.under_way.parked.is_empty() {
            self.redirect_parked(each);
        }
    }

    #[cold]
    fn redirect_parked(&mut self, each: &mut Each<'_>) {
        let Some(locations) = self.locations.clone() else { return };
        let placement = locations.placement();
        self.grow(placement.servers);
        let mut waiting = Vec::new();
        for mut parked in std::mem::take(&mut self.under_way.parked) {
            match self.try_redirect(&mut parked, &placement, each) {
                Ok(true) => {}
                Ok(false) => waiting.push(parked),
                Err(error) => self.under_way.conclude(parked.tag, Err(error), each),
            }
        }
        waiting.append(&mut self.under_way.parked);
        self.under_way.parked = waiting;
        self.send(each);
    }

    /// Begins the parts of a message, if it can go on.
    fn try_redirect(
        &mut self,
        parked: &mut Parked,
        placement: &Placement,
        each: &mut Each<'_>,
    ) -> Result<bool, ClientError> {
        let (tag, now_us) = (parked.tag, self.connections.seen_us());
        let message = &self.under_way.messages[tag];
        let attempts = match &message.asker {
            Asker::Message(part) => part.attempts,
            _ => 0,
        };
        let call = &parked.call;
        let times = *parked.times.get_or_insert_with(|| {
            let pause_us = match attempts {
                0 => 0,
                attempts => (PAUSE_MIN_US << (attempts - 1).min(16)).min(PAUSE_MAX_US),
            };
            let until_us = self.connections.seen_deadline_us(call);
            Times { not_before_us: now_us + pause_us, until_us }
        });
        if now_us >= times.until_us {
            return Err(self.under_way.late(tag, call));
        }
        if self.connections.is_stopped() {
            return Err(self.under_way.error(tag, CallError::Stopped));
        }
        let is_known = placement.version >= call.placement_version && now_us >= times.not_before_us;
        if !is_known || !message.is_change && self.under_way.has_earlier_change(message.number) {
            return Ok(false);
        }
        let Subject::Table(table) = message.subject.clone() else {
            return Err(self.under_way.refused(tag, call));
        };
        let Ok(Parsed::Frame(frame)) = Frame::parse(call.frame.bytes(), &call.agreed) else {
            return Err(self.under_way.refused(tag, call));
        };
        let request = Request::decode(&frame).ok();
        let shares = request.as_ref().and_then(|request| shares(request, &table, placement));
        let (Some(request), Some(shares)) = (request, shares) else {
            return Err(self.under_way.refused(tag, call));
        };
        let numbers = shares
            .iter()
            .map(|share| self.number_until(times.until_us, &table, share.server, each))
            .collect::<Result<Vec<Number>, ClientError>>()?;
        let left_us = times.until_us.saturating_sub(self.connections.seen_us()).max(1);
        let timeout = Timeout { us: left_us, is_limited: call.is_limited };
        self.split(tag, &table, timeout, &request, shares.into_iter().zip(numbers).collect(), each);
        Ok(true)
    }

    /// Begins the parts of a message.
    fn split(
        &mut self,
        tag: usize,
        table: &OpenTable,
        timeout: Timeout,
        request: &Request<'_>,
        shares: Vec<(Share, Number)>,
        each: &mut Each<'_>,
    ) {
        let under_way = &mut self.under_way;
        let message = &mut under_way.messages[tag];
        let asker = std::mem::take(&mut message.asker);
        let message = message.clone();
        let former = match asker {
            Asker::Message(part) => {
                under_way.release(tag);
                Some(part)
            }
            _ => None,
        };
        let (whole, attempts) = former.as_ref().map_or((tag, 0), |part| (part.whole, part.attempts));
        match under_way.assemblies.iter_mut().find(|(at, _)| *at == whole) {
            Some((_, assembly)) => assembly.open += shares.len() - 1,
            None => {
                let (keys, rows) = (message.keys.len(), message.rows.len());
                let assembly = Assembly::new(request.kind(), keys, rows, message.dim, shares.len());
                under_way.assemblies.push((whole, assembly));
            }
        }
        let mut columns = Columns::default();
        for (share, number) in shares {
            let at = |positions: &[u32], former: Option<&Vec<u32>>| match former {
                Some(former) => positions.iter().map(|&at| former[at as usize]).collect(),
                None => positions.to_vec(),
            };
            let part = Part {
                whole,
                keys: at(&share.keys_at, former.as_ref().map(|part| &part.keys)),
                rows: at(&share.rows_at, former.as_ref().map(|part| &part.rows)),
                attempts: attempts + 1,
            };
            let child = Message {
                server: share.server,
                keys: 0..share.keys_at.len(),
                rows: 0..if message.rows.is_empty() { 0 } else { share.rows_at.len() },
                asker: Asker::Message(Box::new(part)),
                ..message.clone()
            };
            let request = self.request_of(message.server, table, request, &share, number, &mut columns);
            if let Err(error) = self.begin_by(timeout, child, number.needs, &request, each) {
                let part = Part { whole, ..Part::default() };
                self.under_way.note_part(&part, Err(error), each);
            }
        }
    }

    /// The request about a share of a message that was at another server.
    fn request_of<'a>(
        &mut self,
        from: usize,
        table: &OpenTable,
        request: &Request<'_>,
        share: &'a Share,
        Number { table: number, .. }: Number,
        columns: &'a mut Columns,
    ) -> Request<'a> {
        let Share { server, keys_at, keys, offsets, values, .. } = share;
        let format = self.connections.row_format(*server);
        match request {
            Request::Push(push) => {
                gather(keys_at, 1, push.counts, &mut columns.counts);
                gather(keys_at, push.dim as usize, push.grads, &mut columns.weights);
                let (client, sequence) = self.next_push(*server);
                Request::Push(Push {
                    table: number,
                    client,
                    sequence,
                    // The push has had its turn of the other server's use clock with the keys that are there. A pinned
                    // table has no other keys.
                    continues: push.continues || *server != from && table.home() == Home::Sharded,
                    dim: push.dim,
                    lr_scale: push.lr_scale,
                    keys,
                    counts: &columns.counts,
                    grads: &columns.weights,
                })
            }
            Request::Import(Import { rows, .. }) => {
                let RowBlock { dim, state, .. } = *rows;
                gather(keys_at, 1, rows.frequencies, &mut columns.counts);
                gather(keys_at, 1, rows.last_uses, &mut columns.last_uses);
                gather(keys_at, 1, rows.versions, &mut columns.versions);
                gather(keys_at, dim as usize, rows.weights, &mut columns.weights);
                gather(keys_at, state as usize, rows.states, &mut columns.states);
                let Columns { counts, last_uses, versions, weights, states } = columns;
                let frequencies = &counts[..];
                let rows = RowBlock { dim, state, keys, frequencies, last_uses, versions, weights, states };
                Request::Import(Import { table: number, rows })
            }
            Request::PullPooled(pull) => {
                let values = Some(&values[..]).filter(|_| pull.ragged.values.is_some());
                let ragged = Ragged { keys, offsets, values };
                let (dim, pooling, absent) = (pull.dim, pull.pooling, pull.absent);
                let table = table.read_number(*server);
                Request::PullPooled(PullPooled { table, dim, pooling, absent, format, ragged })
            }
            Request::Pull(pull) => {
                let (dim, absent, table) = (pull.dim, pull.absent, table.read_number(*server));
                Request::Pull(Pull { table, dim, absent, format, keys })
            }
            _ => Request::Delete(Delete { table: number, keys }),
        }
    }
}

/// The shares of a request, each with keys; `None` if it cannot be split.
fn shares(request: &Request<'_>, table: &OpenTable, placement: &Placement) -> Option<Vec<Share>> {
    let home = table.home();
    let keys = match request {
        Request::Pull(pull) => pull.keys,
        Request::Push(push) => push.keys,
        Request::Delete(delete) => delete.keys,
        Request::Import(import) => import.rows.keys,
        Request::PullPooled(pull) if pull.pooling == Pooling::Sum => {
            return Some(ragged_shares(&pull.ragged, home, placement));
        }
        _ => return None,
    };
    if keys.is_empty() {
        return None;
    }
    let mut partition = KeyPartition::default();
    partition.assign(placement, home, keys);
    let with_keys = partition.shares().enumerate().filter(|(_, share)| !share.keys.is_empty());
    let share = |(server, share): (usize, crate::key_partition::Share<'_>)| {
        let (keys, at) = (share.keys.to_vec(), share.positions.to_vec());
        Share { server, keys_at: at.clone(), rows_at: at, keys, ..Share::default() }
    };
    Some(with_keys.map(share).collect())
}

fn ragged_shares(ragged: &Ragged<'_>, home: Home, placement: &Placement) -> Vec<Share> {
    let mut partition = RaggedPartition::default();
    partition.clear(placement.servers);
    let Ragged { keys, offsets, values } = *ragged;
    partition.add(placement, home, keys, values, offsets, 0, RunSamples::WithKeys);
    let with_keys = partition.shares.into_iter().enumerate().filter(|(_, share)| !share.keys.is_empty());
    let share = |(server, share): (usize, crate::key_partition::RaggedShare)| Share {
        server,
        keys_at: share.positions,
        rows_at: share.samples,
        keys: share.keys,
        offsets: share.offsets,
        values: share.values,
    };
    with_keys.map(share).collect()
}
