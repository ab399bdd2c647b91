//! One message of every kind, made from a handful of numbers and texts. Knows what messages there are, not what they
//! are tested for.

use sanderling_wire::{
    Absent, Agreed, Ahead, Bits, ChangedRows, Changes, ChangesPlace, Column, Counter, Create, Delete, Export,
    Exported, Failure, Fault, Features, Feed, Forget, Goaway, Hello, Home, Identity, Import, Join, Joined,
    Keys, Kind, Latency, Leave, Left, Meet, Member, Met, Next, NextReply, Offer, Outcome, Ping, PlacementMap,
    PlacementServer, Pong, Pooling, Pull, PullFed, PullPooled, PullReply, Push, PushFed, PushStep, Pushed,
    Ragged, Replicate, Reply, Request, Restore, Restored, RowBlock, RowFormat, RowValues, Said, Save, SaveAs,
    Saved, Statistics, StatsScope, StepGradients, StepState, Subscribe, Subscribed, TableInfo, Tell, Trace,
    WaitStep, Way,
};

/// Everything agreed, but with a checksum.
pub(crate) const AGREED: Agreed = Agreed {
    version: 1,
    features: Features(Features::LZ4.0 | Features::ZSTD.0 | Features::F16_ROWS.0),
    frame_bytes_max: 1 << 20,
};

/// Columns that a hub has fed, and their keys per server.
const FED_COLUMNS: [u32; 3] = [0, 2, 4];
const FED_KEYS: [u32; 6] = [7, 0, 9, 1, 2, u32::MAX];

/// The ingredients of all messages.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    pub(crate) keys: Vec<u64>,
    /// One per key; also differences between offsets.
    pub(crate) counts: Vec<u32>,
    /// At least `dim` per key.
    pub(crate) floats: Vec<f32>,
    pub(crate) dim: u32,
    pub(crate) text: String,
    pub(crate) number: u64,
    pub(crate) small: u32,
    pub(crate) yes: bool,
    pub(crate) f16: bool,
    offsets: Vec<u32>,
    absent: Vec<u64>,
    halves: Vec<u16>,
    slots: Vec<u16>,
    sums: Vec<i64>,
}

impl Parts {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        keys: Vec<u64>,
        dim: u32,
        floats: &[f32],
        text: String,
        number: u64,
        small: u32,
        yes: bool,
        f16: bool,
    ) -> Parts {
        let count = keys.len();
        let floats: Vec<f32> = floats.iter().copied().cycle().take(count * dim as usize).collect();
        let halves = floats.iter().map(|value| (value.to_bits() >> 16) as u16).collect();
        let counts: Vec<u32> = keys.iter().map(|&key| key as u32 | 1).collect();
        let mut offsets: Vec<u32> = keys.iter().map(|&key| key as u32 % (count as u32 + 1)).collect();
        offsets.extend([0, count as u32]);
        offsets.sort_unstable();
        let mut absent = vec![0; count.div_ceil(64)];
        (0..count)
            .filter(|&at| keys[at].is_multiple_of(3))
            .for_each(|at| sanderling_wire::set_bit(&mut absent, at));
        let sums = floats.iter().map(|value| i64::from(value.to_bits()) - (1 << 31)).collect();
        let slots = keys.iter().map(|&key| (key % 2) as u16).collect();
        Parts {
            keys,
            counts,
            floats,
            dim,
            text,
            number,
            small,
            yes,
            f16,
            offsets,
            absent,
            halves,
            slots,
            sums,
        }
    }

    /// The ingredients of the golden frames.
    pub(crate) fn golden() -> Parts {
        let keys = vec![0, 1, 0x0123_4567_89ab_cdef, u64::MAX, 42];
        let floats = [0.0, -0.0, 1.0, -1.5, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, 3.25e-7];
        Parts::new(keys, 3, &floats, "knot ∞".to_string(), 0x1122_3344_5566_7788, 0x00ab_cdef, true, false)
    }

    /// The answer to a hello of a client that reads histories.
    pub(crate) fn history_hello(&self) -> Identity<'_> {
        let agreed = Agreed { features: AGREED.features | Features::HISTORY, ..AGREED };
        let (n, text) = (self.number, &self.text[..]);
        Identity {
            agreed,
            in_flight_max: self.small,
            shard: 1,
            shards: 2,
            server_id: n,
            boot_id: n ^ 1,
            host_id: n ^ 2,
            placement_version: n ^ 3,
            history_id: n ^ 4,
            name: text,
            local_url: text,
        }
    }

    fn absent_mode(&self) -> Absent {
        if self.yes { Absent::Init } else { Absent::Zero }
    }

    fn pooling(&self) -> Pooling {
        if self.yes { Pooling::Mean } else { Pooling::Sum }
    }

    fn format(&self) -> RowFormat {
        if self.f16 { RowFormat::F16 } else { RowFormat::F32 }
    }

    fn home(&self) -> Home {
        if self.yes { Home::Pinned(self.small) } else { Home::Sharded }
    }

    fn ragged(&self) -> Ragged<'_> {
        let values = self.yes.then(|| &self.floats[..self.keys.len()]);
        Ragged { keys: &self.keys, offsets: &self.offsets, values }
    }

    fn block(&self) -> RowBlock<'_> {
        let (frequencies, last_uses, versions) = (&self.counts, &self.counts, &self.counts);
        let (weights, states) = (&self.floats, &self.floats[..self.keys.len()]);
        RowBlock {
            dim: self.dim,
            state: 1,
            keys: &self.keys,
            frequencies,
            last_uses,
            versions,
            weights,
            states,
        }
    }

    fn pulled(&self) -> PullReply<'_> {
        let absent = Bits::new(&self.absent, self.keys.len()).expect("made for them");
        PullReply { dim: self.dim, absent, values: self.values() }
    }

    fn values(&self) -> RowValues<'_> {
        if self.f16 { RowValues::F16(&self.halves) } else { RowValues::F32(&self.floats) }
    }

    fn place(&self) -> ChangesPlace {
        let (until, cursor) = (!self.number, u64::from(self.small));
        ChangesPlace { since: self.number, until, cursor }
    }

    fn outcome(&self) -> Outcome<'_> {
        if self.yes {
            let (pass, number, rows) = (self.number, !self.number, self.small);
            return Outcome::Batch { pass, number, rows, payload: self.text.as_bytes() };
        }
        match self.number % 4 {
            0 => Outcome::Wait { retry_after_us: self.number },
            1 => Outcome::Over,
            2 => Outcome::Failed { reason: &self.text },
            _ => Outcome::Nothing,
        }
    }

    /// A minibatch of which every second column was fed to two servers.
    fn fed(&self) -> Outcome<'_> {
        let (pass, number, rows) = (self.number, !self.number, self.small);
        let columns = &FED_COLUMNS[..self.keys.len().min(FED_COLUMNS.len())];
        let ahead = Ahead {
            batch: self.number ^ 1,
            age_us: u64::from(self.small),
            placement_version: self.number ^ 2,
            columns,
            servers: 2,
            keys: &FED_KEYS[..2 * columns.len()],
        };
        Outcome::Fed { pass, number, rows, payload: self.text.as_bytes(), ahead }
    }

    fn info(&self) -> TableInfo<'_> {
        TableInfo {
            table: self.small,
            home: self.home(),
            dim: self.dim,
            state: 2 * self.dim,
            rows: self.number,
            bytes: !self.number,
            name: &self.text,
            config: &self.text,
        }
    }

    fn member(&self) -> Member {
        let workers = self.small % 1024 + 1;
        Member { group: self.number, worker: self.small % workers, workers, attempt: self.small }
    }

    fn said(&self) -> Said {
        let messages = self.small;
        [Said::Whole { messages }, Said::Nothing, Said::WholeBefore { attempt: messages }, Said::Finished]
            [self.dim as usize % 4]
    }

    fn state(&self) -> StepState<'_> {
        let n = self.number;
        StepState {
            applied: n,
            decided: n ^ 1,
            attempt: self.small,
            finished: n ^ 2,
            round: n ^ 3,
            missing: &self.counts,
        }
    }

    pub(crate) fn requests(&self) -> Vec<Request<'_>> {
        let (table, dim, keys, text) = (self.small, self.dim, &self.keys[..], &self.text[..]);
        let (absent, pooling, format, ragged) =
            (self.absent_mode(), self.pooling(), self.format(), self.ragged());
        let (client, sequence, batch, feature, lr_scale) =
            (self.number, !self.number, self.number, self.small, 0.5);
        let grads = &self.floats[..];
        vec![
            Request::Hello(Hello { offer: Offer::of(Features(self.small)), token: text, name: text }),
            Request::Ping(Ping { reply_bytes: self.small % 1000, bytes: text.as_bytes() }),
            Request::Create(Create { home: self.home(), name: text, config: text }),
            Request::Open(text),
            Request::Drop(text),
            Request::Tables,
            Request::Pull(Pull { table, dim, absent, format, keys }),
            Request::PullPooled(PullPooled { table, dim, pooling, absent, format, ragged }),
            Request::PullFed(PullFed { table, batch, feature, dim, absent, format }),
            Request::Push(Push {
                table,
                client,
                sequence,
                continues: false,
                dim,
                lr_scale,
                keys,
                counts: &self.counts,
                grads,
            }),
            Request::PushFed(PushFed { table, client, sequence, batch, feature, dim, lr_scale, grads }),
            Request::Feed(Feed { table, batch, feature, pooling, ragged }),
            Request::Export(Export { table, cursor: self.number, rows_max: self.small % 1000 }),
            Request::Import(Import { table, rows: self.block() }),
            Request::Delete(Delete { table, keys }),
            Request::Changes(Changes {
                table,
                place: self.place(),
                fresh_us: !self.small,
                keys_max: self.small % 1000,
                format,
            }),
            Request::Save(Save { name: text }),
            Request::Restore(Restore { name: text }),
            Request::Stats(if self.yes { StatsScope::Peers } else { StatsScope::Commands }),
            Request::Placement,
            Request::PushStep(PushStep {
                table,
                member: self.member(),
                number: self.small,
                step: self.number,
                dim,
                lr_scale,
                keys,
                counts: &self.counts,
                gradients: match self.yes {
                    true => StepGradients::Fixed { unit_log2: -(dim as i8), sums: &self.sums },
                    false => StepGradients::Single(grads),
                },
            }),
            Request::WaitStep(WaitStep { member: self.member(), step: self.number, said: self.said() }),
            Request::Meet(Meet {
                member: self.member(),
                round: self.number,
                name: text,
                bytes: text.as_bytes(),
            }),
            Request::Subscribe(Subscribe {
                trainer: text,
                instance: self.number,
                stream: !self.number,
                window: self.small,
                rank: self.yes.then_some(self.small >> 1),
                held: keys,
            }),
            Request::Next(Next { wanted: self.yes, used: keys }),
            Request::Join(self.join()),
            Request::Describe,
            Request::Leave(Leave { used: keys }),
            Request::Forget(Forget { table, batch, feature }),
            Request::Keys(Keys { number: self.number }),
            Request::SaveAs(SaveAs { number: self.number, name: text }),
            Request::Saved(text),
            Request::SentAt(self.number),
            Request::Replicate(Replicate { url: text, envelope: text.as_bytes() }),
            Request::Transfer(text.as_bytes()),
            Request::Trace(Trace { trace_high: self.number, trace_low: !self.number, span: self.number }),
        ]
        .into_iter()
        .chain(self.told().map(Request::Tell))
        .collect()
    }

    fn join(&self) -> Join {
        let Member { worker: rank, workers, attempt, .. } = self.member();
        let way = if self.yes { Way::Control } else { Way::Rows };
        Join { job: self.number, rank, workers, attempt, way }
    }

    fn told(&self) -> [Tell<'_>; 10] {
        let (worker, n, small, reason) = (self.small % 1024, self.number, self.small, &self.text[..]);
        let bytes = self.text.as_bytes();
        [
            Tell::Rows { round: n, slice: small, bytes },
            Tell::RowsEnd { round: n },
            Tell::Part { round: n, is_last: self.yes, bytes },
            Tell::Alive { stage: small, for_us: n, turn: !n, settled: n ^ 1 },
            Tell::TurnOver { turn: n, losses: small },
            Tell::Lost { worker, losses: small, turn: n, settled: !n, reason },
            Tell::Regroup { losses: small, group: n, applied: n ^ 1, rounds: n ^ 2 },
            Tell::Fail { worker, reason },
            Tell::Pace { worker, turn: n, steps: !n, others: n ^ 1 },
            Tell::Stop { worker },
        ]
    }

    pub(crate) fn replies(&self) -> Vec<Reply<'_>> {
        let text = &self.text[..];
        let (n, latency) = (self.number, |name| Latency {
            name,
            count: self.number,
            average_ns: 1,
            min_ns: 2,
            max_ns: 3,
            p50_ns: 4,
            p95_ns: 5,
            p99_ns: 6,
            p999_ns: 7,
        });
        let identity = Identity { agreed: AGREED, history_id: 0, ..self.history_hello() };
        let server = |server_id| PlacementServer { server_id, url: text };
        let mut replies = vec![
            Reply::Hello(identity),
            Reply::Ping(Pong { serving: self.yes, bytes: text.as_bytes() }),
            Reply::Create(self.info()),
            Reply::Open(self.info()),
            Reply::Drop,
            Reply::Tables(vec![self.info(); 2]),
            Reply::Pull(self.pulled()),
            Reply::PullPooled(self.pulled()),
            Reply::PullFed(self.pulled()),
            Reply::Push(Pushed { repeated: self.yes }),
            Reply::PushFed(Pushed { repeated: self.yes }),
            Reply::Feed,
            Reply::Export(Exported { next: Some(n).filter(|&next| next != 0), rows: self.block() }),
            Reply::Import(n),
            Reply::Delete(n),
            Reply::Changes(ChangedRows {
                next: self.place(),
                age_us: !n,
                has_more: self.yes,
                dim: self.dim,
                keys: self.block().keys,
                values: self.values(),
                removed: &self.keys,
            }),
            Reply::Transfer(text.as_bytes()),
            Reply::Save(Saved { generation: n, rows: n, bytes: n }),
            Reply::Restore(Restored { tables: n, rows: n }),
            Reply::Stats(Statistics {
                uptime_us: n,
                latencies: vec![latency(text), latency("pull")],
                counters: vec![Counter { name: text, value: n }],
            }),
            Reply::Placement(PlacementMap {
                version: n,
                servers: vec![server(1), server(2)],
                slots: &self.slots,
            }),
            Reply::Goaway(Goaway { closing_in_ms: self.small, reason: text }),
            Reply::PushStep(self.state()),
            Reply::WaitStep(self.state()),
            Reply::Meet(match self.yes {
                true => Met::All(vec![text.as_bytes(), &[]]),
                false => Met::Waiting(&self.offsets),
            }),
            Reply::Subscribe(Subscribed {
                stream: n,
                passes: n ^ 1,
                rows: self.small,
                window: 7,
                stride: 3,
                late: &self.keys,
                columns: vec![Column { name: text, weighted: self.yes }; 2],
            }),
            Reply::Next(NextReply { late: &self.keys, outcome: self.outcome() }),
            Reply::Join(Joined { rank: self.small % 1024, attempt: self.small }),
            Reply::Describe(text),
            Reply::Leave(Left { late: &self.keys }),
            Reply::Forget,
            Reply::Keys(if self.yes { self.fed() } else { self.outcome() }),
            Reply::SaveAs(Saved { generation: n, rows: n, bytes: n }),
            Reply::Saved(n),
        ];
        let failed = |fault| Reply::Failed(Failure { kind: Kind::Push, fault, reason: text });
        replies.extend(self.faults().map(failed));
        replies
    }

    pub(crate) fn faults(&self) -> [Fault; 22] {
        let (n, small) = (self.number, self.small);
        [
            Fault::BadRequest,
            Fault::Version { min: 1, max: 2 },
            Fault::Unauthorized,
            Fault::Busy { retry_after_us: n },
            Fault::DeadlineExceeded,
            Fault::Draining,
            Fault::NotHere { placement_version: n },
            Fault::UnknownTable,
            Fault::TableExists,
            Fault::BadConfig,
            Fault::DimensionMismatch { expected: self.dim, found: small },
            Fault::TableFull { rejected: n, rows: n ^ 1, budget_bytes: n ^ 2 },
            Fault::BadGradient { key: n, coordinate: small, value: f32::INFINITY },
            Fault::UnknownBatch,
            Fault::StalePush { sequence: n },
            Fault::TooLarge { bytes: n, bytes_max: n ^ 1 },
            Fault::UnknownCheckpoint,
            Fault::Damaged,
            Fault::Io { os_error: small },
            Fault::Internal,
            Fault::StreamTooLate { oldest: n },
            Fault::NotPrimary { version: n },
        ]
    }

    /// The frames of all messages.
    pub(crate) fn frames(&self, agreed: &Agreed) -> Vec<(String, sanderling_wire::Buffer)> {
        let mut frames = Vec::new();
        for request in self.requests() {
            let frame = frame(|out| request.encode(agreed, self.number, self.small, out));
            frames.push((format!("{}.request", request.kind()), frame));
        }
        for reply in self.replies() {
            let name = match &reply {
                Reply::Failed(failure) => format!("failed_{:02}.reply", failure.fault.code()),
                reply => format!("{}.reply", reply.kind()),
            };
            frames.push((name, frame(|out| reply.encode(agreed, self.number, out))));
        }
        frames
    }
}

/// A buffer with one frame.
pub(crate) fn frame(
    encode: impl FnMut(&mut [u8]) -> Result<usize, sanderling_wire::WireError>,
) -> sanderling_wire::Buffer {
    let mut buffer = sanderling_wire::Buffer::new(1 << 20);
    buffer.append(encode).expect("encodes");
    buffer
}
