//! The RPC state over a link that delays, cuts and loses, to a server that is busy, silent, leaves and is restarted:
//! all of it from one seed, in one thread. `SEED=n cargo test -p sanderling-client lossy` replays a failure.

use std::collections::{HashMap, HashSet, VecDeque};

use sanderling_wire::{
    Absent, Bits, Codec, Failure, Frame, Goaway, Identity, Kind, Parsed, Pull, PullReply, Push, Pushed,
    RowFormat, RowValues,
};

use super::*;

impl RpcState {
    /// [`RpcState::begin`] with the usual time-out.
    pub(crate) fn begin_usual(
        &mut self,
        now_us: u64,
        tag: u64,
        needs: Needs,
        request: &Request<'_>,
    ) -> Result<(), WireError> {
        self.begin(now_us, self.timeout(None), tag, needs, request)
    }
}

mod hedging;

/// Probabilities of faults, per thousand.
#[derive(Debug, Clone, Copy, Default)]
struct Weather {
    refuse: u64,
    cut: u64,
    lose: u64,
    busy: u64,
    restart: u64,
    /// A start that has lost nothing.
    survive: u64,
    leave: u64,
    garbage: u64,
}

/// A connection's frames on their way, with when they arrive.
#[derive(Default)]
struct Link {
    to_server: VecDeque<(u64, Vec<u8>)>,
    to_client: Vec<(u64, Vec<u8>)>,
    greeted: bool,
}

struct World {
    random: SplitMix64,
    weather: Weather,
    now_us: u64,
    rpc: RpcState,
    link: Option<Link>,
    boot_id: u64,
    history_id: u64,
    /// Sequences applied in the server's history, in their order.
    applied: Vec<u64>,
    seen: HashSet<u64>,
    outcomes: HashMap<u64, Result<(), CallError>>,
}

const AGREED: Agreed =
    Agreed { version: 1, features: Features::HISTORY, frame_bytes_max: limit::FRAME_BYTES_MAX as u32 };
const TIMEOUT_US: u64 = 300_000;

fn encoded(encode: impl FnMut(&mut [u8]) -> Result<usize, WireError>) -> Vec<u8> {
    let mut buffer = Buffer::new(1 << 16);
    buffer.append(encode).expect("encodes");
    buffer.bytes().to_vec()
}

/// Frames are parsed where they are aligned, as a transport gives them.
fn aligned(bytes: &[u8]) -> Buffer {
    let mut buffer = Buffer::new(1 << 16);
    buffer.room(bytes.len()).expect("small")[..bytes.len()].copy_from_slice(bytes);
    buffer.advance(bytes.len());
    buffer
}

impl World {
    fn new(seed: u64, weather: Weather) -> World {
        let patience = Patience { timeout: Duration::from_micros(TIMEOUT_US), away: Duration::MAX, seed };
        World {
            random: SplitMix64::new(seed ^ 0x5EED),
            weather,
            now_us: 0,
            rpc: RpcState::new(patience, "", "test"),
            link: None,
            boot_id: 1,
            history_id: 1,
            applied: Vec::new(),
            seen: HashSet::new(),
            outcomes: HashMap::new(),
        }
    }

    fn happens(&mut self, per_thousand: u64) -> bool {
        self.random.below(1000) < per_thousand
    }

    fn push(&mut self, sequence: u64, needs: Needs) {
        let grads = [1.0; 2];
        let push = Push {
            table: 1,
            client: 7,
            sequence,
            continues: false,
            dim: 2,
            lr_scale: 1.0,
            keys: &[sequence],
            counts: &[1],
            grads: &grads,
        };
        self.rpc.begin_usual(self.now_us, sequence, needs, &Request::Push(push)).expect("small");
    }

    fn finish(&mut self, tag: u64, outcome: Result<(), CallError>) {
        assert!(self.outcomes.insert(tag, outcome).is_none(), "{tag} has two outcomes");
    }

    fn lose_link(&mut self, cause: &str) {
        if self.link.take().is_some() {
            self.rpc.disconnected(self.now_us, cause.to_owned());
        }
    }

    /// Does the work that the RPC state asks for, delivers arrived frames, and advances the time.
    fn step(&mut self) {
        self.now_us += self.random.below(400);
        let now_us = self.now_us;
        self.rpc.expire(now_us);
        loop {
            match self.rpc.want(now_us) {
                Want::Connect if self.happens(self.weather.refuse) => {
                    self.rpc.disconnected(now_us, "refused".to_owned());
                }
                Want::Connect => {
                    assert!(self.link.is_none(), "a second connection");
                    self.link = Some(Link::default());
                    self.rpc.connected(Features::HISTORY).expect("a hello is small");
                }
                Want::Send => {
                    let frame = self.rpc.outgoing().to_vec();
                    self.rpc.sent(now_us);
                    let delay_us = self.random.below(300);
                    let link = self.link.as_mut().expect("connected");
                    let after = link.to_server.back().map_or(0, |(at_us, _)| *at_us);
                    link.to_server.push_back((after.max(now_us + delay_us), frame));
                }
                Want::Close => self.link = None,
                Want::Nothing => break,
            }
        }
        while let Some((tag, error)) = self.rpc.next_failure() {
            self.finish(tag, Err(error));
        }
        if self.happens(self.weather.restart) {
            (self.boot_id, self.history_id) = (self.boot_id + 1, self.history_id + 1);
            (self.applied, self.seen) = (Vec::new(), HashSet::new());
            self.lose_link("restart");
        }
        if self.happens(self.weather.survive) {
            self.boot_id += 1;
            self.lose_link("restart");
        }
        if self.happens(self.weather.cut) {
            self.lose_link("cut");
        }
        self.serve();
        self.receive();
    }

    /// Until the first request has its answer or has failed.
    fn step_until_done(&mut self) {
        while self.outcomes.is_empty() {
            self.step();
        }
    }

    fn serve(&mut self) {
        loop {
            let now_us = self.now_us;
            let Some(link) = &mut self.link else { return };
            if link.to_server.front().is_none_or(|(at_us, _)| *at_us > now_us) {
                return;
            }
            let Some((_, frame)) = link.to_server.pop_front() else { return };
            let greeted = link.greeted;
            let (reply, goaway) = self.answer(&aligned(&frame), greeted);
            let first_us = now_us + if greeted { self.random.below(600) } else { 0 };
            let lost = greeted && self.happens(self.weather.lose);
            let Some(link) = &mut self.link else { return };
            link.greeted = true;
            if !lost {
                link.to_client.push((first_us, reply));
            }
            link.to_client.extend(goaway.map(|goaway| (now_us, goaway)));
        }
    }

    fn answer(&mut self, frame: &Buffer, greeted: bool) -> (Vec<u8>, Option<Vec<u8>>) {
        let agreed = if greeted { AGREED } else { Agreed::BEFORE_HELLO };
        let Ok(Parsed::Frame(frame)) = Frame::parse(frame.bytes(), &agreed) else { panic!("not a frame") };
        let id = frame.header.id;
        match Request::decode(&frame).expect("a request") {
            Request::Hello(hello) => {
                assert!(!greeted, "a second hello");
                let identity = Identity {
                    agreed: Offer::of(Features::HISTORY).meet(&hello.offer).expect("same version"),
                    in_flight_max: 8,
                    shard: 0,
                    shards: 1,
                    server_id: 1,
                    boot_id: self.boot_id,
                    host_id: 0,
                    placement_version: 0,
                    history_id: self.history_id,
                    name: "",
                    local_url: "",
                };
                (encoded(|out| Reply::Hello(identity).encode(&Agreed::BEFORE_HELLO, id, out)), None)
            }
            Request::Push(_) if self.happens(self.weather.garbage) => (vec![7; 32], None),
            Request::Push(_) if self.happens(self.weather.busy) => {
                let fault = Fault::Busy { retry_after_us: 800 };
                let failure = Failure { kind: Kind::Push, fault, reason: "no room" };
                (encoded(|out| Reply::Failed(failure).encode(&AGREED, id, out)), None)
            }
            Request::Push(push) => {
                let repeated = !self.seen.insert(push.sequence);
                if !repeated {
                    self.applied.push(push.sequence);
                }
                let goaway = Goaway { closing_in_ms: 10, reason: "leaving" };
                let leaves = self.happens(self.weather.leave);
                let goaway = leaves.then(|| encoded(|out| Reply::Goaway(goaway).encode(&AGREED, 0, out)));
                (encoded(|out| Reply::Push(Pushed { repeated }).encode(&AGREED, id, out)), goaway)
            }
            Request::Pull(_) => {
                let absent = Bits::new(&[0], 1).expect("one bit");
                let reply = Reply::Pull(PullReply { dim: 1, absent, values: RowValues::F32(&[0.0]) });
                (encoded(|out| reply.encode(&AGREED, id, out)), None)
            }
            other => panic!("{} was not asked for", other.kind()),
        }
    }

    /// Sends the next frame; what it is answered, which is not received yet.
    fn send_one(&mut self) -> Vec<u8> {
        assert_eq!(self.rpc.want(self.now_us), Want::Send);
        let frame = self.rpc.outgoing().to_vec();
        self.rpc.sent(self.now_us);
        let greeted = frame[5] != Kind::Hello as u8;
        self.answer(&aligned(&frame), greeted).0
    }

    /// The tag of the request that a frame is the answer to.
    fn receive_one(&mut self, frame: &[u8]) -> Option<u64> {
        match self.rpc.receive(self.now_us, aligned(frame).bytes(), &mut Codec::new()) {
            Answer::To(done, _) | Answer::Moved(done, _) => Some(done.tag),
            Answer::None => None,
        }
    }

    /// Answers arrive in any order but for the first.
    fn receive(&mut self) {
        loop {
            let now_us = self.now_us;
            let Some(link) = &mut self.link else { return };
            let Some(at) = link.to_client.iter().position(|(at_us, _)| *at_us <= now_us) else { return };
            let frame = aligned(&link.to_client.remove(at).1);
            let mut codec = Codec::new();
            let answer = match self.rpc.receive(now_us, frame.bytes(), &mut codec) {
                Answer::To(done, Reply::Push(_)) => Some((done.tag, Ok(()))),
                Answer::To(done, Reply::Failed(failure)) => {
                    let (fault, reason) = (failure.fault, failure.reason.to_owned());
                    Some((done.tag, Err(CallError::Refused { fault, reason })))
                }
                Answer::To(_, reply) => panic!("{} was not asked for", reply.kind()),
                Answer::Moved(done, _) => panic!("{} is elsewhere", done.tag),
                Answer::None => None,
            };
            if let Some((tag, outcome)) = answer {
                assert!(
                    outcome.is_err() || self.seen.contains(&tag),
                    "{tag} is acknowledged and was not applied"
                );
                self.finish(tag, outcome);
            }
        }
    }
}

const PUSHES: u64 = 120;

fn check(seed: u64, weather: Weather) -> World {
    let mut world = World::new(seed, weather);
    let mut next = 1;
    let mut steps = 0;
    while (world.outcomes.len() as u64) < PUSHES {
        while next <= PUSHES && world.rpc.has_room() && world.random.below(3) > 0 {
            let needs = world.rpc.peer().map_or(Needs::Nothing, Peer::tables);
            world.push(next, needs);
            next += 1;
        }
        world.step();
        steps += 1;
        assert!(steps < 1_000_000, "seed {seed}: it never ends, {weather:?}");
    }
    assert_eq!(world.rpc.outstanding(), 0);
    assert!(world.rpc.wake_us().is_none());
    for (tag, outcome) in &world.outcomes {
        let not_applied = matches!(outcome, Err(CallError::Late { sent: false, .. }));
        assert!(!(not_applied && world.seen.contains(tag)), "seed {seed}: {tag} was applied, {outcome:?}");
    }
    world
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    match std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..count,
    }
}

#[test]
fn a_lossy_link_loses_no_push_and_applies_none_twice() {
    for seed in seeds(60) {
        let weather = Weather { refuse: 200, cut: 20, leave: 20, ..Weather::default() };
        let world = check(seed, weather);
        // Nothing was lost for good, so all arrived, and in order.
        assert!(world.outcomes.values().all(Result::is_ok), "seed {seed}: {:?}", world.outcomes);
        assert!(world.applied.is_sorted(), "seed {seed}: {:?}", world.applied);
        assert_eq!(world.applied.len() as u64, PUSHES, "seed {seed}");
    }
}

#[test]
fn a_server_that_starts_anew_and_has_lost_nothing_is_gone_on_with() {
    let mut restarted = 0;
    for seed in seeds(60) {
        let weather = Weather { refuse: 100, survive: 10, leave: 10, ..Weather::default() };
        let world = check(seed, weather);
        assert!(world.outcomes.values().all(Result::is_ok), "seed {seed}: {:?}", world.outcomes);
        assert!(world.applied.is_sorted(), "seed {seed}: {:?}", world.applied);
        assert_eq!(world.applied.len() as u64, PUSHES, "seed {seed}");
        restarted += u32::from(world.boot_id > 1);
    }
    assert!(restarted > 10, "{restarted} of the seeds started the server anew");
}

#[test]
fn a_busy_server_is_asked_again_and_a_silent_one_given_up() {
    for seed in seeds(60) {
        let weather = Weather { busy: 200, ..Weather::default() };
        let world = check(seed, weather);
        assert!(world.outcomes.values().all(Result::is_ok), "seed {seed}: {:?}", world.outcomes);
        let weather = Weather { lose: 30, cut: 3, ..Weather::default() };
        let world = check(seed, weather);
        for (tag, outcome) in &world.outcomes {
            let known = matches!(outcome, Ok(()) | Err(CallError::Late { sent: true, .. }));
            assert!(known, "seed {seed}: {tag} {outcome:?}");
        }
    }
}

#[test]
fn what_a_lossy_world_did_is_said_truly() {
    let (mut restarted, mut protocol) = (0, 0);
    for seed in seeds(100) {
        let weather = Weather {
            refuse: 100,
            cut: 10,
            lose: 5,
            busy: 50,
            restart: 4,
            survive: 4,
            leave: 10,
            garbage: 2,
        };
        let world = check(seed, weather);
        for outcome in world.outcomes.values() {
            restarted += u32::from(matches!(outcome, Err(CallError::Restarted)));
            protocol += u32::from(matches!(outcome, Err(CallError::Protocol { .. })));
        }
    }
    assert!(std::env::var("SEED").is_ok() || restarted > 0 && protocol > 0, "{restarted} {protocol}");
}

#[test]
fn a_server_that_stays_busy_says_why() {
    let mut world = World::new(1, Weather { busy: 1000, ..Weather::default() });
    world.push(1, Needs::Nothing);
    world.step_until_done();
    // Whether it was sent once more, and that is without an answer yet, is chance.
    let Err(CallError::Late { cause: Some(cause), .. }) = &world.outcomes[&1] else {
        panic!("{:?}", world.outcomes)
    };
    assert!(cause.ends_with(": no room"), "{cause}");
}

#[test]
fn a_server_that_refuses_and_closes_has_said_why() {
    let mut world = World::new(1, Weather::default());
    world.push(1, Needs::Nothing);
    let mut now_us = 0;
    // Until the request is late, each attempt is answered, and the connection is gone before anybody closes it here.
    while world.rpc.outstanding() > 0 {
        world.rpc.expire(now_us);
        if world.rpc.want(now_us) == Want::Connect {
            world.rpc.connected(Features::NONE).expect("a hello is small");
            assert_eq!(world.rpc.want(now_us), Want::Send);
            world.rpc.sent(now_us);
            let fault = Fault::Busy { retry_after_us: 800 };
            let failure = Failure { kind: Kind::Hello, fault, reason: "as many as it takes" };
            let refusal = encoded(|out| Reply::Failed(failure).encode(&Agreed::BEFORE_HELLO, 0, out));
            assert_eq!(world.receive_one(&refusal), None);
            world.rpc.disconnected(now_us, "the peer closed the connection".to_owned());
        }
        now_us = world.rpc.wake_us().unwrap_or(now_us);
        world.now_us = now_us;
    }
    let Some((1, CallError::Late { sent: false, cause: Some(cause) })) = world.rpc.next_failure() else {
        panic!("it is late");
    };
    assert!(cause.ends_with(": as many as it takes"), "{cause}");
}

#[test]
fn a_pull_does_not_overtake_a_push_that_the_server_had_no_time_for() {
    let mut world = World::new(1, Weather { busy: 1000, ..Weather::default() });
    world.push(1, Needs::Nothing);
    let pull = Pull { table: 1, dim: 1, absent: Absent::Zero, format: RowFormat::F32, keys: &[7] };
    world.rpc.begin_usual(0, 2, Needs::Nothing, &Request::Pull(pull)).expect("small");
    assert_eq!(world.rpc.want(0), Want::Connect);
    world.rpc.connected(Features::NONE).expect("a hello is small");
    let hello = world.send_one();
    assert_eq!(world.receive_one(&hello), None);
    // Both are under way when the push is put off; in the second round it is not.
    for (busy, expected) in [(1000, [None, None]), (0, [Some(1), Some(2)])] {
        world.weather.busy = busy;
        let answers = [world.send_one(), world.send_one()];
        assert_eq!(answers.map(|answer| world.receive_one(&answer)), expected);
        world.now_us += 10_000;
    }
    assert_eq!(world.seen.len(), 1);
}

#[test]
fn requests_that_nobody_looked_after_have_more_time() {
    let mut world = World::new(1, Weather::default());
    world.push(1, Needs::Nothing);
    world.rpc.postpone(TIMEOUT_US, 0);
    world.now_us = TIMEOUT_US;
    world.step_until_done();
    assert_eq!(world.outcomes[&1], Ok(()));
}

#[test]
fn a_request_may_take_longer_than_a_frame_can_say() {
    let patience = Patience { timeout: Duration::from_secs(7200), away: Duration::MAX, seed: 1 };
    let mut rpc = RpcState::new(patience, "", "test");
    rpc.begin_usual(0, 1, Needs::Nothing, &Request::Tables).expect("small");
    assert_eq!(rpc.calls.next_frame()[16..20], [0xFF; 4]);
    for (now_us, is_late) in [(u64::from(u32::MAX) + 1, false), (7_200_000_000, true)] {
        rpc.expire(now_us);
        assert_eq!(rpc.next_failure().is_some(), is_late, "{now_us}");
    }
}

#[test]
fn a_server_that_is_not_there_is_late_and_says_why() {
    let mut world = World::new(1, Weather { refuse: 1000, ..Weather::default() });
    world.push(1, Needs::Nothing);
    world.step_until_done();
    let late = CallError::Late { sent: false, cause: Some("refused".to_owned()) };
    assert_eq!(world.outcomes[&1], Err(late));
    assert!((TIMEOUT_US..TIMEOUT_US + 1000).contains(&world.now_us), "{}", world.now_us);
}
