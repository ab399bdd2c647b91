//! The state of one thread's requests to one server: their deadlines, retries, and the connection's life. A state
//! machine: its inputs are frames and the time, its output is the next action. It opens nothing, waits for nothing
//! and reads no clock, so that a seed replays every case. Knows no table.
//!
//! A request is stored as its frame until it is answered. After a broken connection, unanswered requests are sent
//! again in their order on the next one. That is safe: pulls are idempotent, and the server knows the numbers of
//! pushes. If the server was restarted and has lost what a request needs, the request fails.

use std::time::Duration;

use sanderling_wire::{Agreed, Buffer, Fault, Features, Hello, Offer, Reply, Request, WireError, limit};

use crate::outage::LAST_TRY;
use sanderling_random::SplitMix64;

mod answers;

mod begin;
pub(crate) use begin::Timeout;

mod calls;
use calls::Calls;
pub(crate) use calls::MovedCall;

mod hedge;
pub use hedge::{Hedge, HedgeCounts};
pub(crate) use hedge::{HedgeCounters, Hedging};

mod peer;
pub(crate) use peer::Needs;
pub use peer::Peer;

/// Requests of one server that a thread may have under way, whatever the server allows.
pub const IN_FLIGHT_MAX: usize = 64;
const SILENT: &str = "it does not answer";
/// First and longest wait before another attempt.
const BACKOFF_MIN_US: u64 = 1_000;
const BACKOFF_MAX_US: u64 = 500_000;

/// How a client behaves towards a server that does not answer as it should.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Within which a request must be answered, all attempts together.
    pub(crate) timeout: Duration,
    /// Within which a server that is away must be back.
    pub(crate) away: Duration,
    /// Seed of the jitter.
    pub(crate) seed: u64,
}

/// Why a request has no answer, or a bad one. Who asked whom about what, the caller knows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CallError {
    /// The server refused.
    Refused { fault: Fault, reason: String },
    /// Not answered in time. `sent`: the server may have carried it out. `cause`: what went wrong meanwhile, if anything.
    Late { sent: bool, cause: Option<String> },
    /// Not answered in time because the server has been away for too long.
    Away { sent: bool, cause: Option<String> },
    /// The server was started anew and has lost what the request needs.
    Restarted,
    /// The connection broke, and the request may not be repeated.
    Lost { cause: String },
    /// The message is no valid answer.
    Protocol { reason: String },
    /// The caller was told to stop while the server was silent.
    Stopped,
}

/// The next action of the owner of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// Open a connection, then say [`RpcState::connected`] or [`RpcState::disconnected`].
    Connect,
    /// Send [`RpcState::outgoing`], then say [`RpcState::sent`].
    Send,
    /// Close the connection.
    Close,
    /// Wait for frames, or for [`RpcState::wake_us`].
    Nothing,
}

/// A request that has its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Done {
    /// As it was begun with.
    pub(crate) tag: u64,
    /// When it was asked for.
    pub(crate) began_us: u64,
    /// Was it asked for over another connection, too?
    pub(crate) is_hedged: bool,
}

/// The meaning of a received frame.
#[derive(Debug)]
pub(crate) enum Answer<'a> {
    /// The answer to a request.
    To(Done, Reply<'a>),
    /// Nothing of a request was carried out: keys of it are at another server of the cluster.
    Moved(Done, MovedCall),
    /// Nothing for the caller.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No connection; none is tried before this time.
    Down {
        until_us: u64,
    },
    /// A connection attempt is running.
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

/// See the top of this file. All times are microseconds on the caller's clock.
#[derive(Debug)]
pub(crate) struct RpcState {
    patience: Patience,
    token: String,
    name: String,
    random: SplitMix64,
    phase: Phase,
    offer: Offer,
    agreed: Agreed,
    peer: Option<Peer>,
    /// Which shard it must be, of how many; None: any.
    place: Option<(u32, u32)>,
    /// Whether it leads to a group of a cluster: what another replica is the primary for is asked of that one, what another
    /// group has is handed back, and the number of shards may change.
    follows_group: bool,
    hello: Buffer,
    calls: Calls,
    /// Consecutive attempts that came to nothing.
    attempts: u32,
    /// Nothing is sent before this time: the server is busy.
    hold_until_us: u64,
    heard_us: u64,
    /// The last error of the connection.
    cause: Option<String>,
    /// It was silent when the client was told to stop, and has been since.
    given_up: bool,
    /// Since when the server is away, as far as anybody knows.
    outage_us: Option<u64>,
    /// When the owner looked again after a long pause.
    back_us: u64,
    /// When the latest attempt to connect began, and the latest that came to nothing.
    tried_us: u64,
    vain_us: Option<u64>,
}

impl RpcState {
    /// Nothing is connected before there is a request. `name` is how the client wants to be called.
    pub(crate) fn new(patience: Patience, token: &str, name: &str) -> RpcState {
        let offer = Offer::of(Features::NONE);
        RpcState {
            patience,
            token: token.to_owned(),
            name: name.to_owned(),
            random: SplitMix64::new(patience.seed),
            phase: Phase::Down { until_us: 0 },
            offer,
            agreed: Agreed {
                version: offer.version_max,
                features: Features::NONE,
                frame_bytes_max: offer.frame_bytes_max,
            },
            peer: None,
            place: None,
            follows_group: false,
            hello: Buffer::new(limit::HELLO_BYTES_MAX),
            calls: Calls::default(),
            attempts: 0,
            hold_until_us: 0,
            heard_us: 0,
            cause: None,
            given_up: false,
            outage_us: None,
            back_us: 0,
            tried_us: 0,
            vain_us: None,
        }
    }

    /// The server that answered last.
    pub(crate) fn peer(&self) -> Option<&Peer> {
        self.peer.as_ref()
    }

    /// The agreement for the next frame that is sent.
    pub(crate) fn agreed(&self) -> Agreed {
        if matches!(self.phase, Phase::Up | Phase::Leaving) { self.agreed } else { Agreed::BEFORE_HELLO }
    }

    /// Sets the identity that the server gave elsewhere, before it is greeted here. If it has become another shard,
    /// which has other rows, it gets no requests.
    pub(crate) fn expect(&mut self, peer: &Peer) {
        self.agreed.frame_bytes_max = peer.frame_bytes_max;
        self.place = Some((peer.shard, peer.shards));
    }

    /// It leads to the primary of this group of a cluster, wherever that is.
    pub(crate) fn follow_group(&mut self, group: u32) {
        (self.follows_group, self.place) = (true, Some((group, 0)));
    }

    /// Asks nothing more over this connection, and goes on over another one.
    pub(crate) fn leave(&mut self) {
        if self.phase == Phase::Up {
            self.phase = Phase::Leaving;
        }
    }

    /// Longest frame.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        self.agreed.frame_bytes_max as usize
    }

    /// Requests that have neither an answer nor failed.
    pub(crate) fn outstanding(&self) -> usize {
        self.calls.outstanding()
    }

    /// Is there room for another request?
    pub(crate) fn has_room(&self) -> bool {
        self.outstanding() < IN_FLIGHT_MAX
    }

    /// The next action. After any action but [`Want::Nothing`], ask again.
    pub(crate) fn want(&mut self, now_us: u64) -> Want {
        match self.phase {
            Phase::Down { until_us } if self.outstanding() > 0 && until_us <= now_us => {
                (self.phase, self.tried_us) = (Phase::Connecting, now_us);
                Want::Connect
            }
            Phase::Greeting { sent: false } => Want::Send,
            Phase::Up if self.has_next() && self.hold_until_us <= now_us => Want::Send,
            Phase::Leaving if self.calls.sent() == 0 => {
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

    /// Is there a request to send that the server has room for?
    fn has_next(&self) -> bool {
        let allowed = self.peer.as_ref().map_or(1, |peer| peer.in_flight_max.max(1) as usize);
        self.calls.has_queued() && self.calls.sent() < allowed.min(IN_FLIGHT_MAX)
    }

    /// When to ask again though nothing was received.
    pub(crate) fn wake_us(&self) -> Option<u64> {
        let deadline = self.calls.first_deadline_us()?;
        let later = match self.phase {
            Phase::Down { until_us } => until_us,
            Phase::Up if self.has_next() => self.hold_until_us,
            _ => u64::MAX,
        };
        Some(deadline.min(later).min(self.given_up_at_us().unwrap_or(u64::MAX)))
    }

    /// Sets the start of the server's outage; `None`: it is not away.
    pub(crate) fn note_outage(&mut self, since_us: Option<u64>) {
        self.outage_us = since_us;
    }

    /// Until when a server that is away is waited for.
    fn over_us(&self) -> Option<u64> {
        let since_us = self.outage_us?;
        // Over a connection that was heard since, it is not away.
        let is_heard = matches!(self.phase, Phase::Up | Phase::Leaving) && self.heard_us > since_us;
        let away_us = u64::try_from(self.patience.away.as_micros()).unwrap_or(u64::MAX);
        // Without a look there was no attempt.
        let least_us = self.back_us.saturating_add(self.last_try_us());
        (!is_heard).then(|| since_us.saturating_add(away_us).max(least_us))
    }

    /// How long a request gets though the server has been away for too long.
    fn last_try_us(&self) -> u64 {
        LAST_TRY.min(self.patience.away).as_micros() as u64
    }

    fn given_up_at_us(&self) -> Option<u64> {
        self.calls.first_away_us(self.over_us()?, self.last_try_us(), self.vain_us)
    }

    /// How long an attempt to connect may take.
    pub(crate) fn within(&self, now_us: u64) -> Duration {
        let until_us = self.given_up_at_us().into_iter().chain(self.calls.first_deadline_us()).min();
        // One that is cut too short comes to nothing though the server is there.
        let least_us = self.last_try_us();
        until_us.map_or(Duration::MAX, |us| Duration::from_micros(us.saturating_sub(now_us).max(least_us)))
    }

    /// Since when the oldest request waits, whether nothing was heard since over a connection, and what is in the way.
    pub(crate) fn waits(&self) -> Option<(u64, bool, &str)> {
        let asked_us = self.calls.first_begun_us()?;
        let is_silent = self.phase == Phase::Up && self.heard_us <= asked_us;
        let cause = self.cause.as_deref().filter(|_| self.phase != Phase::Up);
        Some((asked_us, is_silent, cause.unwrap_or(SILENT)))
    }

    /// The server, if requests are answered over a connection now.
    pub(crate) fn peer_when_up(&self) -> Option<&Peer> {
        self.peer.as_ref().filter(|_| self.phase == Phase::Up)
    }

    /// The frame to be sent, after [`Want::Send`].
    pub(crate) fn outgoing(&self) -> &[u8] {
        match self.phase {
            Phase::Greeting { .. } => self.hello.bytes(),
            _ => self.calls.next_frame(),
        }
    }

    /// Makes the frame to be sent say how much time is left for its answer. `true`: it has changed.
    pub(crate) fn age_outgoing(&mut self, now_us: u64) -> bool {
        let agreed = self.agreed();
        !matches!(self.phase, Phase::Greeting { .. }) && self.calls.age_next(now_us, &agreed)
    }

    /// The number of that frame; 0 for a hello.
    pub(crate) fn outgoing_id(&self) -> u64 {
        if matches!(self.phase, Phase::Greeting { .. }) { 0 } else { self.calls.next_id() }
    }

    /// The tag of that frame's request; none for a hello.
    pub(crate) fn outgoing_tag(&self) -> Option<u64> {
        if matches!(self.phase, Phase::Greeting { .. }) { None } else { self.calls.next_tag() }
    }

    /// It is on its way.
    pub(crate) fn sent(&mut self, now_us: u64) {
        if let Phase::Greeting { sent } = &mut self.phase {
            *sent = true;
        } else {
            self.calls.next_sent(now_us);
        }
    }

    /// From now on the hello has this token.
    pub(crate) fn say_token(&mut self, token: String) {
        self.token = token;
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
        if let Phase::Closing { until_us } = self.phase {
            // It was of no use any more, and why is known better than from its end: a server that refuses a hello closes.
            self.phase = Phase::Down { until_us };
            return;
        }
        if matches!(self.phase, Phase::Connecting | Phase::Greeting { .. }) {
            self.vain_us = Some(self.tried_us);
        }
        self.calls.requeue(&cause);
        if self.phase != Phase::Leaving {
            self.cause = Some(cause);
        }
        self.phase = Phase::Down { until_us: self.retry_at_us(now_us) };
    }

    /// There is no connection, and another attempt would come to the same.
    pub(crate) fn hopeless(&mut self, now_us: u64, reason: String) {
        self.calls.fail_all(&CallError::Protocol { reason: reason.clone() });
        self.disconnected(now_us, reason);
    }

    /// As [`RpcState::disconnected`], of a connection that is still open.
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

    /// Ends what was not answered in time. If the server has been silent, since when.
    pub(crate) fn expire(&mut self, now_us: u64) -> Option<u64> {
        // A cause that has been overcome explains nothing.
        let cause = match self.phase {
            Phase::Up => None,
            Phase::Greeting { .. } => Some(SILENT),
            _ => self.cause.as_deref(),
        };
        let silent_us = self.calls.expire(now_us, self.heard_us, cause);
        if let Some(over_us) = self.over_us() {
            let last_try_us = self.last_try_us();
            self.calls.expire_away(now_us, over_us, last_try_us, self.vain_us, cause);
        }
        let in_vain = matches!(self.phase, Phase::Greeting { .. }) && self.outstanding() == 0;
        if silent_us.is_some() || in_vain {
            // A peer that says nothing may be gone without a word: the next request deserves another connection.
            self.give_up(now_us, SILENT);
        }
        silent_us.or(in_vain.then_some(now_us))
    }

    /// Extends the deadlines by the time since `looked_us`, in which the owner did not look.
    pub(crate) fn postpone(&mut self, now_us: u64, looked_us: u64) {
        if now_us.saturating_sub(looked_us) > self.last_try_us() {
            self.back_us = now_us;
        }
        self.calls.postpone(now_us, looked_us);
    }

    /// The client was told to stop at that time: ends everything if the server has been silent for as long as it may.
    pub(crate) fn stop(&mut self, now_us: u64, told_us: u64, grace_us: u64) {
        let Some(asked_us) = self.calls.first_begun_us() else { return };
        let silent_us = now_us.saturating_sub(told_us.max(asked_us).max(self.heard_us));
        if self.given_up || silent_us >= grace_us {
            self.calls.fail_all(&CallError::Stopped);
            self.give_up(now_us, SILENT);
            self.given_up = true;
        }
    }

    /// The next request that failed, by its tag.
    pub(crate) fn next_failure(&mut self) -> Option<(u64, CallError)> {
        self.calls.next_failure()
    }
}

#[cfg(test)]
mod tests;
