//! The mesh between workers on several hosts: to each a bounded queue and a thread that sends, from each a thread
//! that receives into one bounded queue. Does not know what rows are, and decides nothing about losses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sanderling_transport::{Connection, Error, Receiver as Receiving, Sender as Sending};
use sanderling_wire::{Agreed, Frame, Parsed, Request, Tell};

use super::control_msg::{ControlMsg, Loss, frame};
use super::gather::{Peer, spawn};
use super::peer_status::PeerStatus;
use crate::error::JobError;
use crate::mesh::Parcel;

/// Parcels that may wait for a worker, per worker that sends them, at each end.
const QUEUE_PARCELS: usize = 4;
/// How often whoever waits looks whether it is to stop.
const POLL: Duration = Duration::from_millis(50);
/// Longest sleep of a thread that can neither send nor hand on.
const NAP_MAX: Duration = Duration::from_millis(1);

/// A worker's ends.
#[derive(Debug)]
pub(crate) struct PeerLinks {
    rank: u32,
    /// Live workers, in the order of their places in the group.
    members: Vec<u32>,
    /// The current exchange; parcels of earlier ones are dropped.
    round: u64,
    to: BTreeMap<u32, SyncSender<Parcel>>,
    inbox: Receiver<(u32, Parcel)>,
    /// Its own queue, for parcels to itself.
    own: SyncSender<(u32, Parcel)>,
    pub(crate) status: Arc<PeerStatus>,
    stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl PeerLinks {
    pub(super) fn new(
        rank: u32,
        rows: BTreeMap<u32, Peer>,
        status: &Arc<PeerStatus>,
    ) -> Result<PeerLinks, JobError> {
        let (own, inbox) = sync_channel(QUEUE_PARCELS * (rows.len() + 1));
        let (to, threads) = (BTreeMap::new(), Vec::new());
        let (status, stopped) = (Arc::clone(status), Arc::default());
        let members = (0..=rows.len() as u32).collect();
        let mut links = PeerLinks { rank, members, round: 0, to, inbox, own, status, stopped, threads };
        for (other, Peer { connection, agreed, early }) in rows {
            let Connection { sender, receiver } = connection;
            let (queue, waiting) = sync_channel(QUEUE_PARCELS);
            links.to.insert(other, queue);
            let end = links.end(other, agreed);
            links.threads.push(spawn("send rows", move || end.send(sender, &waiting))?);
            let (end, inbox) = (links.end(other, agreed), links.own.clone());
            links.threads.push(spawn("receive rows", move || end.receive(receiver, early, &inbox))?);
        }
        Ok(links)
    }

    fn end(&self, other: u32, agreed: Agreed) -> End {
        End { other, agreed, status: Arc::clone(&self.status), stopped: Arc::clone(&self.stopped) }
    }

    pub(crate) fn try_send(&mut self, to: u32, parcel: Parcel) -> Result<Option<Parcel>, JobError> {
        self.check()?;
        let to = self.members.get(to as usize).copied().unwrap_or(u32::MAX);
        let unsent = if to == self.rank {
            self.own.try_send((to, parcel)).map_err(|error| match error {
                TrySendError::Full((_, parcel)) | TrySendError::Disconnected((_, parcel)) => parcel,
            })
        } else if let Some(queue) = self.to.get(&to) {
            match queue.try_send(parcel) {
                Ok(()) => Ok(()),
                Err(TrySendError::Full(parcel)) => Err(parcel),
                // Its thread has ended and said why; whether that is a loss is soon known.
                Err(TrySendError::Disconnected(parcel)) => {
                    std::thread::sleep(NAP_MAX);
                    Err(parcel)
                }
            }
        } else {
            let reason = format!("there is no worker {to}");
            return Err(JobError::OutOfStep { worker: self.rank, reason });
        };
        Ok(unsent.err())
    }

    pub(crate) fn receive(&mut self, wait: Duration) -> Result<Option<(u32, Parcel)>, JobError> {
        let until = Instant::now() + wait;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            match self.inbox.recv_timeout(left.min(POLL)) {
                Ok((from, parcel)) => {
                    let place = self.members.iter().position(|&worker| worker == from);
                    if let Some(place) = place.filter(|_| parcel.round() >= self.round) {
                        return Ok(Some((place as u32, parcel)));
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) if left <= POLL => {
                    return Ok(None);
                }
                Err(_) => {}
            }
        }
    }

    pub(crate) fn members(&self) -> &[u32] {
        &self.members
    }

    pub(crate) fn set_members(&mut self, members: Vec<u32>) {
        self.members = members;
    }

    pub(crate) fn set_round(&mut self, round: u64) {
        self.round = round;
    }

    /// An exchange needs every worker.
    fn check(&self) -> Result<(), JobError> {
        self.status.check_halt()?;
        self.status.check()?;
        self.status.check_losses("an exchange")
    }
}

impl Drop for PeerLinks {
    fn drop(&mut self) {
        if self.rank == 0 && std::thread::panicking() {
            // Or the others are taken for lost, since they cannot reach it any more.
            self.status.say(ControlMsg::Fail { worker: 0, reason: "it has panicked".to_owned() });
        }
        self.to.clear();
        self.stopped.store(true, Ordering::Release);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// The context of a thread that sends or receives for one peer.
struct End {
    other: u32,
    agreed: Agreed,
    status: Arc<PeerStatus>,
    stopped: Arc<AtomicBool>,
}

impl End {
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Rank 0 decides what follows from it.
    fn report(&self, reason: String) {
        if !self.is_stopped() && !self.status.is_over() {
            let loss = Loss { worker: self.other, turn: 0, settled: 0 };
            self.status.say(ControlMsg::Lost { losses: 0, loss, reason });
        }
    }

    fn send(&self, mut sender: Sending, waiting: &Receiver<Parcel>) {
        while let Ok(parcel) = waiting.recv() {
            if let Err(reason) = self.send_one(&mut sender, &parcel) {
                self.report(reason);
                return;
            }
        }
    }

    fn send_one(&self, sender: &mut Sending, parcel: &Parcel) -> Result<(), String> {
        let tell = match *parcel {
            Parcel::Rows { round, slice, ref bytes } => Tell::Rows { round, slice, bytes },
            Parcel::End { round } => Tell::RowsEnd { round },
            Parcel::Bytes { round, is_last, ref bytes } => Tell::Part { round, is_last, bytes },
        };
        let frame = frame(&Request::Tell(tell), &self.agreed, 0).map_err(|error| error.to_string())?;
        let failed = |error: Error| error.to_string();
        let mut nap = Nap::default();
        loop {
            if let Some(slot) = sender.try_frame(frame.len()).map_err(failed)? {
                slot.write(frame.bytes());
                break;
            }
            nap.take();
            if self.is_stopped() {
                return Ok(());
            }
        }
        while !sender.try_flush().map_err(failed)? && !self.is_stopped() {
            nap.take();
        }
        Ok(())
    }

    fn receive(
        &self,
        mut receiver: Receiving,
        mut early: Option<Vec<u8>>,
        inbox: &SyncSender<(u32, Parcel)>,
    ) {
        while !self.is_stopped() {
            let parcel = match early.take() {
                Some(bytes) => parcel(&bytes, &self.agreed),
                None => match receiver.receive(Some(Instant::now() + POLL)) {
                    Ok(Some(bytes)) => parcel(bytes, &self.agreed),
                    Ok(None) => Err("its connection for rows has ended".to_owned()),
                    Err(Error::Deadline { .. }) => continue,
                    Err(error) => Err(error.to_string()),
                },
            };
            match parcel {
                Ok(parcel) => self.hand_on(parcel, inbox),
                Err(reason) => return self.report(reason),
            }
        }
    }

    /// Waits while the worker has no room: then the other side's queue fills, too.
    fn hand_on(&self, parcel: Parcel, inbox: &SyncSender<(u32, Parcel)>) {
        let (mut item, mut nap) = ((self.other, parcel), Nap::default());
        while !self.is_stopped() {
            match inbox.try_send(item) {
                Ok(()) | Err(TrySendError::Disconnected(_)) => return,
                Err(TrySendError::Full(back)) => item = back,
            }
            nap.take();
        }
    }
}

/// Waits a little, longer the longer it has been.
#[derive(Default)]
struct Nap {
    since: Option<Instant>,
}

impl Nap {
    fn take(&mut self) {
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        std::thread::sleep((waited / 8).clamp(Duration::from_micros(20), NAP_MAX));
    }
}

/// Decodes a frame of a connection for rows.
fn parcel(bytes: &[u8], agreed: &Agreed) -> Result<Parcel, String> {
    let Parsed::Frame(frame) = Frame::parse(bytes, agreed).map_err(|error| error.to_string())? else {
        return Err("half a frame".to_owned());
    };
    match Request::decode(&frame).map_err(|error| error.to_string())? {
        Request::Tell(Tell::Rows { round, slice, bytes }) => {
            Ok(Parcel::Rows { round, slice, bytes: bytes.to_vec() })
        }
        Request::Tell(Tell::RowsEnd { round }) => Ok(Parcel::End { round }),
        Request::Tell(Tell::Part { round, is_last, bytes }) => {
            Ok(Parcel::Bytes { round, is_last, bytes: bytes.to_vec() })
        }
        other => Err(format!("it sent a {} where rows are sent", other.kind())),
    }
}
