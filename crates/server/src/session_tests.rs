//! Sessions without sockets: the replies to all requests, compared with a table in this process.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod answers;
mod model;
mod overload;
mod refusals;
mod steps;
mod waiting;

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use sanderling_store::{self as store, Init, Optimizer, PushScale, Table, TableConfig};
use sanderling_wire::*;

use crate::call::Workspace;
use crate::limit::{PUSH_WINDOW, WAIT_MAX};
use crate::placement::Placement;
use crate::reply_sink::ReplySink;
use crate::session::{Handled, Session, When};
use crate::state::State;
use crate::{Config, Refusal};

const DIM: usize = 3;
const TABLE: &str = r#"{"blocks":[{"dims":3,"init":{"type":"uniform","bound":0.5},
    "optimizer":{"type":"adagrad","lr":0.1}}],"seed":7}"#;
const ALL: Features = Features(15);

fn embedded() -> Table {
    let (init, optimizer) =
        (Init::Uniform { bound: 0.5 }, Optimizer::Adagrad { lr: 0.1, eps: 1e-10, initial: 0.0, l2: 0.0 });
    Table::new(TableConfig { seed: 7, ..TableConfig::single("t", DIM, init, optimizer) }).unwrap()
}

/// A session and its server, with buffers for its frames.
struct Fixture {
    state: Arc<State>,
    session: Session,
    workspace: Workspace,
    start: Instant,
    frame: Buffer,
    out: Buffer,
    codec: Codec,
    compression: Option<Compression>,
    waited: Duration,
    deadline_us: u32,
}

/// The result of a request.
type Answer<T> = Result<T, Fault>;

impl Fixture {
    fn silent(config: &Config) -> Fixture {
        let state = Arc::new(State::new(config));
        let session = Session::new(Arc::clone(&state), ALL, false);
        let buffer = || Buffer::new(1 << 24);
        Fixture {
            state,
            session,
            workspace: Workspace::default(),
            start: Instant::now(),
            frame: buffer(),
            out: buffer(),
            codec: Codec::new(),
            compression: None,
            waited: Duration::ZERO,
            deadline_us: 0,
        }
    }

    /// A fixture after its hello, with table 1.
    fn new() -> Fixture {
        Fixture::of(&Config::default(), Features::F16_ROWS)
    }

    fn of(config: &Config, features: Features) -> Fixture {
        let mut fixture = Fixture::silent(config);
        fixture.hello(features, "").unwrap();
        assert_eq!(fixture.create("t", TABLE), Ok(1));
        fixture
    }

    fn hello(&mut self, features: Features, token: &str) -> Answer<()> {
        let hello = Request::Hello(Hello { offer: Offer::of(features), token, name: "test" });
        self.ask(&hello, |reply| assert!(matches!(reply, Reply::Hello(_))))
    }

    fn create(&mut self, name: &str, config: &str) -> Answer<u32> {
        self.ask(&Request::Create(Create { home: Home::Sharded, name, config }), |reply| match reply {
            Reply::Create(info) => info.table,
            other => panic!("{other:?}"),
        })
    }

    /// Encodes a request as it would be received.
    fn encode(&mut self, request: &Request<'_>) {
        let agreed = *self.session.agreed();
        let mut plain = Buffer::new(1 << 24);
        plain.append(|out| request.encode(&agreed, 9, self.deadline_us, out)).unwrap();
        self.frame.clear();
        match self.compression {
            Some(how) => self.codec.pack(plain.bytes(), how, &agreed, &mut self.frame).unwrap(),
            None => {
                self.frame.room(plain.len()).unwrap()[..plain.len()].copy_from_slice(plain.bytes());
                self.frame.advance(plain.len());
            }
        }
    }

    fn handle(&mut self) -> Result<Handled, WireError> {
        self.out.clear();
        let when = When { arrived: self.start, now: self.start + self.waited };
        self.session.handle(self.frame.bytes(), when, &mut self.workspace, &mut self.out)
    }

    fn ask<T>(&mut self, request: &Request<'_>, read: impl FnOnce(Reply<'_>) -> T) -> Answer<T> {
        self.encode(request);
        let agreed = *self.session.agreed();
        let bytes = match self.handle().unwrap() {
            Handled::Replied => self.out.bytes(),
            Handled::ReplyPending => self.session.reply(),
            other => panic!("{other:?}"),
        };
        let Parsed::Frame(frame) = Frame::parse(bytes, &agreed).unwrap() else { panic!("not whole") };
        assert_eq!((frame.header.id, frame.header.kind), (9, request.kind()));
        assert_eq!(frame.header.frame_bytes(), bytes.len());
        let mut codec = Codec::new();
        let frame = codec.unpack(frame, &agreed).unwrap();
        match Reply::decode(&frame).unwrap() {
            Reply::Failed(failure) => {
                assert!(!failure.reason.is_empty());
                Err(failure.fault)
            }
            reply => Ok(read(reply)),
        }
    }

    fn rows(&mut self, request: &Request<'_>) -> Answer<(Vec<f32>, Vec<usize>)> {
        self.ask(request, |reply| match reply {
            Reply::Pull(reply) | Reply::PullPooled(reply) | Reply::PullFed(reply) => {
                let mut rows = vec![0.0; reply.values.len()];
                reply.values.copy_to(&mut rows);
                (rows, reply.absent.positions().collect())
            }
            other => panic!("{other:?}"),
        })
    }

    fn done(&mut self, request: &Request<'_>) -> Answer<()> {
        self.ask(request, |_| ())
    }
}

fn pull(keys: &[u64]) -> Request<'_> {
    Request::Pull(Pull { table: 1, dim: DIM as u32, absent: Absent::Init, format: RowFormat::F32, keys })
}

fn push<'a>(sequence: u64, keys: &'a [u64], counts: &'a [u32], grads: &'a [f32]) -> Request<'a> {
    Request::Push(Push {
        table: 1,
        client: 5,
        sequence,
        continues: false,
        dim: DIM as u32,
        lr_scale: 1.0,
        keys,
        counts,
        grads,
    })
}
