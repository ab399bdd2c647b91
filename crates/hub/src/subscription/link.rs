//! The trainer's state of one hub, as a state machine: requests, arrivals, acknowledgements and the life of the
//! connection. It is fed with frames and the time and returns the next action; it opens nothing, never blocks and
//! reads no clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use sanderling_observe::SpanContext;
use sanderling_wire::{
    Agreed, Buffer, Codec, Compression, Features, Hello, Keys, Leave, Offer, Request, Trace, WireError, limit,
};

use super::error::HubError;
use super::full_batches::Answer;
use super::{Delivered, SubscribeOptions};

/// First pause before another attempt to connect.
const BACKOFF_MIN_US: u64 = 1_000;
const BACKOFF_MAX_US: u64 = 500_000;

/// The next action of the connection's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// Open a connection, then call [`Link::connected`] or [`Link::disconnected`].
    Connect,
    /// Send [`Link::outgoing`], then call [`Link::sent`].
    Send,
    /// Close the connection.
    Close,
    /// Wait for frames, or for [`Link::wake_us`].
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// No connection; the next attempt is due at this time.
    Down {
        until_us: u64,
    },
    Connecting,
    Greeting,
    Subscribing,
    Describing,
    Up,
    /// The connection is to be closed.
    Closing {
        until_us: u64,
    },
}

/// The state of this trainer's unsubscribe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnsubscribeState {
    No,
    Wanted,
    Said,
    /// Done: nothing more is sent.
    Over,
}

/// The facts that a hub announced about its minibatches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Announced {
    pub(super) columns: Vec<(String, bool)>,
    pub(super) passes: u64,
    pub(super) stride: u32,
    pub(super) rows: u32,
    pub(super) window: u32,
}

/// A request without an answer yet.
#[derive(Debug)]
pub(super) struct PendingRequest {
    wanted: bool,
    used: Vec<u64>,
}

/// A request for a minibatch with all its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FullBatchRequest {
    pub(super) ticket: u64,
    pub(super) number: u64,
}

/// The trainer's state of one hub. All times are microseconds on the caller's clock.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) index: usize,
    pub(super) hub: String,
    pub(super) trainer: String,
    pub(super) options: SubscribeOptions,
    pub(super) phase: Phase,
    pub(super) agreed: Agreed,
    pub(super) offer: Offer,
    pub(super) stream: u64,
    pub(super) known: Option<Announced>,
    /// The description of its rows, once it was asked for and sent.
    pub(super) description: Option<String>,
    /// Whether the requests that are sent once were answered.
    pub(super) introduced: bool,
    /// Whether minibatches are asked for: not before the first call waits for one.
    pub(super) asks: bool,
    pub(super) unsubscribe: UnsubscribeState,
    pub(super) outgoing: VecDeque<Buffer>,
    pub(super) ids: u64,
    pub(super) asked: BTreeMap<u64, PendingRequest>,
    /// Minibatches that were delivered and not acknowledged, whether they wait here or not.
    pub(super) held: BTreeSet<u64>,
    /// Acknowledgements that are not sent yet.
    pub(super) used: Vec<u64>,
    /// Further ones, each with the trainer's span of its minibatch.
    pub(super) traced: VecDeque<(u64, SpanContext)>,
    pub(super) ready: VecDeque<Delivered>,
    pub(super) wait_until_us: u64,
    /// Whether the hub had none ready: it is asked for one at a time until one comes.
    pub(super) starved: bool,
    pub(super) over: bool,
    pub(super) attempts: u32,
    /// The time at which the subscription was lost.
    pub(super) down_since_us: Option<u64>,
    pub(super) heard_us: u64,
    pub(super) cause: String,
    pub(super) error: Option<HubError>,
    /// Unpacks compressed frames.
    pub(super) unpacker: Codec,
    pub(super) late: u64,
    pub(super) waits: u64,
    /// Requests for minibatches with all their keys, not to be sent before this time.
    pub(super) full_wanted: VecDeque<FullBatchRequest>,
    pub(super) whole_until_us: u64,
    /// The requests that were sent, by request id.
    pub(super) full_requested: BTreeMap<u64, FullBatchRequest>,
    /// Their outcomes.
    pub(super) full_batches: Vec<(u64, Answer)>,
}

impl Link {
    pub(super) fn new(index: usize, hub: String, trainer: &str, options: &SubscribeOptions) -> Link {
        Link {
            index,
            hub,
            trainer: trainer.to_owned(),
            options: options.clone(),
            phase: Phase::Down { until_us: 0 },
            agreed: Agreed::BEFORE_HELLO,
            offer: Offer::of(Features::NONE),
            stream: 0,
            known: None,
            description: None,
            introduced: false,
            asks: false,
            unsubscribe: UnsubscribeState::No,
            outgoing: VecDeque::new(),
            ids: 0,
            asked: BTreeMap::new(),
            held: BTreeSet::new(),
            used: Vec::new(),
            traced: VecDeque::new(),
            ready: VecDeque::new(),
            wait_until_us: 0,
            starved: false,
            over: false,
            attempts: 0,
            down_since_us: None,
            heard_us: 0,
            cause: "it has not been tried".to_owned(),
            error: None,
            unpacker: Codec::new(),
            late: 0,
            waits: 0,
            full_wanted: VecDeque::new(),
            whole_until_us: 0,
            full_requested: BTreeMap::new(),
            full_batches: Vec::new(),
        }
    }

    pub(super) fn hub(&self) -> &str {
        &self.hub
    }

    pub(super) fn known(&self) -> Option<&Announced> {
        self.known.as_ref()
    }

    /// Whether the hub has nothing more for any trainer.
    pub(super) fn is_over(&self) -> bool {
        self.over && self.ready.is_empty()
    }

    pub(super) fn error(&self) -> Option<&HubError> {
        self.error.as_ref()
    }

    /// Takes the next minibatch that has arrived.
    pub(super) fn take(&mut self) -> Option<Delivered> {
        self.ready.pop_front()
    }

    /// Acknowledges a minibatch, of which the trainer has this span.
    pub(super) fn acknowledge(&mut self, number: u64, span: Option<SpanContext>) {
        if self.held.remove(&number) {
            match span.filter(|_| self.agreed.features.has(Features::TRACES)) {
                Some(span) => self.traced.push_back((number, span)),
                None => self.used.push(number),
            }
        }
    }

    /// Whether the hub has confirmed every acknowledgement.
    pub(super) fn is_settled(&self) -> bool {
        let has_none = self.used.is_empty() && self.traced.is_empty();
        self.over || has_none && self.asked.values().all(|asked| asked.used.is_empty())
    }

    /// The next action. Call it again after any action except [`Want::Nothing`].
    pub(super) fn want(&mut self, now_us: u64) -> Want {
        self.expire(now_us);
        match self.phase {
            Phase::Closing { until_us } => {
                self.phase = Phase::Down { until_us };
                Want::Close
            }
            _ if self.error.is_some() || self.over || self.unsubscribe == UnsubscribeState::Over => {
                Want::Nothing
            }
            Phase::Down { until_us } if until_us <= now_us => {
                self.down_since_us.get_or_insert(now_us);
                self.phase = Phase::Connecting;
                Want::Connect
            }
            Phase::Up => {
                if self.outgoing.is_empty() {
                    self.ask_for_wholes(now_us);
                    match self.unsubscribe {
                        UnsubscribeState::No if self.asks => self.ask(now_us),
                        UnsubscribeState::Wanted => self.say_farewell(now_us),
                        UnsubscribeState::No | UnsubscribeState::Said | UnsubscribeState::Over => {}
                    }
                }
                self.want_to_send()
            }
            Phase::Greeting | Phase::Subscribing | Phase::Describing => self.want_to_send(),
            Phase::Down { .. } | Phase::Connecting => Want::Nothing,
        }
    }

    fn want_to_send(&self) -> Want {
        if self.outgoing.is_empty() { Want::Nothing } else { Want::Send }
    }

    /// The time at which to call [`Link::want`] again without a frame.
    pub(super) fn wake_us(&self) -> Option<u64> {
        if self.error.is_some() || self.over || self.unsubscribe == UnsubscribeState::Over {
            return None;
        }
        let silent_us = self.heard_us.saturating_add(self.options.timeout.as_micros() as u64) + 1;
        match self.phase {
            Phase::Down { until_us } => Some(until_us),
            Phase::Greeting | Phase::Subscribing | Phase::Describing => Some(silent_us),
            Phase::Up => {
                let ask_us = self.may_ask().then_some(self.wait_until_us);
                let waits = self.waits_for_answers();
                let whole_us = (!self.full_wanted.is_empty()).then_some(self.whole_until_us);
                let ask_us = ask_us.filter(|_| self.asks && self.unsubscribe == UnsubscribeState::No);
                let silent_us = waits.then_some(silent_us);
                ask_us.into_iter().chain(silent_us).chain(whole_us).min()
            }
            Phase::Connecting | Phase::Closing { .. } => Some(0),
        }
    }

    /// Gives up a hub that is gone for too long, and a connection that is silent.
    fn expire(&mut self, now_us: u64) {
        let waited = Duration::from_micros(now_us.saturating_sub(self.down_since_us.unwrap_or(now_us)));
        let is_needed = !self.over && self.unsubscribe != UnsubscribeState::Over;
        if waited > self.options.patience && is_needed && self.error.is_none() {
            let (hub, cause) = (self.hub.clone(), self.cause.clone());
            self.error = Some(HubError::Gone { hub, waited, cause });
            self.give_up(now_us);
        }
        let waits = self.waits_for_answers()
            || matches!(self.phase, Phase::Greeting | Phase::Subscribing | Phase::Describing);
        let timeout_us = self.options.timeout.as_micros() as u64;
        if self.is_connected() && waits && now_us > self.heard_us.saturating_add(timeout_us) {
            self.cause = "it does not answer".to_owned();
            self.give_up(now_us);
        }
    }

    fn waits_for_answers(&self) -> bool {
        !self.asked.is_empty()
            || !self.full_requested.is_empty()
            || self.unsubscribe == UnsubscribeState::Said
    }

    /// Asks for a minibatch held here with all its keys.
    pub(super) fn ask_whole(&mut self, ticket: u64, number: u64) {
        self.full_wanted.push_back(FullBatchRequest { ticket, number });
    }

    /// Takes the outcomes of such requests. After an unsubscribe or the end of all passes the trainer holds none.
    pub(super) fn take_wholes(&mut self) -> Vec<(u64, Answer)> {
        if self.over || self.unsubscribe != UnsubscribeState::No {
            let asked = std::mem::take(&mut self.full_requested).into_values();
            self.full_batches
                .extend(self.full_wanted.drain(..).chain(asked).map(|asked| (asked.ticket, None)));
        }
        std::mem::take(&mut self.full_batches)
    }

    fn ask_for_wholes(&mut self, now_us: u64) {
        if now_us < self.whole_until_us || self.unsubscribe != UnsubscribeState::No {
            return;
        }
        while let Some(asked) = self.full_wanted.pop_front() {
            if !self.waits_for_answers() {
                self.heard_us = now_us;
            }
            self.ids += 1;
            self.put(&Request::Keys(Keys { number: asked.number }), self.ids);
            self.full_requested.insert(self.ids, asked);
        }
    }

    /// Handles hub and trainer disagreeing on TLS. That does not pass by itself, unless they agreed before: a
    /// certificate may have been renewed on one side first.
    pub(super) fn unfit(&mut self, reason: String) {
        if self.known.is_none() && self.error.is_none() {
            self.error = Some(HubError::Tls(reason));
        }
    }

    /// Closes the connection and tries another one later.
    pub(super) fn give_up(&mut self, now_us: u64) {
        let cause = std::mem::take(&mut self.cause);
        self.disconnected(now_us, cause);
        if let Phase::Down { until_us } = self.phase {
            self.phase = Phase::Closing { until_us };
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(self.phase, Phase::Greeting | Phase::Subscribing | Phase::Describing | Phase::Up)
    }

    fn window(&self) -> usize {
        self.known.as_ref().map_or(0, |known| known.window.min(self.options.window) as usize)
    }

    /// Whether there is room for another minibatch once the hub has the acknowledgements, which it gets first.
    fn may_ask(&self) -> bool {
        let wanted = self.asked.values().filter(|asked| asked.wanted).count();
        self.held.len() + wanted < self.window() && !(self.starved && wanted > 0)
    }

    /// Builds the next request, if one is due.
    fn ask(&mut self, now_us: u64) {
        if let Some((number, SpanContext { trace, span })) = self.traced.pop_front() {
            let trace = Trace { trace_high: (trace >> 64) as u64, trace_low: trace as u64, span };
            self.put(&Request::Trace(trace), 0);
            return self.request(now_us, false, vec![number]);
        }
        let wanted = now_us >= self.wait_until_us && self.may_ask();
        // At most one pure acknowledgement is under way: later acknowledgements go with the next request.
        let is_saying = self.asked.values().any(|asked| !asked.used.is_empty());
        if !wanted && (self.used.is_empty() || is_saying) {
            return;
        }
        let used = std::mem::take(&mut self.used);
        self.request(now_us, wanted, used);
    }

    fn request(&mut self, now_us: u64, wanted: bool, used: Vec<u64>) {
        if self.asked.is_empty() {
            self.heard_us = now_us;
        }
        self.ids += 1;
        self.put(&Request::Next(sanderling_wire::Next { wanted, used: &used }), self.ids);
        self.asked.insert(self.ids, PendingRequest { wanted, used });
    }

    /// Unsubscribes from this hub, which then releases the leases at once. A hub that is down, or of a version
    /// without unsubscribe, releases them when the trainer expires.
    pub(super) fn leave(&mut self) {
        if self.unsubscribe != UnsubscribeState::No {
            return;
        }
        let can = self.phase == Phase::Up && self.agreed.features.has(Features::LEAVE);
        self.unsubscribe = if can && !self.over && self.error.is_none() {
            UnsubscribeState::Wanted
        } else {
            UnsubscribeState::Over
        };
    }

    /// Whether the unsubscribe is done.
    pub(super) fn has_left(&self) -> bool {
        self.over || self.error.is_some() || self.unsubscribe == UnsubscribeState::Over
    }

    fn say_farewell(&mut self, now_us: u64) {
        // Requests on this connection are answered first; minibatches that arrive with them are released with the
        // rest.
        self.heard_us = now_us;
        self.ids += 1;
        self.used.extend(self.traced.drain(..).map(|(number, _)| number));
        let used = std::mem::take(&mut self.used);
        self.put(&Request::Leave(Leave { used: &used }), self.ids);
        self.unsubscribe = UnsubscribeState::Said;
    }

    pub(super) fn put(&mut self, request: &Request<'_>, id: u64) {
        let mut frame = Buffer::new(limit::FRAME_BYTES_MAX);
        match frame.append(|out| request.encode(&self.agreed, id, 0, out)) {
            Ok(_) => self.outgoing.push_back(frame),
            Err(error) => self.broken(&error),
        }
    }

    pub(super) fn broken(&mut self, error: &WireError) {
        self.error = Some(HubError::Protocol { hub: self.hub.clone(), reason: error.to_string() });
    }

    /// The frame to be sent, after [`Want::Send`].
    pub(super) fn outgoing(&self) -> &[u8] {
        self.outgoing.front().map_or(&[], Buffer::bytes)
    }

    /// Notes that the frame was sent.
    pub(super) fn sent(&mut self) {
        self.outgoing.pop_front();
    }

    /// Notes that a connection is open.
    pub(super) fn connected(&mut self, now_us: u64, features: Features) {
        (self.phase, self.heard_us) = (Phase::Greeting, now_us);
        let fed = if self.options.takes_fed { Features::FED } else { Features::NONE };
        // Shared memory copies faster than it compresses.
        let compression = self.options.compression.filter(|_| !features.has(Features::NO_CHECKSUM));
        let packed = compression.map_or(Features::NONE, Compression::feature);
        let traces = if self.options.spans.is_some() { Features::TRACES } else { Features::NONE };
        let features = features | Features::DESCRIBE | Features::LEAVE | fed | packed | traces;
        self.unpacker = Codec::new();
        (self.agreed, self.offer) = (Agreed::BEFORE_HELLO, Offer::of(features));
        let token = self.options.token.clone();
        let name = self.trainer.clone();
        self.put(&Request::Hello(Hello { offer: self.offer, token: &token, name: &name }), 0);
    }

    /// Notes that there is no connection, or no longer; requests without an answer are sent again.
    pub(super) fn disconnected(&mut self, now_us: u64, cause: String) {
        self.cause = cause;
        if self.unsubscribe != UnsubscribeState::No {
            // It is not repeated: the end of the connection has the same effect, later.
            self.unsubscribe = UnsubscribeState::Over;
        }
        self.outgoing.clear();
        self.full_wanted.extend(std::mem::take(&mut self.full_requested).into_values());
        self.used.extend(self.traced.drain(..).map(|(number, _)| number));
        for (_, asked) in std::mem::take(&mut self.asked) {
            self.used.extend(asked.used);
        }
        self.down_since_us.get_or_insert(now_us);
        let attempts = self.attempts;
        self.attempts = attempts.saturating_add(1);
        let backoff_us =
            if attempts == 0 { 0 } else { (BACKOFF_MIN_US << attempts.min(16)).min(BACKOFF_MAX_US) };
        self.phase = Phase::Down { until_us: now_us + backoff_us };
    }
}

#[cfg(test)]
mod tests;
