//! The thread that answers: connections in, the desk behind. Knows no file.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sanderling_observe::Latency;
use sanderling_transport::{Connection, Error, Poller, Received, Sender, Token};
use sanderling_wire::{Features, Kind};

use crate::decoding::lock;

use super::Status;
use super::event::Event;
use super::hall::Hall;
use super::limit::{CONNECTIONS_MAX, HELLO_WITHIN, TURN_REQUESTS};
use super::talk::{Answered, Facts, Talk};

/// How often it looks for trainers that are gone and for connections that say nothing.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A connection that was accepted, and what its transport can do.
pub(super) type Joining = (Box<Connection>, Features);

/// What the thread works with.
pub(super) struct Serving {
    pub(super) poller: Poller,
    pub(super) joining: Receiver<Joining>,
    pub(super) hall: Arc<Hall>,
    pub(super) facts: Facts,
    pub(super) started: Instant,
    /// How long answers took.
    pub(super) latency: Arc<Mutex<Latency>>,
    pub(super) status: Box<dyn Fn() -> Status + Send>,
    pub(super) on_event: Arc<dyn Fn(Event) + Send + Sync>,
}

impl Serving {
    /// Serves until those who accept are gone.
    pub(super) fn run(mut self) -> Result<(), Error> {
        let mut talks: HashMap<Token, Talk> = HashMap::new();
        let (mut ready, mut connections) = (Vec::new(), 0);
        let mut look_at = Instant::now() + LOOK_EVERY;
        loop {
            if self.poller.wait(&mut ready, Some(look_at))? {
                loop {
                    match self.joining.try_recv() {
                        Ok((connection, features)) => {
                            connections += 1;
                            if talks.len() >= CONNECTIONS_MAX {
                                continue;
                            }
                            let talk = Talk::new(connections, features, &self.facts, Instant::now());
                            match self.poller.add(*connection) {
                                Ok(token) => drop(talks.insert(token, talk)),
                                // The system cannot watch it: that is nothing to the others.
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
            for &token in &ready {
                let Some(talk) = talks.get_mut(&token) else { continue };
                if !self.turn(token, talk) {
                    self.close(token, &mut talks);
                }
            }
            if Instant::now() >= look_at {
                look_at = Instant::now() + LOOK_EVERY;
                self.look(&mut talks);
            }
        }
    }

    fn look(&mut self, talks: &mut HashMap<Token, Talk>) {
        let silent = |(token, talk): (&Token, &Talk)| {
            (!talk.greeted && talk.since.elapsed() > HELLO_WITHIN).then_some(*token)
        };
        let silent: Vec<Token> = talks.iter().filter_map(silent).collect();
        for token in silent {
            self.close(token, talks);
        }
        let lost = self.hall.desk().expire(self.now_us());
        for (trainer, minibatches) in lost {
            (self.on_event)(Event::TrainerGone { trainer, minibatches });
        }
    }

    fn close(&mut self, token: Token, talks: &mut HashMap<Token, Talk>) {
        drop(self.poller.remove(token));
        if let Some(talk) = talks.remove(&token) {
            self.hall.desk().disconnect(self.now_us(), talk.connection);
        }
    }

    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Answers what is there, a few requests at a time. `false`: the connection is of no use any more.
    fn turn(&mut self, token: Token, talk: &mut Talk) -> bool {
        let Serving { poller, hall, facts, latency, status, .. } = self;
        let Some(connection) = poller.connection(token) else { return false };
        let Connection { sender, receiver } = connection;
        for _ in 0..TURN_REQUESTS {
            if let Some(answered) = talk.pending.take() {
                match send(sender, talk, &answered) {
                    Ok(true) => {}
                    Ok(false) => {
                        talk.pending = Some(answered);
                        return sender.try_flush().is_ok();
                    }
                    Err(_) => return false,
                }
            }
            if talk.closing {
                return sender.try_flush().is_ok_and(|all| !all);
            }
            receiver.limit_frames(talk.frame_bytes_max());
            match receiver.try_receive() {
                Ok(Received::Frame(bytes)) => {
                    let (begun, is_next) = (Instant::now(), bytes.get(5) == Some(&(Kind::Next as u8)));
                    let Ok(answered) = talk.answer(bytes, facts, hall, status) else { return false };
                    talk.pending = Some(answered);
                    if is_next {
                        lock(latency).record(begun.elapsed());
                    }
                }
                Ok(Received::Nothing) => break,
                Ok(Received::End) | Err(_) => return false,
            }
        }
        if let Some(answered) = talk.pending.take() {
            match send(sender, talk, &answered) {
                Ok(true) => {}
                Ok(false) => talk.pending = Some(answered),
                Err(_) => return false,
            }
        }
        sender.try_flush().is_ok()
    }
}

/// Hands an answer to the connection. `false`: it has no room now.
fn send(sender: &mut Sender, talk: &Talk, answered: &Answered) -> Result<bool, String> {
    let bytes = talk.frame_bytes(answered).map_err(|error| error.to_string())?;
    let Some(mut slot) = sender.try_frame(bytes).map_err(|error| error.to_string())? else {
        return Ok(false);
    };
    let bytes = talk.write(answered, &mut slot).map_err(|error| error.to_string())?;
    slot.commit(bytes);
    Ok(true)
}
