//! A worker's rows of a pass in the order of the input when other workers may die: its own units, then its part of
//! the units left by lost workers, until all live workers are done. Knows the owners of units, not how a loss is
//! noticed.

use std::time::{Duration, Instant};

use sanderling_formats::Decoded;
use sanderling_sample::{Batch, Rows};

use super::control_msg::{ALL, Loss};
use super::owner::owner;
use super::survivors::Turn;
use crate::error::JobError;
use crate::input::{Input, Units};
use crate::stages::ASSEMBLE;
use crate::worker::Worker;

/// How often the caller is asked to settle what it was given.
const SETTLE_EVERY: Duration = Duration::from_millis(200);

/// See the top of this file.
pub(crate) struct Owned {
    input: Input,
    turn: Turn,
    units: Units,
    /// The losses that decide what is read now; and those that decided what was read before, if it is not the first reading.
    known: Vec<Loss>,
    before: Option<Vec<Loss>>,
    /// The next unit that has rows, and its number if there is one.
    following: Decoded,
    ahead: Option<u64>,
    is_open: bool,
    /// The unit at hand, its number, and which of its rows is next.
    unit: Decoded,
    number: u64,
    head: usize,
    /// Rows of several units that one minibatch needs.
    pool: Batch,
    settled_at: Instant,
    is_over: bool,
}

impl Owned {
    pub(crate) fn open(worker: &mut Worker, input: &Input) -> Result<Owned, JobError> {
        let (turn, workers) = (worker.begin_turn(), worker.workers());
        let losses = worker.losses();
        // Units of workers lost in this pass are taken over after the own units.
        let known = losses.iter().take_while(|loss| loss.turn < turn.number).copied().collect();
        Ok(Owned {
            input: input.clone(),
            turn,
            units: Units::open(input, workers, &worker.halt)?,
            known,
            before: None,
            following: Decoded::new(&input.encoder),
            ahead: None,
            is_open: false,
            unit: Decoded::new(&input.encoder),
            number: 0,
            head: 0,
            pool: input.encoder.new_batch(),
            settled_at: Instant::now(),
            is_over: false,
        })
    }

    pub(crate) fn next(&mut self, worker: &mut Worker, rows: usize) -> Result<Option<Rows<'_>>, JobError> {
        worker.check_others()?;
        self.pool.clear();
        loop {
            while self.head == self.unit.len() && self.next_unit(worker)? {}
            worker.timer.switch(ASSEMBLE);
            let range = self.head..self.unit.len().min(self.head + rows - self.pool.len());
            self.head = range.end;
            if self.pool.is_empty() && range.len() == rows {
                // Handed out where they lie.
                return Ok(Some(self.unit.rows().slice(range)));
            }
            self.pool.append(&self.unit.rows().slice(range));
            let is_last = self.head == self.unit.len() && self.is_open && self.ahead.is_none();
            let is_full = self.pool.len() == rows || self.pool.max_keys() >= Batch::MAX_KEYS / 2;
            if is_full || is_last && !self.pool.is_empty() {
                return Ok(Some(Rows::all(&self.pool)));
            }
            if is_last && !self.take_over(worker)? {
                return Ok(None);
            }
        }
    }

    /// Goes on to the next unit with rows that is this worker's; `false`: there is none in this reading.
    fn next_unit(&mut self, worker: &mut Worker) -> Result<bool, JobError> {
        if self.is_over {
            return Ok(false);
        }
        if !self.is_open {
            self.is_open = true;
            self.read_ahead(worker)?;
        }
        let Some(number) = self.ahead else { return Ok(false) };
        std::mem::swap(&mut self.unit, &mut self.following);
        (self.number, self.head) = (number, 0);
        self.read_ahead(worker)?;
        Ok(true)
    }

    /// Reads ahead past empty units, because the last rows must be known as such when they are given out: they are
    /// settled before the pass is reported as done.
    fn read_ahead(&mut self, worker: &mut Worker) -> Result<(), JobError> {
        let (rank, workers, turn) = (worker.rank(), worker.workers(), self.turn.number);
        let (known, before) = (&self.known, &self.before);
        let is_mine = |losses: &[Loss], unit| owner(workers, losses, turn, unit) == Some(rank);
        let is_wanted =
            |unit: u64| is_mine(known, unit) && before.as_ref().is_none_or(|before| !is_mine(before, unit));
        loop {
            self.ahead = self.units.read(&mut worker.timer, is_wanted)?;
            if self.ahead.is_none() {
                return Ok(());
            }
            self.units.decode_in_place(&mut self.following, &mut worker.timer)?;
            if !self.following.is_empty() {
                return Ok(());
            }
        }
    }

    /// This worker has done what it had to do: waits for the others, or begins with what it has to do for one that is lost.
    /// `false`: all have done all.
    fn take_over(&mut self, worker: &mut Worker) -> Result<bool, JobError> {
        while !self.is_over {
            worker.check_others()?;
            let losses = worker.losses();
            if losses.len() > self.known.len() {
                self.before = Some(std::mem::replace(&mut self.known, losses));
                self.units = Units::open(&self.input, worker.workers(), &worker.halt)?;
                (self.ahead, self.is_open) = (None, false);
                worker.catch_up(self.turn.number);
                return Ok(true);
            }
            worker.set_position(self.turn.number, ALL - 1);
            self.is_over = worker.end_turn(&mut self.turn, self.known.len())?;
        }
        Ok(false)
    }

    /// At the end of what is known to be this worker's, and now and then.
    pub(crate) fn wants_settling(&self) -> bool {
        let is_last = self.head == self.unit.len() && self.ahead.is_none();
        is_last || self.settled_at.elapsed() >= SETTLE_EVERY
    }

    pub(crate) fn settled(&mut self, worker: &mut Worker) {
        self.settled_at = Instant::now();
        // Units that were taken over are done when the pass is.
        if self.before.is_none() {
            let is_whole = self.head == self.unit.len();
            worker.set_position(self.turn.number, self.number + u64::from(is_whole));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::control_msg::ControlMsg;
    use super::super::test_hosts;
    use super::*;
    use crate::input::Order;

    #[test]
    fn nothing_is_said_to_be_done_before_it_is_settled_whatever_units_have_no_rows() {
        let (good, none) = ("0 1:1\n".repeat(300), "nonsense\n".repeat(300));
        let check = |text: &str, rows: usize| {
            let dir = tempfile::tempdir().unwrap();
            let input = test_hosts::input(dir.path(), text);
            let (mut worker, status) = test_hosts::first(dir.path(), 1);
            // The end of the pass, as soon as this worker has done its part.
            status.note(&ControlMsg::TurnOver { turn: 0, losses: 0 });
            let mut share = worker.share(&input, 0, Order::Input).unwrap();
            let (mut settled, mut given) = (0, 0);
            while let Some(minibatch) = share.next(&mut worker, 10).unwrap() {
                given += minibatch.len();
                assert!(status.position().1 < ALL - 1, "{settled} of {given} rows are settled");
                if share.wants_settling() {
                    settled = given;
                    share.settled(&mut worker);
                }
            }
            assert_eq!((settled, given), (rows, rows));
            assert_eq!(status.position().1, ALL - 1);
        };
        check(&good, 300);
        check(&none, 0);
        check(&format!("{good}{none}"), 300);
        check(&format!("{none}{good}{none}{good}{none}"), 600);
    }
}
