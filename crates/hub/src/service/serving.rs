//! The serving thread: reads requests of all connections and answers from the lease table. Knows no file.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sanderling_observe::Latency;
use sanderling_transport::{Connection, Error, Poller, Received, Sender, Token};
use sanderling_wire::{Features, Kind};

use crate::lock::lock;

use super::Status;
use super::event::Event;
use super::journal::Journal;
use super::lease_queue::LeaseQueue;
use super::limit::{CONNECTIONS_MAX, HELLO_WITHIN, TURN_REQUESTS, WAITING_MAX};
use super::session::{HubFacts, Outgoing, Session};

/// Interval of the checks for expired trainers and silent connections.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// An accepted connection and the features of its transport.
pub(super) type Accepted = (Box<Connection>, Features);

/// The state of the serving thread.
pub(super) struct Serving {
    pub(super) poller: Poller,
    pub(super) joining: Receiver<Accepted>,
    pub(super) lease_queue: Arc<LeaseQueue>,
    /// The journal, which changes pass before trainers hear of them.
    pub(super) journal: Option<Arc<Journal>>,
    pub(super) facts: HubFacts,
    pub(super) started: Instant,
    /// Latencies of the answers.
    pub(super) latency: Arc<Mutex<Latency>>,
    pub(super) status: Box<dyn Fn() -> Status + Send>,
    pub(super) on_event: Arc<dyn Fn(Event) + Send + Sync>,
}

impl Serving {
    /// Serves until the accepting threads are gone.
    pub(super) fn run(mut self) -> Result<(), Error> {
        let mut talks: HashMap<Token, Session> = HashMap::new();
        let (mut ready, mut connections) = (Vec::new(), 0);
        let mut waiting: Vec<Token> = Vec::new();
        let mut look_at = Instant::now() + LOOK_EVERY;
        loop {
            let is_woken = self.poller.wait(&mut ready, Some(look_at))?;
            if is_woken {
                loop {
                    match self.joining.try_recv() {
                        Ok((connection, features)) => {
                            connections += 1;
                            if talks.len() >= CONNECTIONS_MAX {
                                continue;
                            }
                            let session = Session::new(connections, features, &self.facts, Instant::now());
                            match self.poller.add(*connection) {
                                Ok(token) => drop(talks.insert(token, session)),
                                // The system cannot poll this connection; the others are not affected.
                                Err(error) => {
                                    (self.on_event)(Event::NotAccepted { reason: error.to_string() });
                                }
                            }
                        }
                        Err(TryRecvError::Empty) => break,
                        Err(TryRecvError::Disconnected) => return Ok(()),
                    }
                }
            }
            // Their changes may be in the journal by now.
            if is_woken || Instant::now() >= look_at {
                for token in waiting.drain(..) {
                    if let Some(session) = talks.get_mut(&token) {
                        session.is_listed = false;
                        ready.push(token);
                    }
                }
            }
            for &token in &ready {
                let Some(session) = talks.get_mut(&token) else { continue };
                if !self.turn(token, session) {
                    self.close(token, &mut talks);
                } else if !session.waiting.is_empty() && !std::mem::replace(&mut session.is_listed, true) {
                    waiting.push(token);
                }
            }
            if Instant::now() >= look_at {
                look_at = Instant::now() + LOOK_EVERY;
                self.look(&mut talks);
            }
        }
    }

    fn look(&mut self, talks: &mut HashMap<Token, Session>) {
        let silent = |(token, session): (&Token, &Session)| {
            (!session.greeted && session.since.elapsed() > HELLO_WITHIN).then_some(*token)
        };
        let silent: Vec<Token> = talks.iter().filter_map(silent).collect();
        for token in silent {
            self.close(token, talks);
        }
        let lost = self.lease_queue.leases().expire(self.now_us());
        self.lease_queue.changed();
        for (trainer, minibatches) in lost {
            (self.on_event)(Event::TrainerGone { trainer, minibatches });
        }
    }

    fn close(&mut self, token: Token, talks: &mut HashMap<Token, Session>) {
        drop(self.poller.remove(token));
        if let Some(session) = talks.remove(&token) {
            self.lease_queue.leases().disconnect(self.now_us(), session.connection);
        }
    }

    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Answers some of the waiting requests; `false` if the connection is to be closed.
    fn turn(&mut self, token: Token, session: &mut Session) -> bool {
        let Serving { poller, lease_queue, journal, facts, latency, status, .. } = self;
        let is_written = |changes: u64| journal.as_ref().is_none_or(|journal| journal.is_written(changes));
        let Some(connection) = poller.connection(token) else { return false };
        let Connection { sender, receiver } = connection;
        for _ in 0..TURN_REQUESTS {
            match send_all(sender, session, &is_written) {
                Ok(true) => {}
                Ok(false) => return sender.try_flush().is_ok(),
                Err(_) => return false,
            }
            if session.waiting.len() >= WAITING_MAX {
                break;
            }
            if session.closing && session.waiting.is_empty() {
                return sender.try_flush().is_ok_and(|all| !all);
            }
            receiver.limit_frames(session.frame_bytes_max());
            match receiver.try_receive() {
                Ok(Received::Frame(bytes)) => {
                    let (begun, is_next) = (Instant::now(), bytes.get(5) == Some(&(Kind::Next as u8)));
                    let outgoing = match session.answer(bytes, facts, lease_queue, status) {
                        Ok(Some(outgoing)) => outgoing,
                        Ok(None) => continue,
                        Err(_) => return false,
                    };
                    session.waiting.push_back((session.after, outgoing));
                    if is_next {
                        lock(latency).record(begun.elapsed());
                    }
                }
                Ok(Received::Nothing) => break,
                Ok(Received::End) | Err(_) => return false,
            }
        }
        send_all(sender, session, &is_written).is_ok() && sender.try_flush().is_ok()
    }
}

/// Sends the answers that may be sent now; `false` if the connection has no room.
fn send_all(
    sender: &mut Sender,
    session: &mut Session,
    is_written: &dyn Fn(u64) -> bool,
) -> Result<bool, String> {
    loop {
        let outgoing = match session.pending.take() {
            Some(outgoing) => outgoing,
            None => {
                if !session.waiting.front().is_some_and(|(changes, _)| is_written(*changes)) {
                    return Ok(true);
                }
                let Some((_, outgoing)) = session.waiting.pop_front() else { return Ok(true) };
                session.pack(outgoing).map_err(|error| error.to_string())?
            }
        };
        if !send(sender, session, &outgoing)? {
            session.pending = Some(outgoing);
            return Ok(false);
        }
    }
}

/// Sends an answer; `false` if the connection has no room.
fn send(sender: &mut Sender, session: &Session, outgoing: &Outgoing) -> Result<bool, String> {
    let bytes = session.frame_bytes(outgoing).map_err(|error| error.to_string())?;
    let Some(mut slot) = sender.try_frame(bytes).map_err(|error| error.to_string())? else {
        return Ok(false);
    };
    let bytes = session.write(outgoing, &mut slot).map_err(|error| error.to_string())?;
    slot.commit(bytes);
    Ok(true)
}
