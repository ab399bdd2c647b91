//! The coordinator with simulated workers, over connections that keep the order but not the time; workers die at
//! random.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::control_msg::{ALL, ControlMsg, JOB, LEFT, Loss};
use super::super::owner::owner;
use super::{Coordinator, Note};

const TURNS: u64 = 3;
const UNITS: u64 = 23;
const WAIT: u32 = 4;
const SILENCE_US: u64 = 1_000;

/// A worker as [`super::super::share_of_lost::Owned`] is one.
struct Model {
    lives: bool,
    turn: u64,
    losses: Vec<Loss>,
    known: Vec<Loss>,
    is_first: bool,
    todo: VecDeque<u64>,
    /// It has said that it is done.
    waits: bool,
    turns_over: u64,
    is_over: bool,
}

/// A message of a worker, with the unit that was done before it.
type Up = (ControlMsg, Option<(u64, u64)>);

struct World {
    coordinator: Coordinator,
    workers: Vec<Model>,
    up: Vec<VecDeque<Up>>,
    down: Vec<VecDeque<ControlMsg>>,
    /// How often each unit of each turn was done for good.
    done: Vec<Vec<u32>>,
    deaths: usize,
}

impl World {
    fn new(workers: u32) -> World {
        let model = || Model {
            lives: true,
            turn: 0,
            losses: Vec::new(),
            known: Vec::new(),
            is_first: true,
            todo: VecDeque::new(),
            waits: false,
            turns_over: 0,
            is_over: false,
        };
        let mut world = World {
            coordinator: Coordinator::new(workers, SILENCE_US, true, WAIT, 0),
            workers: (0..workers).map(|_| model()).collect(),
            up: vec![VecDeque::new(); workers as usize],
            down: vec![VecDeque::new(); workers as usize],
            done: vec![vec![0; UNITS as usize]; TURNS as usize],
            deaths: 0,
        };
        (0..workers as usize).for_each(|worker| world.read(worker, None));
        world
    }

    /// Fills the list of what a worker is to do.
    fn read(&mut self, at: usize, before: Option<&[Loss]>) {
        let workers = self.workers.len() as u32;
        let model = &mut self.workers[at];
        model.is_first = before.is_none();
        let mine = |losses: &[Loss], unit| owner(workers, losses, model.turn, unit) == Some(at as u32);
        let wanted =
            |&unit: &u64| mine(&model.known, unit) && before.is_none_or(|before| !mine(before, unit));
        // After the last turn there is nothing to do.
        let units = if model.turn < TURNS { UNITS } else { 0 };
        model.todo = (0..units).filter(wanted).collect();
    }

    fn work(&mut self, at: usize) {
        let model = &mut self.workers[at];
        if !model.lives || model.is_over {
            return;
        }
        if model.waits && model.turn < TURNS && model.turns_over > model.turn {
            model.turn += 1;
            model.waits = false;
            let turn = model.turn;
            model.known = model.losses.iter().take_while(|loss| loss.turn < turn).copied().collect();
            self.read(at, None);
        } else if let Some(unit) = model.todo.pop_front() {
            self.done[model.turn as usize][unit as usize] += 1;
            let settled = if model.is_first { unit + 1 } else { ALL - 1 };
            let (stage, turn) = (0, model.turn);
            self.up[at]
                .push_back((ControlMsg::Alive { stage, for_us: 0, turn, settled }, Some((turn, unit))));
        } else if model.losses.len() > model.known.len() {
            let before = std::mem::replace(&mut model.known, model.losses.clone());
            model.waits = false;
            self.read(at, Some(&before));
        } else if !model.waits {
            model.waits = true;
            let turn = if model.turn == TURNS { JOB } else { model.turn };
            let losses = model.known.len() as u32;
            self.up[at].push_back((ControlMsg::TurnOver { turn, losses }, None));
        }
    }

    fn hear(&mut self, at: usize) {
        let Some(said) = self.down[at].pop_front() else { return };
        let model = &mut self.workers[at];
        match said {
            ControlMsg::TurnOver { turn: JOB, .. } => model.is_over = true,
            ControlMsg::TurnOver { turn, .. } => model.turns_over = turn + 1,
            ControlMsg::Lost { loss, losses, .. } => {
                model.losses.push(loss);
                assert_eq!(losses as usize, model.losses.len());
            }
            other => panic!("{other:?}"),
        }
    }

    fn tell(&mut self, at: usize) {
        if let Some((said, _)) = self.up[at].pop_front() {
            self.coordinator.heard(at as u32, said, 0);
            self.route();
        }
    }

    /// The reported units are done for good; the rest is unknown to the others.
    fn die(&mut self, at: usize, told: usize) {
        if at == 0 || !self.workers[at].lives {
            return;
        }
        self.workers[at].lives = false;
        self.deaths += 1;
        for _ in 0..told {
            self.tell(at);
        }
        for (turn, unit) in self.up[at].drain(..).filter_map(|(_, unit)| unit) {
            self.done[turn as usize][unit as usize] -= 1;
        }
        self.coordinator.gone(at as u32, "its connection has ended".to_owned());
        self.route();
    }

    /// The dead workers that the last group counts, except for workers that had reached the end of the job in it.
    fn awaited_in_vain(&self) -> Vec<usize> {
        let losses = &self.coordinator.losses;
        let is_in_vain = |&at: &usize| {
            !self.workers[at].lives
                && losses.iter().all(|loss| loss.worker != at as u32)
                && self.coordinator.seats[at].done != (JOB, losses.len() as u32)
        };
        (0..self.workers.len()).filter(is_in_vain).collect()
    }

    fn route(&mut self) {
        for said in self.coordinator.take_said() {
            self.down.iter_mut().for_each(|down| down.push_back(said.clone()));
        }
    }

    /// Lets all that live come to their ends, one of them slowly; these die when the first has come to the end of the job.
    fn finish(&mut self, slow: usize, mut late: Vec<usize>) {
        for round in 0..10_000 {
            if self.coordinator.seats.iter().any(|seat| seat.done.0 == JOB)
                && let Some(at) = late.pop()
            {
                self.die(at % self.workers.len(), 0);
            }
            for at in (0..self.workers.len()).filter(|&at| at != slow || round % 4 == 0) {
                self.work(at);
                self.tell(at);
                self.hear(at);
            }
            if self.workers.iter().all(|model| model.is_over || !model.lives) {
                return;
            }
        }
        panic!("stuck: {:?}", self.coordinator);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_unit_is_done_and_all_that_live_come_to_the_end(
        workers in 1_u32..5,
        events in prop::collection::vec((0_u8..40, 0_usize..5, 0_usize..4), 0..400),
        slow in 0_usize..5,
        late in prop::collection::vec(0_usize..5, 0..4),
    ) {
        let mut world = World::new(workers);
        for (what, at, told) in events {
            let at = at % workers as usize;
            match what {
                0 => world.die(at, told),
                1..16 => world.work(at),
                16..28 => world.tell(at),
                _ => world.hear(at),
            }
        }
        world.finish(slow, late);
        let counts = world.done.iter().flatten();
        prop_assert!(counts.clone().all(|&count| count >= 1), "{:?}", world.done);
        prop_assert!(world.deaths > 0 || counts.clone().all(|&count| count == 1), "{:?}", world.done);
        prop_assert_eq!(world.awaited_in_vain(), Vec::<usize>::new());
    }
}

#[test]
fn who_is_silent_is_lost_and_who_is_waited_for_is_named() {
    let alive = |stage, for_us| ControlMsg::Alive { stage, for_us, turn: 0, settled: 0 };
    for goes_on in [true, false] {
        let mut coordinator = Coordinator::new(3, SILENCE_US * 10_000, goes_on, WAIT, 0);
        for (now_us, waited_us, named) in [
            (1, 900_000, false),
            (2, 1_100_000, true),
            (3, 2_000_000, false),
            (4, 11_000_000, true),
            (5, 10, false),
        ] {
            coordinator.heard(0, alive(WAIT, waited_us), now_us);
            coordinator.heard(1, alive(WAIT, waited_us / 2), now_us);
            coordinator.heard(2, alive(1, 7), now_us);
            coordinator.tick(now_us);
            let note = Note::Straggler { worker: 2, stage: 1, is_silent: false, waited_us };
            assert_eq!(coordinator.take_notes(), if named { vec![note] } else { vec![] });
        }
        assert_eq!(coordinator.take_said(), []);
        let late_us = SILENCE_US * 10_000 + 4;
        coordinator.heard(2, alive(1, 7), late_us);
        coordinator.tick(late_us);
        assert_eq!(coordinator.take_said(), []);
        coordinator.tick(late_us + 2);
        let said = coordinator.take_said();
        let reason = "nothing was heard of it for 10.0 s".to_owned();
        let loss = Loss { worker: 1, turn: 0, settled: 0 };
        let expected = match goes_on {
            true => ControlMsg::Lost { losses: 1, loss, reason: reason.clone() },
            false => ControlMsg::Fail { worker: 1, reason: format!("it is lost: {reason}") },
        };
        assert_eq!(said, [expected]);
        assert_eq!(coordinator.take_notes(), [Note::Lost { worker: 1, stage: WAIT, reason, goes_on }]);
        assert!(!coordinator.is_here(1) && coordinator.is_here(2));
        // Reports of the others about it are no news.
        let loss = Loss { worker: 1, turn: 0, settled: 0 };
        coordinator.heard(2, ControlMsg::Lost { losses: 0, loss, reason: "closed".to_owned() }, late_us + 3);
        assert_eq!((coordinator.take_said(), coordinator.take_notes()), (vec![], vec![]));
    }
}

/// Only this worker can be the straggler, and its last report says that it waits.
#[test]
fn who_has_stopped_where_it_waited_is_named_before_it_is_lost() {
    let alive = |for_us| ControlMsg::Alive { stage: WAIT, for_us, turn: 0, settled: 0 };
    // When it is silent, and again when others have waited for ten times as long as is worth a word.
    for (silence_us, named_at_us) in
        [(5_000_000, &[1_900_000][..]), (30_000_000, &[3_000_000, 10_000_000][..])]
    {
        let mut coordinator = Coordinator::new(2, silence_us, true, WAIT, 0);
        coordinator.heard(1, alive(0), 0);
        let mut named = Vec::new();
        for now_us in (0..silence_us).step_by(100_000) {
            coordinator.heard(0, alive(now_us), now_us);
            coordinator.tick(now_us);
            named.extend(coordinator.take_notes());
        }
        let note = |&waited_us| Note::Straggler { worker: 1, stage: WAIT, is_silent: true, waited_us };
        assert_eq!(named, named_at_us.iter().map(note).collect::<Vec<_>>(), "{silence_us}");
    }
}

/// All have waited for what no worker does; the last words of some are a moment old when it is over.
#[test]
fn nobody_is_named_who_goes_on_a_moment_before_the_others() {
    let alive = |stage, for_us| ControlMsg::Alive { stage, for_us, turn: 0, settled: 0 };
    let mut coordinator = Coordinator::new(3, 30_000_000, true, WAIT, 0);
    for now_us in (0..2_000_000).step_by(100_000) {
        (0..3).for_each(|worker| coordinator.heard(worker, alive(WAIT, now_us), now_us));
        coordinator.tick(now_us);
    }
    coordinator.heard(0, alive(1, 0), 2_000_000);
    coordinator.tick(2_000_000);
    assert_eq!(coordinator.take_notes(), []);
}

#[test]
fn the_slowest_is_who_has_rows_left_and_lives_and_nobody_falls_behind_what_was_told() {
    let mut coordinator = Coordinator::new(3, SILENCE_US, true, WAIT, 0);
    let told = |coordinator: &mut Coordinator, from: u32, said: ControlMsg| {
        coordinator.heard(from, said, 0);
        coordinator.take_pace().map(|pace| {
            let others = |to| match coordinator.pace_for(to, pace) {
                ControlMsg::Pace { worker, turn, steps, others } => (worker, turn, steps, others),
                other => panic!("{other:?}"),
            };
            let (worker, turn, steps, of_first) = others(0);
            (worker, turn, steps, [of_first, others(1).3, others(2).3])
        })
    };
    let pace = |turn, steps| ControlMsg::Pace { worker: 0, turn, steps, others: 0 };
    let over = |turn, losses| ControlMsg::TurnOver { turn, losses };
    let alive = ControlMsg::Alive { stage: 0, for_us: 0, turn: 0, settled: 0 };
    assert_eq!(told(&mut coordinator, 0, alive.clone()), None);
    assert_eq!(told(&mut coordinator, 0, pace(0, 2)), Some((1, 0, 0, [0, 2, 2])));
    assert_eq!(told(&mut coordinator, 1, pace(0, 1)), Some((2, 0, 0, [1, 2, 3])));
    assert_eq!(told(&mut coordinator, 2, pace(0, 3)), Some((1, 0, 1, [4, 5, 3])));
    // Known and late reports are no news.
    assert_eq!(told(&mut coordinator, 2, pace(0, 3)), None);
    assert_eq!(told(&mut coordinator, 2, pace(0, 1)), None);
    // A worker that has done its part is no straggler.
    assert_eq!(told(&mut coordinator, 1, over(0, 0)), Some((0, 0, 2, [4, 5, 3])));
    // Nor who is lost. Who takes its rows over goes on from where the others are.
    coordinator.gone(0, "no".to_owned());
    coordinator.gone(2, "its connection has ended".to_owned());
    assert_eq!(told(&mut coordinator, 0, pace(0, 9)), Some((0, 0, 2, [4, 12, 10])));
    assert_eq!(told(&mut coordinator, 0, over(0, 1)), None);
    assert_eq!(told(&mut coordinator, 1, pace(0, 10)), Some((1, 0, 10, [13, 12, 19])));
    assert!(!coordinator.take_said().contains(&over(0, 1)));
    // The next turn begins anew.
    assert_eq!(told(&mut coordinator, 1, over(0, 1)), Some((0, 1, 0, [0, 0, 0])));
    assert!(coordinator.take_said().contains(&over(0, 1)));
    assert_eq!(told(&mut coordinator, 1, pace(1, 1)), Some((0, 1, 0, [1, 0, 1])));
}

#[test]
fn who_leaves_a_turn_is_waited_for_nowhere_and_may_be_turns_ahead() {
    let mut coordinator = Coordinator::new(3, SILENCE_US, true, WAIT, 0);
    let over = |turn, losses| ControlMsg::TurnOver { turn, losses };
    for (from, said) in
        [(1, over(0, LEFT)), (1, over(1, LEFT)), (0, over(0, LEFT)), (1, over(2, 0)), (1, over(0, LEFT))]
    {
        coordinator.heard(from, said, 0);
        assert_eq!(coordinator.take_said(), []);
    }
    // The lost worker was the straggler; a worker that left the pass takes over no rows.
    coordinator.gone(2, "its connection has ended".to_owned());
    let loss = Loss { worker: 2, turn: 0, settled: 0 };
    let lost = ControlMsg::Lost { losses: 1, loss, reason: "its connection has ended".to_owned() };
    assert_eq!(coordinator.take_said(), [lost]);
    coordinator.heard(1, over(2, 1), 0);
    assert_eq!(coordinator.take_said(), [over(0, 1)]);
    coordinator.heard(0, over(1, 1), 0);
    assert_eq!(coordinator.take_said(), [over(1, 1)]);
    coordinator.heard(0, over(2, LEFT), 0);
    assert_eq!(coordinator.take_said(), [over(2, 1)]);
    // No worker can have left all future passes.
    coordinator.heard(1, over(JOB, LEFT), 0);
    coordinator.heard(0, over(JOB, LEFT), 0);
    assert_eq!(coordinator.take_said(), []);
    coordinator.heard(0, over(JOB, 1), 0);
    coordinator.heard(1, over(JOB, 1), 0);
    assert_eq!(coordinator.take_said(), [over(JOB, 1)]);
}

/// A worker that dies after what others and it have said, and what is said then.
#[test]
fn who_dies_at_the_end_of_the_job_is_a_loss_for_those_who_need_a_group_without_it() {
    let over = |losses| ControlMsg::TurnOver { turn: JOB, losses };
    let lost = |losses, worker, settled| ControlMsg::Lost {
        losses,
        loss: Loss { worker, turn: 0, settled },
        reason: "its connection has ended".to_owned(),
    };
    let untold = |losses, worker| ControlMsg::Lost {
        losses,
        loss: Loss { worker, turn: 0, settled: ALL },
        reason: "it was gone when it had come to the end of the job".to_owned(),
    };
    enum Event {
        Ends(u32, u32),
        Dies(u32),
    }
    use Event::{Dies, Ends};
    let check = |goes_on, events: &[Event], expected: &[ControlMsg]| {
        let mut coordinator = Coordinator::new(4, SILENCE_US, goes_on, WAIT, 0);
        for event in events {
            match *event {
                Ends(worker, losses) => coordinator.heard(worker, over(losses), 0),
                Dies(worker) => coordinator.gone(worker, "its connection has ended".to_owned()),
            }
        }
        assert_eq!(coordinator.take_said(), expected);
    };
    // The worker is not needed any more.
    check(true, &[Ends(1, 0), Dies(1)], &[]);
    check(true, &[Ends(1, 0), Dies(1), Ends(2, 0), Ends(0, 0), Ends(3, 0)], &[over(0)]);
    // The surviving workers form a group without it when another one is lost, and it takes nothing over.
    check(true, &[Ends(1, 0), Dies(1), Dies(2)], &[untold(1, 1), lost(2, 2, 0)]);
    check(
        true,
        &[Ends(1, 0), Ends(3, 0), Dies(1), Dies(2), Dies(3), Ends(0, 3)],
        &[untold(1, 1), lost(2, 2, 0), lost(3, 3, ALL), over(3)],
    );
    // It was to come to the group without another one, and did not, or has.
    check(true, &[Ends(1, 0), Dies(2), Dies(1)], &[lost(1, 2, 0), lost(2, 1, ALL)]);
    check(true, &[Ends(1, 0), Dies(2), Ends(1, 1), Dies(1)], &[lost(1, 2, 0)]);
    // There will be no other group.
    check(false, &[Ends(1, 0), Dies(1)], &[]);
    let reason = "it is lost: its connection has ended".to_owned();
    check(false, &[Ends(1, 0), Dies(1), Dies(2)], &[ControlMsg::Fail { worker: 2, reason }]);
}

#[test]
fn who_cannot_reach_another_one_is_believed_and_without_the_first_one_it_is_lost_itself() {
    let check = |from: u32, of: u32, expected: Option<(u32, &str)>| {
        let mut coordinator = Coordinator::new(3, SILENCE_US, true, WAIT, 0);
        let report = Loss { worker: of, turn: 0, settled: 0 };
        coordinator.heard(from, ControlMsg::Lost { losses: 0, loss: report, reason: "broken".to_owned() }, 0);
        let lost = |(worker, reason): (u32, &str)| {
            let loss = Loss { worker, turn: 0, settled: 0 };
            ControlMsg::Lost { losses: 1, loss, reason: reason.to_owned() }
        };
        assert_eq!(coordinator.take_said(), Vec::from_iter(expected.map(lost)));
    };
    check(0, 1, Some((1, "worker 0 cannot reach it: broken")));
    check(2, 1, Some((1, "worker 2 cannot reach it: broken")));
    check(2, 0, Some((2, "it cannot reach worker 0: broken")));
    check(0, 0, None);
}

#[test]
fn who_is_stopped_is_no_loss_and_the_first_reason_is_the_one() {
    for goes_on in [true, false] {
        let mut coordinator = Coordinator::new(3, SILENCE_US, goes_on, WAIT, 0);
        // The sender counts, not the worker that the message names.
        coordinator.heard(1, ControlMsg::Stop { worker: 2 }, 0);
        coordinator.gone(1, "its connection has ended".to_owned());
        coordinator.heard(2, ControlMsg::Fail { worker: 2, reason: "late".to_owned() }, 0);
        coordinator.heard(0, ControlMsg::Stop { worker: 0 }, 0);
        coordinator.tick(2 * SILENCE_US);
        assert_eq!(coordinator.take_said(), [ControlMsg::Stop { worker: 1 }]);
        assert_eq!(coordinator.take_notes(), []);

        let mut coordinator = Coordinator::new(2, SILENCE_US, goes_on, WAIT, 0);
        let failed = ControlMsg::Fail { worker: 0, reason: "first".to_owned() };
        coordinator.heard(0, failed.clone(), 0);
        coordinator.heard(1, ControlMsg::Stop { worker: 1 }, 0);
        assert_eq!(coordinator.take_said(), [failed]);
        // When all have done all there is nothing to stop.
        let mut coordinator = Coordinator::new(1, SILENCE_US, goes_on, WAIT, 0);
        let over = ControlMsg::TurnOver { turn: JOB, losses: 0 };
        coordinator.heard(0, over.clone(), 0);
        coordinator.heard(0, ControlMsg::Stop { worker: 0 }, 0);
        assert_eq!(coordinator.take_said(), [over]);
    }
}
