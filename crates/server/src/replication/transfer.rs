//! Questions of other groups about rows that move to them, as bytes, and their answers. It trusts no length and no number
//! of another server.

use std::sync::Arc;

use sanderling_replica::{Content, GroupTable, Page, Question, Reply, SlotSpan, TableHead, answer};
use sanderling_store::StreamPlace;
use sanderling_wire::{Home, limit};

use super::bytes::{In, Malformed, Out};
use super::codec::{put_rows, read_rows};
use super::version::{MOVES_PINNED_TABLES, Spoken};
use crate::description;
use crate::refusal::Refusal;
use crate::state::State;
use crate::tables::{Entry, TableNote};

/// The first byte of a question and its answer, by the version of messages between servers. A question of the older
/// format asks for tables with slots only.
const fn format(version: u8) -> u8 {
    if version < MOVES_PINNED_TABLES { 2 } else { 3 }
}

/// The tables of this group.
pub(super) fn tables_of(state: &State) -> Vec<GroupTable> {
    let one = |entry: &Arc<Entry>| GroupTable {
        number: entry.number,
        home: entry.home,
        note: entry.note().to_text(),
        table: Arc::clone(&entry.table),
    };
    state.tables.directory().entries.iter().map(one).collect()
}

/// Answers another group, if this server is the primary of its own.
pub(crate) fn answer_to(state: &State, bytes: &[u8]) -> Result<Vec<u8>, Refusal> {
    let replication =
        state.replication.as_ref().ok_or_else(|| Refusal::bad("this server is in no cluster"))?;
    let read = read_question(bytes, replication.spoken);
    let (asked, question) = read.map_err(|reason| Refusal::bad(format!("a transfer: {reason}")))?;
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
    let mut tables = tables_of(state);
    if asked < format(MOVES_PINNED_TABLES) {
        tables.retain(|table| table.home == Home::Sharded);
    }
    Ok(encode_reply(&answer(&question, (replication.source(epoch), placed), slots, &tables), asked))
}

pub(super) fn encode_question(question: &Question, version: u8) -> Vec<u8> {
    let mut out = Out(Vec::new());
    out.u8(format(version));
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

/// The format of a question, and the question.
fn read_question(bytes: &[u8], spoken: Spoken) -> Result<(u8, Question), Malformed> {
    let (asked, mut from) = begin(bytes, spoken)?;
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
    end(&from).map(|()| (asked, question))
}

fn encode_reply(reply: &Reply, format: u8) -> Vec<u8> {
    let mut out = Out(Vec::new());
    out.u8(format);
    out.u64(reply.source);
    out.u64(reply.placed);
    match &reply.content {
        Content::TooLate => out.u8(0),
        Content::Tables(heads) => {
            out.u8(1);
            out.u32(heads.len() as u32);
            // The note says whether a table is pinned.
            for TableHead { config, note, rows, .. } in heads {
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

pub(super) fn read_reply(bytes: &[u8], spoken: Spoken) -> Result<Reply, Malformed> {
    let (_, mut from) = begin(bytes, spoken)?;
    let (source, placed) = (from.u64()?, from.u64()?);
    let content = match from.u8()? {
        0 => Content::TooLate,
        1 => {
            let count = from.count(20)?;
            let mut heads = Vec::with_capacity(count);
            for _ in 0..count {
                let (name, config) = (from.text()?, from.text()?);
                let config = description::parse(name, config).map_err(|_| "the configuration of a table")?;
                let note = from.text()?.to_owned();
                let home = TableNote::home_of(&note);
                heads.push(TableHead { config, note, home, rows: from.u64()? });
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

fn begin(bytes: &[u8], spoken: Spoken) -> Result<(u8, In<'_>), Malformed> {
    let mut from = In(bytes);
    let found = from.u8()?;
    match (format(spoken.oldest)..=format(spoken.newest)).contains(&found) {
        true => Ok((found, from)),
        false => Err("it is of another version of the program"),
    }
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
        let (place, spoken) = (StreamPlace { since: 3, until: 5, cursor: u64::MAX }, Spoken::up_to(None));
        // A server that is one version older reads only questions of its own.
        let (old, newest) = (Spoken::up_to(Some(3)), encode_question(&Question::Tables, 4));
        assert_eq!(read_question(&newest, old), Err("it is of another version of the program"));
        let slots = Arc::new(vec![SlotSpan { first: 0, count: 3 }, SlotSpan { first: 9, count: 1 }]);
        for question in
            [Question::Tables, Question::Rows { table: "user".to_owned(), slots, place, keys_max: 7 }]
        {
            for version in [3, 4] {
                let bytes = encode_question(&question, version);
                assert_eq!(read_question(&bytes, spoken), Ok((version - 1, question.clone())));
                (0..bytes.len())
                    .for_each(|cut| assert!(read_question(&bytes[..cut], spoken).is_err(), "{cut}"));
            }
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
        let note = r#"{"pinned":5,"config":"{}","created_unix_ms":7}"#.to_owned();
        let heads = vec![TableHead { config, note, home: Home::Pinned(5), rows: 12 }];
        for content in [Content::TooLate, Content::Tables(heads), Content::Rows(page)] {
            let reply = Reply { source: 4, placed: 9, content };
            let bytes = encode_reply(&reply, 3);
            let found = read_reply(&bytes, spoken).expect("it is whole");
            assert_eq!(format!("{found:?}"), format!("{reply:?}"));
            (0..bytes.len()).for_each(|cut| assert!(read_reply(&bytes[..cut], spoken).is_err(), "{cut}"));
        }
    }
}
