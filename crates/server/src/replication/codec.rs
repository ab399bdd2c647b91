//! Messages between replicas as bytes, and back. It trusts no length and no number of another server.

use std::sync::Arc;

use sanderling_observe::SpanContext;
use sanderling_replica::push_dedup::{Outcome, SavedPushDedup};
use sanderling_replica::{
    AppliedPush, Envelope, Member, Message, Operation, Placement, Push, Record, TableState,
};
use sanderling_store::{RowColumns, RowRef, RowVersions};
use sanderling_wire::limit;

use super::bytes::{In, Malformed, Out};
use super::version::Spoken;
use crate::description;

/// Bytes of a record beside those of its keys and gradients, at most.
const RECORD_BYTES: usize = 160;
/// Records are sent together up to this size.
const MESSAGE_BYTES: usize = 1 << 20;

/// Why a message is not read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unread {
    Malformed(Malformed),
    /// A server speaks another version.
    Version {
        server: u32,
        found: u8,
    },
}

impl From<Malformed> for Unread {
    fn from(reason: Malformed) -> Unread {
        Unread::Malformed(reason)
    }
}

/// Bytes that a push takes on its way to a follower, at most.
pub(crate) fn record_bytes(keys: usize, grads: usize) -> usize {
    RECORD_BYTES + keys * limit::REPLICATED_KEY_BYTES + grads * 4
}

fn size(record: &Record) -> usize {
    match record {
        Record::Push(applied) => record_bytes(applied.push.keys.len(), applied.push.grads.len()),
        Record::Removals { keys, .. } => RECORD_BYTES + keys.len() * 8,
        Record::Barrier { operation: Operation::Import { rows, .. }, .. } => {
            let rows = rows.rows();
            RECORD_BYTES + rows.keys.len() * 20 + (rows.weights.len() + rows.states.len()) * 4
        }
        Record::Barrier { operation: Operation::Replace { notes }, .. } => {
            RECORD_BYTES + notes.iter().map(|(_, note)| 8 + note.len()).sum::<usize>()
        }
        Record::Barrier { .. } => RECORD_BYTES,
    }
}

/// A message to another server, in the version that it speaks.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) envelope: Box<Envelope>,
    pub(super) version: u8,
    /// The spans of those pushes that have one, by client and sequence.
    pub(super) spans: Vec<((u64, u64), SpanContext)>,
}

impl Outgoing {
    /// Encodes it as one or more messages of bounded size; each is sent before `buffer` takes the next one.
    ///
    /// Version 4 differs from version 3 in the placements that messages have: pinned tables may be in another group.
    pub(super) fn encode<E>(
        &self,
        buffer: &mut Vec<u8>,
        mut send: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Message::Records { stream, first, records } = &self.envelope.message else {
            self.put(buffer, |out| message(&self.envelope.message, out));
            return send(buffer);
        };
        let mut at = 0;
        while at < records.len() {
            let (mut end, mut bytes) = (at, 0);
            while end < records.len() && (end == at || bytes + size(&records[end]) <= MESSAGE_BYTES) {
                bytes += size(&records[end]);
                end += 1;
            }
            buffer.reserve(RECORD_BYTES + bytes);
            self.put(buffer, |out| {
                out.u8(2);
                out.u64(*stream as u64);
                out.u64(first + at as u64);
                out.u32((end - at) as u32);
                records[at..end].iter().for_each(|record| put_record(record, out));
                put_spans(&self.spans_of(&records[at..end]), out);
            });
            send(buffer)?;
            at = end;
        }
        Ok(())
    }

    fn spans_of(&self, records: &[Arc<Record>]) -> Vec<SpanContext> {
        if self.spans.is_empty() {
            return Vec::new();
        }
        let span = |record: &Arc<Record>| {
            let id = pushed(record).map(|push| (push.client, push.sequence))?;
            self.spans.iter().find(|(of, _)| *of == id).map(|(_, span)| *span)
        };
        records.iter().filter_map(span).collect()
    }

    fn put(&self, buffer: &mut Vec<u8>, put: impl FnOnce(&mut Out)) {
        let Envelope { from, epoch, session, .. } = &*self.envelope;
        buffer.clear();
        let mut out = Out(std::mem::take(buffer));
        // All versions begin with these two.
        out.u8(self.version);
        out.u32(from.server);
        [from.boot, *epoch, *session].into_iter().for_each(|number| out.u64(number));
        put(&mut out);
        *buffer = out.0;
    }
}

/// Decodes a message, with the spans of its pushes.
pub(super) fn decode(bytes: &[u8], spoken: Spoken) -> Result<(Envelope, Vec<SpanContext>), Unread> {
    let mut from = In(bytes);
    let (found, server) = (from.u8()?, from.u32()?);
    if !spoken.has(found) {
        return Err(Unread::Version { server, found });
    }
    let [boot, epoch, session] = [from.u64()?, from.u64()?, from.u64()?];
    let message = read_message(&mut from)?;
    let spans = if matches!(message, Message::Records { .. }) { read_spans(&mut from)? } else { Vec::new() };
    match from.0 {
        [] => Ok((Envelope { from: Member { server, boot }, epoch, session, message }, spans)),
        _ => Err(Unread::Malformed("it is too long")),
    }
}

fn message(message: &Message, out: &mut Out) {
    match message {
        Message::Join => out.u8(0),
        Message::Begin { starts, tables, marks, barrier, placement } => {
            out.u8(1);
            out.u64s(starts);
            out.u32(tables.len() as u32);
            for TableState { table, config, note, removals } in tables {
                out.u32(*table);
                out.text(&config.name);
                out.text(&description::describe(config));
                out.text(note);
                out.u64(*removals);
            }
            out.text(&serde_json::to_string(&**marks).expect("numbers become JSON"));
            out.u64(*barrier);
            out.u8(placement.is_some().into());
            placement.iter().for_each(|placement| put_placement(placement, out));
        }
        Message::Records { .. } => unreachable!("encoded in parts"),
        Message::Rows { part, table, removals, pushes, rows, is_last } => {
            out.u8(3);
            out.u64(*part);
            out.u32(*table);
            out.u64(*removals);
            out.u64(*pushes);
            out.u8((*is_last).into());
            put_rows(rows, out);
        }
        Message::Heartbeat { sent } => {
            out.u8(4);
            out.u64(*sent);
        }
        Message::HandOver => out.u8(5),
        Message::Ack { received, part, echo, is_broken } => {
            out.u8(6);
            out.u64s(received);
            out.u64(*part);
            out.u64(*echo);
            out.u8((*is_broken).into());
        }
    }
}

fn read_message(from: &mut In<'_>) -> Result<Message, Malformed> {
    Ok(match from.u8()? {
        0 => Message::Join,
        1 => {
            let starts = from.u64s()?;
            if starts.contains(&0) {
                return Err("a stream begins at 0");
            }
            let count = from.count(24)?;
            let mut tables = Vec::with_capacity(count);
            for _ in 0..count {
                let (table, name, config) = (from.u32()?, from.text()?, from.text()?);
                let config = description::parse(name, config).map_err(|_| "the configuration of a table")?;
                let (note, removals) = (from.text()?.to_owned(), from.u64()?);
                tables.push(TableState { table, config, note, removals });
            }
            let marks: SavedPushDedup = serde_json::from_str(from.text()?).map_err(|_| "the push history")?;
            let barrier = from.u64()?;
            let placement = if from.flag()? { Some(Arc::new(read_placement(from)?)) } else { None };
            Message::Begin { starts, tables, marks: Arc::new(marks), barrier, placement }
        }
        2 => {
            let (stream, first) = (from.u64()? as usize, from.u64()?);
            let count = from.count(1)?;
            let mut records = Vec::with_capacity(count);
            for _ in 0..count {
                records.push(Arc::new(read_record(from)?));
            }
            Message::Records { stream, first, records }
        }
        3 => Message::Rows {
            part: from.u64()?,
            table: from.u32()?,
            removals: from.u64()?,
            pushes: from.u64()?,
            is_last: from.flag()?,
            rows: Arc::new(read_rows(from)?),
        },
        4 => Message::Heartbeat { sent: from.u64()? },
        5 => Message::HandOver,
        6 => Message::Ack {
            received: from.u64s()?,
            part: from.u64()?,
            echo: from.u64()?,
            is_broken: from.flag()?,
        },
        _ => return Err("its kind is unknown"),
    })
}

fn put_record(record: &Record, out: &mut Out) {
    match record {
        Record::Push(AppliedPush { push, clock, rows, outcome }) => {
            out.u8(0);
            out.u32(push.table);
            out.u64(push.client);
            out.u64(push.sequence);
            out.u8(push.continues.into());
            out.f32s(&[push.lr_scale]);
            out.u32(*clock);
            let (code, number) = match *outcome {
                Outcome::Applied => (0, 0),
                Outcome::Full { rejected } => (1, rejected),
                Outcome::NotFinite { key } => (2, key),
            };
            out.u8(code);
            out.u64(number);
            out.u64s(&push.keys);
            out.u32s(&push.counts);
            out.f32s(&push.grads);
            out.u32s(&rows.versions);
            out.u64s(&rows.removals);
        }
        Record::Removals { table, before, keys } => {
            out.u8(1);
            out.u32(*table);
            out.u64(*before);
            out.u64s(keys);
        }
        Record::Barrier { number, operation } => {
            out.u8(2);
            out.u64(*number);
            put_operation(operation, out);
        }
    }
}

fn read_record(from: &mut In<'_>) -> Result<Record, Malformed> {
    Ok(match from.u8()? {
        0 => {
            let (table, client, sequence) = (from.u32()?, from.u64()?, from.u64()?);
            let continues = from.flag()?;
            let [lr_scale] = from.f32s()?[..] else { return Err("the factor of a learning rate") };
            let (clock, code, number) = (from.u32()?, from.u8()?, from.u64()?);
            let outcome = match code {
                0 => Outcome::Applied,
                1 => Outcome::Full { rejected: number },
                2 => Outcome::NotFinite { key: number },
                _ => return Err("the outcome of a push"),
            };
            let (keys, counts, grads) = (from.u64s()?, from.u32s()?, from.f32s()?);
            let rows = RowVersions { versions: from.u32s()?, removals: from.u64s()? };
            let lengths = [counts.len(), rows.versions.len(), rows.removals.len()];
            if lengths.iter().any(|&length| length != keys.len()) {
                return Err("the columns of a push have several lengths");
            }
            let push = Push { table, client, sequence, continues, lr_scale, keys, counts, grads };
            Record::Push(AppliedPush { push: Arc::new(push), clock, rows, outcome })
        }
        1 => Record::Removals { table: from.u32()?, before: from.u64()?, keys: from.u64s()? },
        2 => Record::Barrier { number: from.u64()?, operation: read_operation(from)? },
        _ => return Err("the kind of a record is unknown"),
    })
}

fn pushed(record: &Record) -> Option<&Push> {
    match record {
        Record::Push(applied) => Some(&applied.push),
        _ => None,
    }
}

fn put_spans(spans: &[SpanContext], out: &mut Out) {
    let numbers = |&SpanContext { trace, span }: &SpanContext| [(trace >> 64) as u64, trace as u64, span];
    out.u64s(&spans.iter().flat_map(numbers).collect::<Vec<_>>());
}

fn read_spans(from: &mut In<'_>) -> Result<Vec<SpanContext>, Malformed> {
    let numbers = from.u64s()?;
    let (spans, rest) = numbers.as_chunks::<3>();
    let span =
        |&[high, low, span]: &[u64; 3]| SpanContext { trace: u128::from(high) << 64 | u128::from(low), span };
    if rest.is_empty() { Ok(spans.iter().map(span).collect()) } else { Err("the spans of pushes") }
}

fn put_operation(operation: &Operation, out: &mut Out) {
    match operation {
        Operation::Create { table, config, note } => {
            out.u8(0);
            out.u32(*table);
            out.text(&config.name);
            out.text(&description::describe(config));
            out.text(note);
        }
        Operation::Drop { table } => {
            out.u8(1);
            out.u32(*table);
        }
        Operation::Import { table, rows, pushes } => {
            out.u8(2);
            out.u32(*table);
            out.u64(*pushes);
            put_rows(rows, out);
        }
        Operation::Remove { table, keys } => {
            out.u8(3);
            out.u32(*table);
            out.u64s(keys);
        }
        Operation::Place(placement) => {
            out.u8(4);
            put_placement(placement, out);
        }
        Operation::Replace { notes } => {
            out.u8(5);
            out.u32(notes.len() as u32);
            for (table, note) in notes {
                out.u32(*table);
                out.text(note);
            }
        }
    }
}

fn put_placement(placement: &Placement, out: &mut Out) {
    out.text(&serde_json::to_string(placement).expect("numbers become JSON"));
}

fn read_placement(from: &mut In<'_>) -> Result<Placement, Malformed> {
    let placement: Placement = serde_json::from_str(from.text()?).map_err(|_| "the placement")?;
    placement.check(u32::from(u16::MAX)).map_err(|_| "the placement contradicts itself")?;
    Ok(placement)
}

fn read_operation(from: &mut In<'_>) -> Result<Operation, Malformed> {
    Ok(match from.u8()? {
        0 => {
            let (table, name, config) = (from.u32()?, from.text()?, from.text()?);
            let config = description::parse(name, config).map_err(|_| "the configuration of a table")?;
            Operation::Create { table, config: Box::new(config), note: from.text()?.to_owned() }
        }
        1 => Operation::Drop { table: from.u32()? },
        2 => Operation::Import { table: from.u32()?, pushes: from.u64()?, rows: Arc::new(read_rows(from)?) },
        3 => Operation::Remove { table: from.u32()?, keys: from.u64s()? },
        4 => Operation::Place(Arc::new(read_placement(from)?)),
        5 => {
            let count = from.count(8)?;
            let mut notes = Vec::with_capacity(count);
            for _ in 0..count {
                notes.push((from.u32()?, from.text()?.to_owned()));
            }
            Operation::Replace { notes }
        }
        _ => return Err("the kind of a change is unknown"),
    })
}

pub(super) fn put_rows(rows: &RowColumns, out: &mut Out) {
    let rows = rows.rows();
    out.u64s(rows.keys);
    [rows.frequencies, rows.last_uses, rows.versions].into_iter().for_each(|column| out.u32s(column));
    [rows.weights, rows.states].into_iter().for_each(|column| out.f32s(column));
}

pub(super) fn read_rows(from: &mut In<'_>) -> Result<RowColumns, Malformed> {
    let keys = from.u64s()?;
    let [frequencies, last_uses, versions] = [from.u32s()?, from.u32s()?, from.u32s()?];
    let (weights, states) = (from.f32s()?, from.f32s()?);
    if [&frequencies, &last_uses, &versions].iter().any(|column| column.len() != keys.len()) {
        return Err("the columns of rows have several lengths");
    }
    let mut rows = RowColumns::default();
    let Some(dim) = weights.len().checked_div(keys.len()) else { return Ok(rows) };
    let state = states.len() / keys.len();
    if dim * keys.len() != weights.len() || state * keys.len() != states.len() {
        return Err("the values of rows have another length than their keys");
    }
    for (at, &key) in keys.iter().enumerate() {
        rows.push(RowRef {
            key,
            frequency: frequencies[at],
            last_use: last_uses[at],
            version: versions[at],
            weights: &weights[at * dim..][..dim],
            state: &states[at * state..][..state],
        });
    }
    Ok(rows)
}
