//! The answers of a hub without a hub: the state machine behind a subscription, for a fuzzer. Opens nothing.

use std::time::Duration;

use sanderling_sample::{PackedBatch, PackedBuffer};
use sanderling_wire::{Agreed, Compression, Features};

use super::link::{Link, Want};
use super::{Delivered, HubError, SubscribeOptions};

/// The trainer's state of one hub.
#[derive(Debug)]
pub struct Answers {
    link: Link,
    now_us: u64,
    spare: Vec<PackedBuffer>,
}

impl Answers {
    /// Creates the state before there is a connection; `compression` is offered on it.
    pub fn new(compression: Compression) -> Answers {
        let compression = Some(compression);
        let options = SubscribeOptions { takes_fed: true, compression, ..SubscribeOptions::default() };
        let mut link = Link::new(0, "fuzzer".to_owned(), "trainer", &options);
        link.asks = true;
        Answers { link, now_us: 0, spare: Vec::new() }
    }

    /// The settings negotiated on the connection.
    pub fn agreed(&self) -> Agreed {
        self.link.agreed
    }

    /// The columns that the hub announced last: name, and whether keys have values.
    pub fn columns(&self) -> Option<&[(String, bool)]> {
        self.link.known().map(|known| &known.columns[..])
    }

    /// Advances the clock by `waited` and does what is due; every attempt to connect succeeds.
    pub fn go_on(&mut self, waited: Duration) -> Result<(), HubError> {
        self.now_us += waited.as_micros() as u64;
        loop {
            match self.link.want(self.now_us) {
                Want::Connect => self.link.connected(self.now_us, Features::NONE),
                Want::Send => self.link.sent(),
                Want::Close => self.link.disconnected(self.now_us, "closed".to_owned()),
                Want::Nothing => break,
            }
        }
        self.link.error().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Processes a whole frame.
    pub fn receive(&mut self, frame: &[u8]) {
        self.link.receive(self.now_us, frame, &mut self.spare);
    }

    /// Asks for a minibatch with all its keys.
    pub fn ask_keys(&mut self, number: u64) {
        self.link.ask_whole(number, number);
    }

    /// Takes the minibatches with all their keys that have arrived.
    pub fn keys(&mut self) -> Vec<PackedBatch> {
        self.link.take_wholes().into_iter().filter_map(|(_, batch)| batch).collect()
    }

    /// Takes the next minibatch, and acknowledges it if told so.
    pub fn take(&mut self, acknowledge: bool) -> Option<Delivered> {
        let delivered = self.link.take()?;
        if acknowledge {
            self.link.acknowledge(delivered.number, None);
        }
        Some(delivered)
    }
}
