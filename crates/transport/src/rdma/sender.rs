//! The sending half: frames go into the registered ring, or into a buffer when they are long or still go over TCP. It
//! knows no device.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use super::card::Card;
use super::channel::{Channel, State};
use super::gather::{Element, GatherFrame, Plan, plan};
use super::link::Pending;
use super::record::{self, Content, ENVELOPE_BYTES};
use crate::error::Error;
use crate::memory::grow;
use crate::options::Framing;
use crate::shm::RingMemory;

/// A buffer beyond this length is given back when its frame is sent.
const BUFFER_BYTES_KEPT: usize = 256 << 10;

/// The sending half of a connection by RDMA.
#[derive(Debug)]
pub(crate) struct RdmaSender {
    channel: Arc<Channel>,
    framing: Framing,
    write_timeout: Duration,
    /// The ring that the device reads, once frames go over the queue pair.
    ring: Option<RingMemory>,
    /// Messages in the ring that were not flushed.
    pending: VecDeque<Pending>,
    /// Memory of a frame that goes in pieces or over TCP, in words, and that frame.
    buffer: Vec<u64>,
    boxed: Option<Boxed>,
    /// A frame that the card gathers, of which pieces wait for room.
    gathered: Option<Gathered>,
    /// Start of the present blockage, and the progress until then.
    blocked_since: Option<Instant>,
    progress: u64,
}

/// A committed frame in the buffer.
#[derive(Clone, Copy, Debug)]
struct Boxed {
    bytes: usize,
    /// Bytes that are in the ring.
    sent: usize,
}

/// A frame that the card gathers.
#[derive(Debug)]
struct Gathered {
    frame: GatherFrame,
    plan: Plan,
    /// Pieces that the device has.
    posted: usize,
    /// When its memory is released, and the queue pair shut, whatever the peer does.
    until: Instant,
}

/// The place of a frame that is not committed.
#[derive(Debug)]
pub(crate) struct RdmaCommit<'a>(Place<'a>);

#[derive(Debug)]
enum Place<'a> {
    Slot { at: usize, channel: &'a Channel, pending: &'a mut VecDeque<Pending> },
    Buffer(&'a mut Option<Boxed>),
}

impl RdmaCommit<'_> {
    pub(crate) fn commit(self, bytes: usize) {
        match self.0 {
            Place::Slot { at, channel, pending } => {
                if let Some(link) = &mut channel.state().link {
                    link.out.take(bytes);
                }
                pending.push_back(Pending { at, bytes, is_piece: false });
            }
            Place::Buffer(boxed) => *boxed = Some(Boxed { bytes, sent: 0 }),
        }
    }
}

impl RdmaSender {
    pub(super) fn new(channel: Arc<Channel>, framing: Framing, write_timeout: Duration) -> RdmaSender {
        RdmaSender {
            channel,
            framing,
            write_timeout,
            ring: None,
            pending: VecDeque::new(),
            buffer: Vec::new(),
            boxed: None,
            gathered: None,
            blocked_since: None,
            progress: 0,
        }
    }

    /// A place for a frame of `bytes_max`. Waits for the peer if necessary.
    pub(crate) fn frame(&mut self, bytes_max: usize) -> Result<(RdmaCommit<'_>, &mut [u8]), Error> {
        self.framing.check_length(bytes_max, self.channel.pipe.peer())?;
        let at = loop {
            if let Some(at) = self.place(bytes_max)? {
                break at;
            }
            self.wait()?;
        };
        self.lend(at, bytes_max)
    }

    /// A place for a frame without waiting. `None`: there is no room.
    pub(crate) fn try_frame(
        &mut self,
        bytes_max: usize,
    ) -> Result<Option<(RdmaCommit<'_>, &mut [u8])>, Error> {
        self.framing.check_length(bytes_max, self.channel.pipe.peer())?;
        match self.place(bytes_max)? {
            Some(at) => self.lend(at, bytes_max).map(Some),
            None => Ok(None),
        }
    }

    fn lend(&mut self, at: Option<usize>, bytes: usize) -> Result<(RdmaCommit<'_>, &mut [u8]), Error> {
        self.blocked_since = None;
        let RdmaSender { channel, ring, pending, buffer, boxed, .. } = self;
        match (at, ring) {
            (Some(at), Some(ring)) => {
                let (_, frame) = ring.slot_mut(at, bytes);
                Ok((RdmaCommit(Place::Slot { at, channel, pending }), frame))
            }
            _ => {
                grow(buffer, bytes.div_ceil(size_of::<u64>()), channel.pipe.peer())?;
                let frame = &mut bytemuck::cast_slice_mut(buffer)[..bytes];
                Ok((RdmaCommit(Place::Buffer(boxed)), frame))
            }
        }
    }

    /// Finds room for a frame: a slot, or the buffer (`Some(None)`). `None`: there is no room now.
    fn place(&mut self, bytes_max: usize) -> Result<Option<Option<usize>>, Error> {
        let channel = Arc::clone(&self.channel);
        let mut state = channel.state();
        if !self.drain(&channel, &mut state)? {
            return self.blocked(&channel, state).map(|()| None);
        }
        let State { stream, link, filled, sends_by_ring: true, .. } = &mut *state else {
            // The room is needed when the frame is committed, and only records may take it before.
            let has_room = state.stream.try_frame(bytes_max + ENVELOPE_BYTES)?.is_some();
            return if has_room { Ok(Some(None)) } else { self.blocked(&channel, state).map(|()| None) };
        };
        if !stream.is_flushed() {
            stream.try_flush()?;
        }
        self.ring = self.ring.take().or_else(|| filled.take());
        let Some(link) = link else { return Err(channel.error("no queue pair")) };
        if bytes_max > link.piece_bytes_max() {
            return Ok(Some(None));
        }
        let mut at = link.out.find(bytes_max);
        if at.is_none() {
            link.post(&mut self.pending);
            link.poll();
            at = link.out.find(bytes_max);
        }
        if let Some(error) = state.failure(&channel) {
            return Err(error);
        }
        match at {
            Some(at) => Ok(Some(Some(at))),
            None => self.blocked(&channel, state).map(|()| None),
        }
    }

    /// The card that may gather frames, once they go over the queue pair.
    pub(crate) fn card(&self) -> Option<Card> {
        let state = self.channel.state();
        state.link.as_ref().filter(|_| state.sends_by_ring).and_then(|link| link.card().cloned())
    }

    /// Lets the card gather a frame. `false`: it cannot now, and nothing was done.
    pub(crate) fn try_gather(&mut self, frame: GatherFrame) -> Result<bool, Error> {
        self.framing.check_length(frame.bytes(), self.channel.pipe.peer())?;
        let channel = Arc::clone(&self.channel);
        let state = &mut *channel.state();
        if !self.drain(&channel, state)? || !state.sends_by_ring {
            return Ok(false);
        }
        self.ring = self.ring.take().or_else(|| state.filled.take());
        let Some(link) = state.link.as_mut().filter(|link| link.card().is_some()) else { return Ok(false) };
        let plan = plan(&frame.parts, link.piece_bytes_max(), link.elements_max());
        // The first piece must find room, so that a reply does not wait here that could wait elsewhere.
        link.post(&mut self.pending);
        let first = plan.pieces.first().map_or(0, |piece| piece.bytes);
        let has_room = self.pending.is_empty()
            && link.has_room_to_gather(plan.writes_max())
            && link.out.find(first).is_some();
        if has_room {
            let until = Instant::now() + self.write_timeout;
            self.gathered = Some(Gathered { frame, plan, posted: 0, until });
            self.drain(&channel, state)?;
        }
        Ok(has_room)
    }

    /// Hands pieces of the gathered frame to the device. `true`: it has all of them.
    fn drain_gathered(&mut self, channel: &Channel, state: &mut State) -> Result<bool, Error> {
        let Some(Gathered { frame, plan, posted, until }) = &mut self.gathered else { return Ok(true) };
        let (Some(link), Some(ring)) = (&mut state.link, &mut self.ring) else {
            return Err(channel.error("no queue pair"));
        };
        while let Some(piece) = plan.pieces.get(*posted) {
            link.post(&mut self.pending);
            let mut at = link.out.find(piece.bytes);
            if at.is_none() || !link.has_room_to_gather(piece.writes.len()) {
                link.poll();
                at = link.out.find(piece.bytes);
            }
            let has_room = self.pending.is_empty() && link.has_room_to_gather(piece.writes.len());
            let Some(at) = at.filter(|_| has_room) else {
                if *until <= Instant::now() {
                    link.fail("rows that the card gathers were held for too long".to_owned());
                }
                return match state.failure(channel) {
                    Some(error) => Err(error),
                    None => Ok(false),
                };
            };
            let (_, slot) = ring.slot_mut(at, piece.bytes);
            let mut place = 0;
            for element in plan.writes[piece.writes.clone()].iter().flat_map(|write| write.elements.clone()) {
                match plan.elements[element] {
                    Element::Own { from, bytes } => {
                        slot[place..place + bytes].copy_from_slice(&frame.own[from..from + bytes]);
                        place += bytes;
                    }
                    Element::Memory { bytes, .. } => place += bytes,
                }
            }
            link.out.take(piece.bytes);
            link.post_gathered((plan, *posted), at, *until, &frame.keep);
            *posted += 1;
            self.blocked_since = None;
        }
        self.gathered = None;
        Ok(true)
    }

    /// Moves the frame that waits for room on. `true`: there is none any more.
    fn drain(&mut self, channel: &Channel, state: &mut State) -> Result<bool, Error> {
        Ok(self.drain_gathered(channel, state)? && self.drain_buffer(channel, state)?)
    }

    /// Moves the frame in the buffer on. `true`: the buffer is free.
    fn drain_buffer(&mut self, channel: &Channel, state: &mut State) -> Result<bool, Error> {
        let Some(boxed) = &mut self.boxed else { return Ok(true) };
        let frame: &[u8] = &bytemuck::cast_slice(&self.buffer)[..boxed.bytes];
        if !state.sends_by_ring {
            let Some((room, filled)) = state.stream.try_frame(frame.len() + ENVELOPE_BYTES)? else {
                return Ok(false);
            };
            let (header, content) = room.split_at_mut(ENVELOPE_BYTES);
            header.copy_from_slice(&record::envelope(Content::Frame, frame.len()));
            content.copy_from_slice(frame);
            *filled += frame.len() + ENVELOPE_BYTES;
            Channel::sent_frame(state);
        } else {
            self.ring = self.ring.take().or_else(|| state.filled.take());
            let (Some(link), Some(ring)) = (&mut state.link, &mut self.ring) else {
                return Err(channel.error("no queue pair"));
            };
            let piece_bytes_max = link.piece_bytes_max();
            let is_piece = frame.len() > piece_bytes_max;
            while boxed.sent < frame.len() {
                let piece = &frame[boxed.sent..][..piece_bytes_max.min(frame.len() - boxed.sent)];
                let mut at = link.out.find(piece.len());
                if at.is_none() {
                    link.post(&mut self.pending);
                    link.poll();
                    at = link.out.find(piece.len());
                }
                let Some(at) = at else {
                    return match state.failure(channel) {
                        Some(error) => Err(error),
                        None => Ok(false),
                    };
                };
                ring.slot_mut(at, piece.len()).1.copy_from_slice(piece);
                link.out.take(piece.len());
                self.pending.push_back(Pending { at, bytes: piece.len(), is_piece });
                boxed.sent += piece.len();
                self.blocked_since = None;
            }
        }
        self.boxed = None;
        if self.buffer.len() * size_of::<u64>() > BUFFER_BYTES_KEPT {
            self.buffer = Vec::new();
        }
        Ok(true)
    }

    /// Sends all committed frames and waits for the peer.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        while !self.try_flush()? {
            self.wait()?;
        }
        Ok(())
    }

    /// Sends as much as possible without waiting. `true`: everything is sent.
    pub(crate) fn try_flush(&mut self) -> Result<bool, Error> {
        let channel = Arc::clone(&self.channel);
        let mut state = channel.state();
        let is_drained = self.drain(&channel, &mut state)?;
        if let Some(link) = state.link.as_mut().filter(|_| !self.pending.is_empty()) {
            link.post(&mut self.pending);
        }
        if let Some(error) = state.failure(&channel) {
            return Err(error);
        }
        let is_flushed = Channel::flush_stream(&mut state)?;
        if !is_drained || !is_flushed || !self.pending.is_empty() {
            return self.blocked(&channel, state).map(|()| false);
        }
        self.blocked_since = None;
        Ok(true)
    }

    /// Records a blockage. Fails when it has lasted for the write timeout.
    fn blocked(&mut self, channel: &Channel, mut state: MutexGuard<'_, State>) -> Result<(), Error> {
        state.poll();
        if let Some(link) = &mut state.link {
            link.post(&mut self.pending);
        }
        if let Some(error) = state.failure(channel) {
            return Err(error);
        }
        if state.is_gone {
            return Err(Error::Closed { peer: channel.pipe.peer().to_owned() });
        }
        if !state.sends_by_ring {
            self.blocked_since = state.stream.blocked_since().or_else(|| Some(Instant::now()));
            return Ok(());
        }
        let progress = state.progress();
        if std::mem::replace(&mut self.progress, progress) != progress {
            self.blocked_since = None;
        }
        let since = *self.blocked_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.write_timeout {
            let peer = channel.pipe.peer().to_owned();
            return Err(Error::SendTimeout { peer, timeout: self.write_timeout });
        }
        Ok(())
    }

    /// Waits until an attempt may be worth while.
    fn wait(&mut self) -> Result<(), Error> {
        self.channel.arm(true)?;
        if !self.look() {
            self.channel.wait(self.gives_up_at())?;
            self.channel.take_events()?;
        }
        Ok(())
    }

    /// Whether there may be more room than when the sender was last blocked.
    pub(crate) fn look(&self) -> bool {
        let mut state = self.channel.state();
        state.poll();
        state.progress() != self.progress || state.is_gone
    }

    /// The time at which a blocked sender gives up. `None`: nothing is blocked.
    pub(crate) fn gives_up_at(&self) -> Option<Instant> {
        let gives_up_at = self.blocked_since.map(|since| since + self.write_timeout)?;
        Some(self.gathered.as_ref().map_or(gives_up_at, |gathered| gives_up_at.min(gathered.until)))
    }

    /// The time at which memory that the card still reads is taken from it. `None`: it reads none.
    pub(crate) fn holds_until(&self) -> Option<Instant> {
        self.channel.state().link.as_ref().and_then(super::link::Link::holds_until)
    }

    pub(crate) fn peer(&self) -> &str {
        self.channel.pipe.peer()
    }
}

impl Drop for RdmaSender {
    fn drop(&mut self) {
        let mut state = self.channel.state();
        match &mut *state {
            // The TCP connection stays open, since its end is that of the peer.
            State { link: Some(link), sends_by_ring: true, is_gone: false, .. } => link.end(),
            State { sends_by_ring: true, .. } => {}
            State { stream, .. } => {
                let _ = stream.try_flush();
                self.channel.pipe.shut_write();
            }
        }
    }
}
