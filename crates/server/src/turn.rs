//! One connection's turn: takes a few requests, answers each, and sends what the peer takes. Knows neither the other
//! connections nor how long anybody sleeps.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sanderling_transport::{Connection, Error, Received, Receiver, Token};
use sanderling_wire::{Buffer, Kind};

use crate::call::Desk;
use crate::connections::Presence;
use crate::errand::{Errand, Postbox, Posted};
use crate::limit::{ERRANDS_PER_CONNECTION_MAX, REQUEST_COST_BYTES, TURN_REQUESTS, TURN_TIME};
use crate::outlet::Outlet;
use crate::refusal::Refusal;
use crate::session::{Session, Step, When};
use crate::state::State;
use crate::statistics::{Recorder, Seat};
use crate::worker::{Letter, Mailbox};

/// So much goes at once, while the next request is worked on; less waits for the end of the turn. Large replies would
/// otherwise come all together, and client and server would wait for each other in turn.
const FLUSH_BYTES: usize = 16 << 10;

/// What a thread has beside its connections.
pub(crate) struct Bench {
    pub(crate) state: Arc<State>,
    pub(crate) desk: Desk,
    pub(crate) recorder: Recorder,
    pub(crate) errands: Postbox,
    pub(crate) mailbox: Mailbox,
}

/// One connection of a worker.
pub(crate) struct Client {
    pub(crate) session: Session,
    pub(crate) presence: Arc<Presence>,
    pub(crate) since: Instant,
    pub(crate) seat: Option<Seat>,
    /// What it has had so far, in bytes: among those that are ready the one with the least is served first.
    pub(crate) served_bytes: u64,
    /// Since when it waits for its turn, if it was ready in an earlier round that ended without it.
    pub(crate) ready_since: Option<Instant>,
    /// A request for whose reply there was no room.
    held: Option<Buffer>,
    /// The session's reply waits for room.
    reply_waits: bool,
    /// Replies of errands that wait for room.
    pub(crate) done: VecDeque<Buffer>,
    /// Errands under way.
    pub(crate) errands: usize,
    /// Replies, or a part of one, that the peer has not taken yet.
    unsent: bool,
}

/// How a turn of a connection ended.
pub(crate) enum Turn {
    /// There may be more.
    Open,
    /// The peer has sent its last request, or is gone, and errands of it are under way: there is nothing to look at until
    /// they are done.
    Parked,
    /// The peer has sent its last request, and all replies have gone.
    Ended,
    /// It must be closed, for this reason.
    Failed(String),
}

impl Client {
    pub(crate) fn new(session: Session, presence: Arc<Presence>, since: Instant) -> Client {
        let (held, done) = (None, VecDeque::new());
        Client {
            session,
            presence,
            since,
            seat: None,
            served_bytes: 0,
            ready_since: None,
            held,
            reply_waits: false,
            done,
            errands: 0,
            unsent: false,
        }
    }

    /// Requests so far.
    pub(crate) fn served(&self) -> u64 {
        self.presence.requests.load(Ordering::Relaxed)
    }

    /// Has it been given all replies to what has been taken up, to their ends?
    pub(crate) fn is_idle(&self) -> bool {
        self.held.is_none() && !self.reply_waits && self.done.is_empty() && self.errands == 0 && !self.unsent
    }

    pub(crate) fn say_goaway(&mut self, connection: &mut Connection, within_ms: u32) {
        let mut outlet = SenderOutlet { sender: &mut connection.sender, unsent: 0, put: 0, error: None };
        // Who takes nothing learns it from the end of the connection.
        self.session.goaway(within_ms, "the server is about to stop", &mut outlet);
        self.unsent = connection.sender.try_flush().is_ok_and(|flushed| !flushed);
    }

    pub(crate) fn turn(
        &mut self,
        token: Token,
        connection: &mut Connection,
        start: Instant,
        bench: &mut Bench,
    ) -> Turn {
        if bench.state.admit_this_user && !self.session.is_greeted() {
            self.session.vouch(connection.is_of_this_user());
        }
        match self.answer(token, connection, start, bench) {
            Ok(ended) => match connection.sender.try_flush() {
                Ok(flushed) => {
                    self.unsent = !flushed;
                    match flushed && !self.reply_waits {
                        true if self.session.is_closing() => Turn::Ended,
                        true if ended && self.errands > 0 => Turn::Parked,
                        true if ended => Turn::Ended,
                        _ => Turn::Open,
                    }
                }
                Err(error) => Turn::Failed(error.to_string()),
            },
            Err(reason) => {
                // What was answered before still goes, if the peer takes it.
                let _ = connection.sender.try_flush();
                Turn::Failed(reason)
            }
        }
    }

    /// Takes and answers a few requests. `true`: there will be no more.
    fn answer(
        &mut self,
        token: Token,
        connection: &mut Connection,
        start: Instant,
        bench: &mut Bench,
    ) -> Result<bool, String> {
        let Connection { sender, receiver } = connection;
        let mut outlet = SenderOutlet { sender, unsent: 0, put: 0, error: None };
        let answered = self.answer_to(&mut outlet, token, receiver, start, bench);
        self.served_bytes += outlet.put as u64;
        answered
    }

    /// The same; what is sent goes to `outlet`.
    fn answer_to(
        &mut self,
        outlet: &mut SenderOutlet<'_>,
        token: Token,
        receiver: &mut Receiver,
        start: Instant,
        bench: &mut Bench,
    ) -> Result<bool, String> {
        let Bench { desk, recorder, errands, mailbox, .. } = bench;
        let began = Instant::now();
        // The connections before this one in the round have had the time since `start`: the first request waited for that.
        let mut now = began;
        for _ in 0..TURN_REQUESTS {
            if now > began + TURN_TIME {
                break;
            }
            if !self.send_waiting(outlet)? || self.session.is_closing() {
                return Ok(false);
            }
            let held = self.held.take();
            // Who has not said hello has no room for more than one, either.
            receiver.limit_frames(self.session.agreed().frame_bytes_max as usize);
            let frame = match &held {
                Some(buffer) => buffer.bytes(),
                None => match receiver.try_receive().map_err(|error| error.to_string())? {
                    Received::Frame(frame) => frame,
                    Received::Nothing => return Ok(false),
                    Received::End => return Ok(true),
                },
            };
            let kind = frame.get(5).copied().and_then(Kind::of);
            let when = When { arrived: start, now };
            let step = match self.session.handle(frame, when, desk, outlet) {
                Ok(step) => step,
                Err(error) => {
                    self.session.goaway(0, &error.to_string(), outlet);
                    return Err(error.to_string());
                }
            };
            outlet.check()?;
            let was_at = std::mem::replace(&mut now, Instant::now());
            if !matches!(step, Step::NoRoom) {
                self.served_bytes += REQUEST_COST_BYTES + frame.len() as u64;
            }
            match step {
                Step::Done => {}
                Step::Quiet => continue,
                Step::Waiting => self.reply_waits = true,
                Step::NoRoom => {
                    self.held = Some(match held {
                        Some(buffer) => buffer,
                        None => copy(frame, self.session.agreed().frame_bytes_max)?,
                    });
                    return Ok(false);
                }
                Step::Later(errand) => {
                    self.post(token, *errand, errands, mailbox);
                    continue;
                }
            }
            if self.seat.is_none() && self.session.is_greeted() {
                let name = peer_name(self.session.client(), outlet.sender.peer());
                self.seat = Some(recorder.seat(name));
                let _ = self.presence.client.set(self.session.client().to_owned());
            }
            if let Some(kind) = kind {
                recorder.record(kind, self.seat, now - was_at);
            }
            count(&self.presence.requests);
        }
        self.send_waiting(outlet)?;
        Ok(false)
    }

    /// Sends replies that were ready before. `true`: all of them.
    fn send_waiting(&mut self, outlet: &mut SenderOutlet<'_>) -> Result<bool, String> {
        if self.reply_waits {
            self.reply_waits = !outlet.send(self.session.reply())?;
        }
        while !self.reply_waits
            && let Some(frame) = self.done.front()
        {
            if !outlet.send(frame.bytes())? {
                return Ok(false);
            }
            self.done.pop_front();
        }
        Ok(!self.reply_waits)
    }

    /// Hands an errand over; its reply comes as a letter.
    fn post(&mut self, to: Token, errand: Errand, errands: &Postbox, mailbox: &Mailbox) {
        count(&self.presence.requests);
        let (kind, mailbox) = (errand.kind, mailbox.clone());
        if self.errands >= ERRANDS_PER_CONNECTION_MAX {
            let reason =
                format!("{ERRANDS_PER_CONNECTION_MAX} slow requests of this connection are under way");
            self.done.push_back(errand.refused(&Refusal::busy(reason)));
            return;
        }
        let refused = errand.refused(&Refusal::busy("the queue of slow requests is full"));
        let reply = Box::new(move |frame, took| mailbox.post(Letter::Reply { to, kind, took, frame }));
        match errands.post(Posted { errand, reply }) {
            true => self.errands += 1,
            false => self.done.push_back(refused),
        }
    }
}

/// Only this thread counts, so it need not be one step.
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

fn copy(frame: &[u8], frame_bytes_max: u32) -> Result<Buffer, String> {
    let mut buffer = Buffer::new(frame_bytes_max as usize);
    let room = buffer.room(frame.len()).map_err(|error| error.to_string())?;
    room[..frame.len()].copy_from_slice(frame);
    buffer.advance(frame.len());
    Ok(buffer)
}

/// Peers are told apart by what they call themselves, or by where they are: a port is not a peer.
fn peer_name<'a>(client: &'a str, peer: &'a str) -> &'a str {
    match (client.is_empty(), peer.strip_prefix("tcp://").and_then(|address| address.rsplit_once(':'))) {
        (false, _) => client,
        (true, Some((host, _))) => host,
        (true, None) => peer,
    }
}

/// The sending half of a connection as an [`Outlet`].
struct SenderOutlet<'a> {
    sender: &'a mut sanderling_transport::Sender,
    /// Bytes of replies since the last flush.
    unsent: usize,
    /// Bytes of replies.
    put: usize,
    error: Option<Error>,
}

impl SenderOutlet<'_> {
    fn check(&mut self) -> Result<(), String> {
        self.error.take().map_or(Ok(()), |error| Err(error.to_string()))
    }

    /// Sends a whole frame. `false`: no room.
    fn send(&mut self, frame: &[u8]) -> Result<bool, String> {
        match self.sender.try_frame(frame.len()) {
            Ok(Some(slot)) => {
                slot.write(frame);
                self.put += frame.len();
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Outlet for SenderOutlet<'_> {
    fn put(&mut self, bytes_max: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        match self.sender.try_frame(bytes_max) {
            Ok(Some(mut slot)) => {
                let bytes = fill(&mut slot);
                slot.commit(bytes);
                self.unsent += bytes;
                self.put += bytes;
                if self.unsent >= FLUSH_BYTES {
                    self.unsent = 0;
                    self.error = self.sender.try_flush().err();
                }
                true
            }
            Ok(None) => false,
            Err(error) => {
                self.error = Some(error);
                false
            }
        }
    }
}
