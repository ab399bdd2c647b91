//! A hub's answers without a hub: what a fuzzer sees of the state machine behind a subscription. Opens nothing.

use std::time::Duration;

use sanderling_sample::{PackedBatch, PackedBuffer};
use sanderling_wire::{Agreed, Compression, Features};

use super::link::{Link, Want};
use super::{Delivered, HubError, SubscribeOptions};

/// One hub as its trainer sees it.
#[derive(Debug)]
pub struct Answers {
    link: Link,
    now_us: u64,
    spare: Vec<PackedBuffer>,
}

impl Answers {
    /// Before there is a connection, on which this is to be offered.
    pub fn new(compression: Compression) -> Answers {
        let compression = Some(compression);
        let options = SubscribeOptions { takes_fed: true, compression, ..SubscribeOptions::default() };
        let mut link = Link::new(0, "fuzzer".to_owned(), "trainer", &options);
        link.asks = true;
        Answers { link, now_us: 0, spare: Vec::new() }
    }

    /// What holds on the connection.
    pub fn agreed(&self) -> Agreed {
        self.link.agreed
    }

    /// Names of the columns, and whether their keys have values, as the hub has said last.
    pub fn columns(&self) -> Option<&[(String, bool)]> {
        self.link.known().map(|known| &known.columns[..])
    }

    /// Does what there is to do after so long; every attempt to connect succeeds.
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

    /// A whole frame came.
    pub fn receive(&mut self, frame: &[u8]) {
        self.link.receive(self.now_us, frame, &mut self.spare);
    }

    /// The keys of a minibatch are wanted.
    pub fn ask_keys(&mut self, number: u64) {
        self.link.ask_whole(number, number);
    }

    /// Minibatches with all their keys that have come.
    pub fn keys(&mut self) -> Vec<PackedBatch> {
        self.link.take_wholes().into_iter().filter_map(|(_, batch)| batch).collect()
    }

    /// The next minibatch, which was used up at once if told so.
    pub fn take(&mut self, acknowledge: bool) -> Option<Delivered> {
        let delivered = self.link.take()?;
        if acknowledge {
            self.link.acknowledge(delivered.number);
        }
        Some(delivered)
    }
}
