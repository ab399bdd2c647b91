//! Questions of other groups about rows that move to them, as bytes, and their answers. It trusts no length and no number
//! of another server.

use std::sync::Arc;

use sanderling_replica::{Content, Page, Question, Reply, SlotSpan, SlottedTable, TableHead, answer};
use sanderling_store::StreamPlace;
use sanderling_wire::{Home, limit};

use super::codec::{In, Malformed, Out, put_rows, read_rows};
use crate::description;
use crate::refusal::Refusal;
use crate::state::State;

/// The first byte. Servers of one cluster may differ by one version of the program, but not of this.
const FORMAT: u8 = 2;

/// The tables whose rows are shared out by slots.
pub(super) fn slotted(state: &State) -> Vec<SlottedTable> {
    let directory = state.tables.directory();
    let sharded = directory.entries.iter().filter(|entry| entry.home == Home::Sharded);
    let one = |entry: &Arc<crate::tables::Entry>| SlottedTable {
        number: entry.number,
        note: entry.note().to_text(),
        table: Arc::clone(&entry.table),
    };
    sharded.map(one).collect()
}

/// Answers another group, if this server is the primary of its own.
pub(crate) fn answer_to(state: &State, bytes: &[u8]) -> Result<Vec<u8>, Refusal> {
    let replication =
        state.replication.as_ref().ok_or_else(|| Refusal::bad("this server is in no cluster"))?;
    let question = read_question(bytes).map_err(|reason| Refusal::bad(format!("a transfer: {reason}")))?;
    let (epoch, placed) = replication.placed();
    if epoch == 0 {
        return Err(replication.not_taking());
    }
    let slots = state
        .tables
        .directory()
        .slots
        .as_ref()
        .map_or(limit::SLOTS_DEFAULT as u32, |slots| slots.record.slots);
    Ok(encode_reply(&answer(&question, (replication.source(epoch), placed), slots, &slotted(state))))
}

pub(super) fn encode_question(question: &Question) -> Vec<u8> {
    let mut out = Out(Vec::new());
    out.u8(FORMAT);
    match question {
        Question::Tables => out.u8(0),
        Question::Rows { table, slots, place, keys_max } => {
            out.u8(1);
            out.text(table);
            out.u32(slots.len() as u32);
            slots.iter().for_each(|span| [span.first, span.count].into_iter().for_each(|n| out.u32(n)));
            put_place(place, &mut out);
            out.u32(*keys_max);
        }
    }
    out.0
}

fn read_question(bytes: &[u8]) -> Result<Question, Malformed> {
    let mut from = begin(bytes)?;
    let question = match from.u8()? {
        0 => Question::Tables,
        1 => {
            let table = from.text()?.to_owned();
            let count = from.count(8)?;
            let mut slots = Vec::with_capacity(count);
            for _ in 0..count {
                slots.push(SlotSpan { first: from.u32()?, count: from.u32()? });
            }
            let place = read_place(&mut from)?;
            Question::Rows { table, slots: Arc::new(slots), place, keys_max: from.u32()? }
        }
        _ => return Err("its kind is unknown"),
    };
    end(&from).map(|()| question)
}

fn encode_reply(reply: &Reply) -> Vec<u8> {
    let mut out = Out(Vec::new());
    out.u8(FORMAT);
    out.u64(reply.source);
    out.u64(reply.placed);
    match &reply.content {
        Content::TooLate => out.u8(0),
        Content::Tables(heads) => {
            out.u8(1);
            out.u32(heads.len() as u32);
            for TableHead { config, note, rows } in heads {
                [&config.name, &description::describe(config), note]
                    .into_iter()
                    .for_each(|text| out.text(text));
                out.u64(*rows);
            }
        }
        Content::Rows(Page { next, has_more, pushes, rows, removed }) => {
            out.u8(2);
            put_place(next, &mut out);
            out.u8((*has_more).into());
            out.u64(*pushes);
            put_rows(rows, &mut out);
            out.u64s(removed);
        }
    }
    out.0
}

pub(super) fn read_reply(bytes: &[u8]) -> Result<Reply, Malformed> {
    let mut from = begin(bytes)?;
    let (source, placed) = (from.u64()?, from.u64()?);
    let content = match from.u8()? {
        0 => Content::TooLate,
        1 => {
            let count = from.count(20)?;
            let mut heads = Vec::with_capacity(count);
            for _ in 0..count {
                let (name, config) = (from.text()?, from.text()?);
                let config = description::parse(name, config).map_err(|_| "the configuration of a table")?;
                heads.push(TableHead { config, note: from.text()?.to_owned(), rows: from.u64()? });
            }
            Content::Tables(heads)
        }
        2 => Content::Rows(Page {
            next: read_place(&mut from)?,
            has_more: from.flag()?,
            pushes: from.u64()?,
            rows: read_rows(&mut from)?,
            removed: from.u64s()?,
        }),
        _ => return Err("its kind is unknown"),
    };
    end(&from).map(|()| Reply { source, placed, content })
}

fn begin(bytes: &[u8]) -> Result<In<'_>, Malformed> {
    let mut from = In(bytes);
    if from.u8()? == FORMAT { Ok(from) } else { Err("it is of another version of the program") }
}

fn end(from: &In<'_>) -> Result<(), Malformed> {
    if from.0.is_empty() { Ok(()) } else { Err("it is too long") }
}

fn put_place(place: &StreamPlace, out: &mut Out) {
    [place.since, place.until, place.cursor].into_iter().for_each(|number| out.u64(number));
}

fn read_place(from: &mut In<'_>) -> Result<StreamPlace, Malformed> {
    Ok(StreamPlace { since: from.u64()?, until: from.u64()?, cursor: from.u64()? })
}

#[cfg(test)]
mod tests {
    use sanderling_store::{RowColumns, RowRef};

    use super::*;

    #[test]
    fn questions_and_answers_are_equal_after_the_way() {
        let place = StreamPlace { since: 3, until: 5, cursor: u64::MAX };
        let slots = Arc::new(vec![SlotSpan { first: 0, count: 3 }, SlotSpan { first: 9, count: 1 }]);
        for question in
            [Question::Tables, Question::Rows { table: "user".to_owned(), slots, place, keys_max: 7 }]
        {
            let bytes = encode_question(&question);
            assert_eq!(read_question(&bytes), Ok(question));
            (0..bytes.len()).for_each(|cut| assert!(read_question(&bytes[..cut]).is_err(), "{cut}"));
        }
        let mut rows = RowColumns::default();
        rows.push(RowRef {
            key: 5,
            frequency: 1,
            last_use: 2,
            version: 3,
            weights: &[1.5, 2.0],
            state: &[0.5],
        });
        let page = Page { next: place, has_more: true, pushes: 11, rows, removed: vec![7, 8] };
        let block = sanderling_store::Block {
            dims: 2,
            init: sanderling_store::Init::Zero,
            optimizer: sanderling_store::Optimizer::Sgd { lr: 0.5, l2: 0.0 },
        };
        let config = sanderling_store::TableConfig::new("user", vec![block]);
        let heads = vec![TableHead { config, note: "{}".to_owned(), rows: 12 }];
        for content in [Content::TooLate, Content::Tables(heads), Content::Rows(page)] {
            let reply = Reply { source: 4, placed: 9, content };
            let bytes = encode_reply(&reply);
            let found = read_reply(&bytes).expect("it is whole");
            assert_eq!(format!("{found:?}"), format!("{reply:?}"));
            (0..bytes.len()).for_each(|cut| assert!(read_reply(&bytes[..cut]).is_err(), "{cut}"));
        }
    }
}
