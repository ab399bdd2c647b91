//! Any answers of a hub to its trainer: minibatches whose columns are those that the hub has announced, or an error of that
//! subscription; never a panic. Knows the wire's messages and what the hub crate shows to fuzzers.
#![no_main]

use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sanderling_hub::Answers;
use sanderling_sample::{Batch, Rows, pack_into, packed_bytes_max};
use sanderling_wire::*;

const FRAME_BYTES_MAX: u32 = 1 << 20;

#[derive(Arbitrary, Debug)]
enum Said {
    Bytes(u8, u8, Vec<u8>),
    Hello {
        frame_bytes_max: u32,
        features: u8,
    },
    Subscribed {
        stream: u8,
        window: u8,
        stride: u8,
        late: Vec<u8>,
        columns: Vec<(u8, bool)>,
    },
    /// A minibatch as a hub packs it, and what is laid over its bytes.
    Batch {
        id: u8,
        number: u8,
        late: Vec<u8>,
        weighted: Vec<bool>,
        rows: Vec<(u8, u8)>,
        changes: Vec<(u16, u8)>,
    },
    Wait {
        id: u8,
        retry_after_us: u64,
    },
    Over {
        id: u8,
    },
    HasFailed {
        id: u8,
        nothing: bool,
    },
    Goaway {
        closing_in_ms: u32,
    },
    Refused {
        transient: bool,
    },
    GoOn {
        ms: u16,
    },
    Take {
        acknowledge: bool,
    },
    /// A minibatch of which some columns were fed, and lack their keys unless told otherwise.
    Fed {
        id: u8,
        number: u8,
        weighted: Vec<bool>,
        rows: Vec<u8>,
        columns: Vec<u8>,
        servers: u8,
        keys: Vec<u32>,
        is_whole: bool,
        changes: Vec<(u16, u8)>,
    },
    /// A minibatch that is compressed, and what is laid over its compressed bytes.
    Compressed {
        id: u8,
        number: u8,
        weighted: Vec<bool>,
        rows: u8,
        changes: Vec<(u16, u8)>,
    },
    /// The keys of a minibatch are wanted.
    AskKeys {
        number: u8,
    },
    /// The hub's answer to that.
    Keys {
        id: u8,
        outcome: u8,
        number: u8,
        weighted: Vec<bool>,
        changes: Vec<(u16, u8)>,
    },
}

/// Rows with a key in every column but these, packed, and what is laid over its bytes.
fn packed(weighted: &[bool], rows: usize, without: &[u8], changes: &[(u16, u8)]) -> Vec<u8> {
    let mut batch = Batch::new(weighted);
    for _ in 0..rows {
        for (at, column) in batch.columns.iter_mut().enumerate() {
            if !without.contains(&(at as u8)) {
                column.push(at as u64, 0.5);
            }
        }
        batch.close_row(1.0, 1.0);
    }
    let rows = Rows::all(&batch);
    let mut payload = vec![0; packed_bytes_max(&rows)];
    let bytes = pack_into(&rows, &mut payload).unwrap();
    payload.truncate(bytes);
    for &(at, byte) in changes {
        let at = usize::from(at) % payload.len();
        payload[at] = byte;
    }
    payload
}

fn numbers(of: &[u8]) -> Vec<u64> {
    of.iter().map(|&number| number.into()).collect()
}

fn say(answers: &mut Answers, reply: &Reply<'_>, id: u64) {
    let agreed = answers.agreed();
    let mut buffer = Buffer::new(FRAME_BYTES_MAX as usize);
    if buffer.append(|out| reply.encode(&agreed, id, out)).is_ok() {
        answers.receive(buffer.bytes());
    }
}

fn identity(agreed: Agreed) -> Identity<'static> {
    Identity {
        agreed,
        in_flight_max: 8,
        shard: 0,
        shards: 1,
        server_id: 0,
        boot_id: 1,
        host_id: 1,
        placement_version: 0,
        history_id: 0,
        name: "hub",
        local_url: "",
    }
}

fuzz_target!(|said: Vec<Said>| {
    let how = if said.len() % 2 == 0 { Compression::Lz4 } else { Compression::Zstd };
    let mut answers = Answers::new(how);
    for said in said.into_iter().take(64) {
        match said {
            Said::Bytes(kind, flags, payload) => {
                let agreed = answers.agreed();
                let kind = Kind::ALL[usize::from(kind) % Kind::ALL.len()];
                let payload_bytes = payload.len().next_multiple_of(8);
                let flags = flag::REPLY | u16::from(flags) & (flag::LZ4 | flag::ZSTD);
                let version = if kind == Kind::Hello { 0 } else { agreed.version };
                let (id, payload_bytes_of) = (1, payload_bytes as u32);
                let header = Header {
                    version,
                    kind,
                    flags,
                    id,
                    deadline_or_status: 0,
                    payload_bytes: payload_bytes_of,
                    table: 0,
                    checksum: 0,
                };
                let mut frame = header.to_bytes().to_vec();
                frame.extend(payload);
                frame.resize(HEADER_BYTES + payload_bytes, 0);
                seal(&mut frame, &agreed);
                let mut buffer = Buffer::new(FRAME_BYTES_MAX as usize);
                let Ok(room) = buffer.room(frame.len()) else { continue };
                room[..frame.len()].copy_from_slice(&frame);
                buffer.advance(frame.len());
                answers.receive(buffer.bytes());
            }
            Said::Hello { frame_bytes_max, features } => {
                let agreed = Agreed { version: 1, features: Features(features.into()), frame_bytes_max };
                say(&mut answers, &Reply::Hello(identity(agreed)), 0);
            }
            Said::Subscribed { stream, window, stride, late, columns } => {
                let names = ["a", "b", "c", ""];
                let column =
                    |&(name, weighted): &(u8, bool)| Column { name: names[usize::from(name) % 4], weighted };
                let subscribed = Subscribed {
                    stream: u64::from(stream % 4),
                    passes: 1,
                    rows: 3,
                    window: window.into(),
                    stride: stride.into(),
                    late: &numbers(&late),
                    columns: columns.iter().map(column).collect(),
                };
                say(&mut answers, &Reply::Subscribe(subscribed), 0);
            }
            Said::Batch { id, number, late, weighted, rows, changes } => {
                let mut batch = Batch::new(&weighted);
                for (key, keys) in rows {
                    for column in &mut batch.columns {
                        (0..keys % 4).for_each(|more| column.push(u64::from(key) + u64::from(more % 3), 0.5));
                    }
                    batch.close_row(1.0, 1.0);
                }
                let rows = Rows::all(&batch);
                let mut payload = vec![0; packed_bytes_max(&rows)];
                let bytes = pack_into(&rows, &mut payload).unwrap();
                payload.truncate(bytes);
                for (at, byte) in changes {
                    let at = usize::from(at) % payload.len();
                    payload[at] = byte;
                }
                let outcome = Outcome::Batch {
                    pass: 0,
                    number: number.into(),
                    rows: batch.len() as u32,
                    payload: &payload,
                };
                say(&mut answers, &Reply::Next(NextReply { late: &numbers(&late), outcome }), id.into());
            }
            Said::Wait { id, retry_after_us } => {
                let outcome = Outcome::Wait { retry_after_us };
                say(&mut answers, &Reply::Next(NextReply { late: &[], outcome }), id.into());
            }
            Said::Over { id } => {
                say(&mut answers, &Reply::Next(NextReply { late: &[], outcome: Outcome::Over }), id.into());
            }
            Said::HasFailed { id, nothing } => {
                let outcome = if nothing { Outcome::Nothing } else { Outcome::Failed { reason: "no" } };
                say(&mut answers, &Reply::Next(NextReply { late: &[], outcome }), id.into());
            }
            Said::Goaway { closing_in_ms } => {
                say(&mut answers, &Reply::Goaway(Goaway { closing_in_ms, reason: "stops" }), 0);
            }
            Said::Refused { transient } => {
                let fault = if transient { Fault::Draining } else { Fault::Unauthorized };
                say(&mut answers, &Reply::Failed(Failure { kind: Kind::Next, fault, reason: "no" }), 0);
            }
            Said::GoOn { ms } => {
                if answers.go_on(Duration::from_millis(ms.into())).is_err() {
                    return;
                }
            }
            Said::Fed { id, number, weighted, rows, columns, servers, keys, is_whole, changes } => {
                let without = if is_whole { &[][..] } else { &columns };
                let payload = packed(&weighted, rows.len().min(8), without, &changes);
                let mut fed: Vec<u32> = columns.iter().map(|&column| column.into()).collect();
                fed.sort_unstable();
                fed.dedup();
                let servers = u32::from(servers % 4);
                let keys: Vec<u32> =
                    keys.iter().copied().chain(0..).take(fed.len() * servers as usize).collect();
                let ahead = Ahead { batch: 7, age_us: u64::from(number), placement_version: 3, columns: &fed, servers, keys: &keys };
                let outcome = Outcome::Fed { pass: 0, number: number.into(), rows: 1, payload: &payload, ahead };
                say(&mut answers, &Reply::Next(NextReply { late: &[], outcome }), id.into());
            }
            Said::Compressed { id, number, weighted, rows, changes } => {
                let payload = packed(&weighted, rows.into(), &[], &[]);
                let outcome = Outcome::Batch { pass: 0, number: number.into(), rows: 1, payload: &payload };
                let (agreed, reply) = (answers.agreed(), Reply::Next(NextReply { late: &[], outcome }));
                let (mut plain, mut packed) =
                    (Buffer::new(FRAME_BYTES_MAX as usize), Buffer::new(2 * FRAME_BYTES_MAX as usize));
                let written = plain.append(|out| reply.encode(&agreed, id.into(), out));
                let how = Compression::wanted(agreed.features).unwrap_or(Compression::Lz4);
                if written.is_err() || Codec::new().pack(plain.bytes(), how, &agreed, &mut packed).is_err() {
                    continue;
                }
                let length = packed.len() - HEADER_BYTES;
                for (at, byte) in changes {
                    packed.bytes_mut()[HEADER_BYTES + usize::from(at) % length] = byte;
                }
                seal(packed.bytes_mut(), &agreed);
                answers.receive(packed.bytes());
            }
            Said::AskKeys { number } => answers.ask_keys(number.into()),
            Said::Keys { id, outcome, number, weighted, changes } => {
                let payload = packed(&weighted, 2, &[], &changes);
                let outcome = match outcome % 4 {
                    0 => Outcome::Wait { retry_after_us: number.into() },
                    1 => Outcome::Nothing,
                    2 => Outcome::Failed { reason: "no" },
                    _ => Outcome::Batch { pass: 0, number: number.into(), rows: 2, payload: &payload },
                };
                say(&mut answers, &Reply::Keys(outcome), id.into());
                for batch in answers.keys() {
                    assert_eq!(batch.columns(), answers.columns().expect("announced before").len());
                }
            }
            Said::Take { acknowledge } => {
                let Some(delivered) = answers.take(acknowledge) else { continue };
                if let Some(fed) = &delivered.fed {
                    for &column in &fed.columns {
                        assert!(delivered.batch.rows().keys(column as usize).is_empty());
                        assert_eq!(fed.keys_of(column as usize).map(<[u32]>::len), Some(fed.servers));
                    }
                }
                let columns = answers.columns().expect("announced before");
                assert_eq!(delivered.batch.columns(), columns.len(), "columns");
                let rows = delivered.batch.rows();
                for (at, (name, weighted)) in columns.iter().enumerate() {
                    assert_eq!(rows.values(at).is_some(), *weighted, "{name}");
                    assert_eq!(rows.offsets(at).len(), rows.len() + 1);
                }
            }
        }
    }
});
