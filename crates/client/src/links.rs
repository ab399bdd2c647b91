//! The connections of one thread, one per server: opens them, moves frames between them and the exchanges, and waits.
//! What is asked and answered is not known here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_transport::{Address, Framing, Poller, Received, Token, connect};
use sanderling_wire::{Features, HEADER_BYTES, Reply, Request, WireError, body_bytes, limit};

use crate::error::{ClientError, Names};
use crate::exchange::{Answer, CallError, Exchange, Patience, Peer, Want};
use crate::options::ConnectOptions;
use crate::random::unique;

/// While a server takes nothing, its answers must be taken all the same, or the two would wait for each other.
const BLOCKED_LOOK: Duration = Duration::from_millis(1);

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
}

/// See the top of this file.
#[derive(Debug)]
pub(crate) struct Links {
    links: Vec<Link>,
    options: Arc<ConnectOptions>,
    names: Names,
    poller: Poller,
    ready: Vec<Token>,
    start: Instant,
}

impl Links {
    /// Connects when there is something to ask.
    pub(crate) fn new(
        addresses: &[Address],
        options: &Arc<ConnectOptions>,
        timeout: Duration,
    ) -> Result<Links, ClientError> {
        let link = |address: &Address| {
            let patience = Patience { timeout, seed: unique() };
            let exchange = Exchange::new(patience, &options.token, &options.name);
            Link { address: address.clone(), exchange, connection: None }
        };
        let links = addresses.iter().map(link).collect();
        let names = Names { servers: addresses.iter().map(Address::to_string).collect(), timeout };
        let poller = Poller::new(options.spin_us)?;
        Ok(Links {
            links,
            options: Arc::clone(options),
            names,
            poller,
            ready: Vec::new(),
            start: Instant::now(),
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.links.len()
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
        self.wait(&|links| links.links[server].exchange.has_room(), sink);
        let now_us = self.now_us();
        self.links[server].exchange.begin(now_us, tag, boot_id, request)
    }

    /// Sends what can be sent now.
    pub(crate) fn send(&mut self, sink: &mut Sink<'_>) {
        for server in 0..self.links.len() {
            self.advance(server, sink);
        }
    }

    /// Sends what there is to send and waits until every request has its answer or has failed.
    pub(crate) fn settle(&mut self, sink: &mut Sink<'_>) {
        self.wait(&|links| links.links.iter().all(|link| link.exchange.outstanding() == 0), sink);
    }

    fn wait(&mut self, done: &dyn Fn(&Links) -> bool, sink: &mut Sink<'_>) {
        if done(self) {
            return;
        }
        self.send(sink);
        while !done(self) {
            let mut until_us = self.links.iter().filter_map(|link| link.exchange.wake_us()).min();
            let blocked = self.blocked();
            if blocked {
                let look_us = self.now_us() + BLOCKED_LOOK.as_micros() as u64;
                until_us = Some(until_us.map_or(look_us, |until_us| until_us.min(look_us)));
            }
            let deadline = until_us.map(|us| self.start + Duration::from_micros(us));
            let mut ready = std::mem::take(&mut self.ready);
            if self.poller.wait(&mut ready, deadline).is_err() {
                // The system cannot wait; deadlines still hold.
                std::thread::sleep(BLOCKED_LOOK);
            }
            for server in 0..self.links.len() {
                let token = self.links[server].connection;
                if token.is_some_and(|token| blocked || ready.contains(&token)) {
                    self.receive(server, sink);
                }
                self.advance(server, sink);
            }
            self.ready = ready;
        }
    }

    fn blocked(&mut self) -> bool {
        let Links { links, poller, .. } = self;
        links
            .iter()
            .filter_map(|link| link.connection)
            .any(|token| poller.connection(token).is_some_and(|connection| connection.sender.is_blocked()))
    }

    /// Does what the exchange of a server wants, without waiting for frames.
    fn advance(&mut self, server: usize, sink: &mut Sink<'_>) {
        let mut committed = false;
        loop {
            let now_us = self.now_us();
            self.links[server].exchange.expire(now_us);
            match self.links[server].exchange.want(now_us) {
                Want::Connect => self.connect(server),
                Want::Close => self.close(server),
                Want::Nothing => break,
                Want::Send => match self.commit(server) {
                    Ok(true) => committed = true,
                    Ok(false) => break,
                    Err(error) => self.lost(server, error.to_string()),
                },
            }
        }
        let Links { links, poller, .. } = self;
        let token = links[server].connection.filter(|_| committed);
        if let Some(connection) = token.and_then(|token| poller.connection(token))
            && let Err(error) = connection.sender.try_flush()
        {
            self.lost(server, error.to_string());
        }
        while let Some((tag, error)) = self.links[server].exchange.next_failure() {
            sink(server, tag, Err(error));
        }
    }

    /// Hands the next frame to the connection. `false`: it has no room now.
    fn commit(&mut self, server: usize) -> Result<bool, sanderling_transport::Error> {
        let now_us = self.now_us();
        let Links { links, poller, .. } = self;
        let link = &mut links[server];
        let Some(connection) = link.connection.and_then(|token| poller.connection(token)) else {
            return Ok(false);
        };
        let frame = link.exchange.outgoing();
        let Some(slot) = connection.sender.try_frame(frame.len())? else {
            connection.sender.try_flush()?;
            return Ok(false);
        };
        slot.write(frame);
        link.exchange.sent(now_us);
        Ok(true)
    }

    /// Takes all frames that are there.
    fn receive(&mut self, server: usize, sink: &mut Sink<'_>) {
        let now_us = self.now_us();
        let Links { links, poller, .. } = self;
        let link = &mut links[server];
        let Some(connection) = link.connection.and_then(|token| poller.connection(token)) else { return };
        let ended = loop {
            match connection.receiver.try_receive() {
                Ok(Received::Frame(frame)) => match link.exchange.receive(now_us, frame) {
                    Answer::To(tag, Reply::Failed(failure)) => {
                        let (fault, reason) = (failure.fault, failure.reason.to_owned());
                        sink(server, tag, Err(CallError::Refused { fault, reason }));
                    }
                    Answer::To(tag, reply) => sink(server, tag, Ok(reply)),
                    Answer::None => {}
                },
                Ok(Received::Nothing) => break connection.sender.try_flush().err(),
                Ok(Received::End) => {
                    break Some(sanderling_transport::Error::Closed { peer: connection.peer().to_owned() });
                }
                Err(error) => break Some(error),
            }
        };
        if let Some(error) = ended {
            self.lost(server, error.to_string());
        }
    }

    fn connect(&mut self, server: usize) {
        let now_us = self.now_us();
        let link = &mut self.links[server];
        let options = self.options.transport(FRAMING);
        let connected = connect(&link.address, &options).and_then(|connection| self.poller.add(connection));
        match connected {
            Ok(token) => {
                link.connection = Some(token);
                let features = features(&link.address);
                if let Err(error) = link.exchange.connected(features) {
                    self.lost(server, error.to_string());
                }
            }
            Err(error) => link.exchange.disconnected(now_us, error.to_string()),
        }
    }

    fn close(&mut self, server: usize) {
        if let Some(token) = self.links[server].connection.take() {
            self.poller.remove(token);
        }
    }

    fn lost(&mut self, server: usize, cause: String) {
        self.close(server);
        let now_us = self.now_us();
        self.links[server].exchange.disconnected(now_us, cause);
    }
}

/// Where memory is shared, a checksum would look at what no wire can have damaged.
fn features(address: &Address) -> Features {
    if matches!(address, Address::Shm(_)) { Features::NO_CHECKSUM } else { Features::NONE }
}
