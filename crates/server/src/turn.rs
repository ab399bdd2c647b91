//! One turn of a connection: reads a few requests, answers them and sends replies. It knows no other connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sanderling_transport::{Connection, Error, Received, Receiver, Token};
use sanderling_wire::{Buffer, Fault, Kind};

use crate::background::{BackgroundJob, JobQueues, QueuedJob};
use crate::call::Workspace;
use crate::connections::ConnectionEntry;
use crate::held_reply::HeldReply;
use crate::limit::{
    BACKGROUND_JOBS_PER_CONNECTION_MAX, IN_FLIGHT_MAX, REQUEST_COST_BYTES, TURN_REQUESTS, TURN_TIME,
};
use crate::refusal::Refusal;
use crate::reply_sink::ReplySink;
use crate::session::{Handled, Session, When};
use crate::state::State;
use crate::statistics::{PeerSlot, Recorder};
use crate::worker::{WorkerHandle, WorkerMsg};

/// Flush threshold within a turn. Without it, large replies would be sent together, and client and server would wait
/// for each other in turn.
const FLUSH_BYTES: usize = 16 << 10;

/// The context of a worker besides its connections.
pub(crate) struct WorkerContext {
    pub(crate) state: Arc<State>,
    pub(crate) workspace: Workspace,
    pub(crate) recorder: Recorder,
    pub(crate) jobs: JobQueues,
    pub(crate) handle: WorkerHandle,
}

/// One connection of a worker.
pub(crate) struct Client {
    pub(crate) session: Session,
    pub(crate) entry: Arc<ConnectionEntry>,
    pub(crate) since: Instant,
    pub(crate) peer_slot: Option<PeerSlot>,
    /// Bytes served so far. Of the ready connections the one with the fewest is next.
    pub(crate) served_bytes: u64,
    /// Start of the wait for a turn, if an earlier round ended before this connection's turn.
    pub(crate) ready_since: Option<Instant>,
    /// A request that found no room for its reply.
    held: Option<Buffer>,
    /// The session's reply waits for room.
    reply_waits: bool,
    /// Replies of background jobs that wait for room.
    pub(crate) done: VecDeque<Buffer>,
    /// Background jobs under way.
    pub(crate) jobs: usize,
    /// Replies among them that wait for the log, or for the other replicas.
    pub(crate) held_replies: usize,
    /// Some reply bytes are not sent yet.
    unsent: bool,
}

/// How a turn ended.
pub(crate) enum Turn {
    /// There may be more requests.
    Open,
    /// The client sent its last request and waits for background jobs. The connection leaves the poller until they are
    /// done.
    Parked,
    /// The client sent its last request, and all replies are sent.
    Ended,
    /// The connection must be closed, for this reason.
    Failed(String),
}

impl Client {
    pub(crate) fn new(session: Session, entry: Arc<ConnectionEntry>, since: Instant) -> Client {
        let (held, done) = (None, VecDeque::new());
        Client {
            session,
            entry,
            since,
            peer_slot: None,
            served_bytes: 0,
            ready_since: None,
            held,
            reply_waits: false,
            done,
            jobs: 0,
            held_replies: 0,
            unsent: false,
        }
    }

    /// Number of requests so far.
    pub(crate) fn served(&self) -> u64 {
        self.entry.requests.load(Ordering::Relaxed)
    }

    /// The client's own name, or its address.
    pub(crate) fn name(&self) -> &str {
        peer_name(self.session.client(), self.entry.peer())
    }

    /// Whether all replies are sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.held.is_none() && !self.reply_waits && self.done.is_empty() && self.jobs == 0 && !self.unsent
    }

    pub(crate) fn say_goaway(&mut self, connection: &mut Connection, within_ms: u32) {
        let mut sink = SenderSink { sender: &mut connection.sender, unsent: 0, put: 0, error: None };
        // A client that reads nothing learns it from the end of the connection.
        self.session.goaway(within_ms, "the server is about to stop", &mut sink);
        self.unsent = connection.sender.try_flush().is_ok_and(|flushed| !flushed);
    }

    pub(crate) fn turn(
        &mut self,
        token: Token,
        connection: &mut Connection,
        start: Instant,
        context: &mut WorkerContext,
    ) -> Turn {
        if context.state.admit_this_user && !self.session.is_greeted() {
            self.session.vouch(connection.is_of_this_user());
        }
        match self.answer(token, connection, start, context) {
            Ok(ended) => match connection.sender.try_flush() {
                Ok(flushed) => {
                    self.unsent = !flushed;
                    match flushed && !self.reply_waits {
                        true if self.session.is_closing() => Turn::Ended,
                        true if ended && self.jobs > 0 => Turn::Parked,
                        true if ended => Turn::Ended,
                        _ => Turn::Open,
                    }
                }
                Err(error) => Turn::Failed(error.to_string()),
            },
            Err(reason) => {
                // Earlier replies are still sent, if the client reads them.
                let _ = connection.sender.try_flush();
                Turn::Failed(reason)
            }
        }
    }

    /// Reads and answers a few requests. `true`: the client sent its last one.
    fn answer(
        &mut self,
        token: Token,
        connection: &mut Connection,
        start: Instant,
        context: &mut WorkerContext,
    ) -> Result<bool, String> {
        let Connection { sender, receiver } = connection;
        let mut sink = SenderSink { sender, unsent: 0, put: 0, error: None };
        let answered = self.answer_to(&mut sink, token, receiver, start, context);
        self.served_bytes += sink.put as u64;
        if sink.put > 0 {
            add(&self.entry.sent_bytes, sink.put as u64);
        }
        answered
    }

    /// Like `answer`, with the replies going to `sink`.
    fn answer_to(
        &mut self,
        sink: &mut SenderSink<'_>,
        token: Token,
        receiver: &mut Receiver,
        start: Instant,
        context: &mut WorkerContext,
    ) -> Result<bool, String> {
        let WorkerContext { state, workspace, recorder, jobs, handle } = context;
        let began = Instant::now();
        // Other connections had their turns since `start`, so the first request has waited that long.
        let mut now = began;
        for _ in 0..TURN_REQUESTS {
            if now > began + TURN_TIME {
                break;
            }
            let is_full = self.held_replies >= IN_FLIGHT_MAX as usize;
            if !self.send_waiting(sink)? || self.session.is_closing() || is_full {
                return Ok(false);
            }
            let held = self.held.take();
            // Before the hello, a connection gets no more buffer than one request needs.
            receiver.limit_frames(self.session.agreed().frame_bytes_max as usize);
            let frame = match &held {
                Some(buffer) => buffer.bytes(),
                None => match receiver.try_receive().map_err(|error| error.to_string())? {
                    Received::Frame(frame) => frame,
                    Received::Nothing => return Ok(false),
                    Received::End => return Ok(true),
                },
            };
            let kind = frame.get(5).copied().and_then(Kind::of);
            let when = When { arrived: start, now };
            workspace.tracer.begin(self.session.trace());
            let log = kind.filter(|_| self.session.is_greeted());
            let replication = log.and_then(|kind| state.replication.as_ref().filter(|all| all.holds(kind)));
            let log = log.and_then(|kind| state.log.as_ref().filter(|log| log.holds(kind)));
            let is_held = log.is_some() || replication.is_some();
            let mut held_reply = is_held.then(|| Buffer::new(self.session.agreed().frame_bytes_max as usize));
            let out: &mut dyn ReplySink = match &mut held_reply {
                Some(buffer) => buffer,
                None => sink,
            };
            let step = match self.session.handle(frame, when, workspace, out) {
                Ok(step) => step,
                Err(error) => {
                    self.session.goaway(0, &error.to_string(), sink);
                    return Err(error.to_string());
                }
            };
            sink.check()?;
            let was_at = std::mem::replace(&mut now, Instant::now());
            if !matches!(step, Handled::NoRoom) {
                if kind != Some(Kind::Trace) {
                    self.session.end_trace();
                }
                self.served_bytes += REQUEST_COST_BYTES + frame.len() as u64;
                add(&self.entry.received_bytes, frame.len() as u64);
            }
            if let (Some(reply), Some(kind)) = (held_reply, kind)
                && let Some(reply) = self.detached_reply(&step, reply)?
            {
                add(&self.entry.requests, 1);
                let replicated = replication.and_then(|all| Some((all, workspace.replicated.take()?)));
                if replicated.is_none() && (log.is_none() || !says_changed(reply.bytes())) {
                    self.done.push_back(reply);
                    continue;
                }
                let (id, agreed, worker) = (request_id(frame), *self.session.agreed(), handle.clone());
                let stage = if replicated.is_some() { "replicate" } else { "log" };
                let trace = workspace.tracer.hold(frame.len(), was_at, stage, now);
                let held =
                    HeldReply { worker, to: token, kind, id, agreed, began: was_at, frame: reply, trace };
                match (replicated, log) {
                    (Some((replication, request)), _) => {
                        replication.hold(request, Box::new(move |refusal| held.send(refusal)));
                    }
                    (None, Some(log)) => log.hold(Box::new(move |refusal| {
                        let refusal = refusal.map(|refusal| {
                            let reason =
                                format!("applied, but not on disk, so repeat it: {}", refusal.reason);
                            Refusal::new(refusal.fault, reason)
                        });
                        held.send(refusal.as_ref());
                    })),
                    (None, None) => {}
                }
                self.jobs += 1;
                self.held_replies += 1;
                continue;
            }
            match step {
                Handled::Replied => {}
                Handled::NoReply => continue,
                Handled::ReplyPending => self.reply_waits = true,
                Handled::NoRoom => {
                    self.held = Some(match held {
                        Some(buffer) => buffer,
                        None => copy(frame, self.session.agreed().frame_bytes_max)?,
                    });
                    return Ok(false);
                }
                Handled::InBackground(job) => {
                    self.post(token, *job, jobs, handle);
                    continue;
                }
            }
            if self.peer_slot.is_none() && self.session.is_greeted() {
                let name = peer_name(self.session.client(), sink.sender.peer());
                self.peer_slot = Some(recorder.peer_slot(name));
                let _ = self.entry.client.set(self.session.client().to_owned());
            }
            if let Some(kind) = kind {
                recorder.record(kind, self.peer_slot, now - was_at);
                workspace.tracer.end(kind, self.name(), frame.len(), was_at, now);
            }
            add(&self.entry.requests, 1);
        }
        self.send_waiting(sink)?;
        Ok(false)
    }

    /// The reply of a request whose replies may wait, which is in `reply` or in the session.
    fn detached_reply(&self, step: &Handled, reply: Buffer) -> Result<Option<Buffer>, String> {
        match step {
            Handled::Replied => Ok(Some(reply)),
            Handled::ReplyPending => {
                copy(self.session.reply(), self.session.agreed().frame_bytes_max).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Sends pending replies. `true`: all are sent.
    fn send_waiting(&mut self, sink: &mut SenderSink<'_>) -> Result<bool, String> {
        if self.reply_waits {
            self.reply_waits = !sink.send(self.session.reply())?;
        }
        while !self.reply_waits
            && let Some(frame) = self.done.front()
        {
            if !sink.send(frame.bytes())? {
                return Ok(false);
            }
            self.done.pop_front();
        }
        Ok(!self.reply_waits)
    }

    /// Queues a background job. Its reply comes back as a message.
    fn post(&mut self, to: Token, job: BackgroundJob, jobs: &JobQueues, handle: &WorkerHandle) {
        add(&self.entry.requests, 1);
        let (kind, handle) = (job.kind, handle.clone());
        if self.jobs - self.held_replies >= BACKGROUND_JOBS_PER_CONNECTION_MAX {
            let reason = format!(
                "{BACKGROUND_JOBS_PER_CONNECTION_MAX} slow requests of this connection are under way"
            );
            self.done.push_back(job.refused(&Refusal::busy(reason)));
            return;
        }
        let refused = job.refused(&Refusal::busy("the queue of slow requests is full"));
        let reply = Box::new(move |frame, took| {
            handle.send(WorkerMsg::Reply { to, kind, took, frame, was_held: false, trace: None });
        });
        match jobs.post(QueuedJob { job, reply }) {
            true => self.jobs += 1,
            false => self.done.push_back(refused),
        }
    }
}

/// Whether tables may have changed, by the reply: success, or keys without room or with bad updates among others.
fn says_changed(reply: &[u8]) -> bool {
    let status = reply.get(16..20).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes);
    let full = Fault::TableFull { rejected: 0, rows: 0, budget_bytes: 0 };
    let bad = Fault::BadGradient { key: 0, coordinate: 0, value: 0.0 };
    [0, full.code(), bad.code()].contains(&status)
}

/// The number of the request in a frame that was parsed.
fn request_id(frame: &[u8]) -> u64 {
    frame.get(8..16).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Only this thread writes the counter, so it needs no atomic increment.
fn add(counter: &AtomicU64, number: u64) {
    counter.store(counter.load(Ordering::Relaxed) + number, Ordering::Relaxed);
}

fn copy(frame: &[u8], frame_bytes_max: u32) -> Result<Buffer, String> {
    let mut buffer = Buffer::new(frame_bytes_max as usize);
    let room = buffer.room(frame.len()).map_err(|error| error.to_string())?;
    room[..frame.len()].copy_from_slice(frame);
    buffer.advance(frame.len());
    Ok(buffer)
}

/// The name of a peer: the client's own name, or its host without the port.
fn peer_name<'a>(client: &'a str, peer: &'a str) -> &'a str {
    let address = peer.strip_prefix("tcp://").or_else(|| peer.strip_prefix("rdma://"));
    match (client.is_empty(), address.and_then(|address| address.rsplit_once(':'))) {
        (false, _) => client,
        (true, Some((host, _))) => host,
        (true, None) => peer,
    }
}

/// The sending half of a connection as a [`ReplySink`].
struct SenderSink<'a> {
    sender: &'a mut sanderling_transport::Sender,
    /// Reply bytes since the last flush.
    unsent: usize,
    /// Reply bytes in this turn.
    put: usize,
    error: Option<Error>,
}

impl SenderSink<'_> {
    fn check(&mut self) -> Result<(), String> {
        self.error.take().map_or(Ok(()), |error| Err(error.to_string()))
    }

    /// Sends a whole frame. `false`: no room.
    fn send(&mut self, frame: &[u8]) -> Result<bool, String> {
        match self.sender.try_frame(frame.len()) {
            Ok(Some(slot)) => {
                slot.write(frame);
                self.put += frame.len();
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl ReplySink for SenderSink<'_> {
    fn put(&mut self, bytes_max: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        match self.sender.try_frame(bytes_max) {
            Ok(Some(mut slot)) => {
                let bytes = fill(&mut slot);
                slot.commit(bytes);
                self.unsent += bytes;
                self.put += bytes;
                if self.unsent >= FLUSH_BYTES {
                    self.unsent = 0;
                    self.error = self.sender.try_flush().err();
                }
                true
            }
            Ok(None) => false,
            Err(error) => {
                self.error = Some(error);
                false
            }
        }
    }

    #[cfg(feature = "rdma")]
    fn card(&mut self) -> Option<sanderling_transport::Card> {
        self.sender.card()
    }

    #[cfg(feature = "rdma")]
    fn gather(&mut self, frame: sanderling_transport::GatherFrame) -> bool {
        let bytes = frame.bytes();
        match self.sender.try_gather(frame) {
            Ok(is_taken) => {
                self.put += if is_taken { bytes } else { 0 };
                is_taken
            }
            Err(error) => {
                self.error = Some(error);
                false
            }
        }
    }
}
