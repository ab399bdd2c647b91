//! The trainer's side of hubs: minibatches from several hubs, prefetched, each delivered exactly once. A state
//! machine per hub (`link`) decides what is asked and answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_observe::SpanQueue;
use sanderling_sample::{PackedBatch, PackedBuffer};
use sanderling_transport::{Address, Error as TransportError, Poller, Received, Token, connect};
use sanderling_wire::{Features, limit};

use crate::description::Description;
use crate::framing::framing;

mod acknowledger;
pub use acknowledger::Acknowledger;

mod error;
pub use error::HubError;

mod delivered;
pub use delivered::{Delivered, FedBatch, Next, Served};

mod answers;

mod link;
use link::{Link, Want};

mod full_batches;
pub use full_batches::FullBatches;
use full_batches::Questions;

mod options;
pub use options::SubscribeOptions;

#[cfg(fuzzing)]
mod fuzzing;
#[cfg(fuzzing)]
pub use fuzzing::Answers;

/// Interval at which answers are read while a hub accepts no bytes; otherwise the two would wait for each other.
const BLOCKED_LOOK: Duration = Duration::from_millis(1);
/// Interval at which the wait for the hubs' first answers asks whether to go on.
const GO_ON_LOOK: Duration = Duration::from_millis(200);
/// Buffers kept for further minibatches.
const SPARE_MAX: usize = 256;
/// The optional scheme of a list of hub addresses.
const SCHEME: &str = "hub://";

/// Minibatches from several hubs.
///
/// One thread at a time uses it. Several threads put a mutex around it and acknowledge through an [`Acknowledger`],
/// or each opens a subscription under its own name.
#[derive(Debug)]
pub struct Subscription {
    links: Vec<(Link, Address, Option<Token>)>,
    options: SubscribeOptions,
    poller: Poller,
    ready: Vec<Token>,
    start: Instant,
    /// The hub to ask next.
    turn: usize,
    acknowledger: Acknowledger,
    questions: Arc<Questions>,
    spare: Vec<PackedBuffer>,
}

/// Parses addresses such as `hub://a:7200,b:7200`, with or without the scheme; each is `host:port`, `unix:PATH` or
/// `shm:NAME`.
///
/// # Errors
/// A part that is no address.
pub fn hub_addresses(text: &str) -> Result<Vec<Address>, HubError> {
    let text = text.strip_prefix(SCHEME).unwrap_or(text);
    let parse =
        |part: &str| part.trim().parse::<Address>().map_err(|error| HubError::Address(error.to_string()));
    text.split(',').map(parse).collect()
}

impl Subscription {
    /// Subscribes at all hubs under a trainer name, without asking for minibatches yet.
    ///
    /// The name must stay the same over restarts of this trainer, and no other trainer may have it.
    ///
    /// # Errors
    /// A hub that cannot be reached in time or refuses the trainer, or hubs that serve different data.
    pub fn open(
        addresses: &[Address],
        name: &str,
        options: &SubscribeOptions,
    ) -> Result<Subscription, HubError> {
        Subscription::open_while(addresses, name, options, &|| true)
    }

    /// Subscribes like [`Subscription::open`] while `go_on`, which is called now and then, returns true.
    ///
    /// # Errors
    /// [`HubError::Stopped`] once `go_on` returns false, and the errors of [`Subscription::open`].
    pub fn open_while(
        addresses: &[Address],
        name: &str,
        options: &SubscribeOptions,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Subscription, HubError> {
        let possible = 1..=limit::UNACKNOWLEDGED_MAX as u32 / 2;
        if addresses.is_empty() || name.len() > limit::NAME_BYTES_MAX || !possible.contains(&options.window) {
            let name_max = limit::NAME_BYTES_MAX;
            return Err(HubError::Address(format!(
                "needs an address, a name of 1 to {name_max} bytes, and a window within {possible:?}"
            )));
        }
        let poller = Poller::new(options.spin_us).map_err(|error| HubError::System(error.to_string()))?;
        let acknowledger = Acknowledger::new(poller.waker());
        let link = |(at, address): (usize, &Address)| {
            (Link::new(at, address.to_string(), name, options), address.clone(), None)
        };
        let mut subscription = Subscription {
            links: addresses.iter().enumerate().map(link).collect(),
            options: options.clone(),
            poller,
            ready: Vec::new(),
            start: Instant::now(),
            turn: 0,
            acknowledger,
            questions: Arc::default(),
            spare: Vec::new(),
        };
        while subscription.links.iter().any(|(link, _, _)| !link.introduced) {
            subscription.advance()?;
            if subscription.links.iter().any(|(link, _, _)| !link.introduced) {
                subscription.wait(Some(Instant::now() + GO_ON_LOOK));
                if !go_on() {
                    return Err(HubError::Stopped);
                }
            }
        }
        subscription.check_alike()?;
        Ok(subscription)
    }

    fn check_alike(&self) -> Result<(), HubError> {
        let (first, _, _) = &self.links[0];
        for (second, _, _) in &self.links[1..] {
            let (Some(one), Some(other)) = (first.known(), second.known()) else { continue };
            let what = if one.columns != other.columns {
                "their features"
            } else if first.description != second.description
                && first.description.is_some() == second.description.is_some()
            {
                "their input settings or features"
            } else if one.stride != other.stride {
                "how they assign minibatches"
            } else {
                continue;
            };
            let (first, second) = (first.hub().to_owned(), second.hub().to_owned());
            return Err(HubError::Different { first, second, what });
        }
        Ok(())
    }

    /// The facts about each hub, in the order of the addresses.
    pub fn served(&self) -> Vec<Served> {
        let served = |(link, _, _): &(Link, Address, Option<Token>)| {
            let known = link.known()?;
            let hub = link.hub().to_owned();
            let (stream, passes, rows, stride) = (link.stream, known.passes, known.rows, known.stride);
            Some(Served { hub, stream, passes, rows, stride })
        };
        self.links.iter().filter_map(served).collect()
    }

    /// How rows of the input become rows of minibatches, the same at all hubs. `None` if the hubs are of an older
    /// version or the description is too long to be sent.
    ///
    /// # Errors
    /// A description that cannot be read; the hub may be of a newer version.
    pub fn description(&self) -> Result<Option<Description>, HubError> {
        let Some((link, text)) =
            self.links.iter().find_map(|(link, _, _)| Some((link, link.description.as_ref()?)))
        else {
            return Ok(None);
        };
        let of = |reason| HubError::Protocol { hub: link.hub().to_owned(), reason };
        Description::of_json(text).map(Some).map_err(of)
    }

    /// The features of all minibatches, in order: name, and whether each key has a value.
    pub fn columns(&self) -> &[(String, bool)] {
        self.links[0].0.known().map_or(&[], |known| &known.columns)
    }

    /// Rows of a minibatch; the last one of a pass may have fewer.
    pub fn rows(&self) -> u32 {
        self.links[0].0.known().map_or(0, |known| known.rows)
    }

    /// The address of a hub, by index.
    pub fn hub(&self, hub: usize) -> &str {
        self.links[hub].0.hub()
    }

    /// How often hubs had none ready, and how many acknowledgements came too late to count.
    pub fn waits_and_late(&self) -> (u64, u64) {
        self.links.iter().fold((0, 0), |(waits, late), (link, _, _)| (waits + link.waits, late + link.late))
    }

    /// Where spans of traced minibatches go.
    pub fn spans(&self) -> Option<&Arc<SpanQueue>> {
        self.options.spans.as_ref()
    }

    /// A handle by which other threads acknowledge.
    pub fn acknowledger(&self) -> Acknowledger {
        self.acknowledger.clone()
    }

    /// A handle by which other threads ask for minibatches with the keys that were fed.
    pub fn full_batches(&self) -> FullBatches {
        FullBatches {
            questions: Arc::clone(&self.questions),
            waker: self.poller.waker(),
            patience: self.options.patience + self.options.timeout,
        }
    }

    /// Receives and sends frames for at most `most`.
    fn move_frames(&mut self, most: Duration) -> Result<(), HubError> {
        self.advance()?;
        self.wait(Some(Instant::now() + most));
        self.advance()
    }

    /// Acknowledges a minibatch. The hub is told by the next call of [`Subscription::next`].
    pub fn acknowledge(&mut self, hub: usize, number: u64) {
        self.links[hub].0.acknowledge(number, None);
    }

    /// Returns the memory of a minibatch to be reused.
    pub fn reuse(&mut self, batch: PackedBatch) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(batch.into_buffer());
        }
    }

    /// The next minibatch. Hubs take turns; a hub without a ready minibatch is left out, unless minibatches are
    /// assigned by rank.
    ///
    /// # Errors
    /// Errors that waiting does not mend; every later call fails too.
    pub fn next(&mut self, deadline: Instant) -> Result<Next, HubError> {
        self.links.iter_mut().for_each(|(link, _, _)| link.asks = true);
        loop {
            self.advance()?;
            if let Some(delivered) = self.take() {
                return Ok(Next::Batch(delivered));
            }
            if self.links.iter().all(|(link, _, _)| link.is_over()) {
                return Ok(Next::Over);
            }
            if Instant::now() >= deadline {
                return Ok(Next::Wait);
            }
            self.wait(Some(deadline));
        }
    }

    /// Sends all acknowledgements and waits for their confirmation, as before an end.
    ///
    /// # Errors
    /// As [`Subscription::next`]. A deadline that passes first is no error: minibatches whose acknowledgements are
    /// lost are leased again.
    pub fn settle(&mut self, deadline: Instant) -> Result<(), HubError> {
        loop {
            self.advance()?;
            if self.links.iter().all(|(link, _, _)| link.is_settled()) || Instant::now() >= deadline {
                return Ok(());
            }
            self.wait(Some(deadline));
        }
    }

    /// Unsubscribes: sends the acknowledgements and releases all other leases at once, those under way included.
    ///
    /// Call it last; nothing can be asked for afterwards. If the deadline passes first, or a hub is of an older
    /// version, the hub releases the leases when the trainer expires; neither is an error.
    ///
    /// # Errors
    /// As [`Subscription::next`].
    pub fn leave(&mut self, deadline: Instant) -> Result<(), HubError> {
        self.settle(deadline)?;
        self.links.iter_mut().for_each(|(link, _, _)| link.leave());
        loop {
            self.advance()?;
            if self.links.iter().all(|(link, _, _)| link.has_left()) || Instant::now() >= deadline {
                return Ok(());
            }
            self.wait(Some(deadline));
        }
    }

    fn take(&mut self) -> Option<Delivered> {
        let now_us = self.now_us();
        let count = self.links.len();
        let is_strict = self.options.rank.is_some();
        for step in 0..count {
            let at = (self.turn + step) % count;
            let (link, _, _) = &mut self.links[at];
            if let Some(mut delivered) = link.take() {
                if let Some(fed) = &mut delivered.fed {
                    fed.age += Duration::from_micros(now_us.saturating_sub(fed.received_us));
                }
                self.turn = (at + 1) % count;
                return Some(delivered);
            }
            if is_strict && !link.is_over() {
                return None;
            }
        }
        None
    }

    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// Processes what has arrived and does what is due, without waiting for hubs.
    fn advance(&mut self) -> Result<(), HubError> {
        for (hub, number, span) in self.acknowledger.take() {
            if let Some((link, _, _)) = self.links.get_mut(hub) {
                link.acknowledge(number, span);
            }
        }
        for (ticket, hub, number) in self.questions.take_asked() {
            match self.links.get_mut(hub) {
                Some((link, _, _)) => link.ask_whole(ticket, number),
                None => self.questions.answer(ticket, None),
            }
        }
        for at in 0..self.links.len() {
            self.receive(at);
            self.send(at);
            for (ticket, answer) in self.links[at].0.take_wholes() {
                self.questions.answer(ticket, answer);
            }
            if let Some(error) = self.links[at].0.error() {
                return Err(error.clone());
            }
        }
        Ok(())
    }

    /// Waits for frames or for the next thing that is due.
    fn wait(&mut self, deadline: Option<Instant>) {
        let wake_us = self.links.iter().filter_map(|(link, _, _)| link.wake_us()).min();
        let mut until =
            wake_us.map(|us| self.start + Duration::from_micros(us)).into_iter().chain(deadline).min();
        let Subscription { links, poller, .. } = self;
        let blocked = links
            .iter()
            .filter_map(|(_, _, token)| *token)
            .any(|token| poller.connection(token).is_some_and(|connection| connection.sender.is_blocked()));
        if blocked {
            let look = Instant::now() + BLOCKED_LOOK;
            until = Some(until.map_or(look, |until| until.min(look)));
        }
        if self.poller.wait(&mut self.ready, until).is_err() {
            // The system cannot poll; deadlines still hold.
            std::thread::sleep(BLOCKED_LOOK);
        }
    }

    fn receive(&mut self, at: usize) {
        let now_us = self.now_us();
        let Subscription { links, poller, spare, .. } = self;
        let (link, _, token) = &mut links[at];
        let Some(connection) = token.and_then(|token| poller.connection(token)) else { return };
        let cause = loop {
            match connection.receiver.try_receive() {
                Ok(Received::Frame(frame)) => link.receive(now_us, frame, spare),
                Ok(Received::Nothing) => break None,
                Ok(Received::End) => break Some(Lost::Ended(connection.peer().to_string())),
                Err(error) => break Some(Lost::Failed(error)),
            }
        };
        if let Some(cause) = cause {
            self.lost(at, &cause);
        }
    }

    fn send(&mut self, at: usize) {
        loop {
            let now_us = self.now_us();
            match self.links[at].0.want(now_us) {
                Want::Connect => self.connect(at),
                Want::Close => self.close(at),
                Want::Nothing => break,
                Want::Send => match self.commit(at) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => self.lost(at, &Lost::Failed(error)),
                },
            }
        }
        let token = self.links[at].2;
        if let Some(connection) = token.and_then(|token| self.poller.connection(token))
            && let Err(error) = connection.sender.try_flush()
        {
            self.lost(at, &Lost::Failed(error));
        }
    }

    /// Sends the next frame; `false` if the connection has no room.
    fn commit(&mut self, at: usize) -> Result<bool, TransportError> {
        let Subscription { links, poller, .. } = self;
        let (link, _, token) = &mut links[at];
        let Some(connection) = token.and_then(|token| poller.connection(token)) else { return Ok(false) };
        let frame = link.outgoing();
        let slot = connection.sender.try_frame(frame.len())?;
        let Some(slot) = slot else { return Ok(false) };
        slot.write(frame);
        link.sent();
        Ok(true)
    }

    fn connect(&mut self, at: usize) {
        let mut options = sanderling_transport::ConnectOptions::new(framing(limit::FRAME_BYTES_MAX));
        options.timeout = options.timeout.min(self.options.timeout);
        options.write_timeout = self.options.timeout;
        options.tls.clone_from(&self.options.tls);
        options.spin_us = self.options.spin_us;
        let (_, address, _) = &self.links[at];
        let features = if address.in_memory() { Features::NO_CHECKSUM } else { Features::NONE };
        let connected = connect(address, &options).and_then(|connection| self.poller.add(connection));
        let now_us = self.now_us();
        match connected {
            Ok(new) => {
                let (link, _, token) = &mut self.links[at];
                *token = Some(new);
                link.connected(now_us, features);
            }
            Err(error) => self.lost(at, &Lost::Failed(error)),
        }
    }

    fn close(&mut self, at: usize) {
        if let Some(token) = self.links[at].2.take() {
            drop(self.poller.remove(token));
        }
    }

    fn lost(&mut self, at: usize, cause: &Lost) {
        self.close(at);
        let now_us = self.now_us();
        let link = &mut self.links[at].0;
        link.disconnected(now_us, cause.to_string());
        if let Lost::Failed(
            error @ (TransportError::Tls { .. }
            | TransportError::TalksTls { .. }
            | TransportError::TalksNoTls { .. }),
        ) = cause
        {
            link.unfit(error.to_string());
        }
    }
}

/// The reason that there is no connection.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("{0}: closed the connection")]
    Ended(String),
    #[error(transparent)]
    Failed(TransportError),
}
