//! Recovery from a lost worker: the survivors form a new group, agree on how many steps of the pass are applied and
//! which collectives the others have passed, and go on from there. Knows no row.

use std::sync::Arc;
use std::time::Instant;

use sanderling_client::{ClientError, Cluster, SyncGroup, SyncOptions};

use super::control_msg::{ControlMsg, JOB, LEFT, Loss};
use super::owner::living;
use super::peer_links::PeerLinks;
use super::peer_status::PeerStatus;
use crate::error::JobError;
use crate::mesh::Mesh;
use crate::stages::WAIT;
use crate::worker::Worker;

/// Steps of a turn have numbers of so many bits; above them is that of the turn.
const TURN_SHIFT: u32 = 40;
/// The meeting at which those who live agree how to go on.
const MEETING: &str = "going on without a worker";

/// The group of a worker on a host of its own, and how far it is.
#[derive(Debug)]
pub(crate) struct Survivors {
    pub(super) cluster: Arc<Cluster>,
    /// Number of the group, and its workers in the order of their places in it.
    pub(super) number: u64,
    pub(super) members: Vec<u32>,
    /// Steps of this turn that were applied in groups before this one, and those of this group before this turn.
    base: u64,
    start: u64,
    /// Steps of this turn that this worker was given.
    given: u64,
    /// Steps of this turn that are applied, if the rows are to be read again from there.
    redo: Option<u64>,
    /// Number of collectives besides passes that this worker has finished.
    meetings: u64,
}

impl Survivors {
    pub(super) fn new(cluster: &Arc<Cluster>, number: u64, workers: u32) -> Survivors {
        Survivors {
            cluster: Arc::clone(cluster),
            number,
            members: (0..workers).collect(),
            base: 0,
            start: 0,
            given: 0,
            redo: None,
            meetings: 0,
        }
    }
}

/// A pass that this worker takes part in. Dropping it early leaves the pass: the others do not wait for this worker,
/// and its remaining rows are not read.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// From 0.
    pub(crate) number: u64,
    /// Until it is over; none without workers on other hosts.
    status: Option<Arc<PeerStatus>>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(status) = &self.status
            && !std::thread::panicking()
        {
            status.say(ControlMsg::TurnOver { turn: self.number, losses: LEFT });
        }
    }
}

impl Worker {
    /// Its connections to workers on other hosts, if there are any.
    pub(crate) fn links(&self) -> Option<&PeerLinks> {
        match &self.mesh {
            Mesh::Remote(links) => Some(links),
            Mesh::Local(_) => None,
        }
    }

    fn status(&self) -> Option<Arc<PeerStatus>> {
        self.links().map(|links| Arc::clone(&links.status))
    }

    pub(crate) fn losses(&self) -> Vec<Loss> {
        self.links().map(|links| links.status.losses()).unwrap_or_default()
    }

    pub(crate) fn set_position(&self, turn: u64, settled: u64) {
        if let Some(links) = self.links() {
            links.status.set_position(turn, settled);
        }
    }

    /// A loss that this worker does not go on without yet, as an error of whoever is in the middle of something.
    pub(crate) fn lost_amid(&self, doing: &str) -> Option<JobError> {
        self.links()?.status.check_losses(doing).err()
    }

    /// Whether the job goes on with all that it has, as far as is known here.
    pub(crate) fn check_all(&self) -> Result<(), JobError> {
        self.check_halt()?;
        let Some(links) = self.links() else { return Ok(()) };
        links.status.check()?;
        links.status.check_losses("it")
    }

    /// Whether the job goes on; removes lost workers.
    pub(crate) fn check_others(&mut self) -> Result<(), JobError> {
        self.check_all().or_else(|error| self.go_on(error))
    }

    /// A pass begins.
    pub(crate) fn begin_turn(&mut self) -> Turn {
        let turn = self.turns;
        if self.is_in_turn
            && turn > 0
            && let Some(status) = self.status()
        {
            // Something still holds what it was given of the last one.
            status.say(ControlMsg::TurnOver { turn: turn - 1, losses: LEFT });
        }
        self.turns += 1;
        (self.is_in_turn, self.paced) = (true, 0);
        self.set_position(turn, 0);
        let applied = self.group.applied();
        if let Some(survivors) = &mut self.survivors {
            // The last one may have been left in the middle.
            (survivors.base, survivors.start, survivors.given, survivors.redo) = (0, applied, 0, None);
        }
        Turn { number: turn, status: self.status() }
    }

    /// Losses that this worker goes on without.
    pub(crate) fn losses_known(&self) -> usize {
        self.links().map_or(0, |links| links.status.regrouped())
    }

    /// Waits until all workers have done the pass, given this many losses. `false`: another worker is lost, and there
    /// may be more to do.
    pub(crate) fn end_turn(&mut self, turn: &mut Turn, losses: usize) -> Result<bool, JobError> {
        let is_over = self.end_turn_of(turn.number, losses)?;
        if is_over {
            turn.status = None;
            self.is_in_turn = false;
        }
        Ok(is_over)
    }

    fn end_turn_of(&mut self, turn: u64, losses: usize) -> Result<bool, JobError> {
        let Some(status) = self.status() else { return Ok(true) };
        self.check_others()?;
        if status.regrouped() != losses {
            return Ok(false);
        }
        status.say(ControlMsg::TurnOver { turn, losses: losses as u32 });
        self.timer.switch(WAIT);
        if !status.await_turn(turn, losses)? {
            self.check_others()?;
            return Ok(false);
        }
        let applied = self.group.applied();
        if let Some(survivors) = &mut self.survivors {
            (survivors.base, survivors.start, survivors.given) = (0, applied, 0);
        }
        Ok(true)
    }

    /// Waits for the end of the job: until then another worker may need this one again.
    pub(crate) fn end_job(&mut self) -> Result<(), JobError> {
        while !self.end_turn_of(JOB, self.losses_known())? {}
        Ok(())
    }

    /// Says that all of this worker's part of a step is handed in, and waits until it is applied. `false`: another worker was
    /// lost before, and what [`crate::Steps::next`] gives next is this step once more.
    pub fn wait_applied(&mut self, step: u64) -> Result<bool, JobError> {
        self.timer.switch(WAIT);
        if let Err(error) = self.group.wait_applied(step) {
            self.go_on(error.into())?;
            return Ok(self.survivors.as_ref().is_some_and(|survivors| survivors.base >= survivors.given));
        }
        Ok(true)
    }

    /// Whether a step was given ([`crate::Steps::next`]) and not waited for. Among workers on several hosts no other
    /// collective is allowed until then, because a lost worker makes the others repeat the step.
    #[must_use]
    pub fn is_step_open(&self) -> bool {
        self.survivors.as_ref().is_some_and(|survivors| {
            let made = survivors.base + self.group.applied().saturating_sub(survivors.start);
            survivors.redo.is_none() && made < survivors.given
        })
    }

    /// Reports one more asynchronous step of this pass, and waits while the slowest is over `bound` behind.
    ///
    /// The slowest is taken among live workers that have not done the pass; returns how far behind it is then. All
    /// workers must call it, or none.
    pub fn keep_pace(&mut self, bound: u64) -> Result<u64, JobError> {
        self.timer.switch(WAIT);
        self.paced += 1;
        let (turn, steps) = (self.turns.saturating_sub(1), self.paced);
        let Some(status) = self.status() else {
            let waited = self.group.progress((turn << TURN_SHIFT) + steps, bound);
            return waited.map_err(|error| self.called_off(error));
        };
        status.set_pace(turn, steps);
        let until = Instant::now() + self.timeout;
        loop {
            match status.await_pace((turn, steps), bound, until)? {
                Ok(Some(behind)) => return Ok(behind),
                Ok(None) => self.check_others()?,
                Err(slowest) => {
                    let what = format!("step {steps} of its own, more than {bound} ahead");
                    return Err(self.awaited(&what, vec![slowest]));
                }
            }
        }
    }

    /// Declares that this worker has read all of its rows of a pass, so no worker waits for it. On several hosts the
    /// end of the pass does that.
    pub(crate) fn rest(&mut self) -> Result<(), JobError> {
        if self.links().is_none() && self.living() > 1 {
            self.timer.switch(WAIT);
            let rested = self.group.progress(self.turns << TURN_SHIFT, u64::MAX);
            rested.map_err(|error| self.called_off(error))?;
        }
        Ok(())
    }

    /// It has rested, and goes on for one that is lost: from where the others are.
    pub(crate) fn catch_up(&mut self, turn: u64) {
        if let Some(links) = self.links() {
            self.paced = self.paced.max(links.status.others(turn).0);
        }
    }

    /// Steps of this pass that the others have finished together, as last reported.
    ///
    /// Known only on several hosts with a bound ([`Worker::keep_pace`]).
    #[must_use]
    pub fn steps_of_others(&self) -> u64 {
        self.links().map_or(0, |links| links.status.others(self.turns.saturating_sub(1)).1)
    }

    /// Runs a collective once; if a worker is lost, among the survivors.
    pub(crate) fn meet<T>(
        &mut self,
        mut together: impl FnMut(&mut SyncGroup) -> Result<T, ClientError>,
    ) -> Result<T, JobError> {
        self.timer.switch(WAIT);
        let met = loop {
            match together(&mut self.group) {
                Ok(met) => break met,
                Err(error) => {
                    let others = self.go_on_from(error.into())?;
                    // It took place when this worker had turned away: what the others brought is still there.
                    if let Some(mut group) = others {
                        break together(&mut group).map_err(|error| self.called_off(error))?;
                    }
                }
            }
        };
        if let Some(survivors) = &mut self.survivors {
            survivors.meetings += 1;
        }
        Ok(met)
    }

    /// Steps of this turn that this worker was given.
    pub(crate) fn note_given(&mut self, given: u64) {
        if let Some(survivors) = &mut self.survivors {
            survivors.given = given;
        }
    }

    /// The bytes of the worker of one rank, for all; what the others give is ignored.
    pub fn broadcast(&mut self, name: &str, from: u32, bytes: &[u8]) -> Result<Vec<u8>, JobError> {
        let rank = self.rank();
        let members = |worker: &Worker| worker.survivors.as_ref().map(|survivors| survivors.members.clone());
        let before = members(self);
        // By rank: among those who live a place is another's after a loss.
        let what = format!("broadcast {name} from {from}");
        let found = self.meet(|group| group.gather(&what, if from == rank { bytes } else { &[] }, 1))?;
        // It may have taken place before a loss that this worker knows of by now.
        let came = before.filter(|members| members.len() == found.len()).or_else(|| members(self));
        let place = came.map_or(Some(from as usize), |came| came.iter().position(|&worker| worker == from));
        let part = place.and_then(|place| found.into_iter().nth(place));
        part.ok_or_else(|| JobError::OutOfStep {
            worker: rank,
            reason: format!("{name:?} is from worker {from}, which is not there"),
        })
    }

    /// From which step on the rows of this turn are to be read again, if they are.
    pub(crate) fn take_redo(&mut self) -> Option<u64> {
        self.survivors.as_mut().and_then(|survivors| survivors.redo.take())
    }

    /// After an error: goes on without those that were lost, if that is what it comes from.
    pub(crate) fn go_on(&mut self, error: JobError) -> Result<(), JobError> {
        self.go_on_from(error).map(|_| ())
    }

    /// Regroups; returns the group before if others passed a meeting there that this worker has not.
    fn go_on_from(&mut self, error: JobError) -> Result<Option<SyncGroup>, JobError> {
        let may_be_loss =
            matches!(error, JobError::Client(ClientError::CalledOff { .. }) | JobError::Worker { .. });
        if may_be_loss {
            self.check_halt()?;
        }
        let Some(status) = self.status() else { return Err(error) };
        status.check()?;
        if !may_be_loss || status.check_losses("it").is_ok() {
            return Err(error);
        }
        let mut old = None;
        loop {
            let before = self.regroup(&status)?;
            // No worker passed a meeting in the groups between.
            old.get_or_insert(before);
            let (base, meetings) =
                self.survivors.as_ref().map_or((0, 0), |survivors| (survivors.base, survivors.meetings));
            let mine = [base, meetings, self.round];
            let mine: Vec<u8> = mine.iter().flat_map(|number| number.to_le_bytes()).collect();
            let parts = match self.group.all_gather(MEETING, &mine) {
                Ok(parts) => parts,
                Err(error @ ClientError::CalledOff { .. }) => {
                    self.check_halt()?;
                    status.check()?;
                    status.check_losses("it").err().ok_or(error)?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let numbers: Vec<[u64; 3]> = parts.iter().filter_map(|part| numbers_of(part)).collect();
            let Some(&[base, ..]) = numbers.first() else {
                return Err(JobError::OutOfStep {
                    worker: self.rank(),
                    reason: "a meeting without bytes".to_owned(),
                });
            };
            let most = |at: usize| numbers.iter().map(|numbers| numbers[at]).max().unwrap_or(0);
            self.set_round(most(2));
            if let Some(survivors) = &mut self.survivors {
                (survivors.base, survivors.redo) = (base, Some(base));
            }
            return Ok(old.filter(|_| most(1) > meetings));
        }
    }

    /// Joins the group of those who live; the one before.
    fn regroup(&mut self, status: &Arc<PeerStatus>) -> Result<SyncGroup, JobError> {
        let (rank, workers, timeout) = (self.rank(), self.workers(), self.timeout);
        let Some(survivors) = &mut self.survivors else { unreachable!("it is on a host of its own") };
        let (first, losses) = status.regroup();
        let living = living(workers, &losses);
        // Includes tables that were added since the job began.
        let (cluster, tables) = (Arc::clone(&survivors.cluster), self.group.remote_tables().to_vec());
        let is_dead = |&at: &u32| !living.contains(&survivors.members[at as usize]);
        let (before, sync) = (survivors.members.len() as u32, SyncOptions { attempt: 1, timeout });
        let dead: Vec<u32> = (0..before).filter(is_dead).collect();
        if rank == 0 && !dead.is_empty() {
            // The replacement completes a decided step and shuts the dead worker out for good.
            let applied = SyncGroup::take_over(&cluster, &tables, survivors.number, &dead, before, sync)?;
            survivors.base += applied - survivors.start.min(applied);
        }
        // A number that all come to, and that no group has had.
        let number = first.wrapping_add((losses.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let Some(place) = living.iter().position(|&worker| worker == rank) else {
            return Err(status.check_losses("it").err().unwrap_or(JobError::Stopped { worker: rank }));
        };
        let (place, left, sync) = (place as u32, living.len() as u32, SyncOptions { attempt: 0, timeout });
        let group = SyncGroup::join(&cluster, &tables, number, place, left, sync)?;
        let group = group.cancel_with(status.called_off()).cancel_with(status.stop());
        (survivors.number, survivors.start) = (number, 0);
        survivors.members.clone_from(&living);
        if let Mesh::Remote(links) = &mut self.mesh {
            links.set_members(living);
        }
        Ok(std::mem::replace(&mut self.group, group))
    }
}

fn numbers_of(part: &[u8]) -> Option<[u64; 3]> {
    let (numbers, rest) = part.as_chunks::<8>();
    let numbers = <[[u8; 8]; 3]>::try_from(numbers).ok().filter(|_| rest.is_empty())?;
    Some(numbers.map(u64::from_le_bytes))
}
