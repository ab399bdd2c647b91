//! The connections of one thread, one per server, or two when pulls are hedged: opens them, moves frames between them
//! and the RPC states, and waits. Knows no request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_transport::{Address, Error, Framing, Poller, Token};
use sanderling_wire::{Features, HEADER_BYTES, Reply, Request, RowFormat, WireError, body_bytes, limit};

use crate::error::{ClientError, Names};
use crate::locations::Locations;
use crate::options::{ConnectOptions, PullFrom};
use crate::outage::Outages;
use crate::packing::Packing;
use crate::reach::reach;
use crate::rpc_state::{CallError, Hedging, IN_FLIGHT_MAX, MovedCall, Needs, Peer, RpcState, Timeout, Want};
use crate::statistics::Recorder;
use crate::stop::Watch;

mod connect;
mod group_link;
mod grow;
mod receive;
mod traced;
mod waiting;

use group_link::GroupLink;
use traced::Traced;

/// While a server takes nothing, its answers must be taken all the same, or the two would wait for each other.
const BLOCKED_LOOK: Duration = Duration::from_millis(1);

/// A server is told the time before requests that are sent later than so long after it was last told.
const TELL_TIME_US: u64 = 1000;
/// The frame that does so.
const SENT_AT_BYTES: usize = HEADER_BYTES + size_of::<u64>();
/// The frame that names the trace of the next request.
const TRACE_BYTES: usize = HEADER_BYTES + 3 * size_of::<u64>();

/// A gap between two looks at the connections counts as unseen time from this length on.
const UNSEEN_US_MIN: u64 = 1000;
/// Value of `looked_us` while the thread waits.
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

/// Why a request has no answer of its server.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// It has failed.
    Failed(CallError),
    /// It is to go on at other servers of the cluster.
    Moved(MovedCall),
}

/// Receives the result of a request: the server's index, the request's tag, and the answer.
pub(crate) type Sink<'a> = dyn FnMut(usize, u64, Result<Reply<'_>, NoAnswer>) + 'a;

/// The servers that are connected to, by shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Targets<'a> {
    /// Where they are, or were at first.
    pub(crate) addresses: &'a [Address],
    /// Where groups are, and the group of the first address; None: the addresses stay.
    pub(crate) groups: Option<(&'a Arc<Locations>, usize)>,
}

#[derive(Debug)]
struct Link {
    address: Address,
    /// The group whose primary it leads to.
    group: Option<GroupLink>,
    rpc: RpcState,
    connection: Option<Token>,
    packing: Packing,
    /// When the server was last told the time, on this connection.
    told_us: Option<u64>,
}

/// See the top of this file.
#[derive(Debug)]
pub(crate) struct ConnectionSet {
    /// By server; then, when pulls are hedged or from any replica, the second ones.
    links: Vec<Link>,
    /// By server; none when pulls are not hedged.
    hedging: Vec<Hedging>,
    servers: usize,
    options: Arc<ConnectOptions>,
    names: Names,
    /// Where it is noted how long answers took, if anybody wants to know.
    recorder: Option<Recorder>,
    traced: Traced,
    poller: Poller,
    ready: Vec<Token>,
    start: Instant,
    /// When the connections were last looked at, or [`WAITING`].
    looked_us: u64,
    /// Time in which the connections were not looked at, in all.
    unseen_us: u64,
    watch: Watch,
    outages: Arc<Outages>,
    /// When to look next whom to tell of.
    tell_at: Instant,
    /// Time-out of the requests that are begun from now on; None: that of the options.
    within: Option<Duration>,
}

impl ConnectionSet {
    /// Connects when there is something to ask.
    pub(crate) fn new(
        targets: Targets<'_>,
        options: &Arc<ConnectOptions>,
        timeout: Duration,
        outages: &Arc<Outages>,
        hedging: Option<impl FnMut() -> Hedging>,
    ) -> Result<ConnectionSet, ClientError> {
        let away = outages.bound();
        let Targets { addresses, groups } = targets;
        let names = Names { servers: Arc::new([]), timeout, away };
        let pulls_from_any = groups.is_some() && options.pull_from == PullFrom::Any;
        let link = |(lane, (at, address)): (usize, (usize, &Address))| {
            let group = groups.map(|(locations, first)| (Arc::clone(locations), first + at));
            Link::new(address, group, lane == 1 && pulls_from_any, options, &names)
        };
        let lanes = if hedging.is_some() || pulls_from_any { 2 } else { 1 };
        let places = (0..lanes).flat_map(|lane| addresses.iter().enumerate().map(move |place| (lane, place)));
        let links = places.map(link).collect();
        let hedging =
            hedging.map_or_else(Vec::new, |of| std::iter::repeat_with(of).take(addresses.len()).collect());
        let name = |(at, address): (usize, &Address)| match groups {
            Some((locations, first)) => locations.name(first + at),
            None => address.to_string(),
        };
        let servers = addresses.iter().enumerate().map(name).collect();
        let names = Names { servers, ..names };
        let poller = Poller::new(options.spin_us)?;
        Ok(ConnectionSet {
            links,
            hedging,
            servers: addresses.len(),
            options: Arc::clone(options),
            names,
            recorder: None,
            traced: Traced::new(options.spans.as_ref()),
            poller,
            ready: Vec::new(),
            start: Instant::now(),
            looked_us: 0,
            unseen_us: 0,
            watch: Watch::new(options.stop.clone()),
            outages: Arc::clone(outages),
            tell_at: Instant::now(),
            within: None,
        })
    }

    /// Before a server is greeted here, it is taken for what it said of itself elsewhere.
    pub(crate) fn expect(&mut self, server: usize, peer: &Peer) {
        for link in self.links.iter_mut().skip(server).step_by(self.servers) {
            link.rpc.expect(peer);
        }
    }

    /// Whether the client was told to stop, and has had its grace period.
    pub(crate) fn is_stopped(&self) -> bool {
        self.watch.is_over()
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
        self.links[server].rpc.row_format(wanted)
    }

    /// Has the server agreed to this? Not before it has answered.
    pub(crate) fn can(&self, server: usize, features: Features) -> bool {
        self.links[server].rpc.agreed().features.has(features)
    }

    /// Names for errors.
    pub(crate) fn names(&self) -> Names {
        self.names.clone()
    }

    /// The server that answered there.
    pub(crate) fn peer(&self, server: usize) -> Option<&Peer> {
        self.links[server].rpc.peer()
    }

    /// The servers' outages.
    pub(crate) fn outages(&self) -> &Arc<Outages> {
        &self.outages
    }

    /// The shortest of the longest frames.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        self.links.iter().map(|link| link.rpc.frame_bytes_max()).min().unwrap_or_default()
    }

    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// The clock of waits without a connection: it stands still while the connections are not looked at.
    pub(crate) fn seen_us(&self) -> u64 {
        self.now_us().saturating_sub(self.unseen_us)
    }

    /// The time of that clock at which a request ends.
    pub(crate) fn seen_deadline_us(&self, call: &MovedCall) -> u64 {
        call.deadline_us.saturating_sub(self.unseen_us)
    }

    /// The time-out of the requests that are begun now.
    pub(crate) fn timeout(&self, server: usize) -> Timeout {
        self.links[server].rpc.timeout(self.within)
    }

    /// Whether a server takes this many more requests without a wait. Of more requests than can ever be under way
    /// some wait anyway: then no request may be under way.
    pub(crate) fn has_room(&self, server: usize, requests: usize) -> bool {
        let outstanding =
            self.links[server].rpc.outstanding().max(self.links[self.puller(server)].rpc.outstanding());
        outstanding == 0 || outstanding + requests <= IN_FLIGHT_MAX
    }

    /// Takes a request, waiting for answers to others (which go to `sink`) while too many are under way. It goes with
    /// the next [`ConnectionSet::send`] or [`ConnectionSet::turn`].
    pub(crate) fn begin(
        &mut self,
        server: usize,
        tag: u64,
        timeout: Timeout,
        needs: Needs,
        request: &Request<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), WireError> {
        let at = match request {
            Request::Pull(_) | Request::PullPooled(_) => self.puller(server),
            _ => server,
        };
        if !self.links[at].rpc.has_room() {
            self.send(sink);
        }
        while !self.links[at].rpc.has_room() {
            self.turn(None, sink);
        }
        let now_us = self.now_us();
        self.links[at].rpc.begin(now_us, timeout, tag, needs, request)?;
        if let Some(recorder) = &self.recorder {
            recorder.begun(request.kind(), now_us);
        }
        self.traced.begun(server, tag, request);
        Ok(())
    }

    /// Sends what can be sent now.
    pub(crate) fn send(&mut self, sink: &mut Sink<'_>) {
        for link in 0..self.links.len() {
            self.advance(link, sink);
        }
    }

    /// Every request that was begun has its answer or has failed.
    pub(crate) fn settled(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.settled();
        }
    }

    /// Waits for frames, or until there is something else to do, or the time has come; then does it.
    pub(crate) fn turn(&mut self, until: Option<Instant>, sink: &mut Sink<'_>) {
        self.race(sink);
        let look_at = self.follow_primaries();
        let mut until_us = self.links.iter().filter_map(|link| link.rpc.wake_us()).min();
        let hedges = self.hedging.iter().zip(&self.links);
        let hedge_us = hedges.filter_map(|(hedging, link)| hedging.wake_us(&link.rpc)).min();
        until_us = until_us.into_iter().chain(hedge_us).min();
        let blocked = self.blocked();
        if blocked {
            let look_us = self.now_us() + BLOCKED_LOOK.as_micros() as u64;
            until_us = Some(until_us.map_or(look_us, |until_us| until_us.min(look_us)));
        }
        let deadline = until_us.map(|us| self.start + Duration::from_micros(us));
        let looks_at = self.watch.look_at().into_iter().chain(self.outages.is_told().then_some(self.tell_at));
        let deadline = deadline.into_iter().chain(until).chain(looks_at).chain(look_at).min();
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

    /// Takes the frames that are there, without waiting for any, and does what there is to do.
    pub(crate) fn look(&mut self, sink: &mut Sink<'_>) {
        self.notice(self.now_us(), None);
        self.race(sink);
        for link in 0..self.links.len() {
            self.receive(link, sink);
            self.advance(link, sink);
        }
    }

    /// Requests that have neither an answer nor failed.
    pub(crate) fn outstanding(&self) -> usize {
        self.links.iter().map(|link| link.rpc.outstanding()).sum()
    }

    /// Asks over the second connections for what has waited for too long.
    fn race(&mut self, sink: &mut Sink<'_>) {
        let now_us = self.now_us();
        for server in 0..self.hedging.len() {
            let (first, second) = self.links.split_at_mut(self.servers);
            let (first, second) = (&mut first[server].rpc, &mut second[server].rpc);
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
        let ConnectionSet { links, poller, .. } = self;
        links
            .iter()
            .filter_map(|link| link.connection)
            .any(|token| poller.connection(token).is_some_and(|connection| connection.sender.is_blocked()))
    }

    /// Does the work that the RPC state of a link asks for, without waiting for frames.
    fn advance(&mut self, at: usize, sink: &mut Sink<'_>) {
        let mut committed = false;
        loop {
            let now_us = self.now_us();
            self.notice(now_us, None);
            let since = self.outages.since(at % self.servers).filter(|_| !self.is_reader(at));
            let since_us = since.map(|since| since.saturating_duration_since(self.start).as_micros() as u64);
            self.links[at].rpc.note_outage(since_us);
            if let Some(silent_us) = self.links[at].rpc.expire(now_us) {
                self.failed(at, silent_us);
            }
            match self.links[at].rpc.want(now_us) {
                Want::Connect => self.connect(at),
                Want::Close => {
                    if self.links[at].rpc.outstanding() > 0 {
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
        let ConnectionSet { links, poller, .. } = self;
        let token = links[at].connection.filter(|_| committed);
        if let Some(connection) = token.and_then(|token| poller.connection(token))
            && let Err(error) = connection.sender.try_flush()
        {
            self.lost(at, error.to_string());
        }
        let other = self.other(at);
        while let Some((tag, error)) = self.links[at].rpc.next_failure() {
            // A request that is under way over the other connection has not failed.
            if other == at || !self.links[other].rpc.has_hedged(tag) {
                let failure = || Some(self.names.error(at % self.servers, "", error.clone()).to_string());
                self.traced.ended(tag, &self.names.servers, failure);
                sink(at % self.servers, tag, Err(NoAnswer::Failed(error)));
            }
        }
    }

    /// Adds unseen time to the deadlines: answers may have arrived meanwhile. The time of waiting for `waited_for`
    /// counts for that server.
    fn notice(&mut self, now_us: u64, waited_for: Option<usize>) {
        let looked_us = std::mem::replace(&mut self.looked_us, now_us);
        if now_us.saturating_sub(looked_us) > UNSEEN_US_MIN {
            self.unseen_us += now_us - looked_us;
            let links = self.links.iter_mut().enumerate().filter(|(at, _)| Some(*at) != waited_for);
            links.for_each(|(_, link)| link.rpc.postpone(now_us, looked_us));
        }
    }

    /// Hands the next frame to the connection. `false`: it has no room now.
    fn commit(&mut self, at: usize) -> Result<bool, Error> {
        let now_us = self.now_us();
        let ConnectionSet { links, poller, traced, .. } = self;
        let link = &mut links[at];
        let Some(connection) = link.connection.and_then(|token| poller.connection(token)) else {
            return Ok(false);
        };
        let (id, agreed) = (link.rpc.outgoing_id(), link.rpc.agreed());
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
        if agreed.features.has(Features::TRACES)
            && let Some(trace) = link.rpc.outgoing_tag().and_then(|tag| traced.message(tag))
        {
            let Some(mut slot) = connection.sender.try_frame(TRACE_BYTES)? else {
                connection.sender.try_flush()?;
                return Ok(false);
            };
            let written = trace.encode(&agreed, 0, 0, &mut slot);
            slot.commit(written.expect("three numbers fit"));
        }
        if link.rpc.age_outgoing(now_us) {
            link.packing.restart();
        }
        let frame = link.packing.pack(id, link.rpc.outgoing(), &agreed);
        let Some(slot) = connection.sender.try_frame(frame.len())? else {
            connection.sender.try_flush()?;
            return Ok(false);
        };
        slot.write(frame);
        link.rpc.sent(now_us);
        Ok(true)
    }
}

/// Does anybody listen there now?
pub(crate) fn is_reached(address: &Address, options: &ConnectOptions) -> bool {
    reach(address, options, FRAMING, Duration::MAX).is_ok()
}
