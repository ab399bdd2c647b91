//! Cards that gather frames out of registered memory: one protection domain per device, which the connections of a server
//! share, and the time that a card takes. It knows no frame of a connection.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;

use super::device::{Device, Domain, Region};
use super::devices::Port;
use super::ffi::Sge;
use super::gather::{Element, Part, Plan, plan};
use super::queue_pair::{Completion, QueuePair, Write};
use super::record::Remote;
use super::{ELEMENTS_MAX, GATHER_WRITES, MESSAGES, RING_BYTES};
use crate::shm::{RingMemory, map, mapping_bytes};

/// Longest wait for the card in a measurement.
const MEASURED_MAX: Duration = Duration::from_secs(5);

/// The protection domains that all connections of a server share, so that memory is registered once.
///
/// Each client may write into its own ring only, whose key no other client is told. Registered memory can be read by
/// the server's own requests and by no peer.
#[derive(Clone, Debug, Default)]
pub struct GatherDomain {
    cards: Arc<Mutex<Vec<Card>>>,
}

impl GatherDomain {
    /// The cards of the connections so far.
    #[must_use]
    pub fn cards(&self) -> Vec<Card> {
        self.cards.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The card of a port's device.
    pub(super) fn card(&self, device: Arc<Device>, port: &Port) -> Result<Card, String> {
        let mut cards = self.cards.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(card) = cards.iter().find(|card| card.domain.device.name == device.name) {
            return Ok(card.clone());
        }
        let card = Card { domain: Domain::new(device)?, port: port.clone() };
        cards.push(card.clone());
        Ok(card)
    }
}

/// A card that gathers frames.
#[derive(Clone)]
pub struct Card {
    pub(super) domain: Arc<Domain>,
    port: Port,
}

impl PartialEq for Card {
    fn eq(&self, other: &Card) -> bool {
        Arc::ptr_eq(&self.domain, &other.domain)
    }
}

impl std::fmt::Debug for Card {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("Card").field(&self.port).finish()
    }
}

/// Memory that the card may read, which is pinned.
pub struct CardMemory(Region);

impl std::fmt::Debug for CardMemory {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("CardMemory").field(&self.key()).finish()
    }
}

impl CardMemory {
    /// The card's key of this memory. Peers have no access by it.
    #[must_use]
    pub fn key(&self) -> u32 {
        self.0.keys().0
    }
}

impl Card {
    /// Pins memory, and lets the card read it for requests of this process. `keep` keeps it mapped.
    ///
    /// # Errors
    /// The reason: the limit of locked memory, or memory that the card cannot read.
    pub fn register(
        &self,
        start: usize,
        bytes: usize,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Result<CardMemory, String> {
        Region::of_memory(&self.domain, start, bytes, keep).map(CardMemory)
    }

    /// A connection of the card to itself, for measurements.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn loopback(&self) -> Result<Loopback, String> {
        let device = &self.domain.device;
        let elements = device.elements_max().min(ELEMENTS_MAX);
        let (lid, mtu) = device.port(self.port.number)?;
        let failed =
            |error: rustix::io::Errno| format!("cannot make {} KiB of memory: {error}", RING_BYTES >> 10);
        let fd = rustix::fs::memfd_create("sanderling-loopback", MemfdFlags::CLOEXEC).map_err(failed)?;
        rustix::fs::ftruncate(&fd, mapping_bytes(RING_BYTES) as u64).map_err(failed)?;
        let [own, target] = map(std::os::fd::AsFd::as_fd(&fd), RING_BYTES).map_err(failed)?;
        let regions = [Region::of(&self.domain, &own, false)?, Region::of(&self.domain, &target, true)?];
        let pair = |sends| QueuePair::new(&self.domain, sends, 1, elements);
        let mut pairs = [pair(GATHER_WRITES)?, pair(1)?];
        let remotes = [0, 1].map(|at: usize| Remote {
            qp_num: pairs[at].number(),
            psn: 0,
            lid,
            mtu,
            is_ethernet: self.port.is_ethernet,
            gid: self.port.gid,
            ring_at: target.place().0 as u64,
            rkey: regions[1].keys().1,
            ring_bytes: RING_BYTES as u32,
            messages: MESSAGES,
        });
        for (pair, remote) in pairs.iter_mut().zip([remotes[1], remotes[0]]) {
            pair.init(&self.port)?;
            pair.connect(&self.port, 0, mtu, &remote)?;
        }
        Ok(Loopback { pairs, own, regions, elements, remote: remotes[1] })
    }
}

/// A connection of a card to itself. The queue pairs go before the memory that they use.
pub struct Loopback {
    pairs: [QueuePair; 2],
    own: RingMemory,
    regions: [Region; 2],
    elements: usize,
    remote: Remote,
}

impl std::fmt::Debug for Loopback {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Loopback").finish_non_exhaustive()
    }
}

impl Loopback {
    /// Lets the card gather these parts and write them, and waits for it. Own parts have arbitrary content.
    ///
    /// # Errors
    /// There are too many parts or bytes, or the card failed.
    pub fn gather(&mut self, parts: &[Part]) -> Result<(), String> {
        let plan = plan(parts, RING_BYTES, self.elements);
        let Plan { elements, writes, pieces } = &plan;
        if pieces.len() != 1 || writes.len() > GATHER_WRITES as usize {
            return Err(format!("{} parts are too many for one request", parts.len()));
        }
        let own_at = self.own.place().0 as u64;
        let segments: Vec<Sge> = elements
            .iter()
            .map(|element| match *element {
                Element::Own { from, bytes } => {
                    Sge { addr: own_at + from as u64, length: bytes as u32, lkey: self.regions[0].keys().0 }
                }
                Element::Memory { at, bytes, key } => {
                    Sge { addr: at as u64, length: bytes as u32, lkey: key }
                }
            })
            .collect();
        let last = writes.len() - 1;
        let requests: Vec<Write<'_>> = writes
            .iter()
            .enumerate()
            .map(|(number, write)| Write {
                id: (number == last).then_some(1),
                segments: &segments[write.elements.clone()],
                remote_at: self.remote.ring_at + write.at as u64,
                rkey: self.remote.rkey,
                immediate: None,
            })
            .collect();
        self.pairs[0].post(&requests)?;
        let (mut completions, until) = (Vec::new(), Instant::now() + MEASURED_MAX);
        while completions.is_empty() {
            self.pairs[0].poll(&mut completions)?;
            if Instant::now() > until {
                self.pairs[0].shut();
                return Err(format!("it did not answer within {} s", MEASURED_MAX.as_secs()));
            }
        }
        match completions[0] {
            Completion::Failed { status } => {
                Err(format!("the queue pair failed: {}", self.pairs[0].status(status)))
            }
            _ => Ok(()),
        }
    }
}
