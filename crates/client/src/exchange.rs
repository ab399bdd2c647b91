//! One server as one thread sees it, as a state machine: requests under way, their deadlines, retries, and the connection's
//! life. It is fed with frames and with the time and says what to do next; it opens nothing, waits for nothing and reads
//! no clock, so that a seed replays whatever happens to it. Knows no table.
//!
//! A request is kept as the frame that it is until it is answered. When a connection breaks, what was under way is sent
//! again, in its order, on the next one: that is safe for pulls by nature and for pushes because the server knows their
//! numbers. When the server turns out to have been started anew, what it held is gone, so the requests fail instead.

use std::collections::VecDeque;
use std::time::Duration;

use sanderling_wire::{
    Agreed, Buffer, Fault, Features, Frame, Hello, Identity, Kind, Offer, Parsed, Reply, Request, WireError,
    limit, seal,
};

use crate::random::Random;

/// Requests of one server that a thread may have under way, whatever the server allows.
const IN_FLIGHT_MAX: usize = 64;
/// Bits of a request's id that say where it is kept; the rest counts requests.
const SLOT_BITS: u32 = 8;
/// A call's buffer that has grown beyond this is given back once the call has ended.
const KEPT_BYTES_MAX: usize = 4 << 20;
const SILENT: &str = "it does not answer";
/// First and longest wait before another attempt.
const BACKOFF_MIN_US: u64 = 1_000;
const BACKOFF_MAX_US: u64 = 500_000;

/// How a client behaves towards a server that does not answer as it should.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Within which a request must be answered, all attempts together.
    pub(crate) timeout: Duration,
    /// Seed of the jitter.
    pub(crate) seed: u64,
}

/// What a server says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Which shard it is, from 0.
    pub shard: u32,
    /// How many shards there are.
    pub shards: u32,
    /// Number of the server, the same over restarts.
    pub server_id: u64,
    /// Another one with every start.
    pub boot_id: u64,
    /// Number of the operating system that it runs under; 0 when unknown.
    pub host_id: u64,
    /// Version of the placement that it knows; 0 for none.
    pub placement_version: u64,
    /// Requests that it holds per connection.
    pub in_flight_max: u32,
    /// Its name.
    pub name: String,
    /// Address on which clients of the same host reach it fastest, or empty.
    pub local_url: String,
}

impl Peer {
    fn of(identity: &Identity<'_>) -> Peer {
        Peer {
            shard: identity.shard,
            shards: identity.shards,
            server_id: identity.server_id,
            boot_id: identity.boot_id,
            host_id: identity.host_id,
            placement_version: identity.placement_version,
            in_flight_max: identity.in_flight_max,
            name: identity.name.to_owned(),
            local_url: identity.local_url.to_owned(),
        }
    }
}

/// Why a request has no answer, or a bad one. Who asked whom about what, the caller knows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CallError {
    /// The server refused.
    Refused { fault: Fault, reason: String },
    /// Not answered in time. `sent`: the server may have carried it out. `cause`: what went wrong meanwhile, if anything.
    Late { sent: bool, cause: Option<String> },
    /// The server was started anew since its tables were opened.
    Restarted,
    /// The connection broke, and the request may not be repeated.
    Lost { cause: String },
    /// What came is no answer.
    Protocol { reason: String },
}

/// What the one who holds the connection is to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// Open a connection, then say [`Exchange::connected`] or [`Exchange::disconnected`].
    Connect,
    /// Send [`Exchange::outgoing`], then say [`Exchange::sent`].
    Send,
    /// Close the connection.
    Close,
    /// Wait for frames, or for [`Exchange::wake_us`].
    Nothing,
}

/// What a received frame was.
#[derive(Debug)]
pub(crate) enum Answer<'a> {
    /// The answer to a request, by its tag.
    To(u64, Reply<'a>),
    /// Nothing for the caller.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No connection; none is tried before this time.
    Down {
        until_us: u64,
    },
    /// Somebody is connecting.
    Connecting,
    /// The hello is to be sent, or sent.
    Greeting {
        sent: bool,
    },
    Up,
    /// The server takes nothing new on this connection, and still answers what it has.
    Leaving,
    /// The connection is of no use any more and is to be closed; another one is not to be tried before this time.
    Closing {
        until_us: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Queued,
    Sent { at_us: u64 },
}

#[derive(Debug)]
struct Call {
    id: u64,
    tag: u64,
    kind: Kind,
    state: State,
    /// The start of the server that it is meant for; `None`: any.
    boot_id: Option<u64>,
    /// Was it ever sent?
    was_sent: bool,
    deadline_us: u64,
    frame: Buffer,
}

/// See the top of this file. All times are microseconds on the caller's clock.
#[derive(Debug)]
pub(crate) struct Exchange {
    patience: Patience,
    token: String,
    name: String,
    random: Random,
    phase: Phase,
    offer: Offer,
    agreed: Agreed,
    peer: Option<Peer>,
    hello: Buffer,
    calls: Vec<Call>,
    free: Vec<u32>,
    /// Calls to send, in order.
    queue: VecDeque<u32>,
    sent: usize,
    counter: u64,
    /// Consecutive attempts that came to nothing.
    attempts: u32,
    /// Nothing is sent before this time: the server is busy.
    hold_until_us: u64,
    heard_us: u64,
    /// What last went wrong with the connection.
    cause: Option<String>,
    failures: VecDeque<(u64, CallError)>,
}

impl Exchange {
    /// Nothing is connected before there is a request. `name` is how the client wants to be called.
    pub(crate) fn new(patience: Patience, token: &str, name: &str) -> Exchange {
        let offer = Offer::of(Features::NONE);
        Exchange {
            patience,
            token: token.to_owned(),
            name: name.to_owned(),
            random: Random::new(patience.seed),
            phase: Phase::Down { until_us: 0 },
            offer,
            agreed: Agreed {
                version: offer.version_max,
                features: Features::NONE,
                frame_bytes_max: offer.frame_bytes_max,
            },
            peer: None,
            hello: Buffer::new(limit::HELLO_BYTES_MAX),
            calls: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            sent: 0,
            counter: 0,
            attempts: 0,
            hold_until_us: 0,
            heard_us: 0,
            cause: None,
            failures: VecDeque::new(),
        }
    }

    /// Who answered last.
    pub(crate) fn peer(&self) -> Option<&Peer> {
        self.peer.as_ref()
    }

    /// Longest frame.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        self.agreed.frame_bytes_max as usize
    }

    /// Requests that have neither an answer nor failed.
    pub(crate) fn outstanding(&self) -> usize {
        self.calls.len() - self.free.len()
    }

    /// Is there room for another request?
    pub(crate) fn has_room(&self) -> bool {
        self.outstanding() < IN_FLIGHT_MAX
    }

    /// Takes a request; its answer, or its failure, will have the tag. With a `boot_id` it is only for the server as it was
    /// started then, as table numbers are. Needs [`Exchange::has_room`].
    pub(crate) fn begin(
        &mut self,
        now_us: u64,
        tag: u64,
        boot_id: Option<u64>,
        request: &Request<'_>,
    ) -> Result<(), WireError> {
        assert!(self.has_room(), "more requests than IN_FLIGHT_MAX");
        let slot = self.free.pop().unwrap_or_else(|| {
            self.calls.push(Call {
                id: 0,
                tag: 0,
                kind: Kind::Ping,
                state: State::Free,
                boot_id: None,
                was_sent: false,
                deadline_us: 0,
                frame: Buffer::new(limit::FRAME_BYTES_MAX),
            });
            self.calls.len() as u32 - 1
        });
        self.counter += 1;
        let id = self.counter << SLOT_BITS | u64::from(slot);
        let timeout_us = self.patience.timeout.as_micros().min(u128::from(u32::MAX)) as u64;
        let call = &mut self.calls[slot as usize];
        call.frame.clear();
        if let Err(error) = call.frame.append(|out| request.encode(&self.agreed, id, timeout_us as u32, out))
        {
            self.free.push(slot);
            return Err(error);
        }
        (call.id, call.tag, call.kind, call.state) = (id, tag, request.kind(), State::Queued);
        (call.boot_id, call.was_sent) = (boot_id, false);
        call.deadline_us = now_us.saturating_add(timeout_us);
        self.queue.push_back(slot);
        if matches!(self.phase, Phase::Up | Phase::Leaving) {
            self.check_start(slot);
        }
        Ok(())
    }

    /// What to do now. After anything but [`Want::Nothing`], ask again.
    pub(crate) fn want(&mut self, now_us: u64) -> Want {
        match self.phase {
            Phase::Down { until_us } if self.outstanding() > 0 && until_us <= now_us => {
                self.phase = Phase::Connecting;
                Want::Connect
            }
            Phase::Greeting { sent: false } => Want::Send,
            Phase::Up
                if !self.queue.is_empty() && self.sent < self.window() && self.hold_until_us <= now_us =>
            {
                Want::Send
            }
            Phase::Leaving if self.sent == 0 => {
                self.phase = Phase::Down { until_us: self.retry_at_us(now_us) };
                Want::Close
            }
            Phase::Closing { until_us } => {
                self.phase = Phase::Down { until_us };
                Want::Close
            }
            _ => Want::Nothing,
        }
    }

    fn window(&self) -> usize {
        let allowed = self.peer.as_ref().map_or(1, |peer| peer.in_flight_max.max(1) as usize);
        allowed.min(IN_FLIGHT_MAX)
    }

    /// When to ask again though nothing was received.
    pub(crate) fn wake_us(&self) -> Option<u64> {
        let calls = self.calls.iter().filter(|call| call.state != State::Free);
        let deadline = calls.map(|call| call.deadline_us).min()?;
        let later = match self.phase {
            Phase::Down { until_us } => until_us,
            Phase::Up if !self.queue.is_empty() && self.sent < self.window() => self.hold_until_us,
            _ => u64::MAX,
        };
        Some(deadline.min(later))
    }

    /// The frame to be sent, after [`Want::Send`].
    pub(crate) fn outgoing(&self) -> &[u8] {
        match (self.phase, self.queue.front()) {
            (Phase::Greeting { .. }, _) => self.hello.bytes(),
            (_, Some(&slot)) => self.calls[slot as usize].frame.bytes(),
            _ => &[],
        }
    }

    /// It is on its way.
    pub(crate) fn sent(&mut self, now_us: u64) {
        if let Phase::Greeting { sent } = &mut self.phase {
            *sent = true;
        } else if let Some(slot) = self.queue.pop_front() {
            let call = &mut self.calls[slot as usize];
            (call.state, call.was_sent) = (State::Sent { at_us: now_us }, true);
            self.sent += 1;
        }
    }

    /// A connection is open, and frames may be exchanged with these abilities at best.
    pub(crate) fn connected(&mut self, features: Features) -> Result<(), WireError> {
        self.offer = Offer::of(features);
        let hello = Hello { offer: self.offer, token: &self.token, name: &self.name };
        self.hello.clear();
        self.hello.append(|out| Request::Hello(hello).encode(&Agreed::BEFORE_HELLO, 0, 0, out))?;
        self.phase = Phase::Greeting { sent: false };
        Ok(())
    }

    /// There is no connection, or no longer. What was under way will be sent again.
    pub(crate) fn disconnected(&mut self, now_us: u64, cause: String) {
        self.requeue(&cause);
        if self.phase != Phase::Leaving {
            self.cause = Some(cause);
        }
        self.phase = Phase::Down { until_us: self.retry_at_us(now_us) };
    }

    /// The same, of a connection that is still open.
    fn give_up(&mut self, now_us: u64, cause: &str) {
        self.disconnected(now_us, cause.to_owned());
        if let Phase::Down { until_us } = self.phase {
            self.phase = Phase::Closing { until_us };
        }
    }

    /// When to try once more: at once the first time, then later and later. Jitter keeps the clients of a server that
    /// comes back from coming all at once.
    fn retry_at_us(&mut self, now_us: u64) -> u64 {
        let attempts = self.attempts;
        self.attempts = attempts.saturating_add(1);
        if attempts == 0 {
            return now_us;
        }
        let longest = (BACKOFF_MIN_US << attempts.min(16)).min(BACKOFF_MAX_US);
        now_us + longest / 2 + self.random.below(longest / 2 + 1)
    }

    /// Puts what was sent back to the head of the queue, in the order in which it was asked for.
    fn requeue(&mut self, cause: &str) {
        self.sent = 0;
        self.queue.clear();
        let calls = &mut self.calls;
        let mut slots: Vec<u32> =
            (0..calls.len() as u32).filter(|&at| calls[at as usize].state != State::Free).collect();
        slots.sort_unstable_by_key(|&at| calls[at as usize].id);
        for slot in slots {
            let call = &mut self.calls[slot as usize];
            if matches!(call.state, State::Sent { .. }) && !call.kind.is_repeatable() {
                self.fail(slot, CallError::Lost { cause: cause.to_owned() });
                continue;
            }
            call.state = State::Queued;
            self.queue.push_back(slot);
        }
    }

    /// Ends what was not answered in time.
    pub(crate) fn expire(&mut self, now_us: u64) {
        let mut is_silent = false;
        for slot in 0..self.calls.len() as u32 {
            let call = &self.calls[slot as usize];
            if call.state == State::Free || call.deadline_us > now_us {
                continue;
            }
            if let State::Sent { at_us } = call.state {
                self.sent -= 1;
                is_silent |= self.heard_us <= at_us;
            }
            // A cause that has been overcome explains nothing.
            let cause = match self.phase {
                Phase::Up => None,
                Phase::Greeting { .. } => Some(SILENT.to_owned()),
                _ => self.cause.clone(),
            };
            let sent = call.was_sent;
            self.queue.retain(|&queued| queued != slot);
            self.fail(slot, CallError::Late { sent, cause });
        }
        let in_vain = matches!(self.phase, Phase::Greeting { .. }) && self.outstanding() == 0;
        if is_silent || in_vain {
            // A peer that says nothing may be gone without a word: the next request deserves another connection.
            self.give_up(now_us, SILENT);
        }
    }

    /// Takes a received frame. If it shows that the connection is of no use, [`Exchange::want`] will say so.
    pub(crate) fn receive<'a>(&mut self, now_us: u64, bytes: &'a [u8]) -> Answer<'a> {
        if matches!(self.phase, Phase::Closing { .. } | Phase::Down { .. }) {
            // Frames that were behind the one that ended it.
            return Answer::None;
        }
        match self.understand(now_us, bytes) {
            Ok(answer) => answer,
            Err(error @ WireError::Checksum { .. }) => {
                // Damaged on the way: another connection may do better.
                self.give_up(now_us, &error.to_string());
                Answer::None
            }
            Err(error) => {
                self.fail_all(&CallError::Protocol { reason: error.to_string() });
                self.give_up(now_us, &error.to_string());
                Answer::None
            }
        }
    }

    fn understand<'a>(&mut self, now_us: u64, bytes: &'a [u8]) -> Result<Answer<'a>, WireError> {
        let greeted = matches!(self.phase, Phase::Up | Phase::Leaving);
        let agreed = if greeted { self.agreed } else { Agreed::BEFORE_HELLO };
        let frame = match Frame::parse(bytes, &agreed)? {
            Parsed::Frame(frame) if frame.header.frame_bytes() == bytes.len() => frame,
            _ => return Err(WireError::Trailing { found: bytes.len() as u64 }),
        };
        self.heard_us = now_us;
        let reply = Reply::decode(&frame)?;
        let id = frame.header.id;
        match (self.phase, reply) {
            (Phase::Greeting { sent: true }, Reply::Hello(identity)) => self.greeted(&identity)?,
            (Phase::Greeting { sent: true }, Reply::Failed(failure)) => {
                if !matches!(failure.fault, Fault::Busy { .. } | Fault::Draining) {
                    self.fail_all(&CallError::Refused {
                        fault: failure.fault,
                        reason: failure.reason.to_owned(),
                    });
                }
                self.give_up(now_us, &failure.fault.to_string());
            }
            (Phase::Greeting { .. }, Reply::Goaway(goaway)) => self.give_up(now_us, goaway.reason),
            (Phase::Up | Phase::Leaving, Reply::Goaway(goaway)) => {
                self.cause = Some(goaway.reason.to_owned());
                self.phase = Phase::Leaving;
            }
            (Phase::Up | Phase::Leaving, reply) => return self.answered(now_us, id, reply),
            (_, reply) => {
                return Err(WireError::Direction { kind: reply.kind(), expected: "the answer to a hello" });
            }
        }
        Ok(Answer::None)
    }

    fn greeted(&mut self, identity: &Identity<'_>) -> Result<(), WireError> {
        self.agreed = self.offer.accept(identity.agreed)?;
        self.peer = Some(Peer::of(identity));
        let agreed = self.agreed;
        for slot in 0..self.calls.len() as u32 {
            if !self.check_start(slot) {
                continue;
            }
            let call = &mut self.calls[slot as usize];
            let bytes = call.frame.len();
            if bytes > agreed.frame_bytes_max as usize {
                let (found, max) = (bytes as u64, u64::from(agreed.frame_bytes_max));
                let reason = WireError::TooLong { what: "frame", found, max }.to_string();
                self.queue.retain(|&queued| queued != slot);
                self.fail(slot, CallError::Protocol { reason });
            } else {
                seal(call.frame.bytes_mut(), &agreed);
            }
        }
        (self.phase, self.hold_until_us) = (Phase::Up, 0);
        Ok(())
    }

    /// Fails a call that was meant for an earlier start of the server; is there still a call?
    fn check_start(&mut self, slot: u32) -> bool {
        let call = &self.calls[slot as usize];
        if call.state == State::Free {
            return false;
        }
        let boot_id = self.peer.as_ref().map(|peer| peer.boot_id);
        if call.boot_id.is_none() || call.boot_id == boot_id {
            return true;
        }
        self.queue.retain(|&queued| queued != slot);
        self.fail(slot, CallError::Restarted);
        false
    }

    fn answered<'a>(&mut self, now_us: u64, id: u64, reply: Reply<'a>) -> Result<Answer<'a>, WireError> {
        let slot = (id & ((1 << SLOT_BITS) - 1)) as u32;
        let call = self.calls.get(slot as usize);
        let Some(call) = call.filter(|call| call.id == id && matches!(call.state, State::Sent { .. })) else {
            // The answer to a request that was given up is late, not wrong.
            let was_asked = id != 0 && id >> SLOT_BITS <= self.counter;
            return if was_asked {
                Ok(Answer::None)
            } else {
                Err(WireError::Value { what: "id", found: id })
            };
        };
        if call.kind != reply.kind() {
            return Err(WireError::Direction { kind: reply.kind(), expected: "the answer to its request" });
        }
        let tag = call.tag;
        if let Reply::Failed(failure) = &reply {
            match failure.fault {
                Fault::Busy { retry_after_us } => {
                    self.attempts = self.attempts.saturating_add(1);
                    let least = retry_after_us.clamp(BACKOFF_MIN_US, BACKOFF_MAX_US);
                    self.hold_until_us = now_us + least + self.random.below(least << self.attempts.min(4));
                    self.cause = Some(failure.fault.to_string());
                    self.ask_again(slot);
                    return Ok(Answer::None);
                }
                Fault::Draining => {
                    // It was not carried out. Perhaps the server comes back in time.
                    self.cause = Some(failure.fault.to_string());
                    self.phase = Phase::Leaving;
                    self.ask_again(slot);
                    return Ok(Answer::None);
                }
                _ => {}
            }
        }
        self.attempts = 0;
        self.sent -= 1;
        self.release(slot);
        Ok(Answer::To(tag, reply))
    }

    /// Puts a call that was sent back into the queue, where it stood.
    fn ask_again(&mut self, slot: u32) {
        self.sent -= 1;
        self.calls[slot as usize].state = State::Queued;
        self.queue.push_front(slot);
        let calls = &self.calls;
        self.queue.make_contiguous().sort_unstable_by_key(|&at| calls[at as usize].id);
    }

    fn fail_all(&mut self, error: &CallError) {
        self.queue.clear();
        self.sent = 0;
        for slot in 0..self.calls.len() as u32 {
            if self.calls[slot as usize].state != State::Free {
                self.fail(slot, error.clone());
            }
        }
    }

    fn fail(&mut self, slot: u32, error: CallError) {
        self.failures.push_back((self.calls[slot as usize].tag, error));
        self.release(slot);
    }

    fn release(&mut self, slot: u32) {
        let call = &mut self.calls[slot as usize];
        call.state = State::Free;
        call.frame.clear();
        call.frame.trim(KEPT_BYTES_MAX);
        self.free.push(slot);
    }

    /// The next request that failed, by its tag.
    pub(crate) fn next_failure(&mut self) -> Option<(u64, CallError)> {
        self.failures.pop_front()
    }
}

#[cfg(test)]
mod tests;
