//! The coordinator on rank 0: which workers live, which are lost and how far they were, and when all have done a
//! pass.
//!
//! A state machine: its inputs are messages and the time, its outputs messages to workers. It opens nothing and reads
//! no clock.

use super::control_msg::{ALL, ControlMsg, JOB, LEFT, Loss};

/// A straggler is logged after this time,
const WAITED_US: u64 = 1_000_000;
/// and again when it has taken this many times as long.
const WAITED_AGAIN: u64 = 10;

/// A worker silent for this long, or for this part of the silence limit, may have stopped in any stage and counts as
/// a straggler.
const SILENT_US: u64 = 3_000_000;
const SILENT_PART: (u64, u64) = (3, 8);

/// An observation of the coordinator, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Note {
    /// Others have waited for so long, and this worker does not, or says nothing.
    Straggler { worker: u32, stage: u32, is_silent: bool, waited_us: u64 },
    /// It was in this stage when it was last heard of.
    Lost { worker: u32, stage: u32, reason: String, goes_on: bool },
}

#[derive(Debug)]
struct Seat {
    is_lost: bool,
    /// It is lost after it had reached the end of the job, and the others were not told.
    is_untold: bool,
    heard_us: u64,
    /// It was named for its silence, which goes on.
    is_named: bool,
    stage: u32,
    for_us: u64,
    turn: u64,
    settled: u64,
    /// The last turn that it has done, counted from 1, with as many losses as it knew of.
    done: (u64, u32),
    /// Steps of its own that it has finished, and in which turn.
    pace: (u64, u64),
}

impl Seat {
    /// Whether it has nothing to do any more in a turn, as it is after so many losses.
    fn has_done(&self, turn: u64, losses: u32) -> bool {
        self.done.0 > turn && (self.done.1 == losses || self.done.1 == LEFT)
    }

    fn steps(&self, turn: u64) -> u64 {
        if self.pace.0 == turn { self.pace.1 } else { 0 }
    }
}

/// How far all are in a turn whose steps are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    turn: u64,
    /// The slowest of those who have not done the turn, and its steps: never fewer than were told before.
    slowest: u32,
    least: u64,
    /// Of all together.
    sum: u64,
}

/// See the top of this file. All times are microseconds on the caller's clock.
#[derive(Debug)]
pub(crate) struct Coordinator {
    seats: Vec<Seat>,
    silence_us: u64,
    /// Whether the others go on without a worker that is lost.
    goes_on: bool,
    /// The stage in which workers wait.
    wait: u32,
    losses: Vec<Loss>,
    /// Turns that all have done.
    turns: u64,
    is_over: bool,
    has_failed: bool,
    said: Vec<ControlMsg>,
    notes: Vec<Note>,
    /// The next straggler is logged after this wait.
    named_us: u64,
    /// Whether anybody counts steps, and what was told of it last.
    is_paced: bool,
    pace: Option<Pace>,
}

impl Coordinator {
    /// For so many workers, who are all there now.
    pub(crate) fn new(workers: u32, silence_us: u64, goes_on: bool, wait: u32, now_us: u64) -> Coordinator {
        let seat = |_| Seat {
            is_lost: false,
            is_untold: false,
            heard_us: now_us,
            is_named: false,
            stage: wait,
            for_us: 0,
            turn: 0,
            settled: 0,
            done: (0, 0),
            pace: (0, 0),
        };
        Coordinator {
            seats: (0..workers).map(seat).collect(),
            silence_us,
            goes_on,
            wait,
            losses: Vec::new(),
            turns: 0,
            is_over: false,
            has_failed: false,
            said: Vec::new(),
            notes: Vec::new(),
            named_us: WAITED_US,
            is_paced: false,
            pace: None,
        }
    }

    /// The messages for all live workers, rank 0 included, in this order.
    pub(crate) fn take_said(&mut self) -> Vec<ControlMsg> {
        std::mem::take(&mut self.said)
    }

    /// The observations since the last call.
    pub(crate) fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// How far all are, if that is news.
    pub(crate) fn take_pace(&mut self) -> Option<Pace> {
        if !self.is_paced || self.has_failed {
            return None;
        }
        let (turn, losses) = (self.turns, self.losses.len() as u32);
        let is_slow = |seat: &Seat| !seat.is_lost && seat.pace.0 <= turn && !seat.has_done(turn, losses);
        let slow = (0..).zip(&self.seats).filter(|(_, seat)| is_slow(seat));
        let slowest = slow.map(|(worker, seat)| (seat.steps(turn), worker)).min();
        let before = self.pace.filter(|pace| pace.turn == turn);
        let known = before.map_or((0, 0), |pace| (pace.least, pace.slowest));
        // A worker that replaces a lost one begins where the others are.
        let (least, slowest) = slowest.unwrap_or(known).max(known);
        let sum = self.seats.iter().map(|seat| seat.steps(turn)).sum();
        let pace = Pace { turn, slowest, least, sum };
        (self.pace != Some(pace)).then(|| *self.pace.insert(pace))
    }

    /// The progress of the others as one worker is told it.
    pub(crate) fn pace_for(&self, to: u32, pace: Pace) -> ControlMsg {
        let Pace { turn, slowest, least, sum } = pace;
        let own = self.seats.get(to as usize).map_or(0, |seat| seat.steps(turn));
        ControlMsg::Pace { worker: slowest, turn, steps: least, others: sum - own }
    }

    /// Is it still one of the job?
    pub(crate) fn is_here(&self, worker: u32) -> bool {
        self.seats.get(worker as usize).is_some_and(|seat| !seat.is_lost)
    }

    /// A worker has said something.
    pub(crate) fn heard(&mut self, from: u32, said: ControlMsg, now_us: u64) {
        if !self.is_here(from) || self.has_failed {
            return;
        }
        let seat = &mut self.seats[from as usize];
        (seat.heard_us, seat.is_named) = (now_us, false);
        match said {
            ControlMsg::Alive { stage, for_us, turn, settled } => {
                (seat.stage, seat.for_us, seat.turn, seat.settled) = (stage, for_us, turn, settled);
            }
            // The job, unlike a pass, cannot be left early.
            ControlMsg::TurnOver { turn: JOB, losses: LEFT } => {}
            ControlMsg::TurnOver { turn, losses } => {
                // A late message may be about a pass that was left before the last done one.
                if turn.saturating_add(1) >= seat.done.0 {
                    seat.done = (turn.saturating_add(1), losses);
                }
                self.look_at_turns();
            }
            // The job cannot go on without worker 0; without one that cannot reach it, it can.
            ControlMsg::Lost { loss: Loss { worker: 0, .. }, reason, .. } => {
                self.lose(from, format!("it cannot reach worker 0: {reason}"));
            }
            ControlMsg::Lost { loss, reason, .. } => {
                let reason = format!("worker {from} cannot reach it: {reason}");
                self.lose(loss.worker, reason);
            }
            ControlMsg::Fail { worker, reason } => self.fail(ControlMsg::Fail { worker, reason }),
            ControlMsg::Stop { .. } => self.fail(ControlMsg::Stop { worker: from }),
            ControlMsg::Pace { turn, steps, .. } => {
                self.is_paced = true;
                seat.pace = seat.pace.max((turn, steps));
            }
            ControlMsg::Start { .. } if from == 0 => self.said.push(said),
            ControlMsg::Start { .. } => {}
        }
    }

    /// A worker's connection has ended.
    pub(crate) fn gone(&mut self, worker: u32, reason: String) {
        self.lose(worker, reason);
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now_us: u64) {
        for worker in 0..self.seats.len() as u32 {
            let seat = &self.seats[worker as usize];
            let silent_us = now_us.saturating_sub(seat.heard_us);
            if worker != 0 && !seat.is_lost && silent_us > self.silence_us {
                self.lose(worker, format!("nothing was heard of it for {:.1} s", silent_us as f64 * 1e-6));
            }
        }
        if !self.is_over && !self.has_failed {
            self.name_stragglers(now_us);
        }
    }

    fn name_stragglers(&mut self, now_us: u64) {
        let wait = self.wait;
        let silent_us = SILENT_US.min(self.silence_us / SILENT_PART.1 * SILENT_PART.0);
        let is_silent = |seat: &Seat| now_us.saturating_sub(seat.heard_us) >= silent_us;
        let waits = |seat: &Seat| !seat.is_lost && seat.stage == wait && !is_silent(seat);
        let waited_us = self.seats.iter().filter(|seat| waits(seat)).map(|seat| seat.for_us).max();
        let Some(waited_us) = waited_us else { return };
        if waited_us < WAITED_US {
            self.named_us = WAITED_US;
            return;
        }
        let names_all = waited_us >= self.named_us;
        if names_all {
            self.named_us = waited_us.saturating_mul(WAITED_AGAIN);
        }
        for (worker, seat) in (0..).zip(&mut self.seats).filter(|(_, seat)| !seat.is_lost && !waits(seat)) {
            // A worker that stopped in its wait is logged only once it is silent.
            let (stage, is_silent) = (seat.stage, is_silent(seat));
            let is_new = is_silent && stage == wait && !seat.is_named;
            if names_all || is_new {
                seat.is_named |= is_silent;
                self.notes.push(Note::Straggler { worker, stage, is_silent, waited_us });
            }
        }
    }

    fn lose(&mut self, worker: u32, reason: String) {
        if worker == 0 || !self.is_here(worker) {
            return;
        }
        let losses = self.losses.len() as u32;
        let seat = &mut self.seats[worker as usize];
        seat.is_lost = true;
        let has_ended = seat.done.0 == JOB;
        if self.is_over || self.has_failed || has_ended && (seat.done.1 == losses || !self.goes_on) {
            // It has nothing to do any more: only who makes a new group, for one that is lost, must know that it will not come.
            seat.is_untold = has_ended;
            self.look_at_turns();
            return;
        }
        let stage = seat.stage;
        let settled = if has_ended {
            ALL
        } else if seat.done.0 > self.turns {
            // It has done its own units, and those that it had taken over if it knew of all losses.
            if seat.has_done(self.turns, losses) { ALL } else { ALL - 1 }
        } else if seat.turn == self.turns {
            seat.settled
        } else {
            0
        };
        let loss = Loss { worker, turn: self.turns, settled };
        self.notes.push(Note::Lost { worker, stage, reason: reason.clone(), goes_on: self.goes_on });
        if !self.goes_on {
            self.fail(ControlMsg::Fail { worker, reason: format!("it is lost: {reason}") });
            return;
        }
        for (worker, seat) in (0..).zip(&mut self.seats) {
            if std::mem::take(&mut seat.is_untold) {
                let loss = Loss { worker, turn: self.turns, settled: ALL };
                self.losses.push(loss);
                let losses = self.losses.len() as u32;
                let reason = "it was gone when it had come to the end of the job".to_owned();
                self.said.push(ControlMsg::Lost { losses, loss, reason });
            }
        }
        self.losses.push(loss);
        self.said.push(ControlMsg::Lost { losses: self.losses.len() as u32, loss, reason });
        self.look_at_turns();
    }

    /// The job ends before its time, for a reason of which the first one counts.
    fn fail(&mut self, said: ControlMsg) {
        if !self.has_failed && !self.is_over {
            self.has_failed = true;
            self.said.push(said);
        }
    }

    fn look_at_turns(&mut self) {
        let losses = self.losses.len() as u32;
        // Workers that left the next pass have reported so already.
        while !self.is_over && !self.has_failed {
            let mut living = self.seats.iter().filter(|seat| !seat.is_lost);
            if living.clone().all(|seat| seat.done == (JOB, losses)) {
                self.is_over = true;
                self.said.push(ControlMsg::TurnOver { turn: JOB, losses });
            } else if living.all(|seat| seat.has_done(self.turns, losses)) {
                self.said.push(ControlMsg::TurnOver { turn: self.turns, losses });
                self.turns += 1;
            } else {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests;
