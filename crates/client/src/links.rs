//! The connections of one thread, one per server, or two when pulls are hedged: opens them, moves frames between them and
//! the exchanges, and waits. What is asked and answered is not known here.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_observe::unique;
use sanderling_transport::{Address, Endpoint, Error, Framing, Poller, Received, Token, own_token};
use sanderling_wire::{Features, HEADER_BYTES, Reply, Request, RowFormat, WireError, body_bytes, limit};

use crate::error::{ClientError, Names};
use crate::exchange::{Answer, CallError, Exchange, Hedging, IN_FLIGHT_MAX, Patience, Peer, Want};
use crate::options::ConnectOptions;
use crate::outage::Outages;
use crate::packing::Packing;
use crate::reach::reach;
use crate::statistics::Recorder;
use crate::stop::Watch;

mod waiting;

/// While a server takes nothing, its answers must be taken all the same, or the two would wait for each other.
const BLOCKED_LOOK: Duration = Duration::from_millis(1);

/// A server is told the time before requests that are sent later than so long after it was last told.
const TELL_TIME_US: u64 = 1000;
/// The frame that does so.
const SENT_AT_BYTES: usize = HEADER_BYTES + size_of::<u64>();

/// Time in which nobody looked is not noticed below this.
const UNSEEN_US_MIN: u64 = 1000;
/// Instead of when somebody last looked: somebody waits.
const WAITING: u64 = u64::MAX;

/// How long frames are.
const FRAMING: Framing = Framing {
    header_bytes: HEADER_BYTES,
    body_bytes: |header| {
        let header = header.try_into().map_err(|_| "a header of another length".to_owned())?;
        body_bytes(header).map_err(|error| error.to_string())
    },
    frame_bytes_max: limit::FRAME_BYTES_MAX,
};

/// What becomes of a request: the server's index, the request's tag, and the answer.
pub(crate) type Sink<'a> = dyn FnMut(usize, u64, Result<Reply<'_>, CallError>) + 'a;

#[derive(Debug)]
struct Link {
    address: Address,
    exchange: Exchange,
    connection: Option<Token>,
    packing: Packing,
    /// When the server was last told the time, on this connection.
    told_us: Option<u64>,
}

/// See the top of this file.
#[derive(Debug)]
pub(crate) struct Links {
    /// By server; then, when pulls are hedged, the second ones.
    links: Vec<Link>,
    /// By server; none when pulls are not hedged.
    hedging: Vec<Hedging>,
    servers: usize,
    options: Arc<ConnectOptions>,
    names: Names,
    /// Where it is noted how long answers took, if anybody wants to know.
    recorder: Option<Recorder>,
    poller: Poller,
    ready: Vec<Token>,
    start: Instant,
    /// When somebody last looked for what there is to do, or [`WAITING`].
    looked_us: u64,
    watch: Watch,
    outages: Arc<Outages>,
    /// When to look next whom to tell of.
    tell_at: Instant,
    /// Time-out of the requests that are begun from now on; None: that of the options.
    within: Option<Duration>,
}

impl Links {
    /// Connects when there is something to ask.
    pub(crate) fn new(
        addresses: &[Address],
        options: &Arc<ConnectOptions>,
        timeout: Duration,
        outages: &Arc<Outages>,
        hedging: Option<impl FnMut() -> Hedging>,
    ) -> Result<Links, ClientError> {
        let away = outages.bound();
        let link = |address: &Address| {
            let patience = Patience { timeout, away, seed: unique() };
            let exchange = Exchange::new(patience, &options.token, &options.name);
            // What does not leave the host is copied faster than compressed.
            let compression = options.compression.filter(|_| !address.in_memory());
            let packing = Packing::new(compression);
            Link { address: address.clone(), exchange, connection: None, packing, told_us: None }
        };
        let lanes = if hedging.is_some() { 2 } else { 1 };
        let links = (0..lanes).flat_map(|_| addresses).map(link).collect();
        let hedging =
            hedging.map_or_else(Vec::new, |of| std::iter::repeat_with(of).take(addresses.len()).collect());
        let names = Names { servers: addresses.iter().map(Address::to_string).collect(), timeout, away };
        let poller = Poller::new(options.spin_us)?;
        Ok(Links {
            links,
            hedging,
            servers: addresses.len(),
            options: Arc::clone(options),
            names,
            recorder: None,
            poller,
            ready: Vec::new(),
            start: Instant::now(),
            looked_us: 0,
            watch: Watch::new(options.stop.clone()),
            outages: Arc::clone(outages),
            tell_at: Instant::now(),
            within: None,
        })
    }

    /// Before a server is greeted here, it is taken for what it said of itself elsewhere.
    pub(crate) fn expect(&mut self, server: usize, peer: &Peer) {
        for link in self.links.iter_mut().skip(server).step_by(self.servers) {
            link.exchange.expect(peer);
        }
    }

    /// See [`Watch::bear_silence`].
    pub(crate) fn bear_silence(&mut self) {
        self.watch.bear_silence();
    }

    /// From now on requests have this time-out, at most that of the options; None: that one.
    pub(crate) fn limit(&mut self, within: Option<Duration>) {
        self.within = within;
    }

    /// From now on notes there how long answers take.
    pub(crate) fn record(&mut self, recorder: Recorder) {
        self.recorder = Some(recorder);
    }

    pub(crate) fn len(&self) -> usize {
        self.servers
    }

    /// How rows are to be asked for.
    pub(crate) fn row_format(&self, server: usize) -> RowFormat {
        let wanted = if self.options.f16_rows { RowFormat::F16 } else { RowFormat::F32 };
        self.links[server].exchange.row_format(wanted)
    }

    /// Has the server agreed to this? Not before it has answered.
    pub(crate) fn can(&self, server: usize, features: Features) -> bool {
        self.links[server].exchange.agreed().features.has(features)
    }

    /// Names for errors.
    pub(crate) fn names(&self) -> Names {
        self.names.clone()
    }

    /// Who answered there.
    pub(crate) fn peer(&self, server: usize) -> Option<&Peer> {
        self.links[server].exchange.peer()
    }

    /// The shortest of the longest frames.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        self.links.iter().map(|link| link.exchange.frame_bytes_max()).min().unwrap_or_default()
    }

    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// Would so many more requests of a server be taken without waiting? Of more than ever can be under way some wait anyway: then
    /// it is enough that none is.
    pub(crate) fn has_room(&self, server: usize, requests: usize) -> bool {
        let outstanding = self.links[server].exchange.outstanding();
        outstanding == 0 || outstanding + requests <= IN_FLIGHT_MAX
    }

    /// Takes a request, waiting for answers to others (which go to `sink`) while too many are under way. It goes with
    /// the next [`Links::send`] or [`Links::settle`].
    pub(crate) fn begin(
        &mut self,
        server: usize,
        tag: u64,
        boot_id: Option<u64>,
        request: &Request<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), WireError> {
        if !self.links[server].exchange.has_room() {
            self.send(sink);
        }
        while !self.links[server].exchange.has_room() {
            self.turn(None, sink);
        }
        let now_us = self.now_us();
        self.links[server].exchange.begin_within(now_us, self.within, tag, boot_id, request)?;
        if let Some(recorder) = &self.recorder {
            recorder.begun(request.kind(), now_us);
        }
        Ok(())
    }

    /// Sends what can be sent now.
    pub(crate) fn send(&mut self, sink: &mut Sink<'_>) {
        for link in 0..self.links.len() {
            self.advance(link, sink);
        }
    }

    /// Sends what there is to send and waits until every request has its answer or has failed.
    pub(crate) fn settle(&mut self, sink: &mut Sink<'_>) {
        self.settle_while(|| {}, sink);
    }

    /// The same, and does something else meanwhile.
    pub(crate) fn settle_while(&mut self, meanwhile: impl FnOnce(), sink: &mut Sink<'_>) {
        self.send(sink);
        meanwhile();
        while self.outstanding() > 0 {
            self.turn(None, sink);
        }
        if let Some(recorder) = &self.recorder {
            recorder.settled();
        }
    }

    /// Waits for frames, or until there is something else to do, or the time has come; then does it.
    pub(crate) fn turn(&mut self, until: Option<Instant>, sink: &mut Sink<'_>) {
        self.race(sink);
        let mut until_us = self.links.iter().filter_map(|link| link.exchange.wake_us()).min();
        let hedges = self.hedging.iter().zip(&self.links);
        let hedge_us = hedges.filter_map(|(hedging, link)| hedging.wake_us(&link.exchange)).min();
        until_us = until_us.into_iter().chain(hedge_us).min();
        let blocked = self.blocked();
        if blocked {
            let look_us = self.now_us() + BLOCKED_LOOK.as_micros() as u64;
            until_us = Some(until_us.map_or(look_us, |until_us| until_us.min(look_us)));
        }
        let deadline = until_us.map(|us| self.start + Duration::from_micros(us));
        let looks_at = self.watch.look_at().into_iter().chain(self.outages.is_told().then_some(self.tell_at));
        let deadline = deadline.into_iter().chain(until).chain(looks_at).min();
        let mut ready = std::mem::take(&mut self.ready);
        self.looked_us = WAITING;
        if self.poller.wait(&mut ready, deadline).is_err() {
            // The system cannot wait; deadlines still hold.
            std::thread::sleep(BLOCKED_LOOK);
        }
        if ready.is_empty() {
            self.give_up_if_told(0..self.links.len());
            self.tell_who_is_waited_for();
        }
        for link in 0..self.links.len() {
            let token = self.links[link].connection;
            if token.is_some_and(|token| blocked || ready.contains(&token)) {
                self.receive(link, sink);
            }
            self.advance(link, sink);
        }
        self.ready = ready;
    }

    /// Gives up those of these links whose servers are silent, if it is to stop.
    fn give_up_if_told(&mut self, links: Range<usize>) {
        let Some((since, grace)) = self.watch.look() else { return };
        let (now_us, told_us) = (self.now_us(), since.duration_since(self.start).as_micros() as u64);
        for link in &mut self.links[links] {
            link.exchange.stop(now_us, told_us, grace.as_micros() as u64);
        }
    }

    /// Takes the frames that are there, without waiting for any, and does what there is to do.
    pub(crate) fn look(&mut self, sink: &mut Sink<'_>) {
        self.race(sink);
        for link in 0..self.links.len() {
            self.receive(link, sink);
            self.advance(link, sink);
        }
    }

    /// Requests that have neither an answer nor failed.
    pub(crate) fn outstanding(&self) -> usize {
        self.links.iter().map(|link| link.exchange.outstanding()).sum()
    }

    /// Asks over the second connections for what has waited for too long.
    fn race(&mut self, sink: &mut Sink<'_>) {
        let now_us = self.now_us();
        for server in 0..self.hedging.len() {
            let (first, second) = self.links.split_at_mut(self.servers);
            let (first, second) = (&mut first[server].exchange, &mut second[server].exchange);
            let before = second.outstanding();
            self.hedging[server].race(now_us, first, second);
            if second.outstanding() > before {
                self.advance(self.servers + server, sink);
            }
        }
    }

    /// The other connection to the server of a link; itself when there is none.
    fn other(&self, link: usize) -> usize {
        (link + self.servers) % self.links.len()
    }

    fn blocked(&mut self) -> bool {
        let Links { links, poller, .. } = self;
        links
            .iter()
            .filter_map(|link| link.connection)
            .any(|token| poller.connection(token).is_some_and(|connection| connection.sender.is_blocked()))
    }

    /// Does what the exchange of a link wants, without waiting for frames.
    fn advance(&mut self, at: usize, sink: &mut Sink<'_>) {
        let mut committed = false;
        loop {
            let now_us = self.now_us();
            self.notice(now_us, None);
            let since = self.outages.since(at % self.servers);
            let since_us = since.map(|since| since.saturating_duration_since(self.start).as_micros() as u64);
            self.links[at].exchange.note_outage(since_us);
            if let Some(silent_us) = self.links[at].exchange.expire(now_us) {
                self.failed(at, silent_us);
            }
            match self.links[at].exchange.want(now_us) {
                Want::Connect => self.connect(at),
                Want::Close => {
                    if self.links[at].exchange.outstanding() > 0 {
                        self.failed(at, now_us);
                    }
                    self.close(at);
                }
                Want::Nothing => break,
                Want::Send => match self.commit(at) {
                    Ok(true) => committed = true,
                    Ok(false) => break,
                    Err(error) => self.lost(at, error.to_string()),
                },
            }
        }
        let Links { links, poller, .. } = self;
        let token = links[at].connection.filter(|_| committed);
        if let Some(connection) = token.and_then(|token| poller.connection(token))
            && let Err(error) = connection.sender.try_flush()
        {
            self.lost(at, error.to_string());
        }
        let other = self.other(at);
        while let Some((tag, error)) = self.links[at].exchange.next_failure() {
            // What is still under way over the other connection has not failed.
            if other == at || !self.links[other].exchange.has_hedged(tag) {
                sink(at % self.servers, tag, Err(error));
            }
        }
    }

    /// Time in which nobody looked is no delay of the servers: their answers may have been here all the while. It is one of
    /// the server that was `waited_for`.
    fn notice(&mut self, now_us: u64, waited_for: Option<usize>) {
        let looked_us = std::mem::replace(&mut self.looked_us, now_us);
        if now_us.saturating_sub(looked_us) > UNSEEN_US_MIN {
            let links = self.links.iter_mut().enumerate().filter(|(at, _)| Some(*at) != waited_for);
            links.for_each(|(_, link)| link.exchange.postpone(now_us, looked_us));
        }
    }

    /// Hands the next frame to the connection. `false`: it has no room now.
    fn commit(&mut self, at: usize) -> Result<bool, Error> {
        let now_us = self.now_us();
        let Links { links, poller, .. } = self;
        let link = &mut links[at];
        let Some(connection) = link.connection.and_then(|token| poller.connection(token)) else {
            return Ok(false);
        };
        let (id, agreed) = (link.exchange.outgoing_id(), link.exchange.agreed());
        let is_told = link.told_us.is_some_and(|told_us| now_us.saturating_sub(told_us) < TELL_TIME_US);
        if !is_told && agreed.features.has(Features::SENT_AT) {
            let Some(mut slot) = connection.sender.try_frame(SENT_AT_BYTES)? else {
                connection.sender.try_flush()?;
                return Ok(false);
            };
            let written = Request::SentAt(now_us).encode(&agreed, 0, 0, &mut slot);
            slot.commit(written.expect("a number fits"));
            link.told_us = Some(now_us);
        }
        if link.exchange.age_outgoing(now_us) {
            link.packing.restart();
        }
        let frame = link.packing.pack(id, link.exchange.outgoing(), &agreed);
        let Some(slot) = connection.sender.try_frame(frame.len())? else {
            connection.sender.try_flush()?;
            return Ok(false);
        };
        slot.write(frame);
        link.exchange.sent(now_us);
        Ok(true)
    }

    /// Takes all frames that are there.
    fn receive(&mut self, at: usize, sink: &mut Sink<'_>) {
        let now_us = self.now_us();
        let other = self.other(at);
        let Links { links, poller, hedging, servers, recorder, outages, names, .. } = self;
        let (server, by_second) = (at % *servers, at >= *servers);
        let Some(connection) = links[at].connection.and_then(|token| poller.connection(token)) else {
            return;
        };
        let ended = loop {
            match connection.receiver.try_receive() {
                Ok(Received::Frame(frame)) => {
                    let Link { exchange, packing, .. } = &mut links[at];
                    let answer = exchange.receive(now_us, frame, &mut packing.unpacker);
                    if exchange.is_up() {
                        outages.ended(server, &names.servers[server]);
                    }
                    let Answer::To(done, reply) = answer else { continue };
                    let has_rows = reply.kind().has_rows();
                    if let Some(recorder) = recorder {
                        recorder.answered(reply.kind(), done.began_us, now_us);
                    }
                    match reply {
                        Reply::Failed(failure) => {
                            let (fault, reason) = (failure.fault, failure.reason.to_owned());
                            sink(server, done.tag, Err(CallError::Refused { fault, reason }));
                        }
                        reply => sink(server, done.tag, Ok(reply)),
                    }
                    if done.is_hedged {
                        links[other].exchange.forget(done.tag);
                    }
                    if let (true, Some(hedging)) = (has_rows, hedging.get_mut(server)) {
                        hedging.answered(now_us.saturating_sub(done.began_us), by_second);
                    }
                }
                Ok(Received::Nothing) => break connection.sender.try_flush().err(),
                Ok(Received::End) => {
                    break Some(Error::Closed { peer: connection.peer().to_owned() });
                }
                Err(error) => break Some(error),
            }
        };
        match ended {
            // It was connected, and the server took the first frame for something else.
            Some(error @ Error::TalksTls { .. }) => {
                self.close(at);
                let reason = without_place(&error, &self.links[at].address);
                self.links[at].exchange.hopeless(now_us, reason);
            }
            Some(error) => self.lost(at, error.to_string()),
            None => {}
        }
    }

    fn connect(&mut self, at: usize) {
        let link = &mut self.links[at];
        link.packing.restart();
        link.told_us = None;
        let asked_us = self.start.elapsed().as_micros() as u64;
        let within = link.exchange.within(asked_us);
        let connected = reach(&link.address, &self.options, FRAMING, within);
        let connected = connected.and_then(|connection| self.poller.add(connection));
        // A server that does not answer was waited for until now.
        let now_us = self.now_us();
        self.notice(now_us, Some(at));
        let link = &mut self.links[at];
        if self.options.token.is_empty() {
            link.exchange.say_token(own_token_of(&link.address));
        }
        match connected {
            Ok(token) => {
                link.connection = Some(token);
                let features = features(&link.address, &self.options) | link.packing.features();
                if let Err(error) = link.exchange.connected(features) {
                    self.lost(at, error.to_string());
                }
            }
            // Neither certificates nor what the server talks become others by trying again.
            Err(error @ (Error::Tls { .. } | Error::TalksTls { .. } | Error::TalksNoTls { .. })) => {
                link.exchange.hopeless(now_us, without_place(&error, &link.address));
            }
            Err(error) => {
                link.exchange.disconnected(now_us, error.to_string());
                self.failed(at, asked_us);
                self.tell_who_is_waited_for();
                // Only this one: who has sent to the others takes their failures one after the other.
                self.give_up_if_told(at..at + 1);
            }
        }
    }

    fn close(&mut self, at: usize) {
        if let Some(token) = self.links[at].connection.take() {
            self.poller.remove(token);
        }
    }

    fn lost(&mut self, at: usize, cause: String) {
        self.close(at);
        let now_us = self.now_us();
        self.links[at].exchange.disconnected(now_us, cause);
        if self.links[at].exchange.outstanding() > 0 {
            self.failed(at, now_us);
        }
    }
}

/// Does anybody listen there now?
pub(crate) fn is_reached(address: &Address, options: &ConnectOptions) -> bool {
    reach(address, options, FRAMING, Duration::MAX).is_ok()
}

/// What is wrong with a connection, for who names its server anyway.
fn without_place(error: &Error, address: &Address) -> String {
    let (said, place) = (error.to_string(), format!("{address}: "));
    said.strip_prefix(&place).unwrap_or(&said).to_owned()
}

/// The token that a server of this user has made for itself, if it is at this address of this host.
fn own_token_of(address: &Address) -> String {
    let Address::Tcp(endpoints) = address else { return String::new() };
    let of = |endpoint: &Endpoint| own_token(&endpoint.host, endpoint.port);
    endpoints.first().and_then(of).unwrap_or_default()
}

/// What is offered to a server at this address.
fn features(address: &Address, options: &ConnectOptions) -> Features {
    let rows = if options.f16_rows { Features::F16_ROWS } else { Features::NONE };
    let rows = rows | Features::FORGET | Features::SAVES | Features::SENT_AT | Features::TEMPORARY;
    if address.in_memory() { rows | Features::NO_CHECKSUM } else { rows }
}
