//! The lease table against trainers that come, stop, die, come back and lose messages, from one seed, in one thread:
//! each minibatch is acknowledged exactly once, by the trainer that holds it. `SEED=n cargo test -p sanderling-hub
//! leases` replays a failure.

use sanderling_wire::Subscribe;

use sanderling_loader::seed_of;

use super::*;
use crate::service::position::Position;

const PASSES: u64 = 3;
/// Minibatches of a pass.
const BATCHES: u64 = 40;

mod fed;
mod written;

fn limits(stride: u32) -> LeaseLimits {
    LeaseLimits {
        queue_batches: 8,
        queue_bytes: 60,
        unacknowledged_bytes: 50,
        window: 5,
        trainer_timeout: Duration::from_micros(300),
        stride,
        feeds: false,
        logs: true,
    }
}

fn minibatch(pass: u64, payload: Vec<u8>) -> Minibatch {
    Minibatch { pass, rows: 1, payload, made: (Instant::now(), Instant::now()) }
}

/// A trainer as it sees itself.
#[derive(Default)]
struct Model {
    connection: Option<u64>,
    held: BTreeSet<u64>,
    /// Acknowledged, but the answer was lost.
    unsure: BTreeSet<u64>,
    over: bool,
}

struct World {
    seed: u64,
    draws: u64,
    leases: LeaseTable,
    made: u64,
    now_us: u64,
    connections: u64,
    trainers: Vec<Model>,
    /// How often each number was acknowledged and not late.
    used: BTreeMap<u64, u32>,
    /// Restarts of the hub.
    restarts: u32,
    late: u32,
    /// Farewells of trainers that had something.
    farewells: u32,
    feeding: fed::World,
    /// The content of the position file.
    written: Position,
}

impl World {
    fn new(seed: u64, stride: u32, feeds: bool) -> World {
        let start = PassStart { pass: 0, first: 0 };
        World {
            seed,
            draws: 0,
            leases: LeaseTable::new(LeaseLimits { feeds, ..limits(stride) }, 9, AckSet::default(), start),
            made: 0,
            now_us: 0,
            connections: 0,
            trainers: (0..3).map(|_| Model::default()).collect(),
            used: BTreeMap::new(),
            restarts: 0,
            late: 0,
            farewells: 0,
            feeding: fed::World::new(feeds),
            written: Position { is_last: false, ..Position::new(9) },
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.draws += 1;
        seed_of(&[self.seed, self.draws]) % bound
    }

    fn make(&mut self) {
        while self.leases.has_room() && self.made < PASSES * BATCHES && self.below(4) > 0 {
            if self.made > 0 && self.made.is_multiple_of(BATCHES) {
                self.leases.begin_pass(self.made / BATCHES);
            }
            let bytes = 1 + self.below(15) as usize;
            let payload = vec![self.made as u8; bytes];
            self.leases.offer(minibatch(self.made / BATCHES, payload));
            self.made += 1;
            if self.made == PASSES * BATCHES {
                self.leases.end(PASSES);
            }
        }
        let (depth, limits) = (self.leases.depth(), limits(0));
        assert!(depth.ready <= limits.queue_batches + 15, "seed {}: {depth:?}", self.seed);
    }

    /// Writes changes to the journal before any trainer hears of them.
    fn write_down(&mut self) {
        let changes = self.leases.take_records();
        changes.iter().for_each(|record| self.written.apply(record));
    }

    /// The hub is started anew: after an orderly end from its position, after a crash from what was written down before.
    fn restart(&mut self, stride: u32) {
        self.write_down();
        let is_last = self.below(2) == 0;
        if is_last || self.below(4) == 0 {
            self.written = Position::of(&self.leases, is_last);
        }
        let Position { start, acked, holders, .. } = self.written.clone();
        assert!(start.first <= acked.prefix() && start.pass == start.first / BATCHES, "seed {}", self.seed);
        assert_eq!((&acked, start), self.leases.position(), "seed {}", self.seed);
        self.made = acked.prefix();
        let feeds = self.feeding.feeds;
        self.leases = LeaseTable::new(LeaseLimits { feeds, ..limits(stride) }, 9, acked, start);
        self.leases.restore(self.now_us, &holders, is_last);
        self.written.is_last = false;
        self.written.later.clear();
        self.feeding.under_way.clear();
        if self.made == PASSES * BATCHES {
            self.leases.end(PASSES);
        }
        self.trainers.iter_mut().for_each(|trainer| trainer.connection = None);
        self.restarts += 1;
    }

    fn subscribe(&mut self, at: usize, ranked: bool) -> u64 {
        self.connections += 1;
        let held: Vec<u64> = self.trainers[at].held.iter().copied().collect();
        let name = format!("trainer {at}");
        let request = Subscribe {
            trainer: &name,
            instance: 1,
            stream: 9,
            window: 4,
            rank: ranked.then_some(at as u32),
            held: &held,
        };
        let admitted = self.leases.subscribe(self.connections, &request).expect("there is room");
        for number in admitted.late {
            let trainer = &mut self.trainers[at];
            assert!(trainer.held.remove(&number));
            trainer.unsure.remove(&number);
            self.late += 1;
        }
        self.trainers[at].connection = Some(self.connections);
        self.connections
    }

    fn step(&mut self, at: usize, stride: u32) {
        self.write_down();
        self.now_us += self.below(20);
        self.leases.expire(self.now_us);
        self.make();
        self.feed();
        match self.below(60) {
            // It dies and comes back with nothing; the hub may see the end of the connection before or after.
            0 | 1 => {
                let connection = self.trainers[at].connection;
                self.trainers[at] = Model::default();
                if let Some(connection) = connection.filter(|_| self.draws.is_multiple_of(2)) {
                    self.leases.disconnect(self.now_us, connection);
                }
            }
            // Its connection breaks; it may be gone for long.
            2 | 3 => {
                if let Some(connection) = self.trainers[at].connection.take() {
                    self.leases.disconnect(self.now_us, connection);
                }
                self.now_us += self.below(200);
            }
            4 if self.below(3) == 0 => self.restart(stride),
            40..42 => self.unsubscribe(at),
            42..44 => self.ask_for_keys(at),
            5..40 => self.ask(at, stride > 0),
            _ => {}
        }
    }

    /// It leaves in an orderly way, saying what it has used; its farewell may be lost, and it may be back later.
    fn unsubscribe(&mut self, at: usize) {
        let Some(connection) = self.trainers[at].connection.take() else { return };
        let trainer = std::mem::take(&mut self.trainers[at]);
        if self.below(8) == 0 {
            self.leases.disconnect(self.now_us, connection);
            return;
        }
        // It repeats acknowledgements without an answer.
        let some = self.below(trainer.held.len() as u64 + 1) as usize;
        let used: Vec<u64> = trainer.held.iter().take(some).chain(&trainer.unsure).copied().collect();
        let used: Vec<u64> = used.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        let Some((late, left)) = self.leases.leave(connection, &used) else {
            panic!("seed {}: it is subscribed", self.seed);
        };
        for number in used {
            let is_sure = !trainer.unsure.contains(&number);
            if late.contains(&number) {
                assert!(is_sure || self.restarts > 0, "seed {}: {number}", self.seed);
                self.late += 1;
            } else if is_sure {
                *self.used.entry(number).or_default() += 1;
            }
        }
        self.farewells += u32::from(left > 0);
        // Nothing is kept for it, and its connection is worth nothing.
        let name = format!("trainer {at}");
        let kept = self.leases.trainers.iter().find(|it| it.name == name);
        assert!(kept.is_some_and(|it| it.expired && it.leased.is_empty() && it.to_redeliver.is_empty()));
        assert!(
            self.leases.next(connection, true, &[]).is_none() && self.leases.leave(connection, &[]).is_none()
        );
        self.leases.disconnect(self.now_us, connection);
    }

    fn ask(&mut self, at: usize, ranked: bool) {
        let connection = match self.trainers[at].connection {
            Some(connection) => connection,
            None => self.subscribe(at, ranked),
        };
        let used: Vec<u64> = self.trainers[at].held.iter().copied().collect();
        let used = &used[..self.below(used.len() as u64 + 1) as usize];
        let Some((late, answer)) = self.leases.next(connection, true, used) else {
            panic!("seed {}: it is subscribed", self.seed);
        };
        let answer = self.check_fed(answer);
        let lost = self.below(20) == 0;
        for &number in used {
            let trainer = &mut self.trainers[at];
            let is_sure = !trainer.unsure.remove(&number);
            if late.contains(&number) {
                // One that is said again is no second use, and not late.
                assert!(is_sure, "seed {}: {number}", self.seed);
                self.late += 1;
            } else if is_sure {
                *self.used.entry(number).or_default() += 1;
            }
            if lost && !late.contains(&number) {
                trainer.unsure.insert(number);
            } else {
                trainer.held.remove(&number);
            }
        }
        if let Answer::Batch { number, batch } = &answer {
            assert_eq!(batch.payload[0], *number as u8, "seed {}", self.seed);
            assert_eq!(batch.pass, number / BATCHES);
            assert!(!ranked || number % 3 == at as u64);
            assert!(!self.used.contains_key(number), "seed {}: {number} again", self.seed);
        }
        match answer {
            // The answer is lost with the connection.
            _ if lost => {
                self.trainers[at].connection = None;
                self.leases.disconnect(self.now_us, connection);
            }
            Answer::Batch { number, .. } => {
                assert!(self.trainers[at].held.insert(number), "seed {}: {number} twice", self.seed);
                assert!(self.trainers[at].held.difference(&self.trainers[at].unsure).count() <= 4);
            }
            Answer::Over => self.trainers[at].over = true,
            Answer::Wait => {}
            other => panic!("{other:?}"),
        }
    }
}

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..400,
    }
}

#[test]
fn each_minibatch_is_acknowledged_once_whatever_the_trainers_do() {
    let (mut restarts, mut late, mut farewells) = (0, 0, 0);
    let (mut again, mut full_batches, mut waits) = (0, 0, 0);
    for seed in seeds() {
        let stride = if seed % 2 == 0 { 0 } else { 3 };
        let mut world = World::new(seed, stride, seed % 4 > 1);
        let mut steps = 0;
        while !world.trainers.iter().all(|trainer| trainer.over) {
            let at = world.below(3) as usize;
            world.step(at, stride);
            steps += 1;
            assert!(steps < 100_000, "seed {seed}: it never ends: {:?}", world.leases);
        }
        let all: Vec<(u64, u32)> = (0..PASSES * BATCHES).map(|number| (number, 1)).collect();
        assert_eq!(world.used.into_iter().collect::<Vec<_>>(), all, "seed {seed}");
        let depth = world.leases.depth();
        assert_eq!(
            (depth.ready_bytes, depth.unacknowledged_bytes, depth.acknowledged),
            (0, 0, PASSES * BATCHES)
        );
        assert_eq!((depth.ready, depth.unacknowledged), (0, 0), "seed {seed}");
        assert_eq!(world.leases.position().1, PassStart { pass: PASSES, first: PASSES * BATCHES });
        (restarts, late) = (restarts + world.restarts, late + world.late);
        farewells += world.farewells;
        again += world.feeding.again;
        (full_batches, waits) = (full_batches + world.feeding.full_batches, waits + world.feeding.waits);
    }
    let seen = [restarts, late, farewells, again, full_batches, waits];
    assert!(std::env::var("SEED").is_ok() || !seen.contains(&0), "{seen:?}");
}

fn leases(stride: u32) -> LeaseTable {
    LeaseTable::new(limits(stride), 9, AckSet::default(), PassStart::default())
}

fn subscribe<'a>(trainer: &'a str, rank: Option<u32>, stream: u64, held: &'a [u64]) -> Subscribe<'a> {
    Subscribe { trainer, instance: 1, stream, window: 4, rank, held }
}

#[test]
fn what_was_given_away_is_late() {
    let mut leases = leases(0);
    leases.offer(minibatch(0, vec![1]));
    leases.subscribe(1, &subscribe("a", None, 0, &[])).unwrap();
    leases.subscribe(2, &subscribe("b", None, 0, &[])).unwrap();
    let number = |answer: Option<(Vec<u64>, Answer)>| match answer {
        Some((late, Answer::Batch { number, .. })) => (late, Some(number)),
        Some((late, _)) => (late, None),
        None => panic!("not subscribed"),
    };
    assert_eq!(number(leases.next(1, true, &[])), (vec![], Some(0)));
    leases.disconnect(0, 1);
    assert_eq!(leases.expire(299), []);
    assert_eq!(number(leases.next(2, true, &[])), (vec![], None));
    assert_eq!(leases.expire(300), [("a".to_owned(), 1)]);
    assert_eq!(number(leases.next(2, true, &[])), (vec![], Some(0)));
    assert_eq!(leases.subscribe(3, &subscribe("a", None, 9, &[0])).unwrap().late, [0]);
    assert_eq!(number(leases.next(3, false, &[0])), (vec![0], None));
    assert_eq!(number(leases.next(2, false, &[0])), (vec![], None));
    // Said again, as by one who did not hear the answer; and by one who has nothing to do with it.
    assert_eq!(number(leases.next(2, false, &[0])), (vec![], None));
    assert_eq!(number(leases.next(3, false, &[0, 77])), (vec![0, 77], None));
    let counts: Vec<_> =
        leases.trainers().map(|(name, _, counts)| (name, counts.late, counts.stalls)).collect();
    assert_eq!(counts, [("a", 3, 0), ("b", 0, 1)]);
}

/// Asks for a minibatch; returns the late acknowledgements and the new lease.
fn ask(leases: &mut LeaseTable, connection: u64, used: &[u64]) -> (Vec<u64>, Option<u64>) {
    match leases.next(connection, true, used) {
        Some((late, Answer::Batch { number, .. })) => (late, Some(number)),
        Some((late, _)) => (late, None),
        None => panic!("not subscribed"),
    }
}

/// Two trainers have two minibatches each when the hub is started anew, from a position that was written before they were handed
/// any, or at the end.
#[test]
fn what_trainers_have_stays_theirs_when_the_hub_is_started_anew() {
    let offer = |leases: &mut LeaseTable, numbers: std::ops::Range<u8>| {
        numbers.for_each(|number| leases.offer(minibatch(0, vec![number])));
    };
    for (is_last, b_is_lost) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut before = leases(0);
        offer(&mut before, 0..6);
        before.subscribe(1, &subscribe("a", None, 0, &[])).unwrap();
        before.subscribe(2, &subscribe("b", None, 0, &[])).unwrap();
        let known = before.holders();
        for number in 0..4 {
            assert_eq!(ask(&mut before, 1 + number % 2, &[]), (vec![], Some(number)));
        }
        let known = if is_last { before.holders() } else { known };

        let mut leases = leases(0);
        leases.restore(0, &known, is_last);
        offer(&mut leases, 0..6);
        assert_eq!(leases.subscribe(1, &subscribe("a", None, 9, &[0, 2])).unwrap().late, [0; 0]);
        // Where it is not known what b has, nothing is handed out before it is back, or is lost.
        let (first, then) = if is_last { (Some(4), Some(5)) } else { (None, Some(4)) };
        assert_eq!(ask(&mut leases, 1, &[0]), (vec![], first));
        if b_is_lost {
            assert_eq!(leases.expire(299), []);
            let lost = leases.expire(300);
            assert_eq!(lost, if is_last { vec![("b".to_owned(), 2)] } else { vec![] });
            assert_eq!(ask(&mut leases, 1, &[2]), (vec![], Some(1)));
        } else {
            assert_eq!(leases.subscribe(2, &subscribe("b", None, 9, &[1, 3])).unwrap().late, [0; 0]);
            assert_eq!(ask(&mut leases, 1, &[2]), (vec![], then));
            assert!(ask(&mut leases, 2, &[1, 3]).0.is_empty());
        }
    }
}

#[test]
fn what_a_trainer_has_when_it_says_farewell_others_get_at_once() {
    let mut leases = leases(0);
    for number in 0..3 {
        leases.offer(minibatch(0, vec![number]));
    }
    leases.end(1);
    leases.subscribe(1, &subscribe("a", None, 0, &[])).unwrap();
    leases.subscribe(2, &subscribe("b", None, 0, &[])).unwrap();
    let batch = |answer: Option<(Vec<u64>, Answer)>| match answer {
        Some((_, Answer::Batch { number, .. })) => Some(number),
        _ => None,
    };
    for number in 0..3 {
        assert_eq!(batch(leases.next(1, true, &[])), Some(number));
    }
    assert_eq!(batch(leases.next(2, true, &[])), None);
    // The one that it has used is done, one that it never had is late, and the other two are handed on.
    assert_eq!(leases.leave(1, &[1, 7]), Some((vec![7], 2)));
    assert_eq!(leases.leave(1, &[]), None);
    assert_eq!(batch(leases.next(2, true, &[])), Some(0));
    assert_eq!(batch(leases.next(2, true, &[])), Some(2));
    assert_eq!(leases.next(2, true, &[0, 2]), Some((vec![], Answer::Over)));
    // Trainers that left are not waited for.
    assert_eq!(leases.completion(), Completion::Told);
    assert_eq!(leases.leave(2, &[]), Some((vec![], 0)));
    assert_eq!(leases.completion(), Completion::Left);
    // It may come back.
    leases.subscribe(3, &subscribe("a", None, 9, &[])).unwrap();
    assert_eq!(leases.next(3, true, &[]), Some((vec![], Answer::Over)));
}

#[test]
fn a_rank_that_left_is_free_and_each_rank_ends_by_itself() {
    let mut leases = leases(2);
    for number in 0..3 {
        leases.offer(minibatch(0, vec![number]));
    }
    leases.subscribe(1, &subscribe("a", Some(0), 0, &[])).unwrap();
    leases.subscribe(2, &subscribe("b", Some(1), 0, &[])).unwrap();
    assert!(matches!(leases.next(2, true, &[]), Some((_, Answer::Batch { number: 1, .. }))));
    assert_eq!(leases.next(2, true, &[1]), Some((vec![], Answer::Wait)), "more may come");
    leases.end(1);
    assert_eq!(leases.next(2, true, &[]), Some((vec![], Answer::Over)), "0 and 2 are not for it");
    assert_eq!(leases.completion(), Completion::No);
    assert!(matches!(leases.next(1, true, &[]), Some((_, Answer::Batch { number: 0, .. }))));
    assert_eq!(leases.leave(1, &[]), Some((vec![], 1)));
    leases.subscribe(3, &subscribe("c", Some(0), 0, &[])).unwrap();
    assert!(matches!(leases.next(3, true, &[]), Some((_, Answer::Batch { number: 0, .. }))));
    assert!(matches!(leases.next(3, true, &[0]), Some((_, Answer::Batch { number: 2, .. }))));
    assert_eq!(leases.next(3, true, &[2]), Some((vec![], Answer::Over)));
    assert_eq!(leases.position().0.prefix(), 3);
}

#[test]
fn who_may_not_subscribe_is_told_why() {
    let mut leases = leases(2);
    for (name, rank, expected) in [
        ("a", None, Err("set the rank of this trainer")),
        ("a", Some(2), Err("rank 2: must be 0 to 1")),
        ("a", Some(0), Ok(())),
        ("b", Some(0), Err("rank 0 is taken by trainer \"a\"")),
        ("b", Some(1), Ok(())),
        ("b", Some(0), Err("rank 0 is taken by trainer \"a\"")),
    ] {
        let found = leases.subscribe(1, &subscribe(name, rank, 0, &[]));
        match (found, expected) {
            (Ok(_), Ok(())) => {}
            (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
            (found, expected) => panic!("{name} {rank:?}: {found:?} is not {expected:?}"),
        }
    }
    // One of another stream sees that it is not subscribed.
    assert!(leases.subscribe(7, &subscribe("c", Some(0), 8, &[5])).is_ok());
    assert!(leases.next(7, true, &[]).is_none());
}

#[test]
fn a_hub_ends_when_all_know() {
    let mut leases = leases(0);
    assert_eq!(leases.completion(), Completion::No);
    leases.end(1);
    assert_eq!((leases.is_over(), leases.completion()), (true, Completion::Unasked));
    leases.subscribe(1, &subscribe("a", None, 0, &[])).unwrap();
    leases.subscribe(2, &subscribe("b", None, 0, &[])).unwrap();
    assert_eq!(leases.next(1, true, &[]), Some((vec![], Answer::Over)));
    assert_eq!(leases.completion(), Completion::No);
    leases.disconnect(0, 2);
    leases.expire(300);
    assert_eq!(leases.completion(), Completion::Told);
    leases.fail("the disk is gone");
    leases.fail("and so on");
    assert_eq!(leases.next(1, true, &[]), Some((vec![], Answer::Failed("the disk is gone".into()))));
    leases.disconnect(300, 1);
    assert_eq!(leases.completion(), Completion::Left);
}
