//! The part that both halves of a connection share: the bootstrap connection, its records, and the switch to the queue pair. It
//! knows no frame.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags};

use super::Role;
use super::link::{Link, NotMade};
use super::record::{self, Content, ENVELOPE_BYTES, Remote};
use crate::error::Error;
use crate::options::Framing;
use crate::pipe::Pipe;
use crate::shm::RingMemory;
use crate::socket::Read;
use crate::stream::StreamSender;

/// Longest wait of a half before it looks again whether the other half has taken its event.
const SLICE: Duration = Duration::from_millis(20);
/// Longest reason that a server gives.
const REASON_BYTES_MAX: usize = 400;

/// The shared part of a connection.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) pipe: Pipe,
    pub(super) is_client: bool,
    role: Role,
    /// Watches the TCP socket and the completion channel.
    events: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    /// Sends envelopes over the bootstrap connection.
    pub(super) stream: StreamSender,
    pub(super) link: Option<Link>,
    /// The ring that the sender fills, until the sender takes it.
    pub(super) filled: Option<RingMemory>,
    /// Whether frames of this direction go over the queue pair, and those of the other one come over it.
    pub(super) sends_by_ring: bool,
    pub(super) receives_by_ring: bool,
    /// Whether a frame was sent, and received, and then sent.
    pub(super) has_sent: bool,
    pub(super) has_received: bool,
    is_welcome: bool,
    /// The peer's end of the TCP connection is closed.
    pub(super) is_gone: bool,
    /// Whether the TCP socket is watched for room, too.
    watches_room: bool,
}

impl Channel {
    pub(super) fn new(
        pipe: Pipe,
        framing: Framing,
        write_timeout: Duration,
        role: Role,
    ) -> Result<Channel, Error> {
        let stream = StreamSender::new(pipe.clone(), record::framing(&framing), write_timeout)?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)
            .and_then(|events| {
                epoll::add(&events, &pipe, EventData::new_u64(0), EventFlags::IN)?;
                Ok(events)
            })
            .map_err(|error| Error::io(pipe.peer(), "be watched", error))?;
        let state = State {
            stream,
            link: None,
            filled: None,
            sends_by_ring: false,
            receives_by_ring: false,
            has_sent: false,
            has_received: false,
            is_welcome: false,
            is_gone: false,
            watches_room: false,
        };
        let is_client = matches!(role, Role::Client);
        Ok(Channel { pipe, is_client, role, events, state: Mutex::new(state) })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // After a panic of one half the checks of the other one still hold.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn error(&self, reason: impl Into<String>) -> Error {
        Error::Rdma { peer: self.pipe.peer().to_owned(), reason: reason.into() }
    }

    /// The error of a queue pair that cannot be made.
    fn not_made(&self, NotMade { reason, is_lasting }: NotMade) -> Error {
        match is_lasting {
            true => Error::NoRdma { address: self.pipe.peer().to_owned(), reason },
            false => self.error(reason),
        }
    }

    /// The address of this end of the TCP connection.
    fn local(&self) -> Result<IpAddr, String> {
        let name = rustix::net::getsockname(&self.pipe).map_err(io::Error::from);
        let address = name.and_then(|name| SocketAddr::try_from(name).map_err(io::Error::from));
        Ok(address.map_err(|error| format!("the TCP connection has no address: {error}"))?.ip())
    }

    /// Makes the queue pair, and keeps the ring that the sender fills. Returns the ring that the other end fills.
    fn make_link(&self, state: &mut State) -> Result<RingMemory, NotMade> {
        let psn = random_psn(self);
        let local = self.local().map_err(NotMade::lasting)?;
        let domain = if let Role::Server(domain) = &self.role { domain.as_ref() } else { None };
        let (link, [filled, read]) = Link::new(local, psn, domain)?;
        epoll::add(&self.events, &link, EventData::new_u64(1), EventFlags::IN).map_err(|error| {
            NotMade::lasting(format!("the completion channel cannot be watched: {error}"))
        })?;
        (state.link, state.filled) = (Some(link), Some(filled));
        Ok(read)
    }

    fn tell(&self, state: &mut State, content: Content, bytes: &[u8]) -> Result<(), Error> {
        state.stream.push(&[&record::envelope(content, bytes.len())[..], bytes].concat())?;
        state.stream.try_flush()?;
        Ok(())
    }

    /// A frame has come over the TCP connection. The client sets its queue pair up after the first answer. Returns its
    /// ring then.
    pub(super) fn received_frame(&self) -> Result<Option<RingMemory>, Error> {
        let mut state = self.state();
        state.has_received = true;
        if !self.is_client || !state.has_sent || state.link.is_some() {
            return Ok(None);
        }
        let read = self.make_link(&mut state).map_err(|why| self.not_made(why))?;
        let local = state.link.as_ref().map(Link::local).unwrap_or_default();
        self.tell(&mut state, Content::Client, &local.encode())?;
        Ok(Some(read))
    }

    /// A frame was given to the TCP connection. A server has answered then, and lets its client set a queue pair up.
    pub(super) fn sent_frame(state: &mut State) {
        state.has_sent = true;
        state.is_welcome |= state.has_received;
    }

    /// Acts on a record of the peer. Returns the ring that the other end fills, if it was made.
    pub(super) fn handle(&self, content: Content, bytes: &[u8]) -> Result<Option<RingMemory>, Error> {
        let mut state = self.state();
        let state = &mut *state;
        let refused = |reason: &str| {
            let reason = format!("{reason} ({content:?})");
            Err(Error::NotAFrame { peer: self.pipe.peer().to_owned(), reason })
        };
        match content {
            Content::Frame => refused("a frame is no record"),
            Content::Client if self.is_client || state.link.is_some() || !state.is_welcome => {
                refused("a queue pair where none is expected")
            }
            Content::Client => {
                let made = Remote::decode(bytes).map_err(NotMade::lasting).and_then(|remote| {
                    let read = self.make_link(state)?;
                    let link = state.link.as_mut().ok_or_else(|| NotMade::lasting("no queue pair"))?;
                    // A path may be away for a while.
                    link.connect(remote).map_err(|reason| NotMade { reason, is_lasting: false })?;
                    Ok((read, link.local()))
                });
                match made {
                    Ok((read, local)) => {
                        self.tell(state, Content::Server, &local.encode())?;
                        Ok(Some(read))
                    }
                    Err(why) => {
                        let mut told = vec![u8::from(why.is_lasting)];
                        told.extend(why.reason.bytes().take(REASON_BYTES_MAX));
                        // The client learns it from the end of the connection, if at all.
                        let _ = self.tell(state, Content::Refused, &told);
                        Err(self.not_made(why))
                    }
                }
            }
            Content::Refused if self.is_client => {
                let (is_lasting, reason) = bytes.split_first().unwrap_or((&0, &[]));
                let reason = String::from_utf8_lossy(&reason[..reason.len().min(REASON_BYTES_MAX)]);
                let reason = format!("the server: {}", reason.escape_debug());
                Err(self.not_made(NotMade { reason, is_lasting: *is_lasting == 1 }))
            }
            Content::Server | Content::Switch | Content::Refused if state.link.is_none() => {
                refused("a record where none is expected")
            }
            Content::Server if self.is_client && !state.sends_by_ring => {
                let remote = Remote::decode(bytes).map_err(|reason| self.error(reason))?;
                let link = state.link.as_mut();
                link.map_or(Ok(()), |link| link.connect(remote)).map_err(|reason| self.error(reason))?;
                self.switch(state).map(|()| None)
            }
            Content::Switch if !state.receives_by_ring && (!self.is_client || state.sends_by_ring) => {
                state.receives_by_ring = true;
                if !self.is_client {
                    self.switch(state)?;
                }
                Ok(None)
            }
            Content::Server | Content::Switch | Content::Refused => refused("a record that came before"),
        }
    }

    /// From now on frames of this direction go over the queue pair.
    fn switch(&self, state: &mut State) -> Result<(), Error> {
        self.tell(state, Content::Switch, &[])?;
        state.sends_by_ring = true;
        if let Some(link) = &mut state.link {
            link.progress += 1;
        }
        Ok(())
    }

    /// Sends the rest of what is to go over the TCP connection. `true`: all of it is sent.
    pub(super) fn flush_stream(state: &mut State) -> Result<bool, Error> {
        if state.stream.is_flushed() { Ok(true) } else { state.stream.try_flush() }
    }

    /// Takes the events that made the descriptor readable. Only when frames come over the queue pair, since the TCP
    /// connection then has nothing to say but its end.
    pub(super) fn take_events(&self) -> Result<(), Error> {
        let mut state = self.state();
        if let Some(link) = &mut state.link {
            link.take_events();
        }
        if !state.receives_by_ring || state.is_gone {
            return Ok(());
        }
        match self.pipe.try_read(&mut [0; ENVELOPE_BYTES]) {
            Ok(Read::Nothing) => Ok(()),
            // A connection that was cut is at its end, too.
            Ok(Read::End) | Err(Error::Cut { .. } | Error::Closed { .. }) => {
                state.is_gone = true;
                Ok(())
            }
            Ok(Read::Bytes(_)) => Err(self.error("bytes over TCP behind the switch to the queue pair")),
            Err(error) => Err(error),
        }
    }

    /// Asks for an event, of any kind for a sender that waits for room.
    pub(super) fn arm(&self, is_blocked: bool) -> Result<(), Error> {
        let mut state = self.state();
        if let Some(link) = &mut state.link {
            // The end of a write is no announcement.
            link.request_event(!is_blocked && !link.is_holding());
        }
        let waits = !state.stream.is_flushed() || is_blocked && !state.sends_by_ring;
        let wants_room = waits && state.stream.sends_by_writing();
        if wants_room != state.watches_room {
            let interest = if wants_room { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&self.events, &self.pipe, EventData::new_u64(0), interest)
                .map_err(|error| Error::io(self.pipe.peer(), "be watched", error))?;
            state.watches_room = wants_room;
        }
        Ok(())
    }

    /// Waits for an event, or until the deadline, or for a moment, since the other half may take this half's event.
    /// `false`: the deadline passed.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Result<bool, Error> {
        let slice = Instant::now() + SLICE;
        let until = deadline.map_or(slice, |deadline| deadline.min(slice));
        let ready = crate::socket::wait(&mut [PollFd::new(&self.events, PollFlags::IN)], Some(until))
            .map_err(|error| Error::io(self.pipe.peer(), "wait", error))?;
        Ok(ready || deadline.is_none_or(|deadline| Instant::now() < deadline))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl State {
    /// The error of a queue pair that has failed.
    pub(super) fn failure(&self, channel: &Channel) -> Option<Error> {
        let reason = self.link.as_ref()?.failure.clone()?;
        match self.is_gone {
            true => Some(Error::Closed { peer: channel.pipe.peer().to_owned() }),
            false => Some(channel.error(reason)),
        }
    }

    /// Polls the queue pair.
    pub(super) fn poll(&mut self) {
        if let Some(link) = &mut self.link {
            link.poll();
        }
    }

    /// A count that grows with all that a blocked sender may wait for.
    pub(super) fn progress(&self) -> u64 {
        self.link.as_ref().map_or(0, |link| link.progress)
    }
}

/// The number of the first packet. It tells packets of this queue pair from late ones of another.
fn random_psn(channel: &Channel) -> u32 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::ptr::from_ref(channel) as usize) as u32 & 0x00ff_ffff
}
