//! Trainers of a hub that feeds keys: every lease has a number of its own at the servers, and no stale feeding is
//! used.

use super::*;
use crate::service::leases::feeding::FRESH;

#[derive(Default)]
pub(super) struct World {
    pub(super) feeds: bool,
    /// Minibatches taken from the lease table to be fed.
    pub(super) under_way: Vec<u64>,
    batches: u64,
    /// Numbers at the servers that were handed out.
    leased: BTreeSet<u64>,
    /// By minibatch, how often it was handed out.
    times: BTreeMap<u64, u32>,
    /// Minibatches that were handed out and fed again for others.
    pub(super) again: u32,
    pub(super) full_batches: u32,
    /// Keys of minibatches that were being made once more.
    pub(super) waits: u32,
}

impl World {
    pub(super) fn new(feeds: bool) -> World {
        World { feeds, ..World::default() }
    }
}

fn fed(batch: u64, number: u64, at_us: u64) -> Fed {
    // Now and then the servers are of no use.
    let columns = if number % 7 == 3 { vec![] } else { vec![0] };
    let keys = columns.iter().map(|_| 1).collect();
    Fed { batch, columns, placement_version: 0, servers: 1, keys, bytes: number as usize, at_us }
}

impl super::World {
    pub(super) fn feed(&mut self) {
        if !self.feeding.feeds {
            assert_eq!(self.leases.next_to_feed(9), []);
            return;
        }
        if self.below(40) == 0 {
            // No trainer asked for a long time.
            self.now_us += FRESH.as_micros() as u64;
            self.leases.expire(self.now_us);
        }
        let most = self.below(4) as usize;
        let next = self.leases.next_to_feed(most);
        assert!(next.len() <= most);
        for (number, batch) in next {
            assert_eq!(batch.payload[0], number as u8);
            assert!(!self.feeding.under_way.contains(&number), "seed {}: {number} twice", self.seed);
            self.feeding.under_way.push(number);
        }
        for _ in 0..self.below(4) {
            let Some(number) = self.feeding.under_way.pop() else { break };
            self.feeding.batches += 1;
            self.leases.fed(number, fed(self.feeding.batches, number, self.now_us));
        }
    }

    /// Each lease has a feeding of its own.
    pub(super) fn check_fed(&mut self, answer: Answer) -> Answer {
        let feeding = &mut self.feeding;
        match answer {
            Answer::Fed { number, batch, fed, age_us } => {
                assert!(feeding.feeds && fed.bytes == number as usize && fed.columns == [0]);
                assert!(age_us < FRESH.as_micros() as u64, "seed {}: {number} is {age_us} us old", self.seed);
                assert!(feeding.leased.insert(fed.batch), "seed {}: {} again", self.seed, fed.batch);
                let times = feeding.times.entry(number).or_default();
                *times += 1;
                feeding.again += u32::from(*times > 1);
                Answer::Batch { number, batch }
            }
            Answer::Batch { number, batch } => {
                assert!(!feeding.feeds || number % 7 == 3, "seed {}: {number} was not fed", self.seed);
                Answer::Batch { number, batch }
            }
            other => other,
        }
    }

    /// A trainer needs the keys of what it has; of what it does not have it gets none.
    pub(super) fn ask_for_keys(&mut self, at: usize) {
        let trainer = &self.trainers[at];
        let Some(connection) = trainer.connection else { return };
        let sure = trainer.held.difference(&trainer.unsure).next().copied();
        let other = (0..PASSES * BATCHES).find(|number| !trainer.held.contains(number));
        if let Some(number) = sure {
            match self.leases.keys(connection, number) {
                Some(Answer::Batch { number: found, batch }) => {
                    assert_eq!((found, batch.payload[0]), (number, number as u8));
                    self.feeding.full_batches += 1;
                }
                Some(Answer::Wait) => self.feeding.waits += 1,
                other => panic!("seed {}: {number}: {other:?}", self.seed),
            }
        }
        if let Some(number) = other {
            assert_eq!(self.leases.keys(connection, number), Some(Answer::Nothing), "seed {}", self.seed);
        }
        assert_eq!(self.leases.keys(u64::MAX, 0), None);
    }
}

#[test]
fn nothing_is_fed_before_there_is_a_trainer_or_that_is_in_somebodys_hands() {
    let mut leases =
        LeaseTable::new(LeaseLimits { feeds: true, ..limits(0) }, 9, AckSet::default(), PassStart::default());
    for number in 0..3 {
        leases.offer(minibatch(0, vec![number]));
    }
    assert_eq!(leases.next_to_feed(9), []);
    // It has the first one from before the hub's start.
    leases.subscribe(1, &subscribe("a", None, 9, &[0])).unwrap();
    let next: Vec<u64> = leases.next_to_feed(9).into_iter().map(|(number, _)| number).collect();
    assert_eq!(next, [1, 2]);
    assert_eq!(leases.next(1, true, &[]), Some((vec![], Answer::Wait)), "it is not fed yet");
    assert_eq!(leases.next_to_feed(9), [], "it is under way");
    leases.fed(1, fed(7, 1, 0));
    let Some((_, Answer::Fed { number: 1, fed: first, age_us: 0, .. })) = leases.next(1, true, &[]) else {
        panic!("it is fed")
    };
    assert_eq!(first.batch, 7);
    // The one that was fed first is old by now.
    leases.fed(2, fed(8, 2, 0));
    let later = FRESH.as_micros() as u64;
    assert_eq!(leases.expire(later), []);
    assert_eq!(leases.next(1, true, &[]), Some((vec![], Answer::Wait)));
    assert_eq!(leases.next_to_feed(9).len(), 1);
    leases.fed(2, fed(9, 2, later));
    let Some((_, Answer::Fed { number: 2, fed: second, .. })) = leases.next(1, true, &[]) else {
        panic!("it is fed again")
    };
    assert_eq!(second.batch, 9);
    // A lost lease is fed again under another number.
    leases.subscribe(2, &subscribe("a", None, 9, &[0, 2])).unwrap();
    assert_eq!(leases.next(2, true, &[]), Some((vec![], Answer::Wait)));
    let next: Vec<u64> = leases.next_to_feed(9).into_iter().map(|(number, _)| number).collect();
    assert_eq!(next, [1]);
    leases.fed(1, fed(10, 1, later));
    let Some((_, Answer::Fed { number: 1, fed: third, .. })) = leases.next(2, true, &[]) else {
        panic!("it is owed")
    };
    assert_eq!(third.batch, 10);
}
