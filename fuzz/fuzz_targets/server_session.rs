//! Any requests to a server, as one connection brings them: each has an answer that can be read, or the connection is to be
//! closed; never a panic. Most are made of messages, so that commands are reached; some are any bytes in a right frame. Knows
//! the wire's messages and the session, no socket.
#![no_main]

use std::time::{Duration, Instant};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sanderling_server::{Config, Handled, Session, When, Workspace};
use sanderling_wire::*;

/// Small, so that a request that makes the server allocate is found soon.
const FRAME_BYTES_MAX: u32 = 1 << 20;
const TABLE: &str = r#"{"blocks":[{"dims":3,"init":{"type":"uniform","bound":0.5},"optimizer":{"type":"adagrad","lr":0.1}}],"seed":7}"#;

#[derive(Arbitrary, Debug)]
enum Asked {
    /// Kind, flags, table, payload.
    Bytes(u8, u8, u8, Vec<u8>),
    Words(u8, u8, Vec<u32>),
    Create {
        name: u8,
        pinned: Option<u8>,
        config: String,
    },
    Good {
        name: u8,
    },
    Open {
        name: u8,
    },
    Drop {
        name: u8,
    },
    Pull {
        table: u8,
        dim: u8,
        init: bool,
        half: bool,
        keys: Vec<u8>,
    },
    Pooled {
        table: u8,
        dim: u8,
        mean: bool,
        half: bool,
        samples: Vec<Vec<u8>>,
        value: Option<f32>,
    },
    Feed {
        table: u8,
        batch: u8,
        feature: u8,
        mean: bool,
        samples: Vec<Vec<u8>>,
        value: Option<f32>,
    },
    Forget {
        table: u8,
        batch: u8,
        feature: u8,
    },
    PullFed {
        table: u8,
        batch: u8,
        feature: u8,
        dim: u8,
        half: bool,
    },
    PushFed {
        table: u8,
        client: u8,
        sequence: u8,
        batch: u8,
        feature: u8,
        rows: u8,
        lr_scale: f32,
        grad: f32,
    },
    Push {
        table: u8,
        client: u8,
        sequence: u8,
        lr_scale: f32,
        keys: Vec<u8>,
        count: u32,
        grad: f32,
    },
    PushStep {
        table: u8,
        member: (u8, u8, u8, u8),
        number: u8,
        step: u8,
        keys: Vec<u8>,
        count: u32,
        grad: f32,
    },
    PushFixed {
        table: u8,
        member: (u8, u8, u8, u8),
        number: u8,
        step: u8,
        keys: Vec<u8>,
        unit_log2: i8,
        sum: i64,
    },
    Wait {
        member: (u8, u8, u8, u8),
        step: u8,
        said: u8,
        number: u32,
    },
    Meet {
        member: (u8, u8, u8, u8),
        round: u8,
        name: u8,
        bytes: Vec<u8>,
    },
    Import {
        table: u8,
        state: u8,
        keys: Vec<u8>,
        float: f32,
        version: u32,
    },
    Export {
        table: u8,
        cursor: u64,
        rows_max: u32,
    },
    Delete {
        table: u8,
        keys: Vec<u8>,
    },
    Ping {
        reply_bytes: u32,
        bytes: Vec<u8>,
    },
    Stats(bool),
    Tables,
    Placement,
    Later {
        seconds: u8,
    },
}

fn name(name: u8) -> &'static str {
    ["t", "u", "a longer name", ""][usize::from(name) % 4]
}

fn keys(keys: &[u8]) -> Vec<u64> {
    keys.iter().map(|&key| u64::from(key).pow(1 + u32::from(key) % 8)).collect()
}

fn member((group, worker, workers, attempt): (u8, u8, u8, u8)) -> Member {
    let (group, worker) = (u64::from(group % 4), u32::from(worker % 8));
    Member { group, worker, workers: u32::from(workers % 8), attempt: u32::from(attempt % 4) }
}

struct Server {
    session: Session,
    workspace: Workspace,
    frame: Buffer,
    out: Buffer,
    start: Instant,
    waited: Duration,
    is_closed: bool,
}

impl Server {
    fn ask(&mut self, request: &Request<'_>) {
        let agreed = *self.session.agreed();
        self.frame.clear();
        if self.frame.append(|out| request.encode(&agreed, 9, 0, out)).is_ok() {
            self.handle();
        }
    }

    fn bytes(&mut self, kind: u8, flags: u8, table: u8, payload: &[u8]) {
        let agreed = *self.session.agreed();
        let kind = Kind::ALL[usize::from(kind) % Kind::ALL.len()];
        let payload_bytes = payload.len().next_multiple_of(8);
        let header = Header {
            version: if kind == Kind::Hello { 0 } else { agreed.version },
            kind,
            flags: u16::from(flags) & (flag::LZ4 | flag::ZSTD | flag::F16_ROWS),
            id: 9,
            deadline_or_status: 0,
            payload_bytes: payload_bytes as u32,
            table: if kind.is_about_a_table() { (table % 4).into() } else { 0 },
            checksum: 0,
        };
        let mut frame = header.to_bytes().to_vec();
        frame.extend(payload);
        frame.resize(HEADER_BYTES + payload_bytes, 0);
        seal(&mut frame, &agreed);
        self.frame.clear();
        let Ok(room) = self.frame.room(frame.len()) else { return };
        room[..frame.len()].copy_from_slice(&frame);
        self.frame.advance(frame.len());
        self.handle();
    }

    fn handle(&mut self) {
        self.out.clear();
        let agreed = *self.session.agreed();
        let when = When { arrived: self.start, now: self.start + self.waited };
        let later;
        let reply = match self.session.handle(self.frame.bytes(), when, &mut self.workspace, &mut self.out) {
            Err(_) => return self.is_closed = true,
            // The send time of later requests.
            Ok(Handled::NoReply) => return,
            Ok(Handled::Replied) => self.out.bytes(),
            Ok(Handled::ReplyPending) => self.session.reply(),
            Ok(Handled::NoRoom) => panic!("no room in {FRAME_BYTES_MAX} bytes"),
            Ok(Handled::InBackground(job)) => {
                later = self.session.run(&job);
                later.bytes()
            }
        };
        let Parsed::Frame(frame) = Frame::parse(reply, &agreed).expect("an answer is a frame") else {
            panic!("half an answer")
        };
        assert_eq!((frame.header.id, frame.header.frame_bytes()), (9, reply.len()));
        let mut codec = Codec::new();
        let frame = codec.unpack(frame, &agreed).expect("an answer unpacks");
        if let Reply::Failed(failure) = Reply::decode(&frame).expect("an answer can be read") {
            assert!(!failure.reason.is_empty() && failure.fault != Fault::Internal, "{failure:?}");
        }
    }

    fn obey(&mut self, asked: Asked) {
        let pooling = |mean| if mean { Pooling::Mean } else { Pooling::Sum };
        let format = |half| if half { RowFormat::F16 } else { RowFormat::F32 };
        let absent = |init| if init { Absent::Init } else { Absent::Zero };
        let flat = |samples: &[Vec<u8>]| {
            let all: Vec<u64> = samples.iter().flat_map(|sample| keys(sample)).collect();
            let ends = samples.iter().scan(0, |end, sample| {
                *end += sample.len() as u32;
                Some(*end)
            });
            (all, std::iter::once(0).chain(ends).collect::<Vec<u32>>())
        };
        match asked {
            Asked::Bytes(kind, flags, table, payload) => self.bytes(kind, flags, table, &payload),
            Asked::Words(kind, table, words) => {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                self.bytes(kind, 0, table, &bytes);
            }
            Asked::Create { name: n, pinned, config } => {
                let home = pinned.map_or(Home::Sharded, |shard| Home::Pinned(shard.into()));
                self.ask(&Request::Create(Create { home, name: name(n), config: &config }));
            }
            Asked::Good { name: n } => {
                self.ask(&Request::Create(Create { home: Home::Sharded, name: name(n), config: TABLE }));
            }
            Asked::Open { name: n } => self.ask(&Request::Open(name(n))),
            Asked::Drop { name: n } => self.ask(&Request::Drop(name(n))),
            Asked::Pull { table, dim, init, half, keys: k } => {
                let (absent, format) = (absent(init), format(half));
                let (table, dim, keys) = ((table % 4).into(), dim.into(), &keys(&k)[..]);
                self.ask(&Request::Pull(Pull { table, dim, absent, format, keys }));
            }
            Asked::Pooled { table, dim, mean, half, samples, value } => {
                let (keys, offsets) = flat(&samples);
                let values = value.map(|value| vec![value; keys.len()]);
                let ragged = Ragged { keys: &keys, offsets: &offsets, values: values.as_deref() };
                let (absent, format, pooling) = (Absent::Init, format(half), pooling(mean));
                let (table, dim) = ((table % 4).into(), dim.into());
                self.ask(&Request::PullPooled(PullPooled { table, dim, pooling, absent, format, ragged }));
            }
            Asked::Forget { table, batch, feature } => {
                let (table, batch, feature) = ((table % 4).into(), batch.into(), feature.into());
                self.ask(&Request::Forget(Forget { table, batch, feature }));
            }
            Asked::Feed { table, batch, feature, mean, samples, value } => {
                let (keys, offsets) = flat(&samples);
                let values = value.map(|value| vec![value; keys.len()]);
                let ragged = Ragged { keys: &keys, offsets: &offsets, values: values.as_deref() };
                let (batch, feature, pooling) = ((batch % 4).into(), (feature % 4).into(), pooling(mean));
                self.ask(&Request::Feed(Feed { table: (table % 4).into(), batch, feature, pooling, ragged }));
            }
            Asked::PullFed { table, batch, feature, dim, half } => {
                let (batch, feature) = ((batch % 4).into(), (feature % 4).into());
                let (table, dim, absent, format) =
                    ((table % 4).into(), dim.into(), Absent::Init, format(half));
                self.ask(&Request::PullFed(PullFed { table, batch, feature, dim, absent, format }));
            }
            Asked::PushFed { table, client, sequence, batch, feature, rows, lr_scale, grad } => {
                let grads = &vec![grad; usize::from(rows) * 3][..];
                let (client, sequence) = ((client % 4).into(), sequence.into());
                let (table, batch, feature) = ((table % 4).into(), (batch % 4).into(), (feature % 4).into());
                self.ask(&Request::PushFed(PushFed {
                    table,
                    client,
                    sequence,
                    batch,
                    feature,
                    dim: 3,
                    lr_scale,
                    grads,
                }));
            }
            Asked::Push { table, client, sequence, lr_scale, keys: k, count, grad } => {
                let (keys, counts, grads) =
                    (&keys(&k)[..], &vec![count; k.len()][..], &vec![grad; k.len() * 3][..]);
                let (client, sequence) = ((client % 4).into(), sequence.into());
                self.ask(&Request::Push(Push {
                    table: (table % 4).into(),
                    client,
                    sequence,
                    continues: false,
                    dim: 3,
                    lr_scale,
                    keys,
                    counts,
                    grads,
                }));
            }
            Asked::PushStep { table, member: m, number, step, keys: k, count, grad } => {
                let (keys, counts, grads) =
                    (&keys(&k)[..], &vec![count; k.len()][..], &vec![grad; k.len() * 3][..]);
                let (table, member, number, step) =
                    ((table % 4).into(), member(m), number.into(), step.into());
                let gradients = StepGradients::Single(grads);
                let push =
                    PushStep { table, member, number, step, dim: 3, lr_scale: 1.0, keys, counts, gradients };
                self.ask(&Request::PushStep(push));
            }
            Asked::PushFixed { table, member: m, number, step, keys: k, unit_log2, sum } => {
                let (keys, counts, sums) =
                    (&keys(&k)[..], &vec![1; k.len()][..], &vec![sum; k.len() * 3][..]);
                let (table, member, number, step) =
                    ((table % 4).into(), member(m), number.into(), step.into());
                let gradients = StepGradients::Fixed { unit_log2, sums };
                let push =
                    PushStep { table, member, number, step, dim: 3, lr_scale: 1.0, keys, counts, gradients };
                self.ask(&Request::PushStep(push));
            }
            Asked::Wait { member: m, step, said, number } => {
                let said = match said % 4 {
                    0 => Said::Nothing,
                    1 => Said::Whole { messages: number },
                    2 => Said::WholeBefore { attempt: number },
                    _ => Said::Finished,
                };
                self.ask(&Request::WaitStep(WaitStep { member: member(m), step: step.into(), said }));
            }
            Asked::Meet { member: m, round, name: n, bytes } => {
                self.ask(&Request::Meet(Meet {
                    member: member(m),
                    round: round.into(),
                    name: name(n),
                    bytes: &bytes,
                }));
            }
            Asked::Import { table, state, keys: k, float, version } => {
                let state = u32::from(state % 8);
                let (keys, versions) = (&keys(&k)[..], &vec![version; k.len()][..]);
                let (weights, states) =
                    (&vec![float; k.len() * 3][..], &vec![float; k.len() * state as usize][..]);
                let (frequencies, last_uses) = (versions, versions);
                let rows =
                    RowBlock { dim: 3, state, keys, frequencies, last_uses, versions, weights, states };
                self.ask(&Request::Import(Import { table: (table % 4).into(), rows }));
            }
            Asked::Export { table, cursor, rows_max } => {
                self.ask(&Request::Export(Export { table: (table % 4).into(), cursor, rows_max }));
            }
            Asked::Delete { table, keys: k } => {
                self.ask(&Request::Delete(Delete { table: (table % 4).into(), keys: &keys(&k) }));
            }
            Asked::Ping { reply_bytes, bytes } => {
                self.ask(&Request::Ping(Ping { reply_bytes, bytes: &bytes }))
            }
            Asked::Stats(peers) => {
                self.ask(&Request::Stats(if peers { StatsScope::Peers } else { StatsScope::Commands }));
            }
            Asked::Tables => self.ask(&Request::Tables),
            Asked::Placement => self.ask(&Request::Placement),
            Asked::Later { seconds } => self.waited += Duration::from_secs(seconds.into()),
        }
    }
}

fuzz_target!(|input: (bool, Vec<Asked>)| {
    let (greets, asked) = input;
    let config = Config {
        frame_bytes_max: FRAME_BYTES_MAX,
        table_budget_bytes: Some(8 << 20),
        shards: 1 + u16::from(!greets),
        ..Config::default()
    };
    let features = Features::F16_ROWS | Features::LZ4 | Features::ZSTD | Features::NO_CHECKSUM;
    let buffer = || Buffer::new(FRAME_BYTES_MAX as usize);
    let mut server = Server {
        session: Session::of_fuzzer(&config, features),
        workspace: Workspace::default(),
        frame: buffer(),
        out: buffer(),
        start: Instant::now(),
        waited: Duration::ZERO,
        is_closed: false,
    };
    if greets {
        let offer = Offer { frame_bytes_max: FRAME_BYTES_MAX, ..Offer::of(Features::F16_ROWS) };
        server.ask(&Request::Hello(Hello { offer, token: "", name: "fuzzer" }));
        server.ask(&Request::Create(Create { home: Home::Sharded, name: "t", config: TABLE }));
    }
    for asked in asked.into_iter().take(64) {
        if server.is_closed || server.session.is_closing() {
            return;
        }
        server.obey(asked);
    }
});
