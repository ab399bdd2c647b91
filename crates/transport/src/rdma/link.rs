//! The queue pair of a connection with its two rings: what is under way, what has arrived, what is released. It knows no
//! TCP connection and waits for nothing.

use std::any::Any;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;

use super::card::{Card, GatherDomain};
use super::device::{Device, Domain, Region};
use super::devices::{self, CLASS, Port};
use super::ffi::Sge;
use super::gather::{Element, Plan};
use super::queue_pair::{Completion, QueuePair, Write};
use super::record::Remote;
use super::ring::{Message, OutRing, Releases, piece_bytes_max};
use super::{ELEMENTS_MAX, GATHER_WRITES, MESSAGES, RING_BYTES};
use crate::shm::{FRAME_AT_BYTES, RingMemory, map, mapping_bytes};

/// Writes under way: frames of one direction, and what is told of the other one.
const SENDS: u32 = 2 * MESSAGES + 16;
/// Announcements of the other end: its frames, what it tells of ours, and its end.
const RECEIVES: u32 = 2 * MESSAGES + 16;
/// How long a sender that is dropped waits for its last frames to arrive.
const LINGER: Duration = Duration::from_millis(250);

/// A frame, or a part of one, that is in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    Frame { at: usize },
    Piece { at: usize },
    End,
}

/// A message that was written into the sender's copy of the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) at: usize,
    pub(super) bytes: usize,
    pub(super) is_piece: bool,
}

/// Why there is no queue pair.
#[derive(Debug)]
pub(super) struct NotMade {
    pub(super) reason: String,
    /// Whether another attempt would fail, too.
    pub(super) is_lasting: bool,
}

impl NotMade {
    pub(super) fn lasting(reason: impl Into<String>) -> NotMade {
        NotMade { reason: reason.into(), is_lasting: true }
    }
}

/// The memory of a piece of a gathered frame, which must not change until the card has read it.
struct Held {
    /// The last write of the piece.
    id: u64,
    writes: u32,
    until: Instant,
    _keep: Arc<dyn Any + Send + Sync>,
}

pub(super) struct Link {
    /// Dropped before all memory that it uses.
    pair: QueuePair,
    port: Port,
    /// The card, if it may gather frames: how many elements a write may have, what it reads now.
    card: Option<Card>,
    elements_max: usize,
    held: VecDeque<Held>,
    /// The memory of this end: the ring that it fills, and the one that the other end fills.
    filled: Region,
    read: Region,
    filled_at: u64,
    read_at: u64,
    psn: u32,
    mtu: u8,
    lid: u16,
    remote: Option<Remote>,
    pub(super) out: OutRing,
    pub(super) arrived: VecDeque<Arrival>,
    releases: Releases,
    /// Writes that were handed to the device since the start, and that it has completed.
    posted: u64,
    completed: u64,
    completions: Vec<Completion>,
    /// Why the queue pair is of no use any more.
    pub(super) failure: Option<String>,
    /// Grows with all that a blocked sender may wait for.
    pub(super) progress: u64,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Link").field("port", &self.port).field("out", &self.out).finish_non_exhaustive()
    }
}

impl Link {
    /// Sets a queue pair up on the port of a local address. Returns it with its two rings, the filled one first.
    ///
    /// Its protection domain is that of the server's card, if there is one, and one of its own otherwise.
    pub(super) fn new(
        local: IpAddr,
        psn: u32,
        domain: Option<&GatherDomain>,
    ) -> Result<(Link, [RingMemory; 2]), NotMade> {
        let class = Path::new(CLASS);
        devices::list(class).map_err(|reason| NotMade::lasting(format!("no RDMA device: {reason}")))?;
        // A port that is down may come back.
        let port = devices::find(class, local)
            .map_err(|reason| NotMade { reason: format!("no RDMA device: {reason}"), is_lasting: false })?;
        Link::on_port(port, psn, domain).map_err(NotMade::lasting)
    }

    fn on_port(
        port: Port,
        psn: u32,
        domain: Option<&GatherDomain>,
    ) -> Result<(Link, [RingMemory; 2]), String> {
        let device = Device::open(&port.device)?;
        let (lid, mtu) = device.port(port.number)?;
        let failed =
            |error: rustix::io::Errno| format!("cannot make {} KiB of memory: {error}", RING_BYTES >> 10);
        let fd = rustix::fs::memfd_create("sanderling-rdma", MemfdFlags::CLOEXEC).map_err(failed)?;
        rustix::fs::ftruncate(&fd, mapping_bytes(RING_BYTES) as u64).map_err(failed)?;
        let rings = map(fd.as_fd(), RING_BYTES).map_err(failed)?;
        let elements_max = device.elements_max().min(ELEMENTS_MAX);
        let mut card = domain.map(|shared| shared.card(Arc::clone(&device), &port)).transpose()?;
        let domain = match &card {
            Some(card) => Arc::clone(&card.domain),
            None => Domain::new(device)?,
        };
        let filled = Region::of(&domain, &rings[0], false)?;
        let read = Region::of(&domain, &rings[1], true)?;
        // Longer queues are not possible everywhere.
        let gathers = card
            .as_ref()
            .filter(|_| elements_max > 1)
            .and_then(|_| QueuePair::new(&domain, SENDS + GATHER_WRITES, RECEIVES, elements_max).ok());
        card = card.filter(|_| gathers.is_some());
        let mut pair = match gathers {
            Some(pair) => pair,
            None => QueuePair::new(&domain, SENDS, RECEIVES, 1)?,
        };
        pair.init(&port)?;
        pair.post_receives(RECEIVES as usize)?;
        let (filled_at, read_at) = (rings[0].place().0 as u64, rings[1].place().0 as u64);
        let link = Link {
            pair,
            port,
            card,
            elements_max,
            held: VecDeque::new(),
            filled,
            read,
            filled_at,
            read_at,
            psn,
            mtu,
            lid,
            remote: None,
            out: OutRing::new(RING_BYTES, MESSAGES),
            arrived: VecDeque::new(),
            releases: Releases::default(),
            posted: 0,
            completed: 0,
            completions: Vec::new(),
            failure: None,
            progress: 0,
        };
        Ok((link, rings))
    }

    /// This end, for the other one.
    pub(super) fn local(&self) -> Remote {
        Remote {
            qp_num: self.pair.number(),
            psn: self.psn,
            lid: self.lid,
            mtu: self.mtu,
            is_ethernet: self.port.is_ethernet,
            gid: self.port.gid,
            ring_at: self.read_at,
            rkey: self.read.keys().1,
            ring_bytes: RING_BYTES as u32,
            messages: MESSAGES,
        }
    }

    /// Connects to the other end.
    pub(super) fn connect(&mut self, remote: Remote) -> Result<(), String> {
        if remote.is_ethernet != self.port.is_ethernet {
            return Err("one end is on Ethernet (RoCE) and the other one on InfiniBand".to_owned());
        }
        // Both ends have the same offsets, so the smaller ring counts.
        self.out = OutRing::new(RING_BYTES.min(remote.ring_bytes as usize), MESSAGES.min(remote.messages));
        self.pair.connect(&self.port, self.psn, self.mtu, &remote)?;
        self.remote = Some(remote);
        Ok(())
    }

    /// The longest message that may be written.
    pub(super) fn piece_bytes_max(&self) -> usize {
        self.out.piece_bytes_max()
    }

    /// Room beside the writes of gathered frames, which have their own.
    fn has_room_for(&self, writes: usize) -> bool {
        let others = (self.posted - self.completed).saturating_sub(self.gathering().into());
        others + writes as u64 <= u64::from(SENDS)
    }

    /// Writes of gathered frames that are under way.
    fn gathering(&self) -> u32 {
        self.held.iter().map(|held| held.writes).sum()
    }

    /// The card that may gather frames.
    pub(super) fn card(&self) -> Option<&Card> {
        self.card.as_ref()
    }

    pub(super) fn elements_max(&self) -> usize {
        self.elements_max
    }

    /// Whether the card reads memory that must not change.
    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// The time at which memory that the card still reads is taken from it, with the queue pair.
    pub(super) fn holds_until(&self) -> Option<Instant> {
        self.held.front().map(|held| held.until)
    }

    /// Whether so many writes of a gathered frame may be handed to the device now.
    pub(super) fn has_room_to_gather(&self, writes: usize) -> bool {
        self.failure.is_none() && self.gathering() as usize + writes <= GATHER_WRITES as usize
    }

    /// Hands a piece of a gathered frame to the device, whose own bytes are in the slot that was found for it.
    pub(super) fn post_gathered(
        &mut self,
        (plan, number): (&Plan, usize),
        at: usize,
        until: Instant,
        keep: &Arc<dyn Any + Send + Sync>,
    ) {
        let Some(remote) = self.remote else { return self.fail("it is not connected".to_owned()) };
        let piece = &plan.pieces[number];
        let writes = &plan.writes[piece.writes.clone()];
        let offset = (at + FRAME_AT_BYTES) as u64;
        let (first, last) = (writes.first(), writes.last());
        let elements =
            first.map_or(0, |write| write.elements.start)..last.map_or(0, |write| write.elements.end);
        let (mut segments, mut place) = (Vec::with_capacity(elements.len()), offset);
        for element in &plan.elements[elements.clone()] {
            let segment = match *element {
                // It lies in the slot where the other end gets it.
                Element::Own { bytes, .. } => {
                    Sge { addr: self.filled_at + place, length: bytes as u32, lkey: self.filled.keys().0 }
                }
                Element::Memory { at, bytes, key } => {
                    Sge { addr: at as u64, length: bytes as u32, lkey: key }
                }
            };
            place += u64::from(segment.length);
            segments.push(segment);
        }
        let is_whole = plan.pieces.len() == 1;
        let message = if is_whole { Message::Frame { at } } else { Message::Piece { at } };
        // One completion for the frame, unless its writes would never find room without those of its pieces.
        let is_signaled = number + 1 == plan.pieces.len() || plan.writes.len() > GATHER_WRITES as usize;
        self.posted += writes.len() as u64;
        let (id, count) = (self.posted, writes.len());
        let requests: Vec<Write<'_>> = writes
            .iter()
            .enumerate()
            .map(|(at, write)| Write {
                id: (is_signaled && at + 1 == count).then_some(id),
                segments: &segments
                    [write.elements.start - elements.start..write.elements.end - elements.start],
                remote_at: remote.ring_at + offset + write.at as u64,
                rkey: remote.rkey,
                immediate: (at + 1 == count).then(|| message.encode()),
            })
            .collect();
        // Before the device has it.
        self.held.push_back(Held { id, writes: count as u32, until, _keep: Arc::clone(keep) });
        if let Err(reason) = self.pair.post(&requests) {
            self.fail(reason);
        }
    }

    fn write(&mut self, message: Message, slot: Option<(usize, usize)>) -> Result<(), String> {
        let Some(remote) = self.remote else { return Err("it is not connected".to_owned()) };
        self.posted += 1;
        let (at, bytes) = slot.unwrap_or_default();
        let offset = (at + FRAME_AT_BYTES) as u64;
        let segment =
            [Sge { addr: self.filled_at + offset, length: bytes as u32, lkey: self.filled.keys().0 }];
        self.pair.post(&[Write {
            id: Some(self.posted),
            segments: if slot.is_some() { &segment } else { &[] },
            remote_at: remote.ring_at + offset,
            rkey: remote.rkey,
            immediate: Some(message.encode()),
        }])
    }

    /// Hands messages to the device, as many as it takes now.
    pub(super) fn post(&mut self, pending: &mut VecDeque<Pending>) {
        while let Some(&Pending { at, bytes, is_piece }) = pending.front() {
            if !self.has_room_for(1) {
                self.poll();
            }
            if self.failure.is_some() || !self.has_room_for(1) {
                return;
            }
            let message = if is_piece { Message::Piece { at } } else { Message::Frame { at } };
            match self.write(message, Some((at, bytes))) {
                Ok(()) => pending.pop_front(),
                Err(reason) => return self.fail(reason),
            };
        }
    }

    /// Takes what the device has completed, and what has arrived.
    pub(super) fn poll(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        let polled = self.pair.poll(&mut completions);
        let mut received = 0;
        for completion in completions.drain(..) {
            match completion {
                Completion::Sent { id } => {
                    self.completed = self.completed.max(id);
                    self.progress += 1;
                }
                Completion::Received { immediate, bytes } => {
                    received += 1;
                    if let Err(reason) = self.receive(Message::decode(immediate), bytes as usize) {
                        self.fail(reason);
                    }
                }
                Completion::Failed { status } => {
                    let reason = format!("the queue pair failed: {}", self.pair.status(status));
                    self.fail(reason);
                }
            }
        }
        self.completions = completions;
        self.release_held();
        let posted = polled.and_then(|()| match self.failure {
            None => self.pair.post_receives(received),
            Some(_) => Ok(()),
        });
        if let Err(reason) = posted {
            self.fail(reason);
        }
        self.tell_releases();
    }

    /// Releases memory that the card has read. Where it takes too long, the queue pair is shut; its memory is released
    /// with the queue pair, from which on no card reads it.
    fn release_held(&mut self) {
        while self.held.front().is_some_and(|held| held.id <= self.completed) {
            self.held.pop_front();
        }
        if self.failure.is_none() && self.holds_until().is_some_and(|until| until <= Instant::now()) {
            self.fail("rows that the card gathers were held for too long".to_owned());
        }
    }

    fn receive(&mut self, message: Message, bytes: usize) -> Result<(), String> {
        if self.arrived.len() > MESSAGES as usize {
            return Err("the peer writes more than there is room for".to_owned());
        }
        let end = |at: usize, bytes: usize| at + FRAME_AT_BYTES + bytes <= RING_BYTES;
        match message {
            Message::Frame { at } if end(at, 0) => self.arrived.push_back(Arrival::Frame { at }),
            // A gathered piece has several writes, and these bytes are those of the last one.
            Message::Piece { at } if end(at, bytes) => self.arrived.push_back(Arrival::Piece { at }),
            Message::Frame { at } | Message::Piece { at } => {
                return Err(format!("the peer writes {bytes} bytes at {at} of a ring of {RING_BYTES}"));
            }
            Message::Released { messages } => self.progress += u64::from(self.out.release(messages)?),
            Message::End => self.arrived.push_back(Arrival::End),
        }
        Ok(())
    }

    /// A message of this length was read, and its slot may be written again.
    pub(super) fn release(&mut self, bytes: usize) {
        self.releases.note(bytes);
        self.tell_releases();
    }

    fn tell_releases(&mut self) {
        let Some(message) = self.releases.to_tell(RING_BYTES, MESSAGES) else { return };
        // Without room it is told after the next poll.
        if self.failure.is_none() && self.has_room_for(1) {
            self.releases.told();
            if let Err(reason) = self.write(message, None) {
                self.fail(reason);
            }
        }
    }

    pub(super) fn fail(&mut self, reason: String) {
        // The first error says most: others follow from it.
        if self.failure.is_none() {
            self.failure = Some(reason);
            self.pair.shut();
        }
        self.progress += 1;
    }

    /// Asks for an event at the next announcement, or at any completion. Whether something has come meanwhile must be
    /// looked for afterwards.
    pub(super) fn request_event(&mut self, announced_only: bool) {
        if let Err(reason) = self.pair.request_event(announced_only) {
            self.fail(reason);
        }
    }

    pub(super) fn take_events(&mut self) {
        self.pair.take_events();
    }

    /// Announces that no further frames follow, and waits for a moment until all of them have arrived.
    pub(super) fn end(&mut self) {
        if self.failure.is_none() && self.has_room_for(1) && self.write(Message::End, None).is_err() {
            return;
        }
        let until = Instant::now() + LINGER;
        while self.failure.is_none() && self.completed < self.posted && Instant::now() < until {
            std::thread::yield_now();
            self.poll();
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.pair.as_fd()
    }
}

const _: () = assert!(piece_bytes_max(RING_BYTES).is_multiple_of(size_of::<u64>()));
