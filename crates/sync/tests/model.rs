//! Workers that die, come back, and send things twice, at two places at once: whatever happens, each step is applied once at
//! each place, from the same parts at both, and when everybody lives the job comes to its end. Knows no network.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::collections::BTreeMap;

use proptest::prelude::*;
use sanderling_sync::{Budget, Complete, Gradients, Group, Part, Progress, Refused, Said, Uneven, Who};

const WORKERS: u32 = 3;
const PLACES: usize = 2;

/// What may come twice.
#[derive(Debug, Clone)]
enum Message {
    Part { who: Who, step: u64, number: u32, part: Part },
    Say { who: Who, step: u64, said: Said },
}

#[derive(Debug)]
struct Place {
    group: Group<Uneven>,
    /// What was decided and is not applied yet.
    under_way: Option<Complete>,
    /// Per step: the attempt of each worker whose part it was, and how many messages that had.
    applied: Vec<BTreeMap<u32, (u32, u32)>>,
    sent: Vec<Message>,
}

impl Place {
    fn new() -> Place {
        let group = Group::new(WORKERS, Budget::new(1 << 20)).unwrap();
        Place { group, under_way: None, applied: Vec::new(), sent: Vec::new() }
    }

    fn send(&mut self, message: Message) -> Result<Option<Progress>, Refused<Uneven>> {
        self.sent.push(message.clone());
        match message {
            Message::Part { who, step, number, part } => {
                self.group.take(who, step, number, part).map(|()| None)
            }
            Message::Say { who, step, said } => self.group.say(who, step, said).map(Some),
        }
    }

    fn begin(&mut self) {
        if let Some(complete) = self.group.begin() {
            assert!(self.under_way.replace(complete).is_none(), "two steps at once");
        }
    }

    fn end(&mut self) {
        let Some(mut complete) = self.under_way.take() else { return };
        assert_eq!(complete.step(), self.applied.len() as u64 + 1, "not the next step");
        let mut parts = BTreeMap::new();
        complete
            .each(|sums| {
                for (&key, &gradient) in sums.keys.iter().zip(sums.gradients) {
                    let (worker, attempt) = (key as u32 >> 16, key as u32 & 0xffff);
                    let step = (key >> 32) & 0xffff;
                    assert_eq!(step, self.applied.len() as u64 + 1, "a part of another step");
                    assert_eq!(gradient, 1.0, "a message counts twice");
                    let (of, messages) = parts.entry(worker).or_insert((attempt, 0));
                    assert_eq!(*of, attempt, "parts of two attempts");
                    *messages += 1;
                }
                Ok::<(), Uneven>(())
            })
            .unwrap();
        self.applied.push(parts);
        self.group.end(complete, Ok(()));
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Look { place: usize, decided: [(u64, u32); PLACES] },
    Recover { place: usize, last: (u64, u32), decided: [(u64, u32); PLACES] },
    Push { place: usize, number: u32 },
    Vote { place: usize },
    Wait { place: usize },
}

#[derive(Debug)]
struct Worker {
    who: Who,
    step: u64,
    phase: Phase,
}

/// Depends on the attempt, as what a worker computes anew may.
fn messages(who: Who, step: u64, place: usize) -> u32 {
    (u64::from(who.worker) + 3 * u64::from(who.attempt) + 5 * step + place as u64) as u32 % 4
}

impl Worker {
    fn new(worker: u32, attempt: u32) -> Worker {
        let who = Who { worker, workers: WORKERS, attempt };
        Worker { who, step: 0, phase: Phase::Look { place: 0, decided: [(0, 0); PLACES] } }
    }

    /// Does one thing.
    fn go_on(&mut self, places: &mut [Place]) {
        let (who, step) = (self.who, self.step);
        let mut say =
            |place: usize, step, said| places[place].send(Message::Say { who, step, said }).unwrap().unwrap();
        self.phase = match self.phase {
            Phase::Look { place, mut decided } => {
                let progress = say(place, 0, Said::Nothing);
                decided[place] = (progress.decided, progress.attempt);
                if place + 1 < PLACES {
                    Phase::Look { place: place + 1, decided }
                } else {
                    let last = decided.into_iter().max_by_key(|(step, _)| *step).unwrap();
                    Phase::Recover { place: 0, last, decided }
                }
            }
            Phase::Recover { place, last, decided } => {
                let (step, attempt) = last;
                let is_behind = decided[place].0 < step;
                let said = if is_behind { Said::WholeBefore { attempt } } else { Said::Nothing };
                match say(place, step, said).applied >= step {
                    false => self.phase,
                    true if place + 1 < PLACES => Phase::Recover { place: place + 1, last, decided },
                    true => {
                        self.step = step + 1;
                        Phase::Push { place: 0, number: 0 }
                    }
                }
            }
            Phase::Push { place, number } if number < messages(who, step, place) => {
                let key = u64::from(number) << 48 | step << 32 | u64::from(who.worker << 16 | who.attempt);
                let gradients = Gradients::Single(vec![1.0]);
                let part =
                    Part { table: 1, lr_scale: 1.0, dim: 1, keys: vec![key], counts: vec![1], gradients };
                places[place].send(Message::Part { who, step, number, part }).unwrap();
                Phase::Push { place, number: number + 1 }
            }
            Phase::Push { place, .. } if place + 1 < PLACES => Phase::Push { place: place + 1, number: 0 },
            Phase::Push { .. } => Phase::Vote { place: 0 },
            Phase::Vote { place } => {
                say(place, step, Said::Whole { messages: messages(who, step, place) });
                if place + 1 < PLACES { Phase::Vote { place: place + 1 } } else { Phase::Wait { place: 0 } }
            }
            Phase::Wait { place } => {
                let whole = Said::Whole { messages: messages(who, step, place) };
                match say(place, step, whole).applied >= step {
                    false => self.phase,
                    true if place + 1 < PLACES => Phase::Wait { place: place + 1 },
                    true => {
                        self.step += 1;
                        Phase::Push { place: 0, number: 0 }
                    }
                }
            }
        };
    }
}

#[derive(Debug, Clone, Copy)]
enum Deed {
    GoOn(usize),
    Die(usize),
    Begin(usize),
    End(usize),
    Repeat(usize, usize),
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        24 => (0..WORKERS as usize).prop_map(Deed::GoOn),
        1 => (0..WORKERS as usize).prop_map(Deed::Die),
        4 => (0..PLACES).prop_map(Deed::Begin),
        4 => (0..PLACES).prop_map(Deed::End),
        4 => (0..PLACES, 0..1000_usize).prop_map(|(place, back)| Deed::Repeat(place, back)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn each_step_is_applied_once_and_from_the_same_parts_everywhere(
        deeds in proptest::collection::vec(deed(), 0..600)
    ) {
        let mut places: Vec<Place> = (0..PLACES).map(|_| Place::new()).collect();
        let mut workers: Vec<Worker> = (0..WORKERS).map(|worker| Worker::new(worker, 0)).collect();
        for deed in deeds {
            match deed {
                Deed::GoOn(worker) => workers[worker].go_on(&mut places),
                Deed::Die(worker) => {
                    workers[worker] = Worker::new(worker as u32, workers[worker].who.attempt + 1);
                }
                Deed::Begin(place) => places[place].begin(),
                Deed::End(place) => places[place].end(),
                Deed::Repeat(place, back) => {
                    let sent = &places[place].sent;
                    if let Some(message) = sent.len().checked_sub(1 + back % 12).map(|at| sent[at].clone()) {
                        // Of a process that is dead, it is refused.
                        let _ = places[place].send(message);
                        places[place].sent.pop();
                    }
                }
            }
        }
        // Now everybody lives.
        let target = places.iter().map(|place| place.applied.len()).max().unwrap() + 3;
        for _ in 0..600 {
            workers.iter_mut().for_each(|worker| worker.go_on(&mut places));
            places.iter_mut().for_each(|place| { place.begin(); place.end(); });
        }
        let steps = places.iter().map(|place| place.applied.len()).min().unwrap();
        prop_assert!(steps >= target, "stuck at {} of {}: {:?}", steps, target, workers);
        for step in 0..steps {
            for worker in 0..WORKERS {
                let of = |place: usize| places[place].applied[step].get(&worker);
                for place in 0..PLACES {
                    // All messages of one attempt, or none where it had none.
                    if let Some(&(attempt, found)) = of(place) {
                        let who = Who { worker, workers: WORKERS, attempt };
                        prop_assert_eq!(found, messages(who, step as u64 + 1, place));
                    }
                }
                if let (Some((one, _)), Some((other, _))) = (of(0), of(1)) {
                    prop_assert_eq!(one, other, "step {} of worker {}", step + 1, worker);
                }
            }
        }
    }
}
