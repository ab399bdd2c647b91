//! The control thread of a worker, which talks to rank 0, or on rank 0 to all: heartbeats, losses, ends of passes.
//! The coordinator decides what follows from its messages; the thread knows no row.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_observe::StageWatch;
use sanderling_transport::{Connection, Poller, Received, Token};
use sanderling_wire::{Agreed, Frame, Parsed, Request, WireError};

use super::control_msg::ControlMsg;
use super::coordinator::{Coordinator, Note};
use super::event_log::EventLog;
use super::peer_status::PeerStatus;
use crate::error::JobError;

/// Workers say that they live this many times in the time after which they are taken for dead,
const BEATS: u32 = 8;
/// and at least this often.
const BEAT_MAX: Duration = Duration::from_secs(1);
/// Messages that may wait for a worker; with more it is taken for dead.
const PENDING_MAX: usize = 1024;
/// How long the others have to close their connections when the job has ended.
const LINGER: Duration = Duration::from_secs(5);

/// A connection to another worker.
pub(super) struct Line {
    pub(super) rank: u32,
    pub(super) connection: Connection,
    pub(super) agreed: Agreed,
    /// A frame that has come.
    pub(super) early: Option<Vec<u8>>,
}

struct Open {
    rank: u32,
    token: Token,
    agreed: Agreed,
    early: Option<Vec<u8>>,
    pending: VecDeque<ControlMsg>,
    /// All messages taken from `pending` are sent.
    is_flushed: bool,
}

impl Open {
    /// Of a pace only the newest is of use.
    fn say(&mut self, said: ControlMsg) {
        if let (Some(ControlMsg::Pace { .. }), ControlMsg::Pace { .. }) = (self.pending.back(), &said) {
            self.pending.pop_back();
        }
        self.pending.push_back(said);
    }
}

/// See the top of this file.
pub(super) struct Control {
    poller: Poller,
    open: Vec<Open>,
    /// On rank 0.
    coordinator: Option<Coordinator>,
    status: Arc<PeerStatus>,
    event_log: EventLog,
    watch: StageWatch,
    /// The stay in a stage that was seen last, and since when.
    stay: (u64, Instant),
    start: Instant,
    silence: Duration,
    heard: Instant,
}

impl Control {
    pub(super) fn new(
        mut poller: Poller,
        lines: Vec<Line>,
        coordinator: Option<Coordinator>,
        status: Arc<PeerStatus>,
        event_log: EventLog,
        watch: StageWatch,
        (start, silence): (Instant, Duration),
    ) -> Result<Control, JobError> {
        let mut open = Vec::new();
        for Line { rank, connection, agreed, early } in lines {
            let token = poller.add(connection)?;
            open.push(Open { rank, token, agreed, early, pending: VecDeque::new(), is_flushed: true });
        }
        let (stay, heard) = ((0, start), Instant::now());
        Ok(Control { poller, open, coordinator, status, event_log, watch, stay, start, silence, heard })
    }

    /// Talks until the job has ended.
    pub(super) fn run(mut self) {
        if let Err(error) = self.talk() {
            self.status.note_failure(self.status.rank, &error.to_string());
        }
        let Control { poller, status, event_log, .. } = self;
        // This worker's answers are needed no more.
        drop(poller);
        event_log.finish();
        status.note_deaf();
    }

    fn talk(&mut self) -> Result<(), JobError> {
        let beat = (self.silence / BEATS).min(BEAT_MAX);
        let (mut ready, mut beat_at, mut looked) = (Vec::new(), Instant::now(), Instant::now());
        let mut ends_at = None;
        for token in self.tokens() {
            let Some(open) = self.open(token) else { continue };
            if let Some(bytes) = open.early.take() {
                let (rank, agreed) = (open.rank, open.agreed);
                match told(&bytes, &agreed) {
                    Ok(said) => self.deliver(rank, said),
                    Err(error) => self.gone(token, error.to_string()),
                }
            }
        }
        while ends_at.is_none_or(|at| !self.open.is_empty() && Instant::now() < at) {
            self.poller.wait(&mut ready, Some(Instant::now() + beat / 2))?;
            let unseen = std::mem::replace(&mut looked, Instant::now()).elapsed();
            if self.slept_too_long(unseen) {
                return Ok(());
            }
            ready.drain(..).for_each(|token| self.hear(token));
            self.hear_self();
            if Instant::now() >= beat_at {
                beat_at = Instant::now() + beat;
                self.beat();
            }
            self.route();
            for token in self.tokens() {
                if let Err(reason) = self.send(token) {
                    // It may have said why.
                    self.hear(token);
                    self.gone(token, reason);
                }
            }
            let is_sent = self.open.iter().all(|open| open.pending.is_empty() && open.is_flushed);
            if is_sent {
                self.status.note_sent();
            }
            let has_ended = self.status.is_over() || self.status.has_failed();
            if has_ended && ends_at.is_none() {
                ends_at = Some(Instant::now() + LINGER);
            }
            // Rank 0 waits for the others to close, so that they hear why.
            if has_ended && self.coordinator.is_none() && is_sent {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether rank 0 was suspended for longer than the others wait for it. The others have ended then and must not
    /// be reported as lost.
    fn slept_too_long(&self, unseen: Duration) -> bool {
        let is_too_long = self.coordinator.is_some() && unseen > self.silence && !self.status.is_over();
        if is_too_long {
            let (unseen_s, silence_s) = (unseen.as_secs_f64(), self.silence.as_secs_f64());
            let reason = format!(
                "it was stopped for {unseen_s:.1} s, and the others wait for it for {silence_s} s (--worker-timeout): they have ended"
            );
            self.status.note_failure(self.status.rank, &reason);
        }
        is_too_long
    }

    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    fn tokens(&self) -> Vec<Token> {
        self.open.iter().map(|open| open.token).collect()
    }

    fn open(&mut self, token: Token) -> Option<&mut Open> {
        self.open.iter_mut().find(|open| open.token == token)
    }

    /// Takes what has come over a connection.
    fn hear(&mut self, token: Token) {
        loop {
            let Some(&mut Open { rank, agreed, .. }) = self.open(token) else { return };
            let Some(connection) = self.poller.connection(token) else { return };
            let said = match connection.receiver.try_receive() {
                Ok(Received::Frame(bytes)) => told(bytes, &agreed).map_err(|error| error.to_string()),
                Ok(Received::Nothing) => return,
                Ok(Received::End) => Err("its connection has ended".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            match said {
                Ok(said) => self.deliver(rank, said),
                Err(reason) => return self.gone(token, reason),
            }
        }
    }

    /// Takes what this worker itself has said.
    fn hear_self(&mut self) {
        for said in self.status.take_says() {
            self.deliver(self.status.rank, said);
        }
    }

    /// Handles a message from a worker, perhaps from this one.
    fn deliver(&mut self, from: u32, said: ControlMsg) {
        if let (Some(_), &ControlMsg::Lost { loss, .. }) = (&self.coordinator, &said) {
            // It may have reported its stop before it closed its connections.
            if loss.worker == self.status.rank {
                self.hear_self();
            } else if let Some(lost) =
                self.open.iter().find(|open| open.rank == loss.worker && open.rank != from)
            {
                self.hear(lost.token);
            }
        }
        let now_us = self.now_us();
        match &mut self.coordinator {
            Some(coordinator) => coordinator.heard(from, said, now_us),
            None if from == self.status.rank => {
                self.open.iter_mut().for_each(|open| open.say(said.clone()));
            }
            None => {
                self.heard = Instant::now();
                self.status.note(&said);
            }
        }
    }

    fn gone(&mut self, token: Token, reason: String) {
        let Some(at) = self.open.iter().position(|open| open.token == token) else { return };
        let Open { rank, .. } = self.open.swap_remove(at);
        drop(self.poller.remove(token));
        match &mut self.coordinator {
            Some(coordinator) => coordinator.gone(rank, reason),
            None if self.status.is_over() => {}
            None => {
                let reason = format!("{reason}; without rank 0 losses cannot be noticed");
                self.status.note_failure(rank, &reason);
            }
        }
    }

    /// Says that this worker lives, and looks whether the others do.
    fn beat(&mut self) {
        let (stage, stay) = self.watch.look();
        if self.stay.0 != stay {
            self.stay = (stay, Instant::now());
        }
        let (turn, settled) = self.status.position();
        let for_us = self.stay.1.elapsed().as_micros() as u64;
        let stage = stage.map_or(u32::MAX, |stage| stage as u32);
        let alive = ControlMsg::Alive { stage, for_us, turn, settled };
        self.deliver(self.status.rank, alive.clone());
        let now_us = self.now_us();
        if let Some(coordinator) = &mut self.coordinator {
            // The others want to know whether rank 0 lives.
            self.open.iter_mut().for_each(|open| open.pending.push_back(alive.clone()));
            coordinator.tick(now_us);
        } else if self.heard.elapsed() > self.silence && !self.status.is_over() {
            let silent_s = self.heard.elapsed().as_secs_f64();
            let reason = format!("nothing was heard of it for {silent_s:.1} s");
            self.tokens().into_iter().for_each(|token| self.gone(token, reason.clone()));
        }
    }

    /// Sends the coordinator's messages to all workers.
    fn route(&mut self) {
        let Some(coordinator) = &mut self.coordinator else { return };
        for said in coordinator.take_said() {
            self.status.note(&said);
            // A lost worker is told as well, if it can be.
            self.open.iter_mut().for_each(|open| open.pending.push_back(said.clone()));
        }
        if let Some(pace) = coordinator.take_pace() {
            self.status.note(&coordinator.pace_for(self.status.rank, pace));
            for open in &mut self.open {
                open.say(coordinator.pace_for(open.rank, pace));
            }
        }
        let notes: Vec<Note> = coordinator.take_notes();
        notes.iter().for_each(|note| self.event_log.note(note));
    }

    fn send(&mut self, token: Token) -> Result<(), String> {
        let Some(open) = self.open.iter_mut().find(|open| open.token == token) else { return Ok(()) };
        let Open { agreed, pending, is_flushed, .. } = open;
        let Some(connection) = self.poller.connection(token) else { return Ok(()) };
        while let Some(said) = pending.front() {
            let frame = said.frame(agreed).map_err(|error| error.to_string())?;
            let slot = connection.sender.try_frame(frame.len()).map_err(|error| error.to_string())?;
            let Some(slot) = slot else { break };
            slot.write(frame.bytes());
            pending.pop_front();
        }
        *is_flushed = connection.sender.try_flush().map_err(|error| error.to_string())?;
        if pending.len() > PENDING_MAX {
            return Err(format!("it takes nothing, and {PENDING_MAX} messages wait for it"));
        }
        Ok(())
    }
}

/// Decodes a frame of a control connection.
fn told(bytes: &[u8], agreed: &Agreed) -> Result<ControlMsg, WireError> {
    let Parsed::Frame(frame) = Frame::parse(bytes, agreed)? else {
        return Err(WireError::Cut { what: "frame", needed: 0, found: bytes.len() as u64 });
    };
    let unexpected = WireError::Direction { kind: frame.header.kind, expected: "a message of a worker" };
    match Request::decode(&frame)? {
        Request::Tell(tell) => ControlMsg::of(&tell).ok_or(unexpected),
        _ => Err(unexpected),
    }
}
